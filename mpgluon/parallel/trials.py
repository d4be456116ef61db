"""Plans held against reality while they are made.

Layers are measured alone, and the whole differs: operators fuse and keep layouts across layers, memory is shared, the host queues work. So the
best plan is run for some steps on a copy of the network. The costs of its layers are corrected by what its stages took, what was measured
is kept as the prediction of that plan, and the search goes on, until its best plan is one that has been run.
"""

import copy
import time

from .. import ndarray as nd
from .. import random
from ..base import MXNetError
from ..context import memory_stats
from . import layer_profile
from .placement import Search

__all__ = ["improve"]

WARM, STEPS, SECONDS = 2, 6, 0.4  # steps before and while measuring, and for how long at least
FINALISTS, TURNS = 2, 2  # the best are run again
MOST = 3.0  # by how much a cost is corrected at most


def improve(profile, limits, numbers, names, plan_of, count, net, sample, labels, loss, optimizer, optimizer_params):
    """Runs up to `count` plans, and returns the best candidate of those that were run; of a search without any, where there is no room to run one.

    ``plan_of``: makes a `Plan` of a candidate.
    """
    corrected, tried, trials = set(), [], []
    state = random.get_state()
    try:
        for _ in range(count):
            try:
                candidate = Search(profile, limits, numbers, names).run()
            except MXNetError:  # before that is believed, bytes are corrected
                if tried:
                    break
                candidate = Search(profile, None, numbers, names).run()
            if profile.trial(candidate) is not None or not _has_room(profile, candidate):
                break
            trial = _Trial(plan_of(candidate), net, sample, labels, loss, optimizer, optimizer_params)
            trial.run()
            profile.trials[_key(candidate)] = trial.seconds, trial.memory
            tried.append(candidate)
            trials = sorted([*trials, trial], key=lambda t: t.seconds)[:FINALISTS]  # the others give their memory back
            _correct(profile, candidate, trial.stages(), corrected)
            _correct_rest(profile, limits, candidate)
            estimated = [sum(moving for _, moving in Search(profile, None, [c.micro_batches], [c.schedule]).simulated(*_key(c)).memory) for c in tried]
            profile.memory_factor *= sum(sum(profile.trial(c)[1]) for c in tried) / max(sum(estimated), 1)
        for _ in range(TURNS if len(trials) > 1 else 1):  # what disturbed one of them does not decide
            for trial in trials:
                trial.run()
                profile.trials[_key(trial.candidate)] = trial.seconds, trial.memory
    finally:
        random.set_state(state)
    search = Search(profile, limits, numbers, names)
    best = [search.evaluate(*_key(c)) for c in tried]
    best = [c for c in best if not search.excess(c)[0]]
    return min(best, key=lambda c: c.seconds) if best else search.run()


def _key(candidate):
    return candidate.placement, candidate.micro_batches, candidate.schedule


def _has_room(profile, candidate):
    """Whether a copy of the network, in training, has room beside what is there, where limits are set."""
    for ctx, needed in zip(profile.devices, candidate.memory):
        stats = memory_stats(ctx)
        if stats["limit"] and stats["in_use"] + 1.1 * sum(needed) > stats["limit"]:
            return False
    return True


class _Trial:
    """A plan that is run on a copy of the network.

    What disturbs a step makes it longer, so the quickest is the one that says most about the plan: ``seconds``, ``report``.
    """

    def __init__(self, plan, net, sample, labels, loss, optimizer, optimizer_params):
        from ..gluon import Trainer
        from .train_step import TrainStep

        self.candidate, self.devices = plan._candidate, plan.devices
        own = layer_profile._alone(net)
        own.place(plan)
        if not isinstance(optimizer, str):  # with counts of its own
            optimizer = copy.copy(optimizer)
            optimizer.param_dict = {}
            optimizer = copy.deepcopy(optimizer)
        params = {name: param for name, param in own.collect_params().items() if param.grad_req != "null"}
        trainer = Trainer(params, optimizer, optimizer_params) if params else None
        self.pipeline = plan.pipeline()
        step = TrainStep(own, loss or (lambda outputs, *_: outputs), trainer, self.pipeline)
        self._step = lambda: step(sample, labels)
        self.seconds, self.report = float("inf"), None

    def run(self):
        for _ in range(WARM):
            self._step()
        count, end = 0, time.perf_counter() + SECONDS
        while count < STEPS or time.perf_counter() < end:
            nd.waitall()
            begin = time.perf_counter()
            self._step()
            nd.waitall()
            taken = time.perf_counter() - begin
            count += 1
            if taken < self.seconds:
                self.seconds, self.report = taken, self.pipeline.report()

    @property
    def memory(self):
        """Bytes of micro-batches on each device."""
        return [self.report.planned_bytes.get(ctx, 0) for ctx in self.devices]

    def stages(self):
        """For each device, for each of its stages in order: seconds by kind of pass."""
        found, report = {}, self.report
        for s, ctx in enumerate(report.stages.placement()):
            found.setdefault(ctx, []).append({k: report.times[k, s] for k in "FBW" if (k, s) in report.times})
        return found


def _correct(profile, candidate, measured, corrected):
    """Multiplies the costs of each stage's layers so that their sums are what the stage took. Where a layer's costs for micro-batches of
    another size, or on another device, were not corrected by a plan of their own, they are multiplied likewise."""
    planned = {}
    for s, d in enumerate(candidate.where):
        planned.setdefault(profile.devices[d], []).append(s)
    if {ctx: len(stages) for ctx, stages in planned.items()} != {ctx: len(stages) for ctx, stages in measured.items()}:
        return  # the compiled stages are others: only the step as a whole is known
    spans = candidate.simulation.spans
    rows = profile.piece_rows(candidate.micro_batches)
    for ctx, stages in planned.items():
        for s, took in zip(stages, measured[ctx]):
            layers = candidate.stages[s]
            own = profile.cost(ctx, rows)
            passes = {kind: spans[action][1] - spans[action][0] for kind in "FBW" for action in spans if action.kind == kind and action.stage == s}
            factors = {}
            forward, backward = sum(own[i].forward for i in layers), sum(own[i].backward for i in layers)
            factors["forward"] = _factor(took.get("F", 0.0) - (passes.get("F", 0.0) - forward), forward)
            whole = passes.get("B", 0.0) + passes.get("W", 0.0)
            inner = sum(own[i].inputs + own[i].weights for i in layers) if "W" in passes else backward
            factors["backward"] = _factor(took.get("B", 0.0) + took.get("W", 0.0) - (whole - inner), inner)
            factors["inputs"] = factors["weights"] = factors["backward"]
            if took.get("W") and took.get("B"):
                weights = sum(own[i].weights for i in layers)
                factors["weights"] = _factor(took["W"], weights)
                factors["inputs"] = _factor(took["B"] - (whole - inner), inner - weights)
            _multiply(profile, ctx, rows, layers, factors, corrected)


def _factor(measured, predicted):
    return min(max(measured / predicted, 1 / MOST), MOST) if predicted > 0 and measured > 0 else 1.0


def _multiply(profile, ctx, rows, layers, factors, corrected):
    own = profile.costs[ctx].get(rows)
    columns = {id(column): column for sizes in profile.costs.values() for column in sizes.values()}  # devices that are alike share them
    for column in columns.values():
        for i in layers:
            if column is own or (id(column), i) not in corrected:
                column[i] = column[i]._replace(**{name: getattr(column[i], name) * factor for name, factor in factors.items()})
            if column is own:
                corrected.add((id(column), i))


def _correct_rest(profile, limits, candidate):
    """What a step takes beside its stages: what is left between the prediction and the measured step."""
    seconds = profile.trial(candidate)[0]
    search = Search(profile, limits, [candidate.micro_batches], [candidate.schedule])
    profile.beside = max(profile.beside + seconds - search.simulated(candidate.placement, candidate.micro_batches, candidate.schedule).seconds, 0.0)
