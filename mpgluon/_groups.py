"""Groups of ops by device: what ``AttrScope(ctx_group=...)`` means while a block runs that was given a `group2ctx`.

`mapped` makes a dict of groups to devices the running one. While there is one, entering a scope of a group lets ops run on the group's
device and moves there what they take from elsewhere (csrc/autograd/groups.h); without a group, ops run where their first input is.
State is per thread.
"""

import contextlib
import threading

from . import _core
from .base import MXNetError
from .context import Context

__all__ = ["check", "current", "device", "mapped", "move", "placed"]


class _State(threading.local):
    devices = None  # group -> Context
    key = None  # the running dict and group, as a dict key
    device = None  # of the running group


_state = _State()


def current():
    """What a compiled call depends on: None where no dict is running."""
    return _state.key


def device():
    """The device of the running group, or None."""
    return _state.device


def check(group2ctx):
    """A copy of the dict. TypeError unless it is one of str to Context."""
    if not isinstance(group2ctx, dict) or not all(isinstance(name, str) and isinstance(ctx, Context) for name, ctx in group2ctx.items()):
        raise TypeError(f"group2ctx is a dict of group to Context, as in {{'dev1': mx.cpu(0)}}, not {group2ctx!r}")
    return dict(group2ctx)


def lookup(group, devices, what):
    """The device of a group; `what` names who wants it."""
    found = devices.get(group)
    if found is None:
        raise MXNetError(f"{what}: the ctx_group {group!r} is not in group2ctx, which has {', '.join(sorted(devices)) or 'none'}")
    return found


class placed:
    """A scope in which ops belong to `group` (None: to none) of the running dict."""

    __slots__ = ("_group", "_device", "_former", "_context")

    def __init__(self, group):
        self._group = group

    def __enter__(self):
        devices = _state.devices
        self._former = _state.key, _state.device
        self._device = None if self._group is None else lookup(self._group, devices, "AttrScope")
        former = _core.set_group(self._device or True)
        self._former += (former,)
        self._context = self._device  # new arrays are made there, too
        if self._context is not None:
            self._context.__enter__()
        _state.key, _state.device = (tuple(devices.items()), self._group), self._device
        return self

    def __exit__(self, *error):
        if self._context is not None:
            self._context.__exit__(*error)
        _state.key, _state.device, former = self._former
        _core.set_group(former)


class mapped:
    """A scope in which a dict of groups to devices is the running one."""

    __slots__ = ("_devices", "_former", "_inner")

    def __init__(self, devices):
        self._devices = devices

    def __enter__(self):
        from .attribute import AttrScope

        self._former = _state.devices
        _state.devices = self._devices
        try:
            self._inner = placed(AttrScope.current().get(None).get("ctx_group"))
            self._inner.__enter__()
        except BaseException:
            _state.devices = self._former
            raise
        return self

    def __exit__(self, *error):
        self._inner.__exit__(*error)
        _state.devices = self._former


def devices():
    """The devices of the running dict."""
    return _state.devices.values() if _state.devices is not None else ()


def running():
    """Whether a dict is running."""
    return _state.devices is not None


@contextlib.contextmanager
def paused():
    """A scope in which ops run where their inputs are, and nothing is moved."""
    former = _core.set_group(None)
    try:
        yield
    finally:
        _core.set_group(former)


def spread(value, devices, array_type):
    """An array on the first of the devices; a list with an array for each device on these."""
    if isinstance(value, (list, tuple)) and len(value) == len(devices) and all(isinstance(item, array_type) for item in value):
        return [_core.move_to(item, ctx) for item, ctx in zip(value, devices)]
    return move(value, devices[0], array_type)


def move(value, ctx, array_type):
    """`value` with its arrays, in lists and tuples as may be, on that device."""
    if isinstance(value, array_type):
        return _core.move_to(value, ctx)
    if isinstance(value, (list, tuple)):
        return type(value)([move(item, ctx, array_type) for item in value])
    return value
