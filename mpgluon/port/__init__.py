"""Reads MXNet programs, without running them, and reports the changes that they need to run here::

    python -m mpgluon.port PATH ...

PATH is a Python file, a notebook, or a folder of them. The report lists line by line the imports to
change, the uses that behave differently here (see the page *Porting MXNet programs*), the missing
names, and places where several Trainers or manual copies can become one block. ``--write`` changes
the imports.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from . import _sources, _text
from ._check import KINDS as KINDS, Check, Finding as Finding
from ._sources import Unreadable

__all__ = ["KINDS", "Finding", "Report", "main", "read"]


@dataclasses.dataclass
class Report:
    """The findings in a file.

    Attributes
    ----------
    path : str
        The file.
    findings : list of Finding
        The findings, by line.
    unreadable : bool
        True if the file, or a cell of the notebook, could not be read; a finding of the kind
        'error' has the reason.
    written : bool
        True if the file was changed.

    Examples
    --------
    >>> from mpgluon import port
    >>> report = port.Report("file.py", [port.Finding(1, 8, "import", "mxnet", "mpgluon")])
    >>> report.lines_that_use_mxnet, report.kinds["import"]
    (1, 1)
    """

    path: str
    findings: list[Finding] = dataclasses.field(default_factory=list)
    unreadable: bool = False
    written: bool = False

    def _lines(self, kinds):
        return {(one.cell, one.line) for one in self.findings if one.kind in kinds}

    @property
    def lines_that_use_mxnet(self) -> int:
        """The number of lines with a name of MXNet's."""
        return len(self._lines(set(KINDS) - {"error", "python", "one block", "package"}))

    @property
    def lines_that_run(self) -> int:
        """The number of these lines that run unchanged."""
        return len(self._lines({"runs"}) - self._lines(set(KINDS) - {"runs", "one block"}))

    @property
    def kinds(self) -> Counter[str]:
        """The number of findings of each kind."""
        return Counter(one.kind for one in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report in the form that ``--json`` prints."""
        return {
            "path": self.path,
            "lines": self.lines_that_use_mxnet,
            "lines_that_run": self.lines_that_run,
            "unreadable": self.unreadable,
            "written": self.written,
            "findings": [dataclasses.asdict(one) for one in self.findings],
        }


def read(paths: Iterable[str], write: bool = False, cpu: bool = False) -> list[Report]:
    """Reads files and folders; a file that cannot be read has its error as a finding.

    Parameters
    ----------
    paths : iterable of str
        Python files, notebooks, or folders.
    write : bool, default False
        True to change imports of mxnet in the files, if this is safe. A file is replaced
        atomically; everything but the names in the imports is unchanged, and the change is
        idempotent.
    cpu : bool, default False
        True to replace ``mx.gpu`` with ``mx.cpu``, to try multi-GPU programs on CPU devices.

    Returns
    -------
    list of Report

    Examples
    --------
    >>> from mpgluon import port
    >>> [report.findings[0].text for report in port.read(["/no/such/file.py"])]
    ['No such file or directory']
    """
    return [
        _report(path, error, write, cpu) for given in paths for path, error in _sources.find(given)
    ]


def _report(path, error, write, cpu):
    try:
        if error is not None:
            raise error
        source = _sources.read(path)
        check = Check(source, cpu)
    except Unreadable as error:
        return Report(path, [Finding(error.line, 1, "error", "", str(error), error.cell)], True)
    except RecursionError:
        return Report(path, [Finding(0, 1, "error", "", "is nested too deeply")], True)
    problems = [Finding(one.line, 1, "error", "", str(one), one.cell) for one in source.problems]
    report = Report(path, check.found + problems, bool(problems))
    if write and check.edits:
        try:
            _sources.write(path, _sources.changed(source, check.edits))
        except OSError as failure:
            text = f"cannot be written: {failure.strerror or failure}"
            report.findings.append(Finding(0, 1, "error", "", text))
            report.unreadable = True
        else:
            report.written = True
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns 0 if all names are available, and 1 if some are missing or a file cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="python -m mpgluon.port",
        description="Reads programs for MXNet, without running them, and reports what they need to "
        "run here.",
        epilog="Status: 0 where all names are there, 1 where some are missing or a file cannot be "
        "read, 2 for wrong arguments.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, a notebook, or a folder")
    parser.add_argument(
        "--write", action="store_true", help="change the imports of mxnet in the files"
    )
    parser.add_argument(
        "--cpu", action="store_true", help="with --write, change mx.gpu to mx.cpu, too"
    )
    parser.add_argument("--all", action="store_true", help="list what runs as it is, too")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    if options.cpu and not options.write:
        parser.error("--cpu goes with --write")
    reports = read(options.paths, options.write, options.cpu)
    text = (
        json.dumps([report.as_dict() for report in reports], indent=1)
        if options.json
        else "\n".join(_text.lines_of(reports, options.all))
    )
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    bad = any(report.unreadable or report.kinds["missing"] for report in reports)
    return int(bad)
