"""Trial runs of plans, which correct the predictions.

Layers are measured separately, but the whole network behaves differently: operators are fused and
keep layouts across layers, memory is shared, and the host queues work. The best plan is therefore
run for some steps on a copy of the network. The costs of its layers are corrected by the measured
times of its stages, and the measurements are stored as the prediction of that plan. The search is
repeated until its best plan is one that has been run. Then similar plans are run, because
predictions of other plans are only as good as the correction. Finally, the fastest plans alternate
step by step, so that disturbances affect all of them.
"""

import copy
import time

from ... import ndarray as nd, random
from ...context import memory_stats
from .._pipeline.pipeline import Expected
from . import layer_measurement
from .layer_profile import Trial, key_of
from .memory_measurement import best_within
from .search import RESIMULATED, SIMULATED, Search

__all__ = ["improve"]

WARM, STEPS, SECONDS = 3, 3, 0.3  # warm-up steps, minimum measured steps, minimum measured seconds
# Maximum number of plans in the final measurement, and the maximum ratio of their time to the time
# of the fastest plan.
FINALISTS, CLOSE = (
    3,
    1.1,
)
# Limits for running plans in addition to the search's choice: the maximum ratio of a plan's
# predicted time to that of the choice, and the total seconds of the additional runs.
NEAR, ENOUGH = (
    1.1,
    20.0,
)
MOST = 3.0  # maximum factor of a correction


def improve(
    profile,
    limits,
    numbers,
    names,
    plan_of,
    meter,
    count,
    net,
    sample,
    labels,
    loss,
    optimizer,
    optimizer_params,
    progress=None,
):
    """Runs up to `count` plans and returns the best candidate of those that were run. Returns the
    search's best candidate if there is no room to run one.

    ``plan_of`` creates a `Plan` from a candidate. ``meter`` is a `memory_measurement.MemoryMeter`
    or None.
    """
    corrected, tried, trials, bar = (
        set(),
        [],
        [],
        layer_measurement.Progress("trials ", count + 1, progress and count > 0),
    )
    begin = time.perf_counter()
    with random.calls_at(random.get_state()):
        while len(tried) < count:
            further = time.perf_counter() - begin < ENOUGH
            most = RESIMULATED if tried else SIMULATED
            candidate = _next(profile, limits, numbers, names, meter, further, progress, most)
            if candidate is None or not _has_room(profile, candidate):
                break
            trial = _Trial(
                plan_of(candidate), net, sample, labels, loss, optimizer, optimizer_params
            )
            trial.warm(lambda peaks, c=candidate: _fits(profile, limits, c, peaks))
            _take_turns([trial], True)
            profile.trials[key_of(candidate)] = trial.result()
            tried.append(candidate)
            # Keep only the fastest trials, so that the slower ones release their memory.
            trials = sorted([*trials, trial], key=lambda t: t.seconds)[:FINALISTS]
            _correct(profile, candidate, trial.stages(), corrected)
            _correct_rest(profile, tried)
            bar(f"{trial.seconds * 1e3:.2f} ms")
        if trials:
            trials = [t for t in trials if t.seconds <= CLOSE * trials[0].seconds]
            _take_turns(trials)
            # Run the winner alone, as in training.
            _take_turns([min(trials, key=lambda t: t.seconds)])
            for trial in trials:
                profile.trials[key_of(trial.candidate)] = trial.result()
            bar(f"{min(t.seconds for t in trials) * 1e3:.2f} ms", last=True)
    search = Search(profile, limits, numbers, names)
    best = [search.evaluate(*key_of(c)) for c in tried]
    best = [c for c in best if not search.excess(c)[0]]
    return (
        min(best, key=lambda c: c.seconds)
        if best
        else best_within(profile, limits, numbers, names, meter, progress)
    )


def _next(profile, limits, numbers, names, meter, further, progress=False, most=SIMULATED):
    """Returns the next candidate to run. This is the best candidate of the search, unless it was
    run already. Then, if `further`, it is the best neighbor that fits and was not run. Returns None
    if no candidate remains."""
    best = best_within(profile, limits, numbers, names, meter, progress, most)
    if profile.trial(best) is None:
        return best
    search = Search(profile, limits, numbers, names)
    near = [search.evaluate(*key) for key in search.near(best)] if further else []
    for c in sorted(
        (c for c in near if profile.trial(c) is None and c.seconds <= NEAR * best.seconds),
        key=lambda c: c.seconds,
    ):
        if (
            meter is not None
            and key_of(c) not in profile.measured_bytes
            and any(limit is not None for limit in search.limits)
        ):
            meter.measure(c)
            search.forget(c)
            c = search.evaluate(*key_of(c))
        if not search.excess(c)[0]:
            return c
    return None


def _fits(profile, limits, candidate, peaks):
    """True if parameters, states and the given bytes of micro-batches are within the limits."""
    return all(
        limit is None or fixed + peaks.get(ctx, 0) <= limit
        for ctx, (fixed, _) in zip(profile.devices, candidate.memory)
        for limit in [(limits or {}).get(ctx)]
    )


def _take_turns(trials, passes=False):
    """Measures the step times of trials, with one step of each trial in turn. If `passes`, also
    measures the times of the passes."""
    count, end = 0, time.perf_counter() + SECONDS * len(trials)
    while count < STEPS or time.perf_counter() < end:
        for trial in trials:
            trial.run(passes)
        count += 1


def _has_room(profile, candidate):
    """True if the memory limits leave room for a copy of the network in training."""
    for ctx, needed in zip(profile.devices, candidate.memory):
        stats = memory_stats(ctx)
        if stats["limit"] and stats["in_use"] + 1.1 * sum(needed) > stats["limit"]:
            return False
    return True


class _Trial:
    """A plan that is run on a copy of the network.

    ``seconds`` is the time of the fastest step. It is the best estimate, because disturbances only
    make a step slower. The same applies to each pass of each micro-batch.
    """

    def __init__(self, plan, net, sample, labels, loss, optimizer, optimizer_params):
        from ...gluon import Trainer
        from .._pipeline.train_step import TrainStep, first_of

        self.candidate, self.devices = plan.candidate, plan.devices
        own = layer_measurement.detached_copy(net)
        plan.place(own)
        if not isinstance(optimizer, str):  # the copy gets its own update counts
            optimizer = copy.copy(optimizer)
            optimizer.param_dict = {}
            optimizer = copy.deepcopy(optimizer)
        params = {
            name: param for name, param in own.collect_params().items() if param.grad_req != "null"
        }
        trainer = Trainer(params, optimizer, optimizer_params) if params else None
        self.pipeline = plan.pipeline()
        step = TrainStep(own, loss or first_of, trainer, self.pipeline)
        self._step = lambda: step(sample, labels)
        self._start()

    def _start(self):
        self.seconds, self.makespan, self.report, self._passes = float("inf"), None, None, {}

    def warm(self, fits):
        """Runs the first steps, which compile, and rebuilds the schedule's table from the times of
        later steps. These times are stored with the plan, because other times would give another
        table with different time and memory. If the new table does not fit (`fits`, called with its
        bytes), the plan keeps its previous table."""
        self._step()
        for _ in range(WARM - 1):
            self.run(True)
        self.times, contexts = None, [self.devices[d] for d in self.candidate.where]
        if self.report.stages.placement() == contexts:
            times = {**self.candidate.times, **self._means()}
            if fits(self.report.peaks_of(self.candidate.schedule, times)):
                self.times, self.pipeline.expected = times, Expected(contexts, times)
        self._step()  # allocates the memory of the new table
        self._start()

    def run(self, passes):
        """Runs and times a step."""
        nd.waitall()
        begin = time.perf_counter()
        self._step()
        nd.waitall()
        self.seconds = min(self.seconds, time.perf_counter() - begin)
        if not passes:
            return
        self.report = self.pipeline.report()
        self.makespan = min(self.report.seconds, self.makespan or float("inf"))
        for action, (first, last) in self.report.spans.items():
            self._passes[action] = min(last - first, self._passes.get(action, float("inf")))

    def _means(self):
        """Returns (kind, stage) -> mean seconds of one micro-batch."""
        found = {}
        for (kind, stage, _), seconds in self._passes.items():
            found.setdefault((kind, stage), []).append(seconds)
        return {key: sum(values) / len(values) for key, values in found.items()}

    def result(self):
        """Returns the measurements as a `Trial`."""
        return Trial(
            self.seconds,
            [self.report.planned_bytes.get(ctx, 0) for ctx in self.devices],
            self.times,
            self.makespan,
        )

    def stages(self):
        """Returns for each device, for each of its stages in order, the seconds by kind of pass."""
        found, times = {}, self._means()
        for s, ctx in enumerate(self.report.stages.placement()):
            found.setdefault(ctx, []).append({k: times[k, s] for k in "FBW" if (k, s) in times})
        return found


def _correct(profile, candidate, measured, corrected):
    """Scales the costs of each stage's layers so that their sums match the measured times of the
    stage. Costs for other micro-batch sizes or devices are scaled as well, unless they were
    corrected by a trial of their own."""
    planned = {}
    for s, d in enumerate(candidate.where):
        planned.setdefault(profile.devices[d], []).append(s)
    if {ctx: len(stages) for ctx, stages in planned.items()} != {
        ctx: len(stages) for ctx, stages in measured.items()
    }:
        return  # the compiled stages differ from the planned ones
    rows = profile.micro_batch_rows(candidate.micro_batches)
    for ctx, stages in planned.items():
        for s, took in zip(stages, measured[ctx]):
            layers = candidate.stages[s]
            own = profile.cost(ctx, rows)
            passes = {
                kind: candidate.times[kind, s] for kind in "FBW" if (kind, s) in candidate.times
            }
            factors = {}
            forward, backward = (
                sum(own[i].forward for i in layers),
                sum(own[i].backward for i in layers),
            )
            factors["forward"] = _factor(
                took.get("F", 0.0) - (passes.get("F", 0.0) - forward), forward
            )
            whole = passes.get("B", 0.0) + passes.get("W", 0.0)
            inner = (
                sum(own[i].input_gradients + own[i].weight_gradients for i in layers)
                if "W" in passes
                else backward
            )
            factors["backward"] = _factor(
                took.get("B", 0.0) + took.get("W", 0.0) - (whole - inner), inner
            )
            factors["input_gradients"] = factors["weight_gradients"] = factors["backward"]
            if took.get("W") and took.get("B"):
                weights = sum(own[i].weight_gradients for i in layers)
                factors["weight_gradients"] = _factor(took["W"], weights)
                factors["input_gradients"] = _factor(took["B"] - (whole - inner), inner - weights)
            _multiply(profile, ctx, rows, layers, factors, corrected)


def _factor(measured, predicted):
    return min(max(measured / predicted, 1 / MOST), MOST) if predicted > 0 and measured > 0 else 1.0


def _multiply(profile, ctx, rows, layers, factors, corrected):
    own = profile.costs[ctx].get(rows)
    # Devices of the same kind share their columns of costs, so correct each column once.
    columns = {id(column): column for sizes in profile.costs.values() for column in sizes.values()}
    for column in columns.values():
        for i in layers:
            if column is own or (id(column), i) not in corrected:
                column[i] = column[i]._replace(
                    **{name: getattr(column[i], name) * factor for name, factor in factors.items()}
                )
            if column is own:
                corrected.add((id(column), i))


def _correct_rest(profile, tried):
    """Sets the host's overhead of a step to the smallest difference between measured and predicted
    time over all plans that were run."""
    profile.host_overhead = 0.0
    search = Search(profile)
    profile.host_overhead = max(
        min(profile.trial(c).seconds - search.simulated(*key_of(c)).seconds for c in tried), 0.0
    )
