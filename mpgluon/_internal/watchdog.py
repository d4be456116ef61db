"""Watchdog that reports stalled devices: their current work and the work they wait for.

See `engine.set_watchdog`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from .. import _core
from ..base import counted
from ..context import parts_of
from . import ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

_running = None


class _Watchdog:
    def __init__(self, seconds):
        self.seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mpgluon watchdog", daemon=True)
        self._thread.start()

    def end(self):
        self._ended.set()

    def _watch(self):
        before, since, told = None, time.monotonic(), False
        while not self._ended.wait(min(self.seconds / 4, 1.0)):
            standing = [entry for entry in _core.engine_queue_status() if entry[1] < entry[2]]
            now = [(device, completed) for device, completed, *_ in standing]
            if now != before:
                before, since, told = now, time.monotonic(), False
            elif (
                standing
                and not told
                and time.monotonic() - since >= self.seconds
                and _core.engine_mode() != "shuffle"
            ):
                told = True  # report each stall only once
                print(describe(standing, time.monotonic() - since), file=sys.stderr, flush=True)


def _work(work):
    if work is None:
        return "work that was queued long ago"
    name, line, path, stage, micro_batch = work
    parts = [name]
    if stage is not None:
        parts.append(f"stage {stage}, micro-batch {micro_batch}")
    if path:
        parts.append(f"block {path}")
    if line:
        parts.append(f"queued at {line}")
    return ", ".join(parts)


def _rank_elsewhere(device):
    """Returns the rank that owns the device, or None if it is this process."""
    rank = parts_of(device)[2]
    return None if rank is None or rank == ranks.own() else rank


def describe(standing: Sequence[tuple[Any, ...]], seconds: float) -> str:
    """Returns the report on devices that have queued work but made no progress for `seconds`."""
    here = (
        f", rank {ranks.own()}"
        if any(parts_of(entry[0])[2] is not None for entry in standing)
        else ""
    )
    lines = [
        f"mpgluon watchdog{here}: no device has finished anything for {seconds:.1f} s, but work "
        "is queued:"
    ]
    for device, completed, submitted, work, op, path, peer, tick, peer_work in standing:
        left = submitted - completed
        left = f"{counted(left, 'tick')} {'is' if left == 1 else 'are'} left"
        at = f" at {op}" + (f" of {path}" if path else "") if op else ""
        elsewhere = _rank_elsewhere(device)
        if elsewhere is not None:
            lines.append(f"  {device} waits for rank {elsewhere} to send: {_work(work)}; {left}")
        elif peer is None:
            lines.append(
                f"  {device} is running {_work(work)}{' (' + at[1:] + ')' if at else ''}; {left}"
            )
        else:
            lines.append(f"  {device} waits for {peer}, tick {tick}: {_work(peer_work)}")
            lines.append(
                f"    for: {_work(work)}{' (' + at[1:] + ')' if at and op != 'wait' else ''}; "
                f"{left}"
            )
    return "\n".join(lines)


def set_seconds(seconds: float | None) -> float | None:
    global _running
    if seconds is not None and not (
        isinstance(seconds, (int, float)) and 0 <= seconds < float("inf")
    ):
        raise ValueError(
            "engine.set_watchdog: seconds must be a number, or None or 0 for no watchdog, not "
            f"{seconds!r}"
        )
    former = _running.seconds if _running else None
    if _running:
        _running.end()
    _running = _Watchdog(float(seconds)) if seconds else None
    return former


def _restart():
    if _running:
        set_seconds(_running.seconds)


os.register_at_fork(after_in_child=_restart)


def read_setting() -> None:
    text = os.environ.get("MPGLUON_WATCHDOG", "")
    if text:
        try:
            seconds = float(text)
            if not 0 <= seconds < float("inf"):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"environment variable MPGLUON_WATCHDOG is {text!r}; it must be a number of "
                "seconds, or 0 for no watchdog"
            ) from None
        set_seconds(seconds)
