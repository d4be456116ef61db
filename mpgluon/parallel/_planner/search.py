"""The search of `mpgluon.parallel.plan` for the device of each layer, based only on a profile.

A candidate is a placement with a number of micro-batches and a schedule. Unless it has been run,
its step is simulated (`schedules.simulate`) with the sums of the layers' times. On CPU devices, the
sender copies, so transfers are part of its work. Placements are enumerated: contiguous ones, those
that return to the first device, those in rounds for schedules that support them, and all placements
if the network has branches and there are few enough. They are ordered by a lower bound and
simulated until the bound exceeds the best time. If they are too many to enumerate, dynamic
programming over cut points finds the split with the smallest sum of times for several maximum stage
lengths. The best candidate, and the first one that fits, are improved layer by layer. Plans that
were run, or chosen by an earlier search, are also considered.
"""

import collections
import itertools

from ..._internal import ranks
from ...base import MXNetError
from .. import schedules
from .layer_profile import held_bytes, trained_bytes
from .staged_step import StagedStep

__all__ = ["Candidate", "Search"]

LISTED = 20000  # maximum number of placements to enumerate; else dynamic programming
SIMULATED = 600  # maximum number of simulations before the hill climbing from the best candidate
RESIMULATED = 60  # value of SIMULATED for a search after a trial has corrected the costs
CLIMBING = 4  # number of candidates with the least memory whose neighbors are evaluated

Candidate = collections.namedtuple(
    "Candidate",
    [
        "seconds",
        "placement",
        "micro_batches",
        "schedule",
        "stages",
        "where",
        "times",
        "simulation",
        "memory",
        "order",
    ],
)
Candidate.__doc__ = """A placement (the device index of each layer) with its predictions.

``seconds`` is the time of a step, ``stages`` the layers of each stage (empty for a stage that only
sends the batch), ``where`` the device index of each stage, ``times`` the seconds of one
micro-batch's passes by (kind, stage), ``memory`` the bytes of each device as (parameters and
states, micro-batches), and ``order`` the times from which the schedule's table is built, or None
for stages with equal times."""


class Search:
    """A search on one profile.

    Parameters
    ----------
    profile : Profile
        Measurements that predictions are based on.
    memory : dict of Context to int
        Memory limits; missing devices are unlimited.
    micro_batches : list of int
        Numbers of micro-batches to choose from.
    names : list of str, optional
        Names of schedules to choose from; by default all.
    slack : float
        Fraction of its micro-batches' bytes by which a plan may exceed a limit if the bytes are
        only estimated.
    progress : bool or None
        Whether a long search shows a progress bar. None shows it on terminals.
    most : int
        Maximum number of simulations before the best candidate is improved step by step.
    """

    def __init__(
        self,
        profile,
        memory=None,
        micro_batches=(1,),
        names=None,
        slack=0.0,
        progress=False,
        most=SIMULATED,
    ):
        self.most = most
        self.profile, self.micro_batches = profile, list(micro_batches)
        self.names = list(names or schedules.SCHEDULES)
        self.slack, self.progress = slack, progress
        self.limits = [(memory or {}).get(ctx) for ctx in profile.devices]
        self.layers, self.count = profile.layers, len(profile.devices)
        # Indices of the layers that can be placed freely. Each remaining layer is on the device of
        # one of these layers.
        self.free = [i for i, layer in enumerate(self.layers) if layer.follows is None]
        self._costs = {}
        self._seen, self._queue = {}, None
        self._kinds = self._alike()

    def _alike(self):
        """Returns a class number for each device. Devices of the same class are interchangeable: a
        placement that only swaps them has the same cost."""
        p, kinds, found = self.profile, [], []
        for d, ctx in enumerate(p.devices):
            like = (p.costs[ctx], p.update[ctx], self.limits[d], ctx.device_type)
            # The device that holds the batch is in a class of its own, because it need not receive
            # the batch.
            like = (*like, ctx == p.home)
            if like not in found:
                found.append(like)
            kinds.append(found.index(like))
        return kinds

    def whole(self, placement):
        """Extends a placement of the free layers to all layers. Returns a device for each layer."""
        devices = [None] * len(self.layers)
        for i, d in zip(self.free, placement):
            devices[i] = d
        for i, layer in enumerate(self.layers):
            if layer.follows is not None:
                devices[i] = devices[layer.follows]
        return devices

    def costs(self, micro_batches):
        """Returns a list for each device with the cost of each layer, if the batch is divided into
        `micro_batches` micro-batches. The result is cached."""
        if micro_batches not in self._costs:
            rows = self.profile.micro_batch_rows(micro_batches)
            self._costs[micro_batches] = [
                self.profile.cost(ctx, rows) for ctx in self.profile.devices
            ]
        return self._costs[micro_batches]

    def stages(self, devices):
        """Returns the layers of each stage. A stage runs on one device between two moves, as in
        compiled programs."""
        depth, found = [], {}
        for i, layer in enumerate(self.layers):
            depth.append(
                max([depth[s] + (devices[s] != devices[i]) for s, _ in layer.sources], default=0)
            )
            found.setdefault((depth[i], devices[i]), []).append(i)
        return [found[key] for key in sorted(found)]

    def evaluate(self, placement, micro_batches, schedule):
        """Returns the simulated `Candidate`. Measured times and bytes replace simulated ones if the
        plan was run or compiled."""
        key = (tuple(placement), micro_batches, schedule)
        if key not in self._seen:
            trial, measured = self.profile.trials.get(key), self.profile.measured_bytes.get(key)
            if (
                None not in (trial, measured)
                and self.over_by(self.fixed_memory(self.whole(key[0])), trial.memory)[0] > 0
            ):
                trial = None  # exceeds memory; the table for equal durations may fit
            if trial is not None and trial.times:
                candidate = self.simulated(*key, trial.times)
            else:
                candidate = self.simulated(*key) if measured is None else self.even(*key)
            if trial is not None or measured is not None:
                candidate = candidate._replace(
                    memory=[
                        (fixed, size)
                        for (fixed, _), size in zip(
                            candidate.memory, trial.memory if trial else measured
                        )
                    ]
                )
            self._seen[key] = (
                candidate if trial is None else candidate._replace(seconds=trial.seconds)
            )
        return self._seen[key]

    def even(self, placement, micro_batches, schedule):
        """Returns the candidate with the table for equal stage durations, which does not depend on
        measurements."""
        return self.simulated(placement, micro_batches, schedule, even=True)

    def forget(self, candidate):
        """Drops a candidate from the cache, because there are new measurements of it."""
        self._seen.pop(candidate[1:4], None)

    def simulated(self, placement, micro_batches, schedule, measured=None, even=False):
        """Simulates a candidate with its layers' costs, or with `measured` times of its passes.
        With `even`, its table is the one for equal stage durations."""
        devices = self.whole(placement)
        step = StagedStep(
            self.profile,
            devices,
            self.stages(devices),
            self.costs(micro_batches),
            micro_batches,
            schedules.named(schedule).deferred,
        )
        times = step.times | (measured or {})
        order = step.even_order() if even else times
        table = schedules.make_table(step.graph, micro_batches, schedule, order)
        simulation = schedules.simulate(table, step.graph, micro_batches, times, transfer=step.wait)
        return Candidate(
            step.seconds(simulation),
            placement,
            micro_batches,
            schedule,
            step.stages,
            step.where,
            times,
            simulation,
            [
                (round(fixed), round(moving))
                for fixed, moving in zip(self.fixed_memory(devices), step.memory(table))
            ],
            None if even else order,
        )

    def fixed_memory(self, devices):
        """Returns the bytes of parameters, gradients and optimizer states on each device."""
        params = [{} for _ in range(self.count)]
        for i, layer in enumerate(self.layers):
            params[devices[i]].update(layer.params)  # shared parameters are counted once
        return [held_bytes(own, self.profile.state_factor) for own in params]

    def over_by(self, fixed, moving, slack=0.0):
        """Returns (bytes over the limit, device, bytes needed) of the device with the largest
        excess. The first number is negative if all devices are below their limits."""
        over = [
            (a + round(b * (1 - slack)) - limit, d, a + b)
            for d, (a, b, limit) in enumerate(zip(fixed, moving, self.limits))
            if limit is not None
        ]
        return max(over, default=(0, None, 0))

    def over(self, candidate):
        """Returns the excess of a candidate over the limits, in the form of `over_by`."""
        return self.over_by(
            *zip(*candidate.memory), 0.0 if self.profile.is_measured(candidate) else self.slack
        )

    def excess(self, candidate):
        """Returns (bytes over the limit, device, bytes needed) of the device with the largest
        excess, with 0 bytes if the candidate fits."""
        worst = self.over(candidate)
        return worst if worst[0] > 0 else (0, None, 0)

    # Enumeration of candidates

    def _sequences(self, rounds=1):
        """Yields sequences of devices. Omits sequences that differ only by interchangeable devices
        (`_alike`)."""
        seen = set()
        for count in range(2 if rounds > 1 else 1, self.count + 1):
            for order in itertools.permutations(
                sorted(
                    range(self.count), key=lambda d: self.profile.devices[d] != self.profile.home
                ),
                count,
            ):
                kinds = tuple(self._kinds[d] for d in order)
                if kinds not in seen and len(self.free) >= count * rounds:
                    seen.add(kinds)
                    yield order * rounds

    def _orders_for(self, schedule):
        return self._sequences(schedules.named(schedule).rounds)

    def branching(self):
        """True if the network has parallel branches."""
        return any(layer.kind == "join" for layer in self.layers)

    def _listed_orders(self, rounds):
        """Yields the device sequences of contiguous placements, and of placements whose last stage
        is on the first device."""
        for order in self._sequences(rounds):
            yield order
            if rounds == 1 and 1 < len(order) < len(self.free):
                yield (*order, order[0])

    def _number(self, rounds):
        total = 0
        for order in self._listed_orders(rounds):
            ways = 1
            for k in range(len(order) - 1):
                ways = ways * (len(self.free) - 1 - k) // (k + 1)
            total += ways
        return total

    def placements(self, schedule):
        """Returns all placements to consider with a schedule, or None if there are too many."""
        rounds, n = schedules.named(schedule).rounds, len(self.free)
        if rounds == 1 and self.branching() and self.count**n <= LISTED // 4:
            return self._all_placements()
        if self._number(rounds) > LISTED:
            return None
        found = []
        for order in self._listed_orders(rounds):
            for cuts in itertools.combinations(range(1, n), len(order) - 1):
                ends = (*cuts, n)
                found.append(
                    tuple(
                        order[k]
                        for k, (begin, end) in enumerate(zip((0, *cuts), ends))
                        for _ in range(begin, end)
                    )
                )
        return found

    def _all_placements(self):
        """Returns all placements, without those that differ only by interchangeable devices."""
        seen, found = set(), []
        for placement in itertools.product(
            sorted(range(self.count), key=lambda d: self.profile.devices[d] != self.profile.home),
            repeat=len(self.free),
        ):
            names, key = {}, []
            for d in placement:
                names.setdefault(d, (self._kinds[d], len(names)))
                key.append(names[d])
            if tuple(key) not in seen:
                seen.add(tuple(key))
                found.append(placement)
        return found

    def bound(self, placement, micro_batches, schedule):
        """Returns a lower bound of the simulated time of a placement: the work of the busiest
        device, plus the work that must precede and follow it."""
        trial = self.profile.trials.get((tuple(placement), micro_batches, schedule))
        if trial is not None:
            return trial.seconds
        devices, costs = self.whole(placement), self.costs(micro_batches)
        deferred = schedules.named(schedule).deferred
        load, update, first = [0.0] * self.count, [0.0] * self.count, {}
        ahead, back, chain = 0.0, 0.0, not self.branching()
        for i, layer in enumerate(self.layers):
            d = devices[i]
            cost = costs[d][i]
            first.setdefault(d, (ahead, back) if chain else (0.0, 0.0))
            load[d] += cost.forward + (
                cost.input_gradients + cost.weight_gradients if deferred else cost.backward
            )
            ahead += cost.forward
            back += 0.0 if deferred else cost.backward
            update[d] += self.profile.update[self.profile.devices[d]] * trained_bytes(layer)
        return max(
            forward + micro_batches * load[d] + max(update[d], behind)
            for d, (forward, behind) in first.items()
        ) * (1 - 1e-9)

    def splits(self, order, micro_batches, schedule):
        """Splits the layers into contiguous stages on the devices in `order`. For each of several
        maximum stage lengths, dynamic programming over the cut points finds the split with the
        smallest sum of times. Returns these splits."""
        costs, n, k = self.costs(micro_batches), len(self.free), len(order)
        behind = {
            i: [j for j, layer in enumerate(self.layers) if layer.follows == i] for i in self.free
        }
        sums, fixed, kept = [], [], []
        for d in order:
            time, size, saved = [0.0], [0.0], [0.0]
            for i in self.free:
                own = [costs[d][j] for j in (i, *behind[i])]
                time.append(time[-1] + sum(c.forward + c.backward for c in own))
                saved.append(saved[-1] + sum(c.saved for c in own))
                size.append(size[-1] + held_bytes(self.layers[i].params, self.profile.state_factor))
            sums.append(time), fixed.append(size), kept.append(saved)
        arrives = [sum(s for _, s in self.layers[i].sources) / micro_batches for i in self.free]
        lengths = sorted({sums[0][b] - sums[0][a] for a in range(n) for b in range(a + 1, n + 1)})
        in_flight, limit = [micro_batches] * k, schedules.named(schedule).in_flight
        if limit is not None:
            in_flight = [min(micro_batches, limit(range(k)[::-1], s)) for s in range(k)]
        results = set()
        for longest in lengths[:: max(len(lengths) // 48, 1)] + lengths[-1:]:
            best = [[None] * (n + 1) for _ in range(k + 1)]
            best[0][0] = (0.0, ())
            for s in range(k):
                limit = self.limits[order[s]]
                for end in range(s + 1, n + 1):
                    for begin in range(s, end):
                        time = sums[s][end] - sums[s][begin]
                        if best[s][begin] is None or time > longest * (1 + 1e-9):
                            continue
                        held = (
                            fixed[s][end]
                            - fixed[s][begin]
                            + in_flight[s] * (kept[s][end] - kept[s][begin] + arrives[begin])
                        )
                        if limit is not None and held > limit:
                            continue
                        made = (best[s][begin][0] + time, (*best[s][begin][1], end))
                        if best[s + 1][end] is None or made < best[s + 1][end]:
                            best[s + 1][end] = made
            if best[k][n]:
                results.add(
                    tuple(
                        order[k]
                        for k, (b, e) in enumerate(zip((0, *best[k][n][1]), best[k][n][1]))
                        for _ in range(b, e)
                    )
                )
        return results

    def run(self):
        """Returns the best candidate. Raises an MXNetError that describes the shortage if none
        fits."""
        best = self.find()
        if best is None:
            best = self.lean()[0]
            if self.excess(best)[0]:
                self.fail(best)
        self.choose(best)
        return best

    def choose(self, candidate):
        """Records a candidate in the profile, so that later searches consider it. As a result, a
        search with a larger memory limit never predicts a longer step."""
        self.profile.chosen.add(candidate[1:4])

    def find(self):
        """Returns the best candidate, or None if no candidate fits."""
        if not self.micro_batches:
            raise MXNetError("plan: micro_batches has no candidates")
        if self._queue is None:
            self._fill_queue()
        first, best, looked = None, None, 0
        for bound, m, schedule, placement in self._shown(self._queue):
            if (
                best is not None and (bound >= best.seconds or looked >= self.most)
            ) or looked >= 10 * SIMULATED:
                break
            if self.over_by(self.fixed_memory(self.whole(placement)), [0] * self.count)[0] <= 0:
                best = self._better(best, self.evaluate(placement, m, schedule))
                first = first or best
                looked += 1
        if best is None:
            return None
        starts = [best] if first is best else [best, first]
        return min(map(self._improve, starts), key=lambda c: c.seconds)

    def _shown(self, queue):
        """Wraps the queue in a progress bar that appears after 2 seconds."""
        if self.progress is False or ranks.own():
            return queue
        from tqdm import tqdm

        disable, total = None if self.progress is None else False, min(len(queue), SIMULATED)
        return tqdm(queue, "search", total, leave=False, disable=disable, delay=2, unit="plan")

    def _none(self):
        rounds = {name: schedules.named(name).rounds for name in self.names}
        least = "needs at least 2 micro-batches, 2 devices and"
        needs = [
            f"the {name} schedule {least} {count} layers for each device"
            for name, count in rounds.items()
            if count > 1
        ]
        raise MXNetError(
            f"plan: no placement exists for {', '.join(self.names)} and "
            f"{', '.join(map(str, self.micro_batches))} micro-batches of {len(self.free)} "
            f"layers on {self.count} devices: {'; '.join(needs)}. Allow another schedule"
        )

    def _fill_queue(self):
        queue = []
        for m, schedule, listed in self._forms():
            some = listed
            if listed is None:
                orders = self._orders_for(schedule)
                some = {p for order in orders for p in self.splits(order, m, schedule)}
            queue += [(self.bound(p, m, schedule), m, schedule, p) for p in some]
        listed = {(p, m, schedule) for _, m, schedule, p in queue}
        queue += [
            (self.bound(p, m, schedule), m, schedule, p)
            for p, m, schedule in self.profile.known()
            if (p, m, schedule) not in listed and m in self.micro_batches and schedule in self.names
        ]
        self._queue = sorted(queue)

    def _forms(self):
        """Yields (micro-batches, schedule, placements to consider). The placements are None if
        there are too many."""
        for schedule in self.names:
            listed = self.placements(schedule)
            for m in self.micro_batches:
                if schedules.named(schedule).takes(m):
                    yield m, schedule, listed

    def _better(self, best, candidate):
        return (
            candidate
            if not self.excess(candidate)[0] and (best is None or candidate.seconds < best.seconds)
            else best
        )

    def lean(self):
        """Returns candidates sorted by memory, starting with the smallest excess over the limits.
        Their tables are those for equal stage durations, so the order depends only on bytes.

        If there are very many placements, only those with the smallest excess for one micro-batch
        are considered. Neighbors of the first candidates are added until the first candidates no
        longer change (hill climbing).
        """
        found, seen = {}, set()

        def add(key):
            if key not in found:
                found[key] = self.even(*key)

        def ranked():
            return sorted(
                found.values(),
                key=lambda c: (
                    self.over_by(*zip(*c.memory))[0],
                    sum(map(sum, c.memory)),
                    c.placement,
                    c.micro_batches,
                    c.schedule,
                ),
            )

        for m, schedule, listed in self._forms():
            if listed is None:
                listed = {
                    p
                    for order in self._orders_for(schedule)
                    for p in self._neighbours(self._even_split(order, m))
                }
            if len(listed) > SIMULATED:
                costs = self.costs(m)
                listed = sorted(listed, key=lambda p: (self._one_micro_batch(p, costs), p))[
                    : SIMULATED // 4
                ]
            for placement in listed:
                add((placement, m, schedule))
        if not found:
            self._none()
        while new := [c for c in ranked()[:CLIMBING] if c[1:4] not in seen]:
            for c in new:
                seen.add(c[1:4])
                for key in self.near(c):
                    add(key)
        return ranked()

    def _one_micro_batch(self, placement, costs):
        """Returns the excess of a placement over the limits with one micro-batch in flight."""
        devices = self.whole(placement)
        held = [0.0] * self.count
        for i, d in enumerate(devices):
            held[d] += costs[d][i].saved
        return self.over_by(self.fixed_memory(devices), held)[0]

    def _even_split(self, order, micro_batches):
        """Returns the split that minimizes the memory of the largest stage, found by dynamic
        programming over cut points."""
        costs, n, k = self.costs(micro_batches), len(self.free), len(order)
        behind = {
            i: [j for j, layer in enumerate(self.layers) if layer.follows == i] for i in self.free
        }
        sums = []
        for s, d in enumerate(order):
            size = [0.0]
            for i in self.free:
                kept = sum(costs[d][j].saved for j in (i, *behind[i])) * min(micro_batches, k - s)
                size.append(
                    size[-1] + kept + held_bytes(self.layers[i].params, self.profile.state_factor)
                )
            sums.append(size)
        allowed = [0 if self.limits[d] is None else self.limits[d] for d in order]
        best = [(0.0, ())] + [None] * n
        for s in range(k):
            made = [None] * (n + 1)
            for end in range(s + 1, n + 1):
                for begin in range(s, end):
                    if best[begin] is not None:
                        over = (
                            float("-inf")
                            if self.limits[order[s]] is None
                            else sums[s][end] - sums[s][begin] - allowed[s]
                        )
                        one = (max(over, best[begin][0]) if s else over, (*best[begin][1], end))
                        made[end] = one if made[end] is None or one < made[end] else made[end]
            best = made
        ends = best[n][1]
        return tuple(
            order[s]
            for s, (begin, end) in enumerate(zip((0, *ends), ends))
            for _ in range(begin, end)
        )

    def near(self, candidate):
        """Returns the keys of neighboring candidates. They have another schedule or number of
        micro-batches, or they move one layer: to the stage of an adjacent layer, or to any device
        if the network has branches."""
        _, placement, m, schedule = candidate[:4]
        found = [
            (placement, m, schedule)
            for m in self.micro_batches
            for schedule in self.names
            if schedules.named(schedule).takes(m)
        ]
        for i, d in enumerate(placement):
            others = (
                range(self.count)
                if self.branching()
                else {placement[k] for k in (i - 1, i + 1) if 0 <= k < len(placement)}
            )
            found += [
                ((*placement[:i], other, *placement[i + 1 :]), m, schedule)
                for other in others
                if other != d
            ]
        return found

    def _improve(self, best):
        """Improves a candidate by moving layers and cuts (hill climbing). The enumeration omits
        most scattered placements, which may be better."""
        while True:
            start = best
            for placement in self._neighbours(start.placement):
                for m, schedule in sorted(
                    {(start.micro_batches, name) for name in self.names}
                    | {(m, start.schedule) for m in self.micro_batches}
                ):
                    if (
                        schedules.named(schedule).takes(m)
                        and self.bound(placement, m, schedule) < best.seconds
                    ):
                        best = self._better(best, self.evaluate(placement, m, schedule))
            if best is start:
                return best

    def _neighbours(self, placement):
        yield placement
        for i in range(len(placement)):
            for d in range(self.count):
                if d != placement[i]:
                    yield (*placement[:i], d, *placement[i + 1 :])
        for i in range(1, len(placement)):  # moves a cut by two layers
            if placement[i - 1] != placement[i]:
                yield (*placement[: max(i - 2, 0)], *[placement[i]] * min(i, 2), *placement[i:])
                yield (
                    *placement[:i],
                    *[placement[i - 1]] * min(2, len(placement) - i),
                    *placement[i + 2 :],
                )

    def fail(self, candidate):
        """Raises an MXNetError that describes the shortage of the candidate with the smallest
        memory."""
        lacking = []
        for ctx, (fixed, moving), limit in zip(self.profile.devices, candidate.memory, self.limits):
            if limit is not None and fixed + moving > limit:
                lacking.append(
                    (
                        limit - fixed - moving,
                        f"{fixed + moving:,} bytes on {ctx}, {fixed + moving - limit:,} more "
                        f"than its limit of {limit:,}: {fixed:,} for parameters, gradients and "
                        f"optimizer states, {moving:,} for micro-batches in flight",
                    )
                )
        raise MXNetError(
            "plan: no placement fits the memory limits. The smallest "
            f"({candidate.micro_batches} micro-batches, "
            f"{candidate.schedule})"
            f"{'' if self.profile.is_measured(candidate) else ', by estimate,'} needs "
            f"{'; '.join(text for _, text in sorted(lacking))}. Use smaller batches, more "
            "micro-batches, more devices or recompute"
        )
