"""The option ``offload`` of `HybridBlock.hybridize`."""

from collections.abc import Mapping

from ..._core import Context
from ...base import MXNetError
from ...context import computes

SMALLEST = 1024  # activations with fewer elements stay


def check(given):
    """Raises an error if the value of the option is invalid. None means that nothing is
    offloaded."""
    if given is None:
        return
    if not isinstance(given, Mapping) or set(given) != {"activations"}:
        raise ValueError(
            "hybridize: offload must be a dict such as {'activations': mx.cpu(1)}, not "
            f"{given!r}; to offload optimizer states, see gluon.Trainer, and to offload "
            "parameters, see Mesh.partition"
        )
    ctx = given["activations"]
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
