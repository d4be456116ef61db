"""The table that `Block.summary` prints, and the one that notebooks show."""

import html

from ... import _core, ndarray as nd
from ..._internal.tables import aligned, html_table
from ...base import itemsize
from .._tree import children, forward_hooks, own_parameters, runs_compiled, uncompiled
from ..utils import shape_is_known


def _shapes(value):
    """Returns the shapes of the arrays in nested lists, as text."""
    if isinstance(value, nd.NDArray):
        return str(value.shape)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shapes(item) for item in value) + "]"
    return str(value)


def print_summary(net, inputs):
    """Runs the network and prints a row for each block that is called. Hybridized blocks run
    eagerly for this call and keep their compiled programs."""
    from ..nn.basic_layers import HybridSequential, Sequential

    titles = ("Layer (type)", "Output Shape", "Param #", "Bytes", "Device")
    rows = [titles, ("Input", _joined(inputs), "0", "0", ", ".join(_devices_of(inputs)))]
    called, seen = [], set()
    watched, compiled = [], []

    def count(block, _, outputs):
        params = list(own_parameters(block).values())
        called.extend(params)
        label = f"{type(block).__name__}-{len(rows) - 1}"
        _, devices, elements, size = _row(label, params)
        devices = devices or ", ".join(_devices_of(outputs))
        rows.append((label, _shapes(outputs), elements, size, devices))

    def watch(block):
        if id(block) in seen:
            return
        seen.add(id(block))
        compiled.extend([block] if runs_compiled(block) else [])
        if not isinstance(block, (Sequential, HybridSequential)):
            watched.append(block)

    net.apply(watch)
    hooks = [(forward_hooks(block), object(), count) for block in watched]
    with _core.Scope(*hooks, *[uncompiled(block) for block in compiled]):
        net(*inputs)
    lines = aligned(rows)
    width = max(80, *map(len, lines))
    print("-" * width, lines[0], "=" * width, *lines[1:], "=" * width, sep="\n")
    _print_totals(called)
    print("-" * width)


def _print_totals(called):
    """Prints the total, trainable and shared numbers of parameter elements, then the bytes on each
    device. `called` lists the parameters of each called block, so shared ones occur repeatedly."""
    total = sum(_elements(param) or 0 for param in called)
    unique = dict.fromkeys(called)
    trainable = sum(_elements(param) or 0 for param in called if param.grad_req != "null")
    shared = total - sum(_elements(param) or 0 for param in unique)
    print("Parameters in forward computation graph, duplicate included")
    print(f"   Total params: {total}")
    print(f"   Trainable params: {trainable}")
    print(f"   Non-trainable params: {total - trainable}")
    print(f"Shared params in forward computation graph: {shared}")
    print(f"Unique parameters in model: {total - shared}")
    devices = dict.fromkeys(ctx for param in unique for ctx in _contexts(param))
    for device in devices:
        size = sum(_bytes(param) for param in unique if device in _contexts(param))
        print(f"Bytes of parameters on {device}: {size:,}")


def _joined(values):
    return ", ".join(map(_shapes, values))


def _devices_of(value):
    """Returns the devices of the arrays in nested lists, as text, without duplicates."""
    if isinstance(value, nd.NDArray):
        return {str(value.context): None}
    inside = value if isinstance(value, (list, tuple)) else ()
    return {device: None for item in inside for device in _devices_of(item)}


def _elements(param):
    """Returns the number of elements of a parameter, or None if its shape is unknown."""
    if not shape_is_known(param.shape):
        return None
    elements = 1
    for length in param.shape:
        elements *= length
    return elements


def _bytes(param):
    return (_elements(param) or 0) * itemsize(param.dtype)


def _contexts(param):
    """Returns the devices of a parameter, or those on which it will be initialized."""
    return param.list_ctx() if param.arrays is not None or param.deferred_init else []


def _row(layer, params):
    """Returns the table cells of a layer: its text, devices, parameters and bytes on each
    device."""
    devices = dict.fromkeys(str(ctx) for param in params for ctx in _contexts(param))
    counts = [_elements(param) for param in params]
    if None in counts:
        return layer, ", ".join(devices), "?", "?"
    size = sum(map(_bytes, params))
    return layer, ", ".join(devices), f"{sum(counts):,}", f"{size:,}"


def html_of(net):
    """Returns an HTML table of the network's layers: the blocks that have parameters or no
    children."""
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
