"""Devices by name, and their memory.

``cpu(i)``, for any i, is a separate device: a worker with its own threads and its own memory pool.
``gpu(i)`` is a GPU.
"""

from __future__ import annotations

import copyreg
import os
import re
from typing import Any

from . import _core
from ._core import (
    Context,
    cpu,
    cpu_pinned,
    current_context,
    gpu,
    memory_stats,
    num_gpus,
    reset_peak_memory,
    set_memory_limit,
    set_threads,
)

__all__ = [
    "Context",
    "cpu",
    "cpu_pinned",
    "current_context",
    "file_device",
    "gpu",
    "gpu_memory_info",
    "memory_stats",
    "num_gpus",
    "opened_devices",
    "reset_peak_memory",
    "set_memory_limit",
    "set_threads",
]


_file_devices: dict[tuple[str, int], Context] = {}  # (directory, process) -> device


def file_device(directory: str | os.PathLike[str]) -> Context:
    """Returns the CPU device whose memory is in temporary files of a directory.

    The kernel writes the pages of its arrays to the files, and drops them from main memory if that
    is short. All calls with the same directory return the same device, a ``cpu(i)`` with i of 1000
    or more. The files have no names. They are removed when the arrays are freed or the process
    ends in any way. Arrays of less than 64 KiB are in main memory.

    `memory_stats` of the device counts the bytes in files, including those kept for reuse
    (``held``). They don't count for any other device. `set_memory_limit` limits them. An array that
    doesn't fit into the file system raises an error. A forked process cannot use the arrays.

    Parameters
    ----------
    directory : str or os.PathLike
        An existing directory, on a local file system that reserves space (`posix_fallocate`).

    Raises
    ------
    OSError
        If files cannot be created in the directory.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     device = mx.context.file_device(directory)
    ...     x = nd.ones((256, 256), ctx=device)
    ...     int(x.sum().asscalar()), mx.context.memory_stats(device)["in_use"] >= 4 * x.size
    (65536, True)
    """
    if not os.fspath(directory):
        raise FileNotFoundError("file_device: the path of the directory is empty")
    key = os.path.realpath(directory), os.getpid()
    if key not in _file_devices:
        _file_devices[key] = _core.open_in_directory(key[0])
    return _file_devices[key]


def directory_of(ctx: Context) -> str | None:
    """Returns the directory of a `file_device`, or None for another device."""
    process = os.getpid()
    found = (path for (path, by), known in _file_devices.items() if (known, by) == (ctx, process))
    return next(found, None)


def _reduced(ctx: Context) -> Any:
    """Reduces a context for pickling and copying. In other processes, the device of a directory has
    another index."""
    directory = directory_of(ctx)
    return ctx.__reduce__() if directory is None else (file_device, (directory,))


copyreg.pickle(Context, _reduced)


def gpu_memory_info(device_id: int = 0) -> tuple[int, int]:
    """Returns ``(free, total)`` bytes of a GPU's memory, as reported by its driver.

    Memory of other programs and of all devices on the card counts as used. If a memory limit was
    set, it is the total. Cached memory that this process can reuse does not count as free; see
    `memory_stats` for the bytes held and cached.
    """
    return _core.gpu_memory_info(gpu(device_id))


class _DefaultContext:
    """``Context.default_ctx``, the current device under the name that older programs use."""

    def __get__(self, instance: object, owner: type | None) -> Context:
        return current_context()


Context.default_ctx = _DefaultContext()
# MXNet's ids of device types (`Context.device_typeid`), and the inverse.
Context.devtype2str = {1: "cpu", 2: "gpu", 3: "cpu_pinned", 5: "cpu_shared"}
Context.devstr2type = {name: number for number, name in Context.devtype2str.items()}


def computes(ctx: Context) -> Context:
    """Returns the device that computes on arrays of a context: `cpu(i)` for ``cpu_pinned(i)``.

    Examples
    --------
    >>> mx.context.computes(mx.cpu_pinned(1)), mx.context.computes(mx.gpu(1))
    (cpu(1), gpu(1))
    """
    return cpu(ctx.device_id) if ctx.device_type.startswith("cpu_") else ctx


def parts_of(name: str) -> tuple[str, int, int | None] | None:
    """Splits a device name such as ``'cpu(1, rank=2)'`` into type, index and rank.

    The rank is None if the name has none. Returns None if `name` is not a device name.
    """
    found = re.fullmatch(r"(\w+)\((\d+)(?:, rank=(\d+))?\)", name)
    if found is None:
        return None
    kind, number, rank = found.groups()
    return kind, int(number), None if rank is None else int(rank)


def opened_devices() -> list[tuple[Context, int]]:
    """Returns the devices used so far, as a list of ``(Context, threads)``.

    Examples
    --------
    >>> x = nd.ones(2, ctx=mx.cpu(1))
    >>> mx.cpu(1) in [device for device, _ in mx.context.opened_devices()]
    True
    """
    return _core.opened_devices()
