"""Nodes of functions of ``mx.np`` that are written in Python.

A function is a composition of ops, which often depends on the shapes of its arrays. The node
holds the function and its arguments, and calls the function when the symbol is traced, on arrays
whose shapes are known. Inference traces the function on arrays without values.
"""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING

import numpy as onp

from ... import _core, autograd
from ..._internal.graph_breaks import PythonCall
from ...base import MXNetError
from ...context import Context
from ...name import NameManager
from .._functions import attributes, is_numpy, single, symbol_type
from .._graph import Node
from .._infer import UNKNOWN
from ..symbol import Symbol
from ._arity import BACKEND, BY_DIMENSIONS, DYNAMIC, FUNCTIONS, SEQUENCES, num_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..._core import NDArray
    from ..._internal.types import Desc


# Attributes of nodes in files: the function, and the arguments that contain inputs.
_FUNCTION, _INPUTS = "__function__", "__inputs__"
# Placeholders for unknown shapes while only dtypes are inferred.
_SHAPES = ((2, 2), (2,), (2, 2, 2), ())
# Ops that take a number -> functions, and the parameters that are the array and the number.
_WITH_NUMBER = {
    f"_npi_{name}_scalar": (f"np.{name}", ("x1", "x2"))
    for name in (
        "equal not_equal greater greater_equal less less_equal bitwise_and bitwise_or bitwise_xor "
        "add subtract multiply true_divide mod power maximum minimum"
    ).split()
}
_WITH_NUMBER.update(
    {
        f"_npi_r{name}_scalar": (f"np.{name}", ("x2", "x1"))
        for name in ("subtract", "true_divide", "mod", "power")
    }
)
_OPS_BY_DIMENSIONS = {BACKEND[path] for path in BY_DIMENSIONS}
_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


class Input:
    """An input of a node, in the place of an array among the arguments of a function."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"'${self.index}'"


def find(path: str) -> Callable[..., Any]:
    """Returns the function of ``mx.np`` or ``mx.npx`` with a name such as ``np.linalg.svd``."""
    from ... import numpy, numpy_extension

    space, *rest = path.split(".")
    found: Any = {"np": numpy, "npx": numpy_extension}.get(space)
    for name in rest:
        found = None if name.startswith("_") else getattr(found, name, None)
    if not callable(found) or not rest:
        raise MXNetError(f"unknown function {path!r}")
    return found


def _mapped(value, change):
    """Returns a value in which `change` replaces the inputs, also those in lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(item, change) for item in value])
    return change(value)


def _text(value):
    """Returns an argument as text, in MXNet's form."""
    if isinstance(value, (onp.generic, onp.ndarray)):
        value = value.tolist()
    if isinstance(value, (type, onp.dtype)):
        return _core.dtype_name(value)
    return str(value)


def _value(text):
    """Parses the text of an argument."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    device = re.fullmatch(r"(\w+)\((\d+)\)", text)
    if device and device[1] in Context.devstr2type:
        return Context(device[1], int(device[2]))
    return _NUMBERS.get(text, text)


class Composition(PythonCall):
    """The call of a function of ``mx.np``.

    Parameters
    ----------
    path : str
        The name of the function, such as ``np.std``.
    arguments : dict
        Its arguments by name, with `Input` in the place of arrays.
    count : int
        The number of inputs.
    """

    numpy = True

    def __init__(self, path: str, arguments: dict[str, Any], count: int) -> None:
        self.path = path
        self.name = BACKEND.get(path) or f"_npi_{path.rpartition('.')[2]}"
        self._function = find(path)
        self._parameters = inspect.signature(self._function).parameters
        self._arguments = arguments
        self._count = count
        self._num_outputs = num_outputs(path, arguments, count)
        self.splits = path in DYNAMIC
        # Files then contain the op.
        inputs = [value for value in arguments.values() if isinstance(value, Input)]
        self.is_op = path in BY_DIMENSIONS and len(inputs) == len(arguments) == 2
        self._inferred: dict[Any, Any] = {}

    def num_inputs(self, given: int) -> int:
        return self._count

    def input_names(self, count: int) -> tuple[str, ...]:
        return tuple([f"data{i}" for i in range(count)])

    def output_names(self, count: int) -> tuple[str, ...]:
        if self._num_outputs == 1:
            return ("output",)
        return tuple([f"output{i}" for i in range(self._num_outputs)])

    def states(self, count: int) -> tuple[bool, ...]:
        return (False,) * count

    def text(self, name: str) -> str:
        if self.is_op:
            return _core.OpCall(self.name, {}).text(name)
        return _text(self._arguments[name])

    def without(self, name: str) -> Composition:
        """Returns the call without an argument."""
        rest = {key: value for key, value in self._arguments.items() if key != name}
        return Composition(self.path, rest, self._count)

    def texts(self) -> dict[str, str]:
        """Returns the attributes of the node."""
        if self.is_op:
            return {}
        with_inputs = {}
        found = {_FUNCTION: self.path}
        for key, value in self._arguments.items():
            inputs: list[Any] = []
            _mapped(value, lambda item: inputs.append(item) if isinstance(item, Input) else None)
            if inputs:
                with_inputs[key] = value
            else:
                found[key] = _text(value)
        found[_INPUTS] = repr(with_inputs)
        return found

    # Inference

    def infer(self, inputs: Sequence[Desc], outputs: Sequence[Desc], train: bool) -> Any:
        key = (train, *inputs)
        if key not in self._inferred:
            self._inferred[key] = self._completed(inputs, train) or (
                list(inputs),
                self._infer(inputs, train),
            )
        completed, results = self._inferred[key]
        return list(completed), results

    def _completed(self, inputs, train):
        """Infers a product by a vector or a matrix whose shape has unknown sizes, such as a
        parameter's, with the op. Returns None for other calls."""
        shapes = [shape for shape, _ in inputs]
        if (
            not self.is_op
            or None in shapes
            or all(-1 not in shape for shape in shapes)
            or not shapes[0]
            or len(shapes[1]) not in (1, 2)
        ):
            return None
        return _core.OpCall(self.name, {}).infer(inputs, [UNKNOWN], train)

    def _infer(self, inputs, train):
        shapes = [shape for shape, _ in inputs]
        dtypes = [dtype for _, dtype in inputs]
        unknown = [UNKNOWN] * self._num_outputs
        if all(shape is not None and -1 not in shape for shape in shapes):
            if None not in dtypes:
                return self._traced(inputs, train)
            for dtype in ("float32", "int32"):
                try:
                    found = self._traced([(s, d or dtype) for s, d in inputs], train)
                    return [(shape, None) for shape, _ in found]
                except MemoryError:
                    raise
                except Exception:  # the function may reject a placeholder dtype
                    continue
        elif not any(shapes) and None not in dtypes:
            for shape in _SHAPES:
                try:
                    found = self._traced([(shape, dtype) for dtype in dtypes], train)
                    return [(None, dtype) for _, dtype in found]
                except MemoryError:
                    raise
                except Exception:  # the function may reject a placeholder shape
                    continue
        return unknown

    def _traced(self, inputs, train):
        """Returns the descriptions of the results for arrays of the given ones."""
        with autograd.pause(train_mode=train), _core.Trace() as trace:
            arrays = [trace.new_input(*desc, Context("cpu", 0), True) for desc in inputs]
            results = self._call(arrays, None)
            return [(array.shape, _core.dtype_name(array.dtype)) for array in results]

    # Running

    def run(self, inputs: Sequence[NDArray], device: Context | None = None) -> list[NDArray]:
        """Computes the outputs for arrays of the inputs."""
        return self._call([array.as_np_ndarray() for array in inputs], device)

    def _call(self, arrays, device):
        def value(item):
            return arrays[item.index] if isinstance(item, Input) else item

        args, kwargs = [], {}
        for name, parameter in self._parameters.items():
            if name in self._arguments:
                given = _mapped(self._arguments[name], value)
                if parameter.kind is parameter.VAR_POSITIONAL:
                    args += given
                elif parameter.kind is parameter.VAR_KEYWORD:
                    kwargs.update(given)
                elif parameter.kind is parameter.POSITIONAL_ONLY:
                    args.append(given)
                else:
                    kwargs[name] = given
            elif name == "ctx" and device is not None and not arrays:
                kwargs[name] = device
        # Arguments before *args are positional.
        if any(p.kind is p.VAR_POSITIONAL for p in self._parameters.values()):
            first = [
                name
                for name, p in self._parameters.items()
                if p.kind is p.POSITIONAL_OR_KEYWORD and name in kwargs
            ]
            args = [*[kwargs.pop(name) for name in first], *args]
        results = self._function(*args, **kwargs)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        if len(results) != self._num_outputs:
            raise MXNetError(
                f"{self.path}: got {len(results)} results, expected {self._num_outputs}; a symbol "
                "needs their number before shapes are known"
            )
        return results


class WithInteger(Composition):
    """A function of an array and an integer that a double rounds. Its files contain the op with a
    number, which rounds the integer in MXNet."""

    def __init__(self, op: str, number: int) -> None:
        path, names = _WITH_NUMBER[op]
        super().__init__(path, dict(zip(names, (Input(0), number))), 1)
        self.name = op
        self.number = number

    def text(self, name: str) -> str:
        return self.texts()[name]

    def without(self, name: str) -> WithInteger:
        """Returns the call itself, which has no optional arguments."""
        return self

    def texts(self) -> dict[str, str]:
        return {"scalar": str(self.number)}


def _rounded_integer(op, attrs):
    """Returns the integer of an op with a number that a double rounds, or None. Longer integers are
    beyond all dtypes, and remain so as doubles."""
    text = attrs.get("scalar", "")
    if op not in _WITH_NUMBER or not re.fullmatch(r"-?[0-9]{16,20}", text):
        return None
    return int(text) if int(float(text)) != int(text) else None


def is_composition(op: str, attrs: dict[str, str]) -> bool:
    """True if a node of a file with these attributes is a `Composition`. Attributes that only the
    op here has, such as transpose_b of dot, select the op."""
    if _rounded_integer(op, attrs) is not None:
        return True
    if _FUNCTION in attrs or op not in _OPS_BY_DIMENSIONS:
        return _FUNCTION in attrs
    params = {param["name"] for param in _core.get_op(op).describe()["params"]}
    return not params & attrs.keys()


def from_file(op: str, name: str, attrs: dict[str, str], inputs: list[Any]) -> Node | None:
    """Creates the node of an op in a file, or returns None if no function has its name."""
    number = _rounded_integer(op, attrs)
    if number is not None:
        return Node(name, attrs, WithInteger(op, number), tuple(inputs))
    path = attrs.get(_FUNCTION) or FUNCTIONS.get(op)
    if path is None:
        short = re.sub("^_(np|npi|npx)_", "", op)
        path = f"{'npx' if op.startswith('_npx_') else 'np'}.{short}"
    try:
        parameters = inspect.signature(find(path)).parameters
    except MXNetError as error:
        if _FUNCTION in attrs:
            raise MXNetError(f"{name}: {error}") from None
        return None
    own = {key: text for key, text in attrs.items() if not key.startswith("__")}
    if _INPUTS in attrs:
        arguments = _with_inputs(attrs[_INPUTS], name, len(inputs))
    else:
        arguments = _guessed(parameters, own, len(inputs))
    known = {
        key: _value(text)
        for key, text in own.items()
        if key in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    }
    call = Composition(path, {**arguments, **known}, len(inputs))
    return Node(name, attrs, call, tuple(inputs))


def _with_inputs(text, name, count):
    """Parses the arguments that contain inputs."""

    def item(value):
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        if not value[1:].isdecimal() or int(value[1:]) >= count:
            raise MXNetError(f"{name}: {value} is not one of the {count} inputs")
        return Input(int(value[1:]))

    found = _value(text)
    if not isinstance(found, dict):
        raise MXNetError(f"{name}: {_INPUTS} must be a dict, not {text!r}")
    return {key: _mapped(value, item) for key, value in found.items()}


def _guessed(parameters, given, count):
    """Assigns the inputs of a node in MXNet's file to the parameters that have no attribute."""
    inputs = [Input(i) for i in range(count)]
    free = [name for name in parameters if name not in given]
    if not free:
        return {}
    first = parameters[free[0]]
    if free[0] in SEQUENCES or first.kind is first.VAR_POSITIONAL:
        return {free[0]: inputs}
    return dict(zip(free, inputs))


def compose(path: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Symbol:
    """Creates the node of a function of ``mx.np`` for symbols among its arguments."""
    name, attr = kwargs.pop("name", None), kwargs.pop("attr", None)
    if kwargs.get("out", 0) is None or isinstance(kwargs.get("out"), Symbol):
        del kwargs["out"]  # a symbol has nothing to write into
    bound = inspect.signature(find(path)).bind(*args, **kwargs)
    symbols: list[Symbol] = []

    def item(value):
        if isinstance(value, Symbol):
            symbols.append(value)
            return Input(len(symbols) - 1)
        if isinstance(value, _core.NDArray):
            raise TypeError(
                f"{path}: expected symbols or numbers, got an array; use a variable and bind the "
                "array to it"
            )
        return value

    arguments = {key: _mapped(value, item) for key, value in bound.arguments.items()}
    is_numpy(path, symbols, numpy=True)
    call = Composition(path, arguments, len(symbols))
    name = NameManager.current().get(name, path.rpartition(".")[2])
    entries = [single(symbol, path) for symbol in symbols]
    node = Node(name, {**call.texts(), **attributes(attr)}, call, tuple(entries))
    node.origin = _core._origin()
    return symbol_type(True)([(node, i) for i in range(node.num_outputs)])
