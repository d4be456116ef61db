"""Arrays beside the arrays that they should be."""

import numpy as np

from mpgluon import nd


def same_bits(found, wanted, what="result"):
    """The same shapes, dtypes and bits, of arrays in NumPy or of lists and dicts of them. NaN is
    NaN, whatever its bits."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), what
        for name in wanted:
            same_bits(found[name], wanted[name], f"{what} {name}")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), what
        for i, (a, b) in enumerate(zip(found, wanted)):
            same_bits(a, b, f"{what} {i}")
    else:
        found, wanted = np.asarray(found), np.asarray(wanted)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), what
        np.testing.assert_array_equal(found, wanted, err_msg=what)
        if wanted.dtype.kind == "f":  # 0 equals -0, but has other bits
            signs = (np.signbit(found) == np.signbit(wanted)) | np.isnan(wanted)
            assert signs.all(), f"{what}: zeros of another sign"


def close(a, b, scale=None):
    """Within 1e-5 of the largest value, in double 1e-13: sums are taken in another order."""
    a, b = (x.asnumpy() if isinstance(x, nd.NDArray) else x for x in (a, b))
    assert a.shape == b.shape and a.dtype == b.dtype
    limit = (1e-13 if a.dtype == "float64" else 1e-5) * max(
        np.abs(b).max() if scale is None and b.size else scale or 1, 1e-3
    )
    assert np.abs(a - b).max() <= limit, (np.abs(a - b).max(), limit)


def close_by_name(one, other, tolerance=1e-5):
    """Arrays by name, each within a tolerance of its own largest value."""
    assert one.keys() == other.keys()
    for name in one:
        scale = np.abs(one[name]).max()
        assert np.abs(one[name] - other[name]).max() <= tolerance * scale, name
