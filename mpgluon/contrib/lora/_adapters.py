"""The low-rank additions of one layer, and their computation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import autograd, ndarray as nd
from ..._core import dtype_name
from ...gluon import nn
from ...gluon._tree import own_parameters
from ...parallel import VocabParallelEmbedding, collectives
from ...parallel._tensor_parallel.layers import SplitLayer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...gluon.block import Block
    from ...gluon.parameter import Parameter


class Options(NamedTuple):
    """The options of one adapter in one layer."""

    rank: int
    alpha: float
    dropout: float
    dora: bool
    rslora: bool
    dtype: str

    @property
    def scale(self) -> float:
        """The factor of the product of B and A."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


class Adapters:
    """The adapters of a layer, by name. An object does not change: traces depend on its identity.

    Parameters
    ----------
    options : dict of str to Options
    active : tuple of str
        The names of the adapters that take part in the forward pass.
    kept : dict of Parameter to NDArray, optional
        If adapters are merged, the values of the layer's parameters before, in host memory. The
        forward pass then adds nothing.
    """

    def __init__(
        self,
        options: dict[str, Options],
        active: Iterable[str],
        kept: dict[Parameter, nd.NDArray] | None = None,
    ) -> None:
        self.options, self.kept = options, kept
        self.active = tuple(name for name in active if name in options)
        self._running = self.active if kept is None else ()

    @property
    def needs_weight(self) -> bool:
        """True if the forward pass needs the weight of the layer, not only its product."""
        return any(self.options[name].dora for name in self._running)

    def dense(self, F, layer, x, out, weight, bias, params, flatten):
        """Returns a Dense's product `out` with the additions of the active adapters. `weight` may
        be None if it is not needed."""
        have = base = dtype_of(layer)
        units = shape_of(layer)[0]
        for name in self._running:
            option, a, b = self.options[name], params[f"lora_A_{name}"], params[f"lora_B_{name}"]
            wide = _dtype(layer, name)
            out, have = _cast(F, out, have, wide), wide
            y = _dropped(F, _cast(F, x, base, wide), option)
            change = _product(F, _low(F, y, a, option, flatten), b, units, flatten)
            if option.dora:
                whole, shift = _cast(F, weight, base, wide), None
                if bias is not None:
                    shift = _cast(F, bias, base, wide)
                if option.dropout and autograd.is_training():
                    linear = _product(F, y, whole, units, flatten)
                else:
                    linear = out if shift is None else F.broadcast_sub(out, shift)
                ratio = _ratio(F, whole, a, b, params[f"lora_magnitude_{name}"], option)
                change = F.broadcast_mul(linear, ratio - 1) + F.broadcast_mul(change, ratio)
            out = out + change
        return _cast(F, out, have, base)

    def embedding(self, F, layer, x, out, params):
        """Returns an Embedding's vectors `out` with the additions of the active adapters."""
        have = base = dtype_name(layer.weight.dtype)
        rows, size = layer.weight.shape
        for name in self._running:
            option, a, b = self.options[name], params[f"lora_A_{name}"], params[f"lora_B_{name}"]
            wide = _dtype(layer, name)
            out, have = _cast(F, out, have, wide), wide
            low = F.Embedding(x, a, input_dim=rows, output_dim=option.rank, dtype=wide)
            out = out + F.FullyConnected(
                low * option.scale, b, num_hidden=size, no_bias=True, flatten=False
            )
        return _cast(F, out, have, base)

    def columns(self, F, layer, inputs, outs, params, flatten):
        """Returns the products `outs` of a layer that is split by its units. A is on the first
        device, B is split like the weight."""
        base, devices = dtype_name(layer.shard0_weight.dtype), [x.context for x in inputs]
        for name in self._running:
            option, wide = self.options[name], _dtype(layer, name)
            a = params[f"lora_A_{name}"]
            y = _dropped(F, _cast(F, inputs[0], base, wide), option)
            low = collectives.broadcast(_low(F, y, a, option, flatten), devices)
            parts = []
            for i, (h, out) in enumerate(zip(low, outs)):
                b = params[f"shard{i}_lora_B_{name}"]
                change = _product(F, h, b, b.shape[0], flatten)
                parts.append(_cast(F, _cast(F, out, base, wide) + change, wide, base))
            outs = parts
        return outs

    def rows(self, F, layer, inputs, outs, params, flatten):
        """Returns the products `outs` of a layer that is split by its inputs, before they are
        summed. A is split like the weight. B is on the first device, whose product contains the
        whole addition."""
        base = dtype_name(layer.shard0_weight.dtype)
        for name in self._running:
            option, b = self.options[name], params[f"lora_B_{name}"]
            wide = _dtype(layer, name)
            low = [
                _low(
                    F,
                    _dropped(F, _cast(F, x, base, wide), option),
                    params[f"shard{i}_lora_A_{name}"],
                    option,
                    flatten,
                )
                for i, x in enumerate(inputs)
            ]
            change = _product(F, collectives.reduce(low), b, b.shape[0], flatten)
            first = _cast(F, _cast(F, outs[0], base, wide) + change, wide, base)
            outs = [first, *outs[1:]]
        return outs

    def vocabulary(self, F, layer, lookups, outs, params):
        """Returns the vectors `outs` of an embedding that is split by its rows, before they are
        summed. A is split like the weight. `lookups` has the rows of each device, and whether they
        are those of the indices."""
        base = dtype_name(layer.shard0_weight.dtype)
        for name in self._running:
            option, b = self.options[name], params[f"lora_B_{name}"]
            wide, low = _dtype(layer, name), []
            for i, (indices, here) in enumerate(lookups):
                a = params[f"shard{i}_lora_A_{name}"]
                rows = F.Embedding(
                    indices, a, input_dim=a.shape[0], output_dim=option.rank, dtype=wide
                )
                low.append(F.where(F.broadcast_like(here, rows), rows, F.zeros_like(rows)))
            total = collectives.reduce(low) * option.scale
            change = _product(F, total, b, b.shape[0], False)
            first = _cast(F, _cast(F, outs[0], base, wide) + change, wide, base)
            outs = [first, *outs[1:]]
        return outs


def weight_of(layer: Block) -> Parameter:
    """Returns the layer's weight, or the first of its parts."""
    if isinstance(layer, SplitLayer):
        return layer.shard0_weight
    return layer.packed if isinstance(layer, nn.QuantizedDense) else layer.weight


def family_of(layer: SplitLayer) -> Any:
    """Returns the division of a split layer's weight."""
    return layer._weight


def shape_of(layer: Block) -> tuple[int, ...]:
    """Returns the shape of the layer's weight, of all parts if it is split."""
    if isinstance(layer, SplitLayer):
        return family_of(layer).shape
    if isinstance(layer, nn.QuantizedDense):
        return layer.units, layer.in_units
    return layer.weight.shape


def dtype_of(layer: Block) -> str:
    """Returns the dtype of the layer's product."""
    if isinstance(layer, nn.QuantizedDense):
        return layer.dtype
    return dtype_name(weight_of(layer).dtype)


def is_embedding(layer: Block) -> bool:
    """True if the layer looks up rows, so A has a row for each index."""
    return isinstance(layer, (nn.Embedding, VocabParallelEmbedding))


def _dtype(layer, name):
    """Returns the dtype of A and B, which `cast` may have changed."""
    own = own_parameters(layer)
    whole = own.get(f"lora_A_{name}")
    return dtype_name((own[f"shard0_lora_A_{name}"] if whole is None else whole).dtype)


def _cast(F, x, have, want):
    return x if have == want else F.cast(x, dtype=want)


def _dropped(F, x, option):
    return F.Dropout(x, p=option.dropout) if option.dropout else x


def _low(F, x, a, option, flatten):
    """Returns the scaled product with A. Scaling the few numbers of a row is cheapest here."""
    return _product(F, x, a, option.rank, flatten) * option.scale


def _product(F, x, weight, units, flatten):
    return F.FullyConnected(x, weight, num_hidden=units, no_bias=True, flatten=flatten)


def _ratio(F, weight, a, b, magnitude, option):
    """Returns DoRA's magnitudes divided by the norms of the adapted weight's rows. No gradient
    flows through the norms, as the paper suggests."""
    whole = F.BlockGrad(weight + F.dot(b, a) * option.scale)
    return magnitude / F.sqrt(F.sum(F.square(whole), axis=1))


def row_norms(weight: nd.NDArray) -> nd.NDArray:
    """Returns the Euclidean norm of each row, DoRA's initial magnitudes."""
    return nd.sqrt(nd.sum(nd.square(weight), axis=1))


def parts_of(layer: Block, name: str) -> dict[str, Parameter]:
    """Returns the parameters of an adapter by their attribute names in the layer."""
    own, found = own_parameters(layer), {}
    for key, param in own.items():
        plain = key.partition("_")[2] if key.startswith("shard") else key
        if plain in (f"lora_A_{name}", f"lora_B_{name}", f"lora_magnitude_{name}"):
            found[key] = param
    return found


def merged_values(layer: Block, adapters: Adapters) -> dict[Parameter, nd.NDArray]:
    """Returns the values of the layer's weight, or of its parts, with the active adapters added.
    They are computed in float32 at least, and rounded once. The value for the packed weight of a
    QuantizedDense is its dequantized weight."""
    own, values = own_parameters(layer), {}
    for key, param in own.items():
        if key not in ("weight", "packed") and not (
            key.startswith("shard") and key.endswith("_weight")
        ):
            continue
        index = getattr(param, "index", None)
        value = layer.dequantized("float32") if key == "packed" else param.reduced()
        for name in adapters.active:
            option = adapters.options[name]

            def factor(letter, name=name, index=index, ctx=value.context):
                split = own.get(f"shard{index}_lora_{letter}_{name}")
                whole = own[f"lora_{letter}_{name}"] if split is None else split
                return whole.reduced().as_in_context(ctx).astype(wide)

            wide = "float64" if dtype_name(value.dtype) == "float64" else "float32"
            value = value.astype(wide)
            if is_embedding(layer):
                value = value + nd.dot(factor("A"), factor("B"), transpose_b=True) * option.scale
                continue
            value = value + nd.dot(factor("B"), factor("A")) * option.scale
            if option.dora:
                magnitude = own[f"lora_magnitude_{name}"].reduced().astype(wide)
                value = value * (magnitude / row_norms(value)).reshape((-1, 1))
        values[param] = value
    return values
