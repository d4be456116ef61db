"""Runs an executor's program, forward and backward, so that a monitor receives every array.

Each node is recorded on a separate tape, so that its gradients can be computed separately. The
gradients of a value are summed in the same order as in compiled backward programs: the gradient
from the last consumer first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core, autograd
from .._internal import device_groups
from ..base import is_floating

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._core import Context, NDArray
    from ..executor import Program


__all__ = ["WatchedRun", "deliver"]


class WatchedRun:
    """The nodes of one forward pass, with the values that their gradients need.

    Parameters
    ----------
    watch : function
        Called with names and arrays.
    watch_inputs : bool
        Whether `watch` also receives the inputs of nodes.
    record : bool
        Whether a backward pass will follow.
    """

    def __init__(
        self, watch: Callable[[str, NDArray], Any], watch_inputs: bool, record: bool
    ) -> None:
        self._watch = watch
        self._watch_inputs = watch_inputs
        self._record = record
        self._steps = []  # (node, its place, sources, inputs, outputs)
        self._homes = {}  # entry -> the device of its array

    def apply(
        self,
        node: Any,
        call: Any,
        place: int,
        sources: Sequence[tuple[int, int]],
        inputs: list[NDArray],
        device: Context | None,
    ) -> list[NDArray]:
        """Calls a node, for `Program.run`."""
        written = node.call.states(len(inputs))
        for entry, array in zip(sources, inputs):
            self._homes[entry] = array.context
        moved = device_groups.gathered(inputs)
        inputs = [old if state else new for old, new, state in zip(inputs, moved, written)]
        if self._watch_inputs:
            for name, array in zip(node.call.input_names(len(inputs)), inputs):
                self._watch(f"{node.name}_{name}", array)
        outputs = self._recorded(node, call, place, sources, inputs, device, written)
        for i, array in enumerate(outputs):
            self._watch(node.output_name(i), array)
        return outputs

    def _recorded(self, node, call, place, sources, inputs, device, written):
        """Computes the outputs of a node, and records it if a backward pass will follow."""
        if not self._record:
            return call.run(inputs, device)
        inputs = [array if state else array.detach() for array, state in zip(inputs, written)]
        for array, state in zip(inputs, written):
            if not state and is_floating(array.dtype):
                array.attach_grad()
        outputs = call.run(inputs, device)
        self._steps.append((node, place, sources, inputs, outputs))
        return [array.detach() for array in outputs]

    def backward(
        self, program: Program, head_grads: Sequence[NDArray | None], train_mode: bool
    ) -> dict[tuple[int, int], NDArray]:
        """Returns the gradients of variables as a dict from (index, 0) to NDArray.

        `head_grads` has the gradient of each head. It is None for losses and for zero gradients.
        """
        sums, losses, reached = {}, set(), set(program.heads)
        for entry, grad in zip(program.heads, head_grads):
            if grad is None:
                losses.add(entry)
            else:
                sums[entry] = sums[entry] + grad if entry in sums else grad
        while self._steps:
            node, place, sources, inputs, outputs = self._steps.pop()
            pairs = []
            for i, array in enumerate(outputs):
                entry = (place, i)
                if entry in reached:
                    reached.update(sources)
                if entry in sums or entry in losses:
                    pairs.append((array, sums.pop(entry, None)))
                # A loss op needs no gradient of its output: it creates the gradient itself.
                elif entry in reached and node.call.loss:
                    pairs.append((array, _core.get_op("zeros_like")(array)))
            pairs = [(array, grad) for array, grad in pairs if _core.on_tape(array)]
            if not pairs or not node.call.differentiable:
                continue
            heads, grads = zip(*pairs)
            autograd.backward(list(heads), list(grads), train_mode=train_mode)
            found = [
                (entry, array, array.grad.as_nd_ndarray())
                for entry, array in zip(sources, inputs)
                if array.grad is not None
            ]
            parts = {}  # entry -> sum of the node's own contributions to its gradient
            for i, (entry, array, grad) in enumerate(found):
                self._watch(f"{node.name}_backward_output{i if len(found) > 1 else ''}", grad)
                grad = grad.as_in_context(self._homes[entry])
                parts[entry] = parts[entry] + grad if entry in parts else grad
            for entry, part in parts.items():
                sums[entry] = sums[entry] + part if entry in sums else part
        return sums


def deliver(gradient, target, request):
    """Writes a gradient (None means zero) to its array, as `request` specifies."""
    if request == "add":
        if gradient is not None:
            target[:] = target + gradient.astype(target.dtype)
    elif gradient is None:
        target[:] = 0
    else:
        target[:] = gradient.astype(target.dtype)
