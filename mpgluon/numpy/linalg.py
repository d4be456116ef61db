"""Linear algebra with NumPy's names and signatures, as in ``mxnet.numpy.linalg``.

Matrices are in the last two axes of an array; the leading axes are batch axes. Functions are
composed of ops, so they have gradients, are traced by ``hybridize()``, and run on every device,
except `lstsq` and two modes of `qr`, which NumPy computes on copies of the values. The
decompositions take float32 and float64. Integers and bools are converted to float32.

Invalid shapes raise MXNetError, as a ValueError, at once. A singular matrix, or one that isn't
positive definite, raises MXNetError when the values are used.
"""

from __future__ import annotations

import contextlib
import math
from operator import index
from typing import TYPE_CHECKING

from .. import _core
from .._core import MXNetValueError, ndarray
from .._internal.numpy_hints import list_names as _list_names
from ._arguments import axes_of, axis_of, check, common_shape, real_of, spread
from ._draws import op as _op
from ._fallback import LINALG
from ._products import matmul

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Order = float | str | None

__all__ = [
    "cholesky",
    "cond",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "tensorinv",
    "tensorsolve",
]

lstsq: Callable[..., Any] = LINALG["lstsq"]


def _floats(name, key, a):
    """Returns an array of mx.np, with integers and bools converted to float32."""
    check(f"linalg.{name}", **{key: a})
    return real_of(a)


def _matrices(name, a, key="a", square=False):
    """Returns an array of matrices after checking its shape."""
    a = _floats(name, key, a)
    if a.ndim < 2:
        raise MXNetValueError(
            f"linalg.{name}: {key} must have at least two dimensions, but has the shape {a.shape}"
        )
    if square and a.shape[-1] != a.shape[-2]:
        raise MXNetValueError(
            f"linalg.{name}: the matrices must be square, but {key} has the shape {a.shape}"
        )
    return a


def _swapped(a):
    return a.swapaxes(-1, -2)


def _column(values):
    """Returns vectors as matrices of one column."""
    return _op("expand_dims")(values, axis=-1)


def _row(values):
    """Returns vectors as matrices of one row."""
    return _op("expand_dims")(values, axis=-2)


# --- Norms ----------------------------------------------------------------------------------------


def _vector_norm(x, order, axis):
    """Returns norms along one or more axes, which stay with size 1."""
    if order == 0:
        return (x != 0).astype(x.dtype).sum(axis=axis, keepdims=True)
    if order == 1:
        return _op("norm")(x, ord=1, axis=axis, keepdims=True)
    sizes = _op("abs")(x)
    if order == math.inf:
        return _largest(sizes, axis)
    if order == -math.inf:
        return sizes.min(axis=axis, keepdims=True)
    if any(x.shape[i] == 0 for i in axis):
        return sizes.sum(axis=axis, keepdims=True)
    # Powers of the quotients neither overflow nor underflow if the largest one is 1. The norm
    # doesn't depend on the divisor, so it needs no gradient.
    largest = _op("BlockGrad")(sizes.max(axis=axis, keepdims=True))
    usable = _op("isfinite")(largest) * (largest != 0)
    scale = _op("where")(usable, largest, _op("ones_like")(largest))
    if order == 2:
        return _op("norm")(x / scale, ord=2, axis=axis, keepdims=True) * scale
    total = ((sizes / scale) ** order).sum(axis=axis, keepdims=True)
    # A sum of 0 is replaced, because the root has no finite gradient there.
    empty = total == 0
    return (total + empty) ** (1 / order) * scale * (1 - empty.astype(x.dtype))


def _largest(sizes, axis):
    """Returns the maxima of nonnegative numbers along axes, which keep size 1. The maximum of no
    numbers is 0."""
    empty = any(sizes.shape[i] == 0 for i in axis)
    return (sizes.sum if empty else sizes.max)(axis=axis, keepdims=True)


def _singular_values(x, axes):
    """Returns the descending singular values of the matrices in two axes."""
    others = [i for i in range(x.ndim) if i not in axes]
    rows, columns = axes
    if x.shape[rows] > x.shape[columns]:  # the op needs at least as many columns as rows
        rows, columns = columns, rows
    return _op("_svd")(_op("transpose")(x, axes=(*others, rows, columns)))[1]


def _matrix_norm(x, order, axes):
    """Returns norms of the matrices in two axes, which stay with size 1."""
    rows, columns = axes
    if order in (1, -1, math.inf, -math.inf):
        summed, kept = (rows, columns) if abs(order) == 1 else (columns, rows)
        sums = _op("norm")(x, ord=1, axis=(summed,), keepdims=True)
        return _largest(sums, (kept,)) if order > 0 else sums.min(axis=(kept,), keepdims=True)
    if order not in (2, -2, "nuc"):
        raise MXNetValueError(
            f"linalg.norm: ord must be None, 'fro', 'nuc', 1, -1, 2, -2, inf or -inf for matrices, "
            f"got {order!r}"
        )
    values = _singular_values(x, axes)
    order = "nuc" if order == 2 and 0 in values.shape else order
    values = {2: values.max, -2: values.min, "nuc": values.sum}[order](axis=(-1,))
    for axis in sorted(axes):
        values = _op("expand_dims")(values, axis=axis)
    return values


def norm(
    x: ndarray,
    ord: Order = None,
    axis: int | tuple[int, int] | None = None,
    keepdims: bool = False,
) -> ndarray:
    """Returns norms of vectors or of matrices.

    Parameters
    ----------
    x
        An array. Integers are converted to float32.
    ord
        For vectors: None or 2 for the Euclidean norm, inf or -inf for the largest or smallest
        absolute value, 0 for the number of nonzero elements, or another number p for
        ``sum(abs(x) ** p) ** (1 / p)``. For matrices: None or 'fro' for the Frobenius norm, 'nuc'
        for the sum of the singular values, 2 or -2 for the largest or smallest singular value, 1
        or -1 for the largest or smallest sum of a column's absolute values, inf or -inf for the
        sums of rows. The strings 'inf' and '-inf' are accepted.
    axis
        The axis of the vectors, or the two axes of the rows and columns of matrices. None for all
        axes: a vector or a matrix, or if ``ord`` is None, any array as one vector.
    keepdims
        Keep the reduced axes with size 1.

    Squares and other powers don't overflow. The gradient at a vector of zeros is zero.

    Examples
    --------
    >>> x = np.array([[3, 4], [6, 8]])
    >>> np.linalg.norm(x, axis=1).tolist(), np.linalg.norm(x, 1).item()
    ([5.0, 10.0], 12.0)
    """
    x = _floats("norm", "x", x)
    order = {"inf": math.inf, "-inf": -math.inf, "f": "fro"}.get(ord, ord)
    axes = axes_of(axis, x.ndim, "linalg.norm: axis")
    if order is None and (axis is None or len(axes) <= 2):
        order = 2
        result = _vector_norm(x, 2, axes) if axes else _op("abs")(x)
    elif len(axes) == 2 and order == "fro":
        result = _vector_norm(x, 2, axes)
    elif len(axes) == 2:
        result = _matrix_norm(x, order, axes)
    elif len(axes) == 1 and not isinstance(order, str):
        result = _vector_norm(x, order, axes)
    elif len(axes) == 1:
        raise MXNetValueError(f"linalg.norm: ord must be a number for vectors, got {ord!r}")
    else:
        raise MXNetValueError(
            f"linalg.norm: ord={ord!r} needs one or two axes, but "
            f"{'x has the shape ' + str(x.shape) if axis is None else f'axis is {axis}'}"
        )
    return result if keepdims or not axes else _op("squeeze")(result, axis=axes)


# --- Determinants, inverses and equations ---------------------------------------------------------


def det(a: ndarray) -> ndarray:
    """Returns the determinants of square matrices.

    The gradient at a singular matrix is zero.

    Examples
    --------
    >>> np.linalg.det(np.array([[1, 2], [3, 4]])).round().item()
    -2.0
    """
    return _op("_linalg_det")(_matrices("det", a, square=True))


def slogdet(a: ndarray) -> tuple[ndarray, ndarray]:
    """Returns the signs of the determinants of square matrices, and the logarithms of their
    absolute values.

    They are 0 and -inf for a singular matrix, and the gradient there is zero.

    Examples
    --------
    >>> sign, logarithm = np.linalg.slogdet(np.array([[1, 2], [3, 4]]))
    >>> sign.item(), round(logarithm.item(), 3)
    (-1.0, 0.693)
    """
    sign, logarithm = _op("_linalg_slogdet")(_matrices("slogdet", a, square=True))
    return sign, logarithm


def inv(a: ndarray) -> ndarray:
    """Returns the inverses of square matrices.

    A singular matrix raises MXNetError.

    Examples
    --------
    >>> np.linalg.inv(np.array([[2, 1], [1, 1]])).round().tolist()
    [[1.0, -1.0], [-1.0, 2.0]]
    """
    return _op("_linalg_inverse")(_matrices("inv", a, square=True))


def solve(a: ndarray, b: ndarray) -> ndarray:
    """Returns the solutions x of the equations a @ x = b for square matrices ``a``.

    ``b`` has one matrix, or one vector, for every matrix of ``a``: it has as many dimensions as
    ``a``, or one less and the leading sizes of ``a``. A single vector is used for all matrices, and
    leading axes of matrices are broadcast. A singular matrix raises MXNetError.

    Examples
    --------
    >>> a, b = np.array([[2, 1], [1, 1]]), np.array([3, 2])
    >>> np.linalg.solve(a, b).round().tolist()
    [1.0, 1.0]
    """
    a, b = _matrices("solve", a, square=True), _floats("solve", "b", b)
    vectors = b.ndim == 1 or b.shape == a.shape[:-1]
    right = b.shape if vectors else b.shape[:-1]
    batch = None
    if b.ndim and right[-1] == a.shape[-1]:
        with contextlib.suppress(ValueError):
            batch = common_shape(a.shape[:-2], right[:-1])
    if batch is None:
        raise MXNetValueError(
            f"linalg.solve: b must have a vector or the rows of a matrix of length {a.shape[-1]} "
            f"for each matrix of a, but a has the shape {a.shape} and b {b.shape}"
        )
    count = b.ndim - len(right) + 1
    return _op("_solve")(spread(a, batch, 2, b), spread(b, batch, count, a))


def tensorinv(a: ndarray, ind: int = 2) -> ndarray:
    """Returns the inverse of an array for `tensordot` over ``ind`` axes.

    The first ``ind`` axes are the rows of a square matrix, and the other axes its columns.

    Examples
    --------
    >>> a = np.array([[[2, 1]], [[1, 1]]])
    >>> np.linalg.tensorinv(a, ind=1).round().tolist()
    [[[1.0, -1.0], [-1.0, 2.0]]]
    """
    a, ind = _floats("tensorinv", "a", a), index(ind)
    rows, columns = a.shape[: max(ind, 0)], a.shape[max(ind, 0) :]
    if ind < 1 or math.prod(rows) != math.prod(columns):
        raise MXNetValueError(
            f"linalg.tensorinv: the sizes of the first ind axes and of the others must have equal "
            f"products, but ind is {ind} and a has the shape {a.shape}"
        )
    size = math.prod(rows)
    return inv(a.reshape((size, size))).reshape((*columns, *rows))


def tensorsolve(a: ndarray, b: ndarray, axes: Sequence[int] | None = None) -> ndarray:
    """Returns the solution x of the equation ``tensordot(a, x, x.ndim) = b``.

    The last axes of ``a`` have the sizes of x. The sizes of x and of ``b`` must have equal
    products. ``axes`` are moved to the end of ``a`` first.

    Examples
    --------
    >>> a = np.array([[[2, 0]], [[0, 4]]])
    >>> np.linalg.tensorsolve(a, np.array([6, 8])).tolist()
    [[3.0, 2.0]]
    """
    a, b = _floats("tensorsolve", "a", a), _floats("tensorsolve", "b", b)
    if axes is not None:
        order = list(range(a.ndim))
        for axis in axes:
            axis = axis_of(axis, a.ndim, "linalg.tensorsolve: axis")
            order.remove(axis)
            order.append(axis)
        a = _op("transpose")(a, axes=order)
    shape = a.shape[-(a.ndim - b.ndim) :]
    size = math.prod(shape)
    if size != b.size or a.size != size * size:
        raise MXNetValueError(
            f"linalg.tensorsolve: b and the last axes of a must have as many elements as the other "
            f"axes of a, but a has the shape {a.shape} and b {b.shape}"
        )
    return solve(a.reshape((size, size)), b.reshape((size,))).reshape(shape)


# --- Decompositions -------------------------------------------------------------------------------


def cholesky(a: ndarray, upper: bool = False) -> ndarray:
    """Returns the Cholesky factors of symmetric, positive definite matrices.

    Parameters
    ----------
    a
        The matrices. Only the triangle of the factor is read.
    upper
        Return the upper factors U with ``a = U.T @ U`` instead of lower ones L with
        ``a = L @ L.T``.

    A matrix that isn't positive definite raises MXNetError.

    Examples
    --------
    >>> np.linalg.cholesky(np.array([[4, 2], [2, 5]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    return _op("_linalg_potrf")(_matrices("cholesky", a, square=True), lower=not upper)


def svd(a: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Returns the singular value decomposition of matrices (..., m, n).

    Returns
    -------
    The left vectors (..., m, k), the descending singular values (..., k), and the right vectors
    (..., k, n), with ``a = (left * values[..., None, :]) @ right``; k is the smaller of m and
    n. This is ``numpy.linalg.svd(a, full_matrices=False)``. The gradients of the vectors need
    distinct singular values that are not 0.

    Examples
    --------
    >>> left, values, right = np.linalg.svd(np.array([[0, 2], [-3, 0]]))
    >>> values.round().tolist()
    [3.0, 2.0]
    """
    a = _matrices("svd", a)
    if a.shape[-2] <= a.shape[-1]:
        left, values, right = _op("_svd")(a)
        return left, values, right
    right, values, left = _op("_svd")(_swapped(a))
    return _swapped(left), values, _swapped(right)


def eig(a: ndarray) -> tuple[ndarray, ndarray]:
    """Returns the eigenvalues of square matrices, and the eigenvectors as columns.

    The eigenvectors have length 1. Complex eigenvalues raise MXNetError. The gradient of the
    eigenvectors needs distinct eigenvalues.

    Examples
    --------
    >>> values, vectors = np.linalg.eig(np.array([[2, 0], [0, 3]]))
    >>> values.tolist(), vectors.tolist()
    ([2.0, 3.0], [[1.0, 0.0], [0.0, 1.0]])
    """
    values, vectors = _op("_eig")(_matrices("eig", a, square=True))
    return values, vectors


def eigvals(a: ndarray) -> ndarray:
    """Returns the eigenvalues of square matrices.

    Complex eigenvalues raise MXNetError.

    Examples
    --------
    >>> np.linalg.eigvals(np.array([[2, 0], [0, 3]])).tolist()
    [2.0, 3.0]
    """
    return _op("_eigvals")(_matrices("eigvals", a, square=True))


def eigh(a: ndarray, UPLO: str = "L") -> tuple[ndarray, ndarray]:
    """Returns the ascending eigenvalues of symmetric matrices, and the eigenvectors as columns.

    Only the lower triangles are read, or the upper ones if ``UPLO`` is 'U'. The largest element of
    an eigenvector is positive. The gradient of the eigenvectors needs distinct eigenvalues.

    Examples
    --------
    >>> values, vectors = np.linalg.eigh(np.array([[2, 1], [1, 2]]))
    >>> values.round().tolist()
    [1.0, 3.0]
    """
    vectors, values = _symmetric("eigh", a, UPLO)
    return values, _swapped(vectors)


def eigvalsh(a: ndarray, UPLO: str = "L") -> ndarray:
    """Returns the ascending eigenvalues of symmetric matrices.

    Only the lower triangles are read, or the upper ones if ``UPLO`` is 'U'.

    Examples
    --------
    >>> np.linalg.eigvalsh(np.array([[2, 1], [1, 2]])).round().tolist()
    [1.0, 3.0]
    """
    return _symmetric("eigvalsh", a, UPLO)[1]


def _symmetric(name, a, UPLO):
    """Returns the eigenvectors, as rows, and the eigenvalues of symmetric matrices."""
    a = _matrices(name, a, square=True)
    if UPLO not in ("L", "U", "l", "u"):
        raise MXNetValueError(f"linalg.{name}: UPLO must be 'L' or 'U', got {UPLO!r}")
    return _op("_linalg_syevd")(a if UPLO in ("L", "l") else _swapped(a))


def qr(a: ndarray, mode: str = "reduced") -> ndarray | tuple[ndarray, ...]:
    """Returns the QR decomposition of matrices (..., m, n).

    Parameters
    ----------
    a
        The matrices.
    mode
        'reduced' for the factors Q (..., m, k) and R (..., k, n) with ``a = Q @ R``, where k is the
        smaller of m and n, or 'r' for R. The columns of Q are orthonormal, and R is upper
        triangular. NumPy computes the modes 'complete' and 'raw' on copies of the values.

    The gradient needs linearly independent columns among the first k.

    Examples
    --------
    >>> q, r = np.linalg.qr(np.array([[0, 2], [3, 0]]))
    >>> np.linalg.multi_dot([q, r]).round().tolist()
    [[0.0, 2.0], [3.0, 0.0]]
    """
    if mode not in ("reduced", "r"):
        return LINALG["qr"](a, mode)
    a = _matrices("qr", a)
    count = min(a.shape[-2:])
    rows, lower = _op("_linalg_gelqf")(_swapped(a[..., :count]))
    q = _swapped(rows)
    r = _swapped(lower) if a.shape[-1] == count else matmul(rows, a)
    return r if mode == "r" else (q, r)


def pinv(a: ndarray, rcond: float | ndarray = 1e-15, hermitian: bool = False) -> ndarray:
    """Returns the pseudoinverses of matrices.

    Parameters
    ----------
    a
        The matrices (..., m, n).
    rcond
        Singular values up to ``rcond`` times the largest one are treated as 0. An array is
        broadcast with the leading axes of ``a``.
    hermitian
        The matrices are symmetric, so that a faster decomposition can be used.

    The gradient needs distinct singular values.

    Examples
    --------
    >>> np.linalg.pinv(np.array([[2, 0], [0, 4], [0, 0]])).tolist()
    [[0.5, 0.0, 0.0], [0.0, 0.25, 0.0]]
    """
    if hermitian:
        right, values = _symmetric("pinv", a, "L")
        left = _swapped(right)
    else:
        left, values, right = svd(_matrices("pinv", a))
    if 0 in values.shape:
        return _swapped(_matrices("pinv", a))
    cutoff = _column(rcond.astype(values.dtype)) if isinstance(rcond, ndarray) else rcond
    sizes = _op("abs")(values)
    kept = (sizes > sizes.max(axis=(-1,), keepdims=True) * cutoff).astype(values.dtype)
    inverses = kept / (values * kept + (1 - kept))
    return matmul(_swapped(right) * _row(inverses), _swapped(left))


# --- Functions of decompositions and products -----------------------------------------------------


def cond(x: ndarray, p: Order = None) -> ndarray:
    """Returns the condition numbers of matrices.

    They are the quotients of the largest and smallest singular values if ``p`` is None, 2 or -2,
    the latter with the reverse quotient. For other orders of `norm`, they are the norm of the
    matrix times the norm of the inverse.

    Examples
    --------
    >>> np.linalg.cond(np.array([[2, 0], [0, 4]])).item()
    2.0
    """
    x = _matrices("cond", x, "x")
    if p in (None, 2, -2):
        values = svd(x)[1]
        first, last = values[..., 0], values[..., -1]
        return last / first if p == -2 else first / last
    return norm(x, p, (-2, -1)) * norm(inv(_matrices("cond", x, "x", True)), p, (-2, -1))


def matrix_rank(A: ndarray, tol: float | ndarray | None = None, hermitian: bool = False) -> ndarray:
    """Returns the ranks of matrices, as int64: the numbers of singular values above ``tol``.

    None for the largest singular value times the longer side of the matrix and the rounding error
    of the dtype. An array ``tol`` is broadcast with the leading axes of ``A``. ``hermitian`` says
    that the matrices are symmetric. A vector has rank 1, or 0 if all its elements are 0.

    Examples
    --------
    >>> np.linalg.matrix_rank(np.array([[1, 2], [2, 4]])).item()
    1
    """
    A = _floats("matrix_rank", "A", A)
    if A.ndim < 2:
        return ((A != 0).astype("int64").sum() > 0).astype("int64")
    values = _op("abs")(_symmetric("matrix_rank", A, "L")[1]) if hermitian else svd(A)[1]
    if 0 in values.shape:
        return values.astype("int64").sum(axis=(-1,))
    if tol is None:
        precision = 2.0 ** (-52 if _core.dtype_name(A.dtype) == "float64" else -23)
        tol = values.max(axis=(-1,), keepdims=True) * (max(A.shape[-2:]) * precision)
    elif isinstance(tol, ndarray):
        tol = _column(tol.astype(values.dtype))
    return (values > tol).astype("int64").sum(axis=(-1,))


def matrix_power(a: ndarray, n: int) -> ndarray:
    """Raises square matrices to an integer power, by repeated squaring.

    A negative power is a power of the inverse.

    Examples
    --------
    >>> np.linalg.matrix_power(np.array([[1, 1], [0, 1]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    a, n = _matrices("matrix_power", a, square=True), index(n)
    if n == 0:
        size = a.shape[-1]
        unit = _op("_eye")(size, size, dtype=a.dtype, ctx=a.context)
        return _op("zeros_like")(a) + unit  # depends on a, so that backward gives zeros
    if n < 0:
        a, n = inv(a), -n
    result = None
    while n:
        if n & 1:
            result = a if result is None else matmul(result, a)
        n >>= 1
        if n:
            a = matmul(a, a)
    return result


def multi_dot(arrays: Sequence[ndarray], *, out: ndarray | None = None) -> ndarray:
    """Returns the product of two or more matrices, in the order that needs the least arithmetic.

    The first and the last array may be vectors. ``out`` is the array that the product is written
    to.

    Examples
    --------
    >>> a = np.array([[1, 2], [3, 4]])
    >>> np.linalg.multi_dot([np.array([1, 1]), a, a]).tolist()
    [22.0, 32.0]
    """
    arrays = list(arrays)
    shapes = [getattr(array, "shape", None) for array in arrays]
    inner, ends = shapes[1:-1], shapes[:1] + shapes[-1:]
    fit = (
        len(arrays) > 1
        and all(isinstance(array, ndarray) for array in arrays)
        and all(len(shape) == 2 for shape in inner)
        and all(len(shape) in (1, 2) for shape in ends)
        and all(left[-1] == right[0] for left, right in zip(shapes, shapes[1:]))
    )
    if not fit:
        raise MXNetValueError(
            "linalg.multi_dot: expected two or more matrices of mx.np with fitting sizes (the "
            f"first and the last may be vectors), got the shapes {shapes}"
        )
    if arrays[0].ndim == 1:
        shapes[0] = (1, *shapes[0])
    if arrays[-1].ndim == 1:
        shapes[-1] = (*shapes[-1], 1)
    result = _chained(arrays, [shapes[0][0], *(shape[1] for shape in shapes)])
    return result if out is None else _op("_copyto")(result, out=out)


def _chained(arrays, sides):
    """Multiplies matrices in the order with the fewest multiplications (matrix chain ordering)."""
    best = {(i, i): (0, i) for i in range(len(arrays))}
    count = len(arrays)
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            best[i, j] = min(
                (
                    best[i, k][0] + best[k + 1, j][0] + sides[i] * sides[k + 1] * sides[j + 1],
                    k,
                )
                for k in range(i, j)
            )

    def product(i, j):
        if i == j:
            return arrays[i]
        k = best[i, j][1]
        return matmul(product(i, k), product(k + 1, j))

    return product(0, count - 1)


_list_names(__name__)
