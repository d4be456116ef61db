"""Device states, sampled by a thread many times a second."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ... import _core, context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...context import Context

INTERVAL = 0.02  # minimum seconds between two samples
SHARE = 0.002  # maximum fraction of a core's time used by sampling
WINDOW = 5.0  # seconds that the timeline and the fractions of time cover


class State(NamedTuple):
    """A device's state: `kind` is 'F' or 'B' (a compiled forward or backward pass), 'run' (another
    op or copy), 'wait' (for another device) or 'idle'."""

    kind: str
    stage: int | None = None
    micro_batch: int | None = None

    @property
    def busy(self) -> bool:
        """True if the device computes."""
        return self.kind not in ("idle", "wait")

    def __str__(self) -> str:
        names = {"F": "forward", "B": "backward", "run": "other work", "wait": "waits"}
        text = names.get(self.kind, self.kind)
        if self.stage is not None:
            text += f", stage {self.stage}, micro-batch {self.micro_batch}"
        return text


IDLE = State("idle")
_KEPT = int(WINDOW / INTERVAL) + 1  # maximum number of stored state changes per device
Span = tuple[float, float, State]  # begin and end in seconds relative to now (both <= 0), and state


@dataclasses.dataclass
class DeviceView:
    """A snapshot of a device: bytes, fractions of the last `WINDOW` seconds, and its timeline."""

    device: Context
    in_use: int
    peak: int
    limit: int  # 0 means unlimited
    busy: float
    waiting: float
    spans: list[Span]


def state_of(entry: Sequence[object]) -> State:
    """Converts an entry of `engine_queue_status` to a state."""
    _, completed, submitted, work, _, _, peer = entry[:7]
    if not completed < submitted:  # type: ignore[operator]
        return IDLE
    name, _, _, stage, micro_batch = work or ("", 0, "", None, None)  # type: ignore[misc]
    if peer is not None:
        return State("wait", stage, micro_batch)
    kind = {"compiled forward": "F", "compiled backward": "B"}.get(str(name), "run")
    return State(kind, stage, micro_batch)


class Sampler:
    """Samples the devices until `end`. The interval grows with the cost of a sample."""

    def __init__(self) -> None:
        self.used = 0.0  # seconds of processor time
        self._changes: dict[str, collections.deque[tuple[float, State]]] = {}
        self._begun = time.perf_counter()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mpgluon dashboard", daemon=True)

    def start(self) -> None:
        """Starts the sampling thread."""
        self._thread.start()

    def end(self) -> None:
        """Stops the sampling thread."""
        self._ended.set()
        self._thread.join(2)

    def _run(self):
        pause = INTERVAL
        while not self._ended.wait(pause):
            begun, used = time.perf_counter(), time.thread_time()
            states = [(str(entry[0]), state_of(entry)) for entry in _core.engine_queue_status()]
            with self._lock:
                for device, state in states:
                    changes = self._changes.get(device)
                    if changes is None:
                        changes = self._changes[device] = collections.deque(maxlen=_KEPT)
                    if not changes or changes[-1][1] != state:
                        changes.append((begun, state))
            self.used = time.thread_time()
            pause = max(INTERVAL, (self.used - used) / SHARE)

    def views(self, devices: Sequence[Context] | None) -> list[DeviceView]:
        """Returns the current views of devices, by default of all that were used so far."""
        now = time.perf_counter()
        if devices is None:
            devices = [device for device, _ in context.opened_devices()]
        with self._lock:
            changes = [list(self._changes.get(str(device), ())) for device in devices]
        first = max(self._begun, now - WINDOW)
        return [_view(*pair, first, now) for pair in zip(devices, changes)]


def _view(device, changes, first, now):
    spans: list[Span] = []
    for (begin, state), (end, _) in zip(changes, [*changes[1:], (now, IDLE)]):
        if end > first:
            spans.append((max(begin, first) - now, end - now, state))
    whole = now - first
    busy = sum(end - begin for begin, end, state in spans if state.busy)
    waiting = sum(end - begin for begin, end, state in spans if state.kind == "wait")
    memory = context.memory_stats(device)
    return DeviceView(
        device,
        memory["in_use"],
        memory["peak_in_use"],
        memory["limit"],
        busy / whole,
        waiting / whole,
        spans,
    )
