"""CUDA C++ kernels compiled and launched from Python."""

from __future__ import annotations

import numbers
import re
from typing import TYPE_CHECKING

import numpy as np

from . import _core
from .base import MXNetAssertionError, MXNetError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ._core import Context, NDArray


__all__ = ["CudaKernel", "CudaModule"]

_DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "__half": np.float16,
    "uint8_t": np.uint8,
    "int": np.int32,
    "int32_t": np.int32,
    "int8_t": np.int8,
    "char": np.int8,
    "int64_t": np.int64,
}
_ARGUMENT = re.compile(r"(const\b)?\s*(\w+)\s*(\*)?\s*(\w+)?")


def _parsed(signature):
    """Returns ``(dtype, is an array, is read-only)`` of each argument in a signature."""
    found = []
    for text in signature.split(","):
        text = " ".join(text.split())
        match = _ARGUMENT.fullmatch(text)
        if match is None or match[2] == "const":
            raise ValueError(
                f'CudaModule: "{text}" in a signature is not of the form "(const) type (*) (name)"'
            )
        if match[2] not in _DTYPES:
            raise TypeError(
                f'CudaModule: the type of "{text}" is not supported; types are {", ".join(_DTYPES)}'
            )
        found.append((np.dtype(_DTYPES[match[2]]), bool(match[3]), bool(match[1])))
    return found


def _texts(texts):
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _sizes(kernel, what, sizes):
    sizes = tuple(sizes)
    if len(sizes) != 3 or not all(isinstance(size, numbers.Integral) for size in sizes):
        raise MXNetAssertionError(
            f"CudaKernel({kernel}): {what} must be a tuple of 3 integers, not {sizes}"
        )
    if not all(0 < size < 2**31 for size in sizes):
        raise MXNetError(f"CudaKernel({kernel}): {what} must be from 1 to 2**31 - 1, not {sizes}")
    return sizes


class CudaModule:
    """Kernels in CUDA C++, compiled by NVRTC in the constructor.

        source = r'''
        extern "C" __global__ void axpy(const float *x, float *y, float alpha) {
            int i = threadIdx.x + blockIdx.x * blockDim.x;
            y[i] += alpha * x[i];
        }
        '''
        module = mx.rtc.CudaModule(source)
        axpy = module.get_kernel("axpy", "const float *x, float *y, float alpha")
        x, y = nd.ones((10,), ctx=mx.gpu(0)), nd.zeros((10,), ctx=mx.gpu(0))
        axpy.launch([x, y, 3.0], mx.gpu(0), (1, 1, 1), (10, 1, 1))

    Parameters
    ----------
    source : str
        The complete source.
    options : str or sequence of str, default ()
        Options of NVRTC, such as "-I/usr/local/cuda/include".
    exports : str or sequence of str, default ()
        The names of kernels that are not ``extern "C"``, such as "axpy<float>".

    Raises
    ------
    MXNetError
        If NVRTC rejects the source. Its subclass NotSupportedError if there is no GPU.

    Examples
    --------
    >>> source = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
    >>> if mx.num_gpus():
    ...     twice = mx.rtc.CudaModule(source).get_kernel("twice", "float *x")
    """

    def __init__(
        self, source: str, options: str | Sequence[str] = (), exports: str | Sequence[str] = ()
    ) -> None:
        self._module = _core.cuda_module(source, _texts(options), _texts(exports))

    def get_kernel(self, name: str, signature: str) -> CudaKernel:
        """Returns a kernel of the module.

        Parameters
        ----------
        name : str
            Its name, as in the source or in `exports`.
        signature : str
            Its parameters as declared, with or without their names: ``const float *x, float *,
            int n``. A ``*`` marks an array, and ``const`` a read-only array.

        Raises
        ------
        ValueError, TypeError
            If the signature has another form or another type.
        MXNetError
            If the module does not have the kernel.
        """
        arguments = _parsed(signature)
        return CudaKernel(_core.cuda_kernel(self._module, name), name, arguments)


class CudaKernel:
    """A kernel of a `CudaModule`; create it with `CudaModule.get_kernel`.

    Examples
    --------
    >>> source = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
    >>> if mx.num_gpus():
    ...     twice = mx.rtc.CudaModule(source).get_kernel("twice", "float *x")
    ...     x = nd.ones((4,), ctx=mx.gpu(0))
    ...     twice.launch([x], mx.gpu(0), (1, 1, 1), (4, 1, 1))
    """

    def __init__(self, kernel: Any, name: str, arguments: Sequence[Any]) -> None:
        self._kernel, self._name, self._arguments = kernel, name, arguments

    def launch(
        self,
        args: Sequence[NDArray | float],
        ctx: Context,
        grid_dims: Sequence[int],
        block_dims: Sequence[int],
        shared_mem: int = 0,
    ) -> None:
        """Queues a launch of the kernel, which waits for its arrays like an op.

        Autograd does not record it, and it is an error within a hybridized block. To give it a
        gradient, or to use it in a hybridized block, launch it in an `autograd.Function` or a
        `CustomOp`, which hybridized blocks call between their compiled parts.

        Parameters
        ----------
        args : sequence of NDArray or number
            An array on `ctx` for each parameter with a ``*``, and a number for any other.
        ctx : Context
            The GPU.
        grid_dims, block_dims : sequence of 3 int
            The number of blocks, and the number of threads in a block.
        shared_mem : int, default 0
            Bytes of dynamic shared memory.
        """
        name = self._name
        if ctx.device_type != "gpu":
            raise MXNetAssertionError(
                f"CudaKernel({name}): it must be launched on a GPU, not on {ctx}"
            )
        grid, block = _sizes(name, "grid_dims", grid_dims), _sizes(name, "block_dims", block_dims)
        if len(args) != len(self._arguments):
            raise MXNetAssertionError(
                f"CudaKernel({name}) expected {len(self._arguments)} arguments, got {len(args)}"
            )
        if any(isinstance(value, _core.NDArray) and value._in_trace for value in args):
            raise MXNetError(
                f"CudaKernel({name}).launch: a hybridized block cannot contain launches, which "
                "write to arrays; launch it in the forward of an autograd.Function or a "
                "CustomOp, which hybridized blocks call between their compiled parts"
            )
        packed = [
            self._packed(i, value, *kind)
            for i, (value, kind) in enumerate(zip(args, self._arguments))
        ]
        _core.cuda_launch(self._kernel, name, ctx, grid, block, shared_mem, tuple(packed))

    def _packed(self, place, value, dtype, is_array, is_const):
        """Converts an argument for `_core.cuda_launch`."""
        what = f"CudaKernel({self._name}): argument {place}"
        if is_array:
            if not isinstance(value, _core.NDArray):
                raise MXNetAssertionError(
                    f"{what} must be an NDArray, not a {type(value).__name__}"
                )
            if value.dtype != dtype:
                raise MXNetError(
                    f"{what} must be an array of {dtype}, not of {np.dtype(value.dtype)}"
                )
            return value, not is_const
        if not isinstance(value, (numbers.Number, np.generic)):
            raise MXNetAssertionError(f"{what} must be a number, not a {type(value).__name__}")
        return np.array(value).astype(dtype).tobytes()
