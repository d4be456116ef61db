"""The functions of ``mx.sym``: one for each op, which creates a node."""

from __future__ import annotations

import warnings
from types import MethodType
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._internal.hints import near_option
from ..attribute import AttrScope
from ..base import MXNetError
from ..name import NameManager
from ..ndarray._signatures import signature
from ._graph import HIDDEN, INPUTS_EACH, entries_of, hidden_key, make

if TYPE_CHECKING:
    import inspect
    from collections.abc import Sequence
    from typing import Any

    from .._core import Op
    from ..symbol import Symbol


# Docstring parts for functions of arrays, and their replacements for functions of symbols.
_OUT = "out : Symbol or list of them, optional\n    Arrays the results are written into.\n"
_NODE = (
    "name : str, optional\n    The name of the node.\n"
    "attr : dict of str, optional\n    Its attributes.\n"
)
_EXAMPLES = "Examples\n--------\n"
_SIMPLE = (bool, int, float, str, type(None))


def _is_simple(value):
    return type(value) in _SIMPLE or (
        type(value) in (tuple, list) and all(type(item) in _SIMPLE for item in value)
    )


def texts_of(call: Any, params: dict[str, Any]) -> dict[str, str]:
    """Converts parameters to text. The text is ``str(value)`` if it can be parsed back, and the
    op's own format otherwise."""
    return {
        key: str(value) if _is_simple(value) else call.text(key) for key, value in params.items()
    }


def single(symbol: Symbol, what: str) -> Any:
    """Returns the only entry of a symbol that is used as an input."""
    if len(entries_of(symbol)) != 1:
        raise MXNetError(
            f"{what} has {len(entries_of(symbol))} outputs "
            f"({', '.join(symbol.list_outputs()[:4])}, ...), but an input must be a single "
            "output"
        )
    return entries_of(symbol)[0]


def symbol_type(numpy: bool) -> Any:
    """Returns the class of symbols of ``mx.sym.np``, or of ``mx.sym``."""
    if numpy:
        from .numpy import NumPySymbol

        return NumPySymbol
    from .symbol import Symbol

    return Symbol


def is_numpy(op: str, symbols: Sequence[Symbol], numpy: bool = False) -> bool:
    """True if the symbols are of ``mx.sym.np``. Raises TypeError if their kinds differ, or if they
    are of ``mx.sym`` but the function is of ``mx.sym.np`` (`numpy`)."""
    kinds = [symbol.numpy for symbol in symbols]
    if not any(kinds) and not (numpy and kinds):
        return numpy
    if all(kinds):
        return True
    raise TypeError(
        f"{op}: argument {kinds.index(False)} is a symbol of mx.sym, but "
        f"{'the function is' if numpy else 'others are'} of mx.sym.np; convert it with "
        "as_np_ndarray(), or the others with as_nd_ndarray()"
    )


def attributes(attr: dict[str, str] | None, extra: dict[str, str] | None = None) -> dict[str, str]:
    """Returns the attributes of the active AttrScope and of `attr`, under MXNet's keys."""
    found = AttrScope.current().get(attr)
    if extra:
        found = {**found, **extra}
    return {hidden_key(key): value for key, value in found.items()} if found else {}


class Function:
    """An op as a function of symbols: inputs come first, then parameters.

    ``name`` and ``attr`` set the name and attributes of the node.
    """

    __slots__ = ("__name__", "_op", "_hint", "_inputs", "_marks", "_params", "_variadic", "_numpy")

    def __init__(self, op: Op, name: str) -> None:
        self._op = op
        self._numpy = _core.row_of(op.__name__)[1]
        self.__name__ = name
        self._hint = name.lower()
        self._inputs = None

    def _resolve(self):
        info = self._op.describe()
        self._params = [param["name"] for param in info["params"]]
        self._variadic = bool(info["inputs"]) and info["inputs"][-1]["variadic"]
        self._inputs = [entry["name"] for entry in info["inputs"]]
        # Parameters use_<name> that are set if the array is given
        self._marks = {
            param["name"].removeprefix("use_"): param["name"]
            for param in info["params"]
            if param["constraint"] == "given"
        }

    @property
    def __doc__(self) -> str:
        text = self._op.__doc__.replace("NDArray", "Symbol").replace(_OUT, _NODE)
        return text.replace(_EXAMPLES, _EXAMPLES + "As a function of arrays:\n\n")

    @property
    def __signature__(self) -> inspect.Signature:
        return signature(self._op, symbol=True)

    def __repr__(self) -> str:
        return f"<mxnet symbol function {self.__name__}>"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds like a plain function, so that tools such as `help` treat it as one."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name, (self._op.__name__, self.__name__)

    def __call__(
        self,
        *args: Any,
        name: str | None = None,
        attr: dict[str, str] | None = None,
        out: Any = None,
        **kwargs: Any,
    ) -> Symbol:
        from .symbol import Symbol

        if self._inputs is None:
            self._resolve()
        op = self._op.__name__
        arrays, given, params, extra, places, symbols = None, {}, {}, {}, [], []
        if self._variadic:
            arrays = []
            for arg in args:
                for item in arg if isinstance(arg, (list, tuple)) else (arg,):
                    if not isinstance(item, Symbol):
                        raise TypeError(
                            f"{op}: positional arguments must be Symbols, got {type(item).__name__}"
                        )
                    arrays.append(single(item, f"{op}: argument {len(arrays)}"))
                    symbols.append(item)
        else:
            names = self._inputs + self._params
            if len(args) > len(names):
                raise TypeError(f"{op} takes at most {len(names)} arguments, got {len(args)}")
            for key, value in zip(names, args):
                if key in kwargs:
                    raise TypeError(f"{op}: {key} is given twice")
                kwargs[key] = value
            places = [key for key, _ in zip(self._inputs, args)]
        for key, value in kwargs.items():
            if isinstance(value, Symbol):
                given[key] = single(value, f"{op}: {key}")
                symbols.append(value)
            elif key in self._params:
                params[key] = value
            elif key in self._inputs:
                if self._variadic and isinstance(value, (list, tuple)):
                    arrays.extend([single(item, f"{op}: {key}") for item in value])
                    symbols.extend(value)
                elif value is not None:
                    raise TypeError(f"{op}: {key} must be a Symbol, got {type(value).__name__}")
            elif key in HIDDEN or (key.startswith("__") and key.endswith("__")):
                extra[key] = str(value)
            # In MXNet, ops without parameters accept any keyword, and programs rely on that.
            elif not self._params:
                warnings.warn(
                    f"{op} has no parameters; {key!r} is ignored, as in MXNet", stacklevel=2
                )
            else:
                known = [*self._inputs, *self._params]
                raise MXNetError(
                    f"{op} has no parameter {key!r}{near_option(key, known)}; it takes "
                    f"{', '.join(known) or 'none'}, name, attr"
                )
        attrs = attributes(attr, extra)
        for key in [key for key in attrs if key in self._params]:
            params[key] = attrs.pop(key)
        for key in attrs:
            if not (key.startswith("__") and key.endswith("__")):
                raise MXNetError(
                    f"{op} has no parameter {key!r}; write your own attribute as __{key}__"
                )
        if not any(mark in params for mark in self._marks.values()):
            params.update({mark: True for key, mark in self._marks.items() if key in given})
        numpy = is_numpy(op, symbols, self._numpy)
        call = _core.OpCall(op, params, numpy)
        used = call.input_names(call.num_inputs(len(given))) if places else ()
        # The op's parameters can disable optional inputs. If a positional argument was matched to a
        # disabled input, match the positional arguments to the enabled inputs, in order.
        if len(places) <= len(used) and any(key in given and key not in used for key in places):
            entries = [given.pop(key, None) for key in places]
            for key, entry in zip(used, entries):
                if entry is not None and given.setdefault(key, entry) is not entry:
                    raise TypeError(f"{op}: {key} is given twice")
        if self._variadic and "num_args" in self._params and "num_args" not in params:
            params["num_args"] = (len(arrays) + len(given)) // INPUTS_EACH.get(op, 1)
        name = NameManager.current().get(name, self._hint)
        node = make(call, {**texts_of(call, params), **attrs}, name, arrays, given)
        return symbol_type(numpy)([(node, i) for i in range(node.num_outputs)])


def _by_name(op, name):
    return Function(_core.get_op(op), name)


def node_of(
    op: str,
    hint: str,
    inputs: Sequence[Symbol],
    params: dict[str, Any] | None = None,
    name: str | None = None,
    attr: dict[str, str] | None = None,
) -> Symbol:
    """Calls an op on symbols, for the operators of `Symbol`. `hint` is the prefix of a generated
    node name."""
    numpy = is_numpy(op, inputs)
    call = _core.OpCall(op, params or {}, numpy)
    name = NameManager.current().get(name, hint)
    entries = [single(symbol, op) for symbol in inputs]
    node = make(call, {**texts_of(call, params or {}), **attributes(attr)}, name, entries, {})
    return symbol_type(numpy)([(node, i) for i in range(node.num_outputs)])


def is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.generic))


def texts_of_number(op: str, value: Any) -> dict[str, str]:
    """Returns the parameters of an op that takes a number. MXNet reads numbers only, no True or
    False. `is_int` matters for arrays of bool, which become integers or floats."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item()
    real = isinstance(value, float)
    params = {"scalar": str(value if real else int(value))}
    return {**params, "is_int": "False"} if real and _core.row_of(op)[1] else params
