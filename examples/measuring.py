"""Comparison of ways to train: the ways take turns on the same batches, and a few additional steps
under the profiler show why one is faster than another on this machine."""

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

import mpgluon as mx
from common import print_table
from mpgluon import autograd, gluon

Event = dict[str, Any]
COLORS = {
    "forward": "#4c8bf5",
    "backward": "#f5a623",
    "loss, clipping, update": "#7ed321",
    "copy": "#d0021b",
}


def plain_step(
    net: gluon.Block, loss: gluon.loss.Loss, trainer: gluon.Trainer
) -> Callable[[Any, Any], Any]:
    """Returns a training step with the ordinary Gluon loop and the interface of `TrainStep`:
    ``step(data, labels)`` returns the losses."""

    def step(data: mx.nd.NDArray, labels: mx.nd.NDArray) -> Any:
        with autograd.record():
            out = net(data)
            losses = loss(out, labels.as_in_context(out.context))
        losses.backward()
        trainer.step(data.shape[0])
        return losses

    return step


def take_turns(
    ways: dict[str, Callable[..., Any]], batches: Callable[[], Iterable[Any]], steps: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Trains all ways on the same batches, alternating step by step, so that other load on the
    machine affects all of them.

    `ways` maps names to functions that train on a batch and return its losses. Returns {name:
    (losses, seconds)} with a number for each step.
    """
    losses: dict[str, list[float]] = {name: [] for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with tqdm(total=steps, unit="step", dynamic_ncols=True) as progress:
        while progress.n < steps:
            for batch in batches():
                for name, way in ways.items():
                    begin = time.perf_counter()
                    loss = way(*batch)
                    mx.nd.waitall()
                    seconds[name].append(time.perf_counter() - begin)
                    losses[name].append(loss.asnumpy().mean())
                progress.update()
                progress.set_postfix({name: f"{values[-1]:.3f}" for name, values in losses.items()})
                if progress.n == steps:
                    break
    return {name: (np.array(losses[name]), np.array(seconds[name])) for name in ways}


def milliseconds(seconds: np.ndarray) -> str:
    """Returns the median as text, without the steps that compiled."""
    return f"{np.median(seconds[min(3, len(seconds) - 1) :]) * 1e3:.1f}"


# --- Why ------------------------------------------------------------------------------------------
def profiled(step: Callable[[], Any]) -> list[Event]:
    """Returns the events of a step: ops and copies of all queues, including those in addition to a
    device's own queue."""
    mx.nd.waitall()
    mx.profiler.set_state("run")
    step()
    mx.nd.waitall()
    mx.profiler.set_state("stop")
    return [
        {**event, "device": event["device"].split(" ")[0]}
        for event in mx.profiler.events()
        if event["kind"] in ("op", "copy")
    ]


def at_work(events: list[Event]) -> dict[str, float]:
    """Returns the busy seconds of each device."""
    busy: dict[str, float] = {}
    until: dict[str, float] = {}
    for event in events:  # sorted by start time
        name = event["device"]
        begin = max(event["begin"], until.get(name, -math.inf))
        busy[name] = busy.get(name, 0.0) + max(0.0, event["end"] - begin)
        until[name] = max(until.get(name, -math.inf), event["end"])
    return dict(sorted(busy.items()))


def overlap(events: list[Event]) -> float:
    """Returns the time with two or more busy devices relative to the time with at least one."""
    marks = sorted(mark for event in events for mark in ((event["begin"], 1), (event["end"], -1)))
    some = several = 0.0
    active, before = 0, 0.0
    for at, change in marks:
        some += (at - before) * (active >= 1)
        several += (at - before) * (active >= 2)
        active, before = active + change, at
    return several / some if some else 0.0


class Work:
    """The fastest of a few steps under the profiler: its seconds and the busy seconds of each
    device."""

    def __init__(self, step: Callable[[], Any], steps: int = 3) -> None:
        self.seconds, self.events = math.inf, list[Event]()
        for _ in range(steps):
            begin = time.perf_counter()
            events = profiled(step)
            seconds = time.perf_counter() - begin
            if seconds < self.seconds:
                self.seconds, self.events = seconds, events
        self.busy = at_work(self.events)


def sharing(devices: Sequence[mx.Context]) -> float:
    """Returns the slowdown of a matrix product if all devices compute one at the same time."""
    devices = list(dict.fromkeys(devices))
    matrices = [mx.nd.ones((768, 768), ctx=ctx) for ctx in devices]

    def seconds(chosen: Sequence[mx.nd.NDArray]) -> float:
        begin = time.perf_counter()
        products = [mx.nd.dot(matrix, matrix) for matrix in chosen]
        mx.nd.waitall()
        del products
        return time.perf_counter() - begin

    alone = max(min(seconds([matrix]) for _ in range(4)) for matrix in matrices)
    return min(seconds(matrices) for _ in range(4)) / alone


def print_against(works: dict[str, Any], base: str) -> None:
    """Prints a table of ways, each with `seconds` and `busy`: the speed relative to one of them,
    and the two factors of this ratio."""
    other = works[base]
    head = f"times as fast as {base} = more at work x less work"
    rows = [("", "ms a step", "devices at work on average", "ms of work on each", head)]
    for name, work in works.items():
        busy = ", ".join(f"{ctx}: {seconds * 1e3:.1f}" for ctx, seconds in work.busy.items())
        active, before = (sum(one.busy.values()) / one.seconds for one in (work, other))
        less = sum(other.busy.values()) / sum(work.busy.values())
        fast = f"{other.seconds / work.seconds:.2f} = {active / before:.2f} x {less:.2f}"
        rows.append((name, f"{work.seconds * 1e3:.1f}", f"{active:.2f}", busy, fast))
    print_table(*rows)


def why(
    ways: dict[str, Callable[..., Any]],
    batch: Sequence[Any],
    devices: Sequence[mx.Context],
    base: str = "1 device",
) -> dict[str, Work]:
    """Prints why each way is faster or slower than `base` on this machine, from a few measured
    steps of each. These steps train, so compare results before."""
    works = {name: Work(functools.partial(way, *batch)) for name, way in ways.items()}
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(f"\nwhy, on this machine ({cores} cores, load {load:.1f}):")
    print_against(works, base)
    waiting = 1 - sum(works[base].busy.values()) / works[base].seconds
    if waiting > 0.4:
        print(f"For {waiting:.0%} of the time {base} waits for Python: the network is small.")
    shared = sharing(devices)
    what = "so they share cores" if shared > 1.3 else "so each has cores of its own"
    print(f"When all devices multiply matrices, each takes {shared:.2f} times as long: {what}.")
    if load > cores + 1:
        print("Other programs use this machine, too, so these figures are of a busy machine.")
    if cores > 1 and all(ctx.device_type == "cpu" for ctx in devices):
        mx.context.set_threads(cores)
        wide = Work(lambda: ways[base](*batch))
        mx.context.set_threads(1)
        print(
            f"Here every device has a thread. With {cores} threads {base} takes "
            f"{wide.seconds * 1e3:.1f} ms."
        )
    return works


# --- Drawings -------------------------------------------------------------------------------------
def kind_of(event: Event) -> str:
    """Returns the phase of a profiler event."""
    if event["kind"] == "copy":
        return "copy"
    if not event["program"]:
        return "loss, clipping, update"
    return "backward" if event["backward"] else "forward"


def draw_timeline(axes: Any, events: list[Event]) -> None:
    """Draws the devices' work as bars, a row for each device."""
    devices = sorted({event["device"] for event in events})
    origin = min(event["begin"] for event in events)
    for kind, color in COLORS.items():
        for row, name in enumerate(devices):
            spans = [
                ((e["begin"] - origin) * 1e3, (e["end"] - e["begin"]) * 1e3)
                for e in events
                if e["device"] == name and kind == kind_of(e)
            ]
            axes.broken_barh(spans, (row - 0.3, 0.6), color=color, label=kind if row == 0 else None)
    axes.set_yticks(range(len(devices)), devices)
    axes.invert_yaxis()
    axes.set(xlabel="ms")


def new_figure(width: float, height: float, columns: int = 1, heights: Any = (1,)) -> Any:
    """Returns matplotlib's (figure, axes), with a row of axes for each of the relative heights."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(
        len(heights), columns, gridspec_kw={"height_ratios": list(heights)}
    )


def save_timelines(path: str, works: dict[str, Work]) -> None:
    """Saves a drawing of one step of each way."""
    heights = [len(work.busy) + 0.5 for work in works.values()]
    figure, axes = new_figure(11, 1 + 0.8 * sum(heights), heights=heights)
    end = max(max(e["end"] for e in w.events) - w.events[0]["begin"] for w in works.values())
    for ax, (name, work) in zip(axes, works.items()):
        draw_timeline(ax, work.events)
        ax.set(title=name, xlim=(0, end * 1e3))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    save(figure, path)


def save(figure: Any, path: str) -> None:
    """Writes an image and prints its path."""
    figure.savefig(path, dpi=110)
    print(f"picture: {os.path.abspath(path)}")
