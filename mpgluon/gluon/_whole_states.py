"""Optimizer states of partitioned networks (`parallel.Mesh.partition`) in files of a trainer: the
files hold the states of whole parameters, and load into any division.

A state that cannot be joined (`parallel._split_states`) stays in parts, as for layers that are
split over devices. The header then has the division of each part, and loading checks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .. import autograd, ndarray as nd
from .._core import NotSupportedError
from ..base import MXNetError
from ..context import cpu
from ._whole_parameters import divided_names
from .utils import shape_is_known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .._internal.types import NDArray
    from .parameter import Parameter


class Entry(NamedTuple):
    """A parameter in a file: the indices of its parts in the trainer, or of an undivided
    parameter."""

    indices: list[int]
    family: Any  # `Family` of the parts; None for an undivided parameter, or for one part


def entries_of(params: Sequence[Parameter], names: Sequence[str]) -> dict[str, Entry]:
    """Returns the entries of a trainer's parameters by their names in files."""
    divided = divided_names(dict(zip(names, params)))
    index_of = {name: index for index, name in enumerate(names)}
    wholes = {parts[0]: whole for whole, (parts, _) in divided.items()}
    inside = {part for parts, _ in divided.values() for part in parts}
    entries = {}
    for index, name in enumerate(names):
        if name in wholes:
            parts, family = divided[wholes[name]]
            entries[wholes[name]] = Entry([index_of[part] for part in parts], family)
        elif name not in inside:
            entries[name] = Entry([index], None)
    return entries


# Saving


def join(
    header: dict[str, Any],
    arrays: dict[str, NDArray],
    params: Sequence[Parameter],
    names: Sequence[str],
) -> None:
    """Replaces the parts in a header and its arrays by wholes."""
    header["ambiguous"], header["divisions"], header["names"] = {}, {}, []
    with autograd.pause():
        for name, entry in entries_of(params, names).items():
            parts = [names[index] for index in entry.indices]
            joined = entry.family and _joined(header, arrays, entry, parts, params, name)
            if joined:
                _replace(header, arrays, parts, name, joined)
                parts = [name]
            header["names"] += parts
    for param, name in zip(params, names):
        if getattr(param, "family", None) is not None and name in header["states"]:
            header["divisions"][name] = _division(param)


class _Joined(NamedTuple):
    """The entries of a whole in a header. A missing entry is None."""

    states: Any
    shapes: Any
    counts: Any
    gradients: Any
    arrays: dict[str, NDArray]
    ambiguous: dict[str, Any]


def _joined(header, arrays, entry, names, params, whole):
    """Returns the `_Joined` of a family, or None if its parts cannot be joined."""
    from ..parallel._checkpoint_index import state_keys
    from ..parallel._split_states import equal_if_ambiguous, is_split_over

    family, parts = entry.family, [params[index] for index in entry.indices]
    if any(home.rank is not None for part in parts for home in part.homes):
        return None  # writing the parts raises an error on all ranks
    found: dict[str, NDArray] = {}
    ambiguous = {}
    structures = [header["states"].get(name) for name in names]
    counts = [header["counts"].get(name) for name in names]
    if any(structure != structures[0] for structure in structures) or len(set(counts)) > 1:
        return None
    keys = [state_keys(structure or [], name) for structure, name in zip(structures, names)]
    for its_keys in zip(*keys):
        its_arrays = [arrays[key] for key in its_keys]
        key = whole + its_keys[0][len(names[0]) :]
        if any(array.stype != "default" for array in its_arrays):
            return None
        try:
            split = is_split_over(whole, family.axis, parts, its_arrays)
        except NotSupportedError:
            return None
        found[key] = _concatenated(family, its_arrays) if split else its_arrays[0]
        equal = equal_if_ambiguous(family.axis, parts, its_arrays) if split else None
        if equal is not None:
            ambiguous[key] = [family.axis, equal]
    gradients = _joined_gradients(header, arrays, entry, names, params, whole, found)
    if gradients is _DIFFERENT:
        return None
    shape = None if structures[0] is None else list(family.shape)
    return _Joined(structures[0], shape, counts[0], gradients, found, ambiguous)


_DIFFERENT = object()


def _joined_gradients(header, arrays, entry, names, params, whole, found):
    """Returns the description of the whole gradient, and adds its array to `found`. Returns
    _DIFFERENT if the gradients of the parts cannot be joined."""
    descriptions = [header["gradients"].get(name) for name in names]
    given = [each for each in descriptions if each is not None]
    if not given:
        return None
    requests = {params[index].grad_req for index in entry.indices}
    if len(requests) > 1 or any(len(each["replicas"]) != 1 for each in given):
        return _DIFFERENT
    replicas = [each["replicas"][0] if each else {"kind": "zero"} for each in descriptions]
    kinds = {replica["kind"] for replica in replicas}
    if "rows" in kinds:
        return _DIFFERENT
    fresh = any(replica.get("fresh", False) for replica in replicas)
    if "array" in kinds:
        parts = [arrays.get(f"gradient:0:{name}") for name in names]
        dtype = next(part.dtype for part in parts if part is not None)
        for k, index in enumerate(entry.indices):
            if parts[k] is None:
                parts[k] = nd.zeros(params[index].shape, ctx=cpu(), dtype=dtype)
        found[f"gradient:0:{whole}"] = _concatenated(entry.family, parts)
    kind = "array" if "array" in kinds else "zero"
    return {"grad_req": requests.pop(), "replicas": [{"kind": kind, "fresh": fresh}]}


def _concatenated(family, parts):
    """Returns the whole of arrays that are split like a parameter. Their other dimensions may have
    size 1."""
    pieces = []
    for block in range(family.blocks):
        for part in parts:
            size = part.shape[family.axis] // family.blocks
            piece = nd.slice_axis(
                part, axis=family.axis, begin=block * size, end=(block + 1) * size
            )
            pieces.append(piece.as_in_context(cpu()))
    return pieces[0] if len(pieces) == 1 else nd.concat(*pieces, dim=family.axis)


def _replace(header, arrays, names, whole, joined):
    from ..parallel._checkpoint_index import state_keys

    for name in names:
        for key in state_keys(header["states"].get(name) or [], name):
            del arrays[key]
        arrays.pop(f"gradient:0:{name}", None)
        for kind in ("states", "shapes", "counts", "gradients"):
            header[kind].pop(name, None)
    for kind in ("states", "shapes", "counts", "gradients"):
        value = getattr(joined, kind)
        if value is not None:
            header[kind][whole] = value
    arrays.update(joined.arrays)
    header["ambiguous"].update(joined.ambiguous)


def _division(param):
    """Returns the description of a part for a header."""
    return {
        "name": param.family.name_in_files or param.global_name,
        "shape": list(param.global_shape),
        "axis": param.axis,
        "ranges": [list(span) for span in param.ranges],
    }


# Loading


def as_in_file(
    entries: dict[str, Entry], names: Sequence[str], saved: Iterable[str]
) -> dict[str, Entry]:
    """Returns a trainer's entries with the parts of those parameters whose parts are in the file
    under names in `saved`."""
    saved, found = set(saved), {}
    for name, entry in entries.items():
        parts = {names[index]: Entry([index], None) for index in entry.indices}
        in_parts = entry.family is not None and name not in saved and not saved.isdisjoint(parts)
        found.update(parts if in_parts else {name: entry})
    return found


def check_divisions(
    header: dict[str, Any],
    numbers: dict[str, Entry],
    params: Sequence[Parameter],
    source: str,
) -> None:
    """Raises MXNetError if the file holds parts of parameters that are divided differently in the
    network."""
    for name, saved in header["divisions"].items():
        entry = numbers.get(name) or numbers.get(saved["name"])
        if entry is None:
            continue  # the caller reports unknown names
        param = params[entry.indices[0]]
        own = None if getattr(param, "family", None) is None else _division(param)
        if len(entry.indices) == 1 and own is not None:
            if not shape_is_known(param.global_shape):
                continue
            if all(own[key] == saved[key] for key in ("shape", "axis", "ranges")):
                continue
        raise MXNetError(
            f"{source} holds the state of '{name}', which is {_text(saved)}, but in this trainer "
            f"'{param.name}' is {_text(own)}; divide the network as the saved one, or "
            "use mx.parallel.save and mx.parallel.load"
        )


def _text(division):
    if division is None:
        return "not divided"
    ranges = " and ".join(f"{begin} to {end}" for begin, end in division["ranges"])
    return (
        f"the range {ranges} along axis {division['axis']} of a parameter of shape "
        f"{tuple(division['shape'])}"
    )


def check_shape(name: str, shape: Any, family: Any, source: str) -> None:
    """Raises MXNetError if a saved parameter does not have the shape of a divided one. `shape` is
    None if it is unknown."""
    if shape is not None and tuple(shape) != family.shape:
        raise MXNetError(
            f"{source} holds the state of a parameter of shape {tuple(shape)}, but parameter "
            f"'{name}' has shape {family.shape}"
        )


def reader(
    header: dict[str, Any],
    array_of: Callable[..., NDArray],
    optimizer: Any,
    index: int,
    param: Parameter,
    name: str,
    family: Any,
    source: str,
) -> Callable[..., NDArray]:
    """Returns a function that returns the part of a state's array for a parameter, by the array's
    name in the file."""
    from ..parallel._split_states import NewShapes, is_split

    new = NewShapes(optimizer, index, param, name)

    def read(key, stype=None):
        array = array_of(key, stype)
        axis, equal = header["ambiguous"].get(key, (None, None))
        split = family is not None and is_split(array.shape, family.shape, family.axis)
        if split is None:
            raise MXNetError(
                f"{source} holds a state of shape {array.shape} of parameter '{name}', which "
                f"cannot be divided along axis {family.axis} like the parameter of shape "
                f"{family.shape}; load it into a network with the whole parameter"
            )
        with autograd.pause():
            part = family.take(array, param.index) if split else array
            if axis is not None and new.is_one_part(key, array.shape, part.shape, axis, equal):
                return nd.slice_axis(array, axis=axis, begin=0, end=1)
        return part

    return read
