"""PyTorch and Gluon networks in one computation, with gradients across the boundary.

PyTorch is imported on first use.

    encoder = mx.interop.torch_function(module)  # a Block; gluon.Trainer trains it
    decoder = mx.interop.torch_function(block)   # a torch.nn.Module; torch.optim trains it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import gluon
from ._torch_block import TorchBlock as TorchBlock

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


__all__ = ["TorchBlock", "torch_function"]


def torch_function(module: Callable[..., Any]) -> Any:
    """Wraps a PyTorch network as a Block, or a Block as a PyTorch network.

    Memory is shared if possible; gradients flow both ways.

    Parameters
    ----------
    module : torch.nn.Module, Block or callable
        For a PyTorch module, or a function of tensors, the result is a `TorchBlock`, which is
        called with NDArrays, recorded by `autograd` and trained by a `gluon.Trainer`. For a Block,
        the result is a torch.nn.Module, which is called with tensors and whose parameters
        torch.optim trains. The block must be initialized, with known shapes, on one device.

    Returns
    -------
    TorchBlock or torch.nn.Module

    Raises
    ------
    ImportError
        If PyTorch is not installed.

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
        from ._gluon_module import GluonModule

        return GluonModule(module)
    if not callable(module):
        raise TypeError(
            "torch_function: expected a torch.nn.Module, a function of tensors or a Block, got "
            f"{type(module).__name__}"
        )
    return TorchBlock(module)
