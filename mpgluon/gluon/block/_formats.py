"""MXNet's functions for nested arguments, which other packages import."""

from ... import ndarray as nd
from .._nested import is_symbolic


def flatten(args, inout_str):
    """Flattens nested lists of symbols or arrays. Returns the flat list and its format: 0 for a
    single value, the number of outputs for a symbol with several outputs, -1 for None, and a list
    of formats for a list."""
    if isinstance(args, nd.NDArray):
        return [args], 0
    if args is None:
        return [None], -1
    if isinstance(args, (list, tuple)):
        parts = [flatten(item, inout_str) for item in args]
        return [item for flat, _ in parts for item in flat], [form for _, form in parts]
    if is_symbolic((args,)):
        return [args], len(args) if len(args) > 1 else 0
    raise ValueError(
        f"the {inout_str} of a HybridBlock must be Symbols or NDArrays, or nested lists or "
        f"tuples of them, but got {type(args).__name__}"
    )


def regroup(args, fmt):
    """Inverse of `flatten`. Nests the first items of a list in format `fmt`, and returns the result
    and the remaining items."""
    if isinstance(fmt, list):
        groups = []
        for form in fmt:
            group, args = regroup(args, form)
            groups.append(group)
        return groups, args
    if fmt == -1:
        return None, args[1:]
    return (args[0], args[1:]) if fmt == 0 else (args[:fmt], args[fmt:])
