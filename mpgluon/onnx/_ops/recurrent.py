"""Recurrent layers. The op `RNN` has several layers, and each becomes one ONNX node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ... import symbol as sym
from .._table import exports, imports


class Kind(NamedTuple):
    """A kind of cell: its ONNX op, the order of its gates in ONNX, and the attributes."""

    op: str
    gates: tuple[int, ...]  # ONNX's k-th gate has index gates[k] here
    attributes: dict[str, object]


# LSTM's gates are input, forget, cell, output here, and input, output, forget, cell in ONNX. GRU's
# are reset, update, new here, and update, reset, new in ONNX.
KINDS = {
    "lstm": Kind("LSTM", (0, 3, 1, 2), {}),
    "gru": Kind("GRU", (1, 0, 2), {"linear_before_reset": 1}),
    "rnn_tanh": Kind("RNN", (0,), {"activations": ["Tanh"]}),
    "rnn_relu": Kind("RNN", (0,), {"activations": ["Relu"]}),
}


def _reordered(array, gates):
    """Reorders the gates of weights or biases."""
    parts = np.split(array, len(gates))
    return np.concatenate([parts[gate] for gate in gates])


class Known:
    """Parameters with known values, which are split at export."""

    def __init__(self, g, parameters) -> None:
        self._g, self._array, self._dtype = g, parameters.array, parameters.dtype

    def part(self, begin, shape, gates):
        flat = self._array[begin : begin + int(np.prod(shape))]
        return _reordered(flat.reshape(shape), gates)

    def joined(self, parts):
        return np.concatenate(parts)

    def stacked(self, parts):
        return self._g.constant(np.stack(parts), self._dtype)


class Computed:
    """Parameters that the graph computes, which nodes split at run time."""

    def __init__(self, g, parameters) -> None:
        self._g, self._name = g, parameters

    def part(self, begin, shape, gates):
        g = self._g
        flat = g.Slice(self._name, [begin], [begin + int(np.prod(shape))], [0])
        found = g.Reshape(flat, shape)
        if len(gates) == 1:
            return found
        parts = g.Split(found, axis=0, outputs=len(gates))
        return self.joined([parts[gate] for gate in gates])

    def joined(self, parts):
        return self._g.Concat(*parts, axis=0)

    def stacked(self, parts):
        return self.joined([self._g.Unsqueeze(part, [0]) for part in parts])


def _layers(call, parameters, inputs):
    """Returns (W, R, B) in ONNX's layout for each layer, of all directions."""
    kind, hidden = KINDS[call["mode"]], call["state_size"]
    directions, layers = 1 + bool(call["bidirectional"]), call["num_layers"]
    rows, place, cells = hidden * len(kind.gates), 0, []

    def part(*shape):
        nonlocal place
        begin, place = place, place + int(np.prod(shape))
        return parameters.part(begin, shape, kind.gates)

    for layer in range(layers):
        width = inputs if layer == 0 else hidden * directions
        for _ in range(directions):
            cells.append([part(rows, width), part(rows, hidden)])
    for cell in cells:
        cell.append(parameters.joined([part(rows), part(rows)]))
    return [
        [parameters.stacked(parts) for parts in zip(*cells[begin : begin + directions])]
        for begin in range(0, len(cells), directions)
    ]


def _is_zero(state):
    return state.array is not None and not state.array.any()


@exports("RNN", "LSTM, GRU or RNN, one for each layer")
def rnn(g, call, x, parameters, state, *rest):
    for key in ("projection_size", "lstm_state_clip_min", "lstm_state_clip_max"):
        if call[key] is not None:
            call.refuse(f"{key} cannot be converted")
    *cell, lengths = rest if call["use_sequence_length"] else (*rest, None)
    lengths = None if lengths is None else g.cast(lengths, "int32")
    kind, hidden = KINDS[call["mode"]], call["state_size"]
    directions = 1 + bool(call["bidirectional"])
    attributes = {"hidden_size": hidden, **kind.attributes}
    if directions == 2:
        attributes["direction"] = "bidirectional"
        if "activations" in attributes:
            attributes["activations"] = attributes["activations"] * 2
    states = [state, *cell]
    last, found = [[] for _ in states], x
    cut = Computed(g, parameters) if parameters.array is None else Known(g, parameters)
    for layer, matrices in enumerate(_layers(call, cut, x.size(2))):
        begin = layer * directions
        first = [
            None if _is_zero(part) else g.Slice(part, [begin], [begin + directions], [0])
            for part in states
        ]
        made = g.emit(
            kind.op, found, *matrices, lengths, *first, outputs=1 + len(states), **attributes
        )
        found = g.Transpose(made[0], perm=[0, 2, 1, 3])
        found = g.Reshape(found, [0, 0, directions * hidden])
        for names, name in zip(last, made[1:]):
            names.append(name)
    if len(call.outputs) == 1:
        return found
    return [found, *[g.Concat(*names, axis=0) if len(names) > 1 else names[0] for names in last]]


# --- Import ---------------------------------------------------------------------------------------

# (ONNX op, its activations in a file, which may be omitted) -> mode of `RNN`
MODES = {
    ("LSTM", ()): "lstm",
    ("LSTM", ("Sigmoid", "Tanh", "Tanh")): "lstm",
    ("GRU", ()): "gru",
    ("GRU", ("Sigmoid", "Tanh")): "gru",
    ("RNN", ()): "rnn_tanh",
    ("RNN", ("Tanh",)): "rnn_tanh",
    ("RNN", ("Relu",)): "rnn_relu",
}


def _mode(node, directions):
    told = [item.decode() for item in node.attribute("activations") or []]
    each = told[: len(told) // directions]
    mode = MODES.get((node.op, tuple(each)))
    if mode is None or told != each * directions:
        return node.refuse(f"the activations {told} are not supported")
    for key, needed in KINDS[mode].attributes.items():
        if isinstance(needed, int) and node.attribute(key, 0) != needed:
            return node.refuse(f"{key} must be {needed}, as in Gluon's layers")
    return mode


def _packed(node, mode, hidden):
    """Packs the parameters into one array."""
    gates = KINDS[mode].gates
    order = tuple(int(place) for place in np.argsort(gates))
    weights, recurrent = node.constant(1, "W"), node.constant(2, "R")
    directions, rows = weights.shape[0], hidden * len(gates)
    bias = node.constant(3, "B")
    bias = np.zeros((directions, 2 * rows), weights.dtype) if bias is None else bias
    parts = []
    for place in range(directions):
        parts += [weights[place], recurrent[place]]
    for place in range(directions):
        parts += [bias[place, :rows], bias[place, rows:]]
    return np.concatenate([_reordered(part, order).reshape(-1) for part in parts])


@imports("LSTM GRU RNN")
def rnn_back(node):
    hidden, direction = node.attribute("hidden_size"), node.attribute("direction", "forward")
    for key in ("clip", "layout", "input_forget"):
        if node.attribute(key, 0):
            return node.refuse(f"{key} is not supported")
    if node.has(7):
        return node.refuse("peepholes are not supported")
    directions = 1 + (direction == "bidirectional")
    mode = _mode(node, directions)
    lengths = [node.symbol(4)] if node.has(4) else []

    def backwards(steps):
        return sym.SequenceReverse(steps, *lengths, use_sequence_length=bool(lengths))

    x = node.symbol(0)
    if direction == "reverse":
        x = backwards(x)
    count = 2 if mode == "lstm" else 1
    zeros = sym.zeros_like(sym.slice(x, begin=(0, None, 0), end=(1, None, 1)))
    zeros = sym.tile(zeros, reps=(directions, 1, hidden))
    states = [node.symbol(5 + i) if node.has(5 + i) else zeros for i in range(count)]
    parameters = node.graph.parameter(f"{node.name}_parameters", _packed(node, mode, hidden))
    found = sym.RNN(
        x,
        parameters,
        *states,
        *lengths,
        use_sequence_length=bool(lengths),
        state_size=hidden,
        num_layers=1,
        bidirectional=directions == 2,
        mode=mode,
        state_outputs=True,
        name=node.name,
    )
    steps = backwards(found[0]) if direction == "reverse" else found[0]
    steps = sym.reshape(steps, shape=(0, 0, directions, hidden))
    return [sym.transpose(steps, axes=(0, 2, 1, 3)), *[found[1 + i] for i in range(count)]]
