"""The structure of blocks that traces depend on: children, parameters, devices and options."""

from ... import ndarray as nd
from .._tree import (
    adapters_of,
    children,
    devices_of_groups,
    division_of,
    flags_of,
    group_of,
    is_hybridized,
    own_parameters,
)
from . import offload

# If an attribute's value changes from or to one of these types, traces become invalid, because
# `places.find` must search the block again.
KINDS = (nd.NDArray, list, tuple, dict)


def snapshot(blocks):
    """Returns the properties of blocks that traces depend on. A trace is invalid once the snapshot
    differs from the one taken when it was made."""
    return [
        [
            flags_of(block).get("recompute") is True and is_hybridized(block),
            offload.device(flags_of(block)) if is_hybridized(block) else None,
            group_of(block),
            adapters_of(block),
            division_of(block),
            devices_of_groups(block),
            *children(block).values(),
            *own_parameters(block).values(),
            *[name for name, value in vars(block).items() if isinstance(value, KINDS)],
        ]
        for block in blocks
    ]
