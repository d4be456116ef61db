"""Layers and helpers of the networks for text that other networks don't need."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._core import dtype_name
from ...._internal.hints import NETWORK, absent
from ....base import MXNetValueError
from ...block import HybridBlock
from ...nn import Dense, Dropout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Never

    from ...._internal.types import Array, DType, Init

MASKING = (
    "padding at the end needs no mask, because no token sees a later one: mask the loss instead; "
    "for packed documents or padding at the beginning, call "
    "net(tokens, None, None, None, segments, positions)"
)
_HALVES = ("float16", "bfloat16")


def _op(name: str, F: Any, x: Array, **options: Any) -> Array:
    return getattr(F, name)(x, **options)


def _gelu_quick(F: Any, x: Array) -> Array:
    return x * F.sigmoid(1.702 * x)


# Functions of (F, x) that can be pickled with a network
ACTIVATIONS: dict[str, Callable[[Any, Array], Array]] = {
    **{name: partial(_op, name) for name in ("silu", "gelu", "relu", "tanh")},
    "gelu_tanh": partial(_op, "gelu", approximate="tanh"),
    "gelu_quick": _gelu_quick,
}


def shown(value: Any) -> str:
    """Describes an input in an error: the shape of an array, or the type of another object."""
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"the shape {tuple(shape)}"


def check_tokens(kind: str, tokens: Any, name: str = "tokens") -> None:
    """Checks the shape of tokens, except of Symbols, which have none."""
    shape = getattr(tokens, "shape", None)
    if shape is None or len(shape) == 2 and 0 not in shape:
        return
    if len(shape) == 1:
        advice = f"; {name}.expand_dims(0) is a batch of one sequence"
    else:
        advice = ", with at least one token" if len(shape) == 2 else ""
    raise MXNetValueError(f"{kind}: {name} must be (batch, time), not {shown(tokens)}{advice}")


def wide(F: Any, x: Array) -> Array:
    """Casts half precision to float32."""
    return F.cast(x, "float32") if dtype_name(x.dtype) in _HALVES else x


def like(F: Any, x: Array, other: Array) -> Array:
    """Casts `x` to the dtype of `other`."""
    return x if x.dtype == other.dtype else F.cast(x, dtype_name(other.dtype))


def count_along(F: Any, x: Array, axis: int) -> Array:
    """Returns 0, 1, ... in float32: the positions along an axis of `x` other than the batch."""
    for other in range(1, len(x.shape)):
        if other != axis:
            x = F.slice_axis(x, axis=other, begin=0, end=1)
    return F.contrib.arange_like(F.cast(x, "float32"), axis=axis)


def row_of(F: Any, x: Array, last: Array) -> Array:
    """Returns the row `last` (batch,) of each sequence of x (batch, time, units)."""
    places = F.expand_dims(F.cast(last, "float32").as_in_context(x.context), axis=1)
    steps = F.expand_dims(count_along(F, x, 1), axis=0)
    chosen = like(F, F.broadcast_equal(places, steps), x)
    return F.batch_dot(F.expand_dims(chosen, axis=1), x)


def seen_keys(F: Any, mask: Array | None) -> Array | None:
    """Returns a mask (batch, keys) with 0 for keys that are not seen as the mask of
    `F.contrib.attention`."""
    if mask is None:
        return None
    return F.expand_dims(F.expand_dims(F.cast(mask, "bool"), axis=1), axis=1)


class TextNetwork(HybridBlock):
    """Base of the networks for text, with errors for arguments and attributes of transformers."""

    _usage = "net(tokens)"
    _masking = f"; {MASKING}"

    if not TYPE_CHECKING:  # type checkers would accept any keyword

        def __call__(self, *args, **named):
            """Calls the network on arrays, see `hybrid_forward`."""
            if named:
                raise self._without_names(named)
            return super().__call__(*args)

    def _without_names(self, named):
        text = (
            f"{type(self).__name__}: inputs have no names, got {', '.join(named)}; "
            f"call {self._usage}"
        )
        if "attention_mask" in named:
            text += self._masking
        if "labels" in named:
            text += "; compute the loss: mx.gluon.loss.SoftmaxCrossEntropyLoss()(scores, labels), "
            text += "whose labels are the next tokens of a language model"
        return TypeError(text)


absent(TextNetwork, NETWORK)


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

    def __init__(
        self,
        units: int,
        hidden: int,
        activation: str = "gelu",
        use_bias: bool = True,
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
        with self.name_scope():
            self.up: Dense = Dense(hidden, in_units=units, prefix="up_", **options)
            self.down: Dense = Dense(units, in_units=hidden, prefix="down_", **options)
            self.dropout: Dropout | None = Dropout(dropout) if dropout else None

    def hybrid_forward(self, F: Any, x: Array) -> Array:
        hidden = self._activation(F, self.up(x))
        return self.down(hidden if self.dropout is None else self.dropout(hidden))


class PlainNorm(HybridBlock):
    """LayerNorm without parameters, over the last axis, in float32 at least."""

    def __init__(self, epsilon: float = 1e-5, **kwargs: Never) -> None:
        super().__init__(**kwargs)
        self._epsilon = epsilon

    def hybrid_forward(self, F: Any, x: Array) -> Array:
        y = wide(F, x)
        y = F.broadcast_sub(y, F.mean(y, axis=-1, keepdims=True))
        variance = F.mean(F.square(y), axis=-1, keepdims=True)
        return like(F, F.broadcast_mul(y, F.rsqrt(variance + self._epsilon)), x)


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
