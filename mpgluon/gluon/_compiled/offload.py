"""The option ``offload`` of `HybridBlock.hybridize`."""

from ..._core import Context
from ..._internal.offloading import device_of, target
from ...base import MXNetError
from ...context import computes

SMALLEST = 1024  # activations with fewer elements stay


def checked(given):
    """Returns the value of the option with a device in place of a directory. Raises an error if
    it is invalid. None means that nothing is offloaded."""
    if given is None:
        return None
    ctx = device_of("hybridize", "activations", target("hybridize", "activations", given))
    if not isinstance(ctx, Context):
        raise TypeError(
            "hybridize: offload={'activations': ...} must be a device or the path of a directory, "
            f"not {ctx!r}"
        )
    if ctx.rank is not None:
        raise MXNetError(
            f"hybridize: activations cannot be offloaded to {ctx}, which belongs to a rank; use "
            "another device of this process"
        )
    return {"activations": ctx}


def device(flags):
    """Returns the device that stores the activations of a block with these options, or None."""
    given = flags.get("offload")
    return None if given is None else computes(given["activations"])
