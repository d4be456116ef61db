"""Weights of 4 to 8 bits for the Dense layers of a network."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .. import ndarray as nd
from .._internal.ranks.own_arrays import brought_to_all
from ..gluon._packing.weights import check_format, group_of, quantize_array, selected
from ..gluon._tree import adapters_of, refuse_partitioned
from ..gluon.block import Block
from ..gluon.nn.quantized_layers import packed_like
from ._calibrated_weights import Task, awq, gptq, inputs_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def _filled(layer, format, group, arrays):
    """Returns a QuantizedDense in place of a Dense, with values of its parameters."""
    options = {f"use_{name}": name in arrays for name in ("zeros", "order")}
    new = packed_like(layer, format=format, group=group, **options)
    for name, array in arrays.items():
        param = getattr(new, name)
        param.initialize(ctx=layer.weight.list_ctx())
        param.set_data(
            array if isinstance(array, nd.NDArray) else nd.array(array, dtype=array.dtype)
        )
        param.placed, param.floating = layer.weight.placed, layer.weight.floating
    return new


def quantize_weights(
    net: Block,
    format: str = "int8",
    group: int | None = None,
    method: str = "rtn",
    data: Any = None,
    layers: str | Iterable[str] | None = None,
    skip: str | Iterable[str] = (),
    use_zeros: bool = False,
    use_order: bool = False,
) -> Block:
    """Replaces the Dense layers of a network by layers with packed weights, in place.

    The layers of `nn.MultiHeadAttention`, `nn.GatedMLP` and other blocks are replaced as well.
    Embeddings, the experts of `nn.MoE`, and layers that share their weight with another block (a
    tied head), stay as they are. The new layers are on the devices of the old ones. On devices that
    name ranks, all ranks call this function and round all layers. The network then needs a new
    Trainer, because the old one holds the replaced parameters.

    Parameters
    ----------
    net : Block
        An initialized network whose shapes are known.
    format : {'int8', 'int4', 'nf4', 'q8_0', 'q4_0', 'q4_k', 'q6_k'}
        See ``nd.contrib.quantized_dot``.
    group : int, optional
        How many adjacent elements of a row share a scale, 0 for the whole row. By default, 0 for
        int8, and for int4 and nf4 64 or the largest divisor of 64 that divides the row.
    method : {'rtn', 'gptq', 'awq'}
        'rtn' rounds each element to the nearest value. 'gptq' rounds column by column, and
        compensates the errors in later columns. 'awq' first multiplies important columns, and
        divides the inputs in the layer before, and clips groups.
    data : NDArray or list, optional
        Inputs of the network for 'gptq' and 'awq': an array, or a list of arrays or of tuples of
        arrays. They should resemble the inputs in use; some thousand rows are enough.
    layers : str or list of str, optional
        Regular expressions for the paths (``layers.0.mlp.up``) or names of the layers to replace;
        by default all except the routers of `nn.MoE`, which are small and need their precision.
    skip : str or list of str, optional
        Regular expressions for the layers that stay.
    use_zeros : bool, default False
        For int4: whether each group has its own zero.
    use_order : bool, default False
        For 'gptq': whether columns are rounded in the order of their importance. This reduces the
        error, and each call then reorders its data.

    Returns
    -------
    Block
        `net`, or its replacement if `net` itself is a Dense.

    Raises
    ------
    ValueError
        If no layer can be replaced, a pattern matches none, or a layer does not fit the format or
        has NaN. The network does not change in this case, nor if an interrupt ends the call.

    Examples
    --------
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(64, in_units=32, activation='relu'), nn.Dense(8, in_units=64))
    >>> net.initialize()
    >>> mx.contrib.quantization.quantize_weights(net, 'int4', group=32)
    HybridSequential(
      (0): QuantizedDense(32 -> 64, int4, group=32, Activation(relu))
      (1): QuantizedDense(64 -> 8, int4, group=32, linear)
    )
    """
    who = "quantize_weights"
    check_format(who, format)
    if method not in ("rtn", "gptq", "awq"):
        raise ValueError(f"{who}: method must be 'rtn', 'gptq' or 'awq', not {method!r}")
    if method == "rtn" and (data is not None or use_order):
        raise ValueError(f"{who}: method 'rtn' needs neither data nor use_order; omit them")
    if method == "awq" and use_order:
        raise ValueError(f"{who}: use_order needs method 'gptq'")
    if use_zeros and format != "int4":
        raise ValueError(f"{who}: only 'int4' has zeros, not {format!r}")
    if not isinstance(net, Block):
        raise TypeError(f"{who}: the network must be a Block, not {type(net).__name__}")
    refuse_partitioned(net, who, "quantize the weights before the network is partitioned")
    work = selected(who, net, layers, skip)
    groups = {path: _checked(who, path, block, format, group) for _, _, path, block in work}
    made: dict[int, Block] = {}

    undo = contextlib.ExitStack()  # restores the network unless all layers are replaced

    def replace(layer, arrays):
        new = _filled(layer, format, groups[paths[layer]], arrays)
        made[id(layer)] = new
        for parent, name, _, block in work:
            if block is layer and parent is not None:
                undo.callback(parent.replace_child, name, layer)
                parent.replace_child(name, new)

    paths = {block: path for _, _, path, block in work}
    with undo:
        if method == "rtn":
            for layer, path in paths.items():
                weight = layer.weight.reduced()
                replace(layer, quantize_array(weight, format, groups[path], use_zeros))
        else:
            calls = inputs_of(who, data)
            task = Task(who, net, paths, calls, replace, format, groups, use_zeros)
            if method == "gptq":
                gptq(task, use_order)
            else:
                awq(task, undo)
        undo.pop_all()
    return made.get(id(net), net)


def _checked(who, path, layer, format, group):
    """Checks that a layer can be packed. Returns its group size."""
    weight = layer.weight
    if weight.arrays is None:
        raise ValueError(
            f"{who}: the weight of '{path}' is not initialized; initialize the network and run one "
            "batch first"
        )
    if not brought_to_all(nd.all_finite(weight.reduced())).item():
        raise ValueError(
            f"{who}: the weight of '{path}' has infinite numbers or NaN, which have no scale; skip "
            "this layer"
        )
    if adapters_of(layer) is not None:
        raise ValueError(
            f"{who}: '{path}' has adapters; quantize the network before lora.apply, or merge and "
            "remove the adapters first"
        )
    return group_of(who, path, weight.shape[1], format, group)
