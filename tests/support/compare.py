"""Arrays beside the arrays that they should be."""

import numpy as np


def same_bits(found, wanted, what="result"):
    """The same shapes, dtypes and bits, of arrays in NumPy or of lists and dicts of them. NaN is NaN, whatever its bits."""
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
