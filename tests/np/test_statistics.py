"""Averages, deviations, quantiles and counts of mx.np."""

import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, numpy as mnp
from support.numpy_functions import array, check, listed, values_of

REDUCED = [
    ((), None),
    ((4,), None),
    ((2, 3), None),
    ((2, 3), 0),
    ((2, 3), -1),
    ((2, 3, 2), (0, 2)),
    ((2, 3), ()),
]


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("shape, axis", REDUCED)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ddof", [0, 1])
def test_deviations_match_numpy(name, shape, axis, keepdims, ddof):
    options = {"axis": axis, "keepdims": keepdims, "ddof": ddof}
    count = np.zeros(shape).size // max(np.zeros(shape).sum(axis).size, 1)
    differentiable = count > max(ddof, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no degrees of freedom
        check(
            lambda x: getattr(mnp, name)(x, **options),
            lambda x: getattr(np, name)(x, **options),
            values_of(shape),
            gradient=differentiable,
        )


@pytest.mark.parametrize("dtype", ["int8", "int64", "bool", "float16", "float32"])
def test_deviations_are_real(dtype):
    x = values_of((4, 5), dtype)
    wanted = np.dtype(dtype) if "float" in dtype else np.dtype("float32")
    for name in ("var", "std"):
        check(
            lambda x, name=name: getattr(mnp, name)(x, axis=1),
            lambda x, name=name: getattr(np, name)(x.astype("float64"), axis=1),
            x,
            dtype=wanted,
        )


def test_deviations_of_float16_are_computed_in_float32():
    x = array((300 + np.arange(4096) % 2).astype("float16"))
    assert mnp.var(x).item() == 0.25 and mnp.std(x).item() == 0.5


def test_deviations_accept_dtype_and_out():
    x = array(values_of((2, 3), "float32"))
    assert _core.dtype_name(mnp.var(x, dtype="float64").dtype) == "float64"
    out = array(np.zeros(2, "float32"))
    assert mnp.std(x, axis=1, out=out) is out
    np.testing.assert_allclose(out.asnumpy(), x.asnumpy().std(1), rtol=1e-6)
    with pytest.raises(ValueError, match="axis 2 is out of range for an array with 2 dimensions"):
        mnp.var(x, axis=2)
    with pytest.raises(ValueError, match="lists an axis twice"):
        mnp.var(x, axis=(0, -2))


@pytest.mark.parametrize("shape, axis", REDUCED)
def test_average_matches_numpy(shape, axis):
    function = lambda f: lambda *x: listed(f.average(x[0], axis, *x[1:], returned=True))
    differentiable = axis != ()
    check(function(mnp), function(np), values_of(shape), gradient=False)
    check(lambda x: mnp.average(x, axis), lambda x: np.average(x, axis), values_of(shape))
    inputs = values_of(shape), values_of(shape, seed=1) + 3
    check(function(mnp), function(np), *inputs, gradient=differentiable)


@pytest.mark.parametrize("shape, axis", [((2, 3), 0), ((2, 3, 4), 1), ((2, 3), -1)])
def test_average_accepts_weights_along_an_axis(shape, axis):
    weights = values_of(shape[axis], seed=1) + 3
    for returned in (False, True):
        function = lambda f: lambda x, w, r=returned: f.average(x, axis, w, r)
        check(function(mnp), function(np), values_of(shape), weights)


def test_average_keeps_dimensions():
    shape = (2, 3)
    for weights in ([], [values_of(shape, seed=1) + 3], [values_of(3, seed=1) + 3]):
        for returned in (False, True):
            function = lambda f: lambda x, *w: f.average(x, 1, *w, returned=returned, keepdims=True)
            differentiable = bool(weights) or not returned
            check(function(mnp), function(np), values_of(shape), *weights, gradient=differentiable)


def test_average_of_integers_is_float32():
    x = values_of((2, 3), "int32")
    check(lambda x: mnp.average(x, axis=0), lambda x: np.average(x, axis=0), x, dtype="float32")


def test_average_reports_invalid_weights():
    x = array(values_of((2, 3)))
    with pytest.raises(TypeError, match=r"weights of shape \(3,\) must have the shape \(2, 3\)"):
        mnp.average(x, weights=array(values_of(3)))
    with pytest.raises(ValueError, match="2 weights do not fit axis 1 of size 3"):
        mnp.average(x, axis=1, weights=array(values_of(2)))


@pytest.mark.parametrize("shape, axis", REDUCED[1:])
def test_ptp_matches_numpy(shape, axis):
    check(lambda x: mnp.ptp(x, axis), lambda x: np.ptp(x, axis), values_of(shape))
    check(lambda x: mnp.ptp(x, axis), lambda x: np.ptp(x, axis), values_of(shape, "int32"))


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("q", [0, 37.5, 50, 100, [0, 30, 100], [[10], [60]]])
@pytest.mark.parametrize("shape, axis", [*REDUCED[:-1], ((2, 3, 4), -2)])
def test_percentile_matches_numpy(method, q, shape, axis):
    differentiable = isinstance(q, list) and method in ("linear", "nearest")
    check(
        lambda x: mnp.percentile(x, q, axis, interpolation=method),
        lambda x: np.percentile(x, q, axis, method=method),
        values_of(shape),
        gradient=differentiable,
    )


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("q", [0.25, [0.0, 0.5, 0.875, 1.0]])
def test_quantile_accepts_arrays(method, q):
    options = {"axis": 1, "keepdims": True}
    check(
        lambda x, q: mnp.quantile(x, q, interpolation=method, **options),
        lambda x, q: np.quantile(x, q, method=method, **options),
        values_of((2, 5)),
        np.array(q),
        gradient=False,
    )


@pytest.mark.parametrize("dtype", ["int32", "int8", "float16", "float32"])
def test_quantiles_are_float32(dtype):
    check(
        lambda x: mnp.percentile(x, [20, 50], axis=0),
        lambda x: np.percentile(x.astype("float32"), [20, 50], axis=0),
        values_of((5, 2), dtype),
        dtype="float32",
    )


def test_quantiles_of_nan_are_nan():
    x = np.array([[1, np.nan, 2], [3, 1, 2]])
    assert np.array_equal(mnp.median(array(x), axis=1).asnumpy(), [np.nan, 2], equal_nan=True)


@pytest.mark.parametrize("shape, axis", REDUCED[:-1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_median_matches_numpy(shape, axis, keepdims):
    check(
        lambda x: mnp.median(x, axis, keepdims=keepdims),
        lambda x: np.median(x, axis, keepdims=keepdims),
        values_of(shape),
    )


def test_quantiles_report_invalid_arguments():
    x = array(values_of((2, 3)))
    with pytest.raises(ValueError, match="percentile: q must be between 0 and 100"):
        mnp.percentile(x, [50, 101])
    with pytest.raises(ValueError, match="quantile: q must be between 0 and 1"):
        mnp.quantile(x, -0.1)
    with pytest.raises(NotImplementedError, match="interpolation must be one of linear, lower"):
        mnp.quantile(x, 0.1, interpolation="weibull")
    with pytest.raises(ValueError, match="median: a must not be empty along the axes"):
        mnp.median(array(values_of((0, 3))), axis=0)


@pytest.mark.parametrize("options", [{}, {"rowvar": False}, {"bias": True}, {"ddof": 0}], ids=str)
def test_cov_matches_numpy(options):
    x, y = values_of((3, 4)), values_of((3, 4), seed=1)
    check(lambda x: mnp.cov(x, **options), lambda x: np.cov(x, **options), x)
    check(lambda x, y: mnp.cov(x, y, **options), lambda x, y: np.cov(x, y, **options), x, y)
    check(lambda x: mnp.cov(x, **options), lambda x: np.cov(x, **options), x[0])


def test_cov_accepts_weights():
    x, w = values_of((2, 4)), np.abs(values_of(4, seed=1)) + 0.1
    counts = np.array([1, 2, 1, 3])
    for names, weights in (
        (["aweights"], [w]),
        (["fweights"], [counts]),
        (["fweights", "aweights"], [counts, w]),
    ):
        function = lambda f, names=names: lambda x, *w: f.cov(x, **dict(zip(names, w)))
        check(function(mnp), function(np), x, *weights)


def test_corrcoef_matches_numpy():
    check(mnp.corrcoef, np.corrcoef, values_of((3, 4)))
    check(lambda x: mnp.corrcoef(x, x * x), lambda x: np.corrcoef(x, x * x), values_of(4))


@pytest.mark.parametrize("shape", [(), (3, 4), (3, 0)])
@pytest.mark.parametrize("bins, limits", [(7, (-2, 2)), ([-2, -1, 0, 0.5, 2], None)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_histogram_matches_numpy(shape, bins, limits, dtype):
    function = lambda f: lambda x: listed(f.histogram(x, bins, limits))
    x = values_of(shape, dtype)
    counts, edges = mnp.histogram(array(x), bins, limits)
    wanted = np.histogram(x, bins, limits)
    assert _core.dtype_name(counts.dtype) == "int64"
    assert np.array_equal(counts.asnumpy(), wanted[0])
    np.testing.assert_allclose(edges.asnumpy(), wanted[1], rtol=1e-6)
    compiled = _core.CachedOp(function(mnp))(array(x))
    assert np.array_equal(compiled[0].asnumpy(), wanted[0])


def test_median_of_infinities_is_their_average():
    for values in ([np.inf, np.inf], [1, np.inf, np.inf, np.inf], [0, -np.inf], [1, np.inf]):
        assert mnp.median(array(np.array(values))).item() == np.median(values)


EDGES = [-3, -1.5, 0.25, 2]


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
)
def test_histogram_counts_every_value_in_numpys_bin(dtype):
    rng = np.random.default_rng(5)
    kinds = ["float64", "float32", "int32", "int64"]
    for bins in (1, 3, 7, 10, 13, EDGES, [-2, 0, 3], *(np.array(EDGES).astype(k) for k in kinds)):
        for scale in (2, 30):
            x = (rng.normal(size=40).round(2) * scale).astype(
                "int64" if dtype == "uint8" else dtype
            )
            x = x.astype(dtype)
            counts, edges = mnp.histogram(array(x), bins)
            wanted = np.histogram(x, bins)
            assert np.array_equal(counts.asnumpy(), wanted[0]), (bins, x)
            assert np.allclose(edges.asnumpy(), wanted[1], rtol=0 if np.ndim(bins) else 1e-7)
            if isinstance(bins, np.ndarray):
                assert np.array_equal(mnp.histogram(array(x), array(bins))[0].asnumpy(), wanted[0])


def test_histogram_refuses_edges_that_descend():
    with pytest.raises(ValueError, match="ascending"):
        mnp.histogram(array(np.zeros(3)), [1, 0])


def test_histogram_uses_the_range_of_values():
    x = values_of((3, 4))
    for given in (x, x * 0, x[:0]):
        counts, edges = mnp.histogram(array(given), 5)
        wanted = np.histogram(given, 5)
        assert np.array_equal(counts.asnumpy(), wanted[0])
        np.testing.assert_allclose(edges.asnumpy(), wanted[1])
    density = mnp.histogram(array(x), array([-2.0, 0.0, 2.0]), density=True)[0]
    np.testing.assert_allclose(density.asnumpy(), np.histogram(x, [-2, 0, 2], density=True)[0])
    with pytest.raises(NotImplementedError, match="a hybridized block must pass a range"):
        _core.CachedOp(lambda x: listed(mnp.histogram(x, 5)))(array(x))
    for options in ({"weights": array(x)}, {"normed": True}, {"bins": "auto"}):
        with pytest.raises(NotImplementedError, match="are not supported"):
            mnp.histogram(array(x), **options)


@pytest.mark.parametrize("minlength", [0, 7])
def test_bincount_matches_numpy(minlength):
    x, weights = np.array([1, 4, 1, 0]), values_of(4)
    for inputs in ([x], [x, weights]):
        check(
            lambda x, w=None: mnp.bincount(x, w, minlength),
            lambda x, w=None: np.bincount(x, w, minlength),
            *inputs,
            dynamic=True,
        )
    w = array(weights)
    w.attach_grad()
    with autograd.record():
        total = (mnp.bincount(array(x), w) * array(np.arange(5.0))).sum()
    total.backward()
    assert w.grad.asnumpy().tolist() == [1, 4, 1, 0]


def test_statistics_refuse_other_arrays():
    with pytest.raises(TypeError, match=r"var: a must be an array of mx.np, not NDArray"):
        mnp.var(mx.nd.ones(3))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_deviations_of_large_integers_are_exact(dtype):
    values = np.array([10**9, 10**9 + 2, 10**9 + 4], dtype)
    x = mx.np.array(values)
    for name in ("std", "var", "cov"):
        result = getattr(mx.np, name)(x)
        assert result.dtype == "float32"
        np.testing.assert_allclose(result.asnumpy(), getattr(np, name)(values), 1e-6)
    both = mx.np.cov(x, mx.np.array([1.0, 2, 4]))
    assert both.dtype == "float32"
    np.testing.assert_allclose(both.asnumpy(), np.cov(values, [1.0, 2, 4]), 1e-6)
