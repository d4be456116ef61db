"""Finds, reads and rewrites Python files and notebooks."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import json
import os
import re
import stat
import tempfile
import tokenize
import warnings
from collections.abc import Iterator
from typing import Any

LARGEST = 32 << 20  # bytes; a larger file is treated as data
_SKIPPED = ("__pycache__", "node_modules", "site-packages")


class Unreadable(Exception):
    """The reason why a file, or a part of it, cannot be read."""

    def __init__(self, text: str, line: int = 0, cell: int = 0) -> None:
        super().__init__(text)
        self.line, self.cell = line, cell


@dataclasses.dataclass
class Edit:
    """A change within a line; columns are character indices from 0."""

    line: int
    begin: int
    end: int
    text: str


@dataclasses.dataclass
class Source:
    """The code of a file as lines; those of a notebook are its concatenated code cells."""

    path: str
    lines: list[str]  # including line ends
    tree: ast.Module
    # For a notebook, (cell, line in the cell) of each line, both counted from 1
    places: list[tuple[int, int]] | None = None
    problems: list[Unreadable] = dataclasses.field(default_factory=list)
    encoding: str = "utf-8"
    document: Any = None  # for a notebook, its parsed JSON
    raw: bytes = b""

    def place(self, line: int) -> tuple[int, int]:
        """Returns the cell (0 outside notebooks) of a line, and the line in it."""
        return self.places[line - 1] if self.places else (0, line)


def find(path: str) -> Iterator[tuple[str, Unreadable | None]]:
    """Yields the files to read: the path itself, or the Python files and notebooks in a folder.

    Each file is yielded once, with an error if it cannot be read.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        yield path, Unreadable(_reason(error))
        return
    if not stat.S_ISDIR(mode):
        yield path, None if stat.S_ISREG(mode) else Unreadable("is not a regular file")
        return
    errors: list[OSError] = []
    seen = set()
    for folder, inner, names in os.walk(path, onerror=errors.append):
        inner[:] = sorted(
            name
            for name in inner
            if not name.startswith(".")
            and name not in _SKIPPED
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
        )
        for name in sorted(names):
            if name.startswith(".") or not name.endswith((".py", ".ipynb")):
                continue
            file = os.path.join(folder, name)
            try:
                state = os.stat(file)
            except OSError as error:
                yield file, Unreadable(_reason(error))
                continue
            if (state.st_dev, state.st_ino) in seen:
                continue
            seen.add((state.st_dev, state.st_ino))
            ordinary = stat.S_ISREG(state.st_mode)
            yield file, None if ordinary else Unreadable("is not a regular file")
        for failure in errors:
            yield str(failure.filename), Unreadable(_reason(failure))
        errors.clear()
    for failure in errors:
        yield str(failure.filename), Unreadable(_reason(failure))


def _reason(error):
    return error.strerror or str(error)


def read(path: str) -> Source:
    """Reads a file.

    Raises `Unreadable` if it is not text, too large, in a wrong encoding, Python 2, or has a syntax
    error. Notebook cells that cannot be read are listed in `problems`.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise Unreadable(_reason(error)) from None
    if len(raw) > LARGEST:
        raise Unreadable(f"is larger than {LARGEST >> 20} MiB")
    if b"\0" in raw:
        raise Unreadable("is a binary file")
    if path.endswith(".ipynb"):
        return _read_notebook(path, raw)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        reason = getattr(error, "msg", None) or f"is not {getattr(error, 'encoding', 'text')}"
        raise Unreadable(f"cannot be decoded: {reason}") from None
    lines = text.splitlines(keepends=True) if "\f" not in text else _lines(text)
    return Source(path, lines, parse(lines), encoding=encoding, raw=raw)


def _lines(text):
    """Splits text into lines like Python, which does not split at form feeds."""
    return io.StringIO(text, newline="").readlines()


def parse(lines: list[str]) -> ast.Module:
    """Parses a source; raises `Unreadable` if it is not valid Python 3."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about backslashes in strings
        try:
            return ast.parse("".join(lines))
        except SyntaxError as error:
            old = _python_2(lines)
            if old:
                line, what = old
                raise Unreadable(
                    f"is Python 2 ({what}); convert it to Python 3 first", line
                ) from None
            raise Unreadable(f"syntax error: {error.msg}", error.lineno or 0) from None
        except (RecursionError, MemoryError):
            raise Unreadable("is nested too deeply") from None
        except ValueError as error:
            raise Unreadable(str(error)) from None


_PYTHON_2 = (
    (r"^\s*print\s+[^\s(=.,)\]]|^\s*print\s*$|:\s*print\s+[\"'\w]", "a print statement"),
    (r"^\s*print\s*\(.*\)\s*%|^\s*print\s*>>", "a print statement"),
    (r"^\s*except\s+[\w.()\s,]+,\s*\w+\s*:", "except with a comma"),
    (r"^\s*raise\s+[\w.]+\s*,", "raise with a comma"),
    (r"^\s*exec\s+[^(\s=]", "an exec statement"),
    (r"<>", "the operator <>"),
    (r"\bur[\"']", "a ur string"),
    (r"(?<![\w.])0[0-7]+\b", "an octal number"),
    (r"\b\d+[lL]\b", "a long number"),
    (r"\blambda\s*\(", "a lambda that unpacks a tuple"),
)


def _python_2(lines):
    """Returns the first line that is only valid in Python 2, and the construct; or None."""
    for number, line in enumerate(lines, 1):
        code = line.split("#")[0]
        for pattern, what in _PYTHON_2:
            if re.search(pattern, code):
                return number, what
    return None


def _read_notebook(path, raw):
    try:
        document = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is not a notebook: {error}") from None
    cells = document.get("cells") if isinstance(document, dict) else None
    if cells is None and isinstance(document, dict) and "worksheets" in document:
        raise Unreadable("is a notebook of format 3; open and save it with Jupyter first")
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise Unreadable("is not a notebook: it has no cells")
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    problems = []
    for number, cell in enumerate(cells, 1):
        if cell.get("cell_type") != "code":
            continue
        code = _code(cell_text(cell))
        try:
            parse(code)
        except Unreadable as error:
            problems.append(Unreadable(str(error), error.line, number))
            code = ["\n"] * len(code)
        lines += code
        places += [(number, i) for i in range(1, len(code) + 1)]
    tree = parse(lines)
    return Source(path, lines, tree, places, problems, document=document, raw=raw)


def cell_text(cell: dict[str, Any]) -> str:
    """Returns the text of a notebook's cell."""
    source = cell.get("source", "")
    return "".join(source) if isinstance(source, list) else str(source)


def _code(text):
    """Returns a cell's lines, with lines of IPython syntax replaced."""
    lines = _lines(text if text.endswith("\n") or not text else text + "\n")
    with contextlib.suppress(Unreadable):
        parse(lines)
        return lines
    if lines and lines[0].startswith("%%") and not re.match(r"%%(time|timeit|capture)\b", lines[0]):
        return ["\n"] * len(lines)
    result = []
    for line in lines:
        magic = re.match(r"(\s*)(%{1,2}\w|!|\?|[\w.]+\?+\s*$)", line)
        result.append(f"{magic[1]}pass\n" if magic else line)
    return result


def changed(source: Source, edits: list[Edit]) -> bytes:
    """Returns the bytes of the file with the edits applied; the rest is unchanged."""
    if source.places is None:
        text = "".join(_edited(source.lines, edits))
        head = b"\xef\xbb\xbf" if source.encoding == "utf-8-sig" else b""
        return head + text.encode("utf-8" if head else source.encoding)
    return _changed_notebook(source, edits)


def _edited(lines, edits):
    lines = list(lines)
    for edit in sorted(edits, key=lambda one: (one.line, one.begin), reverse=True):
        line = lines[edit.line - 1]
        lines[edit.line - 1] = line[: edit.begin] + edit.text + line[edit.end :]
    return lines


def _changed_notebook(source, edits):
    """Returns the text of a notebook with edited lines, located by their JSON encoding."""
    wanted = json.loads(source.raw.decode("utf-8-sig"))
    pairs = []
    for edit in edits:
        cell, line = source.place(edit.line)
        mine = wanted["cells"][cell - 1]
        old = mine["source"]
        pieces = old if isinstance(old, list) else [old]
        lines = _lines("".join(pieces))
        lines[line - 1 : line] = _edited([lines[line - 1]], [dataclasses.replace(edit, line=1)])
        new = lines if isinstance(old, list) and _lines("".join(old)) == old else "".join(lines)
        mine["source"] = new
    before = json.loads(source.raw.decode("utf-8-sig"))["cells"]
    for old_cell, new_cell in zip(before, wanted["cells"]):
        if old_cell.get("source") != new_cell.get("source"):
            olds, news = old_cell["source"], new_cell["source"]
            olds, news = ([one] if isinstance(one, str) else one for one in (olds, news))
            pairs += [(old, new) for old, new in zip(olds, news) if old != new]
    text = source.raw.decode("utf-8")
    for plain in (False, True):
        result = text
        for old, new in dict.fromkeys(pairs):
            result = result.replace(
                json.dumps(old, ensure_ascii=plain), json.dumps(new, ensure_ascii=plain)
            )
        if json.loads(result.lstrip("\ufeff")) == wanted:
            return result.encode("utf-8")
    indent = 1 if "\n" in text.strip() else None
    return (json.dumps(wanted, indent=indent, ensure_ascii=False) + "\n").encode("utf-8")


def write(path: str, data: bytes) -> None:
    """Replaces the file atomically, with the same permissions. A symbolic link is preserved."""
    path = os.path.realpath(path)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    number, name = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".mpgluon-port-")
    try:
        with open(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(number)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
