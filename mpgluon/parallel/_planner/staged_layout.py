"""The memory of pipelines from shapes alone, for `layouts`.

A pipeline is compiled with all its micro-batches, as for a step. Its compiler needs arrays, so
parameters and inputs get arrays on stand-in CPU devices. These arrays are neither written nor read,
so the operating system never backs them by memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import autograd, ndarray as nd, random
from ..._internal import kinds
from ...base import MXNetError
from ...context import Context, cpu
from ...gluon._nested import flatten, regroup
from ...gluon._tree import children
from ...gluon.nn import HybridSequential, Sequential
from ...gluon.utils import shape_is_known
from .._pipeline.driver import Driver
from .._pipeline.pipeline import Pipeline, PipelinedCall
from .._pipeline.train_step import StepWithLoss, first_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...gluon.block import HybridBlock

_FIRST_STAND_IN = 1 << 20  # id of the first stand-in device
_MOST_IN_A_STAGE = 4  # micro-batches for each stage


class PlannedStep(NamedTuple):
    """A pipeline's step that was compiled, but not run."""

    peaks: dict[Context, int]  # bytes of the micro-batches in flight
    arrays: list[tuple[Any, Any, Context]]  # (shape, dtype, device) of inputs, results, gradients
    sent: int
    shardings: list[dict[str, Any]]


def stand_ins(count: int) -> list[Context]:
    """Returns CPU devices that no program uses."""
    return [cpu(_FIRST_STAND_IN + i) for i in range(count)]


def parts_in_sequence(block: HybridBlock) -> int:
    """Returns the number of blocks that `Mesh.place` can assign to stages."""
    return sum(
        parts_in_sequence(child) if type(child) in (HybridSequential, Sequential) else 1
        for child in children(block).values()
    )


def micro_batches(rows: int, axes: dict[str, int]) -> int:
    """Returns the number of micro-batches of a pipeline: at most four for each stage, and at least
    a row for each device along the batch. 0 if there are not enough rows for two micro-batches."""
    each = math.prod(axes.get(axis, 1) for axis in ("data", "shard"))
    most = min(rows // each, _MOST_IN_A_STAGE * axes["stage"])
    if most < 2:
        return 0
    # Micro-batches of equal rows are compiled once.
    even = [count for count in range(most, 1, -1) if rows % (count * each) == 0]
    return even[0] if even and even[0] >= axes["stage"] else most


def planned_step(
    net: HybridBlock,
    values: tuple[Any, ...],
    given: int,
    loss: Callable[..., Any] | None,
    pipeline: Pipeline,
    devices: list[Context],
    train: bool,
) -> PlannedStep:
    """Compiles a step of a network that was placed on stand-in devices. The first `given` of
    `values` are inputs of the network, the others are labels."""
    for param in net.collect_params().values():
        if not shape_is_known(param.shape):
            raise MXNetError(
                f"the shape of '{param.name}' is not known; give its layer in_units or in_channels"
            )
        homes = getattr(param, "homes", None) or param.placed or devices[:1]
        param.deferred_init = ("zeros", list(homes), "zeros", None, None)
        param.to_fill(None)[1]()
        if param.grad_req != "null" and param.grad_stype == "default":
            for array in param.arrays.values():  # by default, gradients would be filled with zeros
                empty = nd.empty(array.shape, ctx=array.context, dtype=array.dtype)
                gradient = kinds.of_kind(empty, kinds.is_numpy(array))
                autograd.mark_variables([array], [gradient], param.grad_req)
    flat: list[Any] = []
    structure = flatten(values, flat, "The inputs")
    inputs = [
        kinds.of_kind(nd.empty(a.shape, ctx=devices[0], dtype=a.dtype), kinds.is_numpy(a))
        for a in flat
    ]
    args = regroup(structure, iter(inputs))
    block = StepWithLoss(net, loss or first_of, len(values) - given, False, 0)
    call = PipelinedCall(block, {"pipeline": pipeline})
    mode = autograd.train_mode() if train else autograd.pause()
    # Arrays that the network creates without a device are on the first device.
    with random.calls_at(random.get_state()), mode, devices[0]:
        run, entry, _ = call.begin(args, train)
        outputs = run.outputs()
        heads = []
        if train:
            heads = [nd.empty(out.shape, ctx=out.context, dtype=out.dtype) for out in outputs]
            own = len(entry.signature.outputs[1]) - 1  # the others are for running averages
            run.train([head if i < own else None for i, head in enumerate(heads)])
        prepared = Driver(entry, pipeline).prepared(run, "FB" if train else "F")
    arrays = [(a.shape, a.dtype, a.context) for a in (*inputs, *outputs, *heads)]
    sent = sum(prepared.stages.bytes_sent("FB" if train else "F").values())
    run.finish()
    return PlannedStep(prepared.peaks, arrays, sent, prepared.stages.forward[0]["shardings"])
