"""`Encoder`: transformers that see their whole input, for BERT, RoBERTa, ViT and CLIP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import initializer
from ...block import HybridBlock
from ...nn import Conv2D, Dense, Dropout, Embedding, HybridSequential, LayerNorm, MultiHeadAttention
from ._layers import ACTIVATIONS, MLP, TextNetwork, check_tokens, count_along, seen_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Never

    from ...._internal.types import Array, Init
    from ...parameter import Parameter

__all__ = ["CLIP", "Encoder", "EncoderLayer"]


class TokenEmbedding(HybridBlock):
    """The sum of embeddings of tokens, positions and types, optionally normalized: children
    `tokens`, `positions`, `types` and `norm`.

    Parameters
    ----------
    vocab, length, units : int
        Number of tokens and of positions, and size of the result.
    types : int, default 0
        Number of types of tokens; 0 for none.
    norm : bool, default False
        Whether to normalize the sum.
    padding : int, optional
        Token that has no position. The others are counted from ``padding + 1``, as in RoBERTa.
    """

    def __init__(
        self,
        vocab: int,
        length: int,
        units: int,
        types: int = 0,
        norm: bool = False,
        epsilon: float = 1e-5,
        padding: int | None = None,
        dropout: float = 0.0,
        weight_initializer: Init | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self._length, self._padding = length, padding

        def table(name, rows):
            return Embedding(rows, units, weight_initializer=weight_initializer, prefix=f"{name}_")

        with self.name_scope():
            self.tokens: Embedding = table("tokens", vocab)
            self.positions: Embedding = table("positions", length)
            self.types: Embedding | None = table("types", types) if types else None
            self.norm: LayerNorm | None = (
                LayerNorm(epsilon=epsilon, in_channels=units, prefix="norm_") if norm else None
            )
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(self, F: Any, tokens: Array, types: Array | None = None) -> Array:
        check_tokens("Encoder", tokens)
        length = tokens.shape[1] + (0 if self._padding is None else self._padding + 1)
        if length > self._length:
            raise ValueError(
                f"Encoder: {tokens.shape[1]} tokens need {length} positions, but there are only "
                f"{self._length}"
            )
        if self._padding is None:
            places = F.expand_dims(self.positions(count_along(F, tokens, 1)), axis=0)
        else:
            known = F.cast(tokens, "float32") != self._padding
            places = self.positions(F.cumsum(known, axis=1) * known + self._padding)
        x = F.broadcast_add(self.tokens(tokens), places)
        if self.types is not None:
            types = F.zeros_like(F.cast(tokens, "float32")) if types is None else types
            x = x + self.types(types)
        if self.norm is not None:
            x = self.norm(x)
        return x if self.dropout is None else self.dropout(x)


class PatchEmbedding(HybridBlock):
    """Embeds images (batch, channels, height, width) as a class token and patches, with positions:
    child `patches`, parameters `token` and `positions`.

    Parameters
    ----------
    units : int
        Size of the result.
    image, patch : int
        Height and width of images and of patches.
    channels : int, default 3
        Number of channels.
    use_bias : bool, default True
        Whether the product of patches has a bias.
    norm : bool, default False
        Whether to normalize the result.
    """

    def __init__(
        self,
        units: int,
        image: int,
        patch: int,
        channels: int = 3,
        use_bias: bool = True,
        norm: bool = False,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        weight_initializer: Init | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self._image = (channels, image, image)
        with self.name_scope():
            self.patches: Conv2D = Conv2D(
                units,
                patch,
                patch,
                in_channels=channels,
                use_bias=use_bias,
                weight_initializer=weight_initializer,
                prefix="patches_",
            )
            self.token: Parameter = self.params.get(
                "token", shape=(units,), init=weight_initializer
            )
            self.positions: Parameter = self.params.get(
                "positions", shape=((image // patch) ** 2 + 1, units), init=weight_initializer
            )
            self.norm: LayerNorm | None = (
                LayerNorm(epsilon=epsilon, in_channels=units, prefix="norm_") if norm else None
            )
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(self, F: Any, images: Array, token: Array, positions: Array) -> Array:
        if tuple(images.shape[1:]) != self._image:
            raise ValueError(
                f"Encoder: images of shape {images.shape} must have shape (batch, "
                f"{', '.join(map(str, self._image))})"
            )
        patches = F.transpose(F.reshape(self.patches(images), (0, 0, -1)), (0, 2, 1))
        first = F.zeros_like(F.slice_axis(patches, axis=1, begin=0, end=1))
        first = F.broadcast_add(first, F.reshape(token, (1, 1, -1)))
        x = F.broadcast_add(F.concat(first, patches, dim=1), F.expand_dims(positions, axis=0))
        if self.norm is not None:
            x = self.norm(x)
        return x if self.dropout is None else self.dropout(x)


class EncoderLayer(HybridBlock):
    """Attention and a feed-forward network, each added to its input.

    The children are `attention_norm`, `attention`, `mlp_norm` and `mlp`.

    Parameters
    ----------
    units, heads, hidden : int
        Sizes of the layer, of its attention and of its feed-forward network.
    norm_first : bool, default True
        Whether the inputs of attention and network are normalized, or the sums.
    causal : bool, default False
        Whether a row sees only itself and earlier rows.
    activation : str, default 'gelu'
        Activation of the feed-forward network.
    use_bias : bool, default True
        Whether the products for queries, keys and values have a bias.
    epsilon : float, default 1e-5
        Added to variances in norms.
    attention_dropout, dropout : float, default 0
        Rates for attention weights, and for results that are added.
    weight_initializer : Initializer, optional
        Initializer of all weights.
    """

    def __init__(
        self,
        units: int,
        heads: int,
        hidden: int,
        activation: str = "gelu",
        norm_first: bool = True,
        causal: bool = False,
        use_bias: bool = True,
        epsilon: float = 1e-5,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
        weight_initializer: Init | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self._norm_first = norm_first
        bias = {"query": use_bias, "key": use_bias, "value": use_bias, "proj": True}
        with self.name_scope():
            self.attention_norm: LayerNorm = LayerNorm(
                epsilon=epsilon, in_channels=units, prefix="attention_norm_"
            )
            self.attention: MultiHeadAttention = MultiHeadAttention(
                units,
                heads,
                use_bias=bias,
                causal=causal,
                dropout=attention_dropout,
                in_units=units,
                weight_initializer=weight_initializer,
                prefix="attention_",
            )
            self.mlp_norm: LayerNorm = LayerNorm(
                epsilon=epsilon, in_channels=units, prefix="mlp_norm_"
            )
            self.mlp: MLP = MLP(
                units, hidden, activation, weight_initializer=weight_initializer, prefix="mlp_"
            )
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(self, F: Any, x: Array, mask: Array | None = None) -> Array:
        """`mask` (batch, time) is 0 for keys that are not seen."""
        mask = seen_keys(F, mask)
        if self._norm_first:
            x = x + self._dropped(self.attention(self.attention_norm(x), None, None, mask))
            return x + self._dropped(self.mlp(self.mlp_norm(x)))
        x = self.attention_norm(x + self._dropped(self.attention(x, None, None, mask)))
        return self.mlp_norm(x + self._dropped(self.mlp(x)))

    def _dropped(self, x):
        return x if self.dropout is None else self.dropout(x)


# --- Heads ----------------------------------------------------------------------------------------


def _first(F, x):
    """Returns the row of the first token."""
    return F.reshape(F.slice_axis(x, axis=1, begin=0, end=1), (0, -1))


class ClassHead(HybridBlock):
    """Scores of classes: for the first token, optionally after a product with an activation
    (children `pooler` and `scores`), or for each token.

    Parameters
    ----------
    units, classes : int
        Size of a token and number of classes. If `classes` is 0, the result is the pooled token.
    pooled : bool, default False
        Whether the first token is multiplied by the pooler.
    each : bool, default False
        Whether each token gets scores.
    """

    def __init__(
        self,
        units: int,
        classes: int,
        pooled: bool = False,
        each: bool = False,
        activation: str = "tanh",
        dropout: float = 0.0,
        before: bool = False,
        pooled_units: int | None = None,
        weight_initializer: Init | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self._each, self._before, self._activation = each, before, ACTIVATIONS[activation]
        options = {"flatten": False, "weight_initializer": weight_initializer}
        pooled_units = pooled_units or units
        with self.name_scope():
            self.pooler: Dense | None = (
                Dense(pooled_units, in_units=units, prefix="pooler_", **options) if pooled else None
            )
            self.scores: Dense | None = (
                Dense(classes, in_units=pooled_units, prefix="scores_", **options)
                if classes
                else None
            )
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(self, F: Any, x: Array) -> Array:
        y = x if self._each else _first(F, x)
        if self._before and self.dropout is not None:
            y = self.dropout(y)
        if self.pooler is not None:
            y = self._activation(F, self.pooler(y))
        if self.scores is None:
            return y
        return self.scores(y if self.dropout is None else self.dropout(y))


class TokenHead(HybridBlock):
    """Scores of masked tokens: children `dense`, `norm` and `scores`, which shares the weight of
    the embedding."""

    def __init__(
        self,
        units: int,
        vocab: int,
        activation: str,
        epsilon: float,
        shared: Any = None,
        weight_initializer: Init | None = None,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        self._activation = ACTIVATIONS[activation]
        options = {"flatten": False, "weight_initializer": weight_initializer}
        with self.name_scope():
            self.dense: Dense = Dense(units, in_units=units, prefix="dense_", **options)
            self.norm: LayerNorm = LayerNorm(epsilon=epsilon, in_channels=units, prefix="norm_")
            self.scores: Dense = Dense(
                vocab, in_units=units, use_bias=False, prefix="scores_", params=shared, **options
            )
            self.bias: Parameter = self.params.get("bias", shape=(vocab,), init="zeros")

    def hybrid_forward(self, F: Any, x: Array, bias: Array) -> Array:
        x = self.scores(self.norm(self._activation(F, self.dense(x))))
        return F.broadcast_add(x, F.reshape(bias, (1, 1, -1)))


class Encoder(TextNetwork):
    """A transformer for text or images: children `embed`, `layers`, `norm` and `head`.

    `from_config` creates the networks of BERT, RoBERTa, ViT and CLIP. Text networks are called with
    tokens (batch, time), optionally types of the tokens, and a mask (batch, time) with 0 for
    padding. Image networks are called with images (batch, channels, height, width).

    Parameters
    ----------
    units, layers, heads, hidden : int
        Size of the values between layers, number of layers and heads, and size of the hidden values
        of the feed-forward networks.
    embed : dict
        Options of the embedding: `vocab` and `length`, and optionally `types`, `norm` and
        `padding`; or `image` and `patch`, and optionally `channels`, `use_bias` and `norm`.
    head : dict, optional
        Options of the head: `classes` for scores of the first token, optionally with `pooled`, or
        of `each` token; `vocab` for scores of masked tokens; `project` for the token at which the
        text ends (the first occurrence of token `end`; the largest token if `end` is None), or the
        first token of an image, normalized and projected. By default, the result is all tokens.
    final_norm : bool, default True
        Whether the result of the layers is normalized.
    activation, norm_first, causal, use_bias, epsilon
        See `EncoderLayer`.
    attention_dropout, dropout : float, default 0
        Rates for attention weights, and for the embedding and the results that are added.
    deviation : float, default 0.02
        Standard deviation of initial weights.

    Examples
    --------
    >>> net = gluon.model_zoo.text.Encoder(
    ...     units=16, layers=2, heads=4, hidden=24, embed={"image": 8, "patch": 4},
    ...     head={"classes": 10})
    >>> net.initialize()
    >>> net(nd.zeros((2, 3, 8, 8))).shape
    (2, 10)
    """

    _usage = "net(tokens, types, mask), whose types and mask are optional, or net(images)"
    _masking = ""

    def __init__(
        self,
        units: int,
        layers: int,
        heads: int,
        hidden: int,
        embed: Mapping[str, Any],
        head: Mapping[str, Any] | None = None,
        final_norm: bool = True,
        activation: str = "gelu",
        norm_first: bool = True,
        causal: bool = False,
        use_bias: bool = True,
        epsilon: float = 1e-5,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
        deviation: float = 0.02,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        init = initializer.Normal(deviation)
        self._is_text = "vocab" in embed
        self._head = dict(head or {})
        options = {
            "units": units,
            "epsilon": epsilon,
            "dropout": dropout,
            "weight_initializer": init,
        }
        with self.name_scope():
            kind = TokenEmbedding if self._is_text else PatchEmbedding
            self.embed: PatchEmbedding | TokenEmbedding = kind(**options, **embed, prefix="embed_")
            self.layers: HybridSequential = HybridSequential(prefix="layers_")
            with self.layers.name_scope():
                for i in range(layers):
                    self.layers.add(
                        EncoderLayer(
                            heads=heads,
                            hidden=hidden,
                            activation=activation,
                            norm_first=norm_first,
                            causal=causal,
                            use_bias=use_bias,
                            attention_dropout=attention_dropout,
                            prefix=f"{i}_",
                            **options,
                        )
                    )
            self.norm: LayerNorm | None = (
                LayerNorm(epsilon=epsilon, in_channels=units, prefix="norm_")
                if final_norm
                else None
            )
            self.head: TokenHead | Dense | ClassHead | None = self._new_head(
                units, activation, epsilon, dropout, init
            )

    def _new_head(self, units, activation, epsilon, dropout, init):
        head = self._head
        if "vocab" in head:
            shared = self.embed.tokens.params if head["tied"] else None
            return TokenHead(
                units, head["vocab"], activation, epsilon, shared, init, prefix="head_"
            )
        if "project" in head:
            return Dense(
                head["project"],
                in_units=units,
                use_bias=False,
                flatten=False,
                weight_initializer=init,
                prefix="head_",
            )
        if head:
            options = {name: value for name, value in head.items() if name != "both"}
            return ClassHead(
                units, dropout=dropout, weight_initializer=init, prefix="head_", **options
            )
        return None

    def hybrid_forward(
        self, F: Any, x: Array, types: Array | None = None, mask: Array | None = None
    ) -> Any:
        """Returns scores, the projected token, or all tokens. With the option `both` of the head,
        returns (all tokens, pooled token)."""
        tokens = x
        x = self.embed(x) if types is None else self.embed(x, types)
        for layer in self.layers:
            x = layer(x) if mask is None else layer(x, mask)
        if "project" in self._head:
            return self.head(self._pooled(F, tokens, x))
        if self.norm is not None:
            x = self.norm(x)
        if self.head is None:
            return x
        return (x, self.head(x)) if self._head.get("both") else self.head(x)

    def _pooled(self, F, tokens, x):
        """Returns the normalized token that represents the input."""
        if not self._is_text:
            return self.norm(_first(F, x))
        tokens, end = F.cast(tokens, "float32"), self._head.get("end")
        at = F.argmax(tokens if end is None else tokens == end, axis=1)
        x = self.norm(x)
        first = F.cast(_first(F, x), "float32")
        at = at.as_in_context(x.context)
        return F.pick(x, F.broadcast_add(F.zeros_like(first), F.expand_dims(at, axis=1)), axis=1)


class CLIP(TextNetwork):
    """Compares texts and images: children `text` and `image`, which are `Encoder` networks.

    Called with tokens (texts, time) and images (images, channels, height, width), it returns the
    similarities (images, texts). ``net.text(tokens)`` and ``net.image(images)`` return their
    projections.

    Parameters
    ----------
    text, image : dict
        Options of the encoders, whose heads have the option `project`.
    logit_scale : float
        Initial logarithm of the factor of the similarities.
    """

    _usage = "net(tokens, images, mask), whose mask is optional"
    _masking = ""

    def __init__(
        self,
        text: Mapping[str, Any],
        image: Mapping[str, Any],
        logit_scale: float = 2.6592,
        **kwargs: Never,
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.text: Encoder = Encoder(**text, prefix="text_")
            self.image: Encoder = Encoder(**image, prefix="image_")
            self.logit_scale: Parameter = self.params.get(
                "logit_scale", shape=(1,), init=initializer.Constant(logit_scale)
            )

    def hybrid_forward(
        self,
        F: Any,
        tokens: Array,
        images: Array,
        mask: Array | None = None,
        logit_scale: Any = None,
    ) -> Array:
        text = self.text(tokens) if mask is None else self.text(tokens, None, mask)
        image = self.image(images)
        text = text.as_in_context(image.context)
        text, image = (
            F.broadcast_div(x, F.sqrt(F.sum(F.square(x), axis=-1, keepdims=True)))
            for x in (text, image)
        )
        products = F.dot(image, text, transpose_b=True)
        scale = F.reshape(F.exp(logit_scale), (1, 1)).as_in_context(products.context)
        return F.broadcast_mul(products, scale)
