"""Rendering of a training snapshot as text for terminals and as HTML for notebooks."""

from __future__ import annotations

import dataclasses
import html
import math

from ..._internal.sizes import byte_text
from .._pipeline.report import COLORS
from .samples import IDLE, WINDOW, DeviceView

_FILLS = {**COLORS, "run": "#b9b3d6", "wait": "#e6e6ea"}
_LETTERS = {"F": "F", "B": "B", "run": "#", "wait": ".", "idle": " "}
_BARS = " ▁▂▃▄▅▆▇█"


@dataclasses.dataclass
class Snapshot:
    """The values that a view shows: seconds since the start, number of steps, losses as (step,
    value), and devices."""

    seconds: float
    steps: int
    losses: list[tuple[int, float]]
    devices: list[DeviceView]
    ended: str = ""  # reason why the run ended, or "" while it runs

    def first_line(self) -> str:
        """Returns time, steps and loss as text."""
        parts = [f"{self.seconds:.0f} s"]
        if self.steps:
            rate = self.steps / max(self.seconds, 1e-9)
            parts.append(f"{self.steps} steps, {rate:.2f} a second")
        if self.losses:
            step, loss = self.losses[-1]
            parts.append(f"loss {loss:.4g} in step {step}")
        if self.ended:
            parts.append(self.ended)
        return "; ".join(parts)


def memory_text(view: DeviceView) -> str:
    """Formats the bytes in use, with the limit or the peak."""
    if view.limit:
        return f"{byte_text(view.in_use)} of {byte_text(view.limit)}"
    return f"{byte_text(view.in_use)}, peak {byte_text(view.peak)}"


def as_text(snapshot: Snapshot, width: int = 80) -> list[str]:
    """Returns lines of at most `width` columns. Each device has a row with a timeline of letters: F
    and B for passes, # for other work, a dot for waiting."""
    rows = [("device", "memory", "busy", "waits")]
    for view in snapshot.devices:
        shares = f"{view.busy:.0%}", f"{view.waiting:.0%}"
        rows.append((str(view.device), memory_text(view), *shares))
    widths = [max(map(len, column)) for column in zip(*rows)]
    room = width - sum(widths) - 2 * len(widths) - 4
    lines = [snapshot.first_line()]
    for row, view in zip(rows, [None, *snapshot.devices]):
        cells = "  ".join(cell.rjust(space) for cell, space in zip(row, widths))
        strip = f"last {WINDOW:.0f} s" if view is None else f"|{_strip(view, room)}|"
        lines.append(cells + ("  " + strip if room >= 10 else ""))
    if len(snapshot.losses) > 1:
        lines.append(f"loss {_sparkline([loss for _, loss in snapshot.losses], width - 6)}")
    return [line[: width - 1] for line in lines]


def _strip(view, columns):
    """Returns a timeline with a letter for each column. The window is divided evenly among the
    columns, and a letter shows the state in the middle of its interval."""
    result, spans = "", iter(view.spans)
    span = next(spans, None)
    for column in range(columns):
        at = WINDOW * ((column + 0.5) / columns - 1)
        while span is not None and span[1] <= at:
            span = next(spans, None)
        state = span[2] if span is not None and span[0] <= at else IDLE
        result += _LETTERS[state.kind]
    return result


def _sparkline(values, columns):
    values = _thinned([value for value in values if math.isfinite(value)], columns)
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 2) / (high - low) if high > low else 0
    return "".join(_BARS[1 + round((value - low) * scale)] for value in values)


def _thinned(values, number):
    """Returns at most `number` of the values, evenly spaced, including the last one."""
    if len(values) <= number:
        return values
    return [values[round(i * (len(values) - 1) / (number - 1))] for i in range(number)]


def as_html(snapshot: Snapshot) -> str:
    """Returns a table with a row for each device, and the curve of the losses."""
    titles = ("device", "memory", "busy", "waits", f"last {WINDOW:.0f} s")
    head = "".join(f'<th style="text-align: left">{title}</th>' for title in titles)
    rows = [f"<tr>{head}</tr>"]
    for view in snapshot.devices:
        whole = view.limit or view.peak or 1
        cells = (
            html.escape(str(view.device)),
            _bar(view.in_use / whole, memory_text(view), "#a8c8ec"),
            _bar(view.busy, f"{view.busy:.0%}", "#9fd19a"),
            f"{view.waiting:.0%}",
            _timeline(view),
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    legend = " ".join(
        f'<span style="background: {_FILLS[kind]}; color: black; padding: 0 6px">{text}</span>'
        for kind, text in (("F", "forward"), ("B", "backward"), ("run", "other"), ("wait", "waits"))
    )
    return (
        f"<div>{html.escape(snapshot.first_line())}</div><table>{''.join(rows)}</table>"
        f'<div style="font-size: smaller">{legend}</div>{_curve(snapshot.losses)}'
    )


def _bar(share, text, colour):
    percent = 100 * min(max(share, 0.0), 1.0)
    return (
        f'<div style="min-width: 130px; color: black; padding: 0 4px; background: '
        f'linear-gradient(to right, {colour} {percent:.1f}%, #f2f2f4 {percent:.1f}%)">'
        f"{html.escape(text)}</div>"
    )


def _timeline(view):
    parts = []
    for begin, end, state in view.spans:
        if state.kind != "idle":
            x, wide = 400 * (1 + begin / WINDOW), 400 * (end - begin) / WINDOW
            parts.append(
                f'<rect x="{x:.1f}" y="0" width="{max(wide, 0.3):.1f}" height="18" '
                f'fill="{_FILLS[state.kind]}"><title>{html.escape(str(state))}</title></rect>'
            )
    frame = '<rect width="400" height="18" fill="white" stroke="#c4c8d0"/>'
    return f'<svg width="400" height="18">{frame}{"".join(parts)}</svg>'


def _curve(losses):
    points = _thinned([(step, loss) for step, loss in losses if math.isfinite(loss)], 300)
    if len(points) < 2:
        return ""
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    first, last = points[0][0], points[-1][0]
    coordinates = " ".join(
        f"{4 + 592 * (step - first) / max(last - first, 1):.1f},"
        f"{76 - 72 * (loss - low) / ((high - low) or 1):.1f}"
        for step, loss in points
    )
    return (
        '<svg width="600" height="98" font-size="11" font-family="sans-serif">'
        '<rect width="600" height="80" fill="white" stroke="#c4c8d0"/>'
        f'<polyline points="{coordinates}" fill="none" stroke="#b3261e" stroke-width="1.5"/>'
        f'<text x="0" y="94">loss {low:.4g} to {high:.4g}, steps {first} to {last}</text></svg>'
    )
