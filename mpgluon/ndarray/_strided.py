"""Copies strided tensors of other libraries."""

from __future__ import annotations

from .. import autograd
from .._core import NDArray
from .functions import arange, full


def copied(
    memory: NDArray, shape: tuple[int, ...], strides: tuple[int, ...], first: int
) -> NDArray:
    """Returns a contiguous copy of a strided tensor. The copy is complete on return.

    Element (i, j, ...) of the tensor is at index `first` + i * `strides[0]` + ... of `memory`, a
    1-d array. Unless the tensor is a transposed contiguous array, the copy temporarily needs 16
    bytes per element.
    """
    with autograd.pause():
        order = sorted((i for i, n in enumerate(shape) if n > 1), key=lambda i: -strides[i])
        if is_dense(order, shape, strides):
            sorted_dims = memory.reshape([shape[i] for i in order])
            copy = sorted_dims.transpose([order.index(i) for i in sorted(order)]).reshape(shape)
        else:
            places = full((1,) * len(shape), first, ctx=memory.context, dtype="int64")
            for axis, (n, stride) in enumerate(zip(shape, strides)):
                along = arange(n, ctx=memory.context, dtype="int64") * stride
                places = places + along.reshape([n if i == axis else 1 for i in range(len(shape))])
            copy = memory.take(places)
        copy.wait_to_read()
    return copy


def is_dense(order: list[int], shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if the tensor is C-contiguous after its axes are permuted to the given order."""
    size = 1
    for i in reversed(order):
        if strides[i] != size:
            return False
        size *= shape[i]
    return True
