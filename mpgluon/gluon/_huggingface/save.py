"""Saves a network in the layout of Hugging Face: shards, an index and ``config.json``."""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ... import autograd
from ..._internal import domain, ranks
from ..._internal.files import replacing
from ..._internal.progress import bar
from ...base import MXNetError, itemsize
from ...ndarray import _safetensors
from .._tree import adapters_of, walk
from .files import INDEX, SINGLE
from .layers import unpacked_weights
from .values import ParameterArray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..block import Block
    from .entries import Entry

# Files of an earlier save, and temporary files that a killed one leaves.
_FILES = re.compile(
    r"(model(-\d{5,}-of-\d{5,})?\.safetensors|model\.safetensors\.index\.json)"
    r"(\.[0-9a-f]{16}\.new)*"
)


def save(
    net: Block,
    folder: str | os.PathLike[str],
    entries: Sequence[Entry] = (),
    config: Mapping[str, Any] | None = None,
    shard_bytes: float | str = 5e9,
    progress: bool | None = None,
) -> None:
    """Writes the weights of a network. `Block.save_parameters` calls this function.

    The arrays are read from their devices one at a time, and parts of split parameters are joined.
    Weights of `nn.QuantizedDense` are written dequantized, in the dtype of the layer.

    Parameters
    ----------
    net : Block
        The network.
    folder : str
        The folder, which is created. Weights that it holds are replaced when all new files are
        complete.
    entries : sequence of Entry
        The map with which `load` would read the files.
    config : dict, optional
        Contents of ``config.json``. The dtype of the parameters is added.
    shard_bytes : float or str, default 5e9
        Number of bytes of a file, also as in '2GB'. An array that is larger has a file of its own.
    progress : bool, optional
        Whether to show a progress bar; by default, if saving takes longer than two seconds.
    """
    from ...parallel._checkpoint import data_of, parts_of

    shard_bytes = domain.byte_count("save_parameters", "shard_bytes", shard_bytes)
    if ranks.count() > 1:
        raise MXNetError(
            "save_parameters: the format 'huggingface' needs all arrays in one process; save with "
            "mx.parallel.save, and load the checkpoint in a single process"
        )
    folder = os.fspath(folder)
    parts, shapes = parts_of(net)
    for name in _merged(net):
        parts.pop(name, None)
    with autograd.pause():
        arrays: dict[str, Any] = {
            name: ParameterArray(
                shapes[name],
                [(data_of(param), None if where is None else tuple(where)) for param, where in own],
            )
            for name, own in parts.items()
        }
        arrays = unpacked_weights(net, arrays)
        for entry in reversed(entries):
            arrays = entry.save(arrays)
        os.makedirs(folder, exist_ok=True)
        written = _write(folder, arrays, shard_bytes, progress)
    if config is not None:
        _write_json(os.path.join(folder, "config.json"), _with_dtype(config, arrays))
        written.add("config.json")
    for name in os.listdir(folder):  # a loader could prefer files of an earlier save
        if _FILES.fullmatch(name) and name not in written:
            os.remove(os.path.join(folder, name))


def _merged(net):
    """Returns the names of the parameters of adapters, whose weights must hold them. Loaders of the
    format would skip these parameters."""
    names = []
    for path, layer in [("", net), *((path, block) for *_, path, block in walk(net))]:
        current = adapters_of(layer)
        if current is None:
            continue
        if current.kept is None:
            raise MXNetError(
                f"save_parameters: '{path}' has adapters, which the format 'huggingface' cannot "
                "store; call lora.merge(net, keep=False) to add them to the weights, or "
                "lora.save(net, folder) to write them alone"
            )
        start = f"{path}." if path else ""
        names += [
            f"{start}lora_{part}_{name}"
            for name in current.options
            for part in ("A", "B", "magnitude")
        ]
    return names


def _bytes(array):
    return math.prod(array.shape) * itemsize(array.dtype)


def _write(folder, arrays, shard_bytes, progress):
    """Writes the arrays. Returns the names of the files."""
    shards: list[list[str]] = [[]]
    size = 0
    for name in sorted(arrays, key=_in_order):
        if shards[-1] and size + _bytes(arrays[name]) > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += _bytes(arrays[name])
    total = sum(_bytes(array) for array in arrays.values())
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{at:05}-of-{len(shards):05}.safetensors" for at in range(1, len(shards) + 1)]
    )
    paths = [os.path.join(folder, name) for name in names]
    suffix = f".{os.urandom(8).hex()}.new"
    try:
        with bar(total, progress, "saving") as shown:
            for path, shard in zip(paths, shards):
                rows = [
                    (name, arrays[name].dtype, arrays[name].shape, arrays[name].whole)
                    for name in shard
                ]
                _safetensors.write(path + suffix, rows, shown.update, origin="pt")
        # Shards of an earlier save may have the same names, and must not be mixed with new ones.
        for path in paths:
            os.replace(path + suffix, path)
    finally:
        for path in paths:
            with suppress(FileNotFoundError):
                os.remove(path + suffix)
    if len(shards) == 1:
        return {SINGLE}
    places = {name: file for file, shard in zip(names, shards) for name in shard}
    _write_json(
        os.path.join(folder, INDEX),
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))},
    )
    return {INDEX, *names}


def _in_order(name):
    """Sorts layer 10 after layer 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _with_dtype(config, arrays):
    dtypes = {array.dtype for array in arrays.values()}
    if len(dtypes) != 1:
        return dict(config)
    (dtype,) = dtypes
    name = "torch_dtype" if "torch_dtype" in config else "dtype"
    return {**config, name: dtype}


def _write_json(path, value):
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, sort_keys=True) + "\n").encode())
