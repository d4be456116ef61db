"""Checks a source use by use for names that run, differ or are missing."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from ..optimizer import Optimizer
from . import _package, _rows, _together
from ._package import Found, Missing
from ._rows import ANY, Pattern, Row
from ._scopes import HEADS, Path, Scopes, outside
from ._sources import Edit, Source

KINDS = {
    "runs": "runs as it is",
    "import": "an import that --write changes",
    "device": "a device that --write --cpu changes",
    "differs": "does something else here",
    "check": "does something else here under a condition that the source does not show",
    "missing": "is not there",
    "one block": "several parts that can become one",
    "python": "a name that Python or NumPy has removed",
    "package": "another package that imports mxnet itself",
    "error": "cannot be read",
}

# Names of GPU devices, which --cpu changes.
_GPU = (("gpu",), ("context", "gpu"), ("npx", "gpu"), ("numpy_extension", "gpu"))
# Functions with the name of an optimizer -> the index of this argument.
_OPTIMIZERS = {
    ("gluon", "Trainer"): 1,
    ("gluon", "trainer", "Trainer"): 1,
    ("optimizer", "create"): 0,
    ("optimizer", "Optimizer", "create_optimizer"): 0,
}

# Packages for several machines, which cannot be used together with mpgluon.
DISTRIBUTED = ("horovod", "byteps")


def _is_package(name):
    return name in _rows.packages() or name in DISTRIBUTED


@dataclasses.dataclass
class Finding:
    """A finding about a line.

    Attributes
    ----------
    line, column : int
        From 1; in a notebook within the cell.
    kind : str
        One of ``KINDS``.
    name : str
        The name or option, as MXNet spells it.
    text : str
        The behavior here.
    cell : int
        The notebook's cell, from 1; 0 in other files.

    Examples
    --------
    >>> from mpgluon.port import Finding
    >>> Finding(3, 1, "missing", "mx.nd.foo", "there is no such op").kind
    'missing'
    """

    line: int
    column: int
    kind: str
    name: str
    text: str
    cell: int = 0


class Check:
    """Walks through a source and collects findings, and the safe edits."""

    def __init__(self, source: Source, cpu: bool) -> None:
        self.source, self.cpu = source, cpu
        self.found: list[Finding] = []
        self.edits: list[Edit] = []
        self.scopes = Scopes(source.tree)
        self._names: dict[int, str] = {}
        self._visit(source.tree, self.scopes.of[source.tree])
        for line, column, text in _together.opportunities(source.tree, self.scopes):
            self._add(line, column, "one block", "", text)

    def _add(self, line, column, kind, name, text):
        cell, inner = self.source.place(line)
        self.found.append(Finding(inner, column + 1, kind, name, text, cell))

    def _column(self, line, column):
        """Converts a column in UTF-8 bytes, as Python counts, to a character index."""
        text = self.source.lines[line - 1]
        return column if text.isascii() else len(text.encode()[:column].decode(errors="replace"))

    def _at(self, node):
        return node.lineno, self._column(node.lineno, node.col_offset)

    def _visit(self, node, scope):
        inner = self.scopes.of.get(node)
        if inner is not None and inner is not scope:
            for child in outside(node):
                self._visit(child, scope)
            for child in node.body if isinstance(node.body, list) else [node.body]:
                self._visit(child, inner)
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, ast.Call):
            self._call(node, scope)
            return
        elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
            self._use(node, scope, None)
            return
        for child in ast.iter_child_nodes(node):
            self._visit(child, scope)

    def _call(self, node, scope):
        if isinstance(node.func, (ast.Attribute, ast.Name)):
            self._use(node.func, scope, node)
        else:
            self._visit(node.func, scope)
        for child in [*node.args, *node.keywords]:
            self._visit(child, scope)

    def _use(self, node, scope, call):
        path = scope.resolve(node)
        if path is None:
            if call is not None and isinstance(node, ast.Attribute):
                self._method(node, call)
                self._string_import(node, call)
            if isinstance(node, ast.Attribute):
                self._visit(node.value, scope)
            return
        if path[0] != "mxnet":
            text = _package.removed(path)
            if text:
                self._add(*self._at(node), "python", ".".join(path[:2]), text)
            return
        self._part_of_mxnet(node, path[1:], call)

    def _part_of_mxnet(self, node, path, call):
        name = "F." + ".".join(path[1:]) if path[:1] == ("F",) else ".".join(("mx", *path))
        if not path or path == ("F",):
            return self._add(*self._at(node), "runs", name, "")
        real = ("nd", *path[1:]) if path[0] == "F" else path
        found = _package.lookup(real)
        if isinstance(found, Missing):
            return self._add(*self._at(node), "missing", name, found.text)
        if self.cpu and path in _GPU and isinstance(node, ast.Attribute):
            end = self._column(node.end_lineno, node.end_col_offset)
            self.edits.append(Edit(node.end_lineno, end - len("gpu"), end, "cpu"))
            device = ".".join(("mx", *path[:-1], "cpu"))
            return self._add(*self._at(node), "device", name, f"{device}, a CPU device, with --cpu")
        if call is not None and found.value is not None:
            given = [one.arg for one in call.keywords if one.arg]
            wrong = _package.unknown_option(found.value, given)
            if wrong:
                kind = "differs" if wrong.endswith("warning") else "missing"
                return self._add(*self._at(node), kind, name, wrong)
        wrong = self._unknown_optimizer(real, call)
        if wrong:
            return self._add(*self._at(node), "missing", name, wrong)
        said = False
        for row, kind in matching(real, found, call):
            said = True
            self._add(*self._at(node), kind, name, differs(row, kind))
        if not said:
            self._add(*self._at(node), "runs", name, "")

    @staticmethod
    def _unknown_optimizer(path, call):
        """Returns the error for an unknown name of an optimizer, or None."""
        if call is None or path not in _OPTIMIZERS:
            return None
        given = [one.value for one in call.keywords if one.arg in ("optimizer", "name")]
        given += call.args[_OPTIMIZERS[path] :][:1]
        if not given or not isinstance(given[0], ast.Constant) or type(given[0].value) is not str:
            return None
        try:
            Optimizer.class_of(given[0].value)
        except ValueError as error:
            return str(error)
        return None

    def _method(self, node, call):
        """Checks a method of an object of unknown type.

        It matches rows for methods of classes whose name, or options, are too specific to belong
        to an unrelated class.
        """
        for row in _rows.rows():
            for pattern in row.patterns:
                named = len(pattern.path) > 1 and pattern.path[-1] == node.attr
                telling = pattern.options or (pattern.path[0][0].isupper() and "_" in node.attr)
                if named and telling and fits(pattern, None, call) == "differs":
                    kind = "check" if row.conditional else "differs"
                    self._add(*self._at(node), kind, "." + node.attr, differs(row, kind))
                    break

    def _string_import(self, node, call):
        """Checks imports by string, such as ``importlib.import_module("mxnet")``."""
        if node.attr in ("import_module", "importorskip") and call.args:
            name = _rows.constant(call.args[0])
            if isinstance(name, str) and name.split(".")[0] == "mxnet":
                text = "imports mxnet by a string; write mpgluon, or call mpgluon.as_mxnet() before"
                self._add(*self._at(call), "differs", node.attr, text)

    def _import(self, node):
        if isinstance(node, ast.ImportFrom):
            return self._import_from(node)
        for alias in node.names:
            path = tuple(alias.name.split("."))
            if _is_package(path[0]):
                self._package(alias, path[0])
            if path[0] not in HEADS:
                continue
            line, column = self._at(alias)
            if path[0] == "mxnet":
                self._change_import(alias, path, line, column)
            else:
                self._add(line, column, "runs", alias.name, "")

    def _package(self, node, name):
        if name in DISTRIBUTED:
            text = (
                "write mx.parallel.DistributedTrainer and similar names; docs/horovod.md lists them"
            )
            return self._add(*self._at(node), "missing", name, text)
        text = f"{name} imports mxnet itself: run the program by python -m mpgluon.as_mxnet, or "
        self._add(*self._at(node), "package", name, text + "call mpgluon.as_mxnet() before this")

    def _change_import(self, alias, path, line, column):
        """Changes ``import mxnet.a.b as c``; without an alias the statement binds mxnet."""
        module = _package.module_name(path[1:])
        if module is None:
            found = _package.lookup(path[1:])
            text = found.text if isinstance(found, Missing) else "is not a module in mpgluon"
            return self._add(line, column, "missing", alias.name, text)
        new = module if alias.asname else f"{_package.OURS} as mxnet"
        self._replace(line, column, alias.name, new)

    def _replace(self, line, column, old, new):
        """Changes a name in an import if it is contiguous in the source."""
        text = self.source.lines[line - 1]
        if text[column : column + len(old)] != old:
            said = f"change it to {new}; --write does not, because it is not a plain {old}"
            return self._add(line, column, "differs", old, said)
        self.edits.append(Edit(line, column, column + len(old), new))
        self._add(line, column, "import", old, new)

    def _import_from(self, node):
        path = tuple((node.module or "").split("."))
        known = path[0] in (*HEADS, *_package.OTHERS) or _is_package(path[0])
        if node.level or not known:
            return
        line, column = self._at(node)
        if path[0] in _package.OTHERS:
            for alias in node.names:
                text = _package.removed((*path, alias.name))
                if text:
                    self._add(line, column, "python", f"{path[0]}.{alias.name}", text)
            return
        if _is_package(path[0]):
            return self._package(node, path[0])
        module, sure = _package.module_name(path[1:]), True
        if module is None:
            found = _package.lookup(path[1:])
            text = found.text if isinstance(found, Missing) else "is not a module in mpgluon"
            return self._add(line, column, "missing", ".".join(path), text)
        for alias in node.names:
            found = _package.lookup((*path[1:], alias.name)) if alias.name != "*" else Found(None)
            if isinstance(found, Missing):
                sure = False
                name = ".".join((*path, alias.name))
                kind = "differs" if found.elsewhere else "missing"
                self._add(*self._at(alias), kind, name, found.text)
        if path[0] != "mxnet":
            return self._add(line, column, "runs", ".".join(path), "")
        start = self._module_in(node, line, column)
        if not sure:
            said = f"change mxnet to {_package.OURS} once the names are settled; --write does not"
            return self._add(line, column, "differs", ".".join(path), said)
        if start is None:
            said = f"change it to {module}; --write does not, because the line is unusual"
            return self._add(line, column, "differs", ".".join(path), said)
        self._replace(line, start, ".".join(path), module)

    def _module_in(self, node, line, column):
        """Returns the column of the module in ``from mxnet.x import y``, if on the first line."""
        text = self.source.lines[line - 1][column:]
        rest = text[len("from") :]
        gap = len(rest) - len(rest.lstrip(" \t"))
        return column + len("from") + gap if gap and rest.strip() != "\\" else None


def differs(row: Row, kind: str = "check") -> str:
    """Formats a row of docs/porting.md as a sentence or two, with its condition for 'check'."""
    where = f"{row.where}: " if kind == "check" else ""
    theirs = f"MXNet: {row.theirs}; here: " if row.theirs else "here: "
    return (where + theirs + (row.ours or "as it should be")).replace("`", "")


def matching(path: Path, found: Found, call: ast.Call | None) -> Iterator[tuple[Row, str]]:
    """Yields the rows of docs/porting.md that match a use of a name, with 'differs' or 'check'.

    'check' means that the match is uncertain.
    """
    short = _rows.normal(path)
    forms = {short, *(short[:-1] + (name,) for name in found.names if name)}
    for row in _rows.rows():
        best = ""
        for pattern in row.patterns:
            if any(form[len(form) - len(pattern.path) :] == pattern.path for form in forms):
                kind = fits(pattern, found.value, call)
                best = "differs" if "differs" in (kind, best) else kind or best
        if best:
            yield row, "check" if row.conditional else best


def fits(pattern: Pattern, function: Any, call: ast.Call | None) -> str:
    """Returns 'differs' if a call has the arguments of a pattern, 'check' if they are unknown.

    Returns "" if the call does not match.
    """
    if not pattern.constrained:
        return "differs"
    if call is None:
        return ""
    unsure = False
    for index, wanted in pattern.given:
        plain = len(call.args) > index and not any(
            isinstance(one, ast.Starred) for one in call.args[: index + 1]
        )
        if not plain:
            return ""
        value = _rows.constant(call.args[index])
        if value is ANY or not same(value, wanted):
            return ""
    given = {one.arg: one.value for one in call.keywords if one.arg}
    for name, wanted in pattern.options:
        value = _value(given, name, function, len(call.args))
        if value is inspect.Parameter.empty:
            return ""
        if wanted is ANY:
            continue
        if value is ANY:
            unsure = True
        elif not same(value, wanted):
            return ""
    return "check" if unsure else "differs"


def _value(given, name, function, positional):
    """Returns the value of an option in a call, or its default.

    Returns `ANY` if it is unknown, and `Parameter.empty` if there is no such option.
    """
    if name in given:
        return _rows.constant(given[name])
    known = _package.parameters(function) if function is not None else None
    if not known or name not in known or list(known).index(name) < positional:
        return inspect.Parameter.empty
    default = known[name].default
    plain = isinstance(default, (bool, int, float, str))
    return default if plain else inspect.Parameter.empty


def same(value: Any, wanted: Any) -> bool:
    """True if two constants are equal; 1 is not True. '*.npz' matches any text with that suffix."""
    if isinstance(value, str) and isinstance(wanted, str) and wanted.startswith("*"):
        return value.endswith(wanted[1:])
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)
