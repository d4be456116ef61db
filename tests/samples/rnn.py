"""Samples of recurrent ops."""

import numpy as np

from samples.base import Sample

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cell(mode, x, h, c, wi, wh, bi, bh):
    """One step of one direction in plain NumPy."""
    a, b = x @ wi.T + bi, h @ wh.T + bh
    if mode == "lstm":
        i, f, g, o = np.split(a + b, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    if mode == "gru":
        (ar, az, an), (br, bz, bn) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
        r, z = sigmoid(ar + br), sigmoid(az + bz)
        return (1 - z) * np.tanh(an + r * bn) + z * h, c
    return (np.maximum(a + b, 0) if mode == "rnn_relu" else np.tanh(a + b)), c


def layers(
    data,
    h0,
    c0,
    weights,
    state_size,
    num_layers,
    mode,
    bidirectional=False,
    state_outputs=False,
    lengths=None,
    **_,
):
    directions = 2 if bidirectional else 1
    count = num_layers * directions
    out, hs, cs = data, [], []
    for layer in range(num_layers):
        parts = []
        for direction in range(directions):
            k = layer * directions + direction
            wi, wh = weights[2 * k], weights[2 * k + 1]
            bi, bh = weights[2 * count + 2 * k], weights[2 * count + 2 * k + 1]
            h, c, steps = h0[k], None if c0 is None else c0[k], [None] * len(data)
            for t in range(len(data)) if direction == 0 else reversed(range(len(data))):
                reached = np.full((len(h), 1), True) if lengths is None else t < lengths[:, None]
                new_h, new_c = cell(mode, out[t], h, c, wi, wh, bi, bh)
                h, c = np.where(reached, new_h, h), c if c is None else np.where(reached, new_c, c)
                steps[t] = np.where(reached, h, 0)
            parts.append(np.stack(steps) if steps else np.zeros((0,) + h.shape))
            hs.append(h)
            cs.append(c)
        out = np.concatenate(parts, axis=2)
    if not state_outputs:
        return out
    return (out, np.stack(hs)) + ((np.stack(cs),) if c0 is not None else ())


def shapes(mode, inputs, hidden, num_layers, directions):
    rows = GATES[mode] * hidden
    weights, biases = [], []
    for layer in range(num_layers):
        for _ in range(directions):
            weights += [(rows, inputs if layer == 0 else hidden * directions), (rows, hidden)]
            biases += [(rows,), (rows,)]
    return weights + biases


def separate(mode):
    def reference(data, h0, *rest, use_sequence_length=False, **params):
        c0, weights = (rest[0], rest[1:]) if mode == "lstm" else (None, rest)
        if use_sequence_length:
            *weights, params["lengths"] = weights
        return layers(data, h0, c0, weights, **params)

    return reference


def flat(mode, inputs, hidden, num_layers, directions):
    def reference(data, vector, h0, *rest, use_sequence_length=False, **params):
        weights, start = [], 0
        if use_sequence_length:
            *rest, params["lengths"] = rest
        c0 = rest[0] if rest else None
        for shape in shapes(mode, inputs, hidden, num_layers, directions):
            size = int(np.prod(shape))
            weights.append(vector[start : start + size].reshape(shape))
            start += size
        return layers(data, h0, c0, weights, **params)

    return reference


def sample_pair(
    mode,
    time=4,
    batch=3,
    inputs=5,
    hidden=2,
    num_layers=1,
    bidirectional=False,
    state_outputs=True,
    lengths=None,
    **more,
):
    directions = 2 if bidirectional else 1
    state = (num_layers * directions, batch, hidden)
    states = [state, state] if mode == "lstm" else [state]
    weights = shapes(mode, inputs, hidden, num_layers, directions)
    params = dict(
        state_size=hidden,
        num_layers=num_layers,
        mode=mode,
        bidirectional=bidirectional,
        state_outputs=state_outputs,
    )
    name = f"{mode}-{num_layers}x{directions}" + ("-states" if state_outputs else "")
    ends = []
    if lengths is not None:
        params["use_sequence_length"] = True
        ends, name = [np.array(lengths)], f"{name}-lengths"
    # ReLU cells: all values are positive, because finite differences fail at kinks.
    ranges = [(0.1, 1)] * (1 + len(states) + len(weights)) if mode == "rnn_relu" else None
    one = Sample(
        [(time, batch, inputs)] + states + weights + ends,
        params,
        separate(mode),
        grad=list(range(1 + len(states) + len(weights))),
        ranges=ranges,
        name=name,
        **more,
    )
    total = sum(int(np.prod(s)) for s in weights)
    ranges = [(0.1, 1)] * 4 if mode == "rnn_relu" else None
    two = Sample(
        [(time, batch, inputs), (total,)] + states + ends,
        params,
        flat(mode, inputs, hidden, num_layers, directions),
        grad=list(range(2 + len(states))),
        ranges=ranges,
        name=name,
        **more,
    )
    return one, two


PAIRS = [
    sample_pair("lstm"),
    sample_pair("lstm", num_layers=2, bidirectional=True),
    sample_pair("lstm", state_outputs=False),
    sample_pair("gru"),
    sample_pair("gru", num_layers=2, bidirectional=True),
    sample_pair("rnn_tanh", num_layers=2),
    sample_pair("rnn_relu"),
    sample_pair("lstm", time=1, batch=1),
    sample_pair("lstm", num_layers=2, bidirectional=True, lengths=[2, 4, 1]),
    sample_pair("gru", num_layers=2, bidirectional=True, lengths=[4, 1, 3]),
    sample_pair("rnn_tanh", bidirectional=True, state_outputs=False, lengths=[3, 2, 4]),
    sample_pair("rnn_relu", num_layers=2, lengths=[1, 4, 2]),
]


def more(values=(-0.2, 0.3)):
    """Options without a reference: dropout between layers and clipped cells. Gradients are
    checked."""
    low, high = values
    pairs = [
        sample_pair("lstm", num_layers=3, bidirectional=True, train=True),
        sample_pair("rnn_relu", num_layers=2, train=True),
        sample_pair("lstm", num_layers=2),
    ]
    for i, pair in enumerate(pairs):
        for sample in pair:
            sample.params.update(p=0.4) if i < 2 else sample.params.update(
                lstm_state_clip_min=low, lstm_state_clip_max=high, lstm_state_clip_nan=True
            )
            sample.reference = None
            sample.name += "-dropped" if i < 2 else "-clipped"
    return pairs


PAIRS += more()


def backward_sample():
    """A sample of _rnn_backward with the reserve shape of the forward op.

    Only checks that it runs; the gradients of _rnn check its values.
    """
    time, batch, inputs, hidden = 2, 1, 3, 2
    weights = shapes("lstm", inputs, hidden, 1, 1)
    state, output = (1, batch, hidden), (time, batch, hidden)
    reserve = (time * batch * hidden * 5,)
    params = dict(
        state_size=hidden, num_layers=1, mode="lstm", state_outputs=False, flat=False, dropped=False
    )
    return Sample(
        [(time, batch, inputs), state, state] + weights + [output, reserve, output],
        params,
        None,
        grad=False,
        name="lstm",
    )


SAMPLES = {
    "_rnn": [a for a, _ in PAIRS],
    "RNN": [b for _, b in PAIRS],
    "_rnn_backward": [backward_sample()],
}
