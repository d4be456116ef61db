"""`T5`: an encoder and a decoder with relative positions."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import initializer, ndarray as nd
from ...._internal import make
from ....base import MXNetTypeError, MXNetValueError
from ..._huggingface.entries import Drop, Entry, Rename
from ...block import HybridBlock
from ...nn import Dense, Dropout, Embedding, GatedMLP, HybridSequential, MultiHeadAttention, RMSNorm
from ...nn.attention import cache_arrays, home_of_keys, positions_after
from ._config import MOST_LAYERS
from ._decoder import check_placement, home_of
from ._layers import MLP, TextNetwork, check_tokens, count_along, like, row_of, seen_keys, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Never

    from ...._internal.types import Array, Init, NDArray
    from ....context import Context
    from ._config import Config

__all__ = ["T5"]

_HIDDEN = -1e30  # added to the scores of keys that a row does not see
_WHOLE = "place whole layers on devices instead"  # advice for split attention


class RelativeBias(HybridBlock):
    """Bias of attention scores for the distance between row and key: an embedding of buckets, which
    grow with the distance.

    Parameters
    ----------
    heads : int
        Number of heads.
    both : bool
        Whether keys after the row have buckets of their own.
    buckets, most : int
        Number of buckets, and the distance from which on all have the last bucket.
    """

    def __init__(
        self, heads: int, both: bool, buckets: int, most: int, init: Init, **kwargs: Never
    ) -> None:
        super().__init__(**kwargs)
        self._both, self._heads = both, heads
        self._half = buckets // 2 if both else buckets
        self._ends = _bucket_ends(self._half, most)
        with self.name_scope():
            self.buckets = Embedding(buckets, heads, weight_initializer=init, prefix="buckets_")

    def hybrid_forward(self, F: Any, x: Array) -> Array:
        """Returns the bias (1, heads, time, time)."""
        index = count_along(F, x, 1)
        distance = F.broadcast_sub(F.reshape(index, (-1, 1)), F.reshape(index, (1, -1)))
        return F.expand_dims(F.transpose(self._of(F, distance), (2, 0, 1)), axis=0)

    def _of(self, F, distance):
        """Returns the bias (..., heads) for the distance from a key to a row."""
        after = distance < 0
        distance = F.abs(distance) if self._both else F.maximum(distance, 0)
        bucket = F.minimum(distance, self._half // 2)
        for end in self._ends:
            bucket = bucket + (distance >= end)
        if self._both:
            bucket = bucket + after * self._half
        return self.buckets(bucket)

    def table(self, length: int) -> NDArray:
        """Returns the bias (length, heads) for the distances 0, 1, ... to earlier keys. During
        generation, a lookup in it replaces the computation of buckets in each step."""
        ctx = self.buckets.weight.list_ctx()[0]
        return self._of(nd, make.arange(length, ctx=ctx, dtype="float32"))


def _bucket_ends(buckets, most):
    """Returns the distances from which on the buckets after the first half begin.

    The first half has a bucket for each distance, and the others grow logarithmically. Computed in
    float32 with the same roundings as in transformers.
    """
    exact = buckets // 2
    if exact < 1 or most <= exact:
        raise ValueError(f"T5: {buckets} buckets for distances up to {most} are not possible")
    distance = np.arange(exact, max(most, exact + 1) + 1, dtype=np.float32)
    growth = np.log(distance / np.float32(exact)) / np.float32(math.log(most / exact))
    bucket = np.minimum(exact + (growth * np.float32(buckets - exact)).astype(int), buckets - 1)
    return [
        float(distance[np.argmax(bucket >= number)])
        for number in range(exact + 1, int(bucket.max()) + 1)
    ]


class RelativeAttention(HybridBlock):
    """Attention to the own sequence with a bias of the scores, which is trained. The children are
    the same as in `MultiHeadAttention`, without biases.

    Parameters
    ----------
    units, heads, head_dim : int
        Size of input and result, number of heads and their size.
    causal : bool
        Whether a row sees only itself and earlier rows.
    dropout : float, default 0
        Rate for attention weights.
    """

    query: Dense
    key: Dense
    value: Dense
    proj: Dense

    def __init__(
        self,
        units: int,
        heads: int,
        head_dim: int,
        causal: bool,
        dropout: float = 0.0,
        weight_initializer: Init | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self.heads: int = heads
        self._head_dim, self._causal = head_dim, causal
        with self.name_scope():
            for name, size, inputs in (
                ("query", heads * head_dim, units),
                ("key", heads * head_dim, units),
                ("value", heads * head_dim, units),
                ("proj", units, heads * head_dim),
            ):
                dense = Dense(
                    size,
                    in_units=inputs,
                    flatten=False,
                    use_bias=False,
                    weight_initializer=weight_initializer,
                    prefix=f"{name}_",
                )
                setattr(self, name, dense)
            self.dropout = Dropout(dropout) if dropout else None

    def hybrid_forward(
        self,
        F: Any,
        x: Array,
        mask: Array | None = None,
        bias: Array | None = None,
        lengths: Array | None = None,
        cache: Sequence[Array] | None = None,
    ) -> Array:
        """`bias` is (1, heads, time, time), and `mask` (batch, time) is 0 for hidden keys.

        With a `cache` of keys and values, whose first `lengths` (batch,) rows are in use, the new
        ones are added to it, and `bias` is (batch, heads, time, rows of the cache).
        """
        if cache is not None:
            new = (
                F.reshape(product(x), (0, 0, self.heads, -1))
                for product in (self.query, self.key, self.value)
            )
            out = F.contrib.cached_attention(*new, *cache, lengths, bias, scale=1.0)
            return self.proj(F.reshape(out, (0, 0, -3)))
        query, key, value = (
            F.reshape(
                F.transpose(F.reshape(product(x), (0, 0, self.heads, -1)), (0, 2, 1, 3)), (-3, 0, 0)
            )
            for product in (self.query, self.key, self.value)
        )
        scores = F.reshape(F.batch_dot(query, key, transpose_b=True), (-4, -1, self.heads, 0, 0))
        scores = F.broadcast_add(scores, like(F, bias, scores))
        if self._causal:
            index = count_along(F, x, 1)
            later = F.broadcast_lesser(F.reshape(index, (-1, 1)), F.reshape(index, (1, -1)))
            later = F.expand_dims(F.expand_dims(later * _HIDDEN, axis=0), axis=0)
            scores = F.broadcast_add(scores, like(F, later, scores))
        if mask is not None:
            hidden = (1.0 - F.cast(mask, "float32")) * _HIDDEN
            hidden = F.expand_dims(F.expand_dims(hidden, axis=1), axis=1)
            scores = F.broadcast_add(scores, like(F, hidden, scores))
        weights = F.softmax(F.reshape(scores, (-3, 0, 0)), axis=-1)
        if self.dropout is not None:
            weights = self.dropout(weights)
        out = F.reshape(F.batch_dot(weights, value), (-4, -1, self.heads, 0, 0))
        return self.proj(F.reshape(F.transpose(out, (0, 2, 1, 3)), (0, 0, -3)))

    def make_cache(self, batch: int, length: int) -> list[NDArray]:
        """Returns empty keys and values (batch, length, heads, head_dim)."""
        ctx, dtype = home_of_keys(self.key, _WHOLE)
        return cache_arrays((batch, length, self.heads, self._head_dim), 0, 0, ctx, dtype)


class MemoryAttention(MultiHeadAttention):
    """Attention to the result of the encoder. For generation, its keys and values are computed once
    (`keys_and_values`), and kept in a cache."""

    def keys_and_values(self, F: Any, memory: Array) -> list[Array]:
        """Returns the keys and values (batch, time, heads, head_dim) of the encoder's result, on
        the device of this layer."""
        memory = memory.as_in_context(home_of_keys(self.key, _WHOLE)[0])
        return [
            F.reshape(product(memory), (0, 0, self._kv_heads, -1))
            for product in (self.key, self.value)
        ]

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
        """With a `cache` of keys and values, the query attends to their first `lengths` rows.
        Consecutive sequences of the query may share the keys of one sequence."""
        if cache is None:
            return super().hybrid_forward(F, query, key, value, mask, lengths, segments, positions)
        keys, values = cache
        rows, shared = query.shape[1], query.shape[0] // keys.shape[0]
        q = F.reshape(self.query(query), (-1, shared * rows, self._heads, self._head_dim))
        out = F.contrib.attention(q, keys, values, lengths=lengths, scale=self._scale)
        return self.proj(F.reshape(out, (-1, rows, self._heads * self._head_dim)))


class T5Layer(HybridBlock):
    """Attention to the own sequence, in the decoder attention to the encoder's result, and a
    feed-forward network; each is applied to its normalized input and added to it."""

    def __init__(
        self,
        units: int,
        attention: Any,
        memory: Any,
        norm: Any,
        mlp: Any,
        decoder: bool,
        dropout: float,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.attention_norm = norm(prefix="attention_norm_")
            self.attention = attention(causal=decoder, prefix="attention_")
            self.memory_norm = norm(prefix="memory_norm_") if decoder else None
            self.memory = memory(prefix="memory_") if decoder else None
            self.mlp_norm = norm(prefix="mlp_norm_")
            self.mlp = mlp(prefix="mlp_")
            self.dropout = Dropout(dropout) if dropout else None

    def hybrid_forward(
        self,
        F: Any,
        x: Array,
        bias: Array,
        memory: Array | None = None,
        mask: Array | None = None,
        lengths: Array | None = None,
        cache: Sequence[Array] | None = None,
    ) -> Array:
        """`mask` concerns the keys of the encoder's tokens. `cache` is an item of the result of
        `T5.make_cache`."""
        if cache is not None:
            return self._advanced(x, bias, lengths, cache)
        own = mask if self.memory is None else None
        x = x + self._dropped(self.attention(self.attention_norm(x), own, bias))
        if self.memory is not None:
            y = self.memory(self.memory_norm(x), memory, None, seen_keys(F, mask))
            x = x + self._dropped(y)
        return x + self._dropped(self.mlp(self.mlp_norm(x)))

    def _advanced(self, x, bias, lengths, cache):
        own, (keys, values, known, _) = cache[:2], cache[2:]
        x = x + self._dropped(self.attention(self.attention_norm(x), None, bias, lengths, own))
        y = self.memory_norm(x)
        x = x + self._dropped(self.memory(y, None, None, None, known, None, None, [keys, values]))
        return x + self._dropped(self.mlp(self.mlp_norm(x)))

    def _dropped(self, x):
        return x if self.dropout is None else self.dropout(x)


class T5Stack(HybridBlock):
    """The encoder or the decoder: children `bias`, `layers` and `norm`."""

    def __init__(
        self, count: int, layer: Any, bias: Any, norm: Any, dropout: float, **kwargs: Never
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.bias: Any = bias(prefix="bias_")
            self.layers: HybridSequential = HybridSequential(prefix="layers_")
            with self.layers.name_scope():
                for i in range(count):
                    self.layers.add(layer(prefix=f"{i}_"))
            self.norm: Any = norm(prefix="norm_")
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(
        self, F: Any, x: Array, memory: Array | None = None, mask: Array | None = None
    ) -> Array:
        if self.dropout is not None:
            x = self.dropout(x)
        bias = self.bias(x)
        for layer in self.layers:
            x = layer(x, bias, memory, mask)
        x = self.norm(x)
        return x if self.dropout is None else self.dropout(x)

    def advance(self, F: Any, x: Array, lengths: Array, cache: Sequence[Sequence[Array]]) -> Array:
        """Adds steps to a cache, see `T5.hybrid_forward`. This isn't a call of the block, because a
        block on another device than one of its layers would get a copy of the layer's cache."""
        if self.dropout is not None:
            x = self.dropout(x)
        bias: dict[Context, Array] = {}
        rows: dict[Context, Array] = {}
        for layer, arrays in zip(self.layers, cache):
            ctx = home_of(arrays)
            if ctx not in bias:
                rows[ctx] = lengths.as_in_context(ctx)
                bias[ctx] = _bias_of_steps(F, x.as_in_context(ctx), rows[ctx], arrays)
            x = layer(x, bias[ctx], None, None, rows[ctx], arrays)
        x = self.norm(x)
        return x if self.dropout is None else self.dropout(x)


def _bias_of_steps(F, x, lengths, arrays):
    """Returns the bias (batch, heads, time, rows of the cache) of the steps x (batch, time, units)
    after `lengths` earlier ones."""
    keys, table = arrays[0], arrays[-1]
    at = F.expand_dims(positions_after(F, x, lengths), axis=2)
    key = F.reshape(count_along(F, keys, 1), (1, 1, -1))
    # Later keys are hidden, so their distance, which is clipped to 0, does not matter.
    distance = F.broadcast_sub(F.cast(at, "float32"), key)
    return F.transpose(F.take(table, distance, mode="clip"), (0, 3, 1, 2))


class T5(TextNetwork):
    """An encoder-decoder for text: children `embed`, `encoder`, `decoder` and `head`.

    Called with the encoder's tokens (batch, time), the decoder's tokens (batch, length) and
    optionally a mask (batch, time) with 0 for padding, it returns scores (batch, length, vocab).

    Parameters
    ----------
    vocab, units, heads, head_dim, hidden : int
        Number of tokens, size of the values between layers, number of heads and their size, and
        size of the hidden values of the feed-forward networks.
    layers, decoder_layers : int
        Number of layers of the encoder and of the decoder.
    activation : str
        Activation of the feed-forward networks.
    gated : bool
        Whether the feed-forward networks are gated.
    buckets, most : int
        See `RelativeBias`.
    tied : bool
        Whether `head` shares the weight of `embed`.
    head_scale : float
        Factor of the input of `head`.
    epsilon : float
        Added to mean squares in norms.
    dropout : float
        Rate of all dropouts.
    deviation : float
        Standard deviation of initial weights.
    start_token : int
        First token of the decoder.
    end_tokens : sequence of int
        Tokens that end a text.

    Examples
    --------
    >>> net = gluon.model_zoo.text.T5(
    ...     32, units=16, heads=4, head_dim=4, hidden=24, layers=2)
    >>> net.initialize()
    >>> net(nd.zeros((1, 5), dtype="int32"), nd.zeros((1, 3), dtype="int32")).shape
    (1, 3, 32)
    """

    _usage = "net(tokens, decoder_tokens, mask), whose mask is optional"
    _masking = ""

    def __init__(
        self,
        vocab: int,
        units: int,
        heads: int,
        head_dim: int,
        hidden: int,
        layers: int,
        decoder_layers: int | None = None,
        activation: str = "relu",
        gated: bool = False,
        buckets: int = 32,
        most: int = 128,
        tied: bool = True,
        head_scale: float = 1.0,
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        deviation: float = 0.02,
        start_token: int = 0,
        end_tokens: Sequence[int] = (1,),
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self.vocab: int = vocab
        self.max_length: int = 0  # relative positions have no limit
        self.start_token: int = start_token
        self.end_tokens: Sequence[int] = end_tokens
        self._head_scale = head_scale
        init = initializer.Normal(deviation)
        attention = partial(
            RelativeAttention, units, heads, head_dim, dropout=dropout, weight_initializer=init
        )
        memory = partial(
            MemoryAttention,
            units,
            heads,
            head_dim=head_dim,
            causal=False,
            scale=1.0,
            dropout=dropout,
            in_units=units,
            weight_initializer=init,
        )
        mlp = partial(
            partial(GatedMLP, in_units=units) if gated else MLP,
            units,
            hidden,
            activation,
            False,
            dropout=dropout,
            weight_initializer=init,
        )
        norm = partial(RMSNorm, epsilon=epsilon, in_channels=units)

        def stack(count, decoder, prefix):
            layer = partial(T5Layer, units, attention, memory, norm, mlp, decoder, dropout)
            bias = partial(RelativeBias, heads, not decoder, buckets, most, init)
            return T5Stack(count, layer, bias, norm, dropout, prefix=prefix)

        with self.name_scope():
            self.embed: Embedding = Embedding(
                vocab, units, weight_initializer=init, prefix="embed_"
            )
            self.encoder: T5Stack = stack(layers, False, "encoder_")
            self.decoder: T5Stack = stack(decoder_layers or layers, True, "decoder_")
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
        tokens: Array | None,
        decoder_tokens: Array,
        mask: Array | None = None,
        lengths: Array | None = None,
        last: Array | None = None,
        cache: Sequence[Sequence[Array]] | None = None,
    ) -> Array:
        """With a `cache` of `make_cache`, whose first `lengths` (batch,) rows are in use, the
        decoder's tokens follow these rows, and their keys and values are added to the cache. The
        encoder is not computed, so `tokens` is None. With `last` (batch,), the result is the scores
        (batch, 1, vocab) of this row of the decoder's tokens."""
        if cache is None:
            if lengths is not None:
                raise MXNetValueError(
                    f"T5: lengths, the fourth input, need a cache, got {shown(lengths)}; "
                    "call net(tokens, decoder_tokens, mask) with the mask of the encoder's tokens"
                )
            check_tokens("T5", tokens)
            check_tokens("T5", decoder_tokens, "decoder_tokens")
            memory = self.encoder(self.embed(tokens), None, mask)
            x = self.decoder(self.embed(decoder_tokens), memory, mask)
        else:
            x = self.decoder.advance(F, self.embed(decoder_tokens), lengths, cache)
        if last is not None:
            x = row_of(F, x, last)
        return self.head(x if self._head_scale == 1 else x * self._head_scale)

    def step(
        self, tokens: Array, lengths: Array, last: Array | None, cache: Sequence[Sequence[Array]]
    ) -> Array:
        """Adds tokens of the decoder to a cache, with the arguments of a `Decoder`."""
        return self(None, tokens, None, lengths, last, cache)

    def make_cache(
        self, batch: int, length: int, memory_length: int, shared: int = 1
    ) -> list[list[NDArray]]:
        """Returns the empty cache of the decoder.

        Each layer of the decoder has six arrays on its device: its keys and values (batch, length,
        heads, head_dim), the keys and values (batch, memory_length, heads, head_dim) and the
        lengths (batch,) of the encoder's results, and the bias (length, heads) of distances.
        ``net.decoder.layers[i].memory.keys_and_values`` computes keys and values of the encoder's
        results.

        Parameters
        ----------
        batch, length : int
            Number of sequences, and the largest number of the decoder's tokens of each.
        memory_length : int
            Largest number of the encoder's tokens.
        shared : int, default 1
            Number of consecutive sequences that share the result of the encoder.

        Returns
        -------
        list of list of NDArray

        Examples
        --------
        >>> net = gluon.model_zoo.text.T5(
        ...     32, units=16, heads=4, head_dim=4, hidden=24, layers=1)
        >>> net.initialize()
        >>> [array.shape for array in net.make_cache(1, 8, 5)[0]]
        [(1, 8, 4, 4), (1, 8, 4, 4), (1, 5, 4, 4), (1, 5, 4, 4), (1,), (8, 4)]
        """
        bias, found = self.decoder.bias.table(length), []
        for i, layer in enumerate(self.decoder.layers):
            name = f"decoder.layers.{i}"
            for attention in (layer.attention, layer.memory):
                if not isinstance(attention, (RelativeAttention, MemoryAttention)):
                    raise MXNetTypeError(
                        f"make_cache: the attention of {name} is split over devices; {_WHOLE}"
                    )
                check_placement(name, layer, attention)
            own = layer.attention.make_cache(batch, length)
            ctx, dtype = own[0].context, own[0].dtype
            memory = layer.memory.make_cache(batch // shared, memory_length)
            known = make.zeros((batch // shared,), ctx=ctx, dtype="int32")
            found.append([*own, *memory, known, bias.as_in_context(ctx).astype(dtype)])
        return found


def create(config: Config, kind: str) -> tuple[HybridBlock, list[Entry]]:
    """Creates T5 from a config."""
    config.ignore(
        "n_positions",
        "output_past",
        "dense_act_fn",
        "is_gated_act",
        "is_decoder",
        "classifier_dropout",
    )
    names = config.get("architectures", ["T5ForConditionalGeneration"])
    if names not in (["T5ForConditionalGeneration"], ["T5WithLMHeadModel"]):
        raise config.error(
            "architectures", "is not supported; it must be T5ForConditionalGeneration"
        )
    feed = config.get("feed_forward_proj", "relu")
    gated = isinstance(feed, str) and feed.startswith("gated-")
    activation = feed.removeprefix("gated-") if isinstance(feed, str) else feed
    if activation == "gelu" and gated:
        activation = "gelu_new"  # as in the files of T5 1.1
    names_of = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu"}
    if activation not in names_of:
        raise config.error("feed_forward_proj", f"is not supported; it may be {list(names_of)}")
    units = config.size("d_model", 512)
    tied = config.flag("tie_word_embeddings", True)
    scaled = config.flag("scale_decoder_outputs", tied)
    layers = config.size("num_layers", 6, MOST_LAYERS)
    ends = config.get("eos_token_id", 1)
    net = T5(
        vocab=config.size("vocab_size", 32128),
        units=units,
        heads=config.size("num_heads", 8),
        head_dim=config.size("d_kv", 64),
        hidden=config.size("d_ff", 2048),
        layers=layers,
        decoder_layers=config.size("num_decoder_layers", layers, MOST_LAYERS),
        activation=names_of[activation],
        gated=gated,
        buckets=config.size("relative_attention_num_buckets", 32),
        most=config.size("relative_attention_max_distance", 128, 1 << 20),
        tied=tied,
        head_scale=units**-0.5 if scaled else 1.0,
        epsilon=config.number("layer_norm_epsilon", 1e-6),
        dropout=config.number("dropout_rate", 0.1),
        start_token=config.get("decoder_start_token_id", config.get("pad_token_id", 0)),
        end_tokens=ends if isinstance(ends, list) else [ends],
    )
    config.finish()
    return net, _names(gated)


def _names(gated: bool) -> list[Entry]:
    up = "wi_1" if gated else "wi"
    block = r"(encoder|decoder)\.block\.(\d+)\.layer\."
    own = r"\1.layers.\2."
    found: list[Entry] = [
        Drop(r"(encoder|decoder)\.embed_tokens\.weight"),  # the same as shared.weight
        Drop(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"),
        Rename(r"shared\.weight", "embed.weight"),
        Rename(r"lm_head\.weight", "head.weight"),
        Rename(
            r"(encoder|decoder)\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight",
            r"\1.bias.buckets.weight",
        ),
        Rename(r"(encoder|decoder)\.final_layer_norm\.weight", r"\1.norm.gamma"),
    ]
    for file, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "proj")):
        found += [
            Rename(block + rf"0\.SelfAttention\.{file}\.weight", f"{own}attention.{name}.weight"),
            Rename(block + rf"1\.EncDecAttention\.{file}\.weight", f"{own}memory.{name}.weight"),
        ]
    found.append(Rename(block + r"0\.layer_norm\.weight", f"{own}attention_norm.gamma"))
    for part, number in (("encoder", 1), ("decoder", 2)):
        layer = rf"({part})\.block\.(\d+)\.layer\.{number}\."
        found += [
            Rename(layer + r"layer_norm\.weight", f"{own}mlp_norm.gamma"),
            Rename(layer + r"DenseReluDense\.wi_0\.weight", f"{own}mlp.gate.weight"),
            Rename(layer + rf"DenseReluDense\.{up}\.weight", f"{own}mlp.up.weight"),
            Rename(layer + r"DenseReluDense\.wo\.weight", f"{own}mlp.down.weight"),
        ]
    found.append(
        Rename(r"(decoder)\.block\.(\d+)\.layer\.1\.layer_norm\.weight", f"{own}memory_norm.gamma")
    )
    return found
