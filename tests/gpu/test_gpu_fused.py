"""Fused groups on a GPU: one kernel with the bits of its separate ops."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, nd
from support.compare import same_bits
from support.functions import as_list, check, compiled, groups, steps
from support.stand_in import needs_gpu
from support.training import backward_of

pytestmark = needs_gpu
FLOATS = ["float32", "float16", "bfloat16"]


def draw(shape, dtype, seed=0):
    values = np.random.RandomState(seed).uniform(-2, 2, shape).astype("float32")
    return nd.array(values, ctx=mx.gpu(0)).astype(dtype)


def mixture(x, c, s):
    y = nd.tanh(nd.broadcast_add(x, c) * 0.3) - nd.relu(x)
    g = nd.exp(s * 0.5)  # small, and also a result of the group
    z = nd.clip(nd.broadcast_mul(y, g), -0.7, 0.9)
    return z * z + 1 / (nd.Activation(x, act_type="softrelu") + 0.1), g * 2, z**2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5,), (7, 11), (64, 33, 8), (300, 401)])
def test_groups_have_the_bits_of_their_members(shape, dtype):
    """Sizes around the four elements per thread; operands broadcast along all, some or no axes."""
    arrays = [draw(shape, dtype), draw(shape[-1:], dtype, 1), draw(shape[-1:], dtype, 2)]
    op = check(mixture, arrays)
    fused = groups(op)
    assert any(len(members) >= 5 for members in fused), fused


def test_casts_between_members_round():
    def function(x):
        return nd.Cast(
            nd.Cast(nd.exp(x) * 1.1, dtype="float16") + 3, dtype="bfloat16"
        ) * 7, nd.Cast(x - 1, dtype="bfloat16")

    op = check(function, [draw((33, 5), "float32")])
    assert max(map(len, groups(op))) >= 5


def test_groups_support_unaligned_slices():
    whole = draw((4, 1031), "float32")
    op = compiled(lambda x, y: nd.sigmoid(x) * y + x)
    for i in range(3):
        same_bits(
            [op(whole[i, i:], whole[i + 1, i:])[0].asnumpy()],
            [(nd.sigmoid(whole[i, i:]) * whole[i + 1, i:] + whole[i, i:]).asnumpy()],
        )


def test_groups_support_many_operands_and_registers():
    def function(*xs):
        ys = [nd.sin(x) * (k + 1) for k, x in enumerate(xs)]
        total = ys[0]
        for y in reversed(ys):
            total = nd.maximum(total * 0.5, y) - total
        return [total] + ys

    op = check(function, [draw((41, 3), "float32", k) for k in range(18)])
    assert max(map(len, groups(op))) > 24


def test_ops_that_cannot_be_fused_run_separately():
    """Other dtypes, sums over outer axes, and ops without an elementwise formula."""

    def function(x, n):
        y = nd.exp(x) * 2
        return nd.dot(y, y.T), y.sum(axis=0), n * 3 + 1, nd.Cast(n, dtype="float32") * x

    op = check(
        function,
        [draw((6, 5), "float32"), nd.arange(30, ctx=mx.gpu(0)).astype("int32").reshape((6, 5))],
    )
    assert groups(op) == [["exp", "_mul_scalar"]]


def test_broadcast_input_is_not_overwritten_by_a_result():
    """g could reuse the memory of s, but every row of x reads s."""

    def function(x, s):
        # Computed in the program, so its memory may be reused
        s = nd.dot(s, nd.ones((7, 7), ctx=mx.gpu(0)))
        g = nd.exp(nd.reshape(s, (1, 7)) * 0.01)
        return nd.broadcast_mul(x, g) + 1, g

    for rows in (3, 5000):
        check(function, [draw((rows, 7), "float32"), draw((1, 7), "float32", 1)])


def test_every_fusible_op_keeps_its_bits_in_a_group():
    """Places each fusible op of one or two arrays between two other ops."""
    x, y = (
        nd.array(np.random.RandomState(k).uniform(0.1, 0.9, (3, 7)), ctx=mx.gpu(0))
        for k in range(2)
    )
    seen = 0
    for name in sorted(_core.list_ops()):
        op = _core.get_op(name)
        if "inplace" not in op.describe()["flags"]:
            continue
        arrays = (x, y)[: len(op.describe()["inputs"])]  # an extra positional array would be out=
        for params in ({}, {"scalar": 1.5}):
            try:
                function = getattr(nd, name, None)
                expected = (
                    function(*[a * 1.0 for a in arrays], **params) + 0.25 if function else None
                )
            except (mx.base.MXNetError, TypeError, ValueError):
                continue
            if not isinstance(expected, nd.NDArray) or expected.dtype != np.float32:
                continue
            program = compiled(lambda *a: function(*[b * 1.0 for b in a], **params) + 0.25)
            same_bits([program(*arrays)[0].asnumpy()], [expected.asnumpy()])
            seen += any(name in members for members in groups(program))
    assert seen > 50


@pytest.mark.parametrize("dtype", FLOATS)
def test_gelu_and_its_gradient_are_in_groups(dtype):
    x, y = draw((7, 33), dtype), draw((7, 33), dtype, 1)

    def function(grad, data):
        y = nd.LeakyReLU(data, act_type="gelu") + 1
        return _core.get_op("_backward_LeakyReLU")(grad * 2, y, act_type="gelu")

    op = check(function, [x, y])
    assert groups(op) == [["LeakyReLU", "_plus_scalar", "_mul_scalar", "_backward_LeakyReLU"]]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3,), (5, 7), (12, 130)])
def test_dropout_is_fused_with_neighboring_ops(shape, dtype):
    """Bias, GELU, dropout and an addition run as one kernel forward and one backward, with the
    masks of the CPU."""

    def function(*arrays):
        x, bias, rest = (nd.Cast(a, dtype=dtype) for a in arrays)
        y = nd.LeakyReLU(nd.broadcast_add(x, bias), act_type="gelu")
        return nd.Cast(nd.Dropout(y, p=0.4) + rest, dtype="float32")

    arrays = [draw(s, "float32", i) for i, s in enumerate((shape, shape[-1:], shape))]
    op = check(function, arrays)
    recorded = next(
        i for i in range(len(op.compiled())) if "Dropout" in sum(groups(op, entry=i), [])
    )
    for phase, members in (
        ("forward", ["broadcast_add", "LeakyReLU", "Dropout", "broadcast_add"]),
        ("backward", ["_dropout_apply", "_backward_LeakyReLU"]),
    ):
        found = groups(op, phase, recorded)
        assert any([name for name in group if name in members] == members for group in found), found
    kept = []
    for ctx in (mx.cpu(0), mx.gpu(0)):
        mx.random.seed(5)
        ones = nd.ones(shape, ctx=ctx)
        dropped = compiled(lambda x: nd.Dropout(x * 2, p=0.4, mode="always") * 3)
        kept.append([dropped(ones)[0].asnumpy() for _ in range(5)])
    same_bits(*kept)
    assert groups(dropped) == [["_mul_scalar", "Dropout", "_mul_scalar"]]


def test_dropout_of_a_broadcast_array_draws_one_mask():
    """The mask has one draw per element of the small array, not per use."""

    def function(x, s):
        return nd.broadcast_mul(x + 1, nd.Dropout(s * 2, p=0.5)) - 3

    for rows in (1, 3, 65):
        check(function, [draw((rows, 9), "float32"), draw((9,), "float32", 1)])


def test_many_dropouts_in_a_group_have_separate_keys():
    """Each draw has a separate key."""

    def function(x):
        total = x * 0
        for k in range(20):
            total = total + nd.Dropout(x, p=0.5) * (k + 1)
        return total

    op = check(function, [draw((3, 50), "float32")])
    assert max(sum(name == "Dropout" for name in members) for members in groups(op)) > 10


LENGTHS = [2, 7, 32, 33, 100, 256, 600, 768, 1000, 1024, 1500, 4096, 8192]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", LENGTHS)
def test_row_reductions_are_fused(n, dtype):
    """RMSNorm and softmax built from single ops, after dropout and with statistics as results, run
    as one kernel with the bits of single ops for any row length."""

    def function(*arrays):
        x, scale, rest = (nd.Cast(a, dtype=dtype) for a in arrays)
        x = nd.Dropout(x, p=0.25) + rest
        mean = (x * x).mean(axis=-1, keepdims=True)
        y = nd.broadcast_mul(nd.broadcast_mul(x, nd.rsqrt(mean + 1e-5)), scale)
        largest = y.max(axis=-1, keepdims=True)
        z = nd.exp(nd.broadcast_sub(y, largest))
        z = nd.broadcast_div(z, z.sum(axis=-1, keepdims=True))
        return [
            nd.Cast(a, dtype="float32") for a in (z, mean, largest - z.min(axis=-1, keepdims=1))
        ]

    rows = 3 if n > 2000 else 9
    arrays = [draw((rows, n), "float32"), draw((n,), "float32", 1), draw((rows, n), "float32", 2)]
    op = check(function, arrays)
    wanted = {"Dropout", "mean", "rsqrt", "max", "exp", "sum", "min"}
    recorded = [groups(op, entry=i) for i in range(len(op.compiled()))]
    assert any(wanted <= set(group) for found in recorded for group in found), recorded


def test_reductions_over_several_or_all_axes_are_fused():
    def function(x, s):
        y = nd.exp(nd.broadcast_mul(x, s) * 0.5)
        a = y.sum(axis=(1, 2), keepdims=True)
        return nd.broadcast_div(y, a), (y * 2).max(axis=(1, 2)), nd.broadcast_add(y, s)

    for shape in ((5, 3, 7), (2, 1, 33), (70, 8, 4)):
        op = check(function, [draw(shape, "float32"), draw((1, 1, shape[-1]), "float32", 1)])
        assert max(map(len, groups(op))) >= 6, groups(op)
    op = check(lambda x: (nd.exp(x) * 3).mean(), [draw((31, 5), "float32")])
    assert groups(op) == [["exp", "_mul_scalar", "mean"]]


def test_rows_of_different_lengths_are_not_fused():
    def function(x):
        rows = nd.broadcast_sub(x, x.mean(axis=2, keepdims=True)) * 2
        planes = nd.broadcast_sub(rows, rows.mean(axis=(1, 2), keepdims=True)) * 3
        return planes, nd.Cast(nd.Cast(planes, dtype="float16").sum(axis=2), dtype="float32")

    op = check(function, [draw((6, 5, 9), "float32")])
    assert not any(members.count("mean") > 1 for members in groups(op))


def test_fused_row_reductions_handle_nan_and_infinity():
    values = np.random.RandomState(0).uniform(-2, 2, (6, 50)).astype("float32")
    values[1, 3], values[2, 7], values[3, 9], values[4] = np.nan, np.inf, -np.inf, -np.inf
    x = nd.array(values, ctx=mx.gpu(0))
    check(lambda x: [(x * 2).max(axis=1), (x * 2).min(axis=1), (x * 2).sum(axis=1)], [x])


def test_feed_forward_block_is_four_kernels():
    """Two matrix products, bias + GELU + dropout, and bias + dropout + residual + RMSNorm."""

    def function(x, w, b, v, c, scale):
        h = nd.FullyConnected(x, w, no_bias=True, num_hidden=128, flatten=False)
        h = nd.Dropout(nd.LeakyReLU(nd.broadcast_add(h, b), act_type="gelu"), p=0.1)
        h = nd.FullyConnected(h, v, no_bias=True, num_hidden=32, flatten=False)
        y = nd.Dropout(nd.broadcast_add(h, c), p=0.1) + x
        mean = (y * y).mean(axis=-1, keepdims=True)
        return nd.broadcast_mul(nd.broadcast_mul(y, nd.rsqrt(mean + 1e-5)), scale)

    shapes = (32, 32), (128, 32), (128,), (32, 128), (32,), (32,)
    op = check(function, [draw(shape, "float32", i) for i, shape in enumerate(shapes)])
    recorded = next(
        i for i in range(len(op.compiled())) if "Dropout" in sum(groups(op, entry=i), [])
    )
    assert len(steps(op, entry=recorded)) == 4
    assert list(map(len, groups(op, entry=recorded))) == [3, 9]


def test_groups_that_differ_only_in_rows_are_distinguished():
    """Equal steps and operands without broadcasting; rows of different lengths, or along different
    axes of the same shape."""

    def function(axis):
        def divided(x):
            y = nd.exp(x) * 2
            return nd.broadcast_div(y, y.sum(axis=axis, keepdims=True))

        return divided

    for shape, axis in (
        ((6, 40), 1),
        ((6, 41), 1),
        ((4, 6, 10), 2),
        ((4, 6, 10), (1, 2)),
        ((3, 2000), 1),
        ((5, 1200), 1),
    ):
        op = check(function(axis), [draw(shape, "float32")])
        assert groups(op) == [["exp", "_mul_scalar", "sum", "broadcast_div"]]
        op = compiled(lambda x: nd.log_softmax(nd.reshape(x * 2, (-1, shape[-1]))) + 1)
        x = draw(shape, "float32")
        same_bits(
            [op(x)[0].asnumpy()],
            [(nd.log_softmax(nd.reshape(x * 2, (-1, shape[-1]))) + 1).asnumpy()],
        )


def recorded_groups(op, name):
    """Returns the forward and backward groups of the recorded program that contains an op."""
    entry = next(
        i
        for i in range(len(op.compiled()))
        if name in sum(groups(op, entry=i), []) and steps(op, "backward", i)
    )
    return groups(op, entry=entry), groups(op, "backward", entry)


def in_one(found, *members):
    assert any(set(members) <= set(group) for group in found), (members, found)


SOME_LENGTHS = [7, 33, 100, 768, 1500, 8192]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", SOME_LENGTHS)
def test_layer_norm_is_fused_with_neighboring_ops(n, dtype):
    """Bias, dropout, residual and LayerNorm are one kernel. So is backward, including the sums for
    gamma and beta. The number of rows exceeds a block and leaves a remainder."""

    def function(*arrays):
        x, bias, rest, gamma, beta = (nd.Cast(a, dtype=dtype) for a in arrays)
        x = nd.Dropout(nd.broadcast_add(x, bias), p=0.25) + rest
        y = nd.LayerNorm(x, gamma, beta)
        return nd.Cast(y * 2 + x, dtype="float32")

    rows = 3 if n > 2000 else 41
    shapes = (rows, n), (n,), (rows, n), (n,), (n,)
    op = check(function, [draw(shape, "float32", i) for i, shape in enumerate(shapes)])
    forward, backward = recorded_groups(op, "Dropout")
    in_one(forward, "broadcast_add", "Dropout", "LayerNorm", "_mul_scalar")
    in_one(backward, "_backward_LayerNorm", "_dropout_apply")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", SOME_LENGTHS)
def test_softmax_is_fused_with_neighboring_ops(n, dtype):
    """Covers scale and mask before it, dropout after it, log_softmax, temperatures and softmin."""

    def function(*arrays):
        x, mask, rest = (nd.Cast(a, dtype=dtype) for a in arrays)
        x = nd.broadcast_add(x * 0.125, mask)
        y = nd.Dropout(nd.softmax(x), p=0.25) * rest
        z = nd.log_softmax(rest - x, temperature=1.5) * y + nd.softmin(y + 1, temperature=0.5)
        return nd.Cast(z, dtype="float32")

    rows = 3 if n > 2000 else 9
    shapes = (rows, n), (n,), (rows, n)
    op = check(function, [draw(shape, "float32", i) for i, shape in enumerate(shapes)])
    forward, backward = recorded_groups(op, "Dropout")
    in_one(forward, "_mul_scalar", "broadcast_add", "softmax", "Dropout", "log_softmax", "softmin")
    in_one(backward, "_softmax_backward", "_dropout_apply")
    in_one(backward, "_log_softmax_backward")


def test_layer_norm_parameter_gradients_skip_the_data_gradient():
    """Dead code elimination removes the steps of the unused data gradient."""

    def function(x, gamma, beta):
        return nd.LayerNorm(x + 1, gamma, beta) * 2

    x, gamma, beta = (draw(shape, "float32", i) for i, shape in enumerate([(41, 33), (33,), (33,)]))
    op, found = compiled(function), []
    for call in (lambda *arrays: op(*arrays)[0], function):
        for parameter in (gamma, beta):
            parameter.attach_grad()
        backward_of(lambda: call(x, gamma, beta))
        found.append([gamma.grad.asnumpy(), beta.grad.asnumpy()])
    same_bits(*found)
    in_one(recorded_groups(op, "LayerNorm")[1], "_backward_LayerNorm", "_mul_scalar")


def test_layer_norm_statistics_and_other_axes_keep_their_bits():
    """Rounded mean and deviation as results, a single row, and other axes and lengths, which have
    separate kernels."""

    def function(x, gamma, beta, column, length):
        x = x * 0.5
        y, mean, deviation = nd.LayerNorm(x, gamma, beta, output_mean_var=True, eps=0.01)
        one = nd.LayerNorm(nd.slice_axis(x, axis=0, begin=0, end=1) * 3, gamma, beta) + 1
        other = nd.LayerNorm(x + 2, column, column, axis=0) * 2
        return [
            nd.broadcast_add(y, nd.broadcast_mul(mean, deviation)),
            mean,
            deviation * 2,
            one,
            other,
            nd.softmax(x * 2, axis=0) + 1,
            nd.softmax(x * 3, length, axis=1, use_length=True) + 1,
        ]

    for dtype in FLOATS:
        arrays = [draw((7, 70), dtype), draw((70,), dtype, 1), draw((70,), dtype, 2)]
        arrays += [
            draw((7,), dtype, 3),
            nd.array([1, 70, 3, 0, 9, 8, 64], ctx=mx.gpu(0)).astype("int32"),
        ]
        check(function, arrays)


def test_fused_softmax_and_layer_norm_handle_nan_and_infinity():
    values = np.random.RandomState(0).uniform(-2, 2, (7, 50)).astype("float32")
    values[1, 3], values[2, 7], values[3, 9], values[4] = np.nan, np.inf, -np.inf, -np.inf
    values[5] = np.nan
    x = nd.array(values, ctx=mx.gpu(0))
    arrays = [x, draw((50,), "float32", 1), draw((50,), "float32", 2)]
    check(
        lambda x, g, b: [
            nd.softmax(x * 2) + 1,
            nd.log_softmax(x * 2) + 1,
            nd.LayerNorm(x * 2, g, b) + 1,
        ],
        arrays,
    )


def transformer_block(x, gamma1, beta1, qkv, out, c, gamma2, beta2, up, b, down, d, heads=4):
    """A layer of GPT-2 with dropout after both parts; x is (batch, time, width)."""
    width = x.shape[2]

    def dense(x, weight, *bias):
        return nd.FullyConnected(
            x, weight, *bias, no_bias=not bias, num_hidden=weight.shape[0], flatten=False
        )

    def split(x):
        x = nd.transpose(nd.reshape(x, (0, 0, heads, -1)), (0, 2, 1, 3))
        return nd.reshape(x, (-3, 0, 0))

    parts = nd.split(dense(nd.LayerNorm(x, gamma1, beta1), qkv), num_outputs=3, axis=2)
    query, key, value = map(split, parts)
    weights = nd.softmax(nd.batch_dot(query, key, transpose_b=True) * (heads / width) ** 0.5)
    mixed = nd.reshape(nd.batch_dot(weights, value), (-4, -1, heads, 0, 0))
    mixed = nd.reshape(nd.transpose(mixed, (0, 2, 1, 3)), (0, 0, -3))
    x = x + nd.Dropout(dense(mixed, out, c), p=0.1)
    hidden = nd.LeakyReLU(dense(nd.LayerNorm(x, gamma2, beta2), up, b), act_type="gelu")
    return x + nd.Dropout(dense(hidden, down, d), p=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformer_block_has_the_expected_number_of_kernels(dtype):
    """Norms and softmaxes are fused with all ops between matrix products. The sums of the gamma and
    beta gradients are not counted."""
    w = 32
    shapes = [(2, 16, w), (w,), (w,), (3 * w, w), (w, w), (w,), (w,), (w,), (4 * w, w), (4 * w,)]
    shapes += [(w, 4 * w), (w,)]
    arrays = [draw(shape, dtype, i) * 0.2 for i, shape in enumerate(shapes)]
    op, found = compiled(transformer_block), []
    for function in (op, transformer_block):
        mx.random.seed(3)
        for array in arrays:
            array.attach_grad()
        output = backward_of(lambda: as_list(function(*arrays))[0])
        found.append([a.astype("float32").asnumpy() for a in (output, *(x.grad for x in arrays))])
    same_bits(*found)
    entry = next(i for i in range(len(op.compiled())) if steps(op, "backward", i))
    counts = [len(steps(op, phase, entry)) for phase in ("forward", "backward")]
    assert counts == [16, 25]
    forward, backward = groups(op, entry=entry), groups(op, "backward", entry)
    in_one(forward, "Dropout", "broadcast_add", "LayerNorm")
    in_one(backward, "_backward_LayerNorm", "elemwise_add", "_dropout_apply")
