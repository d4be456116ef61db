"""Layers of transformers, composed from ops that work with any length, dtype, device and placement.

Norms, rotary tables and softmax are computed in float32 for half precision. Tables and masks are
computed from ops, so compiled networks hold them as constants on each device.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._core import dtype_name
from ...block import HybridBlock
from ...nn import Dense, Dropout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Never

    from ...._internal.types import Array, DType, Init

_HALVES = ("float16", "bfloat16")
_HIDDEN = -1e30  # added to the scores of keys that a row does not see


def _is_half(x):
    return dtype_name(x.dtype) in _HALVES


def wide(F: Any, x: Array) -> Array:
    """Casts half precision to float32."""
    return F.cast(x, "float32") if _is_half(x) else x


def like(F: Any, x: Array, other: Array) -> Array:
    """Casts `x` to the dtype of `other`."""
    return x if x.dtype == other.dtype else F.cast(x, dtype_name(other.dtype))


def count_along(F: Any, x: Array, axis: int) -> Array:
    """Returns 0, 1, ... in float32: the positions along an axis of `x` other than the batch."""
    for other in range(1, len(x.shape)):
        if other != axis:
            x = F.slice_axis(x, axis=other, begin=0, end=1)
    return F.contrib.arange_like(F.cast(x, "float32"), axis=axis)


# --- Activations ----------------------------------------------------------------------------------


def _silu(F, x):
    return x * F.sigmoid(x)


def _gelu(F, x):
    return F.LeakyReLU(x, act_type="gelu")


def _gelu_tanh(F, x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1.0 + F.tanh(inner))


def _gelu_quick(F, x):
    return x * F.sigmoid(1.702 * x)


ACTIVATIONS = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_quick": _gelu_quick,
    "relu": lambda F, x: F.relu(x),
    "tanh": lambda F, x: F.tanh(x),
}


# --- Norms ----------------------------------------------------------------------------------------


class RMSNorm(HybridBlock):
    """Divides by the root mean square of an axis: x * rsqrt(mean(x^2) + epsilon) * (offset +
    gamma).

    Computed in float32 for half precision, and rounded once.

    Parameters
    ----------
    axis : int, default -1
        The axis of the mean.
    epsilon : float, default 1e-6
        Added to the mean.
    scale : bool, default True
        Whether to multiply by a parameter `gamma`.
    offset : float, default 0
        Added to `gamma`; 1 for Gemma.
    in_channels : int
        Size of the axis.
    gamma_initializer : Initializer or str, optional
        By default 'ones', or 'zeros' with an offset.
    """

    def __init__(
        self,
        axis: int = -1,
        epsilon: float = 1e-6,
        scale: bool = True,
        offset: float = 0.0,
        gamma_initializer: Init | None = None,
        in_channels: int = 0,
        dtype: DType = "float32",
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        if scale and not in_channels:
            raise ValueError("RMSNorm: give in_channels")
        self._axis, self._epsilon, self._offset = axis, epsilon, offset
        if gamma_initializer is None:
            gamma_initializer = "zeros" if offset else "ones"
        with self.name_scope():
            self.gamma = (
                self.params.get("gamma", shape=(in_channels,), init=gamma_initializer, dtype=dtype)
                if scale
                else None
            )

    def hybrid_forward(self, F: Any, x: Array, gamma: Array | None = None) -> Array:
        y = wide(F, x)
        mean = F.mean(F.square(y), axis=self._axis, keepdims=True)
        y = F.broadcast_mul(y, F.rsqrt(mean + self._epsilon))
        if gamma is not None:
            gamma = wide(F, gamma)
            if self._offset:
                gamma = gamma + self._offset
            axis = self._axis % len(x.shape)
            gamma = F.reshape(gamma, (1,) * axis + (-1,) + (1,) * (len(x.shape) - axis - 1))
            y = F.broadcast_mul(y, gamma)
        return like(F, y, x)


# --- Rotary embeddings ----------------------------------------------------------------------------


def _inverse_frequencies(F, ctx, length, dims, base, scaling, options):
    """Returns the inverse frequencies (dims / 2,) in float32 and the factor of cosines and sines.

    Each step is rounded to float32 as in transformers.
    """
    exponents = F.arange(0, dims, 2, ctx=ctx, dtype="float32") / dims
    powers = F.cast(base ** F.cast(exponents, "float64"), "float32")
    if scaling == "none":
        return 1.0 / powers, 1.0
    if scaling == "linear":
        return (1.0 / powers) / options["factor"], 1.0
    if scaling == "llama3":
        return _llama3(F, 1.0 / powers, **options), 1.0
    if scaling == "yarn":
        return _yarn(F, powers, dims, base, **options)
    if scaling == "longrope":
        long = length > options["original_length"]
        factors = options["long_factor"] if long else options["short_factor"]
        factors = F.concat(*(F.full((1,), f, ctx=ctx, dtype="float32") for f in factors), dim=0)
        return 1.0 / (factors * powers), options["attention_factor"]
    raise ValueError(f"rotary: unknown scaling {scaling!r}")


def _llama3(F, inverse, factor, low_frequency, high_frequency, original_length):
    waves = 2 * math.pi / inverse
    smooth = (original_length / waves - low_frequency) / (high_frequency - low_frequency)
    between = (1 - smooth) * inverse / factor + smooth * inverse
    slow = waves > original_length / low_frequency
    fast = waves < original_length / high_frequency
    return F.where(slow, inverse / factor, F.where(fast, inverse, between))


def _yarn(
    F, powers, dims, base, factor, original_length, beta_fast, beta_slow, attention_factor, truncate
):
    def dimension(turns):
        return dims * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(beta_fast), dimension(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    index = F.arange(dims // 2, ctx=powers.context, dtype="float32")
    kept = 1 - F.clip((index - low) / (high - low), 0, 1)
    return (1.0 / (factor * powers)) * (1 - kept) + (1.0 / powers) * kept, attention_factor


def rotary(
    F: Any,
    data: Array,
    base: float = 10000.0,
    dims: int = 0,
    style: str = "half",
    scaling: str = "none",
    **options: Any,
) -> Array:
    """Rotates queries or keys (batch, time, heads, size) by their positions.

    Angles are computed in float64. Cosines and sines are rounded to float32, or to the dtype of
    float64 data.

    Parameters
    ----------
    base : float
        Base of the frequencies.
    dims : int
        Number of elements of a head that are rotated, from the first one on; 0 for all.
    style : {'half', 'pairs'}
        Whether the halves of a head (GPT-NeoX) or adjacent elements (GPT-J) form pairs.
    scaling : {'none', 'linear', 'llama3', 'yarn', 'longrope'}
        Scaling of the frequencies, whose numbers are the `options`.
    """
    dims = dims or data.shape[3]
    positions = count_along(F, data, 1)
    inverse, factor = _inverse_frequencies(
        F, data.context, data.shape[1], dims, base, scaling, options
    )
    angles = F.broadcast_mul(
        F.reshape(F.cast(positions, "float64"), (-1, 1)),
        F.reshape(F.cast(inverse, "float64"), (1, -1)),
    )
    x = wide(F, data)
    cos, sin = (
        F.expand_dims(F.expand_dims(like(F, table, x), axis=1), axis=0)
        for table in (F.cos(angles), F.sin(angles))
    )
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    turned = x if dims == data.shape[3] else F.slice_axis(x, axis=3, begin=0, end=dims)
    if style == "pairs":
        pairs = F.reshape(turned, (0, 0, 0, -4, -1, 2))
        first, second = (
            F.reshape(F.slice_axis(pairs, axis=4, begin=i, end=i + 1), (0, 0, 0, -3))
            for i in (0, 1)
        )
    else:
        first = F.slice_axis(turned, axis=3, begin=0, end=dims // 2)
        second = F.slice_axis(turned, axis=3, begin=dims // 2, end=dims)
    results = [
        F.broadcast_mul(first, cos) - F.broadcast_mul(second, sin),
        F.broadcast_mul(second, cos) + F.broadcast_mul(first, sin),
    ]
    if style == "pairs":
        results = [F.reshape(F.stack(*results, axis=4), (0, 0, 0, -3))]
    if dims != data.shape[3]:
        results.append(F.slice_axis(x, axis=3, begin=dims, end=None))
    out = results[0] if len(results) == 1 else F.concat(*results, dim=3)
    return like(F, out, data)


_ROTARY_NAMES = {"low_frequency": "low_freq_factor", "high_frequency": "high_freq_factor"}


def rotary_at(
    F: Any, data: Array, positions: Array, length: int, options: Mapping[str, Any]
) -> Array:
    """Rotates queries or keys (batch, time, heads, size) at given positions (batch, time).

    `length` is the length of the cache, which selects the factors of longrope.
    """
    options = {_ROTARY_NAMES.get(name, name): value for name, value in options.items()}
    if not options.pop("truncate", True):
        raise NotImplementedError("a cache does not support yarn without truncate")
    short, long = options.pop("short_factor", ()), options.pop("long_factor", ())
    if long:
        options["factors"] = long if length > options["original_length"] else short
    return F.contrib.rotary(data, positions, **options)


def positions_after(F: Any, x: Array, lengths: Array) -> Array:
    """Returns the int32 positions (batch, time) of the rows of x, which follow `lengths` rows."""
    for axis in range(2, len(x.shape)):
        x = F.slice_axis(x, axis=axis, begin=0, end=1)
    steps = F.contrib.arange_like(F.cast(x, "int32"), axis=1)
    return F.broadcast_add(F.expand_dims(lengths, axis=1), F.expand_dims(steps, axis=0))


# --- Attention ------------------------------------------------------------------------------------


def attention(
    F: Any,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: HybridBlock | None = None,
) -> Array:
    """Returns softmax(query key^T scale) value for arrays (batch, time, heads, size).

    Head h of the query reads head h // group of keys and values. Causal masks and windows are
    aligned at the end: the last row sees the last key.

    Parameters
    ----------
    mask : array (batch, keys), optional
        0 for keys that are not seen.
    bias : array (1, heads, rows, keys), optional
        Added to the scores.
    window : int
        The number of keys that a row sees; 0 for all.
    """
    heads, groups = query.shape[2], key.shape[2]
    hidden = _hidden(F, query, key, causal, window)
    query, key, value = (F.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    if heads != groups:
        key, value = (F.repeat(x, repeats=heads // groups, axis=1) for x in (key, value))
    query, key, value = (F.reshape(x, (-3, 0, 0)) for x in (query, key, value))
    scale = query.shape[2] ** -0.5 if scale is None else scale
    scores = F.batch_dot(query, key, transpose_b=True)
    if scale != 1:
        scores = scores * scale
    if softcap:
        scores = F.tanh(scores / softcap) * softcap
    if hidden is not None:
        scores = F.broadcast_add(scores, F.expand_dims(like(F, hidden, scores), axis=0))
    if mask is not None or bias is not None:
        scores = F.reshape(scores, (-4, -1, heads, 0, 0))
        if bias is not None:
            scores = F.broadcast_add(scores, like(F, bias, scores))
        if mask is not None:
            added = (1.0 - F.cast(mask, "float32")) * _HIDDEN
            added = F.expand_dims(F.expand_dims(added, axis=1), axis=1)
            scores = F.broadcast_add(scores, like(F, added, scores))
        scores = F.reshape(scores, (-3, 0, 0))
    weights = F.softmax(scores, axis=-1)
    if dropout is not None:
        weights = dropout(weights)
    out = F.reshape(F.batch_dot(weights, value), (-4, -1, heads, 0, 0))
    return F.transpose(out, (0, 2, 1, 3))


def _hidden(F, query, key, causal, window):
    """Returns the array (rows, keys) that is added to the scores, or None."""
    if not causal and not window:
        return None
    rows = F.reshape(count_along(F, query, 1), (-1, 1)) + (key.shape[1] - query.shape[1])
    keys = F.reshape(count_along(F, key, 1), (1, -1))
    hidden = F.broadcast_greater(keys, rows) if causal else None
    if window:
        old = F.broadcast_lesser_equal(keys, rows - window)
        hidden = old if hidden is None else hidden + old
    return hidden * _HIDDEN


class MultiHeadAttention(HybridBlock):
    """Attention of several heads, with children `query`, `key`, `value` and `proj`.

    Parameters
    ----------
    units : int
        Size of the result.
    heads, kv_heads : int
        Number of heads of queries, and of keys and values (by default the same).
    head_dim : int, optional
        Size of a head; by default ``units // heads``.
    use_bias : bool or dict of bool, default False
        Whether products have a bias, or a dict for 'query', 'key', 'value' and 'proj'.
    qk_norm : callable, optional
        Creates the norm of queries and keys for a size.
    rotary : dict, optional
        Options of `rotary`.
    window, causal, softcap, scale
        See `attention`.
    dropout : float, default 0
        Fraction of weights that become 0 while training.
    in_units : int, optional
        Size of the input; by default `units`.
    """

    def __init__(
        self,
        units: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        use_bias: bool | Mapping[str, bool] = False,
        qk_norm: Any = None,
        rotary: Mapping[str, Any] | None = None,
        window: int = 0,
        causal: bool = True,
        softcap: float = 0.0,
        scale: float | None = None,
        dropout: float = 0.0,
        in_units: int = 0,
        weight_initializer: Init | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        kv_heads = kv_heads or heads
        if heads % kv_heads:
            raise ValueError(f"MultiHeadAttention: {heads} heads are no multiple of {kv_heads}")
        if head_dim is None and units % heads:
            raise ValueError(f"MultiHeadAttention: {units} units are no multiple of {heads} heads")
        # `shard` by 'heads' divides the counts of heads.
        self.heads: int = heads
        self.kv_heads: int = kv_heads
        self.head_dim: int = head_dim or units // heads
        self._rotary, self._causal, self._window = rotary, causal, window
        self._softcap, self._scale = softcap, scale
        parts = ("query", "key", "value", "proj")
        bias = use_bias if isinstance(use_bias, dict) else dict.fromkeys(parts, use_bias)
        inputs, size = in_units or units, self.head_dim

        def dense(name, out, inputs):
            return Dense(
                out,
                in_units=inputs,
                flatten=False,
                use_bias=bias[name],
                weight_initializer=weight_initializer,
                prefix=f"{name}_",
            )

        with self.name_scope():
            self.query: Dense = dense("query", heads * size, inputs)
            self.key: Dense = dense("key", kv_heads * size, inputs)
            self.value: Dense = dense("value", kv_heads * size, inputs)
            self.proj: Dense = dense("proj", units, heads * size)
            self.query_norm: Any = qk_norm and qk_norm(size, prefix="query_norm_")
            self.key_norm: Any = qk_norm and qk_norm(size, prefix="key_norm_")
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(
        self,
        F: Any,
        x: Array,
        memory: Array | None = None,
        mask: Array | None = None,
        bias: Array | None = None,
        lengths: Array | None = None,
        cache: Sequence[Array] | None = None,
    ) -> Array:
        """Attends to `memory`, by default to `x` itself.

        With a `cache`, two arrays (batch, length, kv_heads, head_dim), writes the keys and values
        of x after the first `lengths` rows of the cache, and attends to all rows up to there.
        """
        memory = x if memory is None else memory
        query, key, value = (
            F.reshape(product(source), (0, 0, -1, self.head_dim))
            for product, source in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if cache is not None:
            return self._cached(F, query, key, value, lengths, cache)
        if self._rotary is not None:
            query, key = (rotary(F, part, **self._rotary) for part in (query, key))
        out = attention(
            F,
            query,
            key,
            value,
            mask,
            bias,
            self._causal,
            self._window,
            self._scale,
            self._softcap,
            self.dropout,
        )
        return self.proj(F.reshape(out, (0, 0, -3)))

    def _cached(self, F, query, key, value, lengths, cache):
        if self._rotary is not None:
            positions, length = positions_after(F, query, lengths), cache[0].shape[1]
            query, key = (
                rotary_at(F, part, positions, length, self._rotary) for part in (query, key)
            )
        options = {"window": self._window, "softcap": self._softcap, "scale": self._scale}
        out = F.contrib.cached_attention(query, key, value, *cache, lengths, **options)
        return self.proj(F.reshape(out, (0, 0, -3)))


# --- Feed-forward networks ------------------------------------------------------------------------


class MLP(HybridBlock):
    """Two products with an activation between them: children `up` and `down`.

    Parameters
    ----------
    units, hidden : int
        Size of input and result, and of the values between the products.
    activation : str
        A key of `ACTIVATIONS`.
    use_bias : bool, default True
        Whether the products have a bias.
    dropout : float, default 0
        Fraction of hidden values that become 0 while training.
    """

    _gated = False

    def __init__(
        self,
        units: int,
        hidden: int,
        activation: str = "gelu",
        use_bias: bool = True,
        in_units: int = 0,
        dropout: float = 0.0,
        weight_initializer: Init | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self._activation = ACTIVATIONS[activation]
        options = {
            "flatten": False,
            "use_bias": use_bias,
            "weight_initializer": weight_initializer,
        }
        inputs = in_units or units
        with self.name_scope():
            if self._gated:
                self.gate: Dense = Dense(hidden, in_units=inputs, prefix="gate_", **options)
            self.up: Dense = Dense(hidden, in_units=inputs, prefix="up_", **options)
            self.down: Dense = Dense(units, in_units=hidden, prefix="down_", **options)
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(self, F: Any, x: Array) -> Array:
        hidden = self._hidden(F, x)
        if self.dropout is not None:
            hidden = self.dropout(hidden)
        return self.down(hidden)

    def _hidden(self, F, x):
        return self._activation(F, self.up(x))


class GatedMLP(MLP):
    """A gated feed-forward network: down(activation(gate(x)) * up(x)).

    See `MLP`; there is one more child, `gate`, and no bias by default.
    """

    _gated = True

    def __init__(
        self,
        units: int,
        hidden: int,
        activation: str = "silu",
        use_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, hidden, activation, use_bias, **kwargs)

    def _hidden(self, F, x):
        return self._activation(F, self.gate(x)) * self.up(x)


class MoE(HybridBlock):
    """A mixture of gated feed-forward networks: a router chooses `k` experts for each token.

    This is the dense form. Every expert computes every token, and the results of the experts that
    were not chosen have weight 0.

    Parameters
    ----------
    units, hidden : int
        Size of input and result, and of an expert's hidden values.
    experts, k : int
        Number of experts, and of experts for a token.
    act : str, default 'silu'
        A key of `ACTIVATIONS`.
    renormalize : bool, default True
        Whether the weights of the chosen experts are divided by their sum.
    """

    def __init__(
        self,
        units: int,
        hidden: int,
        experts: int,
        k: int,
        act: str = "silu",
        renormalize: bool = True,
        weight_initializer: Init | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self._k, self._renormalize, self._activation = k, renormalize, ACTIVATIONS[act]
        with self.name_scope():
            self.router = Dense(
                experts,
                in_units=units,
                flatten=False,
                use_bias=False,
                weight_initializer=weight_initializer,
                prefix="router_",
            )

            def get(name, *shape):
                return self.params.get(name, shape=shape, init=weight_initializer)

            self.gate_weight = get("gate_weight", experts, hidden, units)
            self.up_weight = get("up_weight", experts, hidden, units)
            self.down_weight = get("down_weight", experts, units, hidden)

    def hybrid_forward(
        self, F: Any, x: Array, gate_weight: Array, up_weight: Array, down_weight: Array
    ) -> Array:
        experts, hidden, _ = gate_weight.shape
        scores = F.softmax(wide(F, self.router(x)), axis=-1)
        chosen = scores * F.topk(scores, k=self._k, axis=-1, ret_typ="mask")
        if self._renormalize:
            chosen = F.broadcast_div(chosen, F.sum(chosen, axis=-1, keepdims=True))
        gate, up = (
            F.FullyConnected(
                x,
                F.reshape(weight, (-3, 0)),
                no_bias=True,
                num_hidden=experts * hidden,
                flatten=False,
            )
            for weight in (gate_weight, up_weight)
        )
        values = F.reshape(self._activation(F, gate) * up, (0, 0, experts, hidden))
        values = F.broadcast_mul(values, F.expand_dims(like(F, chosen, x), axis=-1))
        return F.FullyConnected(
            F.reshape(values, (0, 0, -3)),
            F.reshape(F.transpose(down_weight, (1, 0, 2)), (0, -3)),
            no_bias=True,
            num_hidden=down_weight.shape[1],
            flatten=False,
        )


def rounded(value: float, dtype: DType) -> float:
    """Rounds a constant to a dtype, as transformers stores it."""
    name = dtype_name(dtype)
    if name == "bfloat16":
        bits = int(np.float32(value).view(np.uint32))
        bits += 0x7FFF + (bits >> 16 & 1)
        return float(np.uint32(bits & 0xFFFF0000).view(np.float32))
    return float(np.dtype(name).type(value))


def per_layer(value: Any, layers: int) -> Sequence[Any]:
    """Returns a list with a value for each layer, given this list or one value for all."""
    if not isinstance(value, (list, tuple)):
        return [value] * layers
    if len(value) != layers:
        raise ValueError(f"{len(value)} values for {layers} layers")
    return value
