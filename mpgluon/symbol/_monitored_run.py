"""A run of an executor's program in which a monitor sees every array, forward and backward.

Each node is recorded on a tape of its own, so that its gradient can be computed alone; what flows
between nodes is added up here, in the order in which compiled backward programs add it up: users
last to first.
"""

from .. import _core, autograd
from ..base import is_floating

__all__ = ["WatchedRun", "deliver"]


class WatchedRun:
    """The nodes of one forward with what their gradients read.

    Parameters
    ----------
    watch : function
        Called with names and arrays.
    record : bool
        Whether a backward is to follow.
    """

    def __init__(self, watch, record):
        self._watch = watch
        self._record = record
        self._steps = []  # (node, its place, sources, inputs, outputs)
        self._homes = {}  # entry -> the device of its array

    def apply(self, node, call, place, sources, inputs, device, values):
        """Calls a node, for `Program.run`. `values`: those of all nodes so far, before they are
        moved for this one."""
        if not self._record:
            return call.run(inputs, device)
        written = node.call.states(len(inputs))
        inputs = [array if state else array.detach() for array, state in zip(inputs, written)]
        for array, state in zip(inputs, written):
            if not state and is_floating(array.dtype):
                array.attach_grad()
        for at, index in sources:
            self._homes[at, index] = values[at][index].context
        outputs = call.run(inputs, device)
        self._steps.append((node, place, sources, inputs, outputs))
        return [array.detach() for array in outputs]

    def backward(self, program, head_grads, train_mode):
        """The gradients of variables: (place, 0) -> NDArray. `head_grads`: of the heads; None for
        losses and where nothing flows."""
        sums, losses = {}, set()
        for entry, grad in zip(program.heads, head_grads):
            if grad is None:
                losses.add(entry)
            else:
                sums[entry] = sums[entry] + grad if entry in sums else grad
        while self._steps:
            node, place, sources, inputs, outputs = self._steps.pop()
            pairs = [
                (array, sums.pop((place, i), None))
                for i, array in enumerate(outputs)
                if (place, i) in sums or (place, i) in losses
            ]
            pairs = [(array, grad) for array, grad in pairs if _core.on_tape(array)]
            if not pairs or not node.call.differentiable:
                continue
            heads, grads = zip(*pairs)
            autograd.backward(list(heads), list(grads), train_mode=train_mode)
            found = [
                (entry, array, array.grad)
                for entry, array in zip(sources, inputs)
                if array.grad is not None
            ]
            for i, (entry, array, grad) in enumerate(found):
                self._watch(f"{node.name}_backward_output{i if len(found) > 1 else ''}", grad)
                grad = grad.as_in_context(self._homes[entry])
                sums[entry] = sums[entry] + grad if entry in sums else grad
        return sums


def deliver(gradient, target, request):
    """Puts a gradient (None: zero) into its array, as `request` says."""
    if request == "add":
        if gradient is not None:
            target[:] = target + gradient.astype(target.dtype)
    elif gradient is None:
        target[:] = 0
    else:
        target[:] = gradient.astype(target.dtype)
