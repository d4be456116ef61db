"""Functions of ops with signatures of NumPy, made from tables.

A table is a text of entries, which blank lines separate::

    sum(a, axis=None, dtype=None, out=None, keepdims=False, initial:_=None, where:_=True) -> sum
    The sum over the given axes.
    >>> np.sum(np.array([1, 2]))
    array(3.)

First come the signature and, in the same or the next line, the op: a row's name, which may be
followed by values of its parameters, such as ``argsort(dtype='int64')``. The first arguments are
the row's inputs, and an argument with the name of a parameter is that parameter.
``newshape:shape`` maps an argument to a parameter with another name. ``order:_='C'`` marks an
argument that must keep its default, ``kind:~`` one that has no effect, and ``dtype:^`` a dtype to
which the first input is cast.
``**ufunc`` represents the options of NumPy's ufuncs.

``-> clip | _clip`` names a Python function that runs the calls which the op cannot: those in which
an argument marked with ``?`` is None or an array of numbers; with ``b?2`` for an input, those with
arrays of 0 or more than 2 dimensions; and with ``axis?2`` for a parameter, those with an empty
tuple, or with an axis for a first input without dimensions.

An entry without a signature has the row's. The description is the row's if it is missing. `make`
turns a table into functions, which are `_core.NumPyFunction`: calls cost the same as calls of the
ops in ``mx.nd``.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from typing import TYPE_CHECKING

from .. import _core
from ..ndarray._signatures import REQUIRED

if TYPE_CHECKING:
    from typing import Any, NoReturn


# The options of NumPy's ufuncs. Only the defaults are supported.
UFUNC = "*, where:_=True, casting:_='same_kind', order:_='K', dtype:_=None, subok:_=True"
_CASTING = ("no", "equiv", "safe", "same_kind", "unsafe")


def _read(entry):
    """Returns (name, signature, row, values of parameters, other function, text) of an entry."""
    call, _, rest = entry.strip().partition("-> ")
    call = " ".join(call.split())
    row, _, text = rest.partition("\n")
    row, _, other = row.partition(" | ")
    name, _, signature = call.partition("(")
    row, _, values = row.partition("(")
    if not signature:
        signature = _core.get_op(row).__text_signature__[1:]
    given = {}
    for item in filter(None, values.rstrip(")").split(", ")):
        key, _, value = item.partition("=")
        given[key] = ast.literal_eval(value)
    return name, "(" + signature.replace("**ufunc", UFUNC), row, given, other, text


def make(module: str, table: str, others: dict[str, Any]) -> dict[str, Any]:
    """Returns the functions of a table by their names.

    Parameters
    ----------
    module : str
        The public module of the functions, such as "mpgluon.numpy".
    table : str
        The entries, as described at the top of this file.
    others : dict
        The Python functions that entries name.
    """
    functions = {}
    for entry in filter(str.strip, table.split("\n\n")):
        name, signature, row, given, other, text = _read(entry)
        # Lookups in a module compare names by identity first.
        functions[sys.intern(name)] = _core.numpy_function(
            module, name, signature, row, text, given, others[other] if other else None
        )
    return functions


def _value(default):
    """Returns the value of a default in a signature."""
    value = ast.literal_eval(default)
    return REQUIRED if value is ... else value


def signature(function: Any) -> inspect.Signature:
    """Returns the signature of a function as an object, for ``help`` and completion."""
    parsed = ast.parse(f"def f{function.__text_signature__}: ...").body[0].args
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    missing = [None] * (len(parsed.args) - len(parsed.defaults))
    arguments = list(zip(parsed.args, missing + parsed.defaults, [kind] * len(parsed.args)))
    kind = inspect.Parameter.KEYWORD_ONLY
    arguments += zip(parsed.kwonlyargs, parsed.kw_defaults, [kind] * len(parsed.kwonlyargs))
    return inspect.Signature(
        [
            inspect.Parameter(
                argument.arg,
                kind,
                default=inspect.Parameter.empty if default is None else _value(default),
            )
            for argument, default, kind in arguments
        ]
    )


def _describe(name, role, target, info, default):
    """Yields the lines of a docstring about an argument."""
    if role == "input":
        entry = next(entry for entry in info["inputs"] if entry["name"] == target)
        kind = "sequence of ndarrays" if entry["variadic"] else "ndarray"
        yield f"{name} : {kind}{', optional' if entry['optional'] else ''}"
    elif role == "out":
        yield f"{name} : ndarray, optional"
        yield "    The array for the result, with the result's shape and dtype."
    elif role == "name":
        yield f"{name} : str, optional"
        yield "    The name of the node, for symbols."
    elif role == "cast":
        yield f"{name} : dtype, optional"
        yield "    The dtype to which the input is cast first; None keeps it."
    elif role == "parameter":
        entry = next(entry for entry in info["params"] if entry["name"] == target)
        kind = entry["kind"]
        if entry["constraint"] and kind != "boolean":
            kind += f" {entry['constraint']}"
        suffix = "" if default is inspect.Parameter.empty else f", default {default}"
        yield f"{name} : {kind}{suffix}"
        yield f"    {entry['doc']}"


def docstring(function: Any) -> str:
    """Returns the docstring of a function: its entry's text, completed from the op's row."""
    info = _core.get_op(function.op_name).describe()
    text, mark, examples = function.text.partition(">>> ")
    parameters, arguments = function.__signature__.parameters, function.arguments
    about = (text or info["doc"]).strip()
    for name, (role, target) in arguments.items():
        if role == "input" and not text:
            about = re.sub(rf"\b{target}\b", name, about)
    lines = [about, "", "Parameters", "----------"]
    for name, (role, target) in arguments.items():
        lines += _describe(name, role, target, info, parameters[name].default)
    fixed = [name for name, (role, _) in arguments.items() if role == "fixed"]
    if fixed:
        lines += [f"{', '.join(fixed)}", "    Only the defaults are supported."]
    lines += ["", "Returns", "-------", f"{info['outputs'].replace('~', '')} : ndarray"]
    lines += ["", f"Dtypes: {', '.join(info['dtypes'])}. MXNetError if shapes, dtypes or devices"]
    lines += ["do not fit; TypeError for arrays that are not of mx.np."]
    if function.__module__ == "mpgluon.numpy":
        lines += ["", f"Source: numpy.{function.__name__}"]
    if examples:
        lines += ["", "Examples", "--------", mark + examples]
    return "\n".join(lines)


def refuse(function: str, argument: str, value: object, default: object) -> NoReturn:
    """Raises the error for a value other than the default of an argument that must keep it."""
    import numpy

    valid = True
    if argument == "casting":
        valid = value in _CASTING
    elif argument == "dtype":
        try:
            numpy.dtype(value)
        except TypeError:
            valid = False
    if not valid:
        raise TypeError(f"{function}: {argument} is invalid, got {value!r}")
    raise NotImplementedError(
        f"{function}: {argument} must be {default!r}, got {value!r}; other values are not supported"
    )
