"""Type stubs of the ops, made from the registry.

    python -m mpgluon.stubs [FILE]

writes mpgluon/ndarray/op.pyi, or FILE.
"""

import os
import sys

from . import _core

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
_HEAD = """# Made from the op registry by `python -m mpgluon.stubs`; not edited by hand.
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from .. import Context, NDArray

ArrayLike = NDArray | np.ndarray | float
DType = str | type | np.dtype[Any]
"""


def _words(constraint):
    return [word for word in constraint.split("|") if word]


def _parameter(param):
    kind, default = param["kind"], param["default"]
    if kind == "one of":
        words = _words(param["constraint"])
        type_ = (
            "Literal[" + ", ".join("None" if word == "None" else repr(word) for word in words) + "]"
        )
    else:
        type_ = _TYPES[kind]
    if param["required"]:
        return f"{param['name']}: {type_} = ..."
    if default == "None":
        return (
            f"{param['name']}: "
            f"{type_ if 'None' in type_.split(' | ') or kind == 'one of' else type_ + ' | None'} = "
            "None"
        )
    if kind in ("one of", "dtype", "string"):
        default = repr(default)
    elif kind == "boolean":
        default = str(default in ("True", "true", "1"))
    return f"{param['name']}: {type_} = {default}"


def _stub(name, description):
    arguments = []
    for item in description["inputs"]:
        if item["variadic"]:
            arguments.append(f"*{item['name']}: ArrayLike")
        elif item["optional"]:
            arguments.append(f"{item['name']}: ArrayLike | None = None")
        else:
            arguments.append(f"{item['name']}: ArrayLike")
    arguments += [_parameter(param) for param in description["params"]]
    # What follows an argument with a default needs one too.
    seen, fixed = False, []
    for argument in arguments:
        if "=" in argument:
            seen = True
        elif seen and not argument.startswith("*"):
            argument += " = ..."
        fixed.append(argument)
    outputs = [
        output.strip()
        for output in description["outputs"].split(",")
        if not output.strip().startswith("~")
    ]
    if any(output.startswith(("*", "?")) for output in outputs):
        result = "NDArray | list[NDArray]"
    else:
        result = "NDArray" if len(outputs) == 1 else "list[NDArray]"
    fixed += ["out: NDArray | Sequence[NDArray] | None = None", "name: str | None = None"]
    doc = description["doc"].replace("\\", "\\\\").replace('"""', "'''")
    return f'def {name}({", ".join(fixed)}) -> {result}:\n    """{doc}"""\n'


def generate():
    """The text of op.pyi."""
    stubs = []
    for name, op in sorted(_core.ops().items()):
        description = op.describe()
        if (
            "hidden" not in description["flags"]
            and not name.startswith("_")
            and name.isidentifier()
        ):
            stubs.append(_stub(name, description))
    return _HEAD + "\n" + "\n".join(stubs)


def main(arguments=None):
    """Writes the stubs of all ops into the file named first in `arguments` (default: the command
    line, or ``ndarray/op.pyi``)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    target = (
        arguments[0]
        if arguments
        else os.path.join(os.path.dirname(os.path.abspath(__file__)), "ndarray", "op.pyi")
    )
    with open(target, "w", encoding="utf-8") as file:
        file.write(generate())


if __name__ == "__main__":
    main()
