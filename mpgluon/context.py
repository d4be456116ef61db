"""Devices by name, and their memory.

``cpu(i)``, for any i, is a separate device: a worker with its own threads and its own memory pool.
``gpu(i)`` is a GPU.
"""

from __future__ import annotations

import re

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
    "gpu",
    "gpu_memory_info",
    "memory_stats",
    "num_gpus",
    "opened_devices",
    "reset_peak_memory",
    "set_memory_limit",
    "set_threads",
]


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
