"""``python -m mpgluon.info``: versions, devices, and the optional parts that were found."""

from __future__ import annotations

import os
import platform
import sys

import numpy as np

from . import _core, context
from .libinfo import __version__


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
    for library in _core.libraries():
        if library["found"]:
            report.append(f"{library['name']:<10} {library['version']} ({library['path']})")
        else:
            report.append(f"{library['name']:<10} not found: {library['reason']}")
    gpus = context.num_gpus()
    report.append(
        f"CUDA       {gpus} GPU{'s' if gpus != 1 else ''}"
        if gpus
        else "CUDA       no GPU, or no driver or library for it"
    )
    return report


if __name__ == "__main__":
    print("\n".join(lines()))
