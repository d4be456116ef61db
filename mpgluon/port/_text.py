"""The report as text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ._check import KINDS

if TYPE_CHECKING:
    from . import Report


def lines_of(reports: Sequence[Report], everything: bool = False) -> Iterator[str]:
    """Yields a section for each file with findings, then the summary."""
    for report in reports:
        said = list(_of_file(report, everything))
        if said:
            yield from said
            yield ""
    yield from summary(reports)


def _of_file(report, everything):
    if not report.findings:
        return
    runs, uses = report.lines_that_run, report.lines_that_use_mxnet
    yield f"{report.path}: " + (
        f"{uses} lines use MXNet, {runs} of them run as they are" if uses else "does not use MXNet"
    )
    others: dict[tuple[str, str, str], list[str]] = {}
    for one in sorted(report.findings, key=lambda one: (one.cell, one.line, one.column)):
        place = f"{one.cell}:{one.line}" if one.cell else str(one.line)
        places = others.setdefault((one.kind, one.name, one.text), [])
        if place not in places:
            places.append(place)
    for (kind, name, text), places in others.items():
        if kind == "runs":
            if everything:
                for place in places:
                    yield _row(place, kind, name)
            continue
        said = (
            f"{name} -> {text}" if kind in ("import", "device") else f"{name}: {text}".strip(": ")
        )
        if len(places) > 1:
            said += f" (also line {', '.join(places[1:6])}{', ...' if len(places) > 6 else ''})"
        yield _row(places[0], kind, said)


def _row(place, kind, text):
    head = f"{place:>9}  {kind:<9}  "
    return textwrap.fill(
        text,
        width=100,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def summary(reports: Sequence[Report]) -> Iterator[str]:
    """Yields the numbers of files and lines of each kind."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.kinds)
    unread = sum(report.unreadable for report in reports)
    using = [report for report in reports if report.lines_that_use_mxnet]
    more = {"missing", "differs", "check", "python", "package"}
    plain = sum(not one.unreadable and not more & set(one.kinds) for one in using)
    lines = sum(report.lines_that_use_mxnet for report in reports)
    runs = sum(report.lines_that_run for report in reports)
    yield (
        f"{_count(len(reports), 'file')}, {len(using)} of which use MXNet; {plain} of these need "
        "nothing but imports"
    )
    yield f"{_count(lines, 'line')} with MXNet, {runs} of which run as they are"
    for kind, meaning in KINDS.items():
        if kind not in ("runs", "error") and counts[kind]:
            yield f"{counts[kind]:>9}  {kind:<9}  {meaning}"
    if unread:
        yield f"{_count(unread, 'file')} cannot be read in whole"
    written = sum(report.written for report in reports)
    if written:
        yield f"{_count(written, 'file')} changed"


def _count(number, thing):
    return f"{number} {thing}{'' if number == 1 else 's'}"
