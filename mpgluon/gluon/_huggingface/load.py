"""Loads weights of Hugging Face into a network on any devices, split in any way.

Rows that are stored as the parameter needs them are read straight into its memory, if the host can
access it. All other values are copied from the file to the devices in pieces, so the host holds
only one piece. All names, shapes and dtypes are checked before the first piece is read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import autograd
from ..._core import dtype_name
from ..._internal import ranks
from ..._internal.progress import bar
from ...base import MXNetAssertionError, MXNetError, itemsize
from .._tree import parameters_by_path
from .checkpoint import Checkpoint
from .layers import fitted

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ..._internal.types import Devices
    from ..block import Block
    from .entries import Entry
    from .values import LazyArray

_PIECE = 2 << 20  # bytes that are read at once; pieces that fit in caches are faster
_SHOWN = 12  # names in an error
_MANTISSA = {"bfloat16": 1, "float16": 1, "float32": 2, "float64": 3}


def load(
    net: Block,
    path: str | os.PathLike[str] | Checkpoint,
    entries: Sequence[Entry] = (),
    ctx: Devices | None = None,
    allow_missing: bool = False,
    ignore_extra: bool = False,
    cast_dtype: bool = False,
    progress: bool | None = None,
) -> None:
    """Reads weights into a network. `Block.load_parameters` calls this function.

    Parameters
    ----------
    net : Block
        The network. Parameters that are not initialized are created.
    path : str or Checkpoint
        See `Weights`, or a GGUF file.
    entries : sequence of Entry
        The map from the arrays of the file to the parameters.
    ctx : Context or list of Context, optional
        Devices of parameters that are not initialized, placed or split.
    allow_missing, ignore_extra : bool, default False
        Whether parameters may be missing in the file, and arrays of the file in the network.
    cast_dtype : bool, default False
        Whether values may lose precision. float16 and bfloat16 values may always be loaded into
        float32 parameters.
    progress : bool, optional
        Whether to show a progress bar; by default, if loading takes longer than two seconds.

    Raises
    ------
    MXNetError
        If a file is damaged, or if names, shapes or dtypes differ. Nothing changes in this case.

    Notes
    -----
    Values are written in place, because the devices may have no memory for a second network. If
    reading fails after all checks (an I/O error or an interrupt), some of the parameters that were
    initialized before have their new values. All others remain uninitialized.

    Weights in few bits are read into `nn.QuantizedDense` layers as they are, and dequantized for
    other layers. Float weights of QuantizedDense layers are rounded to nearest.
    """
    weights = path if isinstance(path, Checkpoint) else Checkpoint(path)
    arrays = fitted(net, mapped(weights.arrays, entries), f"'{weights.path}'")
    targets, duplicates = _matched(net, arrays, f"'{weights.path}'", allow_missing, ignore_extra)
    _check(targets, cast_dtype, f"'{weights.path}'")
    total = sum(_bytes(array) for _, array, _ in targets)
    with weights.opened(), bar(total, progress, "loading") as shown, autograd.pause():
        for name, first, second in duplicates:
            _check_equal(name, first, second, weights.path)
        completions = []
        for _, array, parts in targets:
            for param, where in parts:
                outputs, complete = param.to_fill(ctx)
                _fill(outputs, array, where)
                completions.append(complete)
            shown.update(_bytes(array))
        for complete in completions:
            complete()


def mapped(arrays: Mapping[str, LazyArray], entries: Sequence[Entry]) -> dict[str, LazyArray]:
    """Applies a map to the arrays of a file."""
    found = dict(arrays)
    for entry in entries:
        found = entry.load(found)
    return found


def _bytes(array):
    return math.prod(array.shape) * itemsize(array.dtype)


def _matched(net, arrays, source, allow_missing, ignore_extra):
    """Returns (name, array, [(parameter, where)]) for each parameter in the file, and (name, array,
    equal array) for parameters that the file holds under several names."""
    from ...parallel._checkpoint import parts_of

    parts, _ = parts_of(net)
    first: dict[Any, str] = {pieces[0][0]: name for name, pieces in parts.items()}
    other_names = {
        name: first[param]
        for name, param in parameters_by_path(net).items()
        if param in first and first[param] != name
    }
    found, duplicates, extra = {}, [], []
    for name, array in arrays.items():
        own = name if name in parts else other_names.get(name)
        if own is None:
            extra.append(name)
        elif own in found:
            duplicates.append((name, found[own], array))
        else:
            found[own] = array
    missing = [name for name in parts if name not in found]
    problems = []
    if missing and not allow_missing:
        problems.append(f"the file lacks {_listed(missing)}")
    if extra and not ignore_extra:
        problems.append(f"the network lacks {_listed(extra)}")
    if problems:
        raise MXNetAssertionError(
            f"load_parameters: {source} does not fit the network: {'; '.join(problems)}. Use the "
            "config.json of the file, or set allow_missing or ignore_extra"
        )
    return [(name, found[name], parts[name]) for name in parts if name in found], duplicates


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _check(targets, cast_dtype, source):
    """Checks shapes and dtypes, and completes unknown shapes."""
    from ...parallel._checkpoint import complete

    problems = []
    for name, array, parts in targets:
        param, where = parts[0]
        shape = param.shape if where is None else param.global_shape
        if shape is not None and (
            len(shape) != len(array.shape)
            or any(known not in (-1, 0, size) for known, size in zip(shape, array.shape))
        ):
            problems.append(f"'{name}' has shape {array.shape} instead of {tuple(shape)}")
            continue
        here = dtype_name(param.dtype)
        if here != array.dtype and not cast_dtype and _loses(array.dtype, here):
            problems.append(
                f"'{name}' is {array.dtype}, and its {here} parameter would lose precision "
                f"(set cast_dtype=True, or call net.cast('{array.dtype}'))"
            )
    if problems:
        shown = "; ".join(problems[:4])
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise MXNetAssertionError(f"load_parameters: {source} does not fit: {shown}{more}")
    for _, array, parts in targets:
        complete([param for param, _ in parts], array.shape)


def _loses(given, wanted):
    """True if a conversion of values between two dtypes can change them."""
    if given in _MANTISSA and wanted in _MANTISSA:
        return _MANTISSA[wanted] <= _MANTISSA[given]
    return True


def _check_equal(name, first, second, path):
    """Raises an error if the file holds two different values for a shared parameter."""
    if first.shape == second.shape and all(
        np.array_equal(first.read(ranges), second.read(ranges), equal_nan=True)
        for ranges in _pieces(first, [(0, size) for size in first.shape])
    ):
        return
    raise MXNetError(
        f"'{path}' holds a value of '{name}' of its own, but the network shares this parameter: "
        "set tie_word_embeddings to false in the config"
    )


def _pieces(array, ranges) -> Iterator[list[tuple[int, int]]]:
    """Divides a part of an array into pieces of at most about `_PIECE` bytes."""
    if not ranges:
        yield []
        return
    axis = array.slow_axis
    begin, end = ranges[axis]
    row = math.prod(high - low for at, (low, high) in enumerate(ranges) if at != axis)
    step = max(1, _PIECE // max(1, row * itemsize(array.dtype)))
    for at in range(begin, end, step):
        piece = list(ranges)
        piece[axis] = (at, min(at + step, end))
        yield piece


def _fill(outputs, array, where):
    """Reads the part `where` (None for all) of an array into arrays on devices."""
    axis, spans = (0, ((0, 0),)) if where is None else where
    # All ranks queue the same work, but only the owner of an array needs its values.
    is_needed = any(_is_own(output.context) for output in outputs)
    offset = 0  # of the range in the part
    for begin, end in spans:
        ranges = [(0, size) for size in array.shape]
        if where is not None:
            ranges[axis] = (begin, end)
        if axis == 0 and _fill_directly(outputs, array, offset, ranges):
            offset += end - begin
            continue
        for piece in _pieces(array, ranges):
            value = array.read(piece) if is_needed else _unread(piece)
            place = [slice(low, high) for low, high in piece]
            if where is not None:
                low, high = piece[axis]
                place[axis] = slice(low - begin + offset, high - begin + offset)
            for output in outputs:
                if value.shape == output.shape:
                    output[:] = value
                else:
                    output[tuple(place)] = value
            for output in outputs:  # the host holds only one piece
                output.wait_to_read()
        offset += end - begin


def _fill_directly(outputs, array, row, ranges):
    """Reads rows of an array from the file into the memory of arrays on devices, from their row
    `row` on. Returns False if that is impossible because the values must be rearranged or
    converted, or because the host cannot access the memory."""
    parts = array.stored(*ranges[0] if ranges else (0, 1))
    if parts is None or any(output.shape[1:] != array.shape[1:] for output in outputs):
        return False
    width = max(1, math.prod(array.shape[1:]))
    for output in outputs:
        at = row
        for part in parts:
            if not part.file.read_into(part.name, part.begin, part.end, output, at):
                return False
            at += (part.end - part.begin) // width
    return True


def _is_own(device):
    """True if this process holds the arrays of a device."""
    return ranks.count() == 1 or getattr(device, "rank", None) in (None, ranks.own())


def _unread(piece):
    """Returns zeros in the shape of a piece, without memory for them."""
    return np.broadcast_to(np.float32(0), [end - begin for begin, end in piece])
