"""The symbols of ``mx.sym.np``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as onp

from ...base import NotImplementedForSymbol
from .._methods import METHODS, add_operators
from ..symbol import Symbol
from ._function import SymbolFunction, node_of_op, with_number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from ..._internal.types import DType

# Codes of npx.reshape: keep an axis, drop an axis of size 1, keep all remaining axes.
_KEEP, _DROP, _REST = -2, -3, -4


class _Symbol(Symbol):
    """A value of ``mx.np`` in a graph: its functions follow NumPy.

    `Symbol.as_np_ndarray` and the functions of ``mx.sym.np`` create it.

    Examples
    --------
    >>> x = mx.sym.var("x").as_np_ndarray()
    >>> (x + mx.sym.sum(x)).infer_shape(x=(2, 3))[1]
    [(2, 3)]
    """

    __slots__ = ()
    numpy = True

    def as_nd_ndarray(self) -> Symbol:
        """Returns the value as a symbol of ``mx.sym``, for its functions."""
        return Symbol(self._entries)

    def _with_number(self, op: str, hint: str, number: Any) -> Symbol:
        return with_number(op, self, number)

    def as_np_ndarray(self) -> _Symbol:
        """Returns the symbol itself."""
        return self

    def __getitem__(self, index: Any) -> _Symbol:
        """Returns a part of the value, for an integer, a slice or a tuple of them.

        If the symbol has several outputs, `index` chooses one of them, or several by slice.

        Examples
        --------
        >>> x = mx.sym.var("x").as_np_ndarray()
        >>> x[0, 1:].infer_shape(x=(2, 3))[1]
        [(2,)]
        """
        if len(self._entries) != 1 or isinstance(index, str):
            return super().__getitem__(index)  # type: ignore[return-value]
        return _part(self, index if isinstance(index, tuple) else (index,))

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise NotImplementedForSymbol(self.__setitem__, "assignment to elements", key)

    def __neg__(self) -> _Symbol:
        return with_number("_npi_multiply_scalar", self, -1)

    def __abs__(self) -> _Symbol:
        return _call("abs", self)

    def __invert__(self) -> _Symbol:
        return _call("bitwise_not", self)

    def __matmul__(self, other: Any) -> _Symbol:
        return _call("matmul", self, other)

    def __floordiv__(self, other: Any) -> _Symbol:
        return _call("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> _Symbol:
        return _call("floor_divide", other, self)

    def __divmod__(self, other: Any) -> tuple[_Symbol, _Symbol]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[_Symbol, _Symbol]:
        return other // self, other % self

    def __and__(self, other: Any) -> _Symbol:
        return _call("bitwise_and", self, other)

    def __or__(self, other: Any) -> _Symbol:
        return _call("bitwise_or", self, other)

    def __xor__(self, other: Any) -> _Symbol:
        return _call("bitwise_xor", self, other)

    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    __hash__ = Symbol.__hash__

    @property
    def T(self) -> _Symbol:
        """The value with its axes in reverse order."""
        return self.transpose()

    def transpose(self, *axes: Any) -> _Symbol:
        """Calls ``np.transpose``; the axes may be one tuple or separate integers."""
        if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
            axes = axes[0]
        return _call("transpose", self, axes or None)

    def reshape(self, *args: Any, **kwargs: Any) -> _Symbol:
        """Calls ``np.reshape``; the shape may be given as separate integers."""
        shape = kwargs.pop("shape", kwargs.pop("newshape", args))
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = shape[0]
        return _call("reshape", self, tuple(shape), **kwargs)

    def flatten(self, order: str = "C") -> _Symbol:  # type: ignore[override]
        """Returns the elements as a vector."""
        return self.reshape(-1, order=order)

    def astype(  # type: ignore[override]
        self,
        dtype: DType,
        order: str = "K",
        casting: str = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> _Symbol:
        """Returns the value with another dtype."""
        for key, value, only in (("casting", casting, "unsafe"), ("subok", subok, True)):
            if value != only:
                raise ValueError(f"astype: {key} must be {only!r}, got {value!r}")
        if order not in ("C", "K", "A", "F") or order == "F":
            raise ValueError(f"astype: order must be 'C', 'K' or 'A', got {order!r}")
        from .._functions import node_of

        return node_of("Cast", "cast", [self], {"dtype": onp.dtype(dtype).name})

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> _Symbol:
        """Calls ``np.clip``."""
        return _call("clip", self, min, max)

    def dot(self, b: _Symbol, out: Any = None) -> _Symbol:
        """Calls ``np.dot``."""
        return _call("dot", self, b)

    def round(self, decimals: int = 0, out: Any = None, **kwargs: Any) -> _Symbol:
        """Calls ``np.round``."""
        return _call("around", self, decimals, **kwargs)

    def squeeze(  # type: ignore[override]
        self, axis: int | Sequence[int] | None = None
    ) -> _Symbol:
        """Calls ``np.squeeze``."""
        return _call("squeeze", self, axis)

    def take(self, indices: Any, axis: int | None = None, mode: str = "raise") -> _Symbol:
        """Calls ``np.take``."""
        return _call("take", self, indices, axis=axis, mode=mode)


def _part(symbol, keys):
    """Calls slice, and removes the axes of integer keys."""
    if not keys:
        return symbol
    begin, end, step, shape = [], [], [], []
    for key in keys:
        if isinstance(key, slice):
            if key.step == 0:
                raise ValueError("slice step cannot be zero")
            begin.append(key.start)
            end.append(key.stop)
            step.append(key.step)
            shape.append(_KEEP)
        elif isinstance(key, (int, onp.integer)) and not isinstance(key, bool):
            begin.append(int(key))
            end.append(None if key == -1 else int(key) + 1)
            step.append(1)
            shape.append(_DROP)
        else:
            raise IndexError(
                "a symbol of mx.sym.np can be indexed by an integer, a slice, or a tuple of them, "
                f"got {key!r}"
            )
    part = node_of_op(
        "_npi_slice",
        [symbol],
        {"begin": str(tuple(begin)), "end": str(tuple(end)), "step": str(tuple(step))},
        None,
    )
    if _DROP not in shape:
        return part
    return node_of_op("_npx_reshape", [part], {"newshape": str((*shape, _REST))}, None)


def _call(name, *args, **kwargs):
    return SymbolFunction(f"np.{name}")(*args, **kwargs)


def _operator(name, reflected=None):
    """Returns the ops and node names of an operator; see `_methods.OPERATORS`."""
    scalar = f"_npi_{name}_scalar"
    other = reflected and f"_npi_{reflected}_scalar"
    names = (f"_npi_{name}", name, scalar, f"{name}_scalar", other)
    return (*names, reflected and f"{reflected}_scalar")


add_operators(
    _Symbol,
    {
        "add": _operator("add", reflected="add"),
        "sub": _operator("subtract", reflected="rsubtract"),
        "mul": _operator("multiply", reflected="multiply"),
        "truediv": _operator("true_divide", reflected="rtrue_divide"),
        "mod": _operator("mod", reflected="rmod"),
        "pow": _operator("power", reflected="rpower"),
        "eq": _operator("equal"),
        "ne": _operator("not_equal"),
        "gt": _operator("greater"),
        "ge": _operator("greater_equal"),
        "lt": _operator("less"),
        "le": _operator("less_equal"),
    },
)

# Methods that call the functions of the same name.
_METHODS = "all any argmax argmin argsort cumsum max mean min prod repeat sort std sum swapaxes var"


def _add_methods():
    def make(name):
        def method(self, *args, **kwargs):
            return _call(name, self, *args, **kwargs)

        method.__name__ = name
        method.__qualname__ = f"_Symbol.{name}"
        method.__doc__ = f"Calls ``np.{name}``."
        return method

    def hidden(name):
        def method(self):
            raise AttributeError(f"mxnet.symbol.numpy._Symbol object has no attribute {name}")

        return property(method, doc="Not a method of NumPy's arrays.")

    for name in _METHODS.split():
        setattr(_Symbol, name, make(name))
    for name in (*METHODS, "broadcast_axes", "diag", "expand_dims", "split_v2"):
        if name not in vars(_Symbol):
            setattr(_Symbol, name, hidden(name))


_add_methods()
