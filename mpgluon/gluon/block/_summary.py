"""The table that `Block.summary` prints, and the one that notebooks show."""

import html

from ... import _core, ndarray as nd
from ..._tables import html_table
from ...base import itemsize
from .._tree import children, forward_hooks, is_hybridized, own_parameters
from ..utils import shape_is_known


def _shapes(value):
    """The shapes of the arrays in nested lists, as text."""
    if isinstance(value, nd.NDArray):
        return str(value.shape)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shapes(item) for item in value) + "]"
    return str(value)


def print_summary(net, inputs):
    """Runs the network and prints a row for each block that is called."""
    from ..nn.basic_layers import HybridSequential, Sequential
    from ._hybrid_block import HybridBlock

    rows = [("Input", ", ".join(_shapes(value) for value in inputs), 0)]
    seen = set()
    total = trainable = shared = 0
    watched = []

    def count(block, _, outputs):
        nonlocal total, trainable, shared
        size = 0
        for param in block.params.values():
            elements = 1
            for length in param.shape if shape_is_known(param.shape) else ():
                elements *= length
            size += elements
            trainable += elements if param.grad_req != "null" else 0
            shared += elements if param in seen else 0
            seen.add(param)
        total += size
        rows.append((f"{type(block).__name__}-{len(rows)}", _shapes(outputs), size))

    def watch(block):
        if isinstance(block, HybridBlock) and is_hybridized(block):
            raise AssertionError(f'"{block.name}" must not be hybridized to print summary.')
        if not isinstance(block, (Sequential, HybridSequential)):
            watched.append(block)

    net.apply(watch)
    with _core.Scope(*[(forward_hooks(block), object(), count) for block in watched]):
        net(*inputs)
    line = "{:>20}  {:>42} {:>15}"
    print("-" * 80)
    print(line.format("Layer (type)", "Output Shape", "Param #"))
    print("=" * 80)
    for row in rows:
        print(line.format(*row))
    print("=" * 80)
    print("Parameters in forward computation graph, duplicate included")
    print(f"   Total params: {total}")
    print(f"   Trainable params: {trainable}")
    print(f"   Non-trainable params: {total - trainable}")
    print(f"Shared params in forward computation graph: {shared}")
    print(f"Unique parameters in model: {total - shared}")
    print("-" * 80)


def _elements(param):
    """How many elements a parameter has; None while its shape is not known."""
    if not shape_is_known(param.shape):
        return None
    elements = 1
    for length in param.shape:
        elements *= length
    return elements


def _row(layer, params):
    """The cells of a layer: its text, devices, parameters and bytes on each device."""
    placed = [p for p in params if p.arrays is not None or p.deferred_init]
    devices = dict.fromkeys(str(ctx) for param in placed for ctx in param.list_ctx())
    counts = [_elements(param) for param in params]
    if None in counts:
        return layer, ", ".join(devices), "?", "?"
    size = sum(count * itemsize(param.dtype) for count, param in zip(counts, params))
    return layer, ", ".join(devices), f"{sum(counts):,}", f"{size:,}"


def html_of(net):
    """The table of a network's layers, those that have parameters or no children: HTML."""
    rows, seen = [("layers", "device", "parameters", "bytes")], {}

    def add(block, path):
        params = list(own_parameters(block).values())
        seen.update(dict.fromkeys(params))
        inside = children(block)
        if params or not inside:
            text = type(block).__name__ if inside else repr(block)
            rows.append(_row(f"{path}: {text}" if path else text, params))
        for name, child in inside.items():
            add(child, f"{path}.{name}" if path else name)

    add(net, "")
    if len(rows) > 2:
        rows.append(_row("all, shared ones once", list(seen)))
    return f"<div>{html.escape(type(net).__name__)}</div>{html_table(rows)}"
