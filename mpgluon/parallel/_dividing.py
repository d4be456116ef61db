"""``net.place([ctx, ctx])``: divides a network's layers over devices by the bytes of their
parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .._internal import domain
from ..base import MXNetError, MXNetValueError, counted, itemsize
from ..context import Context
from ..gluon._tree import children, own_parameters, walk
from ..gluon.nn.basic_layers import HybridSequential, Sequential
from ..gluon.utils import brief, shape_is_known

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..gluon.block import Block

__all__ = ["divide"]


def divide(
    net: Block,
    devices: Sequence[Context | str],
    memory: Mapping[Context, int | str] | Mapping[str, int | str] | None = None,
) -> dict[str, Context]:
    """Divides the layers of a network over devices, by the bytes of their parameters.

    Each device gets consecutive layers, in the order of the children. Layers are the children of
    the network, the children of its `Sequential` children, and the layers of stacks inside. The
    result minimizes the sum of the squared bytes of the devices. A parameter that layers on two
    devices share counts on both. Nothing is measured; `plan` measures the layers, and balances
    their times.

    Parameters
    ----------
    net : Block
        The network. The shapes of its parameters must be known, but they need no values.
    devices : list of Context
        The devices, in the order of the layers.
    memory : dict of Context to int or str, optional
        Largest number of bytes of parameters on each device, as a number or as in '20GiB'. The
        devices are then filled in proportion to their limits. Training needs several times these
        bytes.

    Returns
    -------
    dict of str to Context
        A placement for `Block.place`.

    Raises
    ------
    ValueError
        If there are more devices than layers, if a device is listed twice, or if the layers do not
        fit into `memory`.
    MXNetError
        If a shape is unknown.

    Examples
    --------
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(8, in_units=8), nn.Dense(8, in_units=8), nn.Dense(16, in_units=8))
    >>> mx.parallel.divide(net, [mx.cpu(0), mx.cpu(1)])
    {'0': cpu(0), '1': cpu(0), '2': cpu(1)}
    """
    if isinstance(devices, (Context, str)):
        raise TypeError(f"divide: devices must be a list of Context, not {devices!r}")
    where = [_context(ctx) for ctx in devices]
    limits = _limits(where, memory and {_context(ctx): size for ctx, size in memory.items()})
    layers = _layers(net)
    if len(where) > len(layers):
        raise MXNetValueError(
            f"divide: {counted(len(where), 'device')} for {counted(len(layers), 'layer')} of "
            f"'{net.name}' ({brief(path for path, _ in layers) if layers else 'none'}); pass at "
            f"most {counted(len(layers), 'device')}"
        )
    sizes = _sizes(net, layers)
    ends = _ends(layers, sizes, limits)
    if ends is None:
        raise MXNetValueError(
            f"divide: '{net.name}' has {sum(sizes.values()):,} bytes of parameters, and no "
            "division into consecutive layers fits into memory = {"
            + ", ".join(f"{ctx}: {int(limit):,}" for ctx, limit in zip(where, limits))
            + "}; raise the limits, pass more devices, or cast the network to fewer bits"
        )
    placement: dict[str, Context] = {}
    begin = 0
    for ctx, end in zip(where, ends):
        placement.update((path, ctx) for path, _ in layers[begin:end])
        begin = end
    inside = {param for _, params in layers for param in params}
    if any(param not in inside for param in net.collect_params().values()):
        placement[""] = where[-1]  # parameters outside of the layers
    return placement


def _context(ctx):
    return Context(ctx) if isinstance(ctx, str) else ctx


def _limits(devices, memory):
    """Returns the bytes of each device, or 1 for each without limits. Validates the arguments."""
    if not devices:
        raise MXNetValueError("divide: the list of devices is empty; pass at least one device")
    for ctx in devices:
        if not isinstance(ctx, Context):
            raise TypeError(f"divide: devices must be a list of Context, not of {ctx!r}")
    twice = [ctx for i, ctx in enumerate(devices) if ctx in devices[:i]]
    if twice:
        raise MXNetValueError(f"divide: {twice[0]} is listed twice; list each device once")
    if memory is None:
        return [math.inf] * len(devices)
    missing = [ctx for ctx in devices if ctx not in memory]
    if missing:
        raise MXNetValueError(f"divide: memory has no limit for {missing[0]}; add one")
    return [domain.byte_count("divide", f"memory of {ctx}", memory[ctx]) for ctx in devices]


def _is_container(block):
    """True for a stack of layers, or a block with a stack inside."""
    inner = children(block)
    return "layers" in inner or any(_is_container(child) for child in inner.values())


def _layers(net):
    """Returns (path, set of parameters) of each part that is placed as a whole, in order."""
    found: list[tuple[str, set[Any]]] = []
    seen: set[int] = set()

    def visit(block, path):
        for name, child in children(block).items():
            if id(child) in seen:
                continue
            seen.add(id(child))
            inner = f"{path}.{name}" if path else name
            if not own_parameters(child) and (
                isinstance(child, (Sequential, HybridSequential)) or _is_container(child)
            ):
                visit(child, inner)
                continue
            blocks = [child, *[each for _, _, _, each in walk(child)]]
            params = {param for each in blocks for param in own_parameters(each).values()}
            if params:
                found.append((inner, params))

    visit(net, "")
    return found


def _sizes(net, layers):
    """Returns the bytes of each parameter."""
    sizes = {}
    for path, params in layers:
        for param in params:
            if not shape_is_known(param.shape):
                raise MXNetError(
                    f"divide: the shape of '{param.name}' in layer '{path}' of '{net.name}' is "
                    "unknown; pass the input sizes of all layers, or call the network once"
                )
            sizes[param] = math.prod(param.shape) * itemsize(param.dtype)
    return sizes


def _ends(layers, sizes, limits):
    """Returns the index after the last layer of each device, or None if the limits are too small.

    Dynamic programming over (devices, layers) minimizes the sum of ``bytes**2 / limit``.
    """
    count = len(layers)
    weights = [1.0 if math.isinf(limit) else 1 / limit for limit in limits]
    # cost[end] and begin[d][end] belong to the best division of layers[:end] over devices[:d + 1]
    cost = [0.0] + [math.inf] * count
    begins = []
    for d, (limit, weight) in enumerate(zip(limits, weights)):
        after, chosen = [math.inf] * (count + 1), [0] * (count + 1)
        for begin in range(d, count):
            if math.isinf(cost[begin]):
                continue
            held: set[Any] = set()
            size = 0
            for end in range(begin + 1, count - (len(limits) - d - 1) + 1):
                new = layers[end - 1][1] - held
                held |= new
                size += sum(sizes[param] for param in new)
                if size > limit:
                    break
                total = cost[begin] + size * size * weight
                if total < after[end]:
                    after[end], chosen[end] = total, begin
        cost = after
        begins.append(chosen)
    if math.isinf(cost[count]):
        return None
    ends = [count]
    for chosen in reversed(begins[1:]):
        ends.append(chosen[ends[-1]])
    return ends[::-1]
