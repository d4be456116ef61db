"""Placing the blocks of a network on devices by name: `Block.place` with a dict, and plans."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from .._hints import near
from .._tables import aligned
from ..base import MXNetError, counted, itemsize
from ..context import Context
from ._compiled import recompute
from ._tree import (
    blocks_by_path,
    children,
    devices_of_groups,
    forget_compiled,
    group_of,
    own_parameters,
    set_devices_of_groups,
    set_group,
    spans_devices,
)
from .utils import brief, shape_is_known

if TYPE_CHECKING:
    from .block import Block
    from .parameter import Parameter

_GROUP = "placed on "  # in front of the names of the groups that a placement makes


def place(net: Block, where: dict[str, Context], verbose: bool = True) -> None:
    """`Block.place` with a dict."""
    assigned = _matching(net, where)
    _keep_others(net, assigned)
    before = {param: _homes(param) for param in net.collect_params().values()}
    paths = assign(net, assigned, "place")
    if verbose:
        print(_table(net, assigned, paths, before))


def assign(net: Block, assigned: dict[str, Context], who: str) -> dict[Parameter, str]:
    """Lets the blocks at those paths compute on devices, and moves their parameters there, whatever
    was placed before. Returns the path that decided for each parameter: the first of those whose
    blocks share it. `who` begins errors.
    """
    for path, block in blocks_by_path(net).items():
        group = group_of(block)
        if group is not None and not group.startswith(_GROUP):
            raise MXNetError(f"{who}: block {path!r} belongs to the group {group!r} already")
    paths, groups = {}, {}

    def visit(path, block, place):
        if path in assigned:
            place = path
            groups.setdefault(block, f"{_GROUP}{assigned[path]}")
        if place is not None:
            if spans_devices(block):
                raise MXNetError(f"{who}: layer {path!r} is split over devices; a Mesh places it")
            for param in own_parameters(block).values():
                if not _homes(param):
                    raise MXNetError(
                        f"{who}: parameter '{param.name}' is not initialized; call "
                        "net.initialize() before"
                    )
                paths.setdefault(param, place)
        for name, child in children(block).items():
            visit(f"{path}.{name}" if path else name, child, place)

    visit("", net, None)
    forget(net)
    for block, group in groups.items():
        set_group(block, group)
    set_devices_of_groups(net, {f"{_GROUP}{ctx}": ctx for ctx in assigned.values()})
    for param, path in paths.items():
        param.floating = False
        if param.list_ctx() != [assigned[path]]:
            param.reset_ctx(assigned[path])
    return paths


def forget(net: Block) -> None:
    """Takes back what `assign` did, but for where parameters are."""
    for block in blocks_by_path(net).values():
        if (group_of(block) or "").startswith(_GROUP):
            set_group(block, None)
        forget_compiled(block)
    if is_placed(net):
        set_devices_of_groups(net, None)
    recompute.changes += 1  # what contains the network is compiled anew, too


def is_placed(net: Block) -> bool:
    """Whether `assign` placed blocks of this network."""
    devices = devices_of_groups(net)
    return isinstance(devices, dict) and all(name.startswith(_GROUP) for name in devices)


def _matching(net, where):
    """The devices of the paths that patterns match: the first pattern counts."""
    rules = []
    for pattern, ctx in where.items():
        if not isinstance(pattern, str) or not isinstance(ctx, Context):
            raise TypeError(
                "place: the dict is one of paths of blocks to devices, as in "
                f"{{'features': mx.cpu(0), 'output': mx.cpu(1)}}, not of {pattern!r} to {ctx!r}"
            )
        try:
            rules.append((re.compile(pattern), ctx))
        except re.error as error:
            raise ValueError(
                f"place: {pattern!r} is no regular expression: {error}; any text is '.*'"
            ) from error
    assigned, used = {}, set()

    def visit(path, block, around):
        matching = [rule for rule in rules if rule[0].fullmatch(path)]
        used.update(rule[0].pattern for rule in matching)
        ctx = matching[0][1] if matching else around
        if ctx != around:
            assigned[path] = ctx
        for name, child in children(block).items():
            visit(f"{path}.{name}" if path else name, child, ctx)

    visit("", net, None)
    for pattern in where:
        if pattern not in used:
            paths = [path for path in blocks_by_path(net) if path]
            raise ValueError(
                f"place: no block has the path {pattern!r}{near(pattern, paths)}; there are "
                f"{brief(paths) or 'no blocks inside'}"
            )
    if not assigned:
        raise ValueError("place: the dict is empty; it names blocks and their devices")
    return assigned


def _keep_others(net, assigned):
    """Lets what no pattern matches stay with its parameters."""

    def visit(path, block):
        if path in assigned or spans_devices(block):
            return
        homes = {ctx for param in own_parameters(block).values() for ctx in _homes(param)}
        if len(homes) > 1:
            raise MXNetError(
                f"place: block {path!r}, which the dict does not name, has parameters on "
                f"{', '.join(sorted(map(str, homes)))}; name it, or place replicas by a Mesh"
            )
        for name, child in children(block).items():
            visit(f"{path}.{name}" if path else name, child)
        if homes:
            assigned[path] = homes.pop()

    visit("", net)


def _homes(param):
    """The devices of a parameter; none where it has no values."""
    return param.list_ctx() if param.arrays is not None or param.deferred_init else ()


def _bytes(params):
    """The bytes of parameters, as text; "?" where a shape is not known yet."""
    if not all(shape_is_known(param.shape) for param in params):
        return "?"
    return f"{sum(math.prod(param.shape) * itemsize(param.dtype) for param in params):,}"


def _table(net, assigned, paths, before):
    """What `place` prints: the blocks with their devices."""
    rows = [("blocks", "device", "parameters", "bytes")]
    for path in blocks_by_path(net):
        if path in assigned:
            own = [param for param, its in paths.items() if its == path]
            name = path or type(net).__name__
            rows.append((name, str(assigned[path]), str(len(own)), _bytes(own)))
    moved = [param for param, contexts in before.items() if _homes(param) != contexts]
    return "\n".join([*aligned(rows), f"{counted(len(moved), 'parameter')} moved"])
