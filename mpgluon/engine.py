"""How queued work runs."""

from . import _core, _watchdog

__all__ = ["bulk", "mode", "set_bulk_size", "set_mode", "set_watchdog"]

_bulk_size = 0


def set_mode(mode, seed=0):
    """Sets how work runs; waits for all work first.

    ``'async'``: queued, the default. ``'sync'``: each op has run, or failed, when its call returns
    (for debugging). ``'shuffle'``: late, and in an order drawn from ``seed`` among those that
    dependencies allow (for tests). ValueError for other words.
    """
    _core.set_engine_mode(mode, seed)


def mode():
    """The present mode: 'async', 'sync' or 'shuffle'."""
    return _core.engine_mode()


def set_watchdog(seconds):
    """Says on stderr when no device has finished anything for so many seconds though work is
    queued: for each device, which work it is at, or which work of which device it waits for, with
    block, stage, micro-batch and the line that queued it. None (or 0): no watchdog, as by default.
    A kernel that takes longer than that is reported as well. Returns the former number.
    """
    return _watchdog.set_seconds(seconds)


def set_bulk_size(size):
    """Kept for MXNet's programs: work is batched by itself here. Returns the former size."""
    global _bulk_size
    former, _bulk_size = _bulk_size, int(size)
    return former


def bulk(size):
    """Kept for MXNet's programs: a scope with another bulk size, which changes nothing."""
    return _core.Scope((globals(), "_bulk_size", int(size)))


_watchdog.read_setting()
