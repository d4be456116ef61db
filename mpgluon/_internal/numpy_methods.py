"""Methods of mx.np.ndarray in which it differs from NDArray.

The methods call functions of ``mpgluon.numpy``, which is imported when the first one is called.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

from .. import _core
from .._core import NDArray, NotSupportedError, ndarray
from . import ranks
from .hints import absent, present

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

    from .._core import Context
    from .types import DType

# Methods of NDArray that arrays of mx.np lack, as in MXNet, and their replacements.
HIDDEN = {
    **{
        name: f"np.{name}(x)"
        for name in (
            "abs arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh degrees diag exp "
            "expm1 fix floor log log10 log1p log2 ones_like radians reciprocal rint sign sin sinh "
            "sqrt square tan tanh trunc zeros_like"
        ).split()
    },
    **{
        name: f"npx.{name}(x)"
        for name in "erf erfinv gamma gammaln log_softmax relu sigmoid softmax topk".split()
    },
    "argmax_channel": "x.argmax(axis=1)",
    "asscalar": "x.item()",
    "broadcast_axes": "np.broadcast_to(x, shape)",
    "broadcast_like": "np.broadcast_to(x, y.shape)",
    "byteswap": "x.asnumpy().byteswap()",
    "data": "x itself, or x.detach()",
    "depth_to_space": "x.as_nd_ndarray().depth_to_space(block_size)",
    "diagonal": "np.diagonal(x, offset, axis1, axis2)",
    "expand_dims": "np.expand_dims(x, axis)",
    "fill": "x[:] = value",
    "flat": "x.reshape(-1)",
    "flip": "np.flip(x, axis)",
    "imag": "np.zeros_like(x); arrays hold real numbers",
    "itemsize": "numpy.dtype(x.dtype).itemsize",
    "nanprod": "np.where(np.isnan(x), 1, x).prod()",
    "nansum": "np.where(np.isnan(x), 0, x).sum()",
    "nbytes": "x.size * numpy.dtype(x.dtype).itemsize",
    "norm": "np.linalg.norm(x)",
    "one_hot": "npx.one_hot(x, depth)",
    "pad": "np.pad(x, pad_width)",
    "partition": "np.partition(x, kth)",
    "pick": "npx.pick(x, index)",
    "ptp": "np.ptp(x, axis)",
    "rcbrt": "1 / np.cbrt(x)",
    "real": "x itself",
    "reshape_like": "x.reshape(y.shape)",
    "rsqrt": "1 / np.sqrt(x)",
    "shape_array": "x.shape",
    "size_array": "x.size",
    "slice": "x[begin:end]",
    "slice_axis": "x[:, begin:end]",
    "slice_like": "x[:n, :m]",
    "softmin": "npx.softmax(-x)",
    "softsign": "x / (1 + np.abs(x))",
    "space_to_depth": "x.as_nd_ndarray().space_to_depth(block_size)",
    "split": "np.split(x, sections, axis)",
    "split_v2": "np.split(x, sections, axis)",
    "stack": "np.stack(arrays)",
    "searchsorted": "np.searchsorted(x, values)",
    "tile": "np.tile(x, reps)",
    "tobytes": "x.asnumpy().tobytes()",
    "trace": "np.trace(x)",
    "tostype": "x.as_nd_ndarray().tostype(stype)",
    # Names of PyTorch for which NDArray suggests methods that are missing here.
    "bmm": "np.matmul(x, y)",
    "gather": "np.take_along_axis(x, index, axis)",
    "masked_fill": "np.where(mask, value, x)",
    "masked_fill_": "x[mask] = value",
    "masked_select": "x[mask]",
    "mm": "np.dot(x, y)",
    "scatter": "x[rows, columns] = values",
    "unsqueeze": "np.expand_dims(x, axis)",
    "unsqueeze_": "x = np.expand_dims(x, axis)",
}


def _np() -> ModuleType:
    return importlib.import_module("mpgluon.numpy")


def _only(function, **arguments):
    """Raises NotSupportedError, a NotImplementedError, for an argument of NumPy whose value is not
    among the supported ones."""
    for name, (value, *supported) in arguments.items():
        if value not in supported:
            allowed = " or ".join(map(repr, supported))
            raise NotSupportedError(f"{function}: {name} must be {allowed}, not {value!r}")


# --- Values and text ------------------------------------------------------------------------------
def _has_values(self):
    return not self._traced and self.context.rank in (None, ranks.own())


def ___repr__(self) -> str:
    """Returns NumPy's text. It has a dtype unless it is float32 or bool, and a device unless it is
    a CPU."""
    if not _has_values(self):
        return NDArray.__repr__(self)
    text = repr(self.asnumpy())
    name = _core.dtype_name(self.dtype)
    text = text if name == "bool" else re.sub(r",\s*dtype=\w+\)$", ")", text)
    if name not in ("float32", "bool"):
        text = f"{text[:-1]}, dtype={name})"
    ctx = self.context
    return text if ctx.device_type == "cpu" else f"{text[:-1]}, ctx={ctx})"


def ___str__(self) -> str:
    """Returns NumPy's text, followed by the device unless it is a CPU."""
    if not _has_values(self):
        return NDArray.__repr__(self)
    text, ctx = str(self.asnumpy()), self.context
    return text if ctx.device_type == "cpu" else f"{text} @{ctx}"


def ___format__(self, spec: str) -> str:
    """Formats an array without dimensions as a number. Other arrays accept no format."""
    return format(self.item(), spec) if spec and not self.ndim else object.__format__(self, spec)


def ___dir__(self) -> list[str]:
    return present(self, object.__dir__(self))


def ___reduce__(self) -> tuple[Any, ...]:
    return _restored, (self.asnumpy(), self.context, _core.dtype_name(self.dtype))


def _restored(values: Any, ctx: Context, dtype: str) -> ndarray:
    """Returns a pickled array."""
    return _core.array(values, ctx, dtype).as_np_ndarray()


# --- Copies, dtypes and devices -------------------------------------------------------------------
def _copy(self, order: str = "C") -> ndarray:
    """Returns a copy on the same device."""
    _only("copy", order=(order, "C"))
    return NDArray.copy(self)


def _astype(
    self,
    dtype: DType,
    order: str = "K",
    casting: str = "unsafe",
    subok: bool = True,
    copy: bool = True,
) -> ndarray:
    """Returns the array cast to a dtype, or the array itself if it has the dtype and `copy` is
    False. None means float32."""
    _only("astype", order=(order, "K", "C"), casting=(casting, "unsafe"), subok=(bool(subok), True))
    return NDArray.astype(self, "float32" if dtype is None else dtype, copy)


def _device(self) -> Context:
    """The device the array is on, a Context."""
    return self.context


def _to_device(self, device: Context) -> ndarray:
    """Returns the array on the device, as `as_in_ctx` does."""
    return self.as_in_ctx(device)


# --- Shapes ---------------------------------------------------------------------------------------
def _sizes(function, shape, keywords):
    """Returns the shape from the arguments of reshape."""
    _only(function, order=(keywords.pop("order", "C"), "C"))
    for name in ("shape", "newshape"):
        if name in keywords and not shape:
            shape = (keywords.pop(name),)
    if keywords:
        raise TypeError(f"{function}() got an unexpected keyword argument '{min(keywords)}'")
    if not shape:
        raise TypeError(f"{function}() needs a shape")
    return shape[0] if len(shape) == 1 else shape


def _reshape(self, *shape: int | Sequence[int], **keywords: Any) -> ndarray:
    """Returns a copy in another shape of the same size. One size may be -1, which is computed from
    the others. `reshape_view` doesn't copy."""
    sizes = _sizes("reshape", shape, keywords)
    return _np().reshape(self, sizes)


def _flatten(self, order: str = "C") -> ndarray:
    """Returns a copy with one dimension."""
    _only("flatten", order=(order, "C"))
    return _np().reshape(self, -1)


def _ravel(self, order: str = "C") -> ndarray:
    """Returns a copy with one dimension."""
    _only("ravel", order=(order, "C"))
    return _np().reshape(self, -1)


def _transpose(self, *axes: Any) -> ndarray:
    """Permutes the axes: ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``. Reverses their order if
    no axes are given."""
    if len(axes) == 1 and (axes[0] is None or not isinstance(axes[0], int)):
        axes = axes[0]
    return _np().transpose(self, axes or None)


def _swapaxes(self, axis1: int, axis2: int) -> ndarray:
    """Swaps two axes."""
    return _np().swapaxes(self, axis1, axis2)


def _squeeze(self, axis: int | tuple[int, ...] | None = None) -> ndarray:
    """Removes all axes of length 1, or only those in `axis`."""
    return _np().squeeze(self, axis)


def _broadcast_to(self, shape: Sequence[int]) -> ndarray:
    """Broadcasts the array to a shape."""
    return _np().broadcast_to(self, shape)


# --- Elements -------------------------------------------------------------------------------------
def _repeat(self, repeats: Any, axis: int | None = None) -> ndarray:
    """Repeats each element; the result is flat if `axis` is None."""
    return _np().repeat(self, repeats, axis)


def _take(self, indices: ndarray, axis: int | None = None, mode: str = "raise") -> ndarray:
    """Returns the elements or slices at the indices."""
    return _np().take(self, indices, axis=axis, mode=mode)


def _sort(self, axis: int | None = -1, kind: str | None = None, order: Any = None) -> ndarray:
    """Returns a sorted copy, as in MXNet; NumPy's method sorts in place."""
    return _np().sort(self, axis=axis, kind=kind, order=order)


def _argsort(self, axis: int | None = -1, kind: str | None = None, order: Any = None) -> ndarray:
    """Returns the indices, int64, that sort the array."""
    return _np().argsort(self, axis=axis, kind=kind, order=order)


def _nonzero(self) -> tuple[ndarray, ...]:
    """Returns the indices of the elements that are not 0, one array per dimension."""
    return _np().nonzero(self)


def _clip(self, min: Any = None, max: Any = None, out: ndarray | None = None) -> ndarray:
    """Limits the elements to ``[min, max]``."""
    return _np().clip(self, min, max, out=out)


def _round(self, decimals: int = 0, out: ndarray | None = None) -> ndarray:
    """Rounds to a number of decimals."""
    return _np().around(self, decimals, out=out)


def ___round__(self, n: int = 0) -> ndarray:
    return _np().around(self, n or 0)


def ___floor__(self) -> ndarray:
    return _np().floor(self)


def ___ceil__(self) -> ndarray:
    return _np().ceil(self)


def ___trunc__(self) -> ndarray:
    return _np().trunc(self)


def _dot(self, b: ndarray, out: ndarray | None = None) -> ndarray:
    """Returns NumPy's dot product with another array."""
    if isinstance(b, ndarray):
        return _np().dot(self, b, out=out)
    # A parameter without a shape in a block's forward infers it from this array.
    infer = getattr(b, "as_argument_of", None)
    return infer(_np().dot, "dot", self, b) if infer else _np().dot(self, b, out=out)


# --- Reductions -----------------------------------------------------------------------------------
def _all(self, axis: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
    """True if all elements along the axes are true."""
    return _np().all(self, axis=axis, out=out, keepdims=keepdims)


def _any(self, axis: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
    """True if an element along the axes is true."""
    return _np().any(self, axis=axis, out=out, keepdims=keepdims)


def _max(self, axis: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
    """Returns the maximum along the axes."""
    return _np().max(self, axis=axis, out=out, keepdims=keepdims)


def _min(self, axis: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
    """Returns the minimum along the axes."""
    return _np().min(self, axis=axis, out=out, keepdims=keepdims)


def _argmax(
    self, axis: int | None = None, out: ndarray | None = None, *, keepdims: bool = False
) -> ndarray:
    """Returns the index, int64, of the maximum along an axis."""
    return _np().argmax(self, axis=axis, out=out, keepdims=keepdims)


def _argmin(
    self, axis: int | None = None, out: ndarray | None = None, *, keepdims: bool = False
) -> ndarray:
    """Returns the index, int64, of the minimum along an axis."""
    return _np().argmin(self, axis=axis, out=out, keepdims=keepdims)


def _sum(
    self,
    axis: Any = None,
    dtype: DType | None = None,
    out: ndarray | None = None,
    keepdims: bool = False,
) -> ndarray:
    """Returns the sum along the axes."""
    return _np().sum(self, axis=axis, dtype=dtype, out=out, keepdims=keepdims)


def _prod(
    self,
    axis: Any = None,
    dtype: DType | None = None,
    out: ndarray | None = None,
    keepdims: bool = False,
) -> ndarray:
    """Returns the product along the axes."""
    return _np().prod(self, axis=axis, dtype=dtype, out=out, keepdims=keepdims)


def _mean(
    self,
    axis: Any = None,
    dtype: DType | None = None,
    out: ndarray | None = None,
    keepdims: bool = False,
) -> ndarray:
    """Returns the mean along the axes; float32 for integers."""
    return _np().mean(self, axis=axis, dtype=dtype, out=out, keepdims=keepdims)


def _std(
    self,
    axis: Any = None,
    dtype: DType | None = None,
    out: ndarray | None = None,
    ddof: int = 0,
    keepdims: bool = False,
) -> ndarray:
    """Returns the standard deviation along the axes."""
    return _np().std(self, axis=axis, dtype=dtype, out=out, ddof=ddof, keepdims=keepdims)


def _var(
    self,
    axis: Any = None,
    dtype: DType | None = None,
    out: ndarray | None = None,
    ddof: int = 0,
    keepdims: bool = False,
) -> ndarray:
    """Returns the variance along the axes."""
    return _np().var(self, axis=axis, dtype=dtype, out=out, ddof=ddof, keepdims=keepdims)


def _cumsum(
    self, axis: int | None = None, dtype: DType | None = None, out: ndarray | None = None
) -> ndarray:
    """Returns the cumulative sums along an axis, of the flat array if `axis` is None."""
    return _np().cumsum(self, axis=axis, dtype=dtype, out=out)


def add_methods() -> None:
    """Adds the methods to ndarray. Must be called once, after the methods of NDArray were added."""
    absent(ndarray, HIDDEN)
    for function in (
        ___ceil__,
        ___dir__,
        ___floor__,
        ___format__,
        ___reduce__,
        ___repr__,
        ___round__,
        ___str__,
        ___trunc__,
        _all,
        _any,
        _argmax,
        _argmin,
        _argsort,
        _astype,
        _broadcast_to,
        _clip,
        _copy,
        _cumsum,
        _dot,
        _flatten,
        _max,
        _mean,
        _min,
        _nonzero,
        _prod,
        _ravel,
        _repeat,
        _reshape,
        _round,
        _sort,
        _squeeze,
        _std,
        _sum,
        _swapaxes,
        _take,
        _to_device,
        _transpose,
        _var,
    ):
        name = function.__name__[1:]
        function.__name__ = name
        function.__qualname__ = f"ndarray.{name}"
        setattr(ndarray, name, function)
    ndarray.device = property(_device)
    ndarray.reshape_view = NDArray.reshape
