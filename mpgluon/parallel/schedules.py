"""Pipeline schedules: the order in which each device processes stages and micro-batches.

A schedule is a table with a list of actions for each device. An `Action` is the forward pass
(``F``) or backward pass (``B``) of one stage for one micro-batch, or its deferred part (``W``:
weight gradients, which no other action waits for). Tables are built by list scheduling: a
simulation in which every device, when it is free, selects the best action that is ready.

Sources: GPipe (Huang et al., 2019), 1F1B and interleaving (Narayanan et al., "Efficient Large-Scale
Language Model Training on GPU Clusters", 2021), zero bubble (Qi et al., "Zero Bubble Pipeline
Parallelism", 2023).
"""

from __future__ import annotations

import collections
import numbers
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ..base import MXNetError, counted

__all__ = [
    "SCHEDULES",
    "Action",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "make_table",
    "parse_table",
    "simulate",
    "verify",
]

DEFAULT = "1f1b"


class Schedule(typing.NamedTuple):
    """Description of a named schedule, for `Pipeline` and the planner (see `SCHEDULES`).

    Attributes
    ----------
    in_flight : function of (list of int, int), or None
        Returns the maximum number of micro-batches that a stage holds, given the number of stages
        after each stage, and the stage. None means unlimited: a device's backward passes follow all
        of its forward passes.
    deferred : bool
        Whether weight gradients are separate actions.
    rounds : int
        Number of stages that the planner gives each device. More than one requires two
        micro-batches.
    build : function of (StageGraph, int), optional
        Returns the table of a whole step for a number of micro-batches, or None if it does not
        support that number. If it returns None or is missing, the table is built by list
        scheduling.

    Examples
    --------
    >>> mx.parallel.schedules.SCHEDULES['zero_bubble']
    Schedule('zero_bubble', some micro-batches in flight, weight gradients deferred)
    """

    in_flight: Callable[[list[int], int], int] | None
    deferred: bool = False
    rounds: int = 1
    build: Callable[[StageGraph, int], list[list[Action]] | None] | None = None

    def __repr__(self) -> str:
        name = next((name for name, one in SCHEDULES.items() if one is self), None)
        held = "all" if self.in_flight is None else "some"
        return (
            f"Schedule({f'{name!r}, ' if name else ''}{held} micro-batches in flight"
            f"{', weight gradients deferred' if self.deferred else ''}"
            f"{f', {self.rounds} stages a device' if self.rounds > 1 else ''})"
        )

    def takes(self, micro_batches: int) -> bool:
        """True if the planner may combine the schedule with the given number of micro-batches.

        Examples
        --------
        >>> schedules = mx.parallel.schedules.SCHEDULES
        >>> schedules['1f1b'].takes(1), schedules['interleaved'].takes(1)
        (True, False)
        """
        return self.rounds == 1 or micro_batches > 1


def named(name: str, who: str = "", more: str = "") -> Schedule:
    """Returns the `Schedule` of that name. Raises ValueError if it does not exist; `who` and `more`
    become part of the message."""
    if not isinstance(name, str) or name not in SCHEDULES:
        raise ValueError(
            f"{who}unknown schedule {name!r}; expected one of {', '.join(SCHEDULES)}{more}"
        )
    return SCHEDULES[name]


class ScheduleError(MXNetError):
    """Raised for a schedule that cannot be executed. The message names stage and micro-batch.

    Examples
    --------
    >>> stages = mx.parallel.schedules.StageGraph([0, 1], [[], [0]])
    >>> mx.parallel.schedules.parse_table([[('F', 0, 0)]], stages)
    Traceback (most recent call last):
        ...
    mpgluon.parallel.schedules.ScheduleError: the schedule has rows for 1 devices, ...
    """


class Action(typing.NamedTuple):
    """One entry of a table.

    Attributes
    ----------
    kind : {'F', 'B', 'W'}
        The forward pass, the backward pass, or the weight gradients if they are separate.
    stage, micro_batch : int
        Indices from 0.

    Examples
    --------
    >>> print(mx.parallel.schedules.Action('F', 0, 2))
    forward of stage 0, micro-batch 2
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        names = {"F": "forward", "B": "backward", "W": "weight gradients"}
        return f"{names[self.kind]} of stage {self.stage}, micro-batch {self.micro_batch}"


Table = Sequence[Sequence[Action]]  # per device: its actions in order
Times = Mapping[tuple[str, int], float] | Mapping[Action, float]  # by (kind, stage) or by action


class StageGraph:
    """The structure of a pipeline, from which schedules are built.

    Parameters
    ----------
    devices : list of int
        For each stage, the index of its device.
    sources : list of lists of int
        For each stage, the stages whose results it needs.
    deferred : bool
        Whether weight gradients are separate actions.
    carried : bool
        Whether stages pass state from each micro-batch to the next (pipelines along time). Backward
        passes then run from the last micro-batch to the first.
    transfer_only : collection of int
        Stages without computation, which send the batch to other devices. They stay one micro-batch
        ahead, and are ignored by the limits on the number of micro-batches in flight.
    waits : dict of Action to list of Action, optional
        For each action, the actions that it waits for, in addition to the order on its device. By
        default, a forward pass waits for those of its sources, and a backward pass for those of the
        stages that it is a source of.

    Examples
    --------
    Three consecutive stages on two devices:

    >>> mx.parallel.schedules.StageGraph(devices=[0, 1, 0], sources=[[], [0], [1]])
    StageGraph(3 stages on 2 devices)
    """

    def __init__(
        self,
        devices: Iterable[int],
        sources: Iterable[Iterable[int]],
        deferred: bool = False,
        carried: bool = False,
        transfer_only: Collection[int] = (),
        waits: dict[Action, list[Action]] | None = None,
    ) -> None:
        self.devices: list[int] = list(devices)
        self.deferred: bool = deferred
        self.carried: bool = carried
        self.transfer_only: frozenset[int] = frozenset(transfer_only)
        self.waits: dict[Action, list[Action]] | None = waits
        self.sources: list[list[int]] = [sorted(set(s)) for s in sources]
        self.targets: list[list[int]] = [
            [t for t, needs in enumerate(self.sources) if s in needs]
            for s in range(len(self.devices))
        ]
        # On a device, the passes of one micro-batch keep the order for which memory is planned.
        self.before: list[list[int]] = [
            [t for t in range(s) if self.devices[t] == self.devices[s]]
            for s in range(len(self.devices))
        ]
        self.behind: list[list[int]] = [
            [t for t in range(s + 1, len(self.devices)) if self.devices[t] == self.devices[s]]
            for s in range(len(self.devices))
        ]
        # Length of the longest (critical) path of stages after each stage.
        self.after: list[int] = [0] * len(self.devices)
        for s in reversed(range(len(self.devices))):
            self.after[s] = max(
                [(s not in self.transfer_only) + self.after[t] for t in self.targets[s] if t > s],
                default=0,
            )

    def __len__(self) -> int:
        return len(self.devices)

    def __repr__(self) -> str:
        return f"StageGraph({counted(len(self), 'stage')} on {counted(self.num_devices, 'device')})"

    @property
    def num_devices(self) -> int:
        """The number of devices of the stages."""
        return max(self.devices, default=-1) + 1

    def needs(self, action: Action, micro_batches: int, kinds: Collection[str]) -> list[Action]:
        """Returns the actions that must complete before `action`. `kinds` are the kinds of actions
        in the table."""
        kind, s, m = action
        if kind == "F":
            needed = [Action("F", source, m) for source in self.before[s]]
            if self.waits is None:
                needed += [Action("F", source, m) for source in self.sources[s]]
            if self.carried and m:
                needed.append(Action("F", s, m - 1))
        elif kind == "B":
            needed = [Action("F", s, m), *[Action("B", target, m) for target in self.behind[s]]]
            if self.waits is None:
                needed += [Action("B", target, m) for target in self.targets[s]]
            if self.carried and m + 1 < micro_batches:
                needed.append(Action("B", s, m + 1))
        else:
            needed = [Action("B", t, m) for t in (s, *self.before[s], *self.behind[s])] + [
                Action("W", t, m) for t in self.behind[s]
            ]
        if self.waits is not None:
            needed += self.waits.get(action, ())
        return [a for a in needed if a.kind in kinds]


def _kinds(stages: StageGraph, phases: str) -> list[str]:
    return list(phases) + (["W"] if stages.deferred and "B" in phases else [])


def make_table(
    stages: StageGraph,
    micro_batches: int,
    schedule: str = DEFAULT,
    times: Times | None = None,
    phases: str = "FB",
    in_flight: int | None = None,
) -> list[list[Action]]:
    """Returns the table of a named schedule.

    Parameters
    ----------
    stages : StageGraph
        Stages, their devices and dependencies.
    micro_batches : int
        Number of micro-batches into which the batch is divided.
    schedule : str
        Name in `SCHEDULES`.
    times : dict of (kind, stage) or Action to number, optional
        Durations of actions. By default, F takes 1 and B takes 2, or B and W take 1 each if weight
        gradients are separate.
    phases : {'FB', 'F', 'B'}
        Whether the table is for a whole training step or for a single pass.
    in_flight : int, optional
        Maximum number of micro-batches that a stage may hold; defaults to the schedule's own.

    Returns
    -------
    list of lists of Action
        A list of actions for each device.

    Raises
    ------
    ValueError
        If the schedule does not exist.
    ScheduleError
        If the dependencies of the stages are cyclic, or `in_flight` is too small.

    Examples
    --------
    >>> from mpgluon.parallel import schedules
    >>> stages = schedules.StageGraph([0, 1], [[], [0]])
    >>> for row in schedules.make_table(stages, 3, '1f1b'):
    ...     print(' '.join(f'{a.kind}{a.micro_batch}' for a in row))
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    """
    made = named(schedule, more=", and your own tables")
    cost = _costs(stages, times)
    whole = phases == "FB" and not stages.carried
    if whole and made.build is not None and in_flight is None:
        table = made.build(stages, micro_batches)
        if table is not None:
            return table
    limit = None
    if whole and made.in_flight is not None:
        limit = made.in_flight if in_flight is None else lambda after, stage: in_flight
    table = _ListScheduling(stages, micro_batches, phases, limit, cost).run()
    if table is None:
        few = ""
        if in_flight is not None:
            few = f", or the limit of {in_flight} micro-batches in flight is too low"
        raise ScheduleError(f"the stages of this pipeline have a cyclic dependency{few}")
    return table


class _ListScheduling:
    """List scheduling: a simulation in which every free device selects the best action that is
    ready. The resulting order is the table. `limit` is as in `Schedule.in_flight`."""

    def __init__(self, stages, micro_batches, phases, limit, cost):
        self.stages, self.cost, self.phases = stages, cost, phases
        self.interleaves = limit is not None
        count, kinds = len(stages), _kinds(stages, phases)
        self.limits = [
            micro_batches if limit is None or s in stages.transfer_only else limit(stages.after, s)
            for s in range(count)
        ]
        actions = [
            Action(k, s, m) for k in kinds for s in range(count) for m in range(micro_batches)
        ]
        self.lacking = {}  # remaining action -> number of its dependencies that are not done
        self.users = {action: [] for action in actions}  # action -> actions that depend on it
        self.ends = dict.fromkeys(actions, 0.0)  # action -> latest end of a finished dependency
        for action in actions:
            needed = stages.needs(action, micro_batches, kinds)
            self.lacking[action] = len(needed)
            for other in needed:
                self.users[other].append(action)
        # (kind, stage) -> next micro-batch; they are processed in order
        self.following = {
            (k, s): (micro_batches - 1 if stages.carried and k != "F" else 0)
            for k in kinds
            for s in range(count)
        }
        self.forwards_left = collections.Counter(
            stages.devices[action.stage] for action in actions if action.kind == "F"
        )
        self.held = [0] * count  # number of micro-batches that each stage holds
        self.free = [0.0] * stages.num_devices  # end time of each device's last action
        self.table = [[] for _ in range(stages.num_devices)]

    def run(self):
        """Returns the table, or None if actions remain but no action is ready."""
        while self.lacking:
            best = min(self._ready(), default=None)
            if best is None:
                return None
            start, _, action = best
            self._take(Action(*action), start)
        return self.table

    def _ready(self):
        """Yields (earliest start, rank, action) for each action that could be next."""
        for (kind, s), m in self.following.items():
            action = (kind, s, m)
            if self.lacking.get(action) == 0 and self._is_allowed(action):
                start = max(self.free[self.stages.devices[s]], self.ends[action])
                yield start, self._rank(action), action

    def _rank(self, action):
        """Returns the priority of an action: sending batches first, then backward passes, forward
        passes, and deferred weight gradients."""
        kind, s, m = action
        if kind == "W":
            return (2, 0, m, s)
        if kind == "B":
            return (0, 0, m, -s)
        return (-1 if s in self.stages.transfer_only else 1, 0, -s, m)

    def _is_allowed(self, action):
        """True if the stage may take a micro-batch, and its device has reached this phase."""
        kind, s, m = action
        if kind == "F":
            if self.interleaves and s in self.stages.transfer_only:
                targets = [self.following["F", t] for t in self.stages.targets[s]]
                if m > 1 + min(targets, default=m):  # at most one micro-batch ahead of its targets
                    return False
            return self.held[s] < self.limits[s]
        if kind == "B" and not self.interleaves and "F" in self.phases:
            return not self.forwards_left[self.stages.devices[s]]
        return True

    def _take(self, action, start):
        """Schedules an action as the next one on its device."""
        kind, s, _ = action
        device = self.stages.devices[s]
        self.table[device].append(action)
        self.free[device] = end = start + self.cost(action)
        del self.lacking[action]
        for user in self.users[action]:
            self.lacking[user] -= 1
            self.ends[user] = max(self.ends[user], end)
        self.following[kind, s] += -1 if self.stages.carried and kind != "F" else 1
        if kind == "F":
            self.held[s] += 1
            self.forwards_left[device] -= 1
        elif kind == ("W" if self.stages.deferred else "B"):
            self.held[s] -= 1


def _interleaved(stages: StageGraph, micro_batches: int) -> list[list[Action]] | None:
    """Returns the interleaved table of Narayanan et al. It requires that stages are assigned to the
    devices in turn (round-robin). Returns None for other assignments, and for numbers of
    micro-batches that do not support it."""
    count = stages.num_devices
    chunks, rest = divmod(len(stages), count)
    if (
        rest
        or chunks < 2
        or micro_batches % count
        or stages.deferred
        or any(d != s % count for s, d in enumerate(stages.devices))
    ):
        return None
    table = []
    for device in range(count):
        steps = [(m, chunk) for m in range(micro_batches) for chunk in range(chunks)]
        forwards = [
            Action("F", c * count + device, m)
            for m, c in sorted(steps, key=lambda x: (x[0] // count, x[1], x[0]))
        ]
        backwards = [
            Action("B", c * count + device, m)
            for m, c in sorted(steps, key=lambda x: (x[0] // count, -x[1], x[0]))
        ]
        warm = min(len(forwards), 2 * (count - device - 1) + (chunks - 1) * count)
        row = forwards[:warm]
        for i, forward in enumerate(forwards[warm:]):
            row += [forward, backwards[i]]
        table.append(row + backwards[len(forwards) - warm :])
    try:
        verify(table, stages, micro_batches)
    except ScheduleError:
        return None
    return table


def _as_many_as_behind(after: list[int], stage: int) -> int:
    return after[stage] + 1


def _as_many_as_first(after: list[int], stage: int) -> int:
    """Returns the number of micro-batches that the first device holds with 1F1B."""
    return max(after, default=0) + 1


# Named schedules, which users and the planner can choose.
SCHEDULES = {
    "gpipe": Schedule(in_flight=None),
    "1f1b": Schedule(_as_many_as_behind),
    "interleaved": Schedule(_as_many_as_behind, rounds=2, build=_interleaved),
    "zero_bubble": Schedule(_as_many_as_first, deferred=True),
}
NAMES = tuple(SCHEDULES)


def _costs(stages: StageGraph, times: Times | None) -> Callable[[Action], float]:
    default = {"F": 1.0, "B": 1.0 if stages.deferred else 2.0, "W": 1.0}
    if times is None:
        return lambda action: default[action.kind]

    def cost(action):
        kind, s, _ = action
        return times.get(action, times.get((kind, s), default[kind]))

    return cost


def parse_table(
    table: Sequence[Sequence[tuple[str, int, int]]], stages: StageGraph
) -> list[list[Action]]:
    """Converts a user's table to lists of `Action`.

    Parameters
    ----------
    table : list of lists of (str, int, int)
        For each device, in order: kind ('F', 'B' or 'W'), stage and micro-batch.
    stages : StageGraph
        Stages that the table is for.

    Returns
    -------
    list of lists of Action
        A list of actions for each device.

    Raises
    ------
    ScheduleError
        If an entry has another form, or the number of rows differs from the number of devices.

    Examples
    --------
    >>> from mpgluon.parallel import schedules
    >>> stages = schedules.StageGraph([0], [[]])
    >>> schedules.parse_table([[('F', 0, 0), ('B', 0, 0)]], stages)
    [[Action(kind='F', stage=0, micro_batch=0), Action(kind='B', stage=0, micro_batch=0)]]
    """
    if len(table) != stages.num_devices:
        raise ScheduleError(
            f"the schedule has rows for {len(table)} devices, but the pipeline spans "
            f"{stages.num_devices}"
        )
    parsed = []
    for number_of_row, row in enumerate(table):
        actions = []
        for entry in row:
            try:
                kind, stage, micro_batch = entry
            except (TypeError, ValueError):
                raise ScheduleError(
                    f"entry {entry!r} of device {number_of_row}'s row must be (kind, stage, "
                    "micro_batch)"
                ) from None
            if kind not in ("F", "B", "W"):
                raise ScheduleError(
                    f"entry {entry!r} of device {number_of_row}'s row: the kind must be 'F', 'B' "
                    "or 'W'"
                )
            if not all(isinstance(number, numbers.Integral) for number in (stage, micro_batch)):
                raise ScheduleError(
                    f"entry {entry!r} of device {number_of_row}'s row: stage and micro-batch "
                    "must be integers"
                )
            actions.append(Action(kind, int(stage), int(micro_batch)))
        parsed.append(actions)
    return parsed


def verify(
    table: Table,
    stages: StageGraph,
    micro_batches: int,
    phases: str = "FB",
    limits: Sequence[int] | None = None,
) -> list[Action]:
    """Checks that a table contains every action once, on the right device, in data order and
    without deadlock.

    Parameters
    ----------
    table : list of lists of Action
        A list of actions for each device, in order.
    stages : StageGraph
        Stages that the table is for.
    micro_batches : int
        Number of micro-batches into which the batch is divided.
    phases : {'FB', 'F', 'B'}
        Whether the table is for a whole training step or for a single pass.
    limits : list of int, optional
        Maximum number of micro-batches that each stage may hold.

    Returns
    -------
    list of Action
        All actions, in an order in which they can be queued.

    Raises
    ------
    ScheduleError
        If an action is missing, duplicated, on the wrong device, or can never run; the message
        names the first one.

    Examples
    --------
    >>> from mpgluon.parallel import schedules
    >>> stages = schedules.StageGraph([0, 1], [[], [0]])
    >>> table = schedules.parse_table([[('F', 0, 0), ('B', 0, 0)],
    ...                                [('B', 1, 0), ('F', 1, 0)]], stages)
    >>> schedules.verify(table, stages, 1)
    Traceback (most recent call last):
        ...
    mpgluon.parallel.schedules.ScheduleError: deadlock: backward of stage 1, ...
    """
    kinds = _kinds(stages, phases)
    seen = {}
    for device, row in enumerate(table):
        for action in row:
            kind, s, m = action
            if not 0 <= s < len(stages):
                raise ScheduleError(
                    f"the schedule has stage {s}, but the pipeline has stages 0 to "
                    f"{len(stages) - 1}"
                )
            if not 0 <= m < micro_batches:
                raise ScheduleError(
                    f"the schedule has micro-batch {m} of stage {s}, but the micro-batches are 0 "
                    f"to {micro_batches - 1}"
                )
            if kind not in kinds:
                advice = ""
                if kind == "W":
                    names = [repr(name) for name, made in SCHEDULES.items() if made.deferred]
                    advice = f"; schedule={' or '.join(names)} defers weight gradients"
                raise ScheduleError(f"{action}: this pipeline has no such action{advice}")
            if stages.devices[s] != device:
                raise ScheduleError(
                    f"{action} is in the row of device {device}, but stage {s} is on device "
                    f"{stages.devices[s]}"
                )
            if action in seen:
                raise ScheduleError(f"{action} is in the schedule twice")
            seen[action] = device
    for kind in kinds:
        for s in range(len(stages)):
            order = [
                a.micro_batch for a in table[stages.devices[s]] if a.kind == kind and a.stage == s
            ]
            missing = sorted(set(range(micro_batches)) - set(order))
            if missing:
                raise ScheduleError(f"{Action(kind, s, missing[0])} is missing from the schedule")
            downwards = stages.carried and kind != "F"
            if order != sorted(order, reverse=downwards):
                first = next(b for a, b in zip(order, order[1:]) if (a < b if downwards else a > b))
                raise ScheduleError(
                    f"{Action(kind, s, first)} is out of order: gradients are summed by "
                    f"micro-batch, "
                    f"{'in descending order' if downwards else 'in ascending order'}"
                )
    order, at, done, held = [], [0] * len(table), set(), [0] * len(stages)
    needs = {action: stages.needs(action, micro_batches, kinds) for action in seen}
    moved = True
    while moved:
        moved = False
        for device, row in enumerate(table):
            while at[device] < len(row):
                action = row[at[device]]
                if any(a not in done for a in needs[action]):
                    break
                if action.kind == "F":
                    held[action.stage] += 1
                    if limits is not None and held[action.stage] > limits[action.stage]:
                        raise ScheduleError(
                            f"{action}: the stage would hold {held[action.stage]} micro-batches; "
                            f"its device's memory allows {limits[action.stage]}"
                        )
                elif action.kind == ("W" if stages.deferred else "B"):
                    held[action.stage] -= 1
                done.add(action)
                order.append(action)
                at[device] += 1
                moved = True
    stuck = {}  # device -> (waits for another device, next action, missing dependency)
    for device, row in enumerate(table):
        if at[device] < len(row):
            action = row[at[device]]
            lacking = next(a for a in needs[action] if a not in done)
            stuck[device] = (stages.devices[lacking.stage] != device, action, lacking)
    if stuck:  # reports order errors within one device first
        elsewhere, action, lacking = min(stuck.values())
        reason = "which comes later on the same device"
        if elsewhere:
            reason, seen = "", set()
            while action not in seen:
                seen.add(action)
                reason += f"the {lacking}, which the schedule puts after the "
                _, action, lacking = stuck[stages.devices[lacking.stage]]
                reason += f"{action}" if action in seen else f"{action}, which waits for "
            raise ScheduleError(f"deadlock: {min(stuck.values())[1]} waits for {reason}")
        raise ScheduleError(f"deadlock: {action} waits for the {lacking}, {reason}")
    return order


class Simulation(typing.NamedTuple):
    """The simulated times of a table, in the unit of the given durations.

    Attributes
    ----------
    makespan : float
        Time from the start of the first action to the end of the last one.
    spans : dict of Action to (float, float)
        Start and end of each action.
    busy : list of float
        For each device, the sum of its actions' durations.

    Examples
    --------
    >>> from mpgluon.parallel import schedules
    >>> stages = schedules.StageGraph([0, 1], [[], [0]])
    >>> schedules.simulate(schedules.make_table(stages, 2), stages, 2)
    Simulation(8 actions on 2 devices, makespan=9, bubble=33.3%)
    """

    makespan: float
    spans: dict[Action, tuple[float, float]]
    busy: list[float]

    def __repr__(self) -> str:
        return (
            f"Simulation({counted(len(self.spans), 'action')} on "
            f"{counted(len(self.busy), 'device')}, makespan={self.makespan:.4g}, "
            f"bubble={self.bubble:.1%})"
        )

    @property
    def bubble(self) -> float:
        """The fraction of the devices' time that is idle.

        Examples
        --------
        Two stages, two micro-batches: each device idles for a third of the time.

        >>> from mpgluon.parallel import schedules
        >>> stages = schedules.StageGraph([0, 1], [[], [0]])
        >>> step = schedules.simulate(schedules.make_table(stages, 2), stages, 2)
        >>> round(step.bubble, 3)
        0.333
        """
        whole = self.makespan * len(self.busy)
        return 1 - sum(self.busy) / whole if whole else 0.0


def simulate(
    table: Table,
    stages: StageGraph,
    micro_batches: int,
    times: Times | None = None,
    phases: str = "FB",
    transfer: float | Callable[[int, int], float] = 0.0,
) -> Simulation:
    """Simulates a table.

    Parameters
    ----------
    table : list of lists of Action
        A list of actions for each device, in order.
    stages : StageGraph
        Stages that the table is for.
    micro_batches : int
        Number of micro-batches into which the batch is divided.
    times : dict of (kind, stage) or Action to number, optional
        Durations of actions, in any unit; see `make_table` for the defaults.
    phases : {'FB', 'F', 'B'}
        Whether the table is for a whole training step or for a single pass.
    transfer : number, or function of two stages
        Time to move a result to another device, in the same unit.

    Returns
    -------
    Simulation

    Raises
    ------
    ScheduleError
        If the table cannot be executed; see `verify`.

    Examples
    --------
    >>> from mpgluon.parallel import schedules
    >>> stages = schedules.StageGraph([0, 1], [[], [0]])
    >>> for name in ('gpipe', '1f1b', 'zero_bubble'):
    ...     step = schedules.simulate(schedules.make_table(stages, 4, name), stages, 4)
    ...     print(name, step.makespan, f'{step.bubble:.0%}')
    gpipe 15.0 20%
    1f1b 15.0 20%
    zero_bubble 15.0 20%
    """
    passing = transfer if callable(transfer) else lambda source, target: transfer
    cost = _costs(stages, times)
    kinds = _kinds(stages, phases)
    free, spans = [0.0] * len(table), {}
    for action in verify(table, stages, micro_batches, phases):
        device = stages.devices[action.stage]
        ready = [
            spans[a][1]
            + (passing(a.stage, action.stage) if stages.devices[a.stage] != device else 0)
            for a in stages.needs(action, micro_batches, kinds)
        ]
        begin = max([free[device], *ready])
        spans[action] = (begin, begin + cost(action))
        free[device] = begin + cost(action)
    busy = [sum(cost(a) for a in row) for row in table]
    return Simulation(max(free, default=0.0), spans, busy)
