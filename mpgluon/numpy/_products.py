"""Products of mx.np, composed of ops: matmul, tensordot, einsum and others.

All products of two arrays with labeled axes are planned by `_pair`. A plan depends on the labels
and the shapes only and is cached, so that a call runs the ops of the plan and nothing else.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import operator
from typing import TYPE_CHECKING

import numpy as np

from .._core import MXNetTypeError, MXNetValueError, ndarray
from ._arguments import (
    axes_of,
    axis_of,
    broadcast,
    check,
    common_shape,
    flat,
    into,
    is_float,
    joined,
    op,
    part,
    shaped,
    transposed,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Labels = tuple[int, ...]
    Shape = tuple[int, ...]

__all__ = ["cross", "einsum", "inner", "kron", "matmul", "outer", "tensordot", "vdot"]

# Stacks of outer products are faster as matrix products if their rows have at most SHORT_ROW
# elements, which a broadcast multiplication copies first, and if they have at least this many rows
# and elements. The limits are measured on a CPU.
SHORT_ROW, FEWEST_ROWS, FEWEST_ELEMENTS = 256, 8, 1 << 16

_batch_dot = op("_npi_batch_dot")
_diag = op("_npi_diag")
_dot = op("_npi_dot")
_multiply = op("_npi_multiply")
_reshape = op("_npi__reshape_exact")
_sum = op("_npi_sum")
_transpose = op("_npi_transpose")


# --- Plans ----------------------------------------------------------------------------------------
def _same(x):
    return x


def _then(first, second):
    """Returns the composition of two functions of one array."""
    if first is _same:
        return second
    return first if second is _same else lambda x: second(first(x))


def _reshaping(old, new):
    new = tuple(new)
    return _same if tuple(old) == new else lambda x: _reshape(x, shape=new)


def _transposing(order):
    order = tuple(order)
    return _same if order == tuple(range(len(order))) else lambda x: _transpose(x, axes=order)


def _summing(axes):
    axes = tuple(axes)
    return _same if not axes else lambda x: _sum(x, axis=axes)


def _reducing(labels, wanted, shape):
    """Plans the reduction of one array to the labels `wanted`, in that order: diagonals of repeated
    labels, sums over absent labels, then a transposition."""
    run, labels, shape = _same, [*labels], [*shape]
    while len(set(labels)) < len(labels):
        first = next(i for i, label in enumerate(labels) if label in labels[i + 1 :])
        second = labels.index(labels[first], first + 1)
        run = _then(run, functools.partial(_diag, k=0, axis1=first, axis2=second))
        labels = [
            *labels[:first],
            *labels[first + 1 : second],
            *labels[second + 1 :],
            labels[first],
        ]
    run = _then(run, _summing(i for i, label in enumerate(labels) if label not in wanted))
    labels = [label for label in labels if label in wanted]
    return _then(run, _transposing(labels.index(label) for label in wanted))


def _sizes_of(operands, shapes):
    """Returns the size of each label. Axes of size 1 are broadcast."""
    sizes = {}
    for labels, shape in zip(operands, shapes):
        for label, size in zip(labels, shape):
            known = sizes.get(label, 1)
            if size != known and 1 not in (size, known):
                raise MXNetValueError(
                    f"sizes {known} and {size} of a common axis differ, in shapes "
                    f"{' and '.join(map(str, shapes))}"
                )
            sizes[label] = size if known == 1 else known
    return sizes


@functools.lru_cache(maxsize=1024)
def _single(labels: Labels, wanted: Labels, shape: Shape) -> Callable[..., Any]:
    """Plans an einsum of one array."""
    sizes = _sizes_of([labels], [shape])
    stay = [i for i, label in enumerate(labels) if shape[i] == sizes[label]]
    own = tuple(labels[i] for i in stay), tuple(shape[i] for i in stay)
    return _then(_reshaping(shape, own[1]), _reducing(own[0], wanted, own[1]))


@functools.lru_cache(maxsize=1024)
def _pair(
    left: Labels, right: Labels, wanted: Labels, shapes: tuple[Shape, Shape], real: bool
) -> Callable[..., Any]:
    """Plans the product of two arrays, summed over the labels that are not in `wanted`.

    Each array is first reduced to the labels that the other array or the result has. The product
    is one call of dot or batch_dot for real numbers, if it has a sum.
    """
    sizes = _sizes_of((left, right), shapes)
    full = [
        [i for i, label in enumerate(labels) if shape[i] == sizes[label]]
        for labels, shape in zip((left, right), shapes)
    ]
    names = [[labels[i] for i in stay] for labels, stay in zip((left, right), full)]
    runs, kept = [], []
    for own, other, stay, shape in zip(names, names[::-1], full, shapes):
        needed = [label for label in dict.fromkeys(own) if label in wanted or label in other]
        own_shape = [shape[i] for i in stay]
        runs.append(_then(_reshaping(shape, own_shape), _reducing(own, needed, own_shape)))
        kept.append(needed)
    a, b = kept
    summed = [label for label in a if label in b and label not in wanted]
    multiply = _matrix_product(a, b, wanted, summed, sizes) if real else None
    if multiply is None:
        multiply = _elementwise(a, b, wanted, summed, sizes)
    first, second = runs
    if first is _same and second is _same:
        return multiply
    return lambda x, y: multiply(first(x), second(y))


def _elementwise(a, b, wanted, summed, sizes):
    """Plans a broadcast product, and the sum over its last axes."""
    axes = [*wanted, *summed]
    runs = []
    for labels in (a, b):
        order = [label for label in axes if label in labels]
        shape = [sizes[label] if label in labels else 1 for label in axes]
        front = axes.index(order[0]) if order else len(axes)  # broadcast without a reshape
        run = _transposing(labels.index(label) for label in order)
        runs.append(_then(run, _reshaping([sizes[label] for label in order], shape[front:])))
    first, second = runs
    reduce = _summing(range(len(wanted), len(axes)))
    if first is second is reduce is _same:
        return _multiply
    return lambda x, y: reduce(_multiply(first(x), second(y)))


def _matrix_product(a, b, wanted, summed, sizes):
    """Plans one call of dot or batch_dot. Chooses the order of the labels that transposes the
    fewest elements. Returns None if an elementwise product is faster."""

    def orders(group, *sources):
        return dict.fromkeys(tuple(x for x in source if x in group) for source in sources)

    batch = [label for label in wanted if label in a and label in b]
    rows = [label for label in a if label not in b]
    columns = [label for label in b if label not in a]
    if not summed:
        height, width = (math.prod(sizes[label] for label in group) for group in (rows, columns))
        ordered = [*batch, *rows, *columns] == [*wanted]
        size = math.prod(sizes[label] for label in wanted)
        many = height >= FEWEST_ROWS and size >= FEWEST_ELEMENTS
        if not (batch and columns and ordered and many and width <= SHORT_ROW):
            return None
    elif batch and not rows and not columns:
        return None
    choices = itertools.product(
        orders(batch, wanted, a, b),
        orders(rows, wanted, a),
        orders(columns, wanted, b),
        orders(summed, a, b),
        (False, True),
    )
    plans = (_one_product(a, b, wanted, sizes, *choice) for choice in choices)
    return min(plans, key=lambda plan: plan[0])[1]


def _one_product(a, b, wanted, sizes, batch, rows, columns, summed, swap):
    """Plans a product with the given order of labels; `swap` exchanges the factors. Returns the
    number of transposed elements (then, of transposed factors and exchanges), and the plan."""
    if swap:
        a, b, rows, columns = b, a, columns, rows
    a_cost, transpose_a, run_a = _factor(a, batch, rows, summed, True, sizes)
    b_cost, transpose_b, run_b = _factor(b, batch, columns, summed, False, sizes)
    made = (*batch, *rows, *columns)
    joined_shape = [sizes[label] for label in batch]
    joined_shape += _joined(rows, batch or transpose_a, sizes)
    joined_shape += _joined(columns, batch or transpose_b, sizes)
    back = _then(
        _reshaping(joined_shape, [sizes[label] for label in made]),
        _transposing(made.index(label) for label in wanted),
    )
    call = _batch_dot if batch else _dot
    if transpose_a or transpose_b:
        call = functools.partial(call, transpose_a=transpose_a, transpose_b=transpose_b)
    cost = a_cost + b_cost + (made != wanted) * math.prod(sizes[label] for label in made)
    key = (cost, transpose_a + transpose_b, swap)
    if run_a is run_b is back is _same:
        return key, (lambda x, y: call(y, x)) if swap else call
    if swap:
        return key, lambda x, y: back(call(run_a(y), run_b(x)))
    return key, lambda x, y: back(call(run_a(x), run_b(y)))


def _factor(labels, batch, free, summed, free_first, sizes):
    """Plans the arrangement of a factor as matrices, with the free labels first or last. Returns
    the number of transposed elements, whether the matrices are transposed, and the plan."""
    best = None
    for flip in (False, True):
        order = [*batch, *free, *summed] if free_first != flip else [*batch, *summed, *free]
        run = _transposing(labels.index(label) for label in order)
        cost = 0 if run is _same else math.prod(sizes[label] for label in order)
        if best is None or cost < best[0]:
            best = cost, flip, run, order
    cost, flip, run, order = best
    matrix = [_joined(free, batch or flip, sizes), _joined(summed, True, sizes)]
    shape = [sizes[label] for label in batch]
    for group in matrix if free_first != flip else matrix[::-1]:
        shape += group
    return cost, flip, _then(run, _reshaping([sizes[label] for label in order], shape))


def _joined(group, join, sizes):
    """Returns the sizes of labels, or their product. batch_dot and the sums of dot need one axis,
    while dot accepts any number of rows and of columns."""
    own = [sizes[label] for label in group]
    return [math.prod(own)] if join else own


# --- einsum ---------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1024)
def _parsed(subscripts: str, dims: tuple[int, ...]) -> tuple[list[Labels], Labels]:
    """Returns the labels of each operand and of the result. An ellipsis becomes the labels -1, -2,
    ... of the axes that it represents, from the last one."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(dims):
        raise MXNetValueError(
            f"einsum: '{subscripts}' has {len(terms)} operands, but {len(dims)} were given"
        )
    most = 0
    for term, ndim in zip(terms, dims):
        letters = len(term.replace("...", "", 1))
        if letters > ndim or (letters < ndim and "..." not in term):
            raise MXNetValueError(
                f"einsum: '{term}' in '{subscripts}' does not match an array with {ndim} dimensions"
            )
        most = max(most, ndim - letters)

    def labels_of(term, hidden):
        before, dots, after = term.partition("...")
        for letter in before + after:
            if not (letter.isascii() and letter.isalpha()):
                raise MXNetValueError(f"einsum: invalid character '{letter}' in '{subscripts}'")
        middle = range(-hidden, 0) if dots else ()
        return (*map(ord, before), *middle, *map(ord, after))

    operands = [
        labels_of(term, ndim - len(term.replace("...", "", 1))) for term, ndim in zip(terms, dims)
    ]
    if arrow:
        wanted = labels_of(output, most)
    else:
        counts = collections.Counter(label for labels in operands for label in labels)
        once = sorted(label for label, count in counts.items() if count == 1 and label > 0)
        wanted = (*range(-most, 0), *once)
    known = {label for labels in operands for label in labels}
    if len({*wanted}) < len(wanted) or not known.issuperset(wanted):
        raise MXNetValueError(
            f"einsum: the result '{output}' of '{subscripts}' must list labels of the operands, "
            "each once"
        )
    return operands, wanted


@functools.lru_cache(maxsize=1024)
def _path(subscripts: str, shapes: tuple[Shape, ...], optimize: Any) -> list[tuple[int, ...]]:
    """Returns the groups of operands to multiply, step by step."""
    empty = [np.broadcast_to(np.empty(()), shape) for shape in shapes]
    how = "greedy" if optimize in (False, True) else optimize
    if isinstance(how, tuple):
        how = [*how]
    return np.einsum_path(subscripts, *empty, optimize=how)[0][1:]


def _product(a, b, left, right, wanted):
    real = is_float(a)
    return _pair(left, right, wanted, (a.shape, b.shape), real)(a, b)


def _chain(subscripts, operands, optimize):
    """Multiplies three or more operands in pairs, in the order of a path."""
    shapes = tuple(x.shape for x in operands)
    labels, wanted = _parsed(subscripts, tuple(map(len, shapes)))
    work = [*zip(operands, labels)]
    for group in _path(subscripts, shapes, optimize):
        chosen = [work[i] for i in group]
        work = [each for i, each in enumerate(work) if i not in group]
        x, own = chosen[0]
        for i, (y, other) in enumerate(chosen[1:], 2):
            rest = {label for _, each in [*chosen[i:], *work] for label in each}.union(wanted)
            last = not work and i == len(chosen)
            kept = [label for label in dict.fromkeys((*own, *other)) if label in rest]
            kept = wanted if last else tuple(kept)
            x, own = _product(x, y, own, other, kept), kept
        work.append((x, own))
    ((x, own),) = work
    return x if own == wanted else _single(own, wanted, x.shape)(x)


def einsum(subscripts: str, *operands: ndarray, out: Any = None, optimize: Any = False) -> ndarray:
    """Sums products of elements along labeled axes, by Einstein's convention.

    Parameters
    ----------
    subscripts : str
        A label for each axis of each operand, such as ``"ij,jk->ik"``. ``...`` represents any axes,
        which are broadcast. Without ``->``, the result has the labels that occur once, sorted.
    *operands : ndarray
        Arrays of equal dtypes. Axes of size 1 are broadcast.
    out : ndarray, optional
        The array that receives the result.
    optimize : bool, str or list
        The order in which three or more operands are multiplied: ``"greedy"`` (also False and
        True), ``"optimal"``, or a path of `numpy.einsum_path`.

    Returns
    -------
    ndarray
        An array of the operands' dtype. Products of two operands of real numbers that have a sum
        run as one matrix product.

    Raises
    ------
    ValueError
        If the subscripts do not match the operands.

    Source: numpy.einsum

    Examples
    --------
    >>> a = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> mx.np.einsum("ij,kj->ik", a, a).asnumpy().tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    >>> mx.np.einsum("ii", a).item()
    5.0
    """
    if not isinstance(subscripts, str):
        raise MXNetTypeError("einsum: subscripts must be a string, followed by the operands")
    for x in operands:
        check("einsum", operand=x)
    if len(operands) == 2:
        a, b = operands
        (left, right), wanted = _parsed(subscripts, (a.ndim, b.ndim))
        result = _product(a, b, left, right, wanted)
    elif len(operands) == 1:
        (x,) = operands
        (labels,), wanted = _parsed(subscripts, (x.ndim,))
        result = _single(labels, wanted, x.shape)(x)
    else:
        how = tuple(optimize) if isinstance(optimize, list) else optimize
        result = _chain(subscripts, operands, how)
    return into(result, out)


# --- Products of two arrays -----------------------------------------------------------------------
@functools.lru_cache(maxsize=1024)
def _contraction(ndims: tuple[int, int], axes: Any) -> tuple[Labels, Labels, Labels]:
    """Returns the labels of the arrays and of the result for the axes of tensordot."""
    a_ndim, b_ndim = ndims
    if not isinstance(axes, tuple):
        count = operator.index(axes)
        if not 0 <= count <= min(ndims):
            raise MXNetValueError(
                f"tensordot: axes must be between 0 and {min(ndims)} for arrays with {a_ndim} and "
                f"{b_ndim} dimensions, not {count}"
            )
        first, second = tuple(range(a_ndim - count, a_ndim)), tuple(range(count))
    else:
        first, second = axes_of(axes[0], a_ndim, "axes"), axes_of(axes[1], b_ndim, "axes")
    if len(first) != len(second):
        raise MXNetValueError(f"tensordot: axes {axes} must list equally many axes of each array")
    left = tuple(range(a_ndim))
    right = [a_ndim + i for i in range(b_ndim)]
    for i, j in zip(first, second):
        right[j] = i
    summed = {*first}
    wanted = (*(x for x in left if x not in summed), *(x for x in right if x >= a_ndim))
    return left, tuple(right), wanted


def tensordot(a: ndarray, b: ndarray, axes: Any = 2) -> ndarray:
    """Sums products of two arrays over given axes.

    Parameters
    ----------
    a, b : ndarray
        Arrays of equal dtypes.
    axes : int or two sequences of int
        The number of axes, the last ones of `a` and the first ones of `b`; or the axes of `a` and
        the axes of `b` that are summed, in pairs of equal sizes.

    Returns
    -------
    ndarray
        The remaining axes of `a`, then the remaining axes of `b`.

    Raises
    ------
    ValueError
        If the sizes of two summed axes differ, or if an axis is out of range.

    Source: numpy.tensordot

    Examples
    --------
    >>> a = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> mx.np.tensordot(a, a, axes=([0], [1])).asnumpy().tolist()
    [[7.0, 15.0], [10.0, 22.0]]
    >>> mx.np.tensordot(a, a).item()
    30.0
    """
    check("tensordot", a=a, b=b)
    if np.iterable(axes):
        first, second = axes
        axes = tuple(tuple(x) if np.iterable(x) else (x,) for x in (first, second))
        if len(axes[0]) == len(axes[1]):
            for i, j in zip(axes_of(axes[0], a.ndim, "axes"), axes_of(axes[1], b.ndim, "axes")):
                _check_sizes("tensordot", a, i, b, j)
    elif 0 < axes <= min(a.ndim, b.ndim):
        for i in range(axes):
            _check_sizes("tensordot", a, a.ndim - axes + i, b, i)
    return _product(a, b, *_contraction((a.ndim, b.ndim), axes))


def _check_sizes(function, a, i, b, j):
    if a.shape[i] != b.shape[j]:
        raise MXNetValueError(
            f"{function}: axis {i} of a has size {a.shape[i]}, but axis {j} of b has size "
            f"{b.shape[j]}, in shapes {a.shape} and {b.shape}"
        )


def matmul(a: ndarray, b: ndarray, out: ndarray | None = None) -> ndarray:
    """Multiplies matrices; the axes before the last two are broadcast.

    Parameters
    ----------
    a, b : ndarray
        Arrays of equal dtypes, or of floats and integers. A vector `a` is treated as one row and a
        vector `b` as one column; the result lacks this axis.
    out : ndarray, optional
        The array that receives the result.

    Returns
    -------
    ndarray
        The products, of shape ``(..., rows of a, columns of b)``; 0-d for two vectors. Integers
        next to floats are converted to the dtype of the floats.

    Raises
    ------
    ValueError
        If an array has no dimensions, or if the shapes do not match.

    Source: numpy.matmul

    Examples
    --------
    >>> a = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> mx.np.matmul(a, a[0]).asnumpy().tolist()
    [5.0, 11.0]
    >>> mx.np.matmul(a, mx.nd.ones((3, 2, 4)).as_np_ndarray()).shape
    (3, 2, 4)
    """
    check("matmul", a=a, b=b)
    n, m = a.ndim, b.ndim
    if not n or not m:
        raise MXNetValueError(
            f"matmul: {'b' if n else 'a'} must have at least one dimension; use a * b"
        )
    _check_sizes("matmul", a, n - 1, b, max(m - 2, 0))
    if a.dtype != b.dtype and is_float(a) != is_float(b):
        a, b = (a, b.astype(a.dtype)) if is_float(a) else (a.astype(b.dtype), b)
    if not is_float(a):
        return into(_integer_matmul(a, b), out)
    if m <= 2:
        return into(_dot(a, b), out)
    if n == 1:
        result = matmul(shaped(a, (1, a.size)), b)
        return into(shaped(result, (*result.shape[:-2], result.shape[-1])), out)
    if a.shape[:-2] != b.shape[:-2]:
        front = common_shape(a.shape[:-2], b.shape[:-2])
        a, b = (broadcast(x, (*front, *x.shape[-2:])) for x in (a, b))
    return into(_batch_dot(a, b), out)


def _integer_matmul(a, b):
    """Multiplies matrices of integers, which dot does not support."""
    rows, columns = a.ndim > 1, b.ndim > 1
    dots = "..." if max(a.ndim, b.ndim) > 2 else ""
    left = dots * (a.ndim > 2) + "i" * rows + "j"
    right = dots * (b.ndim > 2) + "j" + "k" * columns
    return einsum(f"{left},{right}->{dots}{'i' * rows}{'k' * columns}", a, b)


def inner(a: ndarray, b: ndarray) -> ndarray:
    """Sums products over the last axes of two arrays.

    Parameters
    ----------
    a, b : ndarray
        Arrays of equal dtypes, whose last axes have equal sizes. If one has no dimensions, the
        arrays are multiplied.

    Returns
    -------
    ndarray
        The axes of `a` and then of `b`, except the last ones; 0-d for two vectors.

    Raises
    ------
    ValueError
        If the sizes of the last axes differ.

    Source: numpy.inner

    Examples
    --------
    >>> a = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> mx.np.inner(a, a).asnumpy().tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    check("inner", a=a, b=b)
    if not a.ndim or not b.ndim:
        return a * b
    _check_sizes("inner", a, a.ndim - 1, b, b.ndim - 1)
    return _product(a, b, *_contraction((a.ndim, b.ndim), ((-1,), (-1,))))


def vdot(a: ndarray, b: ndarray) -> ndarray:
    """Sums the products of all elements of two arrays of equal sizes, as a 0-d array.

    Raises
    ------
    ValueError
        If the arrays have different numbers of elements.

    Source: numpy.vdot

    Examples
    --------
    >>> a = mx.nd.array([[1, 2], [3, 4]]).as_np_ndarray()
    >>> mx.np.vdot(a, a).item()
    30.0
    """
    check("vdot", a=a, b=b)
    a, b = flat(a), flat(b)
    _check_sizes("vdot", a, 0, b, 0)
    return _product(a, b, (0,), (0,), ())


def outer(a: ndarray, b: ndarray) -> ndarray:
    """Returns the products of all pairs of elements, of shape ``(a.size, b.size)``.

    Source: numpy.outer

    Examples
    --------
    >>> a = mx.nd.array([1, 2]).as_np_ndarray()
    >>> mx.np.outer(a, a).asnumpy().tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    check("outer", a=a, b=b)
    return _multiply(shaped(a, (a.size, 1)), flat(b))


def kron(a: ndarray, b: ndarray) -> ndarray:
    """Returns the Kronecker product: copies of `b`, each multiplied by an element of `a`.

    The array with fewer dimensions gets axes of size 1 in front. The sizes of the result are the
    products of the sizes of `a` and `b`.

    Source: numpy.kron

    Examples
    --------
    >>> a = mx.nd.array([1, 10]).as_np_ndarray()
    >>> mx.np.kron(a, mx.nd.array([1, 2]).as_np_ndarray()).asnumpy().tolist()
    [1.0, 2.0, 10.0, 20.0]
    """
    check("kron", a=a, b=b)
    ndim = max(a.ndim, b.ndim)
    first, second = ((1,) * (ndim - x.ndim) + x.shape for x in (a, b))
    pairs = shaped(a, itertools.chain(*((size, 1) for size in first))) * shaped(
        b, itertools.chain(*((1, size) for size in second))
    )
    return shaped(pairs, (i * j for i, j in zip(first, second)))


def cross(
    a: ndarray,
    b: ndarray,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> ndarray:
    """Returns the cross products of vectors with two or three elements.

    Parameters
    ----------
    a, b : ndarray
        Arrays of vectors. Their other axes are broadcast. A missing third element is 0.
    axisa, axisb : int
        The axes of the vectors.
    axisc : int
        The axis of the vectors of the result. If all vectors have two elements, the result has the
        third element of the products only, without this axis.
    axis : int, optional
        Replaces `axisa`, `axisb` and `axisc`.

    Raises
    ------
    ValueError
        If the vectors do not have two or three elements.

    Source: numpy.cross

    Examples
    --------
    >>> a, b = (mx.nd.array(x).as_np_ndarray() for x in ([1, 0, 0], [0, 1, 0]))
    >>> mx.np.cross(a, b).asnumpy().tolist()
    [0.0, 0.0, 1.0]
    """
    check("cross", a=a, b=b)
    if axis is not None:
        axisa = axisb = axisc = axis
    sides = []
    for x, place, name in ((a, axisa, "axisa"), (b, axisb, "axisb")):
        place = axis_of(place, x.ndim, name)
        if x.shape[place] not in (2, 3):
            raise MXNetValueError(f"cross: vectors must have 2 or 3 elements, not {x.shape[place]}")
        x = transposed(x, [*(i for i in range(x.ndim) if i != place), place])
        sides.append([part(x, x.ndim - 1, i, i + 1) for i in range(x.shape[-1])])
    (a0, a1, *a2), (b0, b1, *b2) = sides
    third = a0 * b1 - a1 * b0
    if not a2 and not b2:
        return shaped(third, third.shape[:-1])
    # A missing third element has no products, because 0 * inf would be NaN.
    first = _difference([a1 * y for y in b2], [x * b1 for x in a2])
    second = _difference([x * b0 for x in a2], [a0 * y for y in b2])
    result = joined([first, second, third], third.ndim - 1)
    place = axis_of(axisc, result.ndim, "axisc")
    order = [*range(result.ndim - 1)]
    order.insert(place, result.ndim - 1)
    return transposed(result, order)


def _difference(more, less):
    """Subtracts two lists of at most one array. One of the lists has an array."""
    if not less:
        return more[0]
    return more[0] - less[0] if more else -less[0]
