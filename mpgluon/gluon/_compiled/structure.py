"""The structure of blocks that traces depend on: children, parameters, devices and options."""

from ... import ndarray as nd
from .._tree import children, devices_of_groups, flags_of, group_of, is_hybridized, own_parameters

# An attribute that holds something else instead of one of these, or the reverse, changes a block.
KINDS = (nd.NDArray, list, tuple, dict)


def snapshot(blocks):
    """Returns the properties of blocks that traces depend on. Traces are valid as long as these are
    equal."""
    return [
        [
            flags_of(block).get("recompute") is True and is_hybridized(block),
            group_of(block),
            devices_of_groups(block),
            *children(block).values(),
            *own_parameters(block).values(),
            *[name for name, value in vars(block).items() if isinstance(value, KINDS)],
        ]
        for block in blocks
    ]
