"""Profiling: what ran on which device, from when to when.

Mirrors MXNet's ``mx.profiler``: ``set_config``, ``set_state('run' | 'stop')``, ``pause``, ``resume``, ``dump`` (a Chrome trace:
open it in chrome://tracing or Perfetto) and ``dumps`` (a table). ``events()`` gives the raw events. Recording costs nothing
while it is off.
"""

import json

from . import _core

_config = {"filename": "profile.json", "aggregate_stats": True}
_KEYS = ("device", "name", "kind", "scope", "backward", "program", "peer", "bytes", "begin", "end")


def set_config(**kwargs):
    """Sets ``filename`` (of the trace) and ``aggregate_stats``; MXNet's other options (``profile_all``, ``profile_memory``,
    ...) are taken and change nothing: ops, copies and waits are always recorded."""
    known = {"filename", "aggregate_stats"}
    accepted = known | {
        "profile_all", "profile_symbolic", "profile_imperative", "profile_memory", "profile_api", "profile_process",
        "continuous_dump", "dump_period", "contiguous_dump", "gpu_memory_profile_filename_prefix",
    }
    unknown = set(kwargs) - accepted
    if unknown:
        raise ValueError(f"profiler.set_config: unknown option {sorted(unknown)[0]!r}; options: {', '.join(sorted(accepted))}")
    _config.update({k: v for k, v in kwargs.items() if k in known})


def set_state(state="stop", profile_process="worker"):
    """Starts (``'run'``, clearing earlier events) or stops (``'stop'``) recording."""
    if state not in ("run", "stop"):
        raise ValueError(f"profiler.set_state: state is 'run' or 'stop', not {state!r}")
    if state == "run":
        _core.profiler_start()
    else:
        _core.waitall()
        _core.profiler_stop()


def start():
    """The same as ``set_state('run')``."""
    set_state("run")


def stop():
    """The same as ``set_state('stop')``."""
    set_state("stop")


def pause(profile_process="worker"):
    """Stops recording for a while; what was recorded stays."""
    _core.profiler_stop()


def resume(profile_process="worker"):
    """Goes on recording after ``pause``, keeping the events."""
    _core.profiler_resume()


def events():
    """The recorded events, in order of their begin: dicts with ``device`` ('cpu(0)'), ``name`` (the op), ``kind`` ('op', 'copy',
    'wait' or 'program'), ``scope`` (the block path), ``backward``, ``program`` (whether a compiled program ran it), ``peer`` (the
    other device of a copy or wait), ``bytes`` (copied), ``begin`` and ``end`` in seconds of one monotonic clock."""
    result = [dict(zip(_KEYS, event)) for event in _core.profiler_events()]
    for event in result:
        event["begin"] *= 1e-9
        event["end"] *= 1e-9
    result.sort(key=lambda event: event["begin"])
    return result


def _trace(recorded):
    """The Chrome trace of the events: one row per device, copies as arrows between rows."""
    named = {device for event in recorded for device in (event["device"], event["peer"]) if device}
    order = sorted(named, key=lambda device: (device.partition("(")[0], int(device.partition("(")[2][:-1])))
    devices = {device: number for number, device in enumerate(order)}
    rows = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "mpgluon"}}]
    for device, number in devices.items():
        rows.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": device}})
        rows.append({"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": number, "args": {"sort_index": number}})
    for number, event in enumerate(recorded):
        begin, end = event["begin"] * 1e6, event["end"] * 1e6
        name = f"{event['scope']}/{event['name']}" if event["scope"] else event["name"]
        if event["backward"]:
            name += " (backward)"
        row = {
            "ph": "X", "name": name, "cat": event["kind"], "pid": 0, "tid": devices[event["device"]], "ts": begin, "dur": end - begin,
            "args": {"op": event["name"], "bytes": event["bytes"]},
        }
        rows.append(row)
        if event["kind"] == "copy" and event["peer"]:
            arrow = {"name": "copy", "cat": "copy", "id": number, "pid": 0}
            rows.append({**arrow, "ph": "s", "tid": devices[event["device"]], "ts": begin})
            rows.append({**arrow, "ph": "f", "bp": "e", "tid": devices[event["peer"]], "ts": end})
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def dump(finished=True, profile_process="worker"):
    """Writes the Chrome trace to the configured ``filename``; ``finished`` stops recording first."""
    if finished:
        set_state("stop")
    with open(_config["filename"], "w", encoding="utf-8") as f:
        json.dump(_trace(events()), f)


def dumps(reset=False, format="table", sort_by="total", ascending=False):
    """A table of the time per device and op (``format='json'``: the same as JSON): calls, total, mean, least and most
    milliseconds, sorted by ``sort_by`` ('total', 'avg', 'min', 'max' or 'count')."""
    if format not in ("table", "json"):
        raise ValueError(f"profiler.dumps: format is 'table' or 'json', not {format!r}")
    columns = ("count", "total", "avg", "min", "max")
    if sort_by not in columns:
        raise ValueError(f"profiler.dumps: sort_by is one of {', '.join(columns)}, not {sort_by!r}")
    groups = {}
    for event in events():
        name = event["name"] + (" (backward)" if event["backward"] else "")
        groups.setdefault((event["device"], name), []).append((event["end"] - event["begin"]) * 1e3)
    rows = [(device, name, len(t), sum(t), sum(t) / len(t), min(t), max(t)) for (device, name), t in groups.items()]
    rows.sort(key=lambda row: row[2 + columns.index(sort_by)], reverse=not ascending)
    if reset:
        _core.profiler_start()
        _core.profiler_stop()
    if format == "json":
        return json.dumps([dict(zip(("device", "name") + columns, row)) for row in rows])
    lines = [f"{'Device':10s} {'Name':36s} {'Calls':>8s} {'Total ms':>12s} {'Mean ms':>10s} {'Min ms':>10s} {'Max ms':>10s}"]
    lines += [f"{d:10s} {n[:36]:36s} {c:8d} {t:12.3f} {a:10.4f} {lo:10.4f} {hi:10.4f}" for d, n, c, t, a, lo, hi in rows]
    return "\n".join(lines) + "\n"
