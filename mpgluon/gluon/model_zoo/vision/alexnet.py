"""AlexNet in its single-device form (`arXiv:1404.5997`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....context import cpu
from ... import nn
from ...block import HybridBlock
from ..model_store import get_model_file

if TYPE_CHECKING:
    from ...._internal.types import Devices

__all__ = ["AlexNet", "alexnet"]


class AlexNet(HybridBlock):
    """Five convolutions and three dense layers, for images of 224x224 (at least 63x63).

    Parameters
    ----------
    classes : int, default 1000
        Number of classes, the features of the output.

    Examples
    --------
    >>> net = gluon.model_zoo.vision.AlexNet(classes=10)
    >>> len(net.features), net.output.weight.shape
    (13, (10, 0))
    """

    def __init__(self, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features: nn.HybridSequential = nn.HybridSequential(prefix="")
            self.features.add(
                nn.Conv2D(64, 11, 4, 2, activation="relu"),
                nn.MaxPool2D(3, 2),
                nn.Conv2D(192, 5, padding=2, activation="relu"),
                nn.MaxPool2D(3, 2),
                nn.Conv2D(384, 3, padding=1, activation="relu"),
                nn.Conv2D(256, 3, padding=1, activation="relu"),
                nn.Conv2D(256, 3, padding=1, activation="relu"),
                nn.MaxPool2D(3, 2),
                nn.Flatten(),
                nn.Dense(4096, activation="relu"),
                nn.Dropout(0.5),
                nn.Dense(4096, activation="relu"),
                nn.Dropout(0.5),
            )
            self.output: nn.Dense = nn.Dense(classes)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.output(self.features(x))


def alexnet(
    pretrained: bool = False, ctx: Devices = cpu(), root: str | None = None, **kwargs: Any
) -> HybridBlock:
    """Returns AlexNet for images of 224x224.

    Parameters
    ----------
    pretrained : bool, default False
        Whether to load trained parameters; see `model_store.get_model_file`.
    ctx : Context, default cpu()
        Device to load them to.
    root : str, default $MXNET_HOME/models
        Folder of the parameter files.
    **kwargs
        Arguments of `AlexNet`, such as classes.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.alexnet(classes=10)
    >>> net.output.weight.shape
    (10, 0)
    """
    net = AlexNet(**kwargs)
    if pretrained:
        net.load_parameters(get_model_file("alexnet", root=root), ctx=ctx)
    return net
