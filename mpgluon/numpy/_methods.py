"""Methods of mx.np.ndarray that are functions of mx.np.

Those in the table are ops, so that a call costs the same as a call of the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import ndarray
from .._internal.numpy_methods import LATER, only
from . import _functions as functions
from ._statistics import std, var
from ._table import make
from ._values import nonzero

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .._internal.types import DType

METHODS = """
sum(self, axis?2=None, dtype:^=None, out=None, keepdims=False) -> sum | sum_special
The sum along the axes.

prod(self, axis?2=None, dtype:^=None, out=None, keepdims=False) -> prod | prod_special
The product along the axes.

mean(self, axis?2=None, dtype:^=None, out=None, keepdims=False) -> mean | mean_special
The mean along the axes; float32 for integers.

max(self, axis?2=None, out=None, keepdims=False) -> max | max_special
The maximum along the axes.

min(self, axis?2=None, out=None, keepdims=False) -> min | min_special
The minimum along the axes.

argmax(self, axis?2=None, out=None, *, keepdims=False) -> argmax | argmax_special
The index, int64, of the maximum along an axis.

argmin(self, axis?2=None, out=None, *, keepdims=False) -> argmin | argmin_special
The index, int64, of the minimum along an axis.

cumsum(self, axis=None, dtype=None, out=None) -> _np_cumsum
The cumulative sums along an axis, of the flat array if `axis` is None.

swapaxes(self, axis1:dim1, axis2:dim2) -> SwapAxis
Swaps two axes.

squeeze(self, axis=None) -> squeeze
Removes all axes of length 1, or only those in `axis`.

broadcast_to(self, shape) -> broadcast_to
Broadcasts the array to a shape.

repeat(self, repeats, axis=None) -> repeat
Repeats each element; the result is flat if `axis` is None.

sort(self, axis=-1, kind:~=None, order:_=None) -> sort
A sorted copy, as in MXNet; NumPy's method sorts in place.

argsort(self, axis=-1, kind:~=None, order:_=None) -> argsort(dtype='int64')
The indices, int64, that sort the array.
"""


def _special(name):
    """Returns the function that runs the calls of a reduction that its op cannot."""
    function = getattr(functions, name)

    def method(self, axis=None, *positional, **options):
        names = [*_MADE[name].__signature__.parameters][2:]
        return function(self, axis, **dict(zip(names, positional)), **options)

    return method


_MADE = make(
    "mpgluon.numpy",
    METHODS,
    {
        f"{name}_special": _special(name)
        for name in ("sum", "prod", "mean", "max", "min", "argmax", "argmin")
    },
)


def _shape_of(keywords):
    """Returns the shape from the keywords of reshape."""
    only("reshape", order=(keywords.pop("order", "C"), "C"))
    sizes = keywords.pop("newshape", None)
    sizes = keywords.pop("shape", sizes)
    if keywords:
        raise TypeError(f"reshape() got an unexpected keyword argument '{min(keywords)}'")
    return () if sizes is None else (sizes,)


def _reshape(self, *shape: int | Sequence[int], **keywords: Any) -> ndarray:
    """Returns a copy in another shape of the same size. One size may be -1, which is computed from
    the others. `reshape_view` doesn't copy."""
    if keywords:
        shape += _shape_of(keywords)
    if not shape:
        raise TypeError("reshape() needs a shape")
    return functions.reshape(self, shape[0] if len(shape) == 1 else shape)


def _flatten(self, order: str = "C") -> ndarray:
    """Returns a copy with one dimension."""
    only("flatten", order=(order, "C"))
    return functions.reshape(self, -1)


def _ravel(self, order: str = "C") -> ndarray:
    """Returns a copy with one dimension."""
    only("ravel", order=(order, "C"))
    return functions.reshape(self, -1)


def _transpose(self, *axes: Any) -> ndarray:
    """Permutes the axes: ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``. Reverses their order if
    no axes are given."""
    if len(axes) == 1 and not isinstance(axes[0], int):
        axes = axes[0]
    return functions.transpose(self, axes) if axes else functions.transpose(self)


def _take(self, indices: ndarray, axis: int | None = None, mode: str = "raise") -> ndarray:
    """Returns the elements or slices at the indices."""
    return functions.take(self, indices, axis=axis, mode=mode)


def _nonzero(self) -> tuple[ndarray, ...]:
    """Returns the indices of the elements that are not 0, one array per dimension."""
    return nonzero(self)


def _clip(self, min: Any = None, max: Any = None, out: ndarray | None = None) -> ndarray:
    """Limits the elements to ``[min, max]``."""
    return functions.clip(self, min, max, out=out)


def _round(self, decimals: int = 0, out: ndarray | None = None) -> ndarray:
    """Rounds to a number of decimals."""
    return functions.around(self, decimals, out=out)


def ___round__(self, n: int = 0) -> ndarray:
    return functions.around(self, n or 0)


def ___floor__(self) -> ndarray:
    return functions.floor(self)


def ___ceil__(self) -> ndarray:
    return functions.ceil(self)


def ___trunc__(self) -> ndarray:
    return functions.trunc(self)


def _dot(self, b: ndarray, out: ndarray | None = None) -> ndarray:
    """Returns NumPy's dot product with another array."""
    if isinstance(b, ndarray):
        return functions.dot(self, b, out=out)
    # A parameter without a shape in a block's forward infers it from this array.
    infer = getattr(b, "as_argument_of", None)
    return infer(functions.dot, "dot", self, b) if infer else functions.dot(self, b, out=out)


def _all(self, axis: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
    """True if all elements along the axes are true."""
    return functions.all(self, axis=axis, out=out, keepdims=keepdims)


def _any(self, axis: Any = None, out: ndarray | None = None, keepdims: bool = False) -> ndarray:
    """True if an element along the axes is true."""
    return functions.any(self, axis=axis, out=out, keepdims=keepdims)


def _std(
    self,
    axis: Any = None,
    dtype: DType | None = None,
    out: ndarray | None = None,
    ddof: int = 0,
    keepdims: bool = False,
) -> ndarray:
    """Returns the standard deviation along the axes."""
    return std(self, axis=axis, dtype=dtype, out=out, ddof=ddof, keepdims=keepdims)


def _var(
    self,
    axis: Any = None,
    dtype: DType | None = None,
    out: ndarray | None = None,
    ddof: int = 0,
    keepdims: bool = False,
) -> ndarray:
    """Returns the variance along the axes."""
    return var(self, axis=axis, dtype=dtype, out=out, ddof=ddof, keepdims=keepdims)


for _name in LATER:
    _method = _MADE.get(_name) or globals()[f"_{_name}"]
    if _name not in _MADE:
        _method.__name__ = _name
        _method.__qualname__ = f"ndarray.{_name}"
    setattr(ndarray, _name, _method)
