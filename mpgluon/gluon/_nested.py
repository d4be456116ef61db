"""Flattens and regroups nested arguments and results: arrays in lists, tuples and dicts."""

import sys

from .. import _core, ndarray as nd


class _Array:
    """Placeholder for an array in a structure of nested arguments."""

    def __repr__(self):
        return "*"


ARRAY = _Array()
# Types of arguments that are part of a compiled call's signature by value. Each combination of
# values is compiled separately.
_STATIC = (type(None), bool, int, float, str, _core.Context)


def flatten(value, flat, what):
    """Appends the arrays in `value` (nested lists, tuples and dicts) to `flat`. Returns the
    structure of `value`, which is hashable."""
    if isinstance(value, nd.NDArray):
        flat.append(value)
        return ARRAY
    if isinstance(value, (list, tuple)):
        parts = [list if isinstance(value, list) else tuple]
        for item in value:
            if type(item) is nd.NDArray:  # saves a call for the usual case
                flat.append(item)
                parts.append(ARRAY)
            else:
                parts.append(flatten(item, flat, what))
        return tuple(parts)
    if type(value) is dict:
        return (dict, *value, flatten(list(value.values()), flat, what))
    if isinstance(value, _STATIC):
        return (type(value), value) if value is not None else None
    kind = "arrays of mx.np (np" if _core.is_np_array() else "NDArrays (nd"
    raise ValueError(
        f"{what} of a hybridized block must be {kind}.array converts numbers), or nested "
        f"lists, tuples or dicts of them, but got {type(value).__name__}: {repr(value)[:60]}"
    )


def regroup(structure, arrays):
    """Inverse of `flatten`: rebuilds the structure with the next item of the iterator `arrays` for
    each array."""
    if structure is ARRAY:
        return next(arrays)
    if structure is None:
        return None
    kind = structure[0]
    if kind is list:
        return [regroup(item, arrays) for item in structure[1:]]
    if kind is tuple:
        return tuple([regroup(item, arrays) for item in structure[1:]])
    if kind is dict:
        return dict(zip(structure[1:-1], regroup(structure[-1], arrays)))
    return structure[1]


def count(structure):
    """Returns the number of arrays in a structure that `flatten` returned."""
    if structure is ARRAY:
        return 1
    if isinstance(structure, tuple) and structure[0] in (list, tuple):
        return sum(map(count, structure[1:]))
    if isinstance(structure, tuple) and structure[0] is dict:
        return count(structure[-1])
    return 0


def first_context(value):
    """Returns the device of the first array in `value`, or None."""
    if isinstance(value, nd.NDArray):
        return value.context
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            ctx = first_context(item)
            if ctx is not None:
                return ctx
    return None


def is_symbolic(args):
    """True if a block is called on Symbols. If the symbol package is not loaded, no Symbol can
    exist, so this function does not load it."""
    if len(args) == 1 and isinstance(args[0], nd.NDArray):
        return False
    package = sys.modules.get("mpgluon.symbol.symbol")
    return package is not None and holds(args, package.Symbol)


def holds(value, kind):
    """True if nested lists, tuples and dicts hold an instance of `kind`."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return isinstance(value, kind)
    for item in value:  # not by `any`, whose generator costs more than the checks
        if isinstance(item, kind):
            return True
        if isinstance(item, (list, tuple, dict)) and holds(item, kind):
            return True
    return False
