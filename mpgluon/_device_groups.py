"""Groups of ops by device: what ``AttrScope(ctx_group=...)`` means while a block runs that was
given a `group2ctx`.

`mapped` makes a dict of groups to devices the running one. While there is one, entering a scope of
a group lets ops run on the group's device and moves there what they take from elsewhere
(csrc/autograd/groups.h); without a group, ops run where their first input is. State is per thread.
"""

import threading

from . import _core
from .base import MXNetError
from .context import Context

__all__ = ["check", "current", "device", "gathered", "mapped", "move", "placed"]


class _State(threading.local):
    devices = None  # group -> Context
    key = None  # the running dict and group, as a dict key
    device = None  # of the running group


_state = _State()


def current():
    """The part of a compiled call's signature that says which dict and group are running, or
    None."""
    return _state.key


def is_placement(group):
    """Whether a group is one of those by which `Block.place` places networks."""
    return group.startswith(("mesh stage ", "plan:", "place:"))


def group():
    """The name of the running group, or None."""
    return None if _state.key is None else _state.key[1]


def device():
    """The device of the running group, or None."""
    return _state.device


def check(group2ctx):
    """A copy of the dict. TypeError unless it is one of str to Context."""
    if not isinstance(group2ctx, dict) or not all(
        isinstance(name, str) and isinstance(ctx, Context) for name, ctx in group2ctx.items()
    ):
        raise TypeError(
            "group2ctx is a dict of group to Context, as in {'dev1': mx.cpu(0)}, not "
            f"{group2ctx!r}"
        )
    return dict(group2ctx)


def lookup(group, devices, what):
    """The device of a group; `what` names who wants it."""
    found = devices.get(group)
    if found is None:
        raise MXNetError(
            f"{what}: the ctx_group {group!r} is not in group2ctx, which has "
            f"{', '.join(sorted(devices)) or 'none'}"
        )
    return found


def placing(group, devices):
    """The changes of state with which ops belong to `group` (None: to none) of the dict `devices`,
    which is the running one."""
    device = None if group is None else lookup(group, devices, "AttrScope")
    state = vars(_state)
    changes = [
        (state, "devices", devices),
        (state, "key", (tuple(devices.items()), group)),
        (state, "device", device),
        (_core.set_group, device or True),
    ]
    return changes if device is None else [*changes, device]  # new arrays are made there, too


def placed(group):
    """A scope in which ops belong to `group` (None: to none) of the running dict."""
    return _core.Scope(*placing(group, _state.devices))


def mapped(devices):
    """A scope in which a dict of groups to devices is the running one."""
    from .attribute import AttrScope

    return _core.Scope(*placing(AttrScope.current().get(None).get("ctx_group"), devices))


def devices():
    """The devices of the running dict."""
    return _state.devices.values() if _state.devices is not None else ()


def running():
    """Whether a dict is running."""
    return _state.devices is not None


def paused():
    """A scope in which ops run where their inputs are, and nothing is moved."""
    return _core.Scope((_core.set_group, None))


def on(ctx):
    """A scope in which ops run on that device, to which their inputs are moved."""
    return _core.Scope((_core.set_group, ctx))


def gathered(arrays):
    """The inputs of an op that Python runs, moved as the core moves those of its own ops
    (csrc/autograd/groups.h)."""
    group = _core.get_group()
    if group is None or not arrays:
        return arrays
    ctx = arrays[0].context if group is True else group
    return [array if array.context == ctx else _core.move_to(array, ctx) for array in arrays]


def spread(value, devices, array_type):
    """An array on the first of the devices; a list with an array for each device on these."""
    if (
        isinstance(value, (list, tuple))
        and len(value) == len(devices)
        and all(isinstance(item, array_type) for item in value)
    ):
        return [_core.move_to(item, ctx) for item, ctx in zip(value, devices)]
    return move(value, devices[0], array_type)


def move(value, ctx, array_type, within=False):
    """`value` with its arrays, in lists, tuples and dicts, on that device. within: those that
    are there already stay as they are, and one that occurs twice is copied once; otherwise they
    become views with gradients of their own."""
    copies = {}

    def moved(value):
        if isinstance(value, array_type):
            if not within:
                return _core.move_to(value, ctx)
            if value.context == ctx:
                return value
            if id(value) not in copies:
                copies[id(value)] = _core.move_to(value, ctx)
            return copies[id(value)]
        if isinstance(value, (list, tuple)):
            return type(value)([moved(item) for item in value])
        if type(value) is dict:
            return {key: moved(item) for key, item in value.items()}
        return value

    return moved(value)
