"""Functions of mx.np for diagonals, triangles and indices of elements."""

import numpy as np
import pytest

from mpgluon import _core, numpy as mnp
from support.numpy_functions import array, check, values_of


def both(name, *args, **kwargs):
    return (
        lambda *x: getattr(mnp, name)(*x, *args, **kwargs),
        lambda *x: getattr(np, name)(*x, *args, **kwargs),
    )


@pytest.mark.parametrize("name", ["diagonal", "trace"])
@pytest.mark.parametrize("offset", [-4, -1, 0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (3, 2, 4), (2, 3, 2, 2), (0, 3)])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (-1, 0)])
def test_diagonals_match_numpy(name, offset, shape, axes):
    check(*both(name, offset, *axes), values_of(shape), gradient=len(shape) < 4)
    check(*both(name, offset, *axes), values_of(shape, "int64"))


def test_trace_writes_to_out():
    out = array(np.array(0.0))
    assert mnp.trace(array(np.eye(3)), out=out) is out and out.item() == 3


@pytest.mark.parametrize("name", ["diagonal", "trace"])
def test_diagonals_report_invalid_axes(name):
    with pytest.raises(ValueError, match="a must have at least 2 dimensions, not 1"):
        getattr(mnp, name)(array(values_of(3)))
    with pytest.raises(ValueError, match="axis1 and axis2 must differ"):
        getattr(mnp, name)(array(values_of((2, 3))), 0, 1, -1)
    with pytest.raises(ValueError, match="axis2 2 is out of range"):
        getattr(mnp, name)(array(values_of((2, 3))), 0, 0, 2)


@pytest.mark.parametrize("k", [-2, 0, 1])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_diagflat_places_elements(k, size):
    check(*both("diagflat", k), values_of(size))
    check(*both("diagflat", k), values_of((2, size), "int32"))


@pytest.mark.parametrize("name", ["tril", "triu"])
@pytest.mark.parametrize("k", [-5, -1, 0, 1, 5])
@pytest.mark.parametrize("shape", [(3,), (3, 3), (2, 3), (3, 2), (2, 2, 3), (0, 3), (2, 0)])
def test_triangles_match_numpy(name, k, shape):
    check(*both(name, k), values_of(shape))
    check(*both(name, k), values_of(shape, "int8"))


def test_triangles_replace_nan():
    x = np.array([[1.0, np.nan], [2.0, np.inf]])
    assert mnp.tril(array(x))[0].asnumpy().tolist() == [1, 0]
    with pytest.raises(ValueError, match="triu: m must have at least one dimension"):
        mnp.triu(array(np.array(1.0)))


@pytest.mark.parametrize("args", [(3,), (2, 4), (4, 2, 1), (3, 3, -1), (0,), (2, 0)])
def test_tri_matches_numpy(args):
    assert np.array_equal(mnp.tri(*args).asnumpy(), np.tri(*args, dtype="float32"))
    assert _core.dtype_name(mnp.tri(*args, dtype="int8").dtype) == "int8"


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
@pytest.mark.parametrize("args", [(3,), (3, 1), (3, -1, 2), (0,)])
def test_indices_of_triangles_match_numpy(name, args):
    for x, wanted in zip(getattr(mnp, name)(*args), getattr(np, name)(*args), strict=True):
        assert _core.dtype_name(x.dtype) == "int64" and np.array_equal(x.asnumpy(), wanted)


@pytest.mark.parametrize("name", ["tril_indices_from", "triu_indices_from", "diag_indices_from"])
def test_indices_of_arrays_match_numpy(name):
    check(*both(name), values_of((3, 3)), gradient=False)
    with pytest.raises(ValueError, match=f"{name}: arr must have"):
        getattr(mnp, name)(array(values_of(3)))


def test_diag_indices_need_equal_sizes():
    with pytest.raises(ValueError, match=r"equal sizes, got the shape \(2, 3\)"):
        mnp.diag_indices_from(array(values_of((2, 3))))


@pytest.mark.parametrize("shape", [(6,), (2, 3), 6])
def test_unravel_index_matches_numpy(shape):
    for indices in (np.array([5, 0, 3]), np.array([[1], [2]], "int32"), np.array(4)):
        dtype = str(indices.dtype)
        check(*both("unravel_index", shape), indices, dtype=dtype)
    assert mnp.unravel_index(5, shape) == np.unravel_index(5, shape)
    with pytest.raises(NotImplementedError, match="order must be 'C'"):
        mnp.unravel_index(5, shape, order="F")
