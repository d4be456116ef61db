"""The option ``recompute`` of `HybridBlock.hybridize`."""

import re

from ... import _core
from ...base import MXNetError


def _bytes(value):
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?\s*", value.upper())
        if isinstance(value, str)
        else None
    )
    if match is None:
        raise MXNetError(
            "hybridize: recompute must be True, False, a number of bytes, a string such as "
            f"'64MB', or a dict from contexts to bytes, not {value!r}"
        )
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))


def limits(value):
    """Returns a memory budget as a list of (context or None, bytes). Returns an empty list for
    True, False and None."""
    if value is None or value is True or value is False:
        return []
    if isinstance(value, dict):
        for ctx in value:
            if not isinstance(ctx, _core.Context):
                raise MXNetError(
                    "hybridize: the keys of recompute must be contexts, such as mx.cpu(0), not "
                    f"{ctx!r}"
                )
        return [(ctx, _bytes(allowed)) for ctx, allowed in value.items()]
    return [(None, _bytes(value))]
