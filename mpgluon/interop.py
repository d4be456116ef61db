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
from .gluon._nested import is_symbolic

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
    current = _to_torch(torch, next(iter(parameter.arrays.values())))
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
    the parameters that share memory with tensors of the function: (tensor, parameter)."""

    def __init__(self, function, shared, arguments):
        super().__init__()
        self.torch = _import_torch()
        self.function, self.shared, self.arguments = function, shared, arguments
        self.recording = False

    def __call__(self, *inputs):
        self.recording = autograd.is_recording()  # which it is not in `forward`
        return super().__call__(*inputs)

    def _prepared(self, arrays):
        """The function's weights, as they are now; and where all arrays are."""
        torch, contexts = self.torch, list(dict.fromkeys(array.context for array in arrays))
        if len(contexts) > 1:
            raise _core.MXNetError(
                f"torch_function: arguments and parameters are on {contexts[0]} and {contexts[1]}. "
                "Nothing is copied silently: x.as_in_context moves an argument, and "
                "collect_params().reset_ctx the parameters"
            )
        for tensor, parameter in self.shared:
            _share(torch, tensor, parameter)
            if isinstance(tensor, torch.nn.Parameter):
                tensor.requires_grad_(parameter.grad_req != "null")
        if isinstance(self.function, torch.nn.Module):
            self.function.train(autograd.is_training())
        weights = [one for one, _ in self.shared if isinstance(one, torch.nn.Parameter)]
        return weights, contexts[0] if contexts else None

    def _array(self, tensor):
        array = _to_ndarray(self.torch, tensor)
        return array if self.context is None else array.as_in_context(self.context)

    def forward(self, *arrays):
        torch, arguments = self.torch, list(self.arguments)
        weights, self.context = self._prepared(arrays)
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
        self.sources = [*tensors, *weights]
        # Memory that torch keeps for its backward, or others own, is not given out.
        known = {_memory(tensor) for tensor in self.sources}
        given = [
            tensor.detach().clone() if self.recording or _memory(tensor) in known else tensor
            for tensor in self.outputs
        ]
        results = [self._array(tensor) for tensor in given]
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
            results.append(None if grad is None else self._array(grad))
        return results[0] if len(results) == 1 else results


class TorchBlock(gluon.HybridBlock):
    """A module of PyTorch as a Block; `torch_function` makes it.

    The block's parameters and the module's share memory: a `gluon.Trainer` trains the module, and
    `load_parameters` loads it. So do buffers, such as running statistics, with ``grad_req='null'``;
    counters stay with the module. Under `autograd.record` the module is in training mode, else in
    evaluation mode. Gradients are of first order. Arguments and parameters are on one device, as
    are the results. In a hybridized block a call is a step on the host between two compiled parts.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A function of tensors that returns a tensor, or a tuple or list of them. Arguments that are
        no NDArrays reach it as they are.

    Raises
    ------
    MXNetError
        When a parameter was brought to a device or dtype that PyTorch has not got it on, when
        arguments are on different devices, or when the module writes into an input.
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
        if is_symbolic(args):
            raise _core.NotSupportedError(
                "TorchBlock: a module of PyTorch has no symbol, so its network can't be exported"
            )
        values = [
            parameter.data()
            for tensor, parameter in self._shared
            if isinstance(tensor, torch.nn.Parameter)
        ]
        arguments = [_ARRAY if isinstance(value, NDArray) else value for value in args]
        arrays = [value for value in args if isinstance(value, NDArray)]
        return _TorchCall(self.module, self._shared, arguments)(*arrays, *values)


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
