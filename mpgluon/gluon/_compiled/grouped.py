"""Device groups of blocks: ``AttrScope(ctx_group=...)`` places blocks, their inputs and their
parameters (see `mpgluon._internal.device_groups`).

A block belongs to the group in whose scope it was created, or else to the group in whose scope it
is called. Parameters of a block that was created in a group are initialized on the group's device.
Other parameters *float*: they move to the device of the first group that uses them.
"""

from ... import _core, autograd, ndarray as nd
from ..._internal import device_groups
from ...attribute import AttrScope
from ...context import current_context
from ...initializer import Uniform, create
from .._nested import first_context
from .._tree import (
    ONE_LAYOUT,
    children,
    devices_of_groups,
    group_of,
    refuse_partitioned,
    set_devices_of_groups,
    spans_devices,
)
from . import tracing


def initialize(block, init, ctx, verbose, force_reinit, group2ctx):
    """Implements `Block.initialize` with a group2ctx."""
    devices = device_groups.check(group2ctx)
    refuse_partitioned(block, "initialize(group2ctx=)", ONE_LAYOUT)
    if ctx is not None and not hasattr(ctx, "device_type"):
        raise ValueError(
            "initialize: with group2ctx, ctx must be one device, the device of the blocks "
            "without a group"
        )
    ctx = current_context() if ctx is None else ctx
    homes = {}

    def visit(one, group, path):
        group = group if group_of(one) is None else group_of(one)
        device = None if group is None else device_groups.lookup(group, devices, path)
        for param in one.params.values():
            homes.setdefault(param, device)
        for name, child in children(one).items():
            visit(child, group, f"{path}.{name}")

    visit(block, None, type(block).__name__)
    set_devices_of_groups(block, devices)
    init = Uniform() if init is None else create(init)
    if verbose:
        init.set_verbosity(verbose=verbose)
    # Initialize in an order that does not depend on the groups, because the order determines the
    # random initial values.
    for param in block.collect_params().values():
        home = homes.get(param)
        param.initialize(None, ctx if home is None else home, init, force_reinit=force_reinit)
        param.floating = home is None


def initialize_replicas(block, init, ctx, verbose, force_reinit):
    """Implements `Block.initialize` for a block that was placed on devices, either directly or
    with the network that contains it."""
    placed, params = devices_of_groups(block), block.collect_params()
    if not placed.covers(block):
        open_ends = any(param.placed is None for param in params.values())
        params.initialize(init, ctx, verbose, force_reinit)
        if open_ends:
            placed.initialized(block)
        return
    homes = placed.initial_homes(block, ctx)
    init = Uniform() if init is None else create(init)
    if verbose:
        init.set_verbosity(verbose=verbose)
    for param in params.values():
        param.initialize(None, homes[param], init, force_reinit=force_reinit)
    placed.initialized(block)


def replicated(block):
    """True if the block is placed on a mesh or by `Block.place`."""
    placed = devices_of_groups(block)
    return placed is not None and not isinstance(placed, dict)


def replica(block, args, symbolic):
    """Returns a scope that activates the block's dict from groups to devices. If the block has
    several replicas, the scope activates the dict of the replica on the device of `args`."""
    devices = devices_of_groups(block)
    if devices is None or symbolic:
        return _core.Scope()
    return device_groups.mapped(
        devices if isinstance(devices, dict) else devices.of(first_context(args))
    )


def group(block, symbolic):
    """Returns a scope in which ops belong to the block's group."""
    if group_of(block) is None or not (symbolic or device_groups.running()):
        return _core.Scope()
    return AttrScope(ctx_group=group_of(block))


def moved(block, args, symbolic, outer):
    """Copies `args` to the device of the running group and returns the copies. `outer` is the
    group of the block's caller. If it equals the running group, or if the block is placed,
    gradients are summed as they are without groups."""
    device = None if symbolic else device_groups.device()
    if device is None or spans_devices(block):
        return args
    group = device_groups.group()
    within = group == outer or group is not None and device_groups.is_placement(group)
    return device_groups.move(args, device, nd.NDArray, within)


def near(contexts):
    """Returns the only device in `contexts` that belongs to the running replica. Returns None if
    no device or several devices do."""
    here = [ctx for ctx in contexts if ctx in device_groups.devices()]
    return here[0] if len(here) == 1 else None


def settled(param, ctx):
    """Moves a floating parameter to `ctx` if that is the running group's device. Returns False if
    the parameter stays on its device."""
    if not param.floating or device_groups.device() != ctx:
        return False
    trace = tracing.current()
    if trace is not None:
        return trace.settle(param, ctx)
    with autograd.pause():
        param.reset_ctx(ctx)
    param.floating = False
    return True
