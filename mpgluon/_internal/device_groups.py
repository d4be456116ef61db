"""Device groups: maps ops in an ``AttrScope(ctx_group=...)`` to devices, in blocks that have a
`group2ctx`.

`mapped` activates a dict of groups to devices. While a dict is active, entering the scope of a
group makes ops run on the group's device and moves their inputs there
(csrc/autograd/groups.h). Outside any group, ops run on the device of their first input. Each thread
has its own state.
"""

import threading

from .. import _core
from ..base import MXNetError
from ..context import Context

__all__ = ["check", "current", "device", "gathered", "mapped", "move", "placed"]


class Groups(dict[str, Context]):
    """A dict from groups to devices, for one of the `replicas` replicas of a network."""

    def __init__(self, groups, replicas):
        super().__init__(groups)
        self.replicas = replicas


class _State(threading.local):
    devices = None  # group -> Context
    key = None  # identifies the active dict and group; None if no dict is active
    device = None  # device of the active group


_state = _State()


def current():
    """Returns a key for the active dict and group, or None if no dict is active. It is part of the
    signature of compiled calls."""
    return _state.key


def is_placement(group):
    """True if `Block.place` created the group."""
    return group.startswith(("mesh stage ", "plan:", "place:"))


def group():
    """Returns the name of the active group, or None."""
    return None if _state.key is None else _state.key[1]


def device():
    """Returns the device of the active group, or None."""
    return _state.device


def check(group2ctx):
    """Returns a copy of the dict; raises TypeError unless it maps str to Context."""
    if not isinstance(group2ctx, dict) or not all(
        isinstance(name, str) and isinstance(ctx, Context) for name, ctx in group2ctx.items()
    ):
        raise TypeError(
            "group2ctx must be a dict of group to Context, as in {'dev1': mx.cpu(0)}, not "
            f"{group2ctx!r}"
        )
    return dict(group2ctx)


def lookup(group, devices, what):
    """Returns the device of a group; `what` names the caller in the error."""
    found = devices.get(group)
    if found is None:
        raise MXNetError(
            f"{what}: ctx_group {group!r} is not in group2ctx, whose groups are: "
            f"{', '.join(sorted(devices)) or 'none'}"
        )
    return found


def placing(group, devices):
    """Returns the state changes that activate the dict `devices` and assign ops to its `group`.

    With group None, ops belong to no group.
    """
    device = None if group is None else lookup(group, devices, "AttrScope")
    state = vars(_state)
    changes = [
        (state, "devices", devices),
        (state, "key", (tuple(devices.items()), group)),
        (state, "device", device),
        (_core.set_group, device or True),
    ]
    return changes if device is None else [*changes, device]  # the device becomes current


def placed(group):
    """Returns a scope in which ops belong to `group` of the active dict; None means no group."""
    return _core.Scope(*placing(group, _state.devices))


def mapped(devices):
    """Returns a scope in which a dict of groups to devices is active."""
    from ..attribute import AttrScope

    return _core.Scope(*placing(AttrScope.current().get(None).get("ctx_group"), devices))


def devices():
    """Returns the devices of the active dict."""
    return _state.devices.values() if _state.devices is not None else ()


def is_of_another_replica(ctx):
    """True if the active dict belongs to one of several replicas, and the device is not in it."""
    active = _state.devices
    return getattr(active, "replicas", 1) > 1 and ctx not in active.values()


def running():
    """True if a dict is active."""
    return _state.devices is not None


def paused():
    """Returns a scope in which ops run on the device of their inputs, and no array is moved."""
    return _core.Scope((_core.set_group, None))


def on(ctx):
    """Returns a scope in which ops run on the device `ctx`, and their inputs are moved to it."""
    return _core.Scope((_core.set_group, ctx))


def gathered(arrays):
    """Moves the inputs of an op implemented in Python, as the core does for its own ops
    (csrc/autograd/groups.h)."""
    group = _core.get_group()
    if group is None or not arrays:
        return arrays
    ctx = arrays[0].context if group is True else group
    return [array if array.context == ctx else _core.move_to(array, ctx) for array in arrays]


def spread(value, devices, array_type):
    """Moves an array to the first device, or a list with one array per device to these devices."""
    if (
        isinstance(value, (list, tuple))
        and len(value) == len(devices)
        and all(isinstance(item, array_type) for item in value)
    ):
        return [_core.move_to(item, ctx) for item, ctx in zip(value, devices)]
    return move(value, devices[0], array_type)


def move(value, ctx, array_type, within=False):
    """Moves `value`, which is an array or lists, tuples and dicts of arrays, to the device.

    With `within`, an array that is already on the device is returned unchanged, and an array that
    occurs twice is copied once. Otherwise, each occurrence becomes a separate view or copy with its
    own gradient.
    """
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
