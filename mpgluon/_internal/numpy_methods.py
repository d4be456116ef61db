"""Methods of mx.np.ndarray in which it differs from NDArray.

Those that call functions of ``mpgluon.numpy`` are in ``numpy/_methods.py``. The package is imported
when the first one is called.
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
    "searchsorted": "np.searchsorted(x, values)",
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


def only(function: str, **arguments: tuple[Any, ...]) -> None:
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


_duplicate = NDArray.copy


# --- Copies, dtypes and devices -------------------------------------------------------------------
def _copy(self, order: str = "C") -> ndarray:
    """Returns a copy on the same device."""
    if order != "C":
        only("copy", order=(order, "C"))
    return _duplicate(self)


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
    only("astype", order=(order, "K", "C"), casting=(casting, "unsafe"), subok=(bool(subok), True))
    return NDArray.astype(self, "float32" if dtype is None else dtype, copy)


def _device(self) -> Context:
    """The device the array is on, a Context."""
    return self.context


def _to_device(self, device: Context) -> ndarray:
    """Returns the array on the device, as `as_in_ctx` does."""
    return self.as_in_ctx(device)


# --- Functions of mx.np ---------------------------------------------------------------------------
# Methods that `mpgluon.numpy` replaces when it is imported
LATER = (
    "__ceil__ __floor__ __round__ __trunc__ all any argmax argmin argsort broadcast_to clip cumsum "
    "dot flatten max mean min nonzero prod ravel repeat reshape round sort squeeze std sum "
    "swapaxes take transpose var"
).split()


def _later(name):
    def method(self, *args, **kwargs):
        importlib.import_module("mpgluon.numpy")
        return getattr(self, name)(*args, **kwargs)

    method.__name__ = name
    return method


def add_methods() -> None:
    """Adds the methods to ndarray. Must be called once, after the methods of NDArray were added."""
    absent(ndarray, HIDDEN)
    for name in LATER:
        setattr(ndarray, name, _later(name))
    for function in (
        ___dir__,
        ___format__,
        ___reduce__,
        ___repr__,
        ___str__,
        _astype,
        _copy,
        _to_device,
    ):
        name = function.__name__[1:]
        function.__name__ = name
        function.__qualname__ = f"ndarray.{name}"
        setattr(ndarray, name, function)
    ndarray.device = property(_device)
    ndarray.reshape_view = NDArray.reshape
