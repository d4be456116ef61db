"""The option ``recompute`` of `HybridBlock.hybridize`."""

from ... import _core
from ..._internal import domain
from ...base import MXNetError


def _bytes(value):
    if type(value) is int and value == 0:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise MXNetError(
            "hybridize: recompute must be True, False, a number of bytes, a string such as "
            f"'64MB', or a dict from contexts to bytes, not {value!r}"
        )
    return int(domain.byte_count("hybridize", "recompute", value))


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
