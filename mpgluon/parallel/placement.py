"""Which device each layer goes to: the search behind `mpgluon.parallel.plan`, on a profile alone.

A candidate is a placement with a number of micro-batches and a schedule. Unless it has been run, its step is simulated (`schedules.simulate`) with the sums of
the layers' times; on CPU devices, where whoever sends also copies, transfers count as work of the sender. Placements are listed
(contiguous ones, in rounds for the interleaved schedule, and all of them where branches make few enough), ordered by a bound that no schedule can beat,
and simulated until the bound reaches the best so far. Where they are too many to list, dynamic programming over cut points finds, for each
longest stage allowed, the split with the smallest sum of times, and the best ones are improved layer by layer.
"""

import collections
import itertools

from ..base import MXNetError
from . import schedules
from .schedules import StageGraph

__all__ = ["Candidate", "Search"]

LISTED = 20000  # placements that are listed; beyond, dynamic programming
SIMULATED = 600  # simulations, beyond which what is found is improved step by step
CHUNKS = 2  # stages per device of the interleaved schedule

Candidate = collections.namedtuple("Candidate", ["seconds", "placement", "micro_batches", "schedule", "stages", "where", "times", "simulation", "memory"])
Candidate.__doc__ = """A placement (for each layer, the number of its device) and what is predicted: ``seconds`` of a step, the layers of each
stage (none for one that only sends the batch), the number of its device, ``times`` of one micro-batch's passes ((kind, stage) -> seconds), the simulation, and ``memory``, bytes of each device as (parameters and states, micro-batches)."""


class Search:
    """The search for one profile.

    Parameters
    ----------
    profile : Profile
    memory : dict of Context to int
        Limits; devices without one have no limit.
    micro_batches : list of int
    names : list of str
        Schedules.
    slack : float
        The share of its micro-batches' bytes that a plan which was not run may exceed a limit by: those are estimates.
    """

    def __init__(self, profile, memory=None, micro_batches=(1,), names=schedules.NAMES, slack=0.0):
        self.profile, self.micro_batches, self.names = profile, list(micro_batches), list(names)
        self.slack = slack
        self.limits = [(memory or {}).get(ctx) for ctx in profile.devices]
        self.layers, self.count = profile.layers, len(profile.devices)
        self.free = [i for i, layer in enumerate(self.layers) if layer.follows is None]  # that are placed; the others follow
        self._costs = {}
        self._seen = {}
        self._kinds = self._alike()

    def _alike(self):
        """Devices that may be exchanged for each other have the same number."""
        p, kinds, found = self.profile, [], []
        for d, ctx in enumerate(p.devices):
            like = (p.costs[ctx], p.update[ctx], self.limits[d], ctx.device_type)
            like = (*like, ctx == p.home)  # one that has the batch need not be sent it
            if like not in found:
                found.append(like)
            kinds.append(found.index(like))
        return kinds

    def whole(self, placement):
        """With the layers that follow others."""
        devices = [None] * len(self.layers)
        for i, d in zip(self.free, placement):
            devices[i] = d
        for i, layer in enumerate(self.layers):
            if layer.follows is not None:
                devices[i] = devices[layer.follows]
        return devices

    def costs(self, micro_batches):
        """For each device what pieces of a batch cut into `micro_batches` cost there; computed once."""
        if micro_batches not in self._costs:
            rows = self.profile.piece_rows(micro_batches)
            self._costs[micro_batches] = [self.profile.cost(ctx, rows) for ctx in self.profile.devices]
        return self._costs[micro_batches]

    def stages(self, devices):
        """The layers of each stage: what is on one device between two moves, as compiled programs have it."""
        depth, found = [], {}
        for i, layer in enumerate(self.layers):
            depth.append(max([depth[s] + (devices[s] != devices[i]) for s, _ in layer.sources], default=0))
            found.setdefault((depth[i], devices[i]), []).append(i)
        return [found[key] for key in sorted(found)]

    def evaluate(self, placement, micro_batches, schedule):
        """The candidate, simulated; where it was run, with the time and the memory that it took."""
        key = (tuple(placement), micro_batches, schedule)
        if key not in self._seen:
            trial = self.profile.trials.get(key)
            candidate = self.simulated(*key, trial and trial.times)
            if trial is not None:
                candidate = candidate._replace(seconds=trial.seconds, memory=[(fixed, size) for (fixed, _), size in zip(candidate.memory, trial.memory)])
            self._seen[key] = candidate
        return self._seen[key]

    def simulated(self, placement, micro_batches, schedule, measured=None):
        """The candidate by its layers' costs alone, or by what its passes were measured to take."""
        devices = self.whole(placement)
        stages = self.stages(devices)
        deferred = schedule == "zero_bubble"
        used = list(dict.fromkeys(devices[stage[0]] for stage in stages))
        of = {i: s for s, stage in enumerate(stages) for i in stage}
        costs, times, sources = self.costs(micro_batches), collections.Counter(), [set() for _ in stages]
        waits = collections.Counter()
        for s, stage in enumerate(stages):
            own = costs[devices[stage[0]]]
            times["F", s] += sum(own[i].forward for i in stage)
            times["B", s] += sum(own[i].inputs if deferred else own[i].backward for i in stage)
            if deferred:
                times["W", s] = sum(own[i].weights for i in stage)
            for i in stage:
                for source, size in self.layers[i].sources:
                    if of[source] == s:
                        continue
                    sources[s].add(of[source])
                    if devices[source] != devices[i]:
                        self._pass_on(times, waits, of[source], s, devices[source], devices[i], size / micro_batches)
        home = self.profile.devices.index(self.profile.home) if self.profile.home in self.profile.devices else None
        elsewhere = {devices[i] for i, layer in enumerate(self.layers) if not layer.sources and devices[i] != home} if home is not None else ()
        where = [devices[stage[0]] for stage in stages]
        senders = set()
        if elsewhere:  # the batch is sent from where it is: a stage in front
            stages, where, senders = [[], *stages], [home, *where], {0}
            used = list(dict.fromkeys(where))
            sources = [set(), *[{t + 1 for t in before} for before in sources]]
            waits = collections.Counter({(a + 1, b + 1): value for (a, b), value in waits.items()})
            times = collections.Counter({(kind, s + 1): value for (kind, s), value in times.items()})
            times["F", 0] = times["B", 0] = times["W", 0] = 0.0
            for s, stage in enumerate(stages):
                if any(not self.layers[i].sources and devices[i] != home for i in stage):
                    sources[s].add(0)
                    times["F", 0] += self.profile.seconds_of_transfer(self.profile.home, self.profile.devices[where[s]], self.profile.input_bytes / micro_batches)
        whole = [not deferred or not before - senders for before in sources]
        if deferred:  # where nobody waits for input gradients, all of the backward pass is deferred
            for s in range(len(stages)):
                if whole[s]:
                    times["W", s], times["B", s] = times["W", s] + times["B", s], 0.0
        graph = StageGraph([used.index(d) for d in where], sources, deferred, senders=senders)
        times = {(kind, s): times[kind, s] for s in range(len(stages)) for kind in ("FBW" if deferred else "FB")} | (measured or {})
        table = schedules.make_table(graph, micro_batches, schedule, times)
        contexts = self.profile.devices
        simulation = schedules.simulate(
            table, graph, micro_batches, times, transfer=lambda a, b: self.profile.waits[contexts[where[a]], contexts[where[b]]] + waits[a, b]
        )
        ends = [0.0] * self.count
        for action, (_, end) in simulation.spans.items():
            device = used[graph.devices[action.stage]]
            ends[device] = max(ends[device], end)
        for i, layer in enumerate(self.layers):
            ends[devices[i]] += self.profile.update[self.profile.devices[devices[i]]] * sum(size for size, trained in layer.params.values() if trained)
        return Candidate(max(ends) + self.profile.beside, placement, micro_batches, schedule, stages, where, times, simulation, self._memory(devices, stages, where, table, costs, micro_batches, whole))

    def _pass_on(self, times, waits, source, target, a, b, size):
        contexts = self.profile.devices
        forth, back = (self.profile.seconds_of_transfer(contexts[x], contexts[y], size) for x, y in ((a, b), (b, a)))
        if contexts[a].device_type == "cpu":
            times["F", source] += forth
        else:
            waits[source, target] += forth
        if contexts[b].device_type == "cpu":
            times["B", target] += back
        else:
            waits[target, source] += back

    def fixed_memory(self, devices):
        """Bytes of parameters, gradients and optimizer states on each device."""
        params = [{} for _ in range(self.count)]
        for i, layer in enumerate(self.layers):
            params[devices[i]].update(layer.params)  # a shared one once
        return [sum(size * (2 + self.profile.state_factor if trained else 1) for size, trained in own.values()) for own in params]

    def _memory(self, devices, stages, where, table, costs, micro_batches, whole):
        """(parameters and states, micro-batches) of each device, in bytes; ``whole``: for each stage, whether its backward pass is one action, that frees all.

        As compiled programs have it: what crosses to another device has a lane, of which one more is kept than is in use; what a deferred stage's
        backward pass works in is kept until its weight gradients are made.
        """
        held, spare, working, gradients = [0.0] * len(stages), [0.0] * self.count, [[0.0, 0.0] for _ in stages], [0.0] * len(stages)
        at = {i: s for s, stage in enumerate(stages) for i in stage}
        results = {source: size for layer in self.layers for source, size in layer.sources}
        for s, stage in enumerate(stages):
            own = costs[where[s]]
            for i in stage:
                held[s] += own[i].saved
                working[s] = [max(working[s][0], own[i].first), max(working[s][1], own[i].working)]
                for source, size in self.layers[i].sources:
                    size /= micro_batches
                    if at[source] != s:
                        if where[at[source]] != where[s]:
                            held[s] += size
                            spare[where[s]] += size if micro_batches > 2 else 0
                            spare[where[at[source]]] += size * min(micro_batches, 2)  # gradients, back
                        continue
                    gradients[s] += size
                    if own[source].saved < size:  # a result that the next layer keeps
                        held[s] += size
                    elif own[i].saved >= size + results.get(i, 0) / micro_batches:  # a copy of its own, that a layer makes of another's result only where it is alone
                        held[s] -= size
        pieces = list(spare)
        for row in table:
            now = 0.0
            for kind, s, m in row:
                d, inner = where[s], working[s][m > 0]
                if kind == "F":
                    now += held[s]
                elif kind == "B" and not whole[s]:
                    now += inner + gradients[s]
                pieces[d] = max(pieces[d], spare[d] + now + (inner if whole[s] and kind != "F" else 0))
                if kind == "W" or (kind == "B" and "W" not in (a.kind for a in row)):
                    now -= held[s] + (0 if whole[s] else inner + gradients[s])
        return [(round(fixed), round(moving * self.profile.memory_factor)) for fixed, moving in zip(self.fixed_memory(devices), pieces)]

    def excess(self, candidate):
        """(bytes over the limit, device, bytes needed): the worst of the devices; 0 bytes where all have room."""
        slack = 0.0 if self.profile.trial(candidate) else self.slack
        over = [(fixed + round(moving * (1 - slack)) - limit, d, fixed + moving) for d, ((fixed, moving), limit) in enumerate(zip(candidate.memory, self.limits)) if limit is not None]
        worst = max(over, default=(0, None, 0))
        return worst if worst[0] > 0 else (0, None, 0)

    # What is looked at

    def _sequences(self, rounds=1):
        """Orders of devices, without those that differ by devices that are alike."""
        seen = set()
        for count in range(2 if rounds > 1 else 1, self.count + 1):
            for order in itertools.permutations(sorted(range(self.count), key=lambda d: self.profile.devices[d] != self.profile.home), count):
                kinds = tuple(self._kinds[d] for d in order)
                if kinds not in seen and len(self.free) >= count * rounds:
                    seen.add(kinds)
                    yield order * rounds

    def branching(self):
        """Whether layers run beside each other."""
        return any(layer.kind == "join" for layer in self.layers)

    def _number(self, rounds):
        total = 0
        for order in self._sequences(rounds):
            ways = 1
            for k in range(len(order) - 1):
                ways = ways * (len(self.free) - 1 - k) // (k + 1)
            total += ways
        return total

    def placements(self, schedule):
        """All that are to be looked at with a schedule; None where they are too many."""
        rounds = CHUNKS if schedule == "interleaved" else 1
        n = len(self.free)
        if rounds == 1 and self.branching() and self.count**n <= LISTED // 4:
            return self._all_placements()
        if self._number(rounds) > LISTED:
            return None
        found = []
        for order in self._sequences(rounds):
            for cuts in itertools.combinations(range(1, n), len(order) - 1):
                ends = (*cuts, n)
                found.append(tuple(order[k] for k, (begin, end) in enumerate(zip((0, *cuts), ends)) for _ in range(begin, end)))
        return found

    def _all_placements(self):
        """Every one, less those that differ by devices that are alike."""
        seen, found = set(), []
        for placement in itertools.product(sorted(range(self.count), key=lambda d: self.profile.devices[d] != self.profile.home), repeat=len(self.free)):
            names, key = {}, []
            for d in placement:
                names.setdefault(d, (self._kinds[d], len(names)))
                key.append(names[d])
            if tuple(key) not in seen:
                seen.add(tuple(key))
                found.append(placement)
        return found

    def bound(self, placement, micro_batches, schedule):
        """A time that no simulation of the placement can be below: the work of the busiest device, and what must come before and behind."""
        trial = self.profile.trials.get((tuple(placement), micro_batches, schedule))
        if trial is not None:
            return trial.seconds
        devices, costs = self.whole(placement), self.costs(micro_batches)
        deferred = schedule == "zero_bubble"
        load, update, first = [0.0] * self.count, [0.0] * self.count, {}
        ahead, back, chain = 0.0, 0.0, not self.branching()
        for i, layer in enumerate(self.layers):
            d = devices[i]
            cost = costs[d][i]
            first.setdefault(d, (ahead, back) if chain else (0.0, 0.0))
            load[d] += cost.forward + (cost.inputs + cost.weights if deferred else cost.backward)
            ahead += cost.forward
            back += 0.0 if deferred else cost.backward
            update[d] += self.profile.update[self.profile.devices[d]] * sum(size for size, trained in layer.params.values() if trained)
        return max(forward + micro_batches * load[d] + max(update[d], behind) for d, (forward, behind) in first.items()) * (1 - 1e-9)

    def _split(self, order, micro_batches, schedule):
        """By dynamic programming over cut points: for several longest stages, the split with the smallest sum of times."""
        costs, n, k = self.costs(micro_batches), len(self.free), len(order)
        behind = {i: [j for j, layer in enumerate(self.layers) if layer.follows == i] for i in self.free}
        sums, fixed, kept = [], [], []
        for d in order:
            time, size, saved = [0.0], [0.0], [0.0]
            for i in self.free:
                own = [costs[d][j] for j in (i, *behind[i])]
                time.append(time[-1] + sum(c.forward + c.backward for c in own))
                saved.append(saved[-1] + sum(c.saved for c in own))
                size.append(size[-1] + sum(s * (2 + self.profile.state_factor if trained else 1) for s, trained in self.layers[i].params.values()))
            sums.append(time), fixed.append(size), kept.append(saved)
        arrives = [sum(s for _, s in self.layers[i].sources) / micro_batches for i in self.free]
        lengths = sorted({sums[0][b] - sums[0][a] for a in range(n) for b in range(a + 1, n + 1)})
        in_flight = [micro_batches if schedule == "gpipe" else min(micro_batches, k if schedule == "zero_bubble" else k - s) for s in range(k)]
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
                        held = fixed[s][end] - fixed[s][begin] + in_flight[s] * (kept[s][end] - kept[s][begin] + arrives[begin])
                        if limit is not None and held > limit:
                            continue
                        made = (best[s][begin][0] + time, (*best[s][begin][1], end))
                        if best[s + 1][end] is None or made < best[s + 1][end]:
                            best[s + 1][end] = made
            if best[k][n]:
                results.add(tuple(order[k] for k, (b, e) in enumerate(zip((0, *best[k][n][1]), best[k][n][1])) for _ in range(b, e)))
        return results

    def run(self):
        """The best candidate; MXNetError, which says what is lacking, where none has room."""
        if not self.micro_batches:
            raise MXNetError("plan: there is no number of micro-batches to choose from")
        queue, complete = [], True
        for schedule in self.names:
            listed = self.placements(schedule)
            rounds = CHUNKS if schedule == "interleaved" else 1
            complete = complete and listed is not None
            for m in self.micro_batches:
                if schedule == "interleaved" and m < 2:
                    continue
                some = listed if listed is not None else {p for order in self._sequences(rounds) for p in self._split(order, m, schedule)}
                queue += [(self.bound(p, m, schedule), m, schedule, p) for p in some]
        queue.sort()
        best, nearest, looked = None, None, 0
        for bound, m, schedule, placement in queue:
            if best is not None and (bound >= best.seconds or looked >= SIMULATED):
                complete = complete and bound >= best.seconds
                break
            best, nearest = self._better(best, nearest, self.evaluate(placement, m, schedule))
            looked += 1
        if best is None and not complete and nearest is None:  # dynamic programming found nothing that has room
            best, nearest = self._spread()
        if not complete or (self.branching() and self.count ** len(self.free) > LISTED // 4):
            best, nearest = self._improve(best, nearest)
        if best is None:
            self._fail(nearest)
        return best

    def _spread(self):
        """Splits by memory, where those by time have no room: in equal parts, to be improved."""
        n, best, nearest = len(self.free), None, None
        for order in self._sequences():
            placement = tuple(order[min(i * len(order) // n, len(order) - 1)] for i in range(n))
            best, nearest = self._better(best, nearest, self.evaluate(placement, max(self.micro_batches), self.names[-1]))
        return best, nearest

    def _better(self, best, nearest, candidate):
        over = self.excess(candidate)
        if over[0] > 0:
            return best, (over, candidate) if nearest is None or over[0] < nearest[0][0] else nearest
        return (candidate if best is None or candidate.seconds < best.seconds else best), nearest

    def near(self, candidate):
        """Keys of the candidates that differ by one thing: the device of a layer at the end of a stage (with branches, of any layer), or schedule and micro-batches."""
        _, placement, m, schedule = candidate[:4]
        found = [(placement, m, schedule) for m in self.micro_batches for schedule in self.names if schedule != "interleaved" or m > 1]
        for i, d in enumerate(placement):
            others = range(self.count) if self.branching() else {placement[k] for k in (i - 1, i + 1) if 0 <= k < len(placement)}
            found += [((*placement[:i], other, *placement[i + 1 :]), m, schedule) for other in others if other != d]
        return found

    def _improve(self, best, nearest):
        """Moves layers and cuts while that helps."""
        while True:
            start = best or nearest[1]
            for placement in self._neighbours(start.placement):
                for m, schedule in {(start.micro_batches, name) for name in self.names} | {(m, start.schedule) for m in self.micro_batches}:
                    if schedule != "interleaved" or m > 1:
                        best, nearest = self._better(best, nearest, self.evaluate(placement, m, schedule))
            if (best or nearest[1]) is start:
                return best, nearest

    def _neighbours(self, placement):
        yield placement
        for i in range(len(placement)):
            for d in range(self.count):
                if d != placement[i]:
                    yield (*placement[:i], d, *placement[i + 1 :])
        for i in range(1, len(placement)):  # a cut by two
            if placement[i - 1] != placement[i]:
                yield (*placement[: max(i - 2, 0)], *[placement[i]] * min(i, 2), *placement[i:])
                yield (*placement[:i], *[placement[i - 1]] * min(2, len(placement) - i), *placement[i + 2 :])

    def _fail(self, nearest):
        (over, d, needed), candidate = nearest
        ctx = self.profile.devices[d]
        fixed, moving = candidate.memory[d]
        raise MXNetError(
            f"plan: no placement has room within the memory limits. The nearest ({candidate.micro_batches} micro-batches, {candidate.schedule}) needs {needed:,} bytes on {ctx}, "
            f"{over:,} more than its limit of {self.limits[d]:,}: {fixed:,} for parameters, gradients and optimizer states, {moving:,} for micro-batches under "
            "way. Smaller batches, more micro-batches, more devices or recompute take less"
        )
