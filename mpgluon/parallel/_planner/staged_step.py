"""Predicts the stages, times and bytes of a placed network's step from the costs of its layers."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from .._pipeline.stages import SENDING
from ..schedules import StageGraph
from .layer_profile import trained_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..schedules import Simulation
    from .layer_profile import Cost, Profile


class StagedStep:
    """The stages of a placed network with their costs.

    Parameters
    ----------
    profile : Profile
        The measurements.
    devices : list of int
        Index of each layer's device.
    stages : list of list of int
        The layers of each stage.
    costs : list of list of Cost
        For each device, the costs of the layers for one micro-batch.
    micro_batches : int
        Number of micro-batches.
    deferred : bool
        Whether the schedule queues weight gradients separately.

    Attributes
    ----------
    stages, where : list
        The layers of each stage and the index of its device. If the batch is on another device, an
        additional first stage without layers sends it.
    graph : StageGraph
        The stages as input of schedules.
    times : dict of (kind, stage) to float
        Seconds of one micro-batch's passes.
    """

    def __init__(
        self,
        profile: Profile,
        devices: Sequence[int],
        stages: Sequence[list[int]],
        costs: Sequence[Sequence[Cost]],
        micro_batches: int,
        deferred: bool,
    ) -> None:
        self.profile, self.layers, self.contexts = profile, profile.layers, profile.devices
        self.devices, self.costs = devices, costs
        self.micro_batches, self.deferred = micro_batches, deferred
        self.stages: list[list[int]] = list(stages)
        self.where: list[int] = [devices[stage[0]] for stage in stages]
        self._at = {i: s for s, stage in enumerate(stages) for i in stage}
        self._sources = [set() for _ in stages]
        self._times, self._waits = collections.Counter(), collections.Counter()
        self._transfer_only = set()
        # layer -> bytes of the layer's result that other layers use, for the whole batch.
        self._results = {source: size for layer in self.layers for source, size in layer.sources}
        for s in range(len(stages)):
            self._add_costs(s)
        for source, target, size in list(self._edges()):
            self._sources[target].add(source)
            if self.where[source] != self.where[target]:
                self._add_transfer(source, target, size)
        self._send_batch()
        # Per stage: True if its backward pass is not divided into input and weight gradients. With
        # `deferred`, this is so if no other stage needs the input gradients. The whole pass is then
        # deferred.
        self._whole = [not deferred or not before - self._transfer_only for before in self._sources]
        if deferred:
            for s in range(len(self.stages)):
                if self._whole[s]:
                    self._times["W", s] += self._times["B", s]
                    self._times["B", s] = 0.0
        used = list(dict.fromkeys(self.where))
        self.graph: StageGraph = StageGraph(
            [used.index(d) for d in self.where],
            self._sources,
            deferred,
            transfer_only=self._transfer_only,
        )
        self.times: dict[tuple[str, int], float] = {
            (kind, s): self._times[kind, s]
            for s in range(len(self.stages))
            for kind in ("FBW" if deferred else "FB")
        }

    def _add_costs(self, s):
        """Adds the seconds of computation of a stage's layers."""
        own = [self.costs[self.where[s]][i] for i in self.stages[s]]
        self._times["F", s] += sum(cost.forward for cost in own)
        if self.deferred:
            self._times["B", s] += sum(cost.input_gradients for cost in own)
            self._times["W", s] = sum(cost.weight_gradients for cost in own)
        else:
            self._times["B", s] += sum(cost.backward for cost in own)

    def _edges(self):
        """Yields (stage, stage, bytes of a micro-batch) for each result that crosses stages."""
        for s, stage in enumerate(self.stages):
            for i in stage:
                for source, size in self.layers[i].sources:
                    if self._at[source] != s:
                        yield self._at[source], s, size / self.micro_batches

    def _add_transfer(self, source, target, size):
        """Adds the transfers of a result to another device and of its gradient back. Between CPU
        devices of one process, a transfer is work of the sender. Otherwise, the receiver waits."""
        for kind, a, b in (("F", source, target), ("B", target, source)):
            sender = self.contexts[self.where[a]]
            seconds = self.profile.seconds_of_transfer(sender, self.contexts[self.where[b]], size)
            if self.profile.sender_copies(sender, self.contexts[self.where[b]]):
                self._times[kind, a] += seconds
            else:
                self._waits[a, b] += seconds

    def _takes_batch(self, s, home):
        """True if a stage on another device uses a part of the batch."""
        return any(not self.layers[i].sources and self.devices[i] != home for i in self.stages[s])

    def _send_batch(self):
        """Adds a first stage that sends the batch, if a stage on another device uses it."""
        if self.profile.home not in self.contexts:
            return
        home = self.contexts.index(self.profile.home)
        if not any(self._takes_batch(s, home) for s in range(len(self.stages))):
            return
        self.stages, self.where = [[], *self.stages], [home, *self.where]
        self._at = {i: s + 1 for i, s in self._at.items()}
        self._sources = [set(), *[{t + 1 for t in before} for before in self._sources]]
        self._transfer_only = {0}
        self._waits = collections.Counter(
            {(a + 1, b + 1): value for (a, b), value in self._waits.items()}
        )
        self._times = collections.Counter(
            {(kind, s + 1): value for (kind, s), value in self._times.items()}
        )
        self._times.update(dict.fromkeys([("F", 0), ("B", 0), ("W", 0)], 0.0))
        for s in range(1, len(self.stages)):
            if self._takes_batch(s, home):
                self._sources[s].add(0)
                self._times["F", 0] += self.profile.seconds_of_transfer(
                    self.profile.home,
                    self.contexts[self.where[s]],
                    self.profile.input_bytes / self.micro_batches,
                )

    def even_order(self) -> dict[tuple[str, int], float]:
        """Returns default times for a table with equal stage durations, as in `Stages`."""
        order = {}
        for kind, s in self.times:
            both = self._whole[s] if kind == "W" else kind == "B" and not self.deferred
            order[kind, s] = SENDING if s in self._transfer_only else 2 if both else 1
        empty = [key for key, value in self.times.items() if not value and key[0] != "F"]
        return order | dict.fromkeys(empty, 0)

    def wait(self, a: int, b: int) -> float:
        """Returns the seconds from the end of a pass of stage `a` until stage `b` has its
        result."""
        contexts = self.contexts[self.where[a]], self.contexts[self.where[b]]
        return self.profile.waits[contexts] + self._waits[a, b]

    def seconds(self, simulation: Simulation) -> float:
        """Returns the predicted seconds of the step, including its updates."""
        ends = [0.0] * len(self.contexts)
        for action, (_, end) in simulation.spans.items():
            device = self.where[action.stage]
            ends[device] = max(ends[device], end)
        for i, layer in enumerate(self.layers):
            device = self.devices[i]
            ends[device] += self.profile.update[self.contexts[device]] * trained_bytes(layer)
        return max(ends) + self.profile.host_overhead

    def memory(self, table: Sequence[Sequence[Any]]) -> list[float]:
        """Returns the maximum bytes of micro-batches on each device under a schedule's table.

        The rules are those of compiled programs. An array that another device sends is received in
        a buffer, a *lane*. There is one more lane than the micro-batches in flight use. The working
        memory of a deferred stage's backward pass is kept until its weight gradients are computed.
        """
        kept = [self._kept(s) for s in range(len(self.stages))]
        spare = self._spare_lanes()
        most = list(spare)
        for row in table:
            now, defers = 0.0, "W" in (action.kind for action in row)
            for kind, s, m in row:
                held, gradients, working = kept[s]
                inner, whole = working[m > 0], self._whole[s]
                if kind == "F":
                    now += held
                elif kind == "B" and not whole:
                    now += inner + gradients
                device = self.where[s]
                most[device] = max(
                    most[device], spare[device] + now + (inner if whole and kind != "F" else 0)
                )
                if kind == "W" or (kind == "B" and not defers):
                    now -= held + (0 if whole else inner + gradients)
        return most

    def _kept(self, s):
        """Returns the bytes that a micro-batch of a stage needs: (values kept from its forward pass
        to its last backward pass, gradients between layers, working memory of a backward pass).
        The working memory is a pair, for the first and for later micro-batches."""
        held, gradients, first, later = 0.0, 0.0, 0.0, 0.0
        own = self.costs[self.where[s]]
        for i in self.stages[s]:
            held += own[i].saved
            first, later = max(first, own[i].first), max(later, own[i].working)
            for source, size in self.layers[i].sources:
                size /= self.micro_batches
                if self._at[source] != s:
                    if self.where[self._at[source]] != self.where[s]:
                        held += size
                    continue
                gradients += size
                if own[source].saved < size:  # the layer that uses the result keeps it
                    held += size
                # Measured alone, the layer keeps a copy of its input. In the network, the input is
                # a result that the source layer already keeps, so do not count it twice.
                elif own[i].saved >= size + self._results.get(i, 0) / self.micro_batches:
                    held -= size
        return held, gradients, (first, later)

    def _spare_lanes(self):
        """Returns the bytes of spare lanes on each device."""
        spare = [0.0] * len(self.contexts)
        for source, target, size in self._edges():
            if self.where[source] != self.where[target]:
                spare[self.where[target]] += size if self.micro_batches > 2 else 0
                # The gradient of the result is sent in the opposite direction.
                spare[self.where[source]] += size * min(self.micro_batches, 2)
        return spare
