"""The option ``offload`` of `HybridBlock.hybridize`."""

from ..._core import Context
from ..._internal.offloading import target
from ...base import MXNetError
from ...context import computes

SMALLEST = 1024  # activations with fewer elements stay


def check(given):
    """Raises an error if the value of the option is invalid. None means that nothing is
    offloaded."""
    if given is None:
        return
    ctx = target("hybridize", "activations", given)
    if not isinstance(ctx, Context):
        raise TypeError(f"hybridize: offload={{'activations': ...}} must be a device, not {ctx!r}")
    if ctx.rank is not None:
        raise MXNetError(
            f"hybridize: activations cannot be offloaded to {ctx}, which belongs to a rank; use "
            "another device of this process"
        )


def device(flags):
    """Returns the device that stores the activations of a block with these options, or None."""
    given = flags.get("offload")
    return None if given is None else computes(given["activations"])
