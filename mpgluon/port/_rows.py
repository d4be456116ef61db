"""The differences from MXNet that docs/porting.md lists, as patterns of code.

The page is the only source of these facts; wheels contain a copy. In each row of its tables under
"Different on purpose", the first column describes the affected uses. Its code is parsed into
patterns: `Dropout(p=1)` is a call with that option, `nd.save('*.npz')` a call with a text of that
suffix, `cpu_pinned` a use of that name.
If the column also has words, a condition that cannot be seen in a source ("`norm` of integers"),
only calls with options match. A comment in the cell, ``<!-- port: PATTERN, PATTERN -->``, replaces
its code.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import pathlib
import re
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ANY: Any = object()  # an argument of any value

# Module aliases. Array and symbol modules share a name, because they have the same ops.
_SAME = {"ndarray": "nd", "symbol": "nd", "sym": "nd", "F": "nd", "optimizer": "opt"}


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A use of a name, possibly with options."""

    path: tuple[str, ...]  # the last parts of the name; empty matches any function
    given: tuple[tuple[int, Any], ...] = ()  # positional arguments that are constants
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def constrained(self) -> bool:
        """True if it requires values of arguments."""
        return bool(self.given or self.options)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the page: the use, MXNet's behavior, and the behavior here."""

    section: str
    where: str
    theirs: str
    ours: str
    patterns: tuple[Pattern, ...]
    conditional: bool  # `where` has a condition that source code does not show


def normal(path: tuple[str, ...]) -> tuple[str, ...]:
    """Normalizes a dotted name, so that each module of ops has one name."""
    path = path[1:] if path[:1] == ("mx",) else path
    path = tuple(_SAME.get(part, part) for part in path[:1]) + path[1:]
    return path[:1] + path[2:] if path[:2] in (("nd", "op"), ("nd", "_internal")) else path


@functools.cache
def page() -> str:
    """Returns the text of docs/porting.md: the copy in a wheel, or the file in a source tree."""
    for path in (HERE / "porting.md", HERE.parents[1] / "docs" / "porting.md"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(
        f"mpgluon.port: the list of differences, porting.md, is neither in {HERE} nor in "
        f"{HERE.parents[1] / 'docs'}; reinstall mpgluon"
    )


@functools.cache
def rows() -> tuple[Row, ...]:
    """Returns all differences on the page."""
    return tuple(_read(page()))


@functools.cache
def packages() -> frozenset[str]:
    """Returns the published packages that import mxnet, by the names that programs import."""
    text = page().partition("\n## Packages\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1].split() for line in text.splitlines() if line.startswith("|")]
    names = {cell[0].lower().replace("-", "_") for cell in cells[2:]}
    return frozenset({"keras" if name == "keras_mxnet" else name for name in names} | {"d2l"})


def _read(text):
    inside, section = False, ""
    for line in text.splitlines():
        if line.startswith("## "):
            inside = line == "## Different on purpose"
        elif line.startswith("### "):
            section = line[4:]
        elif inside and line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) >= 3 and cells[0] != "where" and not set(cells[0]) <= set("-: "):
                yield _row(section, *cells[:3])


def _row(section, where, theirs, ours):
    comment = re.search(r"<!-- port:(.*?)-->", where)
    where = re.sub(r"\s*<!--.*?-->", "", where)
    spans = re.findall(r"`([^`]+)`", where)
    rest = re.sub(r"`[^`]*`", "", where)
    conditional = bool(re.sub(r"[\s,;.]|\band\b|\bor\b", "", rest))
    if comment:
        spans = re.split(r",(?![^(]*\))\s*", comment[1].strip())
    found = tuple(filter(None, map(pattern_of, spans)))
    if conditional and not comment:
        found = tuple(pattern for pattern in found if pattern.constrained)
    return Row(section, where, theirs, ours, found, conditional)


def pattern_of(code: str) -> Pattern | None:
    """Parses a piece of code into a pattern; returns None if it is not one."""
    code = code.strip().replace("…", "...")
    if re.fullmatch(r"\w+\s*=[^=].*", code):
        code = f"_({code})"
    try:
        node = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, ast.Call):
        path = dotted(node)
        return Pattern(normal(path)) if path and (len(path) > 1 or len(path[0]) > 2) else None
    path = dotted(node.func)
    if path is None:
        return None
    values = [(i, constant(argument)) for i, argument in enumerate(node.args)]
    given = tuple((i, value) for i, value in values if value is not ANY)
    options = tuple((one.arg, constant(one.value)) for one in node.keywords if one.arg is not None)
    return Pattern(() if path == ("_",) else normal(path), given, options)


def dotted(node: ast.AST) -> tuple[str, ...] | None:
    """Returns the parts of a dotted name, or None for any other expression."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return before and (*before, node.attr)
    return None


def constant(node: ast.expr) -> Any:
    """Returns the value of a constant in a source (also a tuple or a negative number), else ANY."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ANY
    return ANY if value is ... else value
