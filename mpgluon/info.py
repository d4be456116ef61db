"""``python -m mpgluon.info``: versions, devices, and the optional parts that were found."""

from __future__ import annotations

import os
import platform
import sys

import numpy as np

from . import _core, context, nd, rtc
from .base import MXNetError, NotSupportedError, counted
from .libinfo import __version__
from .parallel import collectives


def lines() -> list[str]:
    """The report, a list of lines.

    Examples
    --------
    >>> from mpgluon import info
    >>> info.lines()[0].split()[0]
    'mpgluon'
    """
    info = _core.build_info()
    context.memory_stats(context.cpu(0))  # opens it, so that its threads are known
    report = [
        f"mpgluon    {__version__} ({os.path.dirname(os.path.abspath(__file__))})",
        f"Python     {platform.python_version()} ({sys.executable})",
        f"NumPy      {np.__version__}",
        f"system     {platform.platform()}",
        f"kernels    {info['isa']}" + (", debug build" if info["debug"] else ""),
        f"ops        {info['ops']}",
        f"cores      {info['cores']}",
        f"engine     {_core.engine_mode()}",
    ]
    for device, threads in context.opened_devices():
        report.append(
            f"{device!s:<10} {threads} thread{'s' if threads != 1 else ''}; shared out anew as "
            "more CPU devices are used"
        )
    report += [_found(library) for library in _core.libraries()]
    gpus = context.num_gpus()
    if not gpus:
        return [*report, f"CUDA       no GPU: {_core.gpu_reason()}"]
    report.append(f"CUDA       {counted(gpus, 'GPU')}")
    for library in _core.gpu_libraries():
        line = _found(library)
        if library["found"]:
            line += ", " + _works(_TRIALS[library["name"]])
        report.append(line)
    return report


def _found(library):
    if library["found"]:
        return f"{library['name']:<10} {library['version']} ({library['path']})"
    return f"{library['name']:<10} not found: {library['reason']}"


def _ones(*shape):
    return nd.ones(shape, ctx=context.gpu(0))


def _sum_over_cards():
    arrays = [nd.ones((2,), ctx=context.gpu(i)) for i in range(context.num_gpus())]
    if len(arrays) == 1:
        return "not tried: that takes two cards"
    collectives.all_reduce(arrays, transport="nccl")[0].wait_to_read()


_KERNEL = 'extern "C" __global__ void probe(float *x) { *x = 1; }'
# A call of each library. NCCL's needs a second card.
_TRIALS = {
    "cuBLASLt": lambda: nd.dot(_ones(2, 2), _ones(2, 2)).wait_to_read(),
    "cuBLAS": lambda: nd.linalg.trsm(_ones(2, 2), _ones(2, 2)).wait_to_read(),
    "cuSOLVER": lambda: nd.linalg.potrf(nd.eye(2, ctx=context.gpu(0))).wait_to_read(),
    "cuDNN": lambda: nd.Convolution(
        _ones(1, 1, 3, 3), _ones(1, 1, 2, 2), kernel=(2, 2), num_filter=1, no_bias=True
    ).wait_to_read(),
    "driver": lambda: _ones(2).asnumpy(),
    "NCCL": _sum_over_cards,
    "NVRTC": lambda: rtc.CudaModule(_KERNEL).get_kernel("probe", "float *x"),
}


def _works(trial):
    try:
        said = trial()
    except NotSupportedError as error:
        return f"not tried: {error}"
    except MXNetError as error:
        return f"DOES NOT WORK: {error}"
    return said if isinstance(said, str) else "works"


if __name__ == "__main__":
    print("\n".join(lines()))
