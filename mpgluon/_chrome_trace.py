"""The profiler's events in the form that Chrome's and Perfetto's trace viewers read."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def chrome_trace(
    recorded: Sequence[dict[str, Any]], marks: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The trace of the events: one row per device, copies as arrows between rows; below them one
    row per domain."""
    named = {device for event in recorded for device in (event["device"], event["peer"]) if device}
    order = sorted(
        named, key=lambda device: (device.partition("(")[0], int(device.partition("(")[2][:-1]))
    )
    names = [*order, *dict.fromkeys(mark["tid"] for mark in marks)]
    rows = {name: number for number, name in enumerate(names)}
    busy = {
        device: [(event["begin"], event["end"]) for event in recorded if event["device"] == device]
        for device in order
    }
    items = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "mpgluon"}}]
    for name, row in rows.items():
        items += _row(name, row)
    for number, event in enumerate(recorded):
        items.append(_span(event, rows))
        if event["kind"] == "copy" and event["peer"]:
            items += _arrow(event, number, rows, busy)
    items += [{**mark, "pid": 0, "tid": rows[mark["tid"]]} for mark in marks]
    return {"traceEvents": items, "displayTimeUnit": "ms"}


def _row(name, row):
    """The name and place of a row."""
    about = {"ph": "M", "pid": 0, "tid": row}
    return [
        {**about, "name": "thread_name", "args": {"name": name}},
        {**about, "name": "thread_sort_index", "args": {"sort_index": row}},
    ]


def _span(event, rows):
    """An event from its begin to its end."""
    name = f"{event['scope']}/{event['name']}" if event["scope"] else event["name"]
    args = {"op": event["name"], "bytes": event["bytes"]}
    if event["stage"] is not None:
        args.update(stage=event["stage"], micro_batch=event["micro_batch"])
    begin, end = event["begin"] * 1e6, event["end"] * 1e6
    return {
        "ph": "X",
        "name": name + (" (backward)" if event["backward"] else ""),
        "cat": event["kind"],
        "pid": 0,
        "tid": rows[event["device"]],
        "ts": begin,
        "dur": end - begin,
        "args": args,
    }


def _arrow(event, number, rows, busy):
    """The arrow of a copy, as its start and its end."""
    begin, end = event["begin"] * 1e6, event["end"] * 1e6
    here, there = rows[event["device"]], rows[event["peer"]]
    arrow = {"name": "copy", "cat": "copy", "id": number, "pid": 0}
    if event["program"]:  # programs push: from this row to the work that is next on the other
        return [
            {**arrow, "ph": "s", "tid": here, "ts": begin},
            {**arrow, "ph": "f", "tid": there, "ts": end},
        ]
    # Otherwise the receiver fetches: from the work that was last on the other row to this one
    sent = _last_before(event, busy[event["peer"]])
    return [
        {**arrow, "ph": "s", "tid": there, "ts": sent},
        {**arrow, "ph": "f", "bp": "e", "tid": here, "ts": begin},
    ]


def _last_before(event, spans):
    """Microseconds at which the last of the spans, which are in order, that begins before the event
    is going on; viewers draw arrows between things that run."""
    place = bisect.bisect_right(spans, event["begin"], key=lambda span: span[0])
    return sum(spans[place - 1]) / 2 * 1e6 if place else event["begin"] * 1e6
