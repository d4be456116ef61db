"""Validates the index of a checkpoint, its files, and that both match a network.

An index is checked completely when it is read: names, shapes, types, and that the pieces of each
array cover it. Arrays in the shards are checked against the index before anything changes.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from typing import Any

from .._core import dtype_name
from ..base import MXNetError
from ..gluon._trainer_state import header_fault
from ..gluon.parameter import _gradient_contents as gradients
from ..gluon.utils import brief
from ..ndarray import _safetensors
from ..optimizer._nested_states import put_together
from ._split_states import check_splittable

INDEX = "index.json"
FORMAT = "mpgluon checkpoint 3"
_FORMATS = (FORMAT, "mpgluon checkpoint 2")  # version 2 lacks gradients, phase and scale
STATE = "optimizer:"  # prefix of the names of optimizer states
_LARGEST = 1 << 63


def state_keys(structure: Any, name: str) -> list[str]:
    """Returns the names of the arrays of a state."""
    names: list[str] = []
    put_together(structure, name, lambda key, _: names.append(key), "the checkpoint")
    return names


def read_index(path: str) -> dict[str, Any]:
    """Reads the index from a file. Raises MXNetError, which names the file, unless it is complete
    and consistent."""
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"load: no checkpoint at '{os.path.dirname(path)}' ({INDEX} is missing)"
        )
    with open(path, "rb") as file:
        text = file.read()
    match = re.fullmatch(rb'(.*),\n "crc32": (\d{1,10})\n\}\n', text, re.DOTALL)
    if not match or zlib.crc32(match[1] + b"\n}") != int(match[2]):
        raise MXNetError(f"the checkpoint's index '{path}' is damaged: its checksum does not match")
    try:
        index = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MXNetError(f"the checkpoint's index '{path}' is damaged: {error}") from error
    if not isinstance(index, dict) or index.get("format") not in _FORMATS:
        given = index.get("format") if isinstance(index, dict) else index
        raise MXNetError(
            f"'{path}' is an index of format {given!r:.100}, which this version does not support"
        )
    fault = _fault(index)
    if fault is not None:
        raise MXNetError(f"the checkpoint's index '{path}' is damaged: {fault}")
    _check_states(index, f"the checkpoint's index '{path}'")
    return index


def _check_states(index, source):
    """Raises MXNetError if the structure of a state is invalid or one of its arrays is missing."""

    def array_of(key, stype):
        if STATE + key not in index["arrays"]:
            raise MXNetError(f"{source} is damaged: it has no array '{STATE + key}'")

    for name, structure in (index.get("trainer") or {"states": {}})["states"].items():
        put_together(structure, name, array_of, source)


def _size(value):
    return type(value) is int and 0 <= value < _LARGEST


def _list_of(check, value):
    return isinstance(value, list) and all(map(check, value))


def _fault(index):
    """Returns a description of the first fault in an index, or None."""
    required = "step", "position", "loss_scale", "extra", "shards", "arrays", "random", "trainer"
    for key in required:
        if key not in index:
            return f"it has no '{key}'"
    seed = index["random"]
    if not (_list_of(lambda n: type(n) is int and -_LARGEST <= n < 2 * _LARGEST, seed)):
        return "its random state is not a list of integers"
    if len(seed) != 2:
        return "its random state is not a pair"
    shards = index["shards"]
    if not _list_of(_is_shard, shards):
        return "its shards are not a list of files, sizes and checksums"
    if not isinstance(index["arrays"], dict):
        return "its arrays are not a dict"
    for name, entry in index["arrays"].items():
        fault = _fault_of_array(entry, len(shards))
        if fault is not None:
            return f"array '{name}': {fault}"
    return _fault_of_trainer(index)


def _is_shard(shard):
    return (
        isinstance(shard, dict)
        and isinstance(shard.get("file"), str)
        and shard["file"] == os.path.basename(shard["file"])
        and shard["file"] not in ("", ".", "..")
        and _size(shard.get("bytes"))
        and _size(shard.get("header_crc32"))
    )


def _fault_of_array(entry, shards):
    if not isinstance(entry, dict):
        return "its description is not a dict"
    shape, axis, pieces = entry.get("shape"), entry.get("axis", "entry"), entry.get("pieces")
    if not _list_of(_size, shape) or len(shape) > 32:
        return "its shape is not a list of sizes"
    if not isinstance(entry.get("dtype"), str) or not _safetensors.is_dtype(entry["dtype"]):
        return f"its dtype is {entry.get('dtype')!r:.50}"
    if axis is not None and not (type(axis) is int and 0 <= axis < len(shape)):
        return f"it has no axis {axis!r:.50}"
    if not isinstance(pieces, list) or not pieces:
        return "it has no pieces"
    covered = []
    for piece in pieces:
        if not (
            isinstance(piece, dict)
            and type(piece.get("shard")) is int
            and 0 <= piece["shard"] < shards
            and isinstance(piece.get("key"), str)
            and _size(piece.get("crc32"))
        ):
            return "a piece does not name a shard, a key and a checksum"
        ranges = piece.get("ranges")
        if not _list_of(lambda span: _list_of(_size, span) and len(span) == 2, ranges):
            return "the ranges of a piece are not pairs"
        covered += ranges
    if axis is None:
        return "it has ranges but no axis" if covered else None
    at = 0
    for begin, end in sorted(covered):
        if begin != at or end < begin:
            return f"its pieces do not cover axis {axis} from {at} to {begin} exactly once"
        at = end
    return None if at == shape[axis] else f"its pieces end at {at} of {shape[axis]} on axis {axis}"


def _fault_of_trainer(index):
    header = index.get("trainer")
    if header is None:
        return None
    fault = header_fault(header)
    if fault is not None:
        return f"its trainer has no valid '{fault}'"
    ambiguous = header.setdefault("ambiguous", {})  # missing in older files
    if not isinstance(ambiguous, dict) or any(
        not _is_ambiguous(entry, index["arrays"].get(name)) for name, entry in ambiguous.items()
    ):
        return "its trainer has no valid 'ambiguous'"
    for name, entry in header["gradients"].items():
        for key, _ in gradients.keys_of(entry, name):
            if STATE + key not in index["arrays"]:
                return f"it has no array '{STATE + key}'"
    return None


def _is_ambiguous(entry, array):
    return (
        array is not None
        and isinstance(entry, list)
        and list(map(type, entry)) == [int, bool]
        and 0 <= entry[0] < len(array["shape"])
    )


def compare(index, wanted, shapes, directory):
    """Raises an error with the first differences between a network and a checkpoint."""
    saved = {name: entry for name, entry in index["arrays"].items() if not name.startswith(STATE)}
    differences = [
        f"the network has no parameter '{name}' {tuple(entry['shape'])}"
        for name, entry in saved.items()
        if name not in wanted
    ]
    for name, pieces in wanted.items():
        if name not in saved:
            differences.append(f"the checkpoint has no parameter '{name}' {shapes[name]}")
            continue
        shape, dtype = tuple(saved[name]["shape"]), dtype_name(pieces[0][0].dtype)
        known = shapes[name]
        if known is not None and (
            len(known) != len(shape) or any(a not in (0, -1, b) for a, b in zip(known, shape))
        ):
            differences.append(
                f"'{name}' has shape {known} in the network, {shape} in the checkpoint"
            )
        elif dtype != saved[name]["dtype"]:
            differences.append(
                f"'{name}' is {dtype} in the network, {saved[name]['dtype']} in the checkpoint"
            )
        for param, _ in pieces:
            param.list_ctx()  # raise an error if the parameter was never initialized
    if differences:
        more = f"; and {len(differences) - 4} more" if len(differences) > 4 else ""
        raise MXNetError(
            f"the checkpoint '{directory}' belongs to another network: "
            f"{'; '.join(differences[:4])}{more}. Nothing was changed"
        )


def check_trainer(index, trainer, names, directory):
    header = index["trainer"]
    if header is None:
        raise MXNetError(
            f"the checkpoint '{directory}' was saved without a trainer; load it without one"
        )
    for param in trainer.parameters:
        names.setdefault(param, (param.name, None))
    own = {names[param][0] for param in trainer.parameters}
    strange = [name for name in header["states"] if name not in own]
    if strange:
        raise MXNetError(
            f"the checkpoint '{directory}' holds states of parameters that this trainer does not "
            f"have: {brief(strange)}"
        )
    known = header.get("names") or header["states"]  # older files list only parameters with a state
    missing = (
        [
            names[param][0]
            for param in trainer.parameters
            if param.grad_req != "null" and names[param][0] not in known
        ]
        if header["states"]
        else []
    )
    if missing:
        raise MXNetError(
            f"the checkpoint '{directory}' has no optimizer states of the parameters "
            f"{brief(missing)}"
        )
    for param in trainer.parameters:
        name, where = names[param]
        if where is not None and name in header["states"]:
            whole = index["arrays"][name]["shape"]
            for key in state_keys(header["states"][name], name):
                check_splittable(name, index["arrays"][STATE + key]["shape"], whole, where.axis)


class _Pieces:
    """The pieces of each shard, by its index: (name of the array, description, piece)."""

    def __init__(self, index):
        self._of = {}
        for name, entry in index["arrays"].items():
            for piece in entry["pieces"]:
                self._of.setdefault(piece["shard"], []).append((name, entry, piece))

    def of(self, number):
        return self._of.get(number, [])


def open_shards(directory: str, index: dict[str, Any], progress: Any) -> list[_safetensors.File]:
    """Opens the files of a checkpoint and compares all contents with the index."""
    pieces, files = _Pieces(index), []
    for number, shard in enumerate(index["shards"]):
        file = _safetensors.File(os.path.join(directory, shard["file"]))
        if file.size != shard["bytes"]:
            raise file.damaged(f"it has {file.size:,} bytes instead of {shard['bytes']:,}")
        if file.header_sum != shard["header_crc32"]:
            raise file.damaged("its header was changed")
        sums = file.checksums(progress)
        for name, entry, piece in pieces.of(number):
            key = piece["key"]
            if key not in file.entries:
                raise file.damaged(f"it has no array '{key}'")
            if file.entries[key][:2] != (entry["dtype"], _shape_of(entry, piece)):
                raise file.damaged(f"'{key}' does not have the shape and dtype of '{name}'")
            if sums[key] != piece["crc32"]:
                raise file.damaged(f"the contents of '{name}' were changed")
        files.append(file)
    return files


def _shape_of(entry, piece):
    shape = list(entry["shape"])
    if entry["axis"] is not None:
        shape[entry["axis"]] = sum(end - begin for begin, end in piece["ranges"])
    return tuple(shape)
