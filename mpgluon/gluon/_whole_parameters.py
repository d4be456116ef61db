"""Files of partitioned networks (`parallel.Mesh.partition`): they hold the whole parameters, and do
not depend on the parts."""

from __future__ import annotations

from typing import Any

from .. import autograd, ndarray as nd
from ..context import cpu
from ._tree import children, division_of, own_parameters, parameters_by_path


def _divided(block, prefix=""):
    """Returns path of a whole -> (paths of its parts, `Family`)."""
    found = {}
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
        found.update(_divided(child, f"{prefix}{name}."))
    return found


def with_wholes(block: Any, arrays: dict[str, nd.NDArray]) -> dict[str, nd.NDArray]:
    """Replaces the parts of parameters, by path, by whole parameters in the host's memory."""
    arrays, known = dict(arrays), {}
    for path, (names, family) in _divided(block).items():
        if not all(name in arrays for name in names):
            continue
        parts = [arrays.pop(name) for name in names]
        if id(family) not in known:  # shared parameters are joined once
            with autograd.pause():
                known[id(family)] = family.join([part.as_in_context(cpu()) for part in parts])
        arrays[path] = known[id(family)]
    return arrays


def with_parts(block: Any, arrays: dict[str, Any], source: str) -> dict[str, Any]:
    """Replaces whole parameters, by path, by the parts of a partitioned network. Raises
    AssertionError if a shape differs."""
    arrays = dict(arrays)
    for path, (names, family) in _divided(block).items():
        whole = arrays.pop(path, None)
        if whole is None:
            continue
        if tuple(whole.shape) != family.shape:
            raise AssertionError(
                f"Failed loading '{path}' of {source}: it has the shape {tuple(whole.shape)}, but "
                f"the parameter has {family.shape}"
            )
        with autograd.pause():
            for index, name in enumerate(names):
                arrays[name] = family.take(whole, index)
    return arrays
