"""Runs one update of a trainer's parameters according to its plan (`_update_plan.Plan`)."""

import itertools

from .. import _core, ndarray as nd
from .._internal import ranks
from ..optimizer._nested_states import copy_state
from ._update_plan import update_parts
from .utils import global_norm, scale_arrays


def update(state, plan, work):
    """Updates all weights, after their states exist on all devices."""
    for group in work:  # prepare all devices before any state changes
        updater = state.updater(group.ctx)
        group.refresh()
        if group.holds(updater):
            continue
        if not updater.states.keys() >= group.known:
            _core.at_once(*state.moves(plan))
        group.prepare(updater, plan.changes)
    if plan.buckets:
        state.unequal = True
    optimizer = state.optimizer
    # If the previous step failed, this step completes it, so it keeps that step's number.
    if optimizer.number_before is None:
        optimizer.number_before = optimizer.num_update
    try:
        plan.count_ahead(work)
        plan.check_rates(work)
        _update_groups(state, plan, work)
    except BaseException:  # includes interrupts
        counts = itertools.chain(*map(dict.values, optimizer.update_counts.values()))
        optimizer.num_update = max(optimizer.number_before, *counts, 0)
        # Some offloaded copies may have been updated. The others equal their weights.
        _core.at_once(*[change for group in work for change in group.sends()])
        raise
    optimizer.number_before = None


def _update_groups(state, plan, work):
    """Updates the weights of groups, and the weights with row_sparse gradients."""
    steps, num_update = [], state.optimizer.num_update
    for groups in plan.joined(work):
        group = groups[0]
        own = [change for part in groups for change in part.fetches()]
        sends = [change for part in groups for change in part.sends()]
        if group.multi is not None:
            counted = group.multi.step(own, group.ctx.count_key, plan.changes, num_update)
            if counted is not None:
                num_update = counted
                steps += [*own, *sends, group.used]
                continue
        _core.at_once(*steps, *own)
        if group.line is None:
            group.update(state.updater(group.ctx))
        else:
            update_parts(groups, [state.updater(part.ctx) for part in groups])
        steps = [*sends, *[part.used for part in groups]]
        num_update = state.optimizer.num_update
    if plan.buckets or state.accumulate > 1:
        steps += ended(state, plan)
    _core.at_once(*steps)
    for index, param in plan.sparse:
        _update_rows(state, index, param)


def _update_rows(state, index, param):
    """Updates a parameter with its row_sparse gradients. All ranks call the updater, so that their
    states, update counts and random states stay equal."""
    fresh = {ctx: grad for ctx, grad in param.gradients.items() if grad.fresh}
    for ctx, grad in fresh.items():
        # Ranks may run different ops, because the number of rows determines the ops and only the
        # rank that owns the device knows that number.
        with ranks.alone():
            state.updater(ctx)(index, grad.for_update(), param.arrays[ctx])
            if state.accumulate > 1:
                grad[:] = 0
        grad.used()


def ended(state, plan):
    """Returns the changes (`_core.at_once`) that follow the update of all weights."""
    changes = []
    if plan.mode[0]:
        changes += [change for bucket in plan.buckets for change in bucket.spread()] + [
            (_core.gradients_used, plan.weights)
        ]
    if state.accumulate > 1:
        changes += [
            (grad.__setitem__, slice(None), 0)
            for param in state.params
            if param.grad_req == "add" and param.grad_stype == "default"
            for grad in param.gradients.values()
        ]
    return [*changes, (vars(state).update, {"waiting": (0, 0), "unequal": False})]


def overflows(state, plan, work):
    """Returns True if the gradients of the groups `work`, or fresh row_sparse gradients, contain
    infinities or NaN. In this case, marks them all as used, so that no update uses them."""
    scaler = state.loss_scaler
    if scaler is None:
        return False
    grads = [grad for group in work for grad in group.grads]
    rows = [grad for _, param in plan.sparse for grad in param.gradients.values()]
    grads += [grad for grad in rows if grad.fresh]
    if not scaler.overflows(grads):
        return False
    changes = ended(state, plan) if plan.buckets or state.accumulate > 1 else []
    _core.at_once((_core.gradients_used, plan.weights), *changes)
    for grad in rows:
        if state.accumulate > 1:
            grad[:] = 0
        grad.used()
    return True


def clip(state, plan, work, max_norm):
    """Clips the gradients of this update by their global norm."""
    once, grads = plan.gradients(work)
    if not once:
        return
    norm = global_norm(once)
    scale_arrays(grads, nd.minimum(max_norm / (state.optimizer.rescale_grad * norm + 1e-8), 1.0))


def equalize(state, plan):
    """Makes the replicas of each parameter and their optimizer states equal, after an interrupted
    step that may have updated only some of them."""
    if plan.mode[0]:
        _core.at_once(*[change for bucket in plan.buckets for change in bucket.spread()])
        return
    counts = state.optimizer.update_counts
    for index in plan.owners:
        (first, weight), *others = state.params[index].arrays.items()
        known = state.updater(first).states
        count = counts.get(first.count_key, {}).get(index)
        for ctx, other in others:
            weight.copyto(other)
            updater, its_counts = state.updater(ctx), counts.setdefault(ctx.count_key, {})
            updater.states.pop(index, None)
            its_counts.pop(index, None)
            if index in known:
                updater.states[index] = copy_state(known[index], ctx)
                updater.states_synced[index] = True
            if count is not None:
                its_counts[index] = count
