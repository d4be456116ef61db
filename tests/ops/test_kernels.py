"""CPU kernels with and without their libraries; bits do not depend on threads or devices."""

import itertools
import json
import os

import numpy as np
import pytest

import mpgluon as mx
from support.processes import output_of
from support.training import variable

PROGRAM = """
import json, sys
import numpy as np
import mpgluon as mx
from mpgluon import _core

random = np.random.RandomState(0)
a, b = random.uniform(-1, 1, (70, 130)), random.uniform(-1, 1, (130, 90))
x, w = random.uniform(-1, 1, (2, 6, 14, 13)), random.uniform(-1, 1, (8, 3, 3, 3))
result = {"libraries": {l["name"]: l["found"] for l in _core.libraries()},
          "isa": _core.build_info()["isa"]}
for dtype in ("float32", "float64", "float16"):
    data, weight = (mx.nd.array(v, dtype=dtype) for v in (x, w))
    data.attach_grad()
    weight.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Convolution(data, weight, kernel=(3, 3), stride=(2, 1), pad=(1, 1),
                              num_filter=8, num_group=2, no_bias=True)
    y.backward()
    product = mx.nd.dot(mx.nd.array(a, dtype=dtype), mx.nd.array(b, dtype=dtype))
    stack = mx.nd.array(np.stack([a, a + 1]), dtype=dtype)
    products = mx.nd.batch_dot(stack, stack, transpose_b=True)
    found = (product, products, y, data.grad, weight.grad)
    result[dtype] = [v.asnumpy().astype("float64").tolist() for v in found]
json.dump(result, sys.stdout)
"""


def run(**settings):
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("MPGLUON_ON") and not k.startswith("MPGLUON_OP")
    }
    return json.loads(output_of(PROGRAM, base=environment, **settings))


@pytest.fixture(scope="module")
def with_libraries():
    return run()


@pytest.mark.parametrize(
    "settings",
    [
        {"MPGLUON_ONEDNN": "0"},
        {"MPGLUON_ONEDNN": "0", "MPGLUON_OPENBLAS": "0"},
        {"MPGLUON_ONEDNN": "0", "MPGLUON_OPENBLAS": "0", "MPGLUON_ISA_RUN": "base"},
        {"MPGLUON_ONEDNN": "0", "MPGLUON_OPENBLAS": "0", "MPGLUON_ISA_RUN": "v3"},
    ],
    ids=["no_onednn", "plain", "plain_base", "plain_v3"],
)
def test_every_kernel_path_gives_same_results(settings, with_libraries):
    other = run(**settings)
    if other["isa"] != settings.get("MPGLUON_ISA_RUN", other["isa"]):
        pytest.skip(f"kernels for {settings['MPGLUON_ISA_RUN']} were not built, or cannot run")
    for name, setting in (("oneDNN", "MPGLUON_ONEDNN"), ("OpenBLAS", "MPGLUON_OPENBLAS")):
        if setting in settings:
            assert not other["libraries"][name]
    for dtype, tolerance in (("float32", 1e-4), ("float64", 1e-11), ("float16", 0.05)):
        for mine, theirs in zip(other[dtype], with_libraries[dtype]):
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=dtype)


def test_missing_library_folder_is_reported_and_ignored():
    program = (
        "from mpgluon import _core; import mpgluon; l = _core.libraries()[0]; print(l['found'], "
        "l['reason'])"
    )
    told = output_of(program, MPGLUON_ONEDNN="/nowhere")
    assert told.startswith("False") and "/nowhere" in told


def test_tiny_products_have_same_bits_inline_and_queued():
    """A product gives the same bits inline in the calling thread and queued after other work."""
    random = np.random.RandomState(1)
    a, b = (mx.nd.array(random.uniform(-1, 1, (20, 24))) for _ in range(2))
    mx.nd.waitall()
    inline = mx.nd.dot(a, b, transpose_b=True).asnumpy()
    large = mx.nd.array(random.uniform(-1, 1, (600, 600)))
    mx.nd.dot(large, large)
    queued = mx.nd.dot(a, b, transpose_b=True).asnumpy()
    assert inline.tobytes() == queued.tobytes()


ROWS_OF_FLOAT64 = """
import numpy as np
import mpgluon as mx
from mpgluon import nd
random = np.random.RandomState(1)
for n, k in ((5, 70), (40, 70), (12, 300)):
    data = nd.array(random.normal(size=(700, k)), dtype="float64")
    weight = nd.array(random.normal(size=(n, k)), dtype="float64")
    for product in (
        lambda rows: nd.FullyConnected(rows, weight, num_hidden=n, no_bias=True),
        lambda rows: nd.dot(rows, weight.T),
    ):
        whole = product(data).asnumpy()
        for rows in (33, 40, 130, 600):
            assert (product(data[:rows]).asnumpy() == whole[:rows]).all(), (n, k, rows)
"""


@pytest.mark.skipif(
    not mx.runtime.Features().is_enabled("CPU_AVX2"), reason="processors without AVX2 use OpenBLAS"
)
@pytest.mark.parametrize("core", ["Haswell", "Sandybridge"])
def test_rows_of_float64_have_same_bits_with_every_kernel_of_openblas(core):
    """The kernels of OpenBLAS for Sandybridge and SkylakeX do not sum in the order of k."""
    output_of(ROWS_OF_FLOAT64, OPENBLAS_CORETYPE=core)


def test_primitive_cache_overflow_keeps_results_correct():
    for size in list(range(100, 400)) + [100]:
        out = mx.nd.FullyConnected(
            mx.nd.ones((size, 90)), mx.nd.ones((3, 90)), mx.nd.ones((3,)), num_hidden=3
        )
        assert (out.asnumpy() == 91).all()


def test_max_pooling_gradient_of_ties_goes_to_the_first():
    data = variable(mx.nd.array([[[[1, 1, 1, 0], [1, 1, 1, 0]]]]))
    with mx.autograd.record():
        out = mx.nd.Pooling(data, kernel=(2, 2), stride=(1, 1))
    out.backward(mx.nd.array([[[[1, 10, 100]]]]))
    assert data.grad.asnumpy().tolist() == [[[[1, 10, 100, 0], [0, 0, 0, 0]]]]


def test_batch_norm_updates_moving_statistics_in_training_only():
    random = np.random.RandomState(2)
    x = random.uniform(-1, 1, (5, 3, 4)).astype("float32")
    gamma = mx.nd.array([2, 3, 4])
    beta = mx.nd.zeros((3,))
    mean = mx.nd.ones((3,))
    var = mx.nd.ones((3,)) * 2
    mx.nd.BatchNorm(mx.nd.array(x), gamma, beta, mean, var)
    assert (mean.asnumpy() == 1).all() and (var.asnumpy() == 2).all()
    with mx.autograd.train_mode():
        out = mx.nd.BatchNorm(mx.nd.array(x), gamma, beta, mean, var, momentum=0.75)
    np.testing.assert_allclose(mean.asnumpy(), 0.75 + 0.25 * x.mean((0, 2)), rtol=1e-5)
    # The biased variance
    np.testing.assert_allclose(var.asnumpy(), 1.5 + 0.25 * x.var((0, 2)), rtol=1e-5)
    assert abs(out.asnumpy().std((0, 2)) - 1).max() < 1e-2  # fix_gamma treats gamma as 1


WINDOW = {"kernel": (3, 3), "num_filter": 1, "no_bias": True}
HUGE = {"kernel": (2,), "stride": (2**31,), "num_filter": 1}


@pytest.mark.parametrize(
    "op, shapes, options, words",
    [
        ("dot", [(2, 3), (4, 5)], {}, ["dot", "(2, 3)", "(4, 5)"]),
        ("FullyConnected", [(2, 3), (4, 5), (4,)], {"num_hidden": 4}, ["FullyConnected", "(2, 3)"]),
        ("Convolution", [(1, 1, 2, 2), (1, 1, 3, 3)], WINDOW, ["Convolution", "larger"]),
        (
            "Convolution",
            [(1, 1, 4, 4), (1, 1, 3, 3)],
            {**WINDOW, "layout": "NCW"},
            ["NHWC", "NCHW"],
        ),
        ("Pooling", [(1, 1, 4, 4)], {"kernel": (2, 2), "stride": (0, 1)}, ["Pooling", "stride"]),
        ("Deconvolution", [(1, 1, 2**20), (1, 1, 2)], HUGE, []),
        ("LayerNorm", [(2, 3), (3,), (3,)], {"axis": 2}, ["LayerNorm"]),
    ],
    ids=["dot", "dense", "window", "layout", "stride", "overflow", "axis"],
)
def test_kernel_argument_errors_are_explained(op, shapes, options, words):
    with pytest.raises((mx.MXNetError, ValueError, IndexError, MemoryError)) as caught:
        getattr(mx.nd, op)(*map(mx.nd.ones, shapes), **options).wait_to_read()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("size", [7, 64, 200])
def test_softmax_of_widely_spread_values_is_accurate(size):
    row = np.zeros(size, np.float32)
    row[:7] = [0, -1, -80, -87, -95, -1000, -np.inf]
    rows = np.stack([row, row + 300, row - 300, -row[::-1]])
    rows[3, ~np.isfinite(rows[3])] = 1000
    wide = rows.astype(np.float64) - rows.max(axis=1, keepdims=True).astype(np.float64)
    expected = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    result = mx.nd.softmax(mx.nd.array(rows)).asnumpy()
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=np.finfo(np.float32).tiny)
    assert (result[:3, 5:7] == 0).all()
    rows[1, 2] = np.nan
    assert np.isnan(mx.nd.softmax(mx.nd.array(rows)).asnumpy()[1]).all()


BROADCASTS = [
    ((700, 3), (1, 3)),
    ((700, 3), (700, 1)),
    ((1, 3), (700, 3)),
    ((2, 300, 1), (2, 1, 5)),
    ((5, 1, 40, 1), (1, 6, 1, 7)),
    ((3, 2, 1, 2), (1, 1, 300, 1)),
    ((9, 256), (9, 1)),
    ((9, 257), (1, 257)),
    ((2, 3, 2, 3, 2), (1, 3, 1, 3, 1)),
    ((1100, 1), (1, 1)),
    ((40, 1, 17), (40, 13, 1)),
]


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "uint8", "int8", "int32", "int64"]
)
def test_broadcast_ops_over_short_and_long_rows_match_numpy(dtype):
    random = np.random.RandomState(3)
    for a_shape, b_shape in BROADCASTS:
        a, b = (random.randint(-9, 9, shape).astype(dtype) for shape in (a_shape, b_shape))
        x, y = mx.nd.array(a, dtype=dtype), mx.nd.array(b, dtype=dtype)
        pairs = [
            (mx.nd.broadcast_add, a + b),
            (mx.nd.broadcast_sub, a - b),
            (mx.nd.broadcast_mul, a * b),
            (mx.nd.broadcast_maximum, np.maximum(a, b)),
            (mx.nd.broadcast_greater, a > b),
            (mx.nd.broadcast_equal, a == b),
        ]
        for op, expected in pairs:
            assert (op(x, y).asnumpy() == expected.astype(dtype)).all(), (op, a_shape, b_shape)
            assert (op(y, x).asnumpy() == op(x, y).asnumpy()).all() or op not in (
                mx.nd.broadcast_add,
                mx.nd.broadcast_mul,
            )
        out = (a + b).shape
        assert (x.broadcast_to(out).asnumpy() == np.broadcast_to(a, out)).all()


def test_byte_arrays_with_out_of_range_numbers_match_numpy():
    a = np.array([0, 1, 127, 128, 200, 255])
    for dtype in ("uint8", "int8"):
        x, wide = mx.nd.array(a.astype(dtype), dtype=dtype), a.astype(dtype).astype("int64")
        for number in (-300, -1, 3, 200, 255, 256, 300):
            assert ((x > number).asnumpy() == (wide > number)).all()
            assert ((number > x).asnumpy() == (number > wide)).all()
            assert ((x + number).asnumpy() == (wide + number).astype(dtype)).all()
            assert ((number - x).asnumpy() == (number - wide).astype(dtype)).all()
            assert (
                mx.nd.maximum(x, number).asnumpy() == np.maximum(wide, number).astype(dtype)
            ).all()


@pytest.mark.parametrize("shape", [(7,), (600, 3), (4, 5, 33), (2, 300, 2, 2), (2, 3, 40, 40)])
def test_prelu_takes_one_slope_per_channel(shape):
    random = np.random.RandomState(4)
    x, axis = random.standard_normal(shape).astype("float32"), min(1, len(shape) - 1)
    x.flat[:3] = [np.nan, -0.0, -np.inf]
    for channels in {1, shape[axis]}:
        g = random.standard_normal(channels).astype("float32")
        slopes = g.reshape([channels if d == axis else 1 for d in range(len(shape))])
        for dtype in ("float32", "float64", "float16"):
            data, gamma = mx.nd.array(x, dtype=dtype), mx.nd.array(g, dtype=dtype)
            out = mx.nd.LeakyReLU(data, gamma, act_type="prelu").asnumpy()
            wide = np.float64 if dtype == "float64" else np.float32
            values = data.asnumpy().astype(wide)
            factors = np.broadcast_to(slopes, shape).astype(dtype).astype(wide)
            np.testing.assert_array_equal(
                out, np.where(values > 0, values, values * factors).astype(dtype)
            )


def test_clipping_ops_keep_nan_and_sign_of_zero():
    x = np.array([np.nan, -np.inf, -2, -0.0, 0.0, 0.5, 2, np.inf] * 5, np.float32)
    for dtype in ("float32", "float64", "float16"):
        a = mx.nd.array(x, dtype=dtype)
        np.testing.assert_array_equal(
            mx.nd.clip(a, -1, 1).asnumpy(), np.clip(x, -1, 1).astype(dtype)
        )
        np.testing.assert_array_equal(
            mx.nd.LeakyReLU(a, slope=0.5).asnumpy(), np.where(x > 0, x, x * 0.5).astype(dtype)
        )
        hard = mx.nd.hard_sigmoid(a, alpha=0.5, beta=0.25).asnumpy()
        np.testing.assert_array_equal(hard, np.clip(x.astype(dtype) * 0.5 + 0.25, 0, 1))


SLACK = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}
REDUCED = [
    ((n,), 0)
    for n in map(
        int, "1 2 15 16 17 31 32 33 63 64 511 512 543 544 1000 1056 16384 25000 70001".split()
    )
]
REDUCED += [
    ((rows, n), 1)
    for rows, n in (
        (70, 1),
        (130, 3),
        (65, 10),
        (9, 16),
        (9, 28),
        (9, 31),
        (5, 33),
        (3, 700),
        (2, 17000),
    )
]
REDUCED += [
    ((n, inner), 0)
    for n, inner in (
        (100, 3),
        (1000, 3),
        (20000, 3),
        (5, 7),
        (300, 31),
        (300, 32),
        (40, 33),
        (17, 515),
        (2, 700),
        (9000, 2),
        (0, 5),
    )
]
REDUCED += [
    ((30, 2, 3), 1),
    ((4, 300, 2), 1),
    ((4, 2, 600), 1),
    ((3, 5, 4, 6), (1, 3)),
    ((3, 5, 4, 6), (0, 2)),
    ((64, 3, 28), (0, 2)),
]


class Reductions(mx.gluon.HybridBlock):
    """Reductions of a computed value, fused with it row by row."""

    def __init__(self, ops, axis):
        super().__init__()
        self.ops, self.axis = ops, axis

    def hybrid_forward(self, F, x):
        return [getattr(F, op)(x + x, axis=self.axis) for op in self.ops]


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8"]
)
def test_reductions_over_short_and_long_axes_match_numpy(dtype):
    random, whole = np.random.RandomState(5), "int" in dtype
    numpy_ops = {
        "sum": np.sum,
        "max": np.max,
        "min": np.min,
        "prod": np.prod,
        "mean": np.mean,
        "nansum": np.nansum,
    }
    for shape, axis in REDUCED:
        values = (
            random.randint(0 if dtype == "uint8" else -60, 60, shape)
            if whole
            else random.uniform(-1, 1, shape)
        )
        ops = [op for op in numpy_ops if not whole or op in ("sum", "max", "min", "prod")]
        if 0 in shape:
            ops = [op for op in ops if op not in ("max", "min", "mean")]
        x = mx.nd.array(values, dtype=dtype)
        net = Reductions(ops, axis)
        eager = net(x)
        net.hybridize(exact=True)
        wide = (x + x).asnumpy().astype("int64" if whole else "float64")
        for op, mine, fused in zip(ops, eager, net(x)):
            expected = numpy_ops[op](wide, axis=axis)
            if whole:  # wraps around on overflow
                np.testing.assert_array_equal(
                    mine.asnumpy().reshape(np.shape(expected)),
                    np.asarray(expected).astype(mine.dtype),
                    err_msg=f"{op} {shape}",
                )
            else:
                slack = SLACK[dtype]
                bound = slack * (np.abs(wide).sum(axis=axis) if "sum" in op else 1)
                found = mine.asnumpy().reshape(np.shape(expected)).astype(wide.dtype)
                error, what = np.abs(found - expected), (op, shape, axis)
                assert (error <= bound + slack * np.abs(expected)).all(), (what, error.max())
            assert mine.asnumpy().tobytes() == fused.asnumpy().tobytes(), (op, shape, axis)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_layer_norm_matches_float64_for_rows_of_any_length(dtype):
    random = np.random.RandomState(6)
    slack = {"float32": 1e-5, "float64": 1e-12, "float16": 3e-2, "bfloat16": 2e-1}[dtype]
    for rows, n in [(5, n) for n in range(1, 70)] + [(300, 17), (3, 513), (20, 2000), (2, 9001)]:
        arrays = [
            mx.nd.array(random.standard_normal(shape) + 2, dtype=dtype)
            for shape in ((rows, n), (n,), (n,), (rows, n))
        ]
        x, gamma, beta, dy = (array.astype("float64").asnumpy() for array in arrays)
        for array in arrays[:3]:
            array.attach_grad()
        with mx.autograd.record():
            y = mx.nd.LayerNorm(*arrays[:3], eps=0.1)
        y.backward(arrays[3])
        inverse = 1 / np.sqrt(x.var(axis=1, keepdims=True) + 0.1)
        normal, g = (x - x.mean(axis=1, keepdims=True)) * inverse, dy * gamma
        dx = (
            g - g.mean(axis=1, keepdims=True) - normal * (g * normal).mean(axis=1, keepdims=True)
        ) * inverse
        expected = (normal * gamma + beta, dx, (dy * normal).sum(axis=0), dy.sum(axis=0))
        for got, exact in zip((y, *(array.grad for array in arrays[:3])), expected):
            np.testing.assert_allclose(
                got.astype("float64").asnumpy(),
                exact,
                rtol=slack,
                atol=slack * np.abs(exact).max(),
                err_msg=f"{rows}x{n}",
            )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_argmax_and_argmin_return_first_of_ties(dtype):
    random = np.random.RandomState(8)
    for shape, axis in (
        ((40, 3), 1),
        ((40, 3), 0),
        ((7, 1000), 1),
        ((3, 257), 1),
        ((2, 5000), 1),
        ((1000, 5), 0),
    ):
        values = random.randint(3, 9, shape).astype(dtype)
        for row in range(shape[1 - axis] if "float" in dtype else 0):
            places = random.randint(0, shape[axis], 2) if row % 2 else []
            for place in places:
                values[(row, place) if axis else (place, row)] = np.nan
        x = mx.nd.array(values, dtype=dtype)
        for op in ("argmax", "argmin"):
            found = getattr(mx.nd, op)(x, axis=axis).asnumpy()
            np.testing.assert_array_equal(
                found,
                getattr(np, op)(values, axis=axis).astype(found.dtype),
                err_msg=f"{op} {shape}",
            )
    hidden = np.full(513, 5, dtype)
    hidden[200] = np.nan if "float" in dtype else 6
    assert mx.nd.argmax(mx.nd.array(hidden, dtype=dtype), axis=0).asscalar() == 200


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batch_dot_of_row_with_transposed_matrix_matches_numpy(dtype):
    random = np.random.RandomState(9)
    for count, n, k in ((3, 512, 64), (5, 260, 33), (2, 4096, 100), (1, 400, 31), (7, 301, 64)):
        x, y = (
            random.standard_normal(shape).astype(dtype) for shape in ((count, 1, k), (count, n, k))
        )
        got = mx.nd.batch_dot(
            mx.nd.array(x, dtype=dtype), mx.nd.array(y, dtype=dtype), transpose_b=True
        ).asnumpy()
        np.testing.assert_allclose(
            got,
            x @ y.transpose(0, 2, 1),
            rtol=1e-4 if dtype == "float32" else 1e-12,
            atol=1e-4 if dtype == "float32" else 1e-12,
        )


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_repeat_along_last_axis_matches_numpy(dtype):
    values = np.arange(3 * 8192).astype(dtype)
    for times in (1, 2, 3, 4, 5, 16, 17):
        for shape in ((3 * 8192,), (24, 32, 32), (3, 1, 8192), (8192, 3)):
            x, axis = values.reshape(shape), len(shape) - 1
            got = mx.nd.repeat(mx.nd.array(x, dtype=dtype), repeats=times, axis=axis)
            np.testing.assert_array_equal(
                got.asnumpy(), x.repeat(times, axis), err_msg=f"{shape} {times}"
            )
        pairs = mx.nd.broadcast_to(
            mx.nd.array(values, dtype=dtype).reshape((4096, 1, 6)), shape=(4096, times, 6)
        )
        np.testing.assert_array_equal(
            pairs.asnumpy(), np.broadcast_to(values.reshape(4096, 1, 6), (4096, times, 6))
        )


def test_reductions_propagate_nan_to_one_result_only():
    for shape, axis in [s for s in REDUCED if 0 not in s[0]]:
        x = np.zeros(shape, np.float32)
        x.flat[x.size - 1] = np.nan
        for op in ("sum", "max", "min", "prod", "mean"):
            out = getattr(mx.nd, op)(mx.nd.array(x), axis=axis).asnumpy()
            assert np.isnan(out).sum() == 1 and np.isnan(out.flat[out.size - 1]), (op, shape, axis)
        assert not mx.nd.nansum(mx.nd.array(x), axis=axis).asnumpy().any()
        x.flat[x.size - 1] = -2
        assert mx.nd.norm(mx.nd.array(x), axis=axis, ord=1).asnumpy().flat[-1] == 2
        assert mx.nd.norm(mx.nd.array(x), axis=axis).asnumpy().flat[-1] == 2


def test_sum_bits_do_not_depend_on_threads_or_batch():
    x = mx.nd.array(np.random.RandomState(6).uniform(-1, 1, (400, 300, 3)))
    whole = mx.nd.sum(x, axis=1).asnumpy()
    assert (mx.nd.sum(x[7:19], axis=1).asnumpy() == whole[7:19]).all()
    try:
        for count in (1, 2):
            mx.context.set_threads(count)
            assert (mx.nd.sum(x, axis=1).asnumpy() == whole).all()
            assert mx.nd.sum(x).asscalar() == mx.nd.sum(x * 1).asscalar()
    finally:
        mx.context.set_threads(0)


def units(got, expected, dtype):
    """Maximum error in units in the last place (ULP)."""
    exact = expected.astype(dtype)
    return float(
        (
            np.abs(got.astype(np.longdouble) - expected)
            / np.spacing(np.abs(exact)).astype(np.longdouble)
        ).max()
    )


def test_float64_functions_meet_documented_accuracy():
    random, wide = np.random.RandomState(7), np.longdouble
    x = np.concatenate(
        [
            random.uniform(-700, 700, 4000),
            random.standard_normal(8000),
            random.standard_normal(2000) * 1e-8,
        ]
    )
    positive = np.concatenate(
        [
            np.exp(random.uniform(-700, 700, 4000)),
            np.abs(x),
            1 + random.standard_normal(4000) * 1e-3,
            [5e-324, 2e-310],
        ]
    )
    mild = x[np.abs(x) < 30]
    cases = [
        (mx.nd.exp, np.exp, x, 1),
        (mx.nd.expm1, np.expm1, x, 2),
        (mx.nd.log, np.log, positive, 1),
        (mx.nd.log1p, np.log1p, positive, 2),
        (mx.nd.log1p, np.log1p, -np.exp(-np.abs(x[x != 0])), 2),
        (mx.nd.tanh, np.tanh, mild, 3),
        (mx.nd.sigmoid, lambda v: 1 / (1 + np.exp(-v)), mild, 3),
    ]
    for op, exact, values, most in cases:
        values = values[np.isfinite(exact(values))]
        assert (
            units(
                op(mx.nd.array(values, dtype="float64")).asnumpy(),
                exact(values.astype(wide)),
                "float64",
            )
            <= most
        ), op
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1, -2, 800, -800, 5e-324])
    with np.errstate(all="ignore"):
        for op, exact in (
            (mx.nd.exp, np.exp),
            (mx.nd.expm1, np.expm1),
            (mx.nd.log, np.log),
            (mx.nd.log1p, np.log1p),
            (mx.nd.tanh, np.tanh),
        ):
            got, expected = op(mx.nd.array(special, dtype="float64")).asnumpy(), exact(special)
            np.testing.assert_allclose(got, expected, rtol=1e-15, atol=0, err_msg=str(op))
            assert (np.signbit(got) == np.signbit(expected))[~np.isnan(expected)].all(), op


def test_float32_power_is_rounded_once():
    random = np.random.RandomState(8)
    x = np.exp(random.uniform(-20, 20, 20000)).astype("float32")
    y = random.uniform(-4, 4, 20000).astype("float32")
    exact = np.power(x.astype("float64"), y.astype("float64"))
    good = (exact > 1e-37) & (exact < 3e38)
    assert units((mx.nd.array(x) ** mx.nd.array(y)).asnumpy()[good], exact[good], "float32") <= 0.51
    special = np.array(
        [0.0, -0.0, 1, -1, 2, -2, 0.5, np.inf, -np.inf, np.nan, 3, -3, 1e20, 1e-40, 16777217, 0.25],
        np.float32,
    )
    a, b = (v.ravel() for v in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        expected = np.power(a, b)
        np.testing.assert_allclose(
            (mx.nd.array(a) ** mx.nd.array(b)).asnumpy(), expected, rtol=2e-7
        )
        got = (mx.nd.array(a) ** mx.nd.array(b)).asnumpy()
        assert (np.signbit(got) == np.signbit(expected))[~np.isnan(expected)].all()
        for number in (3, 4, 0.5, -1, -2, 2, 1.5):
            values = np.concatenate([x, -x, special])
            exact = np.power(values.astype("float64"), np.full(values.shape, float(number)))
            got = (mx.nd.array(values) ** number).asnumpy()
            normal = np.isfinite(exact) & (np.abs(exact) > 1e-37) & (np.abs(exact) < 3e38)
            assert units(got[normal], exact[normal], "float32") <= 0.51, number
            np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
            np.testing.assert_array_equal(
                got[~normal], exact[~normal].astype("float32"), err_msg=str(number)
            )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_softmax_bits_do_not_depend_on_axis(dtype):
    """Rows, tiles, column streams and transposed short rows use the same arithmetic."""
    random = np.random.RandomState(9)
    shapes = ((3, 700), (40, 33), (100, 5), (1000, 20), (17, 1), (2, 1), (1, 9), (9000, 3))
    for shape in (*shapes, (2100, 70), (1030, 600)):
        values, grads = (random.standard_normal(shape) * 5 for _ in range(2))
        for op in (mx.nd.softmax, mx.nd.log_softmax):
            results = []
            for turn in (0, 1):
                x = variable(mx.nd.array(values.T if turn else values, dtype=dtype))
                with mx.autograd.record():
                    y = op(x, axis=turn)
                y.backward(mx.nd.array(grads.T if turn else grads, dtype=dtype))
                results.append(
                    [
                        np.ascontiguousarray(v.asnumpy().T if turn else v.asnumpy())
                        for v in (y, x.grad)
                    ]
                )
            for mine, other in zip(*results):
                assert mine.tobytes() == other.tobytes(), (op, shape)
    x = random.standard_normal((6, 5, 40)).astype("float32")
    x[2, 3, 7], x[4, :, 9] = np.nan, -np.inf
    out = mx.nd.softmax(mx.nd.array(x), axis=1).asnumpy()
    nan = np.isnan(out).any(axis=1)
    assert nan[2, 7] and nan[4, 9] and nan.sum() == 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
def test_cumsum_adds_in_order_along_every_axis(dtype):
    random = np.random.RandomState(10)
    for shape in (
        (3,),
        (40,),
        (1300,),
        (20, 3),
        (9, 40),
        (17, 600),
        (37, 145),
        (3, 700, 2),
        (2, 5, 15),
        (2, 600, 16),
        (2, 3, 700),
    ):
        x = random.randint(-9, 9, shape) if "int" in dtype else random.uniform(-1, 1, shape)
        x = mx.nd.array(x, dtype=dtype)
        for axis in range(len(shape)):
            out = mx.nd.cumsum(x, axis=axis).asnumpy()
            wide = x.asnumpy().astype("float64" if "float" in dtype else dtype)
            expected = np.apply_along_axis(
                lambda row: np.array(list(itertools.accumulate(row))), axis, wide
            )
            expected = expected.astype("float32" if dtype == "float16" else dtype).astype(dtype)
            np.testing.assert_array_equal(out, expected, err_msg=f"{shape} {axis}")


def windows(x, kernel, stride, pad, function):
    """Reference pooling of (n, c, h, w) that excludes padding from every window."""
    places = [range((x.shape[2 + k] + 2 * pad[k] - kernel[k]) // stride[k] + 1) for k in range(2)]
    out = np.empty(x.shape[:2] + tuple(len(p) for p in places), x.dtype)
    for i, j in itertools.product(*places):
        low = [max(at * stride[k] - pad[k], 0) for k, at in enumerate((i, j))]
        high = [at * stride[k] - pad[k] + kernel[k] for k, at in enumerate((i, j))]
        out[:, :, i, j] = function(x[:, :, low[0] : high[0], low[1] : high[1]], axis=(2, 3))
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_pooling_windows_match_reference(dtype):
    random = np.random.RandomState(11)
    cases = [
        ((2, 3, 1, 40), (1, 2), (1, 2), (0, 0)),
        ((2, 3, 9, 30), (3, 3), (2, 2), (1, 1)),
        ((1, 2, 7, 700), (2, 3), (1, 1), (0, 1)),
        ((1, 2, 5, 31), (5, 5), (1, 5), (2, 2)),
        ((1, 2, 6, 50), (1, 20), (1, 3), (0, 4)),
        ((2, 3, 7, 7), (7, 7), (1, 1), (0, 0)),
        ((1, 5, 14, 14), (14, 14), (1, 1), (0, 0)),
        ((1, 1, 4, 9), (3, 9), (1, 1), (1, 4)),
    ]
    for shape, kernel, stride, pad in cases:
        x = mx.nd.array(random.standard_normal(shape), dtype=dtype)
        wide = x.asnumpy().astype("float64")
        settings = {"kernel": kernel, "stride": stride, "pad": pad}
        largest = mx.nd.Pooling(x, pool_type="max", **settings).asnumpy()
        np.testing.assert_array_equal(
            largest, windows(wide, kernel, stride, pad, np.max).astype(dtype)
        )
        slack = {"float32": 1e-5, "float64": 1e-12, "float16": 4e-2}[dtype]
        for kind, more, function in (
            ("sum", {}, np.sum),
            ("avg", {"count_include_pad": False}, np.mean),
            ("lp", {"p_value": 2}, lambda v, axis: np.sqrt((v * v).sum(axis=axis))),
        ):
            got = mx.nd.Pooling(x, pool_type=kind, **settings, **more).asnumpy()
            np.testing.assert_allclose(
                got,
                windows(wide, kernel, stride, pad, function),
                rtol=slack,
                atol=slack,
                err_msg=f"{kind} {shape}",
            )
        x[:, :, shape[2] // 2, shape[3] // 2] = np.nan
        got = mx.nd.Pooling(x, pool_type="max", **settings).asnumpy()
        np.testing.assert_array_equal(
            got, windows(x.asnumpy().astype("float64"), kernel, stride, pad, np.max).astype(dtype)
        )


def test_small_products_have_same_bits_as_larger_ones():
    """Without a library, the summation order of an element does not depend on the numbers of rows
    and columns.
    """
    random = np.random.RandomState(12)
    for dtype in ("float32", "float64"):
        for m, n, k in (
            (1, 8, 8),
            (8, 8, 8),
            (4, 4, 4),
            (2, 5, 7),
            (1, 20, 20),
            (3, 1, 9),
            (1, 31, 16),
            (5, 16, 6),
        ):
            a, b = (
                mx.nd.array(random.standard_normal(s), dtype=dtype)
                for s in ((40, m, k), (40, k, n))
            )
            small = mx.nd.batch_dot(a, b).asnumpy()
            wide = mx.nd.concat(b, mx.nd.zeros((40, k, 33), dtype=dtype), dim=2)
            assert (mx.nd.batch_dot(a, wide).asnumpy()[:, :, :n] == small).all(), (m, n, k)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("biased", [False, True])
def test_dense_row_bits_do_not_depend_on_up_to_eight_rows(dtype, biased):
    """So a step of generation computes the same bits for one request as for several."""
    random = np.random.RandomState(3)
    for n, k in ((97, 20), (64, 64), (77, 33), (150, 48), (80, 100), (1024, 256), (514, 512)):
        data, weight, bias = (
            mx.nd.array(random.standard_normal(s), dtype="float64").astype(dtype)
            for s in ((8, k), (n, k), (n,))
        )
        arrays = (weight, bias) if biased else (weight,)
        options = {"num_hidden": n, "no_bias": not biased}
        dense = lambda rows: mx.nd.FullyConnected(rows, *arrays, **options).astype("float64")
        alone = mx.nd.concat(*(dense(data[i : i + 1]) for i in range(8)), dim=0).asnumpy()
        for rows in range(2, 9):
            assert (dense(data[:rows]).asnumpy() == alone[:rows]).all(), (n, k, rows)
        exact = data.astype("float64").asnumpy() @ weight.astype("float64").asnumpy().T
        exact += bias.astype("float64").asnumpy() if biased else 0
        limit = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[dtype]
        assert np.abs(alone - exact).max() <= limit * np.abs(exact).max()


def test_correlation_gradient_at_equal_elements_is_one():
    """The subgradient of |a - b| at a == b is 1."""
    a, b = mx.nd.ones((1, 1, 1, 1)), mx.nd.ones((1, 1, 1, 1))
    a.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Correlation(a, b, max_displacement=0, is_multiply=False)
    y.backward()
    assert y.asscalar() == 0 and a.grad.asscalar() == 1
