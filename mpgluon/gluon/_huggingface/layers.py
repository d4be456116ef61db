"""Layers whose weights stay in few bits: `nn.QuantizedDense` in place of `nn.Dense`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base import MXNetError
from .._packing.weights import check_format, group_of, selected
from .._tree import own_parameters, users_of, walk
from ..nn import Dense, QuantizedDense
from ..nn.quantized_layers import packed_like
from .quantized import LastTensor, rounded
from .values import LazyArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from ..block import Block
    from .values import Ranges

    Arrays = dict[str, LazyArray]


_FIELDS = ("packed", "scales", "zeros", "order")  # parameters that hold the weight


def keep_quantized(net: Block, arrays: Mapping[str, LazyArray]) -> None:
    """Replaces each Dense whose weight is stored in few bits by a QuantizedDense, which keeps the
    stored values.

    A Dense that shares its weight with another layer, and other layers, keep dequantized weights.

    Parameters
    ----------
    net : Block
        A network without values.
    arrays : dict of str to LazyArray
        The arrays by the path of the parameter.
    """
    places = list(walk(net))
    users = users_of(block for *_, block in places)
    for parent, name, path, block in places:
        array = arrays.get(f"{path}.weight")
        if type(block) is not Dense or array is None or users[block.weight] > 1:
            continue
        form = array.quantized()
        if form is not None:
            if form.format == "int8" and "zeros" in form.arrays:
                raise MXNetError(
                    f"'{path}.weight' is stored in 8 bits with zeros, which QuantizedDense cannot "
                    "hold; dequantize it with from_pretrained(..., quantize=False)"
                )
            scales = form.arrays.get("scales")
            layer = packed_like(
                block,
                format=form.format,
                group=form.group,
                use_zeros="zeros" in form.arrays,
                use_order="order" in form.arrays,
                scale_dtype="float32" if scales is None else scales.dtype,
            )
            parent.replace_child(name, layer)


def round_weights(
    net: Block,
    format: str = "int8",
    group: int | None = None,
    layers: Any = None,
    skip: Any = (),
    use_zeros: bool = False,
    **unknown: Any,
) -> None:
    """Replaces Dense layers of a network without values by QuantizedDense layers, to which `load`
    rounds float weights. See `contrib.quantization.quantize_weights` for the options."""
    who = "from_pretrained: quantize"
    if unknown:
        raise TypeError(
            f"{who} has no option {next(iter(unknown))!r}; it takes format, group, layers, skip "
            "and use_zeros, and rounds to nearest. For other methods load float weights, and call "
            "mx.contrib.quantization.quantize_weights"
        )
    check_format(who, format)
    made: dict[int, Block] = {}
    for parent, name, path, layer in selected(who, net, layers, skip):
        if id(layer) not in made:
            own = group_of(who, path, layer.weight.shape[1], format, group)
            made[id(layer)] = packed_like(layer, format=format, group=own, use_zeros=use_zeros)
        parent.replace_child(name, made[id(layer)])


def fitted(net: Block, arrays: Arrays, source: str) -> Arrays:
    """Returns the arrays by parameter. QuantizedDense layers get the arrays of their format instead
    of the weight. Float weights are rounded while they are read.

    Raises MXNetError if a weight is stored in a different form than the layer has.
    """
    found, last = dict(arrays), LastTensor()
    for _, _, path, layer in walk(net):
        array, own = found.get(f"{path}.weight"), own_parameters(layer)
        if array is None:
            continue
        if array.quantized() is not None:
            _drop_zero_bias(found, path, own)
        if not isinstance(layer, QuantizedDense):
            continue
        del found[f"{path}.weight"]
        if array.shape != (layer.units, layer.in_units):
            raise MXNetError(
                f"load_parameters: {source} does not fit: '{path}.weight' has shape {array.shape} "
                f"instead of {(layer.units, layer.in_units)}"
            )
        names = [name for name in _FIELDS if name in own]
        form = array.quantized()
        if form is None:
            fields = {name: (own[name].shape, str(own[name].dtype)) for name in names}
            given = rounded(last, path, array, layer.format, layer.group, fields)
        elif (form.format, form.group) != (layer.format, layer.group) or set(names) != set(
            form.arrays
        ):
            raise MXNetError(
                f"load_parameters: {source} does not fit: '{path}.weight' is stored as "
                f"{_described(form.format, form.group, form.arrays)}, and the layer has "
                f"{_described(layer.format, layer.group, names)}; create the network with "
                "from_config of the same path"
            )
        else:
            given = form.arrays
        found.update({f"{path}.{name}": value for name, value in given.items()})
    return found


class _Dequantized(LazyArray):
    """The weight of a QuantizedDense, in the dtype of the layer."""

    def __init__(self, layer: QuantizedDense) -> None:
        self._layer = layer
        self.shape, self.dtype = (layer.units, layer.in_units), layer.dtype

    def read(self, ranges: Ranges) -> np.ndarray:
        rows, columns = (slice(begin, end) for begin, end in ranges)
        return self._layer.dequantized().asnumpy()[rows, columns]


def unpacked_weights(net: Block, arrays: Mapping[str, LazyArray]) -> Arrays:
    """Returns the arrays of a network's parameters. The arrays of QuantizedDense layers that hold
    the weight are replaced by the dequantized weight."""
    found = dict(arrays)
    for _, _, path, layer in walk(net):
        if isinstance(layer, QuantizedDense) and f"{path}.packed" in found:
            for name in _FIELDS:
                found.pop(f"{path}.{name}", None)
            found[f"{path}.weight"] = _Dequantized(layer)
    return found


def _described(format, group, names):
    options = [f"groups of {group}"] if group else []
    options += [name for name in ("zeros", "order") if name in names]
    return f"{format} ({', '.join(options)})" if options else format


def _drop_zero_bias(arrays, path, own):
    """Drops a bias that the layer lacks if it is 0. AutoGPTQ writes one for each layer."""
    name = f"{path}.bias"
    if "bias" not in own and name in arrays and not arrays[name].whole().any():
        del arrays[name]
