"""The stages of a compiled block. Maps the segments of its programs to stages, and converts
schedule tables to queued work."""

from __future__ import annotations

import collections
import copy
import itertools
from array import array as array_of
from typing import TYPE_CHECKING, Any

from ... import _core
from .. import schedules
from ..schedules import Action, ScheduleError, StageGraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...context import Context

SENDING = 1e-3  # duration of a stage that only sends, relative to a stage that computes

Item = collections.namedtuple("Item", "phase micro_batch segment stage")  # a segment to queue


class Stages:
    """Stages of the micro-batches of a run.

    A stage is the work of one device between two moves of data: a segment of the forward programs,
    a segment of the backward programs, and the deferred parts of these. The backward pass may
    change devices more often than the forward pass (gradients of several branches, recomputed
    values). In this case, devices have additional stages that do nothing in the forward pass.

    Dependencies are derived from the segments: from the signals that they wait for, the order of a
    device's program, and the arrays that micro-batches pass to each other. A program lists its
    segments in topological order. A forward or backward action is the segments of one device and
    depth (several if it contains host steps), and only deferred segments wait for deferred ones.
    Therefore, the dependencies of actions are acyclic, and `items` never queues a segment before
    one that it waits for.

    Parameters
    ----------
    run : _core.PipelineRun
        The run whose programs are analyzed.
    with_backward : bool
        Whether the run's backward pass has been prepared, so that its segments are known.
    carried : bool
        Whether each micro-batch passes state to the next one, as along time.
    """

    def __init__(self, run: _core.PipelineRun, with_backward: bool, carried: bool) -> None:
        self.micro_batches, self.contexts = run.micro_batches, []  # contexts: by device index
        # Descriptions of the forward and backward programs of each micro-batch. `backward` may be
        # None.
        forward = [run.describe(k, 0) for k in range(run.micro_batches)]
        backward = [run.describe(k, 1) for k in range(run.micro_batches)] if with_backward else None
        self.forward, self.backward = forward, backward
        first = [s for s in forward[0]["segments"] if s["ops"]]
        for segments in (
            first,
            *[micro_batch["segments"] for micro_batch in (*forward, *(backward or ()))],
        ):
            for segment in segments:
                if segment["device"] not in self.contexts:
                    self.contexts.append(segment["device"])
        self._owners = {}  # (phase, micro-batch, segment) -> (kind, stage)
        devices = self._find_owners()
        self._segments = {}  # (kind, stage, micro-batch) -> segments
        for (_, k, i), (kind, s) in sorted(self._owners.items()):
            self._segments.setdefault((kind, s, k), []).append(i)
        self._needed = self._find_needed(carried)
        ops = [self._ops_of_stage(s) for s in range(len(devices))]
        blocks = [_prefixes(own) for own in ops]
        self.names = [
            _name_of(own, set().union(*blocks[:s], *blocks[s + 1 :])) for s, own in enumerate(ops)
        ]
        deferred = any(kind == "W" for kind, _, _ in self._segments)
        self.durations = self._unit_durations(len(devices), deferred)
        sources, waits = [set() for _ in devices], {}
        for action in self._segments:
            waits[action] = [Action(*a) for a in sorted(self._actions_before(action) - {action})]
            if action[0] == "F":
                own = [a for a in waits[action] if a.kind == "F" and a.micro_batch == action[2]]
                sources[action[1]].update(a.stage for a in own)
        transfer_only = [s for s in range(len(devices)) if backward and self._only_sends(s)]
        self.graph = StageGraph(
            devices, sources, deferred, carried, transfer_only=transfer_only, waits=waits
        )

    def resized(self, run: _core.PipelineRun) -> Stages:
        """Returns the stages of a run whose programs differ only in sizes."""
        result, described = copy.copy(self), {}

        def sized(phase, former):
            programs = []
            for k, micro_batch in enumerate(former):
                program = run.program(k, phase)
                if program not in described:
                    blocks, sent = run.sizes(k, phase)
                    segments = [
                        {**segment, "bytes_sent": size}
                        for segment, size in zip(micro_batch["segments"], sent)
                    ]
                    described[program] = {
                        "segments": segments,
                        "blocks": blocks,
                        "shardings": micro_batch["shardings"],
                    }
                programs.append(described[program])
            return programs

        result.forward = sized(0, self.forward)
        result.backward = sized(1, self.backward) if self.backward is not None else None
        return result

    def _find_owners(self):
        """Finds the stage of each segment. Returns the device index of each stage."""
        forwards = [self._forwards(micro_batch["segments"]) for micro_batch in self.forward]
        backwards = [self._backwards(k, forwards[k]) for k in range(len(self.backward or ()))]
        # Micro-batches that divide the time axis may have different segments. For example, a mean
        # over one time step needs no operator. The micro-batch with the most segments determines
        # the stages.
        most = max(forwards, key=lambda by_device: sum(map(len, by_device.values())))
        devices = [d for _, d in sorted((group, d) for d, own in most.items() for group in own)]
        for d in range(len(self.contexts)):
            stages = [s for s, device in enumerate(devices) if device == d]
            count = len(stages)
            further = (
                max(len(by_device.get(d, ())) for by_device in (*forwards, *backwards)) - count
            )
            stages += range(len(devices), len(devices) + further)
            devices += [d] * further
            for k, by_device in enumerate(forwards):
                for group, s in zip(by_device.get(d, ()), stages):
                    self._owners.update({(0, k, i): ("F", s) for i in group})
            for k, by_device in enumerate(backwards):
                # Backward groups run from the last stage to the first. If there are more groups
                # than forward stages, the first groups belong to additional stages.
                groups = by_device.get(d, ())
                for g, (own, late) in enumerate(groups):
                    stage = stages[max(len(groups), count) - 1 - g]
                    self._owners.update({(1, k, i): ("B", stage) for i in own})
                    self._owners.update({(1, k, i): ("W", stage) for i in late})
        return devices

    def _forwards(self, segments):
        """Returns the segments of a micro-batch's forward program that compute or send, by device
        and grouped by stage."""
        found = {}
        for i, segment in enumerate(segments):
            if segment["ops"]:
                depths = found.setdefault(self.contexts.index(segment["device"]), {})
                depths.setdefault(segment["depth"], []).append(i)
        return {d: list(depths.values()) for d, depths in found.items()}

    def _backwards(self, micro_batch, forwards):
        """Groups the segments of a micro-batch's backward program by device. Returns for each
        stage, in the order of the backward pass, [its segments, its deferred segments]."""
        segments, found = self.backward[micro_batch]["segments"], {}
        for i, segment in enumerate(segments):
            if segment["ops"]:
                depths = found.setdefault(self.contexts.index(segment["device"]), {})
                depths.setdefault(segment["depth"], [[], []])[segment["deferred"]].append(i)
        for d, depths in found.items():
            groups, count = [depths[depth] for depth in sorted(depths)], len(forwards.get(d, ()))
            # If the first segment only sends, it moves the gradient of a moved result back to
            # another device. It needs no stage of its own: it is queued together with the first
            # segment that waits for the gradient.
            first = groups[0][0]
            if len(groups) > count and len(first) == 1 and _sends(segments[first[0]]):
                groups[0][0] = []
                groups = groups if groups[0][1] else groups[1:]
            # A group that has only deferred segments needs no stage: merge it with its predecessor.
            alone = [g for g in range(1, len(groups)) if not groups[g][0]]
            for g in reversed(alone[: max(len(groups) - count, 0)]):
                groups[g - 1][1] += groups.pop(g)[1]
            found[d] = groups
        return found

    def _ops_of_stage(self, s):
        """Returns the operators that determine the name of a stage: the operators of its forward
        pass or, if it has none, of its backward pass."""
        passes = [(kind, k) for kind in "FBW" for k in range(self.micro_batches)]
        return next(self._ops((kind, s, k)) for kind, k in passes if (kind, s, k) in self._segments)

    def _ops(self, action):
        return [op for segment in self._described(action) for op in segment["ops"]]

    def _described(self, action):
        phase, micro_batch, segments = self.segments_of(action)
        return [(self.forward, self.backward)[phase][micro_batch]["segments"][i] for i in segments]

    def _find_needed(self, carried):
        """Returns (phase, micro-batch, segment) -> the segments that must be queued before it."""
        needed = {}
        for phase, described in enumerate((self.forward, self.backward or ())):
            for k, micro_batch in enumerate(described):
                last = {}  # device -> the latest segment of the device's program
                for i, segment in enumerate(micro_batch["segments"]):
                    at, own = (phase, k, i), last.get(segment["device"])
                    if any(w >= i for w in segment["waits"]):
                        raise ScheduleError(
                            f"internal: segment {i} of a program waits for a later one"
                        )
                    needed[at] = {(phase, k, w) for w in segment["waits"]}
                    if not segment["ops"]:
                        continue  # the segment only waits for incoming data
                    if own is not None:
                        needed[at].add(own)
                    # A backward segment needs all forward segments of its device to be queued
                    # first, because memory is planned for this order.
                    elif phase:
                        forward = enumerate(self.forward[k]["segments"])
                        on_device = [
                            j for j, s in forward if s["ops"] and s["device"] == segment["device"]
                        ]
                        needed[at].update((0, k, j) for j in on_device)
                    last[segment["device"]] = at
            order = range(len(described))
            self._link(described, phase, order[::-1] if carried and phase else order, needed)
        return needed

    @staticmethod
    def _link(described, phase, order, needed):
        """Adds dependencies between micro-batches that access the same array, if one of them writes
        it: carried states, sums of gradients, running averages."""
        written = set()
        for micro_batch in described:
            for segment in micro_batch["segments"]:
                written.update(
                    micro_batch["arrays"][a] for a, writes in segment["arrays"] if writes
                )
        # array -> {segment: True if the segment writes the array}. Contains the segments of the
        # last micro-batch that wrote the array and of all micro-batches that have read the array
        # since.
        last = {}
        for k in order:
            arrays, touched = described[k]["arrays"], {}
            for i, segment in enumerate(described[k]["segments"]):
                for a, writes in segment["arrays"]:
                    if arrays[a] in written:
                        touched.setdefault(arrays[a], {})[phase, k, i] = writes
            for array, users in touched.items():
                before, writes = last.get(array, {}), any(users.values())
                for user in users:
                    needed[user].update(s for s, wrote in before.items() if wrote or writes)
                last[array] = users if writes else {**before, **users}

    def _actions_before(self, action):
        """Returns the actions whose segments must be queued before those of `action`. Segments that
        belong to no action are replaced by their own dependencies."""
        phase, micro_batch, segments = self.segments_of(action)
        found, seen = set(), set()
        left = [s for i in segments for s in self._needed[phase, micro_batch, i]]
        while left:
            at = left.pop()
            if at in seen:
                continue
            seen.add(at)
            if at in self._owners:
                found.add((*self._owners[at], at[1]))
            else:
                left += self._needed[at]
        return found

    def _unit_durations(self, count, deferred):
        """Returns the default durations of the actions. All stages take the same time, except that
        stages that only send take almost none."""
        durations = {}
        for k in range(self.micro_batches):
            for s in range(count):
                own = dict.fromkeys("FBW", 0)
                for kind in own:
                    for segment in self._described((kind, s, k)):
                        duration = 1 if len(segment["ops"]) > segment["copies"] else SENDING
                        own[kind] = max(own[kind], duration)
                durations[Action("F", s, k)] = own["F"]
                durations[Action("B", s, k)] = own["B"] if deferred else 2 * own["B"]
                # If no stage waits for the input gradients, the stage's whole backward pass is
                # deferred.
                durations[Action("W", s, k)] = own["W"] if own["B"] else 2 * own["W"]
        return durations

    def _only_sends(self, s):
        durations = {
            (kind, self.durations[kind, s, k]) for kind in "FBW" for k in range(self.micro_batches)
        }
        return durations == {("F", SENDING), ("B", 0), ("W", 0)}

    def costs(self, times: dict[Any, float]) -> Any:
        """Converts (kind, stage) -> seconds of a micro-batch's passes to the duration of each
        action. The duration is zero if a micro-batch lacks the action. If the whole backward pass
        is deferred, the duration of the W action is that of the whole pass."""
        costs = dict(self.durations)
        for action, duration in self.durations.items():
            kind, s, k = action
            if duration and (kind, s) in times:
                whole = kind == "W" and not self.durations["B", s, k]
                costs[action] = times[kind, s] + (times.get(("B", s), 0) if whole else 0)
        return costs

    def shown(self, action: Action) -> Action:
        """Converts an action for display: a backward pass that is entirely deferred (W) is shown as
        backward (B)."""
        kind, s, k = action
        whole = kind == "W" and ("B", s, k) not in self._segments
        return Action("B", s, k) if whole else action

    def alike(self, action: Action) -> Any:
        """Returns a key that is equal for actions of micro-batches with the same work."""
        return action.kind, action.stage, tuple(self._ops(action))

    def placement(self) -> list[Context]:
        """Returns the device of each stage."""
        return [self.contexts[d] for d in self.graph.devices]

    def __len__(self) -> int:
        return len(self.graph)

    def table(
        self, schedule: str | Sequence[Any], micro_batches: int, phases: str, of: int | None = None
    ) -> list[list[Action]]:
        """Returns the table of a named schedule, or a user's table after checking it. ``of`` is the
        number of micro-batches in the user's table. A smaller batch uses only the entries of its
        ``micro_batches`` micro-batches."""
        graph = self.graph
        if isinstance(schedule, str):
            return schedules.make_table(graph, micro_batches, schedule, self.durations, phases)
        schedule = self._with_senders(schedule, of or micro_batches)
        kinds = {"F", "B", "W"} if phases == "FB" else set("BW" if phases == "B" else "F")
        table = schedules.parse_table(schedule, graph)
        if of is not None and micro_batches < of:
            table = [[a for a in row if not micro_batches <= a.micro_batch < of] for row in table]
        schedules.verify(table, graph, micro_batches, "FB")
        return [[a for a in row if a.kind in kinds] for row in table]

    def _with_senders(self, table, micro_batches):
        """Adds rows for devices that only send inputs and labels to a user's table that lacks them.
        As a result, the same table works for inputs on any device."""
        graph = self.graph
        computing = [s for s in range(len(graph)) if not self._only_sends(s)]
        devices = sorted({graph.devices[s] for s in computing})
        if len(devices) == graph.num_devices or len(table) != len(devices):
            return table
        rows = [[] for _ in range(graph.num_devices)]
        for device, row in zip(devices, table):
            rows[device] = [self._renumbered(entry, computing) for entry in row]
        for s in set(range(len(graph))) - set(computing):
            device = graph.devices[s]
            sends = [("F", s, k) for k in range(micro_batches)]
            ends = [("B", s, k) for k in range(micro_batches)]
            rows[device] = sends + rows[device] + ends
        return rows

    def _renumbered(self, entry, computing):
        """Converts the stage of a table entry from an index among the computing stages to an index
        among all stages. Returns invalid entries unchanged."""
        try:
            kind, stage, micro_batch = entry
            return kind, computing[stage], micro_batch
        except (TypeError, ValueError, IndexError):
            return entry

    def items(self, table: schedules.Table, micro_batches: int, phases: str) -> array_of:
        """Returns the segments to queue, for `_core.PipelineRun.submit`, in topological order."""
        items, queued = [], set()

        def queue(segment, stage):
            left = [segment]
            while left:
                at = left[-1]
                needed = () if at in queued else self._needed[at]
                before = [s for s in needed if s not in queued and "FB"[s[0]] in phases]
                left += sorted(before, reverse=True)
                if not before and left.pop() not in queued:
                    queued.add(at)
                    items.append(Item(*at, self._owners.get(at, (None, stage))[1]))

        # Queue actions in the order of their simulated start times, so that later actions reuse the
        # memory that earlier actions release.
        spans = schedules.simulate(table, self.graph, micro_batches, self.durations, phases).spans
        for action in sorted(spans, key=lambda a: (spans[a][0], self.graph.devices[a.stage])):
            phase, micro_batch, segments = self.segments_of(action)
            for segment in segments:
                queue((phase, micro_batch, segment), action.stage)
        # Segments that belong to no action, such as one that receives a moved result, are queued
        # last.
        for phase, described in enumerate((self.forward, self.backward)):
            if "FB"[phase] in phases:
                for micro_batch in range(micro_batches):
                    for segment in range(len(described[micro_batch]["segments"])):
                        queue((phase, micro_batch, segment), 0 if phase else len(self) - 1)
        return array_of("I", itertools.chain.from_iterable(items))

    def peaks(self, run: Any, items: array_of, keep: bool = False) -> dict[Context, int]:
        """Returns the maximum bytes that the memory blocks of all micro-batches occupy on each
        device if items are queued in this order. With ``keep``, no memory is released, because a
        backward pass follows."""
        return {**dict.fromkeys(self.contexts, 0), **run.peaks(items, keep)}

    def peaks_of(self, run: Any, schedule: str, times: Any) -> dict[Context, int]:
        """Returns the peaks of a schedule's table that is built with the given times."""
        with _core.Scope((vars(self), "durations", self.costs(times))):
            table = self.table(schedule, self.micro_batches, "FB")
            return self.peaks(run, self.items(table, self.micro_batches, "FB"))

    def segments_of(self, action: Action) -> tuple[int, int, list[int]]:
        """Returns (phase, micro-batch, segments) of an action."""
        kind, stage, micro_batch = action
        return (
            (0 if kind == "F" else 1),
            micro_batch,
            self._segments.get((kind, stage, micro_batch), ()),
        )

    def actions(self, micro_batches: int, phases: str) -> Any:
        """Returns the actions of a table: `F` (and `B`, `W`) of every stage and micro-batch, for
        the phases in `phases` (a string of F and B)."""
        kinds = ["F"] * ("F" in phases) + (["B"] + ["W"] * self.graph.deferred) * ("B" in phases)
        return [
            Action(kind, s, m)
            for kind in kinds
            for s in range(len(self))
            for m in range(micro_batches)
        ]

    def planned(self, micro_batch: int) -> dict[Context, tuple[int, int, int]]:
        """Returns a dict from devices to the planned bytes of one micro-batch: (forward pass, both
        passes, arrays that arrive from other devices in both passes)."""
        forward = self.forward[micro_batch]["blocks"]
        both = (self.backward or self.forward)[micro_batch]["blocks"]
        return {
            ctx: (
                sum(size for device, size, _ in forward if device == ctx),
                sum(size for device, size, _ in both if device == ctx),
                sum(size for device, size, lane in both if device == ctx and lane),
            )
            for ctx in self.contexts
        }

    def describe(self) -> list[dict[str, Any]]:
        """Returns the work of each stage for one micro-batch, as dicts with device, blocks,
        operators of each kind of action, copies and bytes sent."""
        result = []
        for s, name in enumerate(self.names):
            row = {
                "device": str(self.contexts[self.graph.devices[s]]),
                "blocks": name,
                "copies": 0,
                "bytes_sent": 0,
            }
            for kind, title in (("F", "forward"), ("B", "backward"), ("W", "deferred")):
                segments = self._described((kind, s, 0))
                row[title] = [
                    op
                    for segment in segments
                    for op in segment["ops"]
                    if not op.endswith("/_copyto")
                ]
                row["copies"] += sum(segment["copies"] for segment in segments)
                row["bytes_sent"] += sum(segment["bytes_sent"] for segment in segments)
            result.append(row)
        return result

    def bytes_sent(self, phases: str) -> dict[Context, int]:
        """Returns the bytes that each device sends to other devices in one step."""
        total = {}
        for described, kind in ((self.forward, "F"), (self.backward, "B")):
            if kind in phases and described:
                for micro_batch in described:
                    for segment in micro_batch["segments"]:
                        total[segment["device"]] = (
                            total.get(segment["device"], 0) + segment["bytes_sent"]
                        )
        return total


def _sends(segment):
    """True if a segment waits for nothing and only sends, apart from constants."""
    return not segment["computes"] and segment["copies"] > 0 and not segment["waits"]


def _blocks_of(op):
    """Returns the path of an operator's block as a list. Empty for copies and operators outside of
    blocks."""
    path, name = op.rsplit("/", 1)
    return path.split(".") if path and name != "_copyto" else []


def _prefixes(ops):
    """Returns the blocks that contain the operators, and their ancestors, as path prefixes."""
    paths = map(_blocks_of, ops)
    return {tuple(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}


def _name_of(ops, elsewhere=frozenset()):
    """Derives the name of a stage from the paths of its operators. It is the smallest block that
    contains all of them, or the first and the last child of the network. If other stages compute
    parts of that block (`elsewhere`), its own first and last child are used instead."""
    paths = [path for path in map(_blocks_of, ops) if path]
    inner = [path for path in paths if len(path) > 1] or paths
    if not inner:
        return ops[0].rsplit("/", 1)[-1]
    depth = 0
    while all(len(path) > depth and path[depth] == inner[0][depth] for path in inner):
        depth += 1
    if (depth > 1 and tuple(inner[0][:depth]) not in elsewhere) or len(inner[0]) <= depth:
        return ".".join(inner[0][:depth])
    names = []
    for path in (inner[0], inner[-1]):
        end = depth + 1
        while end < len(path) and tuple(path[:end]) in elsewhere:
            end += 1
        names.append(".".join(path[:end]))
    first, last = names
    return first if first == last else f"{first} ... {last}"
