"""Rounding of weights to the packed formats of ``quantized_dot``, and selection of layers."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import ndarray as nd
from ..._internal.ranks.own_arrays import brought_to_all
from .. import nn
from .._tree import users_of, walk
from ..nn.quantized_layers import GROUPED
from ..utils import brief
from .formats import BLOCKS, QUANTIZERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..._core import NDArray
    from ..block import Block

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
        A matrix (units, in_units) of floats. float64 is rounded to float32 first. If its device
        names a rank, all ranks call this function.
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
    values = brought_to_all(weight).asnumpy()
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
    `quantize_weights`. Routers of nn.MoE need a pattern in `layers`, because they are small and
    their errors change the choice of experts."""
    wanted = None if layers is None else _patterns(who, "layers", layers)
    unwanted = _patterns(who, "skip", skip)
    places = [(None, "", "", net), *walk(net)]
    users = users_of(block for *_, block in places)
    routers = {block.router for *_, block in places if isinstance(block, nn.MoE)}

    work, known, used = [], [], set()
    for parent, name, path, block in places:
        if not _is_dense(block):
            continue
        known.append(path)
        hits = {
            pattern
            for pattern in (*unwanted, *(wanted or ()))
            if pattern.fullmatch(path) or pattern.fullmatch(block.name)
        }
        used.update(hits)
        if not hits.isdisjoint(unwanted) or (block in routers if wanted is None else not hits):
            continue
        if users[block.weight] == 1:
            work.append((parent, name, path, block))
    for pattern in (*(wanted or ()), *unwanted):
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
