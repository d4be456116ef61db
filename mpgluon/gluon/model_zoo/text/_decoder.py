"""`Decoder`: language models that predict the next token."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .... import initializer
from ....base import MXNetValueError
from ..._tree import group_of
from ...block import HybridBlock
from ...nn import (
    Dense,
    Dropout,
    Embedding,
    GatedMLP,
    HybridSequential,
    LayerNorm,
    MoE,
    MultiHeadAttention,
    RMSNorm,
)
from ...nn.attention import positions_after
from ._layers import (
    MASKING,
    MLP,
    PlainNorm,
    TextNetwork,
    check_tokens,
    count_along,
    per_layer,
    rounded,
    row_of,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Never

    from ...._internal.types import Array
    from ....context import Context

__all__ = ["Decoder", "DecoderLayer"]

_NO_LENGTHS = "lengths, the second input, need a cache"


class DecoderLayer(HybridBlock):
    """Attention and a feed-forward network, each applied to its normalized input and added to it.

    The children are `attention_norm`, `attention`, `mlp_norm` and `mlp`. With `sandwich`,
    `attention_post_norm` and `mlp_post_norm` normalize the results before they are added. Without
    `pre_norm`, the inputs are not normalized.

    Parameters
    ----------
    units : int
        Size of input and result.
    norm : callable
        Creates a norm: ``norm(size, prefix=...)``.
    attention, mlp : callable
        Create the children: ``attention(prefix=...)``.
    sandwich : bool, default False
        Whether results are normalized as well.
    dropout : float, default 0
        Fraction of results that become 0 while training.
    pre_norm : bool, default True
        Whether inputs are normalized.
    """

    def __init__(
        self,
        units: int,
        norm: Callable[..., HybridBlock],
        attention: Callable[..., HybridBlock],
        mlp: Callable[..., HybridBlock],
        sandwich: bool = False,
        dropout: float = 0.0,
        pre_norm: bool = True,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.attention_norm: HybridBlock | None = (
                norm(units, prefix="attention_norm_") if pre_norm else None
            )
            self.attention: HybridBlock = attention(prefix="attention_")
            self.mlp_norm: HybridBlock | None = (
                norm(units, prefix="mlp_norm_") if pre_norm else None
            )
            self.mlp: HybridBlock = mlp(prefix="mlp_")
            self.attention_post_norm: HybridBlock | None = (
                norm(units, prefix="attention_post_norm_") if sandwich else None
            )
            self.mlp_post_norm: HybridBlock | None = (
                norm(units, prefix="mlp_post_norm_") if sandwich else None
            )
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(
        self,
        F: Any,
        x: Array,
        lengths: Array | None = None,
        cache: Sequence[Any] | None = None,
        segments: Array | None = None,
        positions: Array | None = None,
    ) -> Array:
        """The arguments are as in `MultiHeadAttention`."""
        y = x if self.attention_norm is None else self.attention_norm(x)
        if cache is not None:
            y = self.attention(y, None, None, None, lengths, None, None, cache)
        elif segments is None and positions is None:
            y = self.attention(y)
        else:
            y = self.attention(y, None, None, None, None, segments, positions)
        x = x + self._after(y, self.attention_post_norm)
        y = x if self.mlp_norm is None else self.mlp_norm(x)
        return x + self._after(self.mlp(y), self.mlp_post_norm)

    def _after(self, x, norm):
        if norm is not None:
            x = norm(x)
        return x if self.dropout is None else self.dropout(x)


class Decoder(TextNetwork):
    """A language model: maps tokens (batch, time) to scores (batch, time, vocab) of the next token.

    The children are `embed`, `layers`, `norm` and `head`, and `positions` if positions have an
    embedding. `from_config` creates the networks of GPT-2, Llama, Mistral, Qwen, Gemma, Phi-3,
    Mixtral, Qwen3-MoE, OLMo and OLMo 2.

    No token sees a later one, so padding at the end needs no mask: mask the loss instead. For rows
    of several documents (`gluon.data.PackedTokens`), call ``net(tokens, None, None, None, segments,
    positions)``: tokens see only their own segment. For padding at the beginning, give the padding
    a segment of its own, and count the positions from 0 after it.

    Parameters
    ----------
    vocab, units, layers, heads, hidden : int
        Number of tokens, size of the values between layers, number of layers and heads, and size of
        the hidden values of the feed-forward networks.
    kv_heads, head_dim : int, optional
        Number of heads of keys and values (by default `heads`), and size of a head (by default
        ``units // heads``).
    norm : {'rms', 'layer', 'plain'}, default 'rms'
        Kind of the norms; 'plain' is LayerNorm without parameters.
    epsilon, norm_offset : float
        Options of the norms: a number that is added to the variance, and to `gamma`.
    activation : {'silu', 'gelu', 'gelu_tanh', 'gelu_quick', 'relu'}, default 'silu'
        Activation of the feed-forward networks.
    gated : bool, default True
        Whether the feed-forward networks are gated.
    attention_bias : bool or dict of bool, default False
        Which products of the attention have a bias (see `use_bias` of `MultiHeadAttention`).
    mlp_bias : bool, default False
        Whether the feed-forward networks have biases.
    rotary : dict, or list of dict with one for each layer, optional
        Options of rotary embeddings (see `MultiHeadAttention`); None for none.
    positions : int, default 0
        Largest length, if positions have an embedding.
    window : int or list of int, default 0
        The number of keys that a row sees; 0 for all.
    tied : bool, default False
        Whether `head` shares the weight of `embed`.
    qk_norm : bool or 'whole', default False
        Whether the queries and keys of each head are divided by their root mean square. 'whole'
        divides by the root mean square over all heads.
    scale : float or list of float, optional
        Factor of the attention scores; by default ``head_dim ** -0.5``.
    softcap, head_softcap : float, default 0
        Bounds of attention scores and of the result: ``tanh(x / c) * c``.
    embed_scale : float, default 1
        Factor of the embedding.
    sandwich : bool, default False
        Whether the results of attention and feed-forward networks are normalized.
    pre_norm : bool, default True
        Whether the inputs of attention and feed-forward networks are normalized.
    experts : dict, optional
        Options of `nn.MoE`, which replaces the feed-forward networks: `hidden`, `experts`, `k` and
        others.
    expert_layers : bool or list of bool, default True
        Which layers have experts; the other ones have ordinary feed-forward networks.
    embed_dropout, attention_dropout, dropout : float, default 0
        Rates for the embedding, for attention weights, and for the results that are added.
    deviation : float, default 0.02
        Standard deviation of initial weights.

    Examples
    --------
    >>> net = gluon.model_zoo.text.Decoder(
    ...     32, units=16, layers=2, heads=4, hidden=24, rotary={})
    >>> net.initialize()
    >>> net(nd.zeros((1, 5), dtype="int32")).shape
    (1, 5, 32)
    """

    def __init__(
        self,
        vocab: int,
        units: int,
        layers: int,
        heads: int,
        hidden: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        norm: str = "rms",
        epsilon: float = 1e-6,
        norm_offset: float = 0.0,
        activation: str = "silu",
        gated: bool = True,
        attention_bias: bool | Mapping[str, bool] = False,
        mlp_bias: bool = False,
        rotary: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        positions: int = 0,
        window: int | Sequence[int] = 0,
        tied: bool = False,
        qk_norm: bool | str = False,
        scale: float | Sequence[float] | None = None,
        softcap: float = 0.0,
        head_softcap: float = 0.0,
        embed_scale: float = 1.0,
        sandwich: bool = False,
        pre_norm: bool = True,
        experts: Mapping[str, Any] | None = None,
        expert_layers: bool | Sequence[bool] = True,
        embed_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
        deviation: float = 0.02,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self._embed_scale, self._head_softcap = embed_scale, head_softcap
        self.vocab: int = vocab
        self.max_length: int = positions
        init = initializer.Normal(deviation)
        new_norm = norm_of(norm, epsilon, norm_offset)
        mlp = partial(GatedMLP if gated else MLP, units, hidden, activation, mlp_bias)
        if gated:
            mlp = partial(mlp, in_units=units)
        head_norm = None
        if qk_norm:
            head_norm = {"epsilon": epsilon, "offset": norm_offset, "whole": qk_norm == "whole"}
        mixture = None if experts is None else partial(MoE, units, in_units=units, **experts)
        with self.name_scope():
            self.embed: Embedding = Embedding(
                vocab, units, weight_initializer=init, prefix="embed_"
            )
            self.positions: Embedding | None = (
                Embedding(positions, units, weight_initializer=init, prefix="positions_")
                if positions
                else None
            )
            self.embed_dropout: Dropout | None = Dropout(embed_dropout) if embed_dropout else None
            self.layers: HybridSequential = HybridSequential(prefix="layers_")
            with self.layers.name_scope():
                for i, (turn, rows, factor, mixed) in enumerate(
                    zip(
                        per_layer(rotary, layers),
                        per_layer(window, layers),
                        per_layer(scale, layers),
                        per_layer(expert_layers, layers),
                    )
                ):
                    attention = partial(
                        MultiHeadAttention,
                        units,
                        heads,
                        kv_heads,
                        head_dim,
                        use_bias=attention_bias,
                        qk_norm=head_norm,
                        rotary=None if turn is None else {**turn},
                        window=rows,
                        softcap=softcap,
                        scale=factor,
                        dropout=attention_dropout,
                        in_units=units,
                        weight_initializer=init,
                    )
                    self.layers.add(
                        DecoderLayer(
                            units,
                            new_norm,
                            attention,
                            partial(
                                mixture if mixed and mixture is not None else mlp,
                                weight_initializer=init,
                            ),
                            sandwich,
                            dropout,
                            pre_norm,
                            prefix=f"{i}_",
                        )
                    )
            self.norm: HybridBlock = new_norm(units, prefix="norm_")
            self.head: Dense = Dense(
                vocab,
                in_units=units,
                flatten=False,
                use_bias=False,
                weight_initializer=init,
                prefix="head_",
                params=self.embed.params if tied else None,
            )

    def hybrid_forward(
        self,
        F: Any,
        tokens: Array,
        lengths: Array | None = None,
        last: Array | None = None,
        cache: Sequence[Sequence[Any]] | None = None,
        segments: Array | None = None,
        positions: Array | None = None,
    ) -> Array:
        """With a `cache` of `make_cache`, whose first `lengths` (batch,) rows are in use, the
        tokens follow these rows, and their keys and values are added to the cache. With `last`
        (batch,), the result is the scores (batch, 1, vocab) of this row of the tokens.

        With `segments` (batch, time), a token sees only the earlier tokens of its own segment.
        `positions` (batch, time) replace 0, 1, ..., and segments need them if positions have an
        embedding."""
        self._check_inputs(tokens, lengths, last, cache, segments, positions)
        x = self.embed(tokens)
        if self._embed_scale != 1:
            x = x * rounded(self._embed_scale, x.dtype)
        if self.positions is not None:
            x = self._with_positions(F, tokens, x, lengths, positions)
        if self.embed_dropout is not None:
            x = self.embed_dropout(x)
        if cache is None and segments is None and positions is None:
            x = self.layers(x)
        elif cache is None:
            for layer in self.layers:
                # Copies them to a device once, not once for each of its layers.
                segments, positions = (
                    None if array is None else array.as_in_context(x.context)
                    for array in (segments, positions)
                )
                x = layer(x, None, None, segments, positions)
        else:
            for layer, arrays in zip(self.layers, cache):
                x = layer(x, lengths.as_in_context(home_of(arrays)), arrays)
        if last is not None:
            x = row_of(F, x, last)
        x = self.head(self.norm(x))
        if self._head_softcap:
            x = F.tanh(x / self._head_softcap) * self._head_softcap
        return x

    def _check_inputs(self, tokens, lengths, last, cache, segments, positions):
        check_tokens("Decoder", tokens)
        if cache is not None:
            if segments is not None or positions is not None:
                raise MXNetValueError("Decoder: a cache needs no segments and positions; omit them")
            return
        if lengths is not None:
            raise MXNetValueError(f"Decoder: {_NO_LENGTHS}, got {shown(lengths)}; {MASKING}")
        if last is not None and len(getattr(last, "shape", ())) != 1:
            raise MXNetValueError(f"Decoder: last must be (batch,), not {shown(last)}; {MASKING}")
        for name, array in (("segments", segments), ("positions", positions)):
            shape = getattr(array, "shape", None)
            if array is not None and shape != getattr(tokens, "shape", shape or ()):
                raise MXNetValueError(
                    f"Decoder: {name} must be (batch, time), as the tokens, not {shown(array)}"
                )
        if segments is not None and positions is None and self.positions is not None:
            raise MXNetValueError(
                "Decoder: segments need positions, because positions have an embedding; count them "
                "from 0 in each segment, as PackedTokens does"
            )

    def _with_positions(self, F, tokens, x, lengths, positions):
        if positions is not None:
            return x + self.positions(positions).as_in_context(x.context)
        if tokens.shape[1] > self.max_length:
            raise ValueError(
                f"Decoder: {tokens.shape[1]} tokens, but there are only {self.max_length} positions"
            )
        if lengths is not None:
            return x + self.positions(positions_after(F, tokens, lengths)).as_in_context(x.context)
        places = self.positions(count_along(F, tokens, 1)).as_in_context(x.context)
        return F.broadcast_add(x, F.expand_dims(places, axis=0))

    def make_cache(self, batch: int, length: int, chunk: int = 0) -> list[list[Any]]:
        """Returns the empty cache of keys and values of a batch.

        Each layer has two arrays (batch, length, kv_heads, head_dim), in the layer's dtype and on
        its device. If attention is split over devices, it has two arrays for each device, with the
        heads of that device.

        Parameters
        ----------
        batch, length : int
            Number of sequences, and the largest number of tokens of each.
        chunk : int, default 0
            Largest number of tokens that are added at once, if layers with a window shall keep
            only the rows that they need (see `MultiHeadAttention.make_cache`).

        Returns
        -------
        list of [NDArray, NDArray]

        Examples
        --------
        >>> net = gluon.model_zoo.text.Decoder(
        ...     32, units=16, layers=2, heads=4, hidden=24, kv_heads=2, rotary={})
        >>> net.initialize()
        >>> [[keys.shape, values.shape] for keys, values in net.make_cache(1, 8)]
        [[(1, 8, 2, 4), (1, 8, 2, 4)], [(1, 8, 2, 4), (1, 8, 2, 4)]]
        """
        if 0 < self.max_length < length:
            raise ValueError(
                f"make_cache: length is {length}, but there are only {self.max_length} positions"
            )
        for i, layer in enumerate(self.layers):
            check_placement(f"layers.{i}", layer, layer.attention)
        return [layer.attention.make_cache(batch, length, chunk) for layer in self.layers]


def check_placement(name: str, layer: HybridBlock, attention: HybridBlock) -> None:
    """Raises an error if the cache would cross devices on its way to attention: blocks on other
    devices get copies of their inputs, so the new rows would be written to copies and lost."""
    blocks = [layer, attention, getattr(attention, "key", None)]
    groups = {group_of(block) for block in blocks if block is not None} - {None}
    if len(groups) > 1:
        raise MXNetValueError(
            f"make_cache: {name} and the keys of its attention are on different devices; place the "
            f"attention of a layer and the layer together, as with '{name}', to generate text"
        )


def home_of(arrays: Sequence[Any]) -> Context:
    """Returns the device of a layer's arrays in the cache: the first one of split attention."""
    while not hasattr(arrays, "context"):
        arrays = arrays[0]
    return arrays.context


def norm_of(kind: str, epsilon: float, offset: float = 0.0) -> Callable[..., HybridBlock]:
    """Returns a function that creates a norm of a size."""
    if kind == "layer":
        return lambda size, prefix: LayerNorm(epsilon=epsilon, in_channels=size, prefix=prefix)
    if kind == "plain":
        return lambda size, prefix: PlainNorm(epsilon, prefix=prefix)
    if kind == "rms":
        return lambda size, prefix: RMSNorm(
            epsilon=epsilon, offset=offset, in_channels=size, prefix=prefix
        )
    raise ValueError(f"norm must be 'rms', 'layer' or 'plain', not {kind!r}")
