"""Files of partitioned networks (`parallel.Mesh.partition`): they hold the whole parameters, and do
not depend on the parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import autograd, ndarray as nd
from ..context import cpu
from ._tree import children, division_of, own_parameters, parameters_by_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    # name of a whole parameter -> (names of its parts, their `Family`)
    Divided = dict[str, tuple[list[str], Any]]


def divided_paths(block: Any, prefix: str = "") -> Divided:
    """Returns the divided parameters of a network by path."""
    found: Divided = {}
    division = division_of(block)
    if division is not None and division.parts:
        paths = {param: path for path, param in parameters_by_path(block).items()}
        own = own_parameters(block)
        for joined in division.parts.values():
            names = [paths[own[name]] for name in joined.names]
            parent, dot, first = names[0].rpartition(".")
            whole = parent + dot + first.removeprefix("shard0_")
            found[prefix + whole] = [prefix + name for name in names], joined.family
    for name, child in children(block).items():
        found.update(divided_paths(child, f"{prefix}{name}."))
    return found


def divided_names(params: Mapping[str, Any]) -> Divided:
    """Returns the divided parameters all of whose parts are in a dict from names to parameters. A
    whole has the name of the parameter before `Mesh.partition`. If this is also the name of another
    parameter, the whole is omitted, and files hold its parts."""
    names = {param: name for name, param in params.items()}
    found: Divided = {}
    twice = set()
    for param in params.values():
        family = getattr(param, "family", None)
        if family is None or family.name_in_files is None or param is not family.members[0]:
            continue
        whole = family.name_in_files
        if whole in found or whole in params:
            twice.add(whole)
        elif all(part in names for part in family.members):
            found[whole] = [names[part] for part in family.members], family
    return {whole: entry for whole, entry in found.items() if whole not in twice}


def with_wholes(divided: Divided, arrays: Mapping[str, nd.NDArray]) -> dict[str, nd.NDArray]:
    """Replaces the parts of parameters by whole parameters in the host's memory. Keeps parts on
    devices of ranks, so that writing them raises an error on all ranks."""
    arrays, known = dict(arrays), {}
    for whole, (names, family) in divided.items():
        if not all(name in arrays for name in names):
            continue
        if any(arrays[name].context.rank is not None for name in names):
            continue
        parts = [arrays.pop(name) for name in names]
        if id(family) not in known:  # shared parameters are joined once
            with autograd.pause():
                known[id(family)] = family.join([part.as_in_context(cpu()) for part in parts])
        arrays[whole] = known[id(family)]
    return arrays


def with_parts(divided: Divided, arrays: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Replaces whole parameters by the parts of a partitioned network. Raises AssertionError if a
    shape differs."""
    arrays = dict(arrays)
    for name_of_whole, (names, family) in divided.items():
        whole = arrays.pop(name_of_whole, None)
        if whole is None:
            continue
        if tuple(whole.shape) != family.shape:
            raise AssertionError(
                f"Failed loading '{name_of_whole}' of {source}: it has the shape "
                f"{tuple(whole.shape)}, but the parameter has {family.shape}"
            )
        with autograd.pause():
            for index, name in enumerate(names):
                arrays[name] = family.take(whole, index)
    return arrays
