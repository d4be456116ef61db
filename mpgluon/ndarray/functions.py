"""Functions of ``mx.nd`` that are not single ops: array creation, and operators on arrays or
numbers."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import NDArray, array, from_dlpack, to_dlpack_for_read, to_dlpack_for_write, waitall
from .._internal import domain
from ..base import MXNetError, MXNetTypeError, is_floating

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._core import Context
    from .._internal.types import ArrayLike, ArrayOperator, DType, ShapeLike


__all__ = [
    "Custom",
    "UpSampling",
    "add",
    "arange",
    "array",
    "cast_storage",
    "concatenate",
    "divide",
    "empty",
    "equal",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "greater",
    "greater_equal",
    "histogram",
    "hypot",
    "lesser",
    "lesser_equal",
    "linspace",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "modulo",
    "moveaxis",
    "multiply",
    "not_equal",
    "onehot_encode",
    "ones",
    "power",
    "split_v2",
    "subtract",
    "to_dlpack_for_read",
    "to_dlpack_for_write",
    "true_divide",
    "waitall",
    "zeros",
]

_OPS = _core.ops()


def _op(name):
    op = _OPS.get(name)
    if op is None:
        raise _core.NotSupportedError(f"this build has no op {name}")
    return op


def bilinear_upsampling(scale: int, num_filter: int) -> dict[str, Any]:
    """Returns the parameters of the Deconvolution that implements bilinear UpSampling."""
    scale, num_filter = int(scale), int(num_filter)  # MXNet also accepts numbers as text
    if num_filter < 1:
        raise ValueError(
            "UpSampling: sample_type='bilinear' needs num_filter, the number of channels"
        )
    size = 2 * scale - scale % 2
    return {
        "kernel": (size, size),
        "stride": (scale, scale),
        "pad": (scale // 2, scale // 2),
        "num_filter": num_filter,
        "num_group": num_filter,
        "no_bias": True,
    }


def UpSampling(
    *data: NDArray,
    scale: int,
    sample_type: str,
    num_filter: int = 0,
    multi_input_mode: str = "concat",
    num_args: int | None = None,
    workspace: int = 512,
    weight: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Upsamples height and width by an integer factor.

    Parameters
    ----------
    *data : NDArray
        With 'nearest' any number of arrays, which are scaled to the new size of the first. With
        'bilinear' the data and the weight.
    scale : int
        The scale factor of height and width.
    sample_type : {'nearest', 'bilinear'}
        'nearest' repeats values. 'bilinear' runs a Deconvolution per channel with `weight`, of
        shape (channels, 1, size, size) with size ``2 * scale - scale % 2``, which
        `mx.init.Bilinear` fills.
    num_filter : int
        The number of channels; only for 'bilinear'.
    multi_input_mode : {'concat', 'sum'}
        Several inputs are concatenated along the channels, or summed.
    num_args : int, optional
        The number of arrays.
    workspace : int
        Accepted for compatibility with MXNet; ignored.
    weight : float, optional
        The kernel of bilinear upsampling.

    Examples
    --------
    >>> nd.UpSampling(nd.ones((1, 1, 2, 3)), scale=2, sample_type="nearest").shape
    (1, 1, 4, 6)
    """
    if sample_type != "bilinear":
        kwargs.update({} if num_args is None else {"num_args": num_args})
        return _op("UpSampling")(
            *data, scale=scale, sample_type=sample_type, multi_input_mode=multi_input_mode, **kwargs
        )
    arrays = [*data, *[array for array in (kwargs.pop("data", None), weight) if array is not None]]
    if len(arrays) != 2:
        raise TypeError(
            "UpSampling: sample_type='bilinear' needs the data and the weight, got "
            f"{len(arrays)} arrays"
        )
    return _op("Deconvolution")(*arrays, **bilinear_upsampling(scale, num_filter), **kwargs)


def _filled(op, shape, ctx, dtype, out, **value):
    if isinstance(ctx, int) and isinstance(shape, int):
        name = op.lstrip("_")
        raise MXNetTypeError(
            f"{name}: the shape must be one argument, such as nd.{name}(({shape}, {ctx}))"
        )
    if out is not None:
        value["out"] = out
    result = _op(op)(shape=shape, ctx=ctx, dtype="float32" if dtype is None else dtype, **value)
    if ctx is None or out is not None or _core.Context(ctx).device_type != "cpu_pinned":
        return result
    return result.as_in_context(ctx)


def zeros(
    shape: ShapeLike,
    ctx: Context | None = None,
    dtype: DType | None = None,
    stype: str | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Returns an array of zeros.

    ``shape`` is an integer or tuple. The defaults are float32 and the current context. With
    ``stype`` 'row_sparse' or 'csr' the array is sparse.

    Examples
    --------
    >>> nd.zeros((2,)).asnumpy()
    array([0., 0.], dtype=float32)
    """
    if stype not in (None, "default"):
        from . import sparse

        return sparse.zeros(stype, shape, ctx, dtype, **kwargs)
    return _filled("_zeros", shape, ctx, dtype, out, **kwargs)


def ones(
    shape: ShapeLike,
    ctx: Context | None = None,
    dtype: DType | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:
    """Returns an array of ones.

    Examples
    --------
    >>> nd.ones((2,), dtype="int32").asnumpy()
    array([1, 1], dtype=int32)
    """
    return _filled("_ones", shape, ctx, dtype, out, **kwargs)


def full(
    shape: ShapeLike,
    val: float,
    ctx: Context | None = None,
    dtype: DType = "float32",
    out: NDArray | None = None,
) -> NDArray:
    """Returns an array filled with the number ``val``.

    Examples
    --------
    >>> nd.full((2,), 7).asnumpy()
    array([7., 7.], dtype=float32)
    """
    if type(val) is int and abs(val) > 1 << 53:
        _check_integer("full", val, dtype if out is None else out.dtype)
    return _filled("_full", shape, ctx, dtype, out, value=val)


def _check_integer(name, value, dtype):
    """Raises an error for an integer that is out of range for an integer dtype, or that would be
    rounded, because ops receive numbers as doubles."""
    if is_floating(dtype) or np.dtype(dtype).kind not in "iu":
        return
    kind = np.dtype(dtype)
    limits = np.iinfo(kind)
    if not limits.min <= value <= limits.max or int(float(value)) != value:
        raise OverflowError(
            f"{name}: {value} cannot be represented exactly for dtype {kind.name}, because ops "
            "hold numbers as doubles; use nd.array with dtype='int64' for integers up to "
            f"{(1 << 63) - 1}"
        )


def empty(
    shape: ShapeLike,
    ctx: Context | None = None,
    dtype: DType | None = None,
    stype: str | None = None,
) -> NDArray:
    """Returns an uninitialized array. With ``stype`` 'row_sparse' or 'csr', returns a sparse array
    of zeros.

    Examples
    --------
    >>> nd.empty((2, 3)).shape
    (2, 3)
    """
    if stype not in (None, "default"):
        return zeros(shape, ctx, dtype, stype)
    return _core.empty(shape, ctx, "float32" if dtype is None else dtype)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool | None = None,
    ctx: Context | None = None,
    dtype: DType = "float32",
) -> NDArray:
    """Returns start, start + step, ... up to but excluding stop, each ``repeat`` times.
    ``arange(n)`` starts at 0.

    Examples
    --------
    >>> nd.arange(3).asnumpy()
    array([0., 1., 2.], dtype=float32)
    >>> nd.arange(1, 2, 0.5, repeat=2).asnumpy()
    array([1. , 1. , 1.5, 1.5], dtype=float32)
    """
    if stop is None and not infer_range:
        start, stop = 0, start
    return _op("_arange")(
        start=start,
        stop=stop,
        step=step,
        repeat=repeat,
        infer_range=bool(infer_range),
        ctx=ctx,
        dtype=dtype,
    )


def linspace(
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    ctx: Context | None = None,
    dtype: DType = "float32",
) -> NDArray:
    """Returns ``num`` evenly spaced numbers from start to stop; ``endpoint=False`` excludes stop.

    Examples
    --------
    >>> nd.linspace(0, 1, 3).asnumpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return _op("_linspace")(
        start=start, stop=stop, num=num, endpoint=endpoint, ctx=ctx, dtype=dtype
    )


def eye(
    N: int,
    M: int = 0,
    k: int = 0,
    ctx: Context | None = None,
    dtype: DType | None = None,
    **kwargs: Any,
) -> NDArray:
    """Returns an N x M matrix (M=0 means N) of zeros with ones on the k-th diagonal.

    Examples
    --------
    >>> nd.eye(2, k=1).asnumpy()
    array([[0., 1.],
           [0., 0.]], dtype=float32)
    """
    dtype = "float32" if dtype is None else dtype
    return _op("_eye")(N=N, M=M, k=k, ctx=ctx, dtype=dtype, **kwargs)


def from_numpy(
    ndarray: np.ndarray[Any, Any], zero_copy: bool = True, array_cls: type[NDArray] = NDArray
) -> NDArray:
    """Converts a NumPy array, keeping its dtype. With ``zero_copy``, the result shares its memory.

    Shared memory must be C-contiguous. The NumPy array becomes read-only while its memory is
    shared; it may already be read-only, for instance because of an earlier call. Raises ValueError
    if the array is not contiguous, or if its memory is read-only (a file mapped for reading, an
    immutable object).

    Examples
    --------
    >>> values = np.arange(3)
    >>> nd.from_numpy(values).dtype == values.dtype, values.flags["WRITEABLE"]
    (True, False)
    """
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(
            f"from_numpy: expected a NumPy array, got {type(ndarray).__name__}; nd.array "
            "accepts other types"
        )
    if not zero_copy:
        return array(ndarray, dtype=ndarray.dtype)
    if not ndarray.flags["C_CONTIGUOUS"]:
        raise ValueError(
            "from_numpy: only C-contiguous arrays can be shared; pass zero_copy=False or "
            "numpy.ascontiguousarray(a)"
        )
    owner = ndarray
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    # To check that the memory can be written, make the arrays writable for a moment. A view can be
    # made writable only if its owner is.
    arrays = [ndarray] if owner is ndarray else [ndarray, owner]
    before = [a.flags["WRITEABLE"] for a in arrays]
    try:
        try:
            for a in reversed(arrays):
                a.flags["WRITEABLE"] = True  # NumPy raises if the memory itself is read-only
        except ValueError:
            raise ValueError(
                "from_numpy: the array's memory is read-only and cannot be shared; pass "
                "zero_copy=False"
            ) from None
        shared = from_dlpack(ndarray)
        before[0] = False
        return shared
    finally:
        for a, writable in zip(arrays, before):
            a.flags["WRITEABLE"] = writable


def _elementwise(
    name: str,
    words: str,
    number: int,
    of_numbers: Callable[[Any, Any], Any],
    result: str,
    lhs: str = "[3, 4]",
) -> Any:
    """Returns the function of two arrays or numbers for the operator with index `number`.

    `result` is the docstring example's output for `lhs` and 4.
    """
    binary = _core._binary

    def function(lhs: ArrayLike, rhs: ArrayLike) -> Any:
        if isinstance(lhs, NDArray) or isinstance(rhs, NDArray):
            return binary(number, lhs, rhs)
        if isinstance(lhs, (int, float, np.generic)) and isinstance(rhs, (int, float, np.generic)):
            return of_numbers(lhs, rhs)
        return binary(number, lhs, rhs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{words}, element by element with broadcasting: NDArrays, NumPy arrays or numbers. Of two "
        "numbers: a number.\n\nExamples\n--------\n"
        f">>> nd.{name}(nd.array({lhs}), 4).asnumpy()\narray([{result}], dtype=float32)"
    )
    return function


add: ArrayOperator = _elementwise("add", "lhs + rhs", 0, lambda a, b: a + b, "7., 8.")
subtract: ArrayOperator = _elementwise("subtract", "lhs - rhs", 1, lambda a, b: a - b, "-1.,  0.")
multiply: ArrayOperator = _elementwise("multiply", "lhs * rhs", 2, lambda a, b: a * b, "12., 16.")
divide: ArrayOperator = _elementwise("divide", "lhs / rhs", 3, lambda a, b: a / b, "0.75, 1.  ")
modulo: ArrayOperator = _elementwise("modulo", "lhs % rhs", 4, lambda a, b: a % b, "3., 0.")
power: ArrayOperator = _elementwise("power", "base ** exp", 5, pow, " 81., 256.")
equal: ArrayOperator = _elementwise(
    "equal", "lhs == rhs", 6, lambda a, b: 1 if a == b else 0, "0., 1."
)
not_equal: ArrayOperator = _elementwise(
    "not_equal", "lhs != rhs", 7, lambda a, b: 1 if a != b else 0, "1., 0."
)
greater: ArrayOperator = _elementwise(
    "greater", "lhs > rhs", 8, lambda a, b: 1 if a > b else 0, "0., 1.", "[3, 5]"
)
greater_equal: ArrayOperator = _elementwise(
    "greater_equal", "lhs >= rhs", 9, lambda a, b: 1 if a >= b else 0, "0., 1.", "[3, 4]"
)
lesser: ArrayOperator = _elementwise(
    "lesser", "lhs < rhs", 10, lambda a, b: 1 if a < b else 0, "1., 0."
)
lesser_equal: ArrayOperator = _elementwise(
    "lesser_equal", "lhs <= rhs", 11, lambda a, b: 1 if a <= b else 0, "1., 0.", "[4, 5]"
)
maximum: ArrayOperator = _elementwise(
    "maximum", "The larger of both", 12, lambda a, b: a if a > b else b, "4., 5.", "[3, 5]"
)
minimum: ArrayOperator = _elementwise(
    "minimum", "The smaller of both", 13, lambda a, b: a if a < b else b, "3., 4.", "[3, 5]"
)
logical_and: ArrayOperator = _elementwise(
    "logical_and",
    "1 where both are not 0",
    14,
    lambda a, b: 1 if a and b else 0,
    "0., 1.",
    "[0, 3]",
)
logical_or: ArrayOperator = _elementwise(
    "logical_or", "1 where one is not 0", 15, lambda a, b: 1 if a or b else 0, "1., 1.", "[0, 3]"
)
logical_xor: ArrayOperator = _elementwise(
    "logical_xor",
    "1 where exactly one is not 0",
    16,
    lambda a, b: 1 if bool(a) ^ bool(b) else 0,
    "1., 0.",
    "[0, 3]",
)
hypot: ArrayOperator = _elementwise(
    "hypot", "sqrt(lhs**2 + rhs**2)", 17, np.hypot, "5., 4.", "[3, 0]"
)
true_divide = divide


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Concatenates arrays along ``axis``. A single array is copied if ``always_copy``, and returned
    itself otherwise.

    Examples
    --------
    >>> nd.concatenate([nd.zeros((1, 2)), nd.ones((2, 2))]).shape
    (3, 2)
    """
    arrays = list(arrays)
    if not arrays:
        raise _core.MXNetAssertionError("concatenate: arrays must not be empty")
    if not always_copy and len(arrays) == 1:
        return arrays[0]
    return _op("Concat")(*arrays, dim=axis)


def cast_storage(data: NDArray, stype: str, out: NDArray | None = None) -> NDArray:
    """Converts an array to the storage type 'default', 'row_sparse' or 'csr'.

    Returns a dense array itself if `stype` is 'default'.

    Examples
    --------
    >>> nd.cast_storage(nd.ones((2, 2)), "csr").stype
    'csr'
    """
    from ._sparse.arrays import cast_storage

    result = cast_storage(data, stype)
    return result if out is None else result.copyto(out)


def moveaxis(
    tensor: NDArray, source: int | Sequence[int], destination: int | Sequence[int]
) -> NDArray:
    """Moves the axes ``source`` to the positions ``destination``. Both are integers, or sequences
    of integers.

    Examples
    --------
    >>> nd.moveaxis(nd.zeros((2, 3, 4)), 0, 2).shape
    (3, 4, 2)
    """
    sources = [source] if np.isscalar(source) else list(source)
    destinations = [destination] if np.isscalar(destination) else list(destination)
    if len(sources) != len(destinations):
        raise ValueError(
            f"moveaxis: source and destination must have the same length, got {len(sources)} "
            f"and {len(destinations)}"
        )
    ndim = tensor.ndim
    normal = []
    for axes in (sources, destinations):
        for axis in axes:
            if not -ndim <= axis < ndim:
                raise ValueError(f"moveaxis: axis {axis} is out of range for a {ndim}-d array")
        normal.append([axis % ndim for axis in axes])
        if len(set(normal[-1])) != len(normal[-1]):
            raise ValueError("moveaxis: axes must be unique")
    order = [axis for axis in builtins.range(ndim) if axis not in normal[0]]
    for place, axis in sorted(zip(normal[1], normal[0])):
        order.insert(place, axis)
    return _op("transpose")(tensor, axes=tuple(order))


def split_v2(
    ary: NDArray,
    indices_or_sections: int | Sequence[int],
    axis: int = 0,
    squeeze_axis: bool = False,
) -> NDArray | Any:
    """Splits the array along ``axis`` into equal sections, or before each of the given indices.

    Returns a list, or a single array.

    Examples
    --------
    >>> [part.shape for part in nd.split_v2(nd.zeros((5, 2)), (1, 3))]
    [(1, 2), (2, 2), (2, 2)]
    """
    if isinstance(indices_or_sections, (tuple, list, np.ndarray)):
        domain.axis(indices_or_sections=indices_or_sections)
        indices, sections = (0, *[int(i) for i in indices_or_sections]), 0
    else:
        domain.size(1, indices_or_sections=indices_or_sections)
        indices, sections = (), int(indices_or_sections)
    return _op("_split_v2")(
        ary, indices=indices, axis=axis, squeeze_axis=squeeze_axis, sections=sections
    )


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """Writes one-hot rows of the indices to ``out``, of shape (n, depth), and returns it.

    Examples
    --------
    >>> nd.onehot_encode(nd.array([1, 0]), nd.zeros((2, 3))).asnumpy()
    array([[0., 1., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    if len(out.shape) != 2:
        raise MXNetError(f"onehot_encode: out must have a shape (n, depth), got {out.shape}")
    return _op("one_hot")(indices, depth=out.shape[1], dtype=out.dtype, out=out)


def histogram(
    a: NDArray, bins: int | NDArray = 10, range: tuple[float, float] | None = None
) -> Sequence[NDArray]:
    """Returns counts and edges of a histogram.

    ``bins`` is the number of equal bins over ``range`` (by default, the range of the values), or an
    NDArray of edges. As in MXNet, the result is a tuple of float32 arrays if `bins` is a number and
    no range is given. Otherwise, it is a list of int64 counts and of edges with the dtype of `a`.
    Raises ValueError for any other `bins`.

    Examples
    --------
    >>> counts, edges = nd.histogram(nd.array([1, 2, 2, 4]), bins=3)
    >>> counts.asnumpy().tolist(), edges.asnumpy().tolist()
    ([1.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0])
    """
    if isinstance(bins, NDArray):
        edges = bins.asnumpy()
    elif isinstance(bins, (int, np.integer)):
        edges = int(bins)
    else:
        raise ValueError(
            f"histogram: bins must be an integer or an NDArray of edges, got {type(bins).__name__}"
        )
    counts, edges = np.histogram(a.asnumpy(), bins=edges, range=range)
    plain = range is None and not isinstance(bins, NDArray)
    found = (
        array(counts, ctx=a.context, dtype="float32" if plain else "int64"),
        array(edges, ctx=a.context, dtype="float32" if plain else a.dtype),
    )
    return found if plain else list(found)


def Custom(
    *data: NDArray, op_type: str | None = None, name: str | None = None, **kwargs: Any
) -> NDArray | Any:
    """Calls an op written in Python; see `mx.operator`.

    Parameters
    ----------
    *data, **kwargs
        Inputs by position or name; parameters of the op by name.
    op_type : str
        The registered name.
    name : str, optional
        Accepted as in every operator.

    Examples
    --------
    >>> @mx.operator.register("negate")
    ... class Negate(mx.operator.CustomOpProp):
    ...     def create_operator(self, ctx, shapes, dtypes):
    ...         return NegateOp()
    >>> class NegateOp(mx.operator.CustomOp):
    ...     def forward(self, is_train, req, in_data, out_data, aux):
    ...         self.assign(out_data[0], req[0], -in_data[0])
    >>> nd.Custom(nd.array([1, 2]), op_type="negate").asnumpy()
    array([-1., -2.], dtype=float32)
    """
    from ..operator import custom_array

    return custom_array(*data, op_type=op_type, name=name, **kwargs)
