"""``python -m mpgluon.info``: prints versions, devices and the available optional parts.

Under ``mpirun`` it also prints the ranks, and the measured links between them.
"""

from __future__ import annotations

import os
import platform
import sys

import numpy as np

from . import _core, context, nd, rtc
from ._internal import ranks
from ._internal.ranks import links
from ._internal.tables import aligned
from .base import MXNetError, NotSupportedError, counted
from .libinfo import __version__
from .parallel import collectives


def lines() -> list[str]:
    """Returns the report as a list of lines.

    Examples
    --------
    >>> from mpgluon import info
    >>> info.lines()[0].split()[0]
    'mpgluon'
    """
    info = _core.build_info()
    context.memory_stats(context.cpu(0))  # opens the device, so that its threads are known
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
            f"{device!s:<10} {threads} thread{'s' if threads != 1 else ''}; redistributed as "
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
        return "not tested: needs two GPUs"
    collectives.all_reduce(arrays, transport="nccl")[0].wait_to_read()


_KERNEL = 'extern "C" __global__ void probe(float *x) { *x = 1; }'
# One call per library. NCCL's needs a second GPU.
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
        return f"not tested: {error}"
    except MXNetError as error:
        return f"DOES NOT WORK: {error}"
    return said if isinstance(said, str) else "works"


def ranks_lines() -> list[str]:
    """Returns the report on ranks: their hosts, devices and the speed of the links between them.

    All ranks must call it.

    Examples
    --------
    >>> from mpgluon import info
    >>> print(info.ranks_lines()[0])
    ranks      1: not started by mpirun
    """
    count = ranks.count()
    if count == 1:
        return ["ranks      1: not started by mpirun"]
    found, measured = links.hosts(), links.measure()
    every = count <= links.ALL_PAIRS
    targets = [f"to rank {rank}" for rank in range(count)] if every else ["to the next rank"]
    rows = [("rank", "host", "process", "devices", *targets)]
    for rank, there in enumerate(found):
        devices = counted(there["cores"], "core")
        devices += f", {counted(there['gpus'], 'GPU')}" if there["gpus"] else ""
        others = range(count) if every else [(rank + 1) % count]
        cells = [
            _link(measured[rank, other], there["host"] == found[other]["host"])
            if rank != other
            else ""
            for other in others
        ]
        rows.append((str(rank), there["host"], str(there["process"]), devices, *cells))
    number = counted(len({there["host"] for there in found}), "host")
    return [
        f"ranks      {count} on {number}; CPU memory is sent with {links.library()}",
        "links      between cpu(0) of each: microseconds for 4 KB, GB/s of 16 MB",
        *aligned(rows),
    ]


def _link(measured, same_host):
    seconds, rate = measured
    return f"{seconds * 1e6:.1f} us, {rate / 1e9:.2f} GB/s" + ("" if same_host else ", network")


def _tell():
    report = lines() + (ranks_lines() if ranks.count() > 1 else [])
    if ranks.own() == 0:
        print("\n".join(report), flush=True)


if __name__ == "__main__":
    _tell()
