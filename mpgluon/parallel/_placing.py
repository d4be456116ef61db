"""``net.place({...})``: blocks of a network on devices by name, and what is said about it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from .. import _ranks, autograd
from .._device_groups import is_placement
from ..base import MXNetError, counted, itemsize
from ..context import Context, num_gpus
from ..gluon._tree import (
    children,
    devices_of_groups,
    group_of,
    own_parameters,
    set_devices_of_groups,
    set_group,
)
from ..gluon.utils import brief, shape_is_known
from ._mesh import Replicas, forget_placement
from ._tensor_parallel.parameters import HomeParameter
from ._tensor_parallel.splitting import walk

if TYPE_CHECKING:
    from ..gluon.block import Block

__all__ = ["described", "place"]

_GROUP = "place:"  # in front of a device


def place(net: Block, where: dict[str, Context | str]) -> None:
    """Places the blocks that the dict names, with what is in them; see `Block.place`."""
    where = {name: Context(ctx) if isinstance(ctx, str) else ctx for name, ctx in where.items()}
    blocks = {"": net, **{path: block for _, _, path, block in walk(net)}}
    devices = _devices(where)
    named = _named(net, where, blocks)
    for path, block in blocks.items():
        if group_of(block) is not None and not is_placement(group_of(block)):
            raise MXNetError(
                f"place: block {path!r} belongs to ctx_group {group_of(block)!r} already; place "
                "networks without groups"
            )
    homes = devices_now(net)
    forget_placement(net)
    _assign(net, None, named, homes, devices[0])
    used = {group_of(block) for block in blocks.values()} - {None}
    found = dict.fromkeys([*devices, *sum(homes.values(), [])])
    groups = {_GROUP + str(ctx): ctx for ctx in found if _GROUP + str(ctx) in used}
    placed = _Placed(groups, homes)
    for block in blocks.values():  # those inside, too: methods of the network may call them
        set_devices_of_groups(block, placed)
    wanted = devices_of_groups(net).homes(net)
    with autograd.pause():
        for param in net.collect_params().values():
            param.floating = False
            if param in homes and homes[param] != wanted[param]:
                param.reset_ctx(wanted[param])


class _Placed(Replicas):
    """The devices of groups, and of the parameters that are in none: those where they have been."""

    def __init__(self, groups: dict[str, Context], rest: dict[Any, list[Context]]) -> None:
        super().__init__([groups], " and ".join(map(str, groups.values())))
        self._rest = rest

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


def _devices(where):
    """The devices of the dict."""
    if not where:
        raise ValueError("place: the dict is empty; {'output': mx.cpu(1)} names blocks and devices")
    for name, ctx in where.items():
        if not isinstance(name, str) or not isinstance(ctx, Context):
            raise TypeError(
                "place: the dict has names of blocks and devices, as in {'output': mx.cpu(1)}, not "
                f"{name!r}: {ctx!r}"
            )
        if ctx.device_type == "gpu" and ctx.device_id >= num_gpus():
            raise MXNetError(f"place: {ctx} is not there: this machine has {num_gpus()} GPUs")
    return list(dict.fromkeys(where.values()))


def _named(net, where, blocks):
    """The device of each block that a name or pattern matches."""
    named, unused = {}, list(where)
    for path, block in blocks.items():
        for pattern, ctx in where.items():
            try:
                fits = pattern in (path, block.name) or any(
                    re.fullmatch(pattern, text) for text in (path, block.name)
                )
            except re.error as error:
                raise ValueError(
                    f"place: {pattern!r} is no block and no regular expression: {error}; any "
                    "text is '.*'"
                ) from error
            if fits:
                if pattern in unused:
                    unused.remove(pattern)
                named.setdefault(block, ctx)
                break
    if unused:
        raise ValueError(
            f"place: {unused[0]!r} is the path or name of no block of '{net.name}', or only of "
            "such that an earlier pattern matches; there are "
            f"{brief(path for path in blocks if path) if len(blocks) > 1 else 'none in it'}"
        )
    return named


def _having_devices(net):
    """The parameters that are somewhere, or will be as soon as their shape is known."""
    return [
        param
        for param in net.collect_params().values()
        if not isinstance(param, HomeParameter)
        and (param.arrays is not None or param.deferred_init)
    ]


def _is_layer(block):
    """Whether no block inside has parameters: a layer with its activation, say."""
    return not any(own_parameters(inner) for _, _, _, inner in walk(block))


def _assign(block, device, named, homes, first):
    """Gives groups to a block and those in it. Layers that are not named, nor in one that is, stay
    where their parameters are."""
    device = named.get(block, device)
    own = own_parameters(block).values()
    if device is not None:
        set_group(block, _GROUP + str(device))
    elif own and _is_layer(block):
        there = next((homes[param][0] for param in own if param in homes), first)
        set_group(block, _GROUP + str(there))
    for child in children(block).values():
        _assign(child, device, named, homes, first)


def devices_now(net: Block) -> dict[Any, list[Context]]:
    """The devices of each parameter that has some, or will have."""
    return {param: param.list_ctx() for param in _having_devices(net)}


def says_where(net: Block) -> bool:
    """Whether this process tells the user where everything is: of several ranks, rank 0."""
    groups = devices_of_groups(net)
    dicts = [groups] if isinstance(groups, dict) else groups.dicts
    over_ranks = any(ctx.rank is not None for each in dicts for ctx in each.values())
    return not over_ranks or _ranks.own() == 0


def described(net: Block, before: dict[Any, list[Context]]) -> str:
    """A text that says where everything is; `before`: where parameters were."""
    groups = devices_of_groups(net)
    dicts = [groups] if isinstance(groups, dict) else groups.dicts
    names = {group: ", ".join(str(each[group]) for each in dicts) for group in dicts[0]}
    params: dict[str | None, dict[Any, None]] = {}
    layers: list[tuple[str, str]] = []  # path and group, in the children's order

    def visit(block, path, outer):
        """The groups of the layers inside."""
        group = group_of(block) or outer
        for param in own_parameters(block).values():
            params.setdefault(group, {})[param] = None
        if not children(block) or own_parameters(block) and _is_layer(block):
            layers.append((path, group))
            return {group}
        begin, found = len(layers), set()
        for name, child in children(block).items():
            found |= visit(child, f"{path}.{name}" if path else name, group)
        if len(found) == 1:
            layers[begin:] = [(path, *found)]
        return found

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
    placed = [layer for layer in layers if layer[1] in names]
    lines += [
        f"  arrays move before {path}, from {names[former]} to {names[group]}"
        for (_, former), (path, group) in zip(placed, placed[1:])
        if former != group
    ]
    moved = [param for param, devices in before.items() if param.list_ctx() != devices]
    return "\n".join([*lines, f"  moved: {_size(moved)}"])


def _size(params):
    """How many they are, and their bytes where all shapes are known."""
    params = list(params)
    text = counted(len(params), "parameter")
    if not params or not all(shape_is_known(param.shape) for param in params):
        return text
    size = sum(math.prod(param.shape) * itemsize(param.dtype) for param in params)
    unit, divisor = ("MB", 1e6) if size >= 1e6 else ("KB", 1e3)
    return f"{text}, {size / divisor:.3g} {unit}"
