"""Converts profiler events to the JSON format of the Chrome and Perfetto trace viewers."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

from ..context import parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def chrome_trace(
    recorded: Sequence[dict[str, Any]], marks: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Returns the trace of one process.

    There is one row per device and, below the devices, one row per profiler domain. A copy is an
    arrow between two device rows.
    """
    return trace_of_processes([("mpgluon", recorded, marks)])


def trace_of_processes(
    processes: Sequence[tuple[str, Sequence[dict[str, Any]], Sequence[dict[str, Any]]]],
) -> dict[str, Any]:
    """Returns the trace of several processes, one per rank.

    Each process is a tuple (name, events, marks), and all times are of one clock. A copy to a
    device of another rank is an arrow into that rank's rows.
    """
    tables = [_rows(own, *rest) for own, (_, *rest) in enumerate(processes)]
    items, number = [], 0
    for own, (title, recorded, marks) in enumerate(processes):
        about = {"ph": "M", "pid": own}
        items.append({**about, "name": "process_name", "args": {"name": title}})
        items.append({**about, "name": "process_sort_index", "args": {"sort_index": own}})
        rows = tables[own]
        for name, row in rows.items():
            items += _row(name, own, row)
        busy = {}
        for event in recorded:
            busy.setdefault(event["device"], []).append((event["begin"], event["end"]))
        for event in recorded:
            items.append(_span(event, own, rows))
            if event["kind"] == "copy" and event["peer"]:
                other = parts_of(event["peer"])[2]
                other = own if other is None or other >= len(processes) else other
                items += _arrow(event, number, own, rows, (other, tables[other]), busy)
                number += 1
        items += [{**mark, "pid": own, "tid": rows[mark["tid"]]} for mark in marks]
    return {"traceEvents": items, "displayTimeUnit": "ms"}


def _rows(own, recorded, marks):
    """Returns the row index of each device and domain of a process.

    Devices that only appear as the peer of a copy get a row as well.
    """
    named = {device for event in recorded for device in (event["device"], event["peer"]) if device}
    order = []
    for device in named:
        kind, number, rank = parts_of(device)
        if rank in (None, own):
            order.append((kind, rank is None, number, device))
    names = [*[device for *_, device in sorted(order)], *[mark["tid"] for mark in marks]]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _row(name, own, row):
    """Returns the metadata events that set a row's name and position."""
    about = {"ph": "M", "pid": own, "tid": row}
    return [
        {**about, "name": "thread_name", "args": {"name": name}},
        {**about, "name": "thread_sort_index", "args": {"sort_index": row}},
    ]


def _span(event, own, rows):
    """Returns the complete event ("X") for a profiler event."""
    name = f"{event['scope']}/{event['name']}" if event["scope"] else event["name"]
    args = {"op": event["name"], "bytes": event["bytes"]}
    if event["stage"] is not None:
        args.update(stage=event["stage"], micro_batch=event["micro_batch"])
    begin, end = event["begin"] * 1e6, event["end"] * 1e6
    return {
        "ph": "X",
        "name": name + (" (backward)" if event["backward"] else ""),
        "cat": event["kind"],
        "pid": own,
        "tid": rows[event["device"]],
        "ts": begin,
        "dur": end - begin,
        "args": args,
    }


def _arrow(event, number, own, rows, other, busy):
    """Returns the two events of a copy's arrow, its start and its end.

    `other` is (the peer's process, its rows). `busy` maps a device to the sorted spans of its work.
    The result is an empty list if the peer has no row because it did nothing during the recording.
    """
    begin, end = event["begin"] * 1e6, event["end"] * 1e6
    process, peers = other
    if event["peer"] not in peers:
        return []
    here = {"pid": own, "tid": rows[event["device"]]}
    there = {"pid": process, "tid": peers[event["peer"]]}
    arrow = {"name": "copy", "cat": "copy", "id": number}
    # Compiled programs, and sends to other ranks, push data: the arrow runs from the begin of this
    # event on this device to its end on the peer.
    if event["program"] or event["name"] == "send":
        return [{**arrow, **here, "ph": "s", "ts": begin}, {**arrow, **there, "ph": "f", "ts": end}]
    # In all other cases, this device pulls data: the arrow starts at the peer's last work before
    # this event.
    sent = _last_before(event, busy.get(event["peer"], []))
    return [
        {**arrow, **there, "ph": "s", "ts": sent},
        {**arrow, **here, "ph": "f", "bp": "e", "ts": begin},
    ]


def _last_before(event, spans):
    """Returns a time, in microseconds, inside the last span that begins before the event.

    Viewers draw an arrow only if its ends are inside events, so the event's own begin could be
    invalid. It is returned only if no span begins earlier. `spans` is sorted.
    """
    place = bisect.bisect_right(spans, event["begin"], key=lambda span: span[0])
    return sum(spans[place - 1]) / 2 * 1e6 if place else event["begin"] * 1e6
