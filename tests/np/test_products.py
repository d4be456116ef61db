"""Products of mx.np: einsum, matmul, tensordot and others."""

import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import numpy as mnp
from support.numpy_functions import array, check, values_of

EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,jk->ki", (2, 3), (3, 4)),
    ("ji,jk->ki", (3, 2), (3, 4)),
    ("ij,kj->ik", (2, 3), (4, 3)),
    ("i,ij->j", (3,), (3, 4)),
    ("i,ijk->kj", (3,), (3, 4, 2)),
    ("ij,j->i", (3, 4), (4,)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("i,i->", (4,), (4,)),
    ("i,j->ij", (4,), (3,)),
    (",ij->ij", (), (2, 3)),
    ("ij,ij->ji", (2, 3), (2, 3)),
    ("ij,k->ik", (2, 3), (4,)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
    ("bi,bj->bij", (2, 3), (2, 4)),
    ("bi,bj->ibj", (2, 3), (2, 4)),
    ("bi,bi->b", (2, 3), (2, 3)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 2, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 2, 2, 4)),
    ("bij,jb->bi", (2, 3, 4), (4, 2)),
    ("ibj,kbj->bki", (2, 3, 4), (2, 3, 4)),
    ("aij,bij->ab", (2, 3, 4), (2, 3, 4)),
    ("aji,bij->ab", (2, 3, 4), (2, 4, 3)),
    ("ijk,kl->ijl", (2, 3, 4), (4, 2)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 2)),
    ("iij,jk->ik", (2, 2, 3), (3, 4)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ij,jk->ik", (0, 3), (3, 4)),
    ("ij,jk->ik", (2, 0), (0, 4)),
    ("...ij,...jk->...ik", (2, 1, 3, 2), (2, 2, 4)),
    ("i...,i...->...", (4, 2, 3), (4, 3)),
    ("...,...", (2, 3), (3,)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("iii->i", (2, 2, 2)),
    ("iijj->ij", (2, 2, 3, 3)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ba", (2, 3)),
    ("i...->...", (3, 2, 2)),
    ("...i->i...", (3, 2, 2)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("bi,bij,bj->b", (2, 3), (2, 3, 2), (2, 2)),
    ("a,b,c,d->abcd", (2,), (3,), (2,), (2,)),
    ("abc,bad,e->ecd", (2, 3, 2), (3, 2, 2), (3,)),
    ("ij, jk -> ik", (2, 3), (3, 4)),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
@pytest.mark.parametrize("case", EINSUMS, ids=str)
def test_einsum_matches_numpy(case, dtype):
    subscripts, *shapes = case
    inputs = [values_of(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    check(lambda *x: mnp.einsum(subscripts, *x), lambda *x: np.einsum(subscripts, *x), *inputs)


@pytest.mark.parametrize(
    "optimize", [False, True, "greedy", "optimal", ["einsum_path", (1, 2), (0, 1)]], ids=str
)
def test_einsum_accepts_orders(optimize):
    inputs = [values_of(shape, seed=i) for i, shape in enumerate([(2, 3), (3, 4), (4, 5)])]
    result = mnp.einsum("ij,jk,kl->li", *map(array, inputs), optimize=optimize)
    np.testing.assert_allclose(result.asnumpy(), np.einsum("ij,jk,kl->li", *inputs))


def test_einsum_writes_to_out():
    x, out = array(values_of((2, 3))), array(np.zeros((3, 2)))
    assert mnp.einsum("ij->ji", x, out=out) is out
    assert np.array_equal(out.asnumpy(), x.asnumpy().T)
    with pytest.raises(ValueError, match=r"out must have shape \(3, 2\) and dtype float64"):
        mnp.einsum("ij->ji", x, out=x)


def test_einsum_runs_one_product(monkeypatch):
    """A product of two arrays in the layouts of attention needs no transposition."""
    from mpgluon.numpy import _products

    calls = []
    monkeypatch.setattr(_products, "_transpose", lambda x, axes: calls.append(axes))
    _products._pair.cache_clear()
    q, k = array(values_of((2, 3, 4, 5))), array(values_of((2, 3, 6, 5)))
    assert mnp.einsum("bhqd,bhkd->bhqk", q, k).shape == (2, 3, 4, 6)
    assert mnp.einsum("bhqd,bhkd->bhkq", q, k).shape == (2, 3, 6, 4)
    assert mnp.einsum("bhqd,de->bhqe", q, array(values_of((5, 7)))).shape == (2, 3, 4, 7)
    _products._pair.cache_clear()
    assert not calls


@pytest.mark.parametrize("sizes, matrices", [((9, 90, 90), 1), ((2, 90, 300), 0), ((9, 9, 9), 0)])
def test_einsum_of_outer_products_chooses_the_op_by_size(sizes, matrices, monkeypatch):
    from mpgluon.numpy import _products

    calls = []
    product = _products._batch_dot
    monkeypatch.setattr(
        _products, "_batch_dot", lambda x, y: calls.append(x.shape) or product(x, y)
    )
    _products._pair.cache_clear()
    count, rows, columns = sizes
    x, y = values_of((count, rows)), values_of((count, columns), seed=1)
    function = lambda f: lambda x, y: f.einsum("bi,bj->bij", x, y)
    check(function(mnp), function(np), x, y, gradient=False)
    assert mnp.einsum("bi,b->bi", array(values_of((300, 300))), array(values_of(300))).size == 90000
    _products._pair.cache_clear()
    assert len(calls) == 2 * matrices  # eager and hybridized


@pytest.mark.parametrize(
    "subscripts, shapes, message",
    [
        ("ij,jk", [(2, 3)], "has 2 operands, but 1 were given"),
        ("ijk", [(2, 3)], "'ijk' in 'ijk' does not match an array with 2 dimensions"),
        ("i", [(2, 3)], "does not match an array with 2 dimensions"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "sizes 3 and 4 of a common axis differ"),
        ("ii", [(2, 3)], "sizes 2 and 3 of a common axis differ"),
        ("i1", [(2, 3)], "invalid character '1'"),
        ("ij->ii", [(2, 3)], "each once"),
        ("ij->ik", [(2, 3)], "must list labels of the operands"),
    ],
)
def test_einsum_reports_invalid_subscripts(subscripts, shapes, message):
    with pytest.raises(ValueError, match=message):
        mnp.einsum(subscripts, *(array(values_of(shape)) for shape in shapes))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64"])
@pytest.mark.parametrize(
    "a, b",
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((2, 2, 3), (3, 2)),
        ((2, 2, 3), (2, 3, 2)),
        ((2, 3), (2, 3, 2)),
        ((3,), (2, 3, 2)),
        ((2, 2, 3), (3,)),
        ((2, 1, 2, 3), (2, 3, 2)),
        ((0, 2, 3), (3, 4)),
        ((2, 0), (0, 4)),
    ],
)
def test_matmul_broadcasts(a, b, dtype):
    check(mnp.matmul, np.matmul, values_of(a, dtype), values_of(b, dtype, 1))


def test_matmul_reports_invalid_shapes():
    x = array(values_of((2, 3)))
    with pytest.raises(ValueError, match="b must have at least one dimension"):
        mnp.matmul(x, array(np.array(2.0)))
    with pytest.raises(ValueError, match="axis 1 of a has size 3, but axis 0 of b has size 2"):
        mnp.matmul(x, x)
    with pytest.raises(ValueError, match="cannot be broadcast together"):
        mnp.matmul(array(values_of((2, 2, 3))), array(values_of((3, 3, 2))))
    with pytest.raises(TypeError, match=r"b must be an array of mx.np.*as_np_ndarray\(\)"):
        mnp.matmul(x, mx.nd.ones((3, 2)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
@pytest.mark.parametrize(
    "a, b, axes",
    [
        ((2, 3), (3, 4), 1),
        ((2, 3, 4), (3, 4, 2), 2),
        ((2, 3), (4, 2), 0),
        ((2, 3, 4), (4, 3, 2), ([1, 2], [1, 0])),
        ((2, 3, 4), (4, 3), (-1, 0)),
        ((2, 3), (2, 3), 2),
        ((), (3,), 0),
        ((2, 0), (0, 3), 1),
    ],
)
def test_tensordot_matches_numpy(a, b, axes, dtype):
    check(
        lambda x, y: mnp.tensordot(x, y, axes),
        lambda x, y: np.tensordot(x, y, axes),
        values_of(a, dtype),
        values_of(b, dtype, 1),
    )


def test_tensordot_reports_invalid_axes():
    x = array(values_of((2, 3)))
    with pytest.raises(ValueError, match="axis 1 of a has size 3, but axis 0 of b has size 2"):
        mnp.tensordot(x, x, 1)
    with pytest.raises(ValueError, match="axes must be between 0 and 2"):
        mnp.tensordot(x, x, 3)
    with pytest.raises(ValueError, match="axes 2 is out of range for an array with 2 dimensions"):
        mnp.tensordot(x, x, ([2], [0]))
    with pytest.raises(ValueError, match="must list equally many axes"):
        mnp.tensordot(x, x, ([0, 1], [0]))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
@pytest.mark.parametrize(
    "name, a, b",
    [
        ("inner", (3,), (3,)),
        ("inner", (2, 3), (4, 3)),
        ("inner", (2, 2, 3), (3,)),
        ("inner", (), (3,)),
        ("outer", (3,), (4,)),
        ("outer", (2, 2), (3,)),
        ("outer", (), ()),
        ("outer", (0,), (3,)),
        ("vdot", (4,), (4,)),
        ("vdot", (2, 3), (3, 2)),
        ("vdot", (), ()),
        ("kron", (2,), (3,)),
        ("kron", (2, 2), (3,)),
        ("kron", (2, 1, 2), (2, 3)),
        ("kron", (), (2,)),
    ],
)
def test_products_match_numpy(name, a, b, dtype):
    check(getattr(mnp, name), getattr(np, name), values_of(a, dtype), values_of(b, dtype, 1))


@pytest.mark.parametrize(
    "a, b, axes",
    [
        ((3,), (3,), {}),
        ((2, 3), (3,), {}),
        ((4, 2), (4, 3), {}),
        ((4, 3), (4, 2), {}),
        ((4, 2), (4, 2), {}),
        ((3, 4), (3, 4), {"axis": 0}),
        ((3, 4), (4, 3), {"axisa": 0, "axisc": 0}),
    ],
)
def test_cross_matches_numpy(a, b, axes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # vectors with two elements
        check(
            lambda x, y: mnp.cross(x, y, **axes),
            lambda x, y: np.cross(x, y, **axes),
            values_of(a),
            values_of(b, seed=1),
        )


def test_cross_keeps_infinities_in_their_components():
    a, b = np.array([-np.inf, 0.1, -0.0]), np.array([0.2, 0.8, -1.7])
    for count in ((3, 3), (2, 3), (3, 2)):
        x, y = a[: count[0]], b[: count[1]]
        padded = [np.append(v, [0.0] * (3 - len(v))) for v in (x, y)]
        result = mnp.cross(array(x), array(y)).asnumpy()
        with np.errstate(invalid="ignore"):
            full = np.cross(*padded)
        known = ~np.isnan(full)
        np.testing.assert_allclose(result[known], full[known])
        assert not np.isnan(result).any()


def test_cross_reports_invalid_vectors():
    with pytest.raises(ValueError, match="vectors must have 2 or 3 elements, not 4"):
        mnp.cross(array(values_of(4)), array(values_of(4)))
