"""Optimizer states on other devices than their weights.

The update runs where the states are, on copies of the weight and the gradient. The copies stay
between steps, so a step copies only the gradient, and the new weight back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import autograd, ndarray as nd
from .._core import exposed, sum_replicas, versions, write_ticks
from .._internal.offloading import device_of, target, text_of
from ..base import MXNetError
from ..context import Context, computes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .._internal.types import NDArray
    from .parameter import Parameter

# Weights that are updated by one call hold about this many bytes. Smaller groups start earlier,
# larger ones have less overhead.
_AT_ONCE = 1 << 20


class Copies:
    """The arrays that the optimizer updates in place of a weight on another device."""

    __slots__ = "grad", "weight"

    def __init__(self, grad: NDArray, weight: NDArray, ctx: Context) -> None:
        with autograd.pause():
            self.grad = nd.empty(grad.shape, ctx=ctx, dtype=grad.dtype)
            self.weight = nd.empty(weight.shape, ctx=ctx, dtype=weight.dtype)

    def fits(self, weight: NDArray, ctx: Context) -> bool:
        """True if the arrays can hold copies of this weight and its gradient."""
        own = self.weight
        return own.shape == weight.shape and own.dtype == weight.dtype and own.context == ctx


def copies(sources: Sequence[NDArray], targets: Sequence[NDArray]) -> list[Any]:
    """Returns the changes (`_core.at_once`) that copy arrays on one device to arrays on another
    device. Each copy starts as soon as its source is final. Between CPU devices, a side queue makes
    it, so it overlaps with the updates of other weights."""
    if all(array.context.device_type.startswith("cpu") for array in (sources[0], targets[0])):
        return [(sum_replicas, [list(sources), list(targets)], 0, False, False, True)]
    return [(source.copyto, target) for source, target in zip(sources, targets)]


def changed(weights: list[NDArray], known: Sequence[int] | None) -> list[int]:
    """Returns the positions of the weights that were written since their versions were `known`, or
    that other libraries may have written. None means that no version is known."""
    if known is None:
        return list(range(len(weights)))
    numbers = zip(versions(weights), known, exposed(weights))
    return [k for k, (now, before, unsure) in enumerate(numbers) if now != before or unsure]


class Offload:
    """The argument `offload` of a Trainer: the devices of the optimizer's states.

    `copies` has the copies by parameter index.
    """

    def __init__(self, given: Any) -> None:
        self.copies: dict[int, Copies] = {}
        where = target("Trainer", "states", given)
        if isinstance(where, Mapping):
            where = {ctx: device_of("Trainer", "states", to) for ctx, to in where.items()}
        else:
            where = device_of("Trainer", "states", where)
        self.by_device = where if isinstance(where, dict) else {}
        self.default = None if self.by_device else where
        for ctx in [*self.by_device, *self.by_device.values()] or [where]:
            if not isinstance(ctx, Context):
                raise TypeError(
                    "Trainer: offload={'states': ...} must be a device or directory, or a dict "
                    f"from the devices of parameters to devices or directories, not {where!r}"
                )
            if ctx.rank is not None:
                raise MXNetError(
                    f"Trainer: states cannot be offloaded to or from {ctx}, which belongs to a "
                    "rank; use devices of this process"
                )

    def target(self, ctx: Context) -> Context:
        """Returns the device of the states of weights on a device."""
        where = self.by_device.get(ctx, ctx) if self.default is None else self.default
        return ctx if computes(where) == ctx else where

    def __str__(self) -> str:
        if self.default is not None:
            return text_of(self.default)
        return ", ".join(f"{text_of(to)} for {ctx}" for ctx, to in self.by_device.items())

    def check(self, params: Iterable[Parameter]) -> None:
        """Raises MXNetError if the states of a parameter cannot be offloaded."""
        unused = set(self.by_device)
        for param in params:
            if param.grad_req == "null":
                continue
            unused.difference_update(param.list_ctx())
            if param.grad_stype != "default" or param.stype != "default":
                raise MXNetError(
                    f"Trainer: the states of Parameter '{param.name}' cannot be offloaded, because "
                    "its values or gradients are row_sparse; create its layer with "
                    "sparse_grad=False, or give it to a second Trainer"
                )
            remote = next((ctx for ctx in param.list_ctx() if ctx.rank is not None), None)
            if remote is not None:
                raise MXNetError(
                    f"Trainer: the states of Parameter '{param.name}' cannot be offloaded, because "
                    f"{remote} belongs to a rank; use devices of this process"
                )
        if unused:
            raise MXNetError(
                f"Trainer: offload={{'states': ...}} names {', '.join(map(str, unused))}, but no "
                "parameter is there; use the devices of the parameters as keys"
            )

    def copies_of(self, index: int, ctx: Context, grad: NDArray, weight: NDArray) -> Copies | None:
        """Returns the copies of a weight on a device, or None if its states stay there."""
        target = self.target(ctx)
        if target == ctx:
            self.copies.pop(index, None)
            return None
        known = self.copies.get(index)
        if known is None or not known.fits(weight, target):
            known = self.copies[index] = Copies(grad, weight, target)
        return known


def in_batches(entries: Sequence[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Divides tuples (index, gradient, weight, copies) into batches to update together, first the
    gradients that are computed first. A batch is on one device, and so are its copies."""
    lines: dict[Any, list[Any]] = {}
    for entry in reversed(entries):
        lines.setdefault((entry[2].context, entry[3].weight.context), []).append(entry)
    batches = []
    for line in lines.values():
        ticks = write_ticks([grad for _, grad, _, _ in line])
        size = 0
        for k in sorted(range(len(line)), key=ticks.__getitem__):
            if size == 0:
                batches.append([])
            batches[-1].append(line[k])
            size += line[k][2].size * 4
            if size >= _AT_ONCE:
                size = 0
    return batches
