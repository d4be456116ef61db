"""A PyTorch module as a block."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .. import _core, autograd, gluon
from .._core import NDArray
from ..gluon._compiled import tracing
from ..gluon._nested import is_symbolic
from . import _sharing as sharing

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ARRAY = object()  # placeholder for an array among arguments


def _memory(tensor):
    return tensor.untyped_storage().data_ptr()


class _TorchCall(autograd.Function):
    """One call of a block's function of tensors.

    Its inputs are the arrays of the arguments, then those of the trained parameters.
    """

    def __init__(self, block, arguments, followed):
        super().__init__()
        self.torch = sharing.import_torch()
        self.block, self.arguments, self.followed = block, arguments, followed
        self.recording = False

    def __call__(self, *inputs):
        self.recording = autograd.is_recording()  # read here, because `forward` runs unrecorded
        return super().__call__(*inputs)

    def _array(self, tensor, role):
        array = sharing.to_ndarray(tensor, role)
        return array if self.context is None else array.as_in_context(self.context)

    def forward(self, *arrays):
        contexts = list(dict.fromkeys(array.context for array in arrays))
        if len(contexts) > 1:
            raise _core.MXNetError(
                "torch_function: arguments and parameters are on different devices, "
                f"{contexts[0]} and {contexts[1]}; move an argument with x.as_in_context, or "
                "the parameters with collect_params().reset_ctx"
            )
        self.context = contexts[0] if contexts else None
        with self.torch.inference_mode(False), self.block._locked():
            result = self._called(arrays)
        self.outputs, single = sharing.listed(result, self.torch.Tensor)
        # Copy results whose memory PyTorch needs for backward or shares with an argument or a
        # parameter, because the caller may write to the results.
        known = {_memory(tensor) for tensor in self.sources}
        given = [
            tensor.detach().clone() if self.recording or _memory(tensor) in known else tensor
            for tensor in self.outputs
        ]
        results = [self._array(tensor, "a result") for tensor in given]
        return results[0] if single else tuple(results)

    def _called(self, arrays):
        """Calls the function; records the values that `backward` needs."""
        block, arguments = self.block, list(self.arguments)
        if block._is_module and not self.followed:
            sharing.follow(block._pairs, block.module)
        pairs = list(block._pairs.values())
        places = [i for i, value in enumerate(arguments) if value is _ARRAY]
        tensors = [sharing.to_torch(array) for array in arrays[: len(places)]]
        # The first call passes copies, to detect whether the function writes to its inputs.
        copied = self.recording not in block._harmless
        if copied:
            tensors = [tensor.clone() for tensor in tensors]
        for place, tensor in zip(places, tensors):
            tensor.requires_grad_(self.recording and tensor.is_floating_point())
            arguments[place] = tensor
        before = [tensor._version for tensor in tensors]
        # Tensors and the arrays that share their memory. PyTorch cannot see writes to the arrays.
        self.shared = [(pair.tensor, pair.array) for pair in pairs]
        self.shared += [] if copied else zip(tensors, arrays)
        self.versions = _core.versions([array for _, array in self.shared])
        self.sources = [*tensors, *(pair.tensor for pair in pairs if pair.trained)]
        if block._is_module:
            block.module.train(autograd.is_training())
        wrote = (
            "torch_function: the module wrote into one of its inputs; pass x.copy(), or create "
            "the module with inplace=False"
        )
        try:
            with self.torch.set_grad_enabled(self.recording):
                result = block.module(*arguments)
        except RuntimeError as error:
            if "leaf Variable that requires grad" in str(error):
                raise _core.MXNetError(wrote) from error
            raise
        finally:
            if block._has_buffers:
                sharing.follow_buffers(block._pairs, block.module)
        if [tensor._version for tensor in tensors] != before:
            raise _core.MXNetError(wrote)
        block._harmless |= {self.recording}
        return result

    def backward(self, *output_grads):
        torch = self.torch
        heads = [
            (output, sharing.to_torch(grad))
            for output, grad in zip(self.outputs, output_grads)
            if output.requires_grad
        ]
        wanted = [tensor for tensor in self.sources if tensor.requires_grad]
        found = iter(())
        if heads and wanted:  # keeps torch's graph, because the tape may be differentiated again
            self._tell_of_writes()
            outputs, grads = zip(*heads)
            try:
                with torch.inference_mode(False):
                    found = iter(
                        torch.autograd.grad(
                            outputs, wanted, grads, retain_graph=True, allow_unused=True
                        )
                    )
            except RuntimeError as error:
                if "modified by an inplace operation" not in str(error):
                    raise
                raise _core.MXNetError(
                    "torch_function: weights or arguments of the module were overwritten "
                    "between its call and this backward pass, which needs the old values; run "
                    "all backward passes before trainer.step, or call the module again after "
                    "it, and pass x.copy() of an argument that is overwritten"
                ) from error
        results = []
        for tensor in self.sources:
            grad = next(found, None) if tensor.requires_grad else None
            results.append(None if grad is None else self._array(grad, "a gradient"))
        return results[0] if len(results) == 1 else results

    def _tell_of_writes(self):
        """Notifies PyTorch of writes by other ops to values that it keeps."""
        now = _core.versions([array for _, array in self.shared])
        for (tensor, _), version, before in zip(self.shared, now, self.versions):
            if version != before:
                self.torch.autograd.graph.increment_version(tensor)


class TorchBlock(gluon.HybridBlock):
    """A PyTorch module as a Block, created by `torch_function`.

    The block's parameters and the module's share memory: a `gluon.Trainer` trains the module, and
    `load_parameters` loads it. Buffers, such as running statistics, are shared as parameters with
    ``grad_req='null'``; counters (buffers of a single integer) stay in the module. A parameter of
    two modules is a shared parameter of two blocks. The module is in training mode under
    `autograd.record`, and in evaluation mode otherwise. Calls from several threads are serialized.
    Gradients are first-order. Arguments, parameters and results are on one device. In a hybridized
    block, a call is a host step between two compiled parts.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A function of tensors that returns a tensor, or a tuple or list of them. Arguments other
        than NDArrays are passed unchanged.

    Raises
    ------
    MXNetError
        If a parameter was moved to a device or dtype that PyTorch does not have it on, if arguments
        are on different devices, if the module writes to an input, or if a value that backward
        needs was written since the call.
    TypeError
        If the module returns anything but tensors.

    Examples
    --------
    >>> import torch
    >>> net = mx.interop.TorchBlock(torch.nn.Linear(3, 2))
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd")
    >>> with mx.autograd.record():
    ...     loss = (net(nd.ones((4, 3))) ** 2).mean()
    >>> loss.backward()
    >>> trainer.step(1)
    """

    def __init__(self, module: Callable[..., Any]) -> None:
        super().__init__()
        torch = sharing.import_torch()
        self._pairs: dict[str, sharing.Pair] = {}
        self._harmless: frozenset[bool] = frozenset()  # recording modes without writes to inputs
        self._has_buffers = False
        self.module = module
        self._is_module = isinstance(module, torch.nn.Module)
        if not self._is_module:
            return
        for name, tensor in sharing.tensors_to_share(module):
            pair = self._pairs[name] = sharing.pair_of(tensor) or self._paired(name, tensor)
            self.params.update({pair.parameter.name: pair.parameter})
            self._reg_params[name] = pair.parameter
        self._has_buffers = not all(pair.trained for pair in self._pairs.values())
        sharing.settle_around_states(module)

    def _paired(self, name, tensor):
        trained = sharing.is_trained(tensor)
        array = sharing.to_ndarray(tensor, f"{'parameter' if trained else 'buffer'} {name}")
        parameter = self.params.get(
            name,
            shape=array.shape,
            dtype=array.dtype,
            grad_req="write" if tensor.requires_grad else "null",
            differentiable=trained,
        )
        parameter.initialize("zeros", ctx=array.context)
        parameter.set_data(array)
        return sharing.Pair(tensor, parameter)

    def _locked(self):
        """Returns a scope that protects the module's mode and tensors from other threads."""
        return sharing.lock_of(self.module) if self._is_module else contextlib.nullcontext()

    def forward(self, *args: Any) -> Any:
        """Computes the module's outputs for these arguments: an NDArray, or a tuple of them."""
        if is_symbolic(args):
            raise _core.NotSupportedError(
                "TorchBlock: a PyTorch module has no symbol, so its network cannot be exported"
            )
        arguments = [_ARRAY if isinstance(value, NDArray) else value for value in args]
        arrays = [value for value in args if isinstance(value, NDArray)]
        with self._locked():
            followed = tracing.current() is None
            if followed and self._is_module:
                sharing.follow(self._pairs, self.module)  # may replace the arrays of parameters
            values = [pair.parameter.data() for pair in self._pairs.values() if pair.trained]
            return _TorchCall(self, arguments, followed)(*arrays, *values)
