"""Random shapes, arrays and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import io, ndarray as nd
from ._comparison import assign_each
from ._environment import default_context, default_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._core import Context, NDArray
    from .._internal.types import DType, Shape


__all__ = [
    "DummyIter",
    "create_sparse_array",
    "create_sparse_array_zd",
    "rand_ndarray",
    "rand_shape_2d",
    "rand_shape_3d",
    "rand_shape_nd",
    "rand_sparse_ndarray",
    "random_arrays",
    "random_sample",
    "random_uniform_arrays",
]


def random_arrays(*shapes: Shape) -> Any:
    """Returns standard normal NumPy arrays: a list, or the array itself for one shape."""
    arrays = [
        np.asarray(np.random.standard_normal(shape), dtype=default_dtype()) for shape in shapes
    ]
    return arrays[0] if len(arrays) == 1 else arrays


def random_uniform_arrays(*shapes: Shape, **kwargs: Any) -> list[np.ndarray[Any, Any]]:
    """Returns a list of NumPy arrays with these shapes, uniform in ``[low, high)``.

    low, high, dtype: keywords; the defaults are 0, 1 and `default_dtype()`. Raises TypeError for
    any other keyword.
    """
    low, high = kwargs.pop("low", 0.0), kwargs.pop("high", 1.0)
    dtype = kwargs.pop("dtype", default_dtype())
    if kwargs:
        raise TypeError(f"random_uniform_arrays: unexpected arguments {', '.join(kwargs)}")
    return [np.asarray(np.random.uniform(low, high, shape)).astype(dtype) for shape in shapes]


def random_sample(population: Sequence[Any], k: int) -> Any:
    """Samples `k` elements of a list or an array without replacement, in random order."""
    if not 0 <= k <= len(population):
        raise ValueError(f"random_sample: cannot sample {k} of {len(population)} elements")
    shuffled: Any = population[:]
    if isinstance(shuffled, np.ndarray):
        shuffled = shuffled.copy()
    np.random.shuffle(shuffled)
    return shuffled[:k]


def rand_ndarray(
    shape: Shape,
    stype: str = "default",
    density: float | None = None,
    dtype: DType | None = None,
    modifier_func: Callable[[Any], Any] | None = None,
    shuffle_csr_indices: bool = False,
    distribution: str | None = None,
    ctx: Context | None = None,
) -> NDArray:
    """Returns a random array, uniform in [-1, 1) and drawn by numpy.random.

    It is an array of ``mx.nd``, even in np mode. If `stype` is not "default", it is an array of
    `rand_sparse_ndarray`.
    """
    if stype != "default":
        return rand_sparse_ndarray(
            shape, stype, density, dtype, distribution, modifier_func=modifier_func, ctx=ctx
        )[0]
    return nd.array(
        np.random.uniform(-1, 1, shape),
        ctx=ctx or default_context(),
        dtype=dtype or default_dtype(),
    )


def _places(rows, columns, density, distribution):
    """Returns a mask of the stored elements of a random csr matrix."""
    if distribution == "uniform":
        return np.random.uniform(size=(rows, columns)) < density
    places, left, count = np.zeros((rows, columns), bool), int(rows * columns * density), 1
    for row in range(rows):  # each row has twice as many elements as the previous one
        taken = min(count, columns, left)
        places[row, :taken] = True
        left, count = left - taken, count * 2
    return places


def rand_sparse_ndarray(
    shape: Shape,
    stype: str,
    density: float | None = None,
    dtype: DType | None = None,
    distribution: str | None = None,
    data_init: float | None = None,
    rsp_indices: Any = None,
    modifier_func: Callable[[Any], Any] | None = None,
    shuffle_csr_indices: bool = False,
    ctx: Context | None = None,
) -> tuple[Any, tuple[Any, ...]]:
    """Returns a random sparse array and its parts.

    The parts are (values, indices) of a row_sparse array, or (indptr, indices, data) of a csr
    matrix.

    Parameters
    ----------
    shape, stype, dtype, ctx
        Properties of the array.
    density : float, optional
        The fraction of rows or elements to store; random by default.
    distribution : {'uniform', 'powerlaw'}
        The distribution of a csr matrix's elements; with 'powerlaw' each row has twice as many as
        the previous one.
    data_init : float, optional
        The value of all elements; by default they are uniform in [0, 1).
    rsp_indices : sequence of int, optional
        The rows to store.
    modifier_func : function, optional
        Maps each value to its replacement.
    shuffle_csr_indices : bool
        Ignored: the columns of each row ascend.
    """
    ctx, dtype = ctx or default_context(), dtype or default_dtype()
    density = np.random.uniform() if density is None else density
    distribution = distribution or "uniform"
    if distribution not in ("uniform", "powerlaw") or (stype, distribution) == (
        "row_sparse",
        "powerlaw",
    ):
        raise ValueError(f"rand_sparse_ndarray: unknown distribution {distribution!r} of {stype}")
    if stype == "row_sparse":
        rows = np.arange(shape[0])[np.random.uniform(size=shape[0]) < density]
        if rsp_indices is not None:
            rows = np.sort(np.asarray(rsp_indices, "int64"))
        parts = _random_values((len(rows), *shape[1:]), data_init, modifier_func, dtype), rows
        return nd.sparse.row_sparse_array(parts, shape=shape, ctx=ctx, dtype=dtype), parts
    if stype != "csr":
        raise ValueError(f"rand_sparse_ndarray: unknown stype {stype!r}")
    places = _places(*shape, density, distribution)
    values = _random_values(int(places.sum()), data_init, modifier_func, dtype)
    parts = (values, np.nonzero(places))
    array = nd.sparse.csr_matrix(parts, shape=shape, ctx=ctx, dtype=dtype)
    return array, (array.indptr, array.indices, array.data)


def _random_values(shape, data_init, modifier_func, dtype):
    values = np.random.uniform(size=shape) if data_init is None else np.full(shape, data_init)
    return (values if modifier_func is None else assign_each(values, modifier_func)).astype(dtype)


def create_sparse_array(
    shape: Shape,
    stype: str,
    data_init: float | None = None,
    rsp_indices: Any = None,
    dtype: DType | None = None,
    modifier_func: Callable[[Any], Any] | None = None,
    density: float = 0.5,
    shuffle_csr_indices: bool = False,
) -> Any:
    """Returns the array of `rand_sparse_ndarray`."""
    return rand_sparse_ndarray(
        shape,
        stype,
        density,
        dtype,
        data_init=data_init,
        rsp_indices=rsp_indices,
        modifier_func=modifier_func,
    )[0]


def create_sparse_array_zd(
    shape: Shape,
    stype: str,
    density: float,
    data_init: float | None = None,
    rsp_indices: Any = None,
    dtype: DType | None = None,
    modifier_func: Callable[[Any], Any] | None = None,
    shuffle_csr_indices: bool = False,
) -> Any:
    """Like `create_sparse_array`, but a row_sparse array without `rsp_indices` has no rows."""
    if stype == "row_sparse":
        density = 0.0
    return create_sparse_array(
        shape, stype, data_init, rsp_indices, dtype, modifier_func, density, shuffle_csr_indices
    )


def rand_shape_nd(num_dim: int, dim: int = 10, allow_zero_size: bool = False) -> Shape:
    """Returns a shape of `num_dim` random dimensions up to `dim`."""
    least = 0 if allow_zero_size else 1
    return tuple(int(size) for size in np.random.randint(least, dim + 1, num_dim))


def rand_shape_2d(dim0: int = 10, dim1: int = 10, allow_zero_size: bool = False) -> tuple[int, int]:
    """Returns a random shape of two dimensions up to `dim0` and `dim1`."""
    least = 0 if allow_zero_size else 1
    return int(np.random.randint(least, dim0 + 1)), int(np.random.randint(least, dim1 + 1))


def rand_shape_3d(
    dim0: int = 10, dim1: int = 10, dim2: int = 10, allow_zero_size: bool = False
) -> tuple[int, int, int]:
    """Returns a random shape of three dimensions up to `dim0`, `dim1` and `dim2`."""
    last = int(np.random.randint(0 if allow_zero_size else 1, dim2 + 1))
    return (*rand_shape_2d(dim0, dim1, allow_zero_size), last)


class DummyIter(io.DataIter):
    """Repeats the first batch of another iterator forever, to measure a loop without its data.

    Parameters
    ----------
    real_iter : DataIter
        The source of the batch.
    """

    def __init__(self, real_iter: io.DataIter) -> None:
        super().__init__(real_iter.batch_size)
        self.real_iter: io.DataIter = real_iter
        self.provide_data: list[io.DataDesc] = real_iter.provide_data
        self.provide_label: list[io.DataDesc] = real_iter.provide_label
        self.the_batch: io.DataBatch = next(real_iter)

    def next(self) -> io.DataBatch:
        """Returns the batch."""
        return self.the_batch
