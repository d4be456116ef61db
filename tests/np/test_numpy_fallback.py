"""Functions of mx.np that run NumPy on copies, and NumPy's functions without an op."""

import inspect
from fractions import Fraction

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd
from mpgluon.numpy import _fallback

VALUES = onp.array([[0.2, 0.45, 0.6], [0.3, 0.9, 0.5]], "float32")
SORTED = onp.array([1, 2, 4, 7], "float32")


def array(values, ctx=None):
    values = onp.asarray(values)
    return nd.array(values, ctx, dtype=values.dtype).as_np_ndarray()


# One call per name of the table: f(F, a) with the module F, and a function that makes arrays.
CALLS = {
    "allclose": lambda F, a: F.allclose(a(VALUES), a(VALUES + 1e-9)),
    "alltrue": lambda F, a: F.alltrue(a(VALUES)),
    "apply_along_axis": lambda F, a: F.apply_along_axis(lambda row: row[::-1], 1, a(VALUES)),
    "apply_over_axes": lambda F, a: F.apply_over_axes(onp.sum, a(VALUES), (0, 1)),
    "argpartition": lambda F, a: F.argpartition(a(VALUES), 1),
    "argwhere": lambda F, a: F.argwhere(a(VALUES)),
    "array_equal": lambda F, a: F.array_equal(a(VALUES), a(VALUES)),
    "array_equiv": lambda F, a: F.array_equiv(a(VALUES), a(VALUES[:1])),
    "choose": lambda F, a: F.choose(a([0, 1, 1]), [a([1.0, 2, 3]), a([4.0, 5, 6])]),
    "compress": lambda F, a: F.compress(a([True, False, True]), a(VALUES), axis=1),
    "corrcoef": lambda F, a: F.corrcoef(a(VALUES)),
    "correlate": lambda F, a: F.correlate(a(SORTED), a(SORTED[:2])),
    "count_nonzero": lambda F, a: F.count_nonzero(a(VALUES), axis=1),
    "cov": lambda F, a: F.cov(a(VALUES)),
    "digitize": lambda F, a: F.digitize(a([0.5, 3]), a(SORTED)),
    "divmod": lambda F, a: F.divmod(a(SORTED), 2),
    "extract": lambda F, a: F.extract(a(VALUES > 0.4), a(VALUES)),
    "flatnonzero": lambda F, a: F.flatnonzero(a(VALUES)),
    "float_power": lambda F, a: F.float_power(a(SORTED), 2),
    "frexp": lambda F, a: F.frexp(a(SORTED)),
    "heaviside": lambda F, a: F.heaviside(a(VALUES), 0.5),
    "histogram2d": lambda F, a: F.histogram2d(a(SORTED), a(SORTED), bins=2),
    "histogram_bin_edges": lambda F, a: F.histogram_bin_edges(a(SORTED), bins=3),
    "histogramdd": lambda F, a: F.histogramdd(a(VALUES), bins=2)[0],
    "i0": lambda F, a: F.i0(a(SORTED)),
    "in1d": lambda F, a: F.in1d(a(SORTED), a([1.0, 7])),
    "interp": lambda F, a: F.interp(a([1.5, 3]), a(SORTED), a(SORTED**2)),
    "intersect1d": lambda F, a: F.intersect1d(a(SORTED), a([7.0, 1])),
    "isclose": lambda F, a: F.isclose(a(VALUES), 0.45),
    "isin": lambda F, a: F.isin(a(SORTED), [1, 7]),
    "ix_": lambda F, a: F.ix_(a([0, 1]), a([2, 3])),
    "lexsort": lambda F, a: F.lexsort((a(VALUES[0]), a(VALUES[1]))),
    "min_scalar_type": lambda F, a: F.min_scalar_type(300),
    "mirr": lambda F, a: F.mirr(a([-10.0, 5, 8]), 0.1, 0.1),
    "may_share_memory": lambda F, a: F.may_share_memory(a(VALUES), a(VALUES * 2)),
    "modf": lambda F, a: F.modf(a(SORTED / 2)),
    "msort": lambda F, a: F.msort(a(VALUES)),
    "nanargmax": lambda F, a: F.nanargmax(a(VALUES), axis=0),
    "nanargmin": lambda F, a: F.nanargmin(a(VALUES)),
    "nancumprod": lambda F, a: F.nancumprod(a(VALUES), axis=1),
    "nancumsum": lambda F, a: F.nancumsum(a(VALUES)),
    "nanmax": lambda F, a: F.nanmax(a(VALUES), axis=1),
    "nanmedian": lambda F, a: F.nanmedian(a(VALUES), axis=0),
    "nanmin": lambda F, a: F.nanmin(a(VALUES)),
    "nanpercentile": lambda F, a: F.nanpercentile(a(VALUES), 40),
    "nanprod": lambda F, a: F.nanprod(a(VALUES), axis=0),
    "nanquantile": lambda F, a: F.nanquantile(a(VALUES), a([0.1, 0.5])),
    "ndim": lambda F, a: F.ndim(a(VALUES)),
    "npv": lambda F, a: F.npv(0.1, a([-10.0, 5, 8])),
    "packbits": lambda F, a: F.packbits(a(onp.array([1, 0, 1], "uint8"))),
    "partition": lambda F, a: F.partition(a(VALUES), 1),
    "piecewise": lambda F, a: F.piecewise(a(SORTED), [a(SORTED < 3)], [lambda x: -x, 5]),
    "poly": lambda F, a: F.poly(a(SORTED)),
    "polyadd": lambda F, a: F.polyadd(a(SORTED), a(SORTED[:2])),
    "polydiv": lambda F, a: F.polydiv(a(SORTED), a(SORTED[:2])),
    "polyfit": lambda F, a: F.polyfit(a(SORTED), a(SORTED**2), 2),
    "polyint": lambda F, a: F.polyint(a(SORTED)),
    "polymul": lambda F, a: F.polymul(a(SORTED), a(SORTED)),
    "polysub": lambda F, a: F.polysub(a(SORTED), a(SORTED[:2])),
    "positive": lambda F, a: F.positive(a(VALUES)),
    "ppmt": lambda F, a: F.ppmt(0.01, 1, 60, 1000),
    "promote_types": lambda F, a: F.promote_types("float16", "int32"),
    "ptp": lambda F, a: F.ptp(a(VALUES), axis=1),
    "pv": lambda F, a: F.pv(0.01, 60, 10),
    "rate": lambda F, a: F.rate(10, 0, -3500, 10000),
    "real": lambda F, a: F.real(a(VALUES)),
    "result_type": lambda F, a: F.result_type(a(VALUES), a([1])),
    "rollaxis": lambda F, a: F.rollaxis(a(VALUES), 1),
    "roots": lambda F, a: F.roots(a([1.0, -3, 2])),
    "searchsorted": lambda F, a: F.searchsorted(a(SORTED), a([2.5, 9])),
    "select": lambda F, a: F.select([a(SORTED < 2), a(SORTED > 3)], [a(SORTED), a(-SORTED)]),
    "setdiff1d": lambda F, a: F.setdiff1d(a(SORTED), a([1.0])),
    "setxor1d": lambda F, a: F.setxor1d(a(SORTED), a([1.0, 9])),
    "shape": lambda F, a: F.shape(a(VALUES)),
    "shares_memory": lambda F, a: F.shares_memory(a(VALUES), a(VALUES * 2)),
    "signbit": lambda F, a: F.signbit(a(-SORTED)),
    "size": lambda F, a: F.size(a(VALUES), 1),
    "spacing": lambda F, a: F.spacing(a(VALUES)),
    "take_along_axis": lambda F, a: F.take_along_axis(a(VALUES), a([[0], [2]]), axis=1),
    "trapz": lambda F, a: F.trapz(a(VALUES), dx=2),
    "tril_indices_from": lambda F, a: F.tril_indices_from(a(VALUES)),
    "trim_zeros": lambda F, a: F.trim_zeros(a([0.0, 1, 0])),
    "triu_indices_from": lambda F, a: F.triu_indices_from(a(VALUES), 1),
    "union1d": lambda F, a: F.union1d(a(SORTED), a([3.0])),
    "unpackbits": lambda F, a: F.unpackbits(a(onp.array([7], "uint8"))),
    "unwrap": lambda F, a: F.unwrap(a(SORTED * 3)),
    "vander": lambda F, a: F.vander(a(SORTED), 3),
}
MATRIX = onp.array([[2, 1], [1, 3]], "float32")
LINALG_CALLS = {
    "lstsq": lambda F, a: F.lstsq(a(MATRIX), a([1.0, 2]), rcond=None),
    "qr": lambda F, a: F.qr(a(MATRIX)),
}


def numpy_module(name):
    """Returns NumPy, with the function `name` under the name that mx.np has."""

    class Module:
        pass

    setattr(Module, name, getattr(onp, name, None) or getattr(onp, _fallback._RENAMED[name]))
    return Module


def check_same(ours, theirs):
    """Checks values and types: arrays of mx.np for arrays, and the same scalars and containers."""
    if isinstance(theirs, (tuple, list)):
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            check_same(one, other)
    elif isinstance(theirs, onp.ndarray):
        assert type(ours) is mx.np.ndarray and ours.shape == theirs.shape
        onp.testing.assert_allclose(ours.asnumpy(), theirs, rtol=1e-6)
        assert onp.dtype(ours.dtype).kind == theirs.dtype.kind
    else:
        assert type(ours) is type(theirs) and ours == theirs


@pytest.mark.parametrize("name", [*_fallback.FUNCTIONS])
def test_fallback_functions_return_numpys_results(name):
    if name not in _fallback.__all__:
        assert not hasattr(onp, _fallback._RENAMED.get(name, name)) and not hasattr(mx.np, name)
        return
    call = CALLS[name]
    check_same(call(mx.np, array), call(numpy_module(name), onp.asarray))


@pytest.mark.parametrize("name", [*_fallback.LINALG_FUNCTIONS])
def test_linalg_fallback_functions_return_numpys_results(name):
    class Module:
        pass

    setattr(Module, name, _fallback.LINALG[name])
    call = LINALG_CALLS[name]
    check_same(call(Module, array), call(onp.linalg, onp.asarray))


def test_fallback_results_are_on_the_device_of_the_first_array():
    x = array(VALUES, mx.cpu(1))
    assert mx.np.nanmax(x, axis=0).context == mx.cpu(1)
    assert onp.gradient(x)[0].context == mx.cpu(1)
    with mx.cpu(2):
        assert mx.np.union1d([1, 2], [3]).context == mx.cpu(2)


def test_fallback_functions_have_numpys_signature():
    assert inspect.signature(mx.np.interp) == inspect.signature(onp.interp)
    assert mx.np.interp.__module__ == "mpgluon.numpy"
    assert "numpy.interp" in mx.np.interp.__doc__


def test_fallback_functions_refuse_to_lose_gradients():
    x = array(VALUES)
    x.attach_grad()
    with autograd.record():
        y = x * 2
        for call in (mx.np.nanmedian, onp.gradient, onp.nancumsum):
            with pytest.raises(ValueError, match="gradient of a recorded array would be lost"):
                call(y)
        with pytest.raises(mx.MXNetError, match="gradient of a recorded array would be lost"):
            mx.np.select([y.detach() > 1], [y])
        assert mx.np.allclose(y, y) and mx.np.ndim(y) == 2
        assert mx.np.nanmedian(y.detach()) == onp.median(VALUES * 2)


def test_fallback_functions_in_hybridized_code_raise():
    for call in (mx.np.nanmedian, onp.gradient, mx.np.spacing):
        with pytest.raises(mx.MXNetError, match="have no values while hybridize"):
            _core.CachedOp(lambda x, call=call: [call(x)])(array(VALUES))
    traced = _core.CachedOp(lambda x: [x * mx.np.ndim(x) + onp.size(x, 1)])
    assert onp.array_equal(traced(array(VALUES))[0].asnumpy(), VALUES * 2 + 3)


def test_fallback_functions_refuse_nd_arrays():
    with pytest.raises(TypeError, match=r"np.nanmax: .* mx.nd; use x.as_np_ndarray\(\)"):
        mx.np.nanmax(nd.ones(2))
    with pytest.raises(TypeError, match="both mx.np and mx.nd"):
        onp.cross(nd.ones(3), array([1.0, 2, 3]))


def test_results_of_other_dtypes_are_widened_or_remain_numpys():
    assert mx.np.roots(array([1.0, 0, 1])).dtype == onp.complex128
    assert type(mx.np.roots(array([1.0, 0, 1]))) is onp.ndarray
    assert mx.np.union1d(onp.array([1], "int16"), onp.array([2], "int16")).dtype == onp.int32


def test_numpy_functions_without_op_return_mx_np_arrays():
    x = array(VALUES)
    check_same(onp.gradient(x, axis=0), onp.gradient(VALUES, axis=0))
    check_same(onp.nextafter(x, 1), onp.nextafter(VALUES, onp.float32(1)))
    check_same(onp.logaddexp.reduce(x, axis=1), onp.logaddexp.reduce(VALUES, axis=1))
    check_same(onp.logaddexp.outer(x, x), onp.logaddexp.outer(VALUES, VALUES))


def test_numpy_functions_write_to_out():
    x, out = array(VALUES), array(onp.zeros((2, 3), "float32"))
    assert onp.nextafter(x, 1, out=out) is out
    assert onp.array_equal(out.asnumpy(), onp.nextafter(VALUES, onp.float32(1)))
    assert mx.np.nanmax(x, axis=0, out=out[0]).asnumpy().tolist() == VALUES.max(0).tolist()
    assert out[0].asnumpy().tolist() == VALUES.max(0).tolist()
    with pytest.raises(mx.MXNetError, match="assign with x"):
        onp.add.at(x, 0, 1)
    with pytest.raises(mx.MXNetError, match="assign with x"):
        onp.copyto(x, 0)


def test_arguments_that_numpy_rejects_raise_numpys_error():
    with pytest.raises(TypeError, match="nanmax"):
        mx.np.nanmax(array(VALUES), axes=1)
    with pytest.raises((TypeError, ValueError)):
        mx.np.interp(Fraction(1, 2), array(SORTED), array(SORTED[:1]))


def test_errors_name_the_module_of_functions_on_copies():
    x = mx.np.ones((2, 2))
    x.attach_grad()
    with autograd.record(), pytest.raises(mx.MXNetError, match="^numpy.linalg.lstsq: the gradient"):
        mx.np.linalg.lstsq(x, x, rcond=None)
    with pytest.raises(mx.MXNetError, match="^np.linalg.lstsq: NumPy computes"):
        _core.CachedOp(lambda x: [mx.np.linalg.lstsq(x, x, rcond=None)[0]])(x)
