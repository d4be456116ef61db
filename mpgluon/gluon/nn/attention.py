"""Multi-head attention, and the cells of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._internal import domain, make
from ..._internal.hints import near, options_of, unknown_option
from ...base import MXNetTypeError, MXNetValueError
from ..block import HybridBlock
from .activations import GELU, Activation
from .basic_layers import Dense, Dropout, LayerNorm
from .quantized_layers import QuantizedDense
from .transformer_layers import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..._internal.types import DType, Init, Layer, NDArray
    from ...context import Context
else:
    Layer = HybridBlock


__all__ = ["MultiHeadAttention", "TransformerDecoderCell", "TransformerEncoderCell"]

_PROJECTIONS = ("query", "key", "value", "proj")
_ROTARY = {
    "base": 10000.0,
    "dims": 0,
    "style": "half",
    "scaling": "none",
    "factor": 1.0,
    "original_length": 0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
    "factors": (),
    "long_factors": (),
    "attention_factor": None,
}
_STYLES, _SCALINGS = ("half", "pairs"), ("none", "linear", "llama3", "yarn", "longrope")
_BLOCK = 384  # rows of a cache may move by multiples of this number of keys
_NORM = {"epsilon": 1e-6, "offset": 0.0, "whole": False}


def _options(layer, name, given, known):
    """Returns options with their defaults, or None for None and False."""
    if given is None or given is False:
        return None
    if given is True:
        return dict(known)
    if not isinstance(given, dict):
        raise MXNetTypeError(f"{layer}: {name} must be a dict of options, True or None")
    for key in given:
        if key not in known:
            raise MXNetValueError(
                f"{layer}: {name} has no option {key!r}{near(key, known)}; its options are "
                f"{', '.join(known)}"
            )
    return {**known, **given}


def positions_after(F: Any, x: Any, lengths: Any) -> Any:
    """Returns the int32 positions (batch, time) of the steps of x (batch, time, ...), which follow
    `lengths` (batch,) earlier ones."""
    for axis in range(2, len(x.shape)):
        x = F.slice_axis(x, axis=axis, begin=0, end=1)
    steps = F.contrib.arange_like(F.Cast(x, dtype="int32"), axis=1)
    return F.broadcast_add(F.expand_dims(lengths, axis=1), F.expand_dims(steps, axis=0))


def cache_arrays(
    shape: tuple[int, int, int, int], window: int, chunk: int, ctx: Context, dtype: DType
) -> list[NDArray]:
    """Returns the arrays of `MultiHeadAttention.make_cache` for keys of a shape (batch, length,
    heads, features), limited to the rows of a window if it is not 0."""
    batch, length, *sizes = shape
    first = []
    rows = -(-(window + _BLOCK + chunk) // 64) * 64
    if window and rows < length:
        length, first = rows, [make.zeros((batch,), ctx=ctx, dtype="int32")]
    return [make.zeros((batch, length, *sizes), ctx=ctx, dtype=dtype) for _ in range(2)] + first


def home_of_keys(
    key: Any, advice: str = "split the attention with 'heads' (mx.parallel.shard)"
) -> tuple[Context, DType]:
    """Returns the device and dtype of the keys that a layer computes."""
    if isinstance(key, QuantizedDense):
        return key.packed.list_ctx()[0], key.dtype
    if not hasattr(key, "weight"):
        raise MXNetTypeError(
            f"make_cache: the keys are a {type(key).__name__}, whose units are on several "
            f"devices; {advice}"
        )
    return key.weight.list_ctx()[0], key.weight.dtype


class MultiHeadAttention(Layer):
    """Multi-head attention, with fewer key heads than query heads if `kv_heads` is given.

    The children `query`, `key`, `value` and `proj` are `Dense` layers. ``mx.parallel.shard`` with
    'heads' divides them over devices by whole groups of query heads that share a key head.

    Parameters
    ----------
    units : int
        Features of the result.
    heads : int
        Number of query heads.
    kv_heads : int, optional
        Number of key and value heads, which must divide `heads`; by default `heads`.
    head_dim : int, optional
        Features of a head; by default ``units // heads``.
    use_bias : bool or dict, default False
        Whether the projections have a bias, for all or by name, as in ``{'query': True}``.
    qk_norm : bool or dict, optional
        RMS normalization of the features of each query and key head. Options: ``epsilon``
        (1e-6), ``offset`` (0), which is added to the factors, and ``whole`` (False), which
        normalizes the features of all heads together.
    rotary : bool or dict, optional
        Rotary position embedding of queries and keys. The options are those of
        `nd.contrib.rotary`, such as ``base`` (10000), ``style`` ('half' or 'pairs') and
        ``scaling``, and ``long_factors``, which replace the ``factors`` of longrope in sequences
        longer than ``original_length``.
    window : int, default 0
        Number of keys that a row sees, see `nd.contrib.attention`; 0 is unlimited.
    causal : bool, default True
        Whether a position sees only itself and earlier positions.
    softcap : float, default 0
        Limit of the scores; 0 is unlimited.
    scale : float, optional
        Factor of the scores; by default ``head_dim ** -0.5``.
    dropout : float, default 0
        Dropout rate of the attention weights.
    in_units : int, default 0
        Features of the input; 0 to infer them in the first forward pass.
    dtype, weight_initializer, bias_initializer
        Options of the projections.

    Inputs
    ------
    query
        ``(batch, time, features)``.
    key, value : optional
        Arrays ``(batch, keys, features)`` to attend to; by default `query` and `key`.
    mask, lengths, segments : optional
        See `nd.contrib.attention`.
    positions : optional
        Positions ``(time,)`` or ``(batch, time)`` of the rows, for `rotary`.
    cache : optional
        The arrays of `make_cache`: earlier keys and values, to which the new ones are added in
        place, see `nd.contrib.cached_attention`. `lengths` are then the numbers of earlier rows.

    Second gradients are not supported, see `nd.contrib.attention`.

    Examples
    --------
    >>> layer = nn.MultiHeadAttention(8, heads=4, kv_heads=2, rotary=True)
    >>> layer.initialize()
    >>> layer(nd.ones((2, 5, 8))).shape
    (2, 5, 8)
    """

    # Attributes that `shard` divides over devices, the unit of division first
    _counts_of_heads = ("_kv_heads", "_heads")

    def __init__(
        self,
        units: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        use_bias: bool | Mapping[str, bool] = False,
        qk_norm: bool | Mapping[str, Any] | None = None,
        rotary: bool | Mapping[str, Any] | None = None,
        window: int = 0,
        causal: bool = True,
        softcap: float = 0.0,
        scale: float | None = None,
        dropout: float = 0.0,
        in_units: int = 0,
        dtype: DType = "float32",
        weight_initializer: Init | None = None,
        bias_initializer: Init = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        kv_heads = heads if kv_heads is None else kv_heads
        domain.size(1, units=units, heads=heads, kv_heads=kv_heads)
        domain.size(0, in_units=in_units, window=window)
        domain.at_least(0, softcap=softcap)
        if scale is not None:
            domain.number(scale=scale)
        domain.fraction(dropout=dropout)
        kind = type(self).__name__
        if heads % kv_heads:
            raise MXNetValueError(f"{kind}: kv_heads must divide {heads} heads, not {kv_heads}")
        if head_dim is None and units % heads:
            raise MXNetValueError(
                f"{kind}: {heads} heads do not divide {units} units; pass head_dim"
            )
        head_dim = units // heads if head_dim is None else head_dim
        domain.size(1, head_dim=head_dim)
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._window, self._causal, self._softcap = window, bool(causal), softcap
        self._scale, self._dropout = scale, dropout
        self._rotary = _options(kind, "rotary", rotary, _ROTARY)
        self._long_factors: Any = ()
        if self._rotary:
            self._check_rotary(kind)
            self._long_factors = self._rotary.pop("long_factors")
        biases = use_bias if isinstance(use_bias, dict) else dict.fromkeys(_PROJECTIONS, use_bias)
        for name in biases:
            if name not in _PROJECTIONS:
                raise MXNetValueError(
                    f"{kind}: use_bias has no projection {name!r}; they are "
                    f"{', '.join(_PROJECTIONS)}"
                )
        norm = _options(kind, "qk_norm", qk_norm, _NORM)

        def dense(name, size, inputs):
            return Dense(
                size,
                use_bias=bool(biases.get(name, False)),
                flatten=False,
                dtype=dtype,
                weight_initializer=weight_initializer,
                bias_initializer=bias_initializer,
                in_units=inputs,
                prefix=f"{name}_",
            )

        with self.name_scope():
            self.query: Dense = dense("query", heads * head_dim, in_units)
            self.key: Dense = dense("key", kv_heads * head_dim, in_units)
            self.value: Dense = dense("value", kv_heads * head_dim, in_units)
            self.query_norm: RMSNorm | None = None
            self.key_norm: RMSNorm | None = None
            self.normalizes_whole: bool = bool(norm and norm.pop("whole"))
            if norm:
                of_query, of_key = (n if self.normalizes_whole else 1 for n in (heads, kv_heads))
                norm["dtype"] = dtype
                self.query_norm = RMSNorm(
                    **norm, in_channels=of_query * head_dim, prefix="query_norm_"
                )
                self.key_norm = RMSNorm(**norm, in_channels=of_key * head_dim, prefix="key_norm_")
            self.proj: Dense = dense("proj", units, heads * head_dim)

    def _check_rotary(self, kind):
        options = self._rotary
        dims = options["dims"] or self._head_dim
        for name, allowed in (("style", _STYLES), ("scaling", _SCALINGS)):
            if options[name] not in allowed:
                raise MXNetValueError(
                    f"{kind}: rotary {name} must be one of {', '.join(allowed)}, not "
                    f"{options[name]!r}"
                )
        if dims % 2 or not 0 < dims <= self._head_dim:
            raise MXNetValueError(
                f"{kind}: rotary dims must be even and at most {self._head_dim}, not {dims}"
            )

    def hybrid_forward(
        self,
        F: Any,
        query: Any,
        key: Any = None,
        value: Any = None,
        mask: Any = None,
        lengths: Any = None,
        segments: Any = None,
        positions: Any = None,
        cache: Any = None,
    ) -> Any:
        own = key is None
        key = query if own else key
        value = key if value is None else value
        q, k = self.query(query), self.key(key)
        if self.normalizes_whole:
            q, k = self.query_norm(q), self.key_norm(k)
        q = F.reshape(q, shape=(0, 0, self._heads, -1))
        k = F.reshape(k, shape=(0, 0, self._kv_heads, -1))
        v = F.reshape(self.value(value), shape=(0, 0, self._kv_heads, -1))
        if self.query_norm is not None and not self.normalizes_whole:
            q, k = self.query_norm(q), self.key_norm(k)
        if cache is not None and lengths is None:
            raise MXNetValueError(f"{self.name}: a cache needs lengths, its numbers of rows")
        if self._rotary:
            if not own:
                raise MXNetValueError(
                    f"{self.name}: rotary positions need queries and keys of the same sequence"
                )
            if cache is not None and positions is None:
                positions = positions_after(F, query, lengths)
            size = query if cache is None else cache[0]
            q, k = (self._rotated(F, x, positions, size) for x in (q, k))
        options = {"window": self._window, "softcap": self._softcap, "scale": self._scale}
        if cache is None:
            given = {"mask": mask, "lengths": lengths, "segments": segments}
            out = F.contrib.attention(
                q,
                k,
                v,
                causal=self._causal,
                p=self._dropout,
                **{name: array for name, array in given.items() if array is not None},
                **options,
            )
        else:
            if mask is not None or segments is not None or not self._causal:
                raise MXNetValueError(
                    f"{self.name}: attention to a cache is causal, without mask and segments"
                )
            keys, values, *first = cache
            rows = F.broadcast_sub(lengths, first[0]) if first else lengths
            out = F.contrib.cached_attention(q, k, v, keys, values, rows, **options)
        return self.proj(F.reshape(out, shape=(0, 0, -3)))

    def _rotated(self, F, x, positions, size):
        """Rotates queries or keys. `size` is an array whose axis 1 has the length of the sequence,
        which decides between the factors of longrope."""
        options = self._rotary
        if self._long_factors and size.shape[1] > options["original_length"]:
            options = {**options, "factors": self._long_factors}
        given = () if positions is None else (F.Cast(positions, dtype="int32"),)
        return F.contrib.rotary(x, *given, **options)

    def make_cache(self, batch: int, length: int, chunk: int = 0) -> list[NDArray]:
        """Returns the arrays for the argument `cache`: empty keys and values (batch, length,
        kv_heads, head_dim), in the layer's dtype and on its device.

        If `chunk` is given and the layer has a window, the arrays hold only the rows that up to
        `chunk` new rows can see, and a third array (batch,) has the position of the first row of
        each sequence. The caller must move rows to make room for new ones, by multiples of 384, the
        least common multiple of the blocks in which keys are added. The results then have the same
        bits as with a cache of all rows.

        Examples
        --------
        >>> layer = nn.MultiHeadAttention(8, heads=4, kv_heads=2, window=100, in_units=8)
        >>> layer.initialize()
        >>> [array.shape for array in layer.make_cache(batch=1, length=16)]
        [(1, 16, 2, 2), (1, 16, 2, 2)]
        >>> [array.shape for array in layer.make_cache(batch=1, length=5000, chunk=32)]
        [(1, 576, 2, 2), (1, 576, 2, 2), (1,)]
        """
        domain.size(0, batch=batch, length=length, chunk=chunk)
        device, dtype = home_of_keys(self.key)
        shape = (batch, length, self._kv_heads, self._head_dim)
        return cache_arrays(shape, self.cached_window if chunk else 0, chunk, device, dtype)

    @property
    def cached_window(self) -> int:
        """Number of keys to which caches may be limited; 0 for all. Factors of longrope depend on
        the length of the cache, so they need a whole one."""
        return 0 if self._long_factors else self._window

    def __repr__(self) -> str:
        shared = "" if self._kv_heads == self._heads else f", {self._kv_heads} key heads"
        return (
            f"{type(self).__name__}({self._heads} heads of {self._head_dim}{shared}"
            f"{', causal' if self._causal else ''})"
        )


def heads_of(layer: MultiHeadAttention) -> tuple[int, int, int]:
    """Returns the number of query heads, the number of key heads, and the size of a head."""
    return layer._heads, layer._kv_heads, layer._head_dim


def normalizes_first(cell: TransformerEncoderCell | TransformerDecoderCell) -> bool:
    """True if the input of each sublayer is normalized, not the sum after it."""
    return cell._pre_norm


class _Cell(Layer):
    """Sublayers with residual connections, normalized before or after each sublayer: attention, in
    decoders also attention to the encoder's result, and two dense layers."""

    _causal = True
    _attends_to_memory = False

    def __init__(
        self,
        units: int,
        hidden: int,
        heads: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: str = "gelu",
        pre_norm: bool = True,
        epsilon: float = 1e-5,
        use_bias: bool | Mapping[str, bool] = True,
        dtype: DType = "float32",
        prefix: str | None = None,
        params: Any = None,
        **attention: Any,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        known = options_of(MultiHeadAttention)
        unknown = dict.fromkeys(name for name in attention if name not in known)
        if unknown:
            raise unknown_option(type(self), unknown)
        domain.size(1, hidden=hidden)
        domain.fraction(dropout=dropout, attention_dropout=attention_dropout)
        self._pre_norm = bool(pre_norm)
        common = {"dropout": attention_dropout, "use_bias": use_bias, "dtype": dtype}

        def norm(prefix):
            layer = LayerNorm(epsilon=epsilon, in_channels=units, prefix=prefix)
            layer.cast(dtype)
            return layer

        def dense(size, inputs, prefix):
            return Dense(size, flatten=False, in_units=inputs, dtype=dtype, prefix=prefix)

        with self.name_scope():
            own = {"causal": self._causal, "in_units": units, "prefix": "attention_", **common}
            self.attention: MultiHeadAttention = MultiHeadAttention(
                units, heads, **{**own, **attention}
            )
            self.attention_norm: LayerNorm = norm("attention_norm_")
            if self._attends_to_memory:
                self.cross_attention: MultiHeadAttention = MultiHeadAttention(
                    units, heads, causal=False, prefix="cross_attention_", **common
                )
                self.cross_attention_norm: LayerNorm = norm("cross_attention_norm_")
            self.ffn_norm: LayerNorm = norm("ffn_norm_")
            self.ffn1: Dense = dense(hidden, units, "ffn1_")
            self.ffn2: Dense = dense(units, hidden, "ffn2_")
            self.act: GELU | Activation = GELU() if activation == "gelu" else Activation(activation)
            self.drop: Dropout = Dropout(dropout)

    def _residual(self, x: Any, norm: LayerNorm, sublayer: Callable[[Any], Any]) -> Any:
        if self._pre_norm:
            return x + self.drop(sublayer(norm(x)))
        return norm(x + self.drop(sublayer(x)))

    def _feed_forward(self, x: Any) -> Any:
        return self._residual(x, self.ffn_norm, lambda y: self.ffn2(self.act(self.ffn1(y))))


class TransformerEncoderCell(_Cell):
    """A layer of a transformer encoder: self-attention and two dense layers, each with layer
    normalization, dropout and a residual connection.

    Parameters
    ----------
    units : int
        Features of input and output.
    hidden : int
        Size of the hidden dense layer.
    heads : int
        Number of attention heads.
    dropout : float, default 0
        Dropout rate of the sublayers' results.
    attention_dropout : float, default 0
        Dropout rate of the attention weights.
    activation : str, default 'gelu'
        'gelu', or see `Activation`.
    pre_norm : bool, default True
        Whether the input of a sublayer is normalized, or the sum after it.
    epsilon : float, default 1e-5
        Option of `LayerNorm`.
    use_bias : bool or dict, default True
        Whether the projections of the attention have a bias.
    dtype : str or numpy.dtype, default 'float32'
        Data type of the parameters.
    **attention
        Further options of `MultiHeadAttention`.

    Inputs: ``x, mask=None, lengths=None``, see `MultiHeadAttention`.

    Examples
    --------
    >>> cell = nn.TransformerEncoderCell(8, hidden=16, heads=2)
    >>> cell.initialize()
    >>> cell(nd.ones((2, 5, 8))).shape
    (2, 5, 8)
    """

    _causal = False

    def hybrid_forward(self, F: Any, x: Any, mask: Any = None, lengths: Any = None) -> Any:
        def attend(y):
            return self.attention(y, None, None, mask, lengths)

        return self._feed_forward(self._residual(x, self.attention_norm, attend))


class TransformerDecoderCell(_Cell):
    """A layer of a transformer decoder: causal self-attention, attention to the encoder's result,
    and two dense layers.

    Parameters
    ----------
    units, hidden, heads, dropout, attention_dropout, activation, pre_norm, epsilon, use_bias, dtype
        See `TransformerEncoderCell`.
    **attention
        Further options of the self-attention, see `MultiHeadAttention`.

    Inputs: ``x, memory, mask=None, memory_lengths=None``; the mask is that of the self-attention,
    and ``memory_lengths`` limits the keys of each batch entry of the memory.

    Examples
    --------
    >>> cell = nn.TransformerDecoderCell(8, hidden=16, heads=2)
    >>> cell.initialize()
    >>> cell(nd.ones((2, 5, 8)), nd.ones((2, 7, 8))).shape
    (2, 5, 8)
    """

    _attends_to_memory = True

    def hybrid_forward(
        self, F: Any, x: Any, memory: Any, mask: Any = None, memory_lengths: Any = None
    ) -> Any:
        def attend(y):
            return self.attention(y, None, None, mask)

        def look_up(y):
            return self.cross_attention(y, memory, None, None, memory_lengths)

        x = self._residual(x, self.attention_norm, attend)
        return self._feed_forward(self._residual(x, self.cross_attention_norm, look_up))
