"""Ops of transformers: norms, gates, rotary embeddings and attention."""

from __future__ import annotations

import numpy as np

from ... import ndarray as nd
from .._table import exports
from .elementwise import as_result, gelu


@exports("_contrib_rms_norm", "ReduceMean, Sqrt, Div, Mul")
def rms_norm(g, call, x, gamma=None):
    mean = g.ReduceMean(g.Mul(x, x), axes=[call.inputs[0].ndim - 1], keepdims=1)
    found = g.Div(x, g.Sqrt(g.Add(mean, float(call["eps"]))))
    if gamma is None:
        return found
    offset = float(call["offset"])
    return g.Mul(found, g.Add(gamma, offset) if offset else gamma)


def _silu(g, x):
    return g.Mul(x, g.Sigmoid(x))


def _gelu_tanh(g, x):
    inner = g.Mul(g.Add(x, g.Mul(g.Mul(x, g.Mul(x, x)), 0.044715)), float(np.sqrt(2 / np.pi)))
    return g.Mul(g.Mul(x, 0.5), g.Add(g.Tanh(inner), 1.0))


_GATES = {
    "silu": _silu,
    "gelu": gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_quick": lambda g, x: g.Mul(x, g.Sigmoid(g.Mul(x, 1.702))),
    "relu": lambda g, x: g.Relu(x),
    "sigmoid": lambda g, x: g.Sigmoid(x),
}


@exports("silu", "Sigmoid, Mul")
def silu(g, call, x):
    return _silu(g, x)


@exports("gelu", "Erf, or Tanh")
def gelu_of(g, call, x):
    x = as_result(g, call, x)
    return _gelu_tanh(g, x) if call["approximate"] == "tanh" else gelu(g, x)


@exports("_contrib_gated", "the activation, Mul")
def gated(g, call, gate, up):
    return g.Mul(_GATES[call["act"]](g, gate), up)


# --- Rotary embeddings ----------------------------------------------------------------------------

_ROTARY = (
    "base dims style scaling factor original_length low_freq_factor high_freq_factor beta_fast "
    "beta_slow truncate factors attention_factor"
).split()


def _count(g, size):
    """Returns 0, 1, ..., as int64."""
    end = g.Squeeze(g.sizes([size]), [0])
    return g.Range(g.number(0, "int64"), end, g.number(1, "int64"))


def _frequencies(call, size):
    """Returns the angle of each pair at position 1, and the factor of the results. The op itself
    computes them, from pairs (1, 0)."""
    options = {name: call[name] for name in _ROTARY}
    dims = options["dims"] or size
    pairs = np.zeros((1, 2, 1, size))
    first = slice(0, dims // 2) if options["style"] == "half" else slice(0, dims, 2)
    second = slice(dims // 2, dims) if options["style"] == "half" else slice(1, dims, 2)
    pairs[..., first] = 1
    turned = nd.contrib.rotary(nd.array(pairs, dtype="float64"), **options).asnumpy()[0, :, 0]
    angles = np.arctan2(turned[1, second], turned[1, first])
    return angles, float(turned[0, 0]), dims


@exports("_contrib_rotary", "Range, Cos, Sin, Slice, Concat")
def rotary(g, call, x, positions=None):
    shape, bthd = call.inputs[0].shape, call["layout"] == "bthd"
    size = call.inputs[0].size(3)
    frequencies, scale, dims = _frequencies(call, size)
    each = positions is not None and call.inputs[1].ndim == 2
    places = _count(g, shape[1 if bthd else 2]) if positions is None else positions
    # Angles of large positions need more digits than float32 has.
    angles = g.Mul(
        g.Unsqueeze(g.cast(places, "float64"), [2 if each else 1]),
        g.constant(frequencies, "float64"),
    )
    factor = g.number(scale, "float64")
    cosine, sine = (g.cast(g.Mul(f(angles), factor), call.dtype, "float64") for f in (g.Cos, g.Sin))
    if bthd:
        cosine, sine = (g.Unsqueeze(table, [2 if each else 1]) for table in (cosine, sine))
    elif each:
        cosine, sine = (g.Unsqueeze(table, [1]) for table in (cosine, sine))
    turned = x if dims == size else g.Slice(x, [0], [dims], [3])
    pairs = call["style"] == "pairs"
    if pairs:
        apart = g.reshape(turned, (*shape[:3], dims // 2, 2), shape)
        first, second = (g.Squeeze(part, [4]) for part in g.Split(apart, axis=4, outputs=2))
    else:
        first, second = g.Split(turned, axis=3, outputs=2)
    results = [
        g.Sub(g.Mul(first, cosine), g.Mul(second, sine)),
        g.Add(g.Mul(second, cosine), g.Mul(first, sine)),
    ]
    if pairs:
        joined = g.Concat(*(g.Unsqueeze(part, [4]) for part in results), axis=4)
        results = [g.reshape(joined, (*shape[:3], dims), shape)]
    if dims != size:
        results.append(g.Slice(x, [dims], [size], [3]))
    return results[0] if len(results) == 1 else g.Concat(*results, axis=3)


# --- Attention ------------------------------------------------------------------------------------


def _seen(g, call, given, rows, keys):
    """Returns the condition (batch, 1, rows, keys) under which a row sees a key, or None."""
    conditions = []
    window, causal = call["window"], call["causal"]
    at = g.Unsqueeze(_count(g, keys), [0])
    if causal or window:
        # The last row is at the last key.
        ahead = g.Sub(g.sizes([keys]), g.sizes([rows]))
        own = g.Unsqueeze(g.Add(_count(g, rows), ahead), [1])
        if causal:
            conditions.append(g.LessOrEqual(at, own))
        if window:
            conditions.append(g.Less(g.Sub(own, at), g.number(window, "int64")))
            if not causal:
                conditions.append(g.Less(g.Sub(at, own), g.number(window, "int64")))
    if "lengths" in given:
        lengths = g.Unsqueeze(g.cast(given["lengths"], "int64"), [1, 2, 3])
        conditions.append(g.Less(at, lengths))
    if "segments" in given:
        segments = given["segments"]
        own = g.Slice(segments, g.Sub(g.sizes([keys]), g.sizes([rows])), g.sizes([keys]), [1])
        same = g.Equal(g.Unsqueeze(own, [2]), g.Unsqueeze(segments, [1]))
        conditions.append(g.Unsqueeze(same, [1]))
    if "mask" in given and call.inputs[3].dtype == "bool":
        conditions.append(given["mask"])
    found = None
    for condition in conditions:
        found = condition if found is None else g.And(found, condition)
    return found


@exports("_contrib_attention", "MatMul, Softmax, Where")
def attention(g, call, query, key, value, *more):
    names = [name for name in ("mask", "lengths", "segments") if call[f"use_{name}"]]
    given = dict(zip(names, more))
    time = 1 if call["layout"] == "bthd" else 2
    shapes = [list(source.shape) for source in call.inputs[:3]]
    for source, shape in zip(call.inputs, shapes):  # heads and features are fixed sizes
        shape[3 - time], shape[3] = source.size(3 - time), source.size(3)
    if time == 1:
        query, key, value = (g.Transpose(x, perm=[0, 2, 1, 3]) for x in (query, key, value))
        for shape in shapes:
            shape[1], shape[2] = shape[2], shape[1]
    (batch, heads, rows, size), (_, groups, keys, _), (*_, width) = shapes
    scale = call["scale"]
    scale = size**-0.5 if scale is None else float(scale)
    # The heads that share a key head are an axis of their own.
    queries = g.reshape(query, (batch, groups, heads // groups, rows, size), shapes[0])
    turned = g.Unsqueeze(g.Transpose(key, perm=[0, 1, 3, 2]), [2])
    scores = g.Mul(g.MatMul(queries, turned), scale)
    softcap = float(call["softcap"])
    if softcap:
        scores = g.Mul(g.Tanh(g.Div(scores, softcap)), softcap)
    scores = g.reshape(scores, (batch, heads, rows, keys), ())
    if "mask" in given and call.inputs[3].dtype != "bool":
        scores = g.Add(scores, g.cast(given["mask"], call.dtype, call.inputs[3].dtype))
    seen = _seen(g, call, given, rows, keys)
    if seen is not None:
        scores = g.Where(seen, scores, float("-inf"))
    weights = g.Softmax(scores, axis=3)
    if seen is not None or "mask" in given:  # a row that sees no key
        weights = g.Where(g.IsNaN(weights), 0.0, weights)
    weights = g.reshape(weights, (batch, groups, heads // groups, rows, keys), ())
    out = g.MatMul(weights, g.Unsqueeze(value, [2]))
    out = g.reshape(out, (batch, heads, rows, width), ())
    return g.Transpose(out, perm=[0, 2, 1, 3]) if time == 1 else out
