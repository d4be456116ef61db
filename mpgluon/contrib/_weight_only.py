"""Weights of 4 to 8 bits for the Dense layers of a network."""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ndarray as nd
from ..gluon import nn
from ..gluon._tree import adapters_of, users_of, walk
from ..gluon.block import Block
from ..gluon.nn.quantized_layers import GROUPED, packed_like
from ..gluon.utils import brief
from ._calibrated_weights import Task, awq, gptq, inputs_of
from ._weight_formats import BLOCKS, QUANTIZERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._core import NDArray

_CHUNK = 1 << 22  # elements that are rounded at a time, to bound the memory
_DEFAULT_GROUPS = {"int8": 0, "int4": 64, "nf4": 64}


def check_format(who: str, format: str) -> None:
    if format not in BLOCKS:
        raise ValueError(f"{who}: format must be one of {', '.join(BLOCKS)}, not {format!r}")


def quantize_array(
    weight: NDArray, format: str = "int8", group: int = 0, use_zeros: bool = False
) -> dict[str, NDArray]:
    """Rounds a weight to the nearest values of a packed format.

    Parameters
    ----------
    weight : NDArray
        A matrix (units, in_units) of floats. float64 is rounded to float32 first.
    format : {'int8', 'int4', 'nf4', 'q8_0', 'q4_0', 'q4_k', 'q6_k'}
        See ``nd.contrib.quantized_dot``.
    group : int, default 0
        For int8, int4 and nf4: how many adjacent elements of a row share a scale; 0 for the whole
        row.
    use_zeros : bool, default False
        For int4: whether each group has its own zero, which suits groups that are not symmetric.

    Returns
    -------
    dict of str to NDArray
        ``packed``, and ``scales`` and ``zeros`` in float32 if the format has them, on the device of
        the weight.

    Examples
    --------
    >>> weight = nd.array([[-1, 0.5], [2, 4]])
    >>> arrays = mx.contrib.quantization.quantize_array(weight, 'int8')
    >>> arrays['packed'].asnumpy().tolist()
    [[-127, 64], [64, 127]]
    >>> values = nd.contrib.dequantize_weight(**arrays, units=2, in_units=2)
    >>> values.asnumpy().round(1).tolist()
    [[-1.0, 0.5], [2.0, 4.0]]
    """
    who = "quantize_array"
    check_format(who, format)
    if weight.ndim != 2 or not weight.size:
        raise ValueError(f"{who}: weight must be a matrix (units, in_units), not {weight.shape}")
    rows, columns = weight.shape
    if columns % BLOCKS[format]:
        raise ValueError(
            f"{who}: in_units must be a multiple of {BLOCKS[format]} for format {format!r}, not "
            f"{columns}"
        )
    if group and format not in GROUPED:
        raise ValueError(f"{who}: group must be 0 for format {format!r}, whose blocks are fixed")
    if group < 0 or columns % (group or columns):
        raise ValueError(f"{who}: group must divide in_units ({columns}), not {group}")
    if use_zeros and format != "int4":
        raise ValueError(f"{who}: only 'int4' has zeros, not {format!r}")
    values = weight.asnumpy()
    parts: list[tuple[Any, ...]] = []
    step = max(1, _CHUNK // columns)
    for start in range(0, rows, step):
        chunk = values[start : start + step].astype(np.float32)
        if not np.isfinite(chunk).all():
            raise ValueError(f"{who}: weight has infinite numbers or NaN, which have no scale")
        parts.append(QUANTIZERS[format](chunk, group or columns, use_zeros))
    found = {}
    for name, arrays in zip(("packed", "scales", "zeros"), zip(*parts)):
        if arrays[0] is not None:
            joined = np.concatenate(arrays)
            found[name] = nd.array(joined, ctx=weight.context, dtype=joined.dtype)
    return found


def _patterns(who, name, value) -> list[re.Pattern[str]]:
    values = [value] if isinstance(value, str) else value or ()
    try:
        return [re.compile(pattern) for pattern in values]
    except (re.error, TypeError) as error:
        raise ValueError(f"{who}: {name} must be regular expressions, not {value!r}") from error


def _is_dense(block):
    return isinstance(block, nn.Dense) and type(block).hybrid_forward is nn.Dense.hybrid_forward


def selected(
    who: str,
    net: Block,
    layers: str | Iterable[str] | None = None,
    skip: str | Iterable[str] = (),
) -> list[tuple[Block | None, str, str, nn.Dense]]:
    """Returns (parent, attribute name, path, layer) for the Dense layers to replace; see
    `quantize_weights`."""
    wanted = None if layers is None else _patterns(who, "layers", layers)
    unwanted = _patterns(who, "skip", skip)
    places = [(None, "", "", net), *walk(net)]
    users = users_of(block for *_, block in places)

    def matches(pattern, path, block):
        return pattern.fullmatch(path) or pattern.fullmatch(block.name)

    work, known, used = [], [], set()
    for parent, name, path, block in places:
        if not _is_dense(block):
            continue
        known.append(path)
        if any(matches(pattern, path, block) for pattern in unwanted):
            continue
        if wanted is not None:
            hits = [pattern for pattern in wanted if matches(pattern, path, block)]
            used.update(hits)
            if not hits:
                continue
        if users[block.weight] > 1:
            continue
        work.append((parent, name, path, block))
    for pattern in wanted or ():
        if pattern not in used:
            raise ValueError(
                f"{who}: {pattern.pattern!r} does not match the whole path or name of any Dense "
                f"layer; the Dense layers are {brief(known) if known else 'none'}"
            )
    if not work:
        raise ValueError(
            f"{who}: no layer was replaced; the network has "
            + (f"the Dense layers {brief(known)}" if known else "no Dense layers")
        )
    return work


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
    Embeddings, and layers that share their weight with another block (a tied head), stay as they
    are. Each layer is rounded on the device on which it is placed. The network then needs a new
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
        by default all.
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
    if not nd.all_finite(weight.reduced()).asscalar():
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


def group_of(who: str, path: str, in_units: int, format: str, group: int | None) -> int:
    """Returns the group size of a layer, and checks that the layer can be packed."""
    if in_units % BLOCKS[format]:
        raise ValueError(
            f"{who}: '{path}' has {in_units} in_units, which is not a multiple of "
            f"{BLOCKS[format]} as format {format!r} needs; skip this layer or use another format"
        )
    if group is None:
        preferred = _DEFAULT_GROUPS.get(format, 0)
        return math.gcd(preferred, in_units) if preferred and in_units % 8 == 0 else 0
    if group and format not in GROUPED:
        raise ValueError(f"{who}: group must be 0 for format {format!r}, whose blocks are fixed")
    if group < 0 or in_units % (group or in_units):
        raise ValueError(
            f"{who}: group must divide the in_units of '{path}' ({in_units}), not {group}"
        )
    return group
