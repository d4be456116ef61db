"""Checks that a pipelined block returns the same results for micro-batches and the whole batch."""

from ... import _core
from ..._core import (
    MICRO_BATCH_CARRIED as CARRIED,
    MICRO_BATCH_SHARED as SHARED,
    MICRO_BATCH_SPLIT as SPLIT,
)
from ...base import MXNetError


def placeholders(lookups):
    """Returns uninitialized arrays with the shapes of the taps."""
    return [_core.empty((one.count, *one.row), one.device, one.dtype) for one in lookups]


def check(entry, call, rows, arrays, whole, exact):
    """Raises MXNetError if the block's results on a micro-batch differ from its results on the
    whole batch, unless the pipeline's option `check` is False. Also detects random draws without a
    batch axis, such as a mask of a weight.

    `call` is the staged call for a micro-batch of `rows` rows and these arrays, and `whole` has the
    inputs of all micro-batches. `exact` says whether the pipeline keeps the bits of one device."""
    pipeline = entry.pipeline
    # Parameters and taps are not divided. Outputs that follow the block's own, such as the row
    # indices of taps, are not results of the block. Mark them as carried, because the check
    # requires all other outputs to be divided.
    kinds = [*entry.kinds, *[SHARED] * (len(arrays) - len(entry.kinds))]
    traced = (entry.misshapen, entry.statistics, entry.output_kinds)
    results = [kind if i < entry.own else CARRIED for i, kind in enumerate(entry.output_kinds)]
    total = next(a.shape[0] for a, kind in zip(whole, kinds) if kind == SPLIT)
    # Trace the whole batch and compare the traces. The comparison detects constants that should
    # depend on the batch size. It also identifies the batch axis if a micro-batch has one row.
    other = None
    if call.draws or not entry.compared or rows == 1:
        other = _whole_call(entry, total, arrays, whole, exact)
    if pipeline.check:
        call.check(
            kinds,
            results,
            rows,
            pipeline.axis,
            bool(pipeline.carry),
            **({} if other is None else {"other": other, "other_rows": total}),
            whole_statistics=pipeline.statistics == "batch",
        )
    if other is not None:
        call.compare_draws(other)
    entry.misshapen, entry.statistics, entry.output_kinds = traced
    entry.compared = True


def _whole_call(entry, total, arrays, whole, exact):
    """Returns the staged call for the whole batch, or None if the block works only on
    micro-batches."""
    params = arrays[len(whole) : len(whole) + len(entry.signature.used)]
    tapped = len(arrays) > len(whole) + len(params)
    none = [False] * len(arrays)
    try:
        lookups = entry.find_lookups(total, [*whole, *params]) if tapped else []
        return _core.StagedCall(
            lambda *traced: entry.trace(total, *traced),
            [*whole, *params, *placeholders(lookups)],
            none,
            none,
            recording=tapped,
            exact=exact,
        )
    except MemoryError:
        raise
    except (MXNetError, ValueError):
        return None
