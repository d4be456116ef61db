"""Profiling: records which op ran on which device, and when.

Mirrors MXNet's ``mx.profiler``: ``set_config``, ``set_state('run' | 'stop')``, ``pause``,
``resume``, ``dump`` (a Chrome trace: open it in chrome://tracing or Perfetto) and ``dumps`` (a
table). ``events()`` returns the raw events. Recording costs nothing while it is off. `Domain`,
`Task`, `Frame`, `Event`, `Counter` and `Marker` add the program's own events to the trace.
"""

from __future__ import annotations

import json
import platform
import time
import warnings
from typing import Any

from . import _core
from ._internal import chrome_trace, ranks
from ._internal.ranks import links

__all__ = [
    "Counter",
    "Domain",
    "Event",
    "Frame",
    "Marker",
    "Task",
    "dump",
    "dump_profile",
    "dumps",
    "events",
    "pause",
    "profiler_set_config",
    "profiler_set_state",
    "resume",
    "set_config",
    "set_kvstore_handle",
    "set_state",
    "start",
    "stop",
]

_config = {"filename": "profile.json", "aggregate_stats": True}
# Trace events created by the program; their `tid` is the name of a domain.
_marks = []
custom_scopes: dict[str, str] = {}  # block path -> the Custom op that runs there
_recording = False
_KEYS = (
    "device",
    "name",
    "kind",
    "scope",
    "backward",
    "program",
    "peer",
    "bytes",
    "stage",
    "micro_batch",
    "begin",
    "end",
)


def set_kvstore_handle(handle: Any) -> None:
    """Does nothing: the store has no server process to profile.

    Examples
    --------
    >>> mx.profiler.set_kvstore_handle(None)
    """


def set_config(**kwargs: Any) -> None:
    """Sets ``filename`` (of the trace) and ``aggregate_stats``.

    MXNet's other options (``profile_all``, ``profile_memory``, ...) are accepted and ignored: ops,
    copies and waits are always recorded.

    Examples
    --------
    >>> mx.profiler.set_config(filename="profile.json", aggregate_stats=True)
    """
    known = {"filename", "aggregate_stats"}
    accepted = known | {
        "profile_all",
        "profile_symbolic",
        "profile_imperative",
        "profile_memory",
        "profile_api",
        "profile_process",
        "continuous_dump",
        "dump_period",
        "contiguous_dump",
        "gpu_memory_profile_filename_prefix",
    }
    unknown = set(kwargs) - accepted
    if unknown:
        raise ValueError(
            f"profiler.set_config: unknown option {sorted(unknown)[0]!r}; options: "
            f"{', '.join(sorted(accepted))}"
        )
    _config.update({k: v for k, v in kwargs.items() if k in known})


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Starts (``'run'``, clearing earlier events) or stops (``'stop'``) recording.

    Examples
    --------
    >>> mx.profiler.set_state("run")
    >>> _ = nd.ones(2).asnumpy()
    >>> mx.profiler.set_state("stop")
    """
    if state not in ("run", "stop"):
        raise ValueError(f"profiler.set_state: state must be 'run' or 'stop', not {state!r}")
    global _recording
    if state == "run":
        _marks.clear()
        _core.profiler_start()
    else:
        _core.waitall()
        _core.profiler_stop()
    _recording = state == "run"


def start() -> None:
    """Calls ``set_state('run')``.

    Examples
    --------
    >>> mx.profiler.start()
    >>> _ = nd.ones(2).asnumpy()
    >>> mx.profiler.stop()
    """
    set_state("run")


def stop() -> None:
    """Calls ``set_state('stop')``.

    Examples
    --------
    >>> mx.profiler.start()
    >>> mx.profiler.stop()
    """
    set_state("stop")


def pause(profile_process: str = "worker") -> None:
    """Suspends recording; the recorded events are kept.

    Examples
    --------
    >>> mx.profiler.start()
    >>> mx.profiler.pause()
    >>> _ = nd.ones(2).asnumpy()  # leaves no events
    >>> mx.profiler.resume()
    >>> mx.profiler.stop()
    """
    global _recording
    _core.profiler_stop()
    _recording = False


def resume(profile_process: str = "worker") -> None:
    """Resumes recording after ``pause``, keeping the events.

    Examples
    --------
    >>> mx.profiler.start()
    >>> mx.profiler.pause()
    >>> mx.profiler.resume()
    >>> mx.profiler.stop()
    """
    global _recording
    _core.profiler_resume()
    _recording = True


def events() -> list[dict[str, Any]]:
    """Returns the recorded events, sorted by begin.

    Each event is a dict with ``device`` ('cpu(0)'), ``name`` (the op), ``kind`` ('op', 'copy',
    'wait' or 'program'), ``scope`` (the block path), ``backward``, ``program`` (True if a compiled
    program ran it), ``peer`` (the other device of a copy or wait), ``bytes`` (copied), ``stage``
    and ``micro_batch`` (pipeline indices, or None), and ``begin`` and ``end`` in seconds of one
    monotonic clock.

    Examples
    --------
    >>> mx.profiler.start()
    >>> (nd.ones((2,)) + 1).wait_to_read()
    >>> mx.profiler.stop()
    >>> [event["device"] for event in mx.profiler.events()][:1]
    ['cpu(0)']
    """
    result = [dict(zip(_KEYS, event)) for event in _core.profiler_events()]
    for event in result:
        event["begin"] *= 1e-9
        event["end"] *= 1e-9
    result.sort(key=lambda event: event["begin"])
    return result


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Writes the Chrome trace to the configured ``filename``; ``finished`` stops recording first.

    Under ``mpirun`` all ranks must call it, and rank 0 writes one trace for all: a process per
    rank, copies between ranks as arrows, and times on rank 0's clock. The offsets of the other
    clocks are first measured by round-trip messages.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mx.profiler.set_config(filename=os.path.join(folder, "profile.json"))
    ...     mx.profiler.dump()
    ...     names = os.listdir(folder)
    >>> mx.profiler.set_config(filename="profile.json")
    >>> names
    ['profile.json']
    """
    if finished:
        set_state("stop")
    if ranks.count() == 1:
        trace = chrome_trace.chrome_trace(events(), _marks)
    else:
        processes = _of_all_ranks(events(), _marks)
        if processes is None:
            return
        trace = chrome_trace.trace_of_processes(processes)
    with open(_config["filename"], "w", encoding="utf-8") as f:
        json.dump(trace, f)


def _of_all_ranks(recorded, marks):
    """Returns each rank's name, events and marks, on rank 0's clock; None on other ranks."""
    ahead = links.clock_offsets()[ranks.own()]
    for event in recorded:
        event["begin"] -= ahead * 1e-9
        event["end"] -= ahead * 1e-9
    marks = [{**mark, "ts": mark["ts"] - ahead / 1e3} for mark in marks]
    name = f"rank {ranks.own()} on {platform.node()}"
    texts = links.gather_to_first("profiler.dump", json.dumps([name, recorded, marks]))
    return texts and [json.loads(text) for text in texts]


def dumps(
    reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False
) -> str:
    """Returns a table of time per device and op: calls, total, mean, least and most milliseconds.

    Parameters
    ----------
    reset : bool, default False
        True to discard the events afterwards; recording continues.
    format : {'table', 'json'}, default 'table'
        'json' returns an object like MXNet's, ``["Time"]["operator"]["dot"]["Count"]``, with
        copies, waits and programs next to the ops, and tasks, frames and events under the names of
        their domains. ``["Devices"]["cpu(0)"]`` has the events of one device.
    sort_by : {'total', 'avg', 'min', 'max', 'count'}, default 'total'
        The column to sort the rows by.
    ascending : bool, default False
        True to sort in ascending order.

    Examples
    --------
    >>> mx.profiler.start()
    >>> (nd.ones(2) + 1).wait_to_read()
    >>> mx.profiler.stop()
    >>> "_plus_scalar" in mx.profiler.dumps()
    True
    """
    if format not in ("table", "json"):
        raise ValueError(f"profiler.dumps: format must be 'table' or 'json', not {format!r}")
    columns = ("count", "total", "avg", "min", "max")
    if sort_by not in columns:
        raise ValueError(
            f"profiler.dumps: sort_by must be one of {', '.join(columns)}, not {sort_by!r}"
        )
    groups, kinds = {}, {}  # milliseconds, by device and op
    for event in events():
        name = event["name"] + (" (backward)" if event["backward"] else "")
        custom = custom_scopes.get(event["scope"])
        if custom:
            name = f"{custom}::{name}"
        groups.setdefault((event["device"], name), []).append((event["end"] - event["begin"]) * 1e3)
        kind = "operator" if event["kind"] == "op" else event["kind"]
        kinds[name] = "Custom Operator" if custom else kind
    spans = [mark for mark in _marks if mark["ph"] == "X"]
    if reset:
        _marks.clear()
        _core.profiler_start()
        if not _recording:
            _core.profiler_stop()

    def statistics(times):
        return len(times), sum(times), sum(times) / len(times), min(times), max(times)

    def ordered(table):
        rows = [(name, statistics(times)) for name, times in table.items()]
        return sorted(rows, key=lambda row: row[1][columns.index(sort_by)], reverse=not ascending)

    if format == "json":
        tables = {"Time": {"operator": {}}, "Devices": {}}
        for (device, name), times in groups.items():
            kind = tables["Time"].setdefault(kinds[name], {})
            kind.setdefault(name, []).extend(times)
            tables["Devices"].setdefault(device, {})[name] = times
        for mark in spans:
            domain = tables["Time"].setdefault(mark["tid"], {})
            domain.setdefault(mark["name"], []).append(mark["dur"] / 1e3)
        titles = [column.capitalize() for column in columns]
        result = {
            kind: {
                key: {name: dict(zip(titles, row)) for name, row in ordered(table)}
                for key, table in tables[kind].items()
            }
            for kind in tables
        }
        return json.dumps({**result, "Memory": {}, "Unit": {"Time": "ms", "Memory": "kB"}})
    lines = [
        f"{'Device':10s} {'Name':36s} {'Calls':>8s} {'Total ms':>12s} {'Mean ms':>10s} "
        f"{'Min ms':>10s} {'Max ms':>10s}"
    ]
    lines += [
        f"{d:10s} {n[:36]:36s} {c:8d} {t:12.3f} {a:10.4f} {lo:10.4f} {hi:10.4f}"
        for (d, n), (c, t, a, lo, hi) in ordered(groups)
    ]
    return "\n".join(lines) + "\n"


class _Span:
    """A time span from `start` to `stop`."""

    _kind = ""

    def __init__(self, domain: Domain | str, name: str) -> None:
        self.domain = domain
        self.name = name
        self._begin = None

    def start(self) -> None:
        """Starts the span."""
        self._begin = time.monotonic_ns()

    def stop(self) -> None:
        """Ends the span, and adds it to the trace if the profiler is recording.

        Raises RuntimeError without a `start`.
        """
        if self._begin is None:
            raise RuntimeError(f"{type(self).__name__} {self.name!r}: stop() without start()")
        begin, self._begin = self._begin, None
        if _recording:
            duration = time.monotonic_ns() - begin
            _marks.append(
                {
                    "ph": "X",
                    "name": self.name,
                    "cat": self._kind,
                    "tid": str(self.domain),
                    "ts": begin / 1e3,
                    "dur": duration / 1e3,
                }
            )

    def __str__(self) -> str:
        return self.name


class Domain:
    """A row of the trace, for tasks, frames, counters and markers.

    Examples
    --------
    >>> domain = mx.profiler.Domain("data")
    >>> task = domain.new_task("reading")
    >>> task.start(), task.stop()
    (None, None)
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def new_task(self, name: str) -> Task:
        """Creates a `Task` in this domain."""
        return Task(self, name)

    def new_frame(self, name: str) -> Frame:
        """Creates a `Frame` in this domain."""
        return Frame(self, name)

    def new_counter(self, name: str, value: float | None = None) -> Counter:
        """Creates a `Counter` in this domain, set to `value` if given."""
        return Counter(self, name, value)

    def new_marker(self, name: str) -> Marker:
        """Creates a `Marker` in this domain."""
        return Marker(self, name)


class Task(_Span):
    """A unit of work of the program, from `start` to `stop`: ``Task(domain, name)``.

    Examples
    --------
    >>> task = mx.profiler.Task(mx.profiler.Domain("data"), "reading")
    >>> task.start(), task.stop()
    (None, None)
    """

    _kind = "task"


class Frame(_Span):
    """One iteration of repeated work, such as a batch: ``Frame(domain, name)``.

    Examples
    --------
    >>> frame = mx.profiler.Frame(mx.profiler.Domain("video"), "frame")
    >>> frame.start(), frame.stop()
    (None, None)
    """

    _kind = "frame"


class Event(_Span):
    """A time span outside of all domains: ``Event(name)``.

    Examples
    --------
    >>> event = mx.profiler.Event("loading")
    >>> event.start(), event.stop()
    (None, None)
    """

    _kind = "event"

    def __init__(self, name: str) -> None:
        super().__init__("events", name)


class Counter:
    """A number drawn as a curve; each change while the profiler records is a point.

    Examples
    --------
    >>> counter = mx.profiler.Counter(mx.profiler.Domain("data"), "batches", 1)
    >>> counter += 2
    >>> print(counter)
    batches
    """

    def __init__(self, domain: Domain, name: str, value: float | None = None) -> None:
        self.domain = domain
        self.name = name
        self._value = 0
        if value is not None:
            self.set_value(value)

    def set_value(self, value: float) -> None:
        """Sets the value."""
        self._value = value
        if _recording:
            _marks.append(
                {
                    "ph": "C",
                    "name": self.name,
                    "cat": "counter",
                    "tid": str(self.domain),
                    "ts": time.monotonic_ns() / 1e3,
                    "args": {"value": value},
                }
            )

    def increment(self, delta: float = 1) -> None:
        """Adds `delta`."""
        self.set_value(self._value + delta)

    def decrement(self, delta: float = 1) -> None:
        """Subtracts `delta`."""
        self.set_value(self._value - delta)

    def __iadd__(self, delta: float) -> Counter:
        self.increment(delta)
        return self

    def __isub__(self, delta: float) -> Counter:
        self.decrement(delta)
        return self

    def __str__(self) -> str:
        return self.name


class Marker:
    """A single point in time.

    Examples
    --------
    >>> mx.profiler.Marker(mx.profiler.Domain("training"), "epoch").mark()
    """

    def __init__(self, domain: Domain, name: str) -> None:
        self.domain = domain
        self.name = name

    def mark(self, scope: str = "process") -> None:
        """Adds a mark at the present time.

        ``scope`` sets the extent of the drawn line: 'global', 'process' or 'thread' ('task' and
        'marker' mean 'thread').
        """
        scopes = {"global": "g", "process": "p", "thread": "t", "task": "t", "marker": "t"}
        if scope not in scopes:
            raise ValueError(
                f"Marker.mark: scope must be one of {', '.join(scopes)}, not {scope!r}"
            )
        if _recording:
            _marks.append(
                {
                    "ph": "i",
                    "name": self.name,
                    "cat": "marker",
                    "tid": str(self.domain),
                    "ts": time.monotonic_ns() / 1e3,
                    "s": scopes[scope],
                }
            )


def profiler_set_config(mode: str = "symbolic", filename: str = "profile.json") -> None:
    """Deprecated alias of `set_config`."""
    warnings.warn(
        "profiler_set_config is deprecated, use set_config", DeprecationWarning, stacklevel=2
    )
    set_config(filename=filename)


def profiler_set_state(state: str = "stop") -> None:
    """Deprecated alias of `set_state`."""
    warnings.warn(
        "profiler_set_state is deprecated, use set_state", DeprecationWarning, stacklevel=2
    )
    set_state(state)


def dump_profile() -> None:
    """Deprecated alias of `dump`."""
    warnings.warn("dump_profile is deprecated, use dump", DeprecationWarning, stacklevel=2)
    dump()
