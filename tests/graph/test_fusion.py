"""Operator fusion of elementwise ops, broadcasts and reductions into single passes over memory.

Fused groups give equal bits with less memory and fewer instructions.
"""

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mpgluon as mx
from mpgluon import _core, autograd, nd
from support.compare import same_bits
from support.devices import cpus_only, on
from support.functions import as_list, check, compiled, draw, groups, is_float, planned, train

pytestmark = pytest.mark.usefixtures("async_afterwards")
SETTINGS = dict(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


# --- Fused groups ---------------------------------------------------------------------------------


def test_elementwise_chain_fuses_into_one_group_without_memory():
    def chain(x):
        for _ in range(5):
            x = nd.tanh(x) * 0.5 + 1
        return x

    op = compiled(chain)
    op(draw((4, 6))[0])
    assert groups(op) == [["tanh", "_mul_scalar", "_plus_scalar"] * 5]
    assert planned(op) == 0
    check(chain, draw((4, 6)))
    check(chain, draw((300, 70)))  # several tiles


def test_tree_with_broadcasts_fuses_into_one_group():
    def tree(x, y, row, column):
        return nd.relu(nd.broadcast_add(x, row)) * nd.sigmoid(nd.broadcast_mul(y, column))

    arrays = draw((50, 300), (50, 300), (1, 300), (50, 1))
    op = check(tree, arrays)
    assert groups(op, entry=1) == [
        ["broadcast_add", "relu", "broadcast_mul", "sigmoid", "broadcast_mul"]
    ]


def layer_norm(x, gamma, beta):
    mean = x.mean(axis=-1, keepdims=True)
    centred = nd.broadcast_sub(x, mean)
    variance = nd.square(centred).mean(axis=-1, keepdims=True)
    return nd.broadcast_add(
        nd.broadcast_mul(nd.broadcast_mul(centred, nd.rsqrt(variance + 1e-5)), gamma), beta
    )


@cpus_only
@pytest.mark.parametrize("shape", [(3, 5), (64, 1024), (9, 3, 700), (20000, 3), (2, 30000)])
def test_layer_norm_written_out_fuses_into_one_group(shape):
    op = check(layer_norm, draw(shape, shape[-1:], shape[-1:]))
    if shape not in [(2, 30000)]:  # rows too long for the cache
        assert len(groups(op, entry=1)) == 1 and planned(op, entry=1) == 0


def test_fused_reductions_match_unfused_for_all_row_sizes():
    def f(x):
        return nd.exp(nd.broadcast_sub(x, x.max(axis=(1, 2), keepdims=True))).sum(
            axis=(1, 2)
        ), nd.square(x).sum()

    for shape in [(40, 6, 50), (2, 3, 4), (8, 200, 90), (3, 1, 9000)]:
        check(f, draw(shape))


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "nansum", "nanprod", "max", "min", "norm"])
@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2), None])
def test_every_fused_reduction_matches_unfused(op, axis):
    def f(x):
        return getattr(nd, op)(x * 0.5 + 1, axis=axis) * 2

    check(f, draw((12, 40, 50)))
    check(f, draw((2, 3, 4)))


TRAILING = [
    ((1024, 300), 0),
    ((2000, 64), 0),
    ((90000, 3), 0),
    ((40, 30, 200), (0, 1)),
    ((150000,), None),
    ((300, 500), None),
    ((64, 2, 1024), None),
    ((64, 7, 9, 40), (0, 1, 2)),
    ((1100, 4096), 0),
]


@cpus_only
@pytest.mark.parametrize("op", ["sum", "mean", "prod", "nansum", "nanprod", "max", "min", "norm"])
@pytest.mark.parametrize("shape, axis", TRAILING)
def test_reductions_along_outer_axes_end_their_group(op, shape, axis):
    """The group that tiles the axes gives the same bits as the separate reduction."""

    def f(x, y):
        z = nd.broadcast_mul(x * 0.5 + 1, y)
        return nd.dot(z.reshape((-1, shape[-1])), y.reshape((-1, 1))), getattr(nd, op)(
            z, axis=axis
        ) * 2

    op = check(f, draw(shape, (1,) * (len(shape) - 1) + shape[-1:]))
    assert [len(g) for g in groups(op, entry=1)] == [4], groups(op, entry=1)


@cpus_only
@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int8", "uint8"])
@pytest.mark.parametrize("shape, axis", TRAILING[:1] + TRAILING[4:6])
def test_trailing_reductions_fuse_for_every_dtype(shape, axis, dtype):
    def f(x):
        y = nd.abs(x) + 1
        return (
            y,
            nd.sum(y, axis=axis),
            nd.max(y, axis=axis),
            nd.nanprod(y, axis=axis, keepdims=True),
        )

    op = check(f, draw(shape, dtype=dtype))
    assert [len(g) for g in groups(op, entry=1)] == [5]


@cpus_only
def test_different_trailing_reductions_share_one_group():
    def f(x, y, row):
        z = nd.tanh(nd.broadcast_add(x, row))
        w = z * y
        return (
            w.sum(axis=0),
            w.mean(),
            z.max(axis=(0, 1)),
            nd.sum(w, axis=2),
            (z - w).reshape((-3, 0)).sum(axis=0).reshape((16, 8)),
            w.norm(),
        )

    op = check(f, draw((1024, 4, 128), (1024, 4, 128), (1, 1, 128)))
    assert [len(g) for g in groups(op, entry=1)] == [10]
    # A consumer sees the result of a trailing reduction only after its group
    found = check(lambda x: nd.relu(nd.relu(x).sum(axis=0)), draw((512, 256)))
    assert groups(found, entry=1) == [["relu", "sum"]]


@cpus_only
def test_groups_dump_shows_bias_gradient():
    """The sum runs right after its operand, although two products also read it and were earlier."""

    def f(x, w, bias):
        return nd.LeakyReLU(nd.FullyConnected(x, w, bias, num_hidden=256), act_type="gelu")

    op = compiled(f)
    arrays = draw((1024, 64), (256, 64), (256,))
    same_bits(train(op, arrays), train(f, arrays))
    assert (
        "\n".join(op.groups().splitlines()[:])
        == """backward on cpu(0) (1024 | 256)
  out0 = _backward_LeakyReLU(in0, in1) : float32 (1024, 256)
  out1 = sum(out0) : float32 (1, 256)
"""
    )
    assert check(f, draw((90, 64), (256, 64), (256,)))  # few chunks


def test_trailing_reductions_do_not_move_past_a_write():
    class Net(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.norm = mx.gluon.nn.BatchNorm(axis=-1)

        def hybrid_forward(self, F, x):
            y = F.relu(x)
            z = self.norm(y)
            return y.sum(axis=0) + z.sum(axis=0)

    def run(hybrid):
        mx.random.seed(1)
        net = Net(prefix="net_")
        net.initialize()
        if hybrid:
            net.hybridize(exact=True)
        x, results = draw((1024, 100))[0], []
        for _ in range(3):
            with autograd.record():
                y = net(x)
            y.backward()
            results += [
                y.asnumpy(),
                net.norm.running_mean.data().asnumpy(),
                net.norm.gamma.grad().asnumpy(),
            ]
        return results

    same_bits(run(True), run(False))


def test_views_between_fused_ops_do_not_prevent_fusion():
    def f(x, bias):
        y = nd.relu(x.reshape((-1, 8)))
        y = nd.broadcast_add(y, bias).reshape((5, 600, 4, 2))
        return (y + 1).sum(axis=(2, 3)), y.reshape((-1,)) * 2

    op = check(f, draw((3000, 8), (1, 8)))
    if on(0).device_type == "cpu":  # groups on GPUs contain no reductions
        assert sum(map(len, groups(op, entry=1))) == 5


def test_value_with_unfused_readers_keeps_its_memory():
    def f(x, w):
        y = nd.relu(x) * 2
        z = nd.FullyConnected(y, w, no_bias=True, num_hidden=6)
        return nd.tanh(y) + z, y

    check(f, draw((40, 6), (6, 6)))


def test_fused_dropout_draws_same_numbers():
    def f(x, bias):
        y = (
            nd.Dropout(
                nd.LeakyReLU(nd.broadcast_add(x, bias), act_type="gelu"), p=0.3, mode="always"
            )
            + x
        )
        return nd.Dropout(y, p=0.5, mode="always") * 2

    op = check(f, draw((130, 257), (1, 257)))
    if on(0).device_type == "cpu":  # groups on GPUs contain no dropout
        assert groups(op)[0] == [
            "broadcast_add",
            "LeakyReLU",
            "Dropout",
            "broadcast_add",
            "Dropout",
            "_mul_scalar",
        ]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int8", "uint8"])
def test_fused_ops_match_unfused_for_every_dtype(dtype):
    def f(x, y):
        z = nd.broadcast_add(nd.abs(x) * 3, y)
        z = nd.where(z > y.broadcast_like(z), z, nd.clip(z, 0, 3))
        return z.astype("float64").sum(axis=1) * 0.1, nd.cast(z, "int32") + 1

    check(f, draw((33, 500), (33, 1), dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_gelu_gradient_fuses_for_every_dtype(dtype):
    def f(grad, x):
        y = nd.LeakyReLU(x, act_type="gelu") + 1
        return _core.get_op("_backward_LeakyReLU")(grad * 2, y, act_type="gelu")

    for size in (7, 5003):
        op = check(f, [a.astype(dtype) for a in draw((size,), (size,))])
        if on(0).device_type == "cpu" or dtype != "float64":  # groups on GPUs contain no float64
            members = ["LeakyReLU", "_plus_scalar", "_mul_scalar", "_backward_LeakyReLU"]
            assert groups(op) == [members]


def test_fused_ops_do_not_move_past_a_write():
    class Net(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.norm = mx.gluon.nn.BatchNorm()

        def hybrid_forward(self, F, x):
            a = F.relu(x) * 2
            return self.norm(x) * a + a

    def run(hybrid):
        mx.random.seed(1)
        net = Net(prefix="net_")
        net.initialize()
        if hybrid:
            net.hybridize(exact=True)
        results = []
        x = draw((10, 4, 8, 8))[0]
        for _ in range(3):
            with autograd.record():
                y = net(x)
            y.backward()
            results += [
                y.asnumpy(),
                net.norm.running_mean.data().asnumpy(),
                net.norm.gamma.grad().asnumpy(),
            ]
        return results

    same_bits(run(True), run(False))


def test_fused_gradients_accumulate_with_grad_req_add():
    def f(x, y):
        return nd.tanh(x * y) * y + x

    check(f, draw((90, 70), (90, 70)), add=True)


def test_vector_broadcast_as_row_and_column_fuses_correctly():
    def f(x, v):
        return nd.broadcast_add(nd.broadcast_mul(x, v.reshape((1, -1))), v.reshape((-1, 1))) * 2

    check(f, draw((150, 150), (150,)))


def test_fused_empty_and_single_element_arrays_match_unfused():
    def f(x, y):
        return (nd.broadcast_add(x, y) * 2).sum(axis=0) + 1

    for shape in [(0, 3), (1, 1), (1, 3), (7, 1)]:
        check(f, draw(shape, (1, 1)))


def test_groups_are_fused_per_device():
    def f(x):
        a = nd.relu(x + 1) * 2
        b = nd.tanh(a.as_in_context(on(61)) * 3) - 1
        return b.as_in_context(x.ctx) * a + 1

    x = draw((60, 100))[0].as_in_context(on(60))
    expected = train(f, [x])
    for mode, seed in [("async", 0), ("shuffle", 1), ("shuffle", 2)]:
        mx.engine.set_mode(mode, seed)
        op = compiled(f)
        same_bits(train(op, [x]), expected)
        assert [len(g) for g in groups(op, entry=1)] == [3, 2, 3]  # per device


# --- Profiler events and dumps --------------------------------------------------------------------


def test_fused_group_is_one_profiler_event_named_by_members():
    x = draw((64, 64))[0]
    op = compiled(lambda x: nd.relu(x * 2) + 1)
    op(x)
    mx.nd.waitall()
    _core.profiler_start()
    op(x)
    mx.nd.waitall()
    _core.profiler_stop()
    assert [e[1] for e in _core.profiler_events() if e[2] == "op"] == [
        "_mul_scalar+relu+_plus_scalar"
    ]


@cpus_only
def test_groups_dump_shows_layer_norm():
    op = compiled(layer_norm)
    op(*draw((64, 1024), (1024,), (1024,)))
    assert (
        op.groups()
        == """forward on cpu(0) (64 | 1024)
  slot0 = mean(in0) : float32 (64, 1)
  slot1 = broadcast_sub(in0, slot0) : float32 (64, 1024)
  slot0 = square(slot1) : float32 (64, 1024)
  slot2 = mean(slot0) : float32 (64, 1)
  slot2 = _plus_scalar(slot2) : float32 (64, 1)
  slot2 = rsqrt(slot2) : float32 (64, 1)
  slot1 = broadcast_mul(slot1, slot2) : float32 (64, 1024)
  slot1 = broadcast_mul(slot1, in1) : float32 (64, 1024)
  out0 = broadcast_add(slot1, in2) : float32 (64, 1024)
"""
    )


@cpus_only
def test_groups_dump_shows_forward_and_backward():
    def f(x, bias):
        return nd.Dropout(nd.relu(nd.broadcast_add(x, bias)), p=0.5) + x

    op = compiled(f)
    x, bias = draw((3, 40, 4), (40, 1))
    for array in (x, bias):
        array.attach_grad()
    with autograd.record():
        y = as_list(op(x, bias))[0]
    y.backward()
    assert (
        op.groups()
        == """forward on cpu(0) (3, 40, 4)
  slot0 = broadcast_add(in0, in1) : float32 (3, 40, 4)
  out0 = relu(slot0) : float32 (3, 40, 4)
  slot0, out1 = Dropout(out0) : float32 (3, 40, 4)
  out2 = broadcast_add(slot0, in0) : float32 (3, 40, 4)
backward on cpu(0) (| 3, 40, 4)
  slot0 = _dropout_apply(in0, in1) : float32 (3, 40, 4)
  slot0 = _backward_relu(slot0, in2) : float32 (3, 40, 4)
  out0 = sum(slot0) : float32 (1, 40, 1)
  out1 = elemwise_add(in0, slot0) : float32 (3, 40, 4)
"""
    )


def test_fusion_never_plans_more_memory():
    for function, arrays in [
        (layer_norm, draw((64, 1024), (1024,), (1024,))),
        (lambda x, y: nd.tanh(x * y) * y + x.sum(), draw((90, 70), (90, 70))),
    ]:
        found = {}
        for fuse in (True, False):
            op = _core.CachedOp(function, {"fuse": fuse})
            found[fuse] = (
                train(op, arrays),
                [
                    planned(op, what, entry)
                    for what in ("forward", "backward", "total")
                    for entry in (0, 1)
                ],
            )
            assert bool(groups(op)) == fuse
        same_bits(found[True][0], found[False][0])
        assert (
            all(a <= b for a, b in zip(found[True][1], found[False][1]))
            and found[True][1] != found[False][1]
        )


@cpus_only
def test_only_groups_that_need_more_memory_stay_unfused():
    """Fused, float32 and float64 are live at once. Unfused, only the float16 between them is
    live."""

    def costly(x, w):
        return ((nd.dot(x, w) * 2).astype("float16") + 1).astype("float64") - 1

    def f(x, w, u, v):
        y = nd.tanh(nd.dot(x, w) * 3) + 1
        z = nd.dot(nd.dot(costly(y, w), v).astype("float32"), u)
        return nd.dot(nd.sigmoid(z * 2) - 1, w)

    arrays = draw((300, 40), (40, 40), (4, 40)) + draw((40, 4), dtype="float64")
    op, apart = compiled(f), _core.CachedOp(f, {"exact": True, "fuse": False})
    same_bits(train(op, arrays), train(apart, arrays))
    found = groups(op, entry=1)
    assert ["_mul_scalar", "tanh", "_plus_scalar"] in found and [
        "_mul_scalar",
        "sigmoid",
        "_minus_scalar",
    ] in found
    assert not any("Cast" in group and "_plus_scalar" in group for group in found)
    assert planned(op, "forward", 1) <= planned(apart, "forward", 1)


# --- Random graphs --------------------------------------------------------------------------------

SHAPES = [(4, 6), (4, 1), (1, 6), (1, 1)]
UNARY = ["tanh", "relu", "negative", "square", "sigmoid", "abs", "softsign"]
BINARY = [
    "broadcast_add",
    "broadcast_sub",
    "broadcast_mul",
    "broadcast_maximum",
    "broadcast_greater",
]

step = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 99)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 99), st.integers(0, 99)),
    st.tuples(st.just("scalar"), st.integers(0, 99), st.integers(-2, 2)),
    st.tuples(
        st.just("reduce"),
        st.integers(0, 99),
        st.sampled_from([0, 1, (0, 1)]),
        st.sampled_from(["sum", "mean", "max"]),
    ),
    st.tuples(st.just("dropout"), st.integers(0, 99)),
    st.tuples(st.just("reshape"), st.integers(0, 99)),
    st.tuples(st.just("dense"), st.integers(0, 99)),
    st.tuples(st.just("where"), st.integers(0, 99), st.integers(0, 99)),
    st.tuples(
        st.just("cast"), st.integers(0, 99), st.sampled_from(["float32", "float64", "float16"])
    ),
)
program = st.tuples(
    st.lists(st.tuples(step, st.integers(0, 1)), min_size=2, max_size=16),
    st.lists(st.integers(0, 99), min_size=1, max_size=3),
    st.sampled_from(["float32", "float32", "float64", "float16", "int32"]),
    st.sampled_from([1, 1, 20, 900, 8000]),
    st.booleans(),
)


def interpret(steps, outputs, arrays, devices, weight):
    values = list(arrays)

    def pick(number, device):
        return values[number % len(values)].as_in_context(devices[device])

    for (kind, *numbers), device in steps:
        a = pick(numbers[0], device)
        if kind in BINARY:
            value = getattr(nd, kind)(a, pick(numbers[1], device).astype(a.dtype))
        elif kind == "scalar":
            value = a * numbers[1] + 1
        elif kind == "reduce":
            value = getattr(nd, numbers[2])(a, axis=numbers[1], keepdims=True)
        elif kind == "dropout":
            value = nd.Dropout(a, p=0.4, mode="always") if is_float(a) else a
        elif kind == "reshape":
            value = nd.relu(a.reshape((-1,)) * 2).reshape(a.shape)
        elif kind == "dense":
            value = (
                nd.dot(nd.softsign(a), weight.as_in_context(devices[device]).astype(a.dtype))
                if a.shape[1] == 6 and is_float(a)
                else a + a
            )
        elif kind == "where":
            value = nd.where(
                a > 0, a, nd.broadcast_like(pick(numbers[1], device)[:1, :1].astype(a.dtype), a)
            )
        elif kind == "cast":
            value = a.astype(numbers[1]) if is_float(a) else a - 1
        else:
            value = getattr(nd, kind)(a)
        values.append(value)
    return [values[-1 - number % len(values)] for number in outputs]


def random_graph(drawn, num_devices):
    steps_, outputs, dtype, scale, add = drawn
    devices = [on(60), on(61 if num_devices == 2 else 60)]
    arrays = [
        a.as_in_context(devices[0])
        for a in draw(*[(m * scale if m == 4 else m, n) for m, n in SHAPES], dtype=dtype)
    ]
    weight = draw((6, 6))[0].as_in_context(devices[0])

    def function(*leaves):
        return interpret(steps_, outputs, leaves[:-1], devices, leaves[-1])

    expected = train(function, [*arrays, weight], add)
    for mode, seed in [("async", 0), ("shuffle", 1)]:
        mx.engine.set_mode(mode, seed)
        op, apart = compiled(function), _core.CachedOp(function, {"exact": True, "fuse": False})
        same_bits(train(op, [*arrays, weight], add), expected)
        same_bits(train(apart, [*arrays, weight], add), expected)
        for device, found in op.compiled()[0]["devices"].items():
            assert (
                found["planned"]["total"]
                <= apart.compiled()[0]["devices"][device]["planned"]["total"]
            )
    mx.engine.set_mode("async")


@settings(max_examples=60, **SETTINGS)
@given(program, st.integers(1, 2))
def test_random_fused_graphs_match_unfused(drawn, num_devices):
    random_graph(drawn, num_devices)


@pytest.mark.slow
@settings(max_examples=800, **SETTINGS)
@given(program, st.integers(1, 2))
def test_many_random_fused_graphs_match_unfused(drawn, num_devices):
    random_graph(drawn, num_devices)
