"""SqueezeNet, a network with few parameters (`arXiv:1602.07360`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....context import cpu
from ... import nn
from ...block import HybridBlock
from ...contrib.nn import HybridConcurrent
from ..model_store import get_model_file
from ._constructors import constructor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...._internal.types import Devices

__all__ = ["SqueezeNet", "squeezenet1_0", "squeezenet1_1"]

# The first convolution's channels and kernel, and the stages between pooling layers. A stage lists
# the channels of the first 1x1 convolution of each fire module. Each of the two branches of the
# module has four times this number of channels.
_STAGES = {
    "1.0": (96, 7, ([16, 16, 32], [32, 48, 48, 64], [64])),
    "1.1": (64, 3, ([16, 16], [32, 32], [48, 48, 64, 64])),
}


def _conv(channels, kernel, padding=0):
    out = nn.HybridSequential(prefix="")
    out.add(nn.Conv2D(channels, kernel, padding=padding), nn.Activation("relu"))
    return out


def _fire(channels):
    """Returns a fire module: a 1x1 convolution that reduces the channels, then parallel 1x1 and 3x3
    convolutions."""
    out = nn.HybridSequential(prefix="")
    out.add(_conv(channels, 1))
    branches = HybridConcurrent(axis=1, prefix="")
    branches.add(_conv(4 * channels, 1), _conv(4 * channels, 3, 1))
    out.add(branches)
    return out


class SqueezeNet(HybridBlock):
    """Fire modules, and a convolution that computes the class scores.

    Parameters
    ----------
    version : str
        '1.0', or '1.1', which needs less than half of the operations.
    classes : int, default 1000
        Number of classes, the features of the output.

    Raises
    ------
    AssertionError
        If the version does not exist.

    Examples
    --------
    >>> net = gluon.model_zoo.vision.SqueezeNet("1.1", classes=10)
    >>> net.output[0].weight.shape
    (10, 0, 1, 1)
    """

    def __init__(self, version: str, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if version not in _STAGES:
            raise AssertionError(f"version must be '1.0' or '1.1', not {version!r}")
        channels, kernel, stages = _STAGES[version]
        with self.name_scope():
            self.features: nn.HybridSequential = nn.HybridSequential(prefix="")
            self.features.add(nn.Conv2D(channels, kernel, 2), nn.Activation("relu"))
            for stage in stages:
                self.features.add(nn.MaxPool2D(3, 2, ceil_mode=True), *map(_fire, stage))
            self.features.add(nn.Dropout(0.5))
            self.output: nn.HybridSequential = nn.HybridSequential(prefix="")
            self.output.add(
                nn.Conv2D(classes, 1), nn.Activation("relu"), nn.AvgPool2D(13), nn.Flatten()
            )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.output(self.features(x))


def get_squeezenet(
    version: str,
    pretrained: bool = False,
    ctx: Devices = cpu(),
    root: str | None = None,
    **kwargs: Any,
) -> HybridBlock:
    """Returns a SqueezeNet for images of 224x224.

    Parameters
    ----------
    version : str
        '1.0' or '1.1'.
    pretrained : bool, default False
        Whether to load trained parameters; see `model_store.get_model_file`.
    ctx : Context, default cpu()
        Device to load them to.
    root : str, default $MXNET_HOME/models
        Folder of the parameter files.
    **kwargs
        Arguments of `SqueezeNet`, such as classes.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.squeezenet.get_squeezenet("1.0", classes=10)
    >>> net.features[0].weight.shape
    (96, 0, 7, 7)
    """
    net = SqueezeNet(version, **kwargs)
    if pretrained:
        net.load_parameters(get_model_file(f"squeezenet{version}", root=root), ctx=ctx)
    return net


def _squeezenet(version: str) -> Callable[..., HybridBlock]:
    name = f"squeezenet{version.replace('.', '_')}"
    return constructor(name, f"SqueezeNet {version}", get_squeezenet, version)


squeezenet1_0: Callable[..., HybridBlock] = _squeezenet("1.0")
squeezenet1_1: Callable[..., HybridBlock] = _squeezenet("1.1")
