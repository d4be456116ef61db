"""How queued work runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core, _watchdog

if TYPE_CHECKING:
    from ._core import Scope


__all__ = ["bulk", "mode", "set_bulk_size", "set_mode", "set_watchdog"]

_bulk_size = 0


def set_mode(mode: str, seed: int = 0) -> None:
    """Sets how work runs; waits for all work first.

    ``'async'``: queued, the default. ``'sync'``: each op has run, or failed, when its call returns
    (for debugging). ``'shuffle'``: late, and in an order drawn from ``seed`` among those that
    dependencies allow (for tests). ValueError for other words.

    Examples
    --------
    >>> former = mx.engine.mode()
    >>> mx.engine.set_mode("sync")
    >>> mx.engine.mode()
    'sync'
    >>> mx.engine.set_mode(former)
    """
    _core.set_engine_mode(mode, seed)


def mode() -> str:
    """The present mode: 'async', 'sync' or 'shuffle'.

    Examples
    --------
    >>> mx.engine.mode() in ("async", "sync", "shuffle")
    True
    """
    return _core.engine_mode()


def set_watchdog(seconds: float | None) -> float | None:
    """Says on stderr when no device has finished anything for so many seconds though work is
    queued: for each device, which work it is at, or which work of which device it waits for, with
    block, stage, micro-batch and the line that queued it. None (or 0): no watchdog, as by default.
    A kernel that takes longer than that is reported as well. Returns the former number.

    Examples
    --------
    >>> former = mx.engine.set_watchdog(60)
    >>> mx.engine.set_watchdog(former)
    60.0
    """
    return _watchdog.set_seconds(seconds)


def set_bulk_size(size: int) -> int:
    """Kept for MXNet's programs: work is batched by itself here. Returns the former size.

    Examples
    --------
    >>> size = mx.engine.set_bulk_size(4)
    >>> mx.engine.set_bulk_size(size)
    4
    """
    global _bulk_size
    former, _bulk_size = _bulk_size, int(size)
    return former


def bulk(size: int) -> Scope:
    """Kept for MXNet's programs: a scope with another bulk size, which changes nothing.

    Examples
    --------
    >>> with mx.engine.bulk(16):
    ...     y = nd.ones(2) + 1
    >>> y.asnumpy()
    array([2., 2.], dtype=float32)
    """
    return _core.Scope((globals(), "_bulk_size", int(size)))


_watchdog.read_setting()
