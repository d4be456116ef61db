"""Type stubs, generated from the op registry and from the extension.

    python -m mpgluon._internal.stubs [FOLDER]

writes them to the package, or to FOLDER instead. Some stubs have no corresponding module. They hold
the ops of a module that also defines functions. That module imports the stub for type checkers.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from ... import _core
from ...ndarray._namespaces import place
from ...symbol._functions import Function
from ...symbol._methods import METHODS, NO_VALUE, OPERATORS, SymbolMethods

FOLDER = os.path.dirname(_core.__file__)

# Sub-namespace of ops -> its stub, in ndarray/ and in symbol/.
_FILES = {
    "op": "op.pyi",
    "linalg": "linalg.pyi",
    "image": "image.pyi",
    "sparse": "_sparse_named_ops.pyi",
    "_internal": "_internal.pyi",
    "random": "_random_ops.pyi",
    "contrib": "_contrib_ops.pyi",
}
_TYPES = {
    "boolean": "bool",
    "integer": "int",
    "integer or None": "int | None",
    "number": "float",
    "number or None": "float | None",
    "tuple of integers": "int | Sequence[int | None]",
    "tuple of numbers": "float | Sequence[float]",
    "dtype": "DType",
    "string": "str",
    "Context": "Context | str",
}
_COMMAND = "`python -m mpgluon._internal.stubs`; not edited by hand"
_MADE = f"# Made from the op registry by {_COMMAND}.\n"
_CORE_HEAD = f"# Made from _internal/stubs/_core.pyi by\n# {_COMMAND}.\n"
_ARRAY_HEAD = f"""{_MADE}from collections.abc import Sequence
from typing import Any, Literal

from .._core import Context, NDArray
from .._internal.types import ArrayLike, DType
"""
_NUMPY_HEAD = f"""{_MADE}from collections.abc import Sequence
from typing import Any

from .._core import Context, ndarray
from .._internal.types import DType
"""
_SYMBOL_HEAD = f"""{_MADE}from collections.abc import Sequence
from typing import Any, Literal

from .._core import Context
from .._internal.types import DType
from .symbol import Symbol
"""
_METHODS_HEAD = f"""{_MADE}from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from .._core import Context
from .._internal.types import DType, SymbolLike
from ._functions import Function
from .symbol import Symbol

def function(op: str, name: str | None = None) -> Function: ...
"""


def _parameter(param: dict[str, Any]) -> str:
    kind, default = param["kind"], param["default"]
    if kind == "one of":
        words = [word for word in param["constraint"].split("|") if word]
        type_ = f"Literal[{', '.join('None' if word == 'None' else repr(word) for word in words)}]"
    else:
        type_ = _TYPES[kind]
    if param["required"]:
        return f"{param['name']}: {type_}"
    if default == "None":
        optional = "None" in type_.split(" | ") or kind == "one of"
        return f"{param['name']}: {type_ if optional else type_ + ' | None'} = None"
    if kind in ("one of", "dtype", "string", "Context"):
        default = repr(default)
    elif kind == "boolean":
        default = str(default in ("True", "true", "1"))
    elif default in ("inf", "-inf"):
        default = "..."
    return f"{param['name']}: {type_} = {default}"


def _doc(text: Any, indent: str) -> str:
    """Returns a function's body for a stub: its docstring, or "..." if it has none.

    `text` is ignored unless it is a str: the docstring of a class may be a descriptor, which
    returns the docstrings of its instances.
    """
    if not text or not isinstance(text, str):
        return f"{indent}...\n"
    lines = text.strip().replace("\\", "\\\\").replace('"""', "'''").split("\n")
    body = "\n".join(f"{indent}{line}".rstrip() if i else line for i, line in enumerate(lines))
    return f'{indent}"""{body}"""\n'


def _op_stub(op: _core.Op, name: str, *, symbol: bool, method: bool = False) -> str:
    """Returns the stub of an op as a function of arrays or symbols, or as a method of its first
    input."""
    description = op.describe()
    arguments = []
    for item in description["inputs"]:
        type_ = "Symbol" if symbol else "ArrayLike"
        if item["variadic"]:
            arguments.append(f"*{item['name']}: {type_} | Sequence[{type_}]")
        elif item["optional"] or symbol:
            arguments.append(f"{item['name']}: {type_} | None = None")
        else:
            arguments.append(f"{item['name']}: {type_}")
    if method:
        arguments = ["self", *arguments[not arguments[0].startswith("*") :]]
    arguments += [_parameter(param) for param in description["params"]]
    # In Python, all arguments after an argument with a default need a default.
    seen = False
    for i, argument in enumerate(arguments):
        if argument.startswith("*"):
            break
        if " = " in argument:
            seen = True
        elif seen:
            arguments[i] += " = ..."
    outputs = [
        output.strip()
        for output in description["outputs"].split(",")
        if not output.strip().startswith("~")
    ]
    if symbol:
        result = "Symbol"
        arguments += ["name: str | None = None", "attr: dict[str, str] | None = None"]
    else:
        # If the number of outputs depends on the parameters, Any spares callers a cast.
        several = any(output.startswith(("*", "?")) for output in outputs)
        result = "NDArray | Any" if several else "NDArray"
        if not several and len(outputs) > 1:
            result = "list[NDArray]"
        arguments += [
            "out: NDArray | Sequence[NDArray] | None = None",
            "name: str | None = None",
        ]
    indent = "    " if method else ""
    doc = Function(op, name).__doc__ if symbol else op.__doc__
    return f"{indent}def {name}({', '.join(arguments)}) -> {result}:\n{_doc(doc, indent + '    ')}"


def generate_namespace(space: str, *, symbol: bool) -> str:
    """Returns the stub of a sub-namespace of ops."""
    found = {}
    rows = set(_core.list_ops())  # excludes ops of loaded libraries
    for name, op in sorted(_core.ops().items()):
        where, short = place(name)
        hidden = "hidden" in op.describe()["flags"] and (symbol or space == "op")
        known = op.describe()["name"] in rows
        if known and where == space and not hidden and short.isidentifier():
            found[short] = _op_stub(op, short, symbol=symbol)
    head = _SYMBOL_HEAD if symbol else _ARRAY_HEAD
    if space == "op":  # MXNet has this name in `op` as well
        head += f"from .{'creation' if symbol else 'functions'} import Custom as Custom\n"
    return head + "\n" + "\n".join(found.values())


def _numpy_stub(function: _core.NumPyFunction) -> str:
    """Returns the stub of a function of mx.np or mx.npx."""
    info = _core.get_op(function.op_name).describe()
    params = {param["name"]: param for param in info["params"]}
    arguments = []
    for name, parameter in function.__signature__.parameters.items():
        role, target = function.arguments[name]
        type_ = {"out": "ndarray | None", "name": "str | None"}.get(role, "Any")
        if role == "parameter" and params[target]["kind"] in _TYPES:
            type_ = _TYPES[params[target]["kind"]]
            optional = parameter.default is None and not type_.endswith("| None")
            type_ += " | None" if optional else ""
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        arguments.append(_annotated(parameter, {name: type_}))
    several = "," in info["outputs"].partition("~")[0].rstrip(", ") or "*" in info["outputs"]
    result = "Any" if several else "ndarray"
    doc = _doc(function.__doc__, "    ")
    return f"def {function.__name__}({', '.join(arguments)}) -> {result}:\n{doc}"


def _numpy_functions(name: str) -> str:
    """Returns the stub of the functions of mx.np or mx.npx that are made from tables."""
    names = vars(importlib.import_module(f"mpgluon.{name}"))
    functions = [names[key] for key in sorted(names)]
    made = [_numpy_stub(each) for each in functions if isinstance(each, _core.NumPyFunction)]
    return _NUMPY_HEAD + "\n" + "\n".join(made)


def _symbol_methods() -> str:
    """Returns the stub of `SymbolMethods`, the base class with the methods of Symbol."""
    ops, lines = _core.ops(), [_METHODS_HEAD, "class SymbolMethods:"]
    for name in OPERATORS:
        comment = "  # type: ignore[override]" if name in ("eq", "ne") else ""
        lines.append(f"    def __{name}__(self, other: SymbolLike) -> Symbol: ...{comment}")
        if hasattr(SymbolMethods, f"__r{name}__"):
            lines.append(f"    def __r{name}__(self, other: SymbolLike) -> Symbol: ...")
    for name in NO_VALUE:
        text = _doc(getattr(SymbolMethods, name).__doc__, "        ").rstrip()
        lines.append(f"    def {name}(self, *args: Any) -> NoReturn:\n{text}")
    for name in METHODS:
        if name in ops:
            lines.append(_op_stub(ops[name], name, symbol=True, method=True).rstrip())
    return "\n".join(lines) + "\n"


def _annotated(parameter: inspect.Parameter, types: dict[str, str]) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.name != "self":
        text += f": {types.get(parameter.name, 'Any')}"
    if parameter.default is not parameter.empty:
        plain = isinstance(parameter.default, (bool, int, float, str, type(None)))
        text += f" = {parameter.default!r}" if plain else " = ..."
    return text


def _by_introspection(name: str, value: Any, *, method: bool) -> str:
    """Returns the stub of a function or attribute, from its signature and annotations."""
    indent = "    " if method else ""
    if isinstance(value, _core.Op):
        return _op_stub(value, name, symbol=False, method=True)
    if isinstance(value, _core.NumPyFunction):
        return textwrap.indent(_numpy_stub(value), indent)
    if inspect.isgetsetdescriptor(value) or inspect.ismemberdescriptor(value):
        doc = _doc(value.__doc__, indent + "    ")
        return f"{indent}@property\n{indent}def {name}(self) -> Any:\n{doc}"
    if not callable(value) and not isinstance(value, staticmethod):
        return f"{indent}{name}: {type(value).__name__}\n"
    text = ""
    if isinstance(value, staticmethod):
        text, value = f"{indent}@staticmethod\n", value.__func__
        own = []
    else:
        own = ["self"] if method else []
    types = getattr(value, "__annotations__", {})
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (ValueError, TypeError):
        arguments = [*own, "*args: Any", "**kwargs: Any"]
    else:
        arguments, before = [], None
        if own and not (parameters and parameters[0].name == "self"):
            arguments = list(own)
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY and before not in (
                parameter.KEYWORD_ONLY,
                parameter.VAR_POSITIONAL,
            ):
                arguments.append("*")
            if before is parameter.POSITIONAL_ONLY and parameter.kind is not before:
                arguments.append("/")
            arguments.append(_annotated(parameter, types))
            before = parameter.kind
        if before is inspect.Parameter.POSITIONAL_ONLY:
            arguments.append("/")
    return (
        f"{text}{indent}def {name}({', '.join(arguments)}) -> {types.get('return', 'Any')}:\n"
        f"{_doc(getattr(value, '__doc__', None), indent + '    ')}"
    )


def _check(node: ast.FunctionDef, value: Any, where: str) -> None:
    """Checks that a hand-written signature has the parameters of the extension."""
    try:
        real = [name for name in inspect.signature(value).parameters if name != "self"]
    except (ValueError, TypeError):
        return  # not every function of the extension has a signature
    arguments = node.args
    stars = [star.arg for star in (arguments.vararg, arguments.kwarg) if star]
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = [argument.arg for argument in listed if argument.arg != "self"]
    if names != [name for name in real if name not in ("args", "kwargs", *stars)]:
        raise SystemExit(f"_internal/stubs/_core.pyi: {where} takes {real}, not {names}")


_OF_EVERY_OBJECT = frozenset(vars(object)) | {
    "__module__",
    "__weakref__",
    "__dict__",
    "__vectorcalloffset__",
    "__text_signature__",
    "__signature__",
}


def _members(
    nodes: Iterable[ast.stmt], names: dict[str, Any], where: str, indent: str
) -> list[str]:
    """Returns the statements of a module or class: the hand-written ones with docstrings added,
    then generated ones for the remaining names."""
    texts, written = [], set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            if node.name not in names:
                raise SystemExit(f"_internal/stubs/_core.pyi: {where} has no {node.name}")
            value = names[node.name]
            written.add(node.name)
            if not node.name.startswith("__"):
                _check(node, value, f"{where}.{node.name}")
                if value.__doc__:
                    node.body = [ast.Expr(ast.Constant(value.__doc__.strip()))]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            written.add(node.target.id)
        elif isinstance(node, ast.ClassDef):
            texts.append(_class(node, names[node.name]))
            written.add(node.name)
            continue
        text = ast.unparse(node)
        if getattr(node, "name", "") in ("__eq__", "__ne__") and where == "NDArray":
            text += "  # type: ignore[override]"
        texts.append("\n".join(indent + line for line in text.split("\n")))
    for name, value in sorted(names.items()):
        if name in written or isinstance(value, (_core.MissingAttribute, str)):
            continue
        if inspect.isclass(value):
            texts.append(_class(ast.parse(f"class {name}: ...").body[0], value))
        else:
            texts.append(_by_introspection(name, value, method=bool(indent)).rstrip())
    return texts


def _class(node: ast.stmt, kind: type) -> str:
    assert isinstance(node, ast.ClassDef)
    nodes = [one for one in node.body if not isinstance(one, ast.Expr)]
    own = dict(vars(kind))
    written = {one.name for one in nodes if isinstance(one, ast.FunctionDef)}
    # Excludes members of object, unless the class defines them or they are hand-written.
    names = {key: own[key] for key in own if key not in _OF_EVERY_OBJECT or key in written}
    names.update({key: getattr(kind, key) for key in written if key not in names})
    if "__new__" in own and "__init__" not in written:
        names.pop("__new__", None)
        nodes.append(
            ast.parse("def __init__(self, *args: Any, **kwargs: Any) -> None: ...").body[0]
        )
        names["__init__"] = object.__init__
    bases = f"({', '.join(ast.unparse(base) for base in node.bases)})" if node.bases else ""
    doc = [_doc(kind.__doc__, "    ").rstrip()] if isinstance(kind.__doc__, str) else []
    body = doc + _members(nodes, names, node.name, "    ")
    return "\n".join([f"class {node.name}{bases}:", *(body or ["    ..."])])


def _core_stub() -> str:
    importlib.import_module("mpgluon.numpy")  # adds methods to ndarray
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_core.pyi")
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    names = {
        name: value
        for name, value in vars(_core).items()
        if not (name.startswith("__") and name.endswith("__"))
    }
    return _CORE_HEAD + "\n".join(_members(tree.body, names, "_core", "")) + "\n"


def generate() -> dict[str, str]:
    """Returns all stubs: path within the package -> text."""
    stubs = {"_core.pyi": _core_stub(), "symbol/_methods.pyi": _symbol_methods()}
    for space, file in _FILES.items():
        stubs[f"ndarray/{file}"] = generate_namespace(space, symbol=False)
        stubs[f"symbol/{file}"] = generate_namespace(space, symbol=True)
    for name in ("numpy", "numpy_extension"):
        stubs[f"{name}/_named.pyi"] = _numpy_functions(name)
    for module in pkgutil.iter_modules([os.path.join(FOLDER, "legacy")]):
        if not module.name.startswith("_"):
            public = importlib.import_module(f"mpgluon.{module.name}").__all__
            names = ", ".join(f"{name} as {name}" for name in public)
            stubs[f"{module.name}.pyi"] = f"from .legacy.{module.name} import {names}\n"
    return stubs


def write(folder: str = FOLDER) -> None:
    """Writes all stubs to the package's folder."""
    for path, text in generate().items():
        with open(os.path.join(folder, *path.split("/")), "w", encoding="utf-8") as file:
            file.write(text)


def main(arguments: list[str] | None = None) -> None:
    write(*(sys.argv[1:] if arguments is None else arguments))
