"""``net.place({...})``: places a network's blocks by name, and describes the placement."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from .. import autograd
from .._internal import ranks
from .._internal.device_groups import is_placement
from .._internal.sizes import byte_text
from ..base import MXNetError, counted, itemsize
from ..context import Context, num_gpus
from ..gluon._tree import (
    ONE_LAYOUT,
    children,
    devices_of_groups,
    group_of,
    own_parameters,
    refuse_partitioned,
    set_devices_of_groups,
    set_group,
    walk,
)
from ..gluon.nn.basic_layers import HybridSequential, Sequential
from ..gluon.utils import brief, shape_is_known
from ._dividing import divide
from ._mesh import Replicas, forget_placement, refuse_inner
from ._tensor_parallel.layers import SplitLayer, lines_of
from ._tensor_parallel.parameters import HomeParameter

if TYPE_CHECKING:
    from ..gluon.block import Block

__all__ = ["all_devices", "described", "place"]

_GROUP = "place:"  # prefix of a device in group names


def as_dict(net: Block, where: Any) -> dict[str, Context | str]:
    """Returns the dict for `place` of a dict, of a device for the whole block, or of a list of
    devices."""
    if isinstance(where, dict):
        return where
    if isinstance(where, Context):
        return {"": where}
    if isinstance(where, (list, tuple)):
        return {**divide(net, where)}
    raise TypeError(
        "place: expected a dict of blocks and devices, a list of devices, a Context, a Mesh or a "
        f"Plan, got {type(where).__name__}"
    )


def place(
    net: Block, where: dict[str, Context | str], replaced: dict[Block, Context] | None = None
) -> None:
    """Places the blocks that the dict names, including their children; see `Block.place`.

    If `replaced` is given, repeats a placement. It maps blocks that have replaced placed blocks to
    their devices. Names of blocks that are gone are ignored."""
    where = {name: Context(ctx) if isinstance(ctx, str) else ctx for name, ctx in where.items()}
    blocks = {"": net, **{path: block for _, _, path, block in walk(net)}}
    devices = _devices(where)
    refuse_inner(net, "place")
    refuse_partitioned(net, "place", ONE_LAYOUT)
    named = _named(net, where, blocks, strict=replaced is None)
    for block, device in (replaced or {}).items():
        named.setdefault(block, device)
    for path, block in blocks.items():
        if group_of(block) is not None and not is_placement(group_of(block)):
            raise MXNetError(
                f"place: block {path!r} already belongs to ctx_group {group_of(block)!r}; only "
                "networks without groups can be placed"
            )
    _check_split(net, "", None, named)
    homes = devices_now(net)
    _arrange(net, blocks.values(), devices, homes, where, named)
    placed = devices_of_groups(net)
    placed.replaced.update(replaced or {})
    wanted, named_homes = placed.homes(net), placed.named_homes(net)
    with autograd.pause():
        for param in net.collect_params().values():
            param.floating = False
            if param in homes and homes[param] != wanted[param]:
                param.reset_ctx(wanted[param])
            param.placed = named_homes.get(param)


def move_to(old: Block, new: Block) -> None:
    """Moves a block and its descendants to the devices of `old`, which it has replaced in a placed
    network. Descendants that belong to the placement, such as `old` itself in a wrapper, stay."""
    group, placed = group_of(old), devices_of_groups(old)
    placed = placed if isinstance(placed, _Placed) else None
    homes = devices_now(old)
    own = [param.placed for param in old.collect_params().values() if param.placed is not None]
    kept = {old, *[block for _, _, _, block in walk(old)]}
    within = [new, *[block for _, _, _, block in walk(new)]]
    if not own and homes:
        own = [next(iter(homes.values()))]
    if group is None and placed is not None and own:
        # Layers of `old` were placed, but `old` itself was not. The first one's device counts.
        group = next((key for key, ctx in placed.dicts[0].items() if [ctx] == own[0]), None)
    if group is not None and is_placement(group) and group_of(new) is None:
        set_group(new, group)
    if placed is not None and group in placed.dicts[0]:
        if old not in within and placed.replaced.pop(old, None) is not None:
            placed.named.pop(old, None)  # no reference to the old block remains
        placed.named[new] = placed.replaced[new] = placed.dicts[0][group]
        own = [[placed.named[new]]]
    for block in within:
        if block in kept:
            continue
        if placed is not None:
            set_devices_of_groups(block, placed)
            if group is not None and group_of(block) is None:
                set_group(block, group)
        for param in own_parameters(block).values() if own else ():
            if isinstance(param, HomeParameter) or param.placed is not None:
                continue
            if (param.arrays is not None or param.deferred_init) and param.list_ctx() != own[0]:
                with autograd.pause():
                    param.reset_ctx(own[0])
            param.placed = own[0]


def _check_split(block, path, device, named):
    """Raises MXNetError if a split layer inside the block would have to move to a device."""
    device = named.get(block, device)
    for param in own_parameters(block).values() if device is not None else ():
        if isinstance(param, HomeParameter) and param.homes != [device]:
            raise MXNetError(
                f"place: block {path!r} is split over devices ('{param.name}' is on "
                f"{brief(map(str, param.homes))}), and cannot move to {device}; name other blocks, "
                "or use Mesh.place"
            )
    for name, child in children(block).items():
        _check_split(child, f"{path}.{name}" if path else name, device, named)


def _arrange(net, blocks, devices, homes, where, named):
    """Sets the device group of each block of a network. A block's device is the one in `named`, or
    else the device of its parameters in `homes`."""
    forget_placement(net)
    _assign(net, None, named, homes)
    used = {group_of(block) for block in blocks} - {None}
    found = dict.fromkeys([*devices, *sum(homes.values(), [])])
    groups = {_GROUP + str(ctx): ctx for ctx in found if _GROUP + str(ctx) in used}
    placed = _Placed(groups, homes, where, named, net)
    for block in blocks:  # all blocks, because the network may call inner blocks directly
        set_devices_of_groups(block, placed)


def follow_parameters(net: Block) -> None:
    """Updates the placement after `reset_ctx` has moved the parameters of `net`, which is a placed
    network or a block of one. The layers then compute on the new devices. Removes the placement if
    all parameters are on the same devices."""
    placed = devices_of_groups(net)
    root = placed.net if isinstance(placed, _Placed) else net
    if any(isinstance(param, HomeParameter) for param in root.collect_params().values()):
        return
    homes = devices_now(root)
    distinct = {tuple(devices) for devices in homes.values()}
    if len(distinct) == 1 or any(len(devices) > 1 for devices in distinct):
        if len(distinct) > 1 and not isinstance(placed, _Placed):
            return  # not all replicas of a mesh are present
        forget_placement(root)
        root.apply(lambda block: set_devices_of_groups(block, None))
    elif isinstance(placed, _Placed):
        blocks = [root, *[block for _, _, _, block in walk(root)]]
        _arrange(root, blocks, [], homes, {}, {})


class _Placed(Replicas):
    """The devices of groups, and the previous devices of parameters that belong to no group."""

    def __init__(
        self,
        groups: dict[str, Context],
        rest: dict[Any, list[Context]],
        where: dict[str, Context],
        named: dict[Block, Context],
        net: Block,
    ) -> None:
        super().__init__([groups], " and ".join(map(str, groups.values())))
        self._rest, self._where, self.named, self.net = rest, where, named, net
        self.replaced: dict[Block, Context] = {}  # device of each block that replaced another one

    def homes(self, net: Block) -> dict[Any, list[Context]]:
        homes = super().homes(net)
        grouped: set[Any] = set()

        def visit(block, group):
            group = group_of(block) or group
            if group is not None:
                grouped.update(own_parameters(block).values())
            for child in children(block).values():
                visit(child, group)

        visit(net, None)
        return {
            param: devices if param in grouped else self._rest.get(param, devices)
            for param, devices in homes.items()
        }

    def initial_homes(self, net: Block, ctx: Any) -> dict[Any, Any]:
        """Returns the devices on which `initialize` creates each parameter. Parameters of named
        blocks are created on the blocks' devices, all others on `ctx`. If `ctx` is None, they are
        created on their previous devices, or their entry is None if they have none."""
        homes = self.named_homes(net)
        params = net.collect_params().values()
        if ctx is not None and all(param in homes for param in params):
            return super().initial_homes(net, ctx)
        now = devices_now(net)
        return {
            param: homes[param] if param in homes else ctx if ctx is not None else now.get(param)
            for param in params
        }

    def named_homes(self, net: Block) -> dict[Any, list[Context]]:
        """Returns the devices of the parameters of named blocks."""
        homes: dict[Any, list[Context]] = {}

        def visit(block, device):
            device = self.named.get(block, device)
            for param in own_parameters(block).values():
                if isinstance(param, HomeParameter):
                    homes.setdefault(param, param.homes)
                elif device is not None:
                    homes.setdefault(param, [device])
            for child in children(block).values():
                visit(child, device)

        visit(net, None)
        return homes

    def covers(self, block: Block) -> bool:
        """True if `block` is the block that was placed, not a part of it."""
        return block is self.net

    def initialized(self, net: Block) -> None:
        """Repeats the placement, because `initialize` determines the devices of further layers."""
        place(self.net, self._where, self.replaced)


def _devices(where):
    """Returns the devices in the dict `where`, without duplicates. Raises an error for invalid
    entries."""
    if not where:
        raise ValueError(
            "place: the dict is empty; it must map blocks to devices, as in {'output': mx.cpu(1)}"
        )
    for name, ctx in where.items():
        if not isinstance(name, str) or not isinstance(ctx, Context):
            raise TypeError(
                "place: the dict must map names of blocks to devices, as in {'output': "
                f"mx.cpu(1)}}, not {name!r}: {ctx!r}"
            )
        if ctx.device_type == "gpu" and ctx.device_id >= num_gpus():
            raise MXNetError(f"place: {ctx} does not exist: this machine has {num_gpus()} GPUs")
    return list(dict.fromkeys(where.values()))


def _named(net, where, blocks, strict=True):
    """Returns the device of each block that a name or pattern matches. With `strict`, raises
    ValueError if a key matches no block.

    A key that is the path or name of a block matches only these blocks, by a dict lookup. The
    remaining keys are patterns, which are compiled once. As a result, a dict with thousands of
    paths takes linear time.
    """
    texts = {text for path, block in blocks.items() for text in (path, block.name)}
    literal = {key: i for i, key in enumerate(where) if key in texts}
    patterns = []
    for i, key in enumerate(where):
        if key not in literal:
            try:
                patterns.append((i, re.compile(key)))
            except re.error as error:
                raise ValueError(
                    f"place: {key!r} is neither a block nor a regular expression: {error}; '.*' "
                    "matches any text"
                ) from error
    devices, named, used = list(where.values()), {}, set()
    for path, block in blocks.items():
        found = min(literal.get(path, len(where)), literal.get(block.name, len(where)))
        for i, pattern in patterns:
            if i > found:
                break
            if pattern.fullmatch(path) or pattern.fullmatch(block.name):
                found = i
        if found < len(where):
            used.add(found)
            named.setdefault(block, devices[found])
    unused = [key for i, key in enumerate(where) if i not in used]
    if unused and strict:
        _refuse_parameter(net, unused[0], blocks)
        raise ValueError(
            f"place: {unused[0]!r} does not match the path or name of any block of '{net.name}' "
            "that no earlier pattern matches; the paths are "
            f"{brief(path for path in blocks if path) if len(blocks) > 1 else 'none'}"
        )
    return named


def _refuse_parameter(net, key, blocks):
    """Raises ValueError if the key of a placement names a parameter of the network."""
    for path, block in blocks.items():
        for name, param in own_parameters(block).items():
            if key in (f"{path}.{name}" if path else name, param.name):
                raise ValueError(
                    f"place: {key!r} is a parameter, which follows its block; place the block "
                    f"by its path {path!r}"
                    + ("" if path else ", or move the parameter to a child block")
                )


def _having_devices(net):
    """Returns the parameters whose devices are known, although their shapes may be unknown. Omits
    parts of split layers."""
    return [
        param
        for param in net.collect_params().values()
        if not isinstance(param, HomeParameter)
        and (param.arrays is not None or param.deferred_init)
    ]


def _is_layer(block):
    """True if no descendant has parameters. A layer may still have children, such as an
    activation."""
    return not any(own_parameters(inner) for _, _, _, inner in walk(block))


def _assign(block, device, named, homes):
    """Sets the groups of a block and its descendants. Layers that no name covers stay on the
    devices of their parameters. If these have no devices yet, `initialize` decides."""
    device = named.get(block, device)
    own = own_parameters(block).values()
    if device is not None:
        set_group(block, _GROUP + str(device))
    elif own and _is_layer(block):
        there = next((homes[param][0] for param in own if param in homes), None)
        if there is not None:
            set_group(block, _GROUP + str(there))
    for child in children(block).values():
        _assign(child, device, named, homes)


def devices_now(net: Block) -> dict[Any, list[Context]]:
    """Returns the devices of each parameter on which it is, or will be, initialized."""
    return {param: param.list_ctx() for param in _having_devices(net)}


def says_where(net: Block) -> bool:
    """True if this process prints placements. If devices of several ranks are used, only rank 0
    prints."""
    groups = devices_of_groups(net)
    dicts = [groups] if isinstance(groups, dict) else groups.dicts
    over_ranks = any(ctx.rank is not None for each in dicts for ctx in each.values())
    return not over_ranks or ranks.own() == 0


def all_devices(net: Block) -> dict[Any, list[Context]]:
    """Returns the devices of each parameter on which it is, or will be, initialized, including
    parameters of split layers."""
    return {
        param: param.list_ctx()
        for param in net.collect_params().values()
        if param.arrays is not None or param.deferred_init
    }


def described(net: Block, before: dict[Any, list[Context]]) -> str:
    """Describes the placement as text. `before` is the result of `all_devices` before the
    placement."""
    groups = devices_of_groups(net)
    dicts = [groups] if isinstance(groups, dict) else groups.dicts
    # `names` maps a key to the text that describes its devices. A key is a group or, for a split
    # layer, the text of the layer's devices.
    names = {group: ", ".join(str(each[group]) for each in dicts) for group in dicts[0]}
    group_of_key = {group: group for group in names}
    params: dict[str | None, dict[Any, None]] = {}
    layers: list[tuple[str, str]] = []  # (path, key) of each layer, in the order of the children
    moves: list[str] = []

    def visit(block, path, outer):
        """Returns the keys of the layers in the block, and (path, group) of its first and its last
        layer, through which arrays enter and leave. A pair is None if it is unknown."""
        group = key = group_of(block) or outer
        if isinstance(block, SplitLayer):
            key = ", ".join(" + ".join(map(str, line)) for line in lines_of(block))
            names[key], group_of_key[key] = f"split over {key}", group
        for param in own_parameters(block).values():
            params.setdefault(key, {})[param] = None
        if not children(block) or own_parameters(block) and _is_layer(block):
            layers.append((path, key))
            ends = (path, group) if group in names else None
            return {key}, ends, ends
        begin, found = len(layers), set()
        first = last = None
        chain = type(block) in (Sequential, HybridSequential)  # the children run in order
        for name, child in children(block).items():
            inside, enters, leaves = visit(child, f"{path}.{name}" if path else name, group)
            found |= inside
            if enters is None and inside == {None}:
                continue  # a child without a device runs on the device of its input
            if chain and last and enters and last[1] != enters[1]:
                way = f"from {names[last[1]]} to {names[enters[1]]}"
                moves.append(f"  arrays move before {enters[0]}, {way}")
            first, last = enters if last is None and first is None else first, leaves
        if len(found) == 1:
            layers[begin:] = [(path, *found)]
            only = group_of_key.get(next(iter(found)))
            ends = (path, only) if only is not None else None
            return found, ends, ends
        return (found, first, last) if chain else (found, None, None)

    visit(net, "", None)
    lines = [f"{type(net).__name__} '{net.name}':"]
    for group, devices in names.items():
        paths = [path or "all" for path, its in layers if its == group]
        if len(paths) > 8:
            paths = [*paths[:4], "...", *paths[-4:]]
        if paths:
            lines.append(f"  {devices}: {', '.join(paths)} ({_size(params.get(group, ()))})")
    if params.get(None):
        lines.append(f"  not placed: {_size(params[None])}")
    by_name = {param.name: devices for param, devices in before.items()}
    moved = [
        param
        for param, devices in all_devices(net).items()
        if devices != before.get(param, by_name.get(getattr(param, "global_name", param.name)))
    ]
    return "\n".join([*lines, *moves, f"  moved: {_size(moved)}"])


def _size(params):
    """Returns the number of parameters as text, and their bytes if all shapes are known."""
    params = list(params)
    text = counted(len(params), "parameter")
    if not params or not all(shape_is_known(param.shape) for param in params):
        return text
    size = sum(math.prod(param.shape) * itemsize(param.dtype) for param in params)
    return f"{text}, {byte_text(size)}"
