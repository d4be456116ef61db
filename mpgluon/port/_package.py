"""Lookup of MXNet's names in this package."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import warnings
from typing import Any

from .. import _core
from .._internal import hints
from ..as_mxnet import MODULES, NUMPY_NAMES, imported_names
from ..base import MXNetError
from ..gluon import Block
from ..symbol._functions import Function

OURS = __name__.split(".")[0]
# Modules of the standard library, and NumPy, that have removed names used by old programs.
OTHERS = ("collections", "inspect", "itertools", "math", "numpy", "os", "string", "sys", "time")


@dataclasses.dataclass(frozen=True)
class Found:
    """An available name. `value` is its object, or None for an attribute of an instance."""

    value: Any
    names: frozenset[str] = frozenset()  # the names of an op


@dataclasses.dataclass(frozen=True)
class Missing:
    """A missing name: its first missing part, and the reason."""

    path: tuple[str, ...]
    text: str
    elsewhere: str = ""  # the module that has the name, if any


@functools.cache
def lookup(path: tuple[str, ...]) -> Found | Missing:
    """Looks up a name of MXNet, such as ("gluon", "nn") for ``mxnet.gluon.nn``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value: Any = importlib.import_module(OURS)
        for i, name in enumerate(path):
            if not (inspect.ismodule(value) or inspect.isclass(value)):
                return Found(None)
            part = _part(value, path[: i + 1])
            if isinstance(part, Missing):
                return part
            value = part.value
            text = _stand_in(value, path[: i + 1])
            if text:
                return Missing(path[: i + 1], text)
    return Found(value, _names(value))


def _stand_in(value, path):
    """Returns the error raised by a name that exists only to be imported, or ""."""
    if path == ("base", "_LIB"):
        return "MXNet's C library, which mpgluon does not have"
    first = (inspect.getdoc(value) or "").partition("\n")[0] if inspect.isfunction(value) else ""
    return first if first.startswith(("Raises MXNetError", "Raises NotSupportedError")) else ""


def _part(owner, path):
    """Looks up the last part of a name in its owner, the object of the preceding parts."""
    source = _imported(".".join(path[:-1]), path[-1])
    # Check this first, because importing mpgluon as mxnet in this process adds the name.
    if source is not None:
        home = f"{OURS}.{source}".rstrip(".")
        return Missing(path, f"is there only under the name mxnet; import it from {home}", home)
    try:
        return Found(getattr(owner, path[-1]))
    except (AttributeError, ImportError, MXNetError) as error:
        text = str(error).replace(f"module '{OURS}.", "module 'mxnet.")
    if inspect.isclass(owner):
        return Found(None)  # possibly an attribute of instances
    module = _module(".".join(path))
    if module is not None:
        return Found(module)
    return Missing(path, text.replace(f"module '{OURS}'", "module 'mxnet'"))


def _module(name):
    """Returns a module, possibly under another name, or None."""
    name = MODULES.get(name, name)
    try:
        if importlib.util.find_spec(f"{OURS}.{name}") is None:
            return None
        return importlib.import_module(f"{OURS}.{name}")
    except ImportError:
        return None


def _imported(module, name):
    """Returns the source of a name that a module of MXNet has only through an import."""
    for source, names in imported_names.NAMES.get(module, {}).items():
        if name in names.split():
            return source
    return None


def _names(value):
    """Returns the names of an op."""
    if isinstance(value, Function):
        value = _core.get_op(value.__reduce__()[1][0])
    if not isinstance(value, _core.Op):
        return frozenset()
    about = value.describe()
    return frozenset({getattr(value, "__name__", ""), *str(about.get("aliases", "")).split()})


def module_name(path: tuple[str, ...]) -> str | None:
    """Returns the name under which to import a module of MXNet, or None."""
    inner = ".".join(path)
    if not inner:
        return OURS
    found = lookup(path)
    if isinstance(found, Missing) or not inspect.ismodule(found.value):
        return None
    name = f"{OURS}.{inner}"
    try:
        plain = importlib.util.find_spec(name)
    except ImportError:
        plain = None
    return name if plain is not None else str(found.value.__name__)


def public_names(path: tuple[str, ...]) -> list[str]:
    """Returns the names that ``from mxnet.X import *`` imports."""
    found = lookup(path)
    if isinstance(found, Missing) or not inspect.ismodule(found.value):
        return []
    names = getattr(found.value, "__all__", None) or dir(found.value)
    return [name for name in names if not name.startswith("_")]


@functools.cache
def parameters(value: Any) -> dict[str, inspect.Parameter] | None:
    """Returns the parameters of a function or class by name, or None if they are unknown."""
    try:
        return dict(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return None


def _options_of_block(value):
    """Returns the constructor parameters of a block and its bases, which pass on unknown options.

    Returns None for any other value.
    """
    if not (inspect.isclass(value) and issubclass(value, Block)):
        return None
    found = {}
    for base in value.__mro__:
        if "__init__" in vars(base) and base is not object:
            given = list(inspect.signature(base.__init__).parameters.values())[1:]
            found.update({one.name: one for one in given if one.kind is not one.VAR_KEYWORD})
    return found


def unknown_option(value: Any, given: list[str]) -> str | None:
    """Returns the error for an unknown option in a call, or None."""
    known = _options_of_block(value) or parameters(value)
    if known is None or any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return None
    taken = {*known, "name", "attr", "out"}
    for name in given:
        if name not in taken and not (name.startswith("__") and name.endswith("__")):
            near = hints.near_option(name, sorted(known))
            plain = isinstance(value, _core.Op) and not value.describe()["params"]
            if plain:
                return f"has no option {name!r}, and ignores it with a warning"
            return f"has no option {name!r}{near}"
    return None


@functools.cache
def removed(path: tuple[str, ...]) -> str | None:
    """Returns the replacement for a removed name of NumPy or Python's library, or None."""
    if path[0] not in OTHERS or len(path) < 2:
        return None
    module = importlib.import_module(path[0])
    name = path[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if hasattr(module, name) or _submodule(path[0], name):
            return None
    if path[0] == "numpy" and name in NUMPY_NAMES:
        return (
            "NumPy has removed this name; mpgluon.as_mxnet(numpy_names=True), or --numpy-names, "
            "gives it back"
        )
    ways = {
        ("time", "clock"): "time.perf_counter",
        ("inspect", "getargspec"): "inspect.getfullargspec",
        ("itertools", "izip"): "zip",
        ("itertools", "imap"): "map",
        ("sys", "maxint"): "sys.maxsize",
        ("os", "getcwdu"): "os.getcwd",
    }
    way = ways.get(path[:2]) or (f"collections.abc.{name}" if _abstract(path) else "")
    return f"{path[0]} has no {name} any more" + (f"; use {way}" if way else "")


def _submodule(package, name):
    try:
        return importlib.util.find_spec(f"{package}.{name}") is not None
    except ImportError:
        return False


def _abstract(path):
    return path[0] == "collections" and hasattr(importlib.import_module("collections.abc"), path[1])
