"""A block as a PyTorch module."""

from __future__ import annotations

from .. import autograd
from .._core import NDArray
from . import _sharing as sharing

torch = sharing.import_torch()


class _BlockCall(torch.autograd.Function):
    """One call of a Gluon block from PyTorch.

    Its inputs are the module, the parameters, the number of arguments, the arguments, and the
    tensors of the parameters.
    """

    @staticmethod
    def forward(ctx, module, parameters, count, *tensors):
        arrays = [sharing.to_ndarray(tensor, "an argument") for tensor in tensors[:count]]
        values = [parameter.data() for parameter in parameters]
        wanted = ctx.needs_input_grad[3:]
        for array, wants in zip(arrays, wanted):
            if wants:
                array.attach_grad()
        recording = any(wanted)
        scope = autograd.record if recording else autograd.pause
        ctx.training = module.training
        with scope(train_mode=ctx.training):
            ctx.outputs, ctx.single = sharing.listed(module.block(*arrays), NDArray)
        ctx.variables = [
            array if wants else None for array, wants in zip([*arrays, *values], wanted)
        ]
        # The tape refers to the tensors' memory and has no copies of their values. Saving the
        # tensors lets PyTorch detect writes to this memory before backward.
        buffers = [pair.tensor for pair in module.pairs.values() if not pair.trained]
        ctx.save_for_backward(*tensors, *buffers)
        # Return copies, because the caller may write to results whose memory the tape keeps.
        results = [sharing.to_torch(output).clone() for output in ctx.outputs]
        ctx.mark_non_differentiable(*[r for r in results if not r.is_floating_point()])
        return results[0] if ctx.single else tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        _ = ctx.saved_tensors  # raises an error if a tensor was written
        variables = [array for array in ctx.variables if array is not None]
        found = autograd.grad(
            ctx.outputs,
            variables,
            [sharing.to_ndarray(grad, "a gradient") for grad in grads],
            retain_graph=True,
            train_mode=ctx.training,
        )
        found = iter(found)
        results = [
            None if array is None else sharing.to_torch(next(found)) for array in ctx.variables
        ]
        return (None, None, None, *results)


class GluonModule(torch.nn.Module):
    """A Block as a PyTorch module; its parameters share memory with the block's."""

    def __init__(self, block):
        super().__init__()
        self.block = block
        self.pairs = {}
        for name, parameter in block.collect_params().items():
            name = name.replace(".", "_")
            pair = sharing.pair_of(parameter=parameter)
            if pair is None:
                tensor = sharing.to_torch(parameter.data())
                if parameter.grad_req != "null":
                    tensor = torch.nn.Parameter(tensor)
                pair = sharing.Pair(tensor, parameter)
            if pair.trained:
                self.register_parameter(name, pair.tensor)
            else:
                self.register_buffer(name, pair.tensor)
            self.pairs[name] = pair
        sharing.settle_around_states(self)

    def extra_repr(self):
        """Returns the block's repr."""
        return repr(self.block)

    def forward(self, *args):
        """Computes the block's outputs for these tensors."""
        sharing.follow(self.pairs, self)
        trained = [pair for pair in self.pairs.values() if pair.trained]
        parameters, weights = [p.parameter for p in trained], [p.tensor for p in trained]
        return _BlockCall.apply(self, parameters, len(args), *args, *weights)
