"""Execution modes of the work queues, and the watchdog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core
from ._internal import watchdog

if TYPE_CHECKING:
    from ._core import Scope


__all__ = ["bulk", "mode", "set_bulk_size", "set_mode", "set_watchdog"]

_bulk_size = 0


def set_mode(mode: str, seed: int = 0) -> None:
    """Sets the execution mode, after waiting for all queued work.

    ``'async'``, the default, queues ops. ``'sync'`` runs each op to completion, or failure, before
    its call returns (for debugging). ``'shuffle'`` delays ops and runs them in a random order among
    those that dependencies allow, drawn from ``seed`` (for tests). Raises ValueError for any other
    mode.

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
    """Returns the present mode: 'async', 'sync' or 'shuffle'.

    Examples
    --------
    >>> mx.engine.mode() in ("async", "sync", "shuffle")
    True
    """
    return _core.engine_mode()


def set_watchdog(seconds: float | None) -> float | None:
    """Reports on stderr if no device finishes anything for `seconds` while work is queued.

    The report lists, for each device, its current work, or the work of another device that it waits
    for, with block, stage, micro-batch and the line that queued it. None or 0 disables the
    watchdog, which is the default. A kernel that runs longer than `seconds` is reported as well.
    Returns the former setting.

    Examples
    --------
    >>> former = mx.engine.set_watchdog(60)
    >>> mx.engine.set_watchdog(former)
    60.0
    """
    return watchdog.set_seconds(seconds)


def set_bulk_size(size: int) -> int:
    """Does nothing; kept for MXNet programs, as ops are batched automatically.

    Returns the former size.

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
    """Returns a scope with another bulk size, which has no effect; kept for MXNet programs.

    Examples
    --------
    >>> with mx.engine.bulk(16):
    ...     y = nd.ones(2) + 1
    >>> y.asnumpy()
    array([2., 2.], dtype=float32)
    """
    return _core.Scope((globals(), "_bulk_size", int(size)))


watchdog.read_setting()
