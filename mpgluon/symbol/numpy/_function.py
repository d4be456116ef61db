"""The functions of ``mx.sym.np`` and ``mx.sym.npx``: functions of ``mx.np`` and ``mx.npx`` that
create nodes."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as onp

from ... import _core
from ...attribute import AttrScope
from ...name import NameManager
from ...numpy import _fallback, _text
from .._functions import Function, attributes, is_numpy, single, symbol_type, texts_of_number
from .._graph import make
from ..symbol import Symbol
from ._arity import BY_DIMENSIONS
from ._composition import compose, find, from_file, is_composition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import MethodType
    from typing import Any


_BITWISE = {f"_npi_bitwise_{name}_scalar" for name in ("and", "or", "xor")}


class NumberAsInput(TypeError):
    """Raised if the node of an op would have a number as an input."""


def node_of_op(
    op: str, inputs: Sequence[Symbol | None], params: dict[str, Any], name: str | None
) -> Symbol:
    """Creates the node of an op of ``mx.np``; None is an omitted input. Functions of ``mx.np`` call
    it for symbols. Parameters are texts, except a number `scalar`."""
    for value in inputs:
        if value is not None and not isinstance(value, Symbol):
            raise NumberAsInput(
                f"{op}: expected symbols, got {type(value).__name__}; use mx.sym.np"
            )
    is_numpy(op, [symbol for symbol in inputs if symbol is not None], numpy=True)
    described = _core.get_op(op).describe()["inputs"]
    variadic = bool(described) and described[-1]["variadic"]
    if not isinstance(params.get("scalar", ""), str):
        return with_number(op, inputs[0], params["scalar"], name)
    call = _core.OpCall(op, {**params, "num_args": len(inputs)} if variadic else params)
    entries = [None if symbol is None else single(symbol, op) for symbol in inputs]
    given = {}
    if not variadic:
        names = call.input_names(len(entries))
        given = {key: entry for key, entry in zip(names, entries) if entry is not None}
        entries = None
    short = op.removeprefix("_npi_").removeprefix("_npx_").removeprefix("_np_")
    name = NameManager.current().get(name, short)
    node = make(call, {**params, **attributes(None)}, name, entries, given)
    return _symbol(node)


def with_number(op: str, symbol: Any, number: Any, name: str | None = None) -> Symbol:
    """Creates the node of an op that takes a number."""
    if isinstance(number, (onp.generic, onp.ndarray)):
        number = number.item()
    if op in _BITWISE and isinstance(number, float):
        raise TypeError(f"{op}: expected an integer or a bool, got {number}")
    if op in _BITWISE and isinstance(number, bool):  # bools remain bools
        operand = compose("np.full_like", (symbol, int(number)), {})
        return node_of_op(op.removesuffix("_scalar"), [symbol, operand], {}, name)
    params = texts_of_number(op, number)
    if is_composition(op, params):
        name = NameManager.current().get(name, op.removeprefix("_npi_"))
        entry = single(symbol, op)
        return _symbol(from_file(op, name, {**params, **attributes(None)}, [entry]))
    return node_of_op(op, [symbol], params, name)


def _symbol(node):
    return symbol_type(True)([(node, i) for i in range(node.num_outputs)])


def _has_symbols(values):
    return any(
        isinstance(value, Symbol) or (isinstance(value, (list, tuple)) and _has_symbols(value))
        for value in values
    )


class SymbolFunction:
    """A function of ``mx.np`` as a function of symbols, which creates a node.

    ``name`` and ``attr`` set the name and attributes of the node.
    """

    __slots__ = ("__name__", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self.__name__ = path.rpartition(".")[2]

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return find(self._path).__doc__ or ""

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(find(self._path))

    def __repr__(self) -> str:
        return f"<mxnet symbol function {self._path}>"

    def __get__(self, instance: object, owner: type | None = None) -> SymbolFunction | MethodType:
        from types import MethodType

        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        return SymbolFunction, (self._path,)

    def __call__(self, *args: Any, **kwargs: Any) -> Symbol:
        function = find(self._path)
        if isinstance(function, _core.Op):
            return Function(function, self.__name__)(*args, **kwargs)
        has_op = type(function) is _OP_FUNCTION and self._path not in BY_DIMENSIONS
        if has_op and _has_symbols((*args, *kwargs.values())):
            rest = dict(kwargs)
            name, attr = rest.pop("name", None), rest.pop("attr", None)
            if isinstance(rest.get("out"), Symbol):
                del rest["out"]  # a symbol has nothing to write into
            try:
                with AttrScope(**(attr or {})), _Once(name) if name else nullcontext():
                    return function(*args, **rest)
            # AttributeError: the function reads a property of arrays, such as the number of axes
            except (NumberAsInput, AttributeError):
                pass
        return compose(self._path, args, kwargs)


class _Once(NameManager):
    """Gives a name to the next node."""

    def __init__(self, name):
        super().__init__()
        self._name = name
        self._outer = NameManager.current()

    def get(self, name, hint):
        chosen, self._name = name or self._name, None
        return self._outer.get(chosen, hint)


# Functions that need values, change an array in place or set the seed.
_WITHOUT_NODE = {*_fallback.__all__, *_text.__all__, "lstsq", "seed", "shuffle"}
# The type of functions of mx.np that are ops.
_OP_FUNCTION = _core.NumPyFunction
_core.set_symbol_node(Symbol, node_of_op)


def fill(names: dict[str, Any], space: Any, path: str) -> list[str]:
    """Adds the functions of a module of ``mx.np`` to a namespace of symbols. Returns the names."""
    public = getattr(space, "__all__", None) or [key for key in vars(space) if key[0] != "_"]
    found = []
    for name in public:
        if name in _WITHOUT_NODE:
            continue
        value = getattr(space, name)
        if callable(value) and not isinstance(value, type) and name not in names:
            names[name] = SymbolFunction(f"{path}.{name}")
            found.append(name)
        elif not callable(value) and isinstance(value, (float, type(None))):
            names[name] = value
            found.append(name)
    return found
