"""Networks of PyTorch and of Gluon in one computation: what one calls, the other differentiates.
PyTorch is imported when it is first used.

    encoder = mx.interop.torch_function(module)  # a Block; gluon.Trainer trains it
    decoder = mx.interop.torch_function(block)   # a torch.nn.Module; torch.optim trains it
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from . import _core, autograd, gluon, ndarray as nd
from ._core import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


__all__ = ["TorchBlock", "torch_function"]

_ARRAY = object()  # among arguments: the place of an array


def _import_torch():
    try:
        import torch
    except ImportError as error:
        raise ImportError("mx.interop.torch_function needs PyTorch: install torch") from error
    return torch


def _to_torch(torch, array):
    """A tensor over the array's memory, after what reads or writes it is done."""
    return torch.utils.dlpack.from_dlpack(nd.to_dlpack_for_write(array))


def _to_ndarray(torch, tensor):
    """An array over the tensor's memory, after its GPU has computed it."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return nd.from_dlpack(tensor.detach())


def _memory(tensor):
    return tensor.untyped_storage().data_ptr()


def _listed(result, kind):
    """The outputs as a list, and whether there is but one, by itself."""
    if isinstance(result, kind):
        return [result], True
    if isinstance(result, (tuple, list)) and all(isinstance(item, kind) for item in result):
        return list(result), False
    raise TypeError(
        f"torch_function: the result has to be a {kind.__name__}, or a tuple or list of them, not "
        f"{type(result).__name__}"
    )


def _share(torch, tensor, parameter):
    """Brings a tensor to the memory of a parameter, which may have been given other memory."""
    current = _to_torch(torch, parameter.data())
    if current.dtype != tensor.dtype or current.device != tensor.device:
        raise _core.MXNetError(
            f"torch_function: parameter {parameter.name} is {current.dtype} on {current.device} by "
            f"now, the module's was {tensor.dtype} on {tensor.device}: convert the module first, "
            "then call torch_function again"
        )
    if current.data_ptr() != tensor.data_ptr():
        tensor.data = current


# --- A module of PyTorch as a block ---------------------------------------------------------------
class _TorchCall(autograd.Function):
    """One call of a function of tensors. Its inputs are the arrays of the arguments, then those of
    the parameters that the function's `weights` share memory with."""

    def __init__(self, function, weights, arguments):
        super().__init__()
        self.torch = _import_torch()
        self.function, self.weights, self.arguments = function, weights, arguments
        self.recording = autograd.is_recording()

    def forward(self, *arrays):
        torch, arguments = self.torch, list(self.arguments)
        places = [i for i, value in enumerate(arguments) if value is _ARRAY]
        tensors = [_to_torch(torch, array) for array in arrays[: len(places)]]
        for place, tensor in zip(places, tensors):
            tensor.requires_grad_(self.recording and tensor.is_floating_point())
            arguments[place] = tensor
        with torch.set_grad_enabled(self.recording):
            result = self.function(*arguments)
        if any(tensor._version for tensor in tensors):
            raise _core.MXNetError(
                "torch_function: the module wrote into one of its inputs; give it x.copy(), or "
                "make it with inplace=False"
            )
        self.outputs, single = _listed(result, torch.Tensor)
        self.sources = [*tensors, *self.weights]
        # Memory that torch keeps for its backward, or others own, is not given out.
        known = {_memory(tensor) for tensor in self.sources}
        given = [
            tensor.detach().clone() if self.recording or _memory(tensor) in known else tensor
            for tensor in self.outputs
        ]
        results = [_to_ndarray(torch, tensor) for tensor in given]
        return results[0] if single else tuple(results)

    def backward(self, *output_grads):
        torch = self.torch
        heads = [
            (output, _to_torch(torch, grad))
            for output, grad in zip(self.outputs, output_grads)
            if output.requires_grad
        ]
        wanted = [tensor for tensor in self.sources if tensor.requires_grad]
        found = iter(())
        if heads and wanted:  # the tape may be differentiated again: it keeps torch's graph
            outputs, grads = zip(*heads)
            found = iter(
                torch.autograd.grad(outputs, wanted, grads, retain_graph=True, allow_unused=True)
            )
        results = []
        for tensor in self.sources:
            grad = next(found, None) if tensor.requires_grad else None
            results.append(None if grad is None else _to_ndarray(torch, grad))
        return results[0] if len(results) == 1 else results


class TorchBlock(gluon.Block):
    """A module of PyTorch as a Block; `torch_function` makes it.

    The block's parameters and the module's share memory: a `gluon.Trainer` trains the module, and
    `load_parameters` loads it. So do buffers, such as running statistics, with ``grad_req='null'``;
    counters stay with the module. Under `autograd.record` the module is in training mode, else in
    evaluation mode. Gradients are of first order.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A function of tensors that returns a tensor, or a tuple or list of them. Arguments that are
        no NDArrays reach it as they are.

    Raises
    ------
    MXNetError
        When called with arrays that `hybridize` is tracing, when a parameter was brought to another
        device or dtype, or when the module writes into an input.
    TypeError
        When the module returns something else than tensors.

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
        torch = _import_torch()
        self._shared: list[tuple[Any, gluon.Parameter]] = []
        self.module = module
        if not isinstance(module, torch.nn.Module):
            return
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            trained = isinstance(tensor, torch.nn.Parameter)
            if not trained and tensor.dim() == 0:
                continue  # a counter
            array = _to_ndarray(torch, tensor)
            parameter = self.params.get(
                name,
                shape=array.shape,
                dtype=array.dtype,
                grad_req="write" if tensor.requires_grad else "null",
                differentiable=trained,
            )
            parameter.initialize("zeros", ctx=array.context)
            parameter.set_data(array)
            self._reg_params[name] = parameter
            self._shared.append((tensor, parameter))

    def forward(self, *args: Any) -> Any:
        """The module's outputs for these arguments: an NDArray, or a tuple of them."""
        torch = _import_torch()
        weights, values = [], []
        for tensor, parameter in self._shared:
            _share(torch, tensor, parameter)
            if isinstance(tensor, torch.nn.Parameter):
                tensor.requires_grad_(parameter.grad_req != "null")
                weights.append(tensor)
                values.append(parameter.data())
        if isinstance(self.module, torch.nn.Module):
            self.module.train(autograd.is_training())
        arguments = [_ARRAY if isinstance(value, NDArray) else value for value in args]
        arrays = [value for value in args if isinstance(value, NDArray)]
        return _TorchCall(self.module, weights, arguments)(*arrays, *values)


# --- A block as a module of PyTorch ---------------------------------------------------------------
@functools.cache
def _gluon_module():
    """The class of blocks as modules; made once there is a torch to derive it from."""
    torch = _import_torch()

    class BlockCall(torch.autograd.Function):
        """One call. Its inputs: the module, the parameters, how many arguments there are, the
        arguments, then the tensors of the parameters."""

        @staticmethod
        def forward(ctx, module, parameters, count, *tensors):
            arrays = [_to_ndarray(torch, tensor) for tensor in tensors[:count]]
            values = [parameter.data() for parameter in parameters]
            wanted = ctx.needs_input_grad[3:]
            for array, wants in zip(arrays, wanted):
                if wants:
                    array.attach_grad()
            recording = any(wanted)
            scope = autograd.record if recording else autograd.pause
            with scope(train_mode=module.training):
                ctx.outputs, ctx.single = _listed(module.block(*arrays), NDArray)
            ctx.variables = [
                array if wants else None for array, wants in zip([*arrays, *values], wanted)
            ]
            ctx.training = module.training
            # Memory that the tape keeps is not given out.
            results = [_to_torch(torch, output).clone() for output in ctx.outputs]
            ctx.mark_non_differentiable(*[r for r in results if not r.is_floating_point()])
            return results[0] if ctx.single else tuple(results)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, *grads):
            variables = [array for array in ctx.variables if array is not None]
            found = autograd.grad(
                ctx.outputs,
                variables,
                [_to_ndarray(torch, grad) for grad in grads],
                retain_graph=True,
                train_mode=ctx.training,
            )
            found = iter(found)
            results = [
                None if array is None else _to_torch(torch, next(found)) for array in ctx.variables
            ]
            return (None, None, None, *results)

    class GluonModule(torch.nn.Module):
        """A Block as a module of PyTorch; its parameters share memory with the block's."""

        def __init__(self, block):
            super().__init__()
            self.block = block
            self.shared = []
            for name, parameter in block.collect_params().items():
                tensor = _to_torch(torch, parameter.data())
                name = name.replace(".", "_")
                if parameter.grad_req == "null":
                    self.register_buffer(name, tensor)
                else:
                    tensor = torch.nn.Parameter(tensor)
                    self.register_parameter(name, tensor)
                self.shared.append((tensor, parameter))

        def extra_repr(self):
            return repr(self.block)

        def forward(self, *args):
            weights, parameters = [], []
            for tensor, parameter in self.shared:
                _share(torch, tensor, parameter)
                if isinstance(tensor, torch.nn.Parameter):
                    weights.append(tensor)
                    parameters.append(parameter)
            return BlockCall.apply(self, parameters, len(args), *args, *weights)

    return GluonModule


def torch_function(module: Callable[..., Any]) -> Any:
    """A network of PyTorch as a Block, or a Block as a network of PyTorch. Memory is shared where
    it can be; gradients pass both ways.

    Parameters
    ----------
    module : torch.nn.Module, Block or callable
        A module of PyTorch, or a function of tensors: the result is a `TorchBlock`, called with
        NDArrays, which `autograd` records and a `gluon.Trainer` trains. A Block: the result is a
        torch.nn.Module, called with tensors, whose parameters torch.optim trains. The block has to
        be initialized, with known shapes, on one device.

    Returns
    -------
    TorchBlock or torch.nn.Module

    Raises
    ------
    ImportError
        When PyTorch is not installed.

    Examples
    --------
    >>> import torch
    >>> x = nd.array([1, 2])
    >>> x.attach_grad()
    >>> with mx.autograd.record():
    ...     y = mx.interop.torch_function(torch.square)(x)
    >>> y.backward()
    >>> x.grad.asnumpy()
    array([2., 4.], dtype=float32)

    A Block in PyTorch:

    >>> block = gluon.nn.Dense(2, in_units=3)
    >>> block.initialize()
    >>> module = mx.interop.torch_function(block)
    >>> module(torch.ones(4, 3)).sum().backward()
    >>> [tuple(p.grad.shape) for p in module.parameters()]
    [(2, 3), (2,)]
    """
    if isinstance(module, gluon.Block):
        return _gluon_module()(module)
    if not callable(module):
        raise TypeError(
            "torch_function takes a torch.nn.Module, a function of tensors or a Block, not "
            f"{type(module).__name__}"
        )
    return TorchBlock(module)
