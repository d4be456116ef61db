"""DenseNet: each layer reads the outputs of all previous layers in its stage
(`arXiv:1608.06993`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....context import cpu
from ... import nn
from ...block import HybridBlock
from ...contrib.nn import HybridConcurrent, Identity
from ..model_store import get_model_file
from ._constructors import constructor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...._internal.types import Devices

__all__ = ["DenseNet", "densenet121", "densenet161", "densenet169", "densenet201"]


def _layer(growth_rate, bn_size, dropout):
    """Returns a layer that appends `growth_rate` channels to its input."""
    added = nn.HybridSequential(prefix="")
    added.add(
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.Conv2D(bn_size * growth_rate, 1, use_bias=False),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.Conv2D(growth_rate, 3, padding=1, use_bias=False),
    )
    if dropout:
        added.add(nn.Dropout(dropout))
    out = HybridConcurrent(axis=1, prefix="")
    out.add(Identity(), added)
    return out


def _stage(number, layers, growth_rate, bn_size, dropout):
    out = nn.HybridSequential(prefix=f"stage{number}_")
    with out.name_scope():
        out.add(*(_layer(growth_rate, bn_size, dropout) for _ in range(layers)))
    return out


def _transition(channels):
    """Returns a transition layer, which halves height and width."""
    out = nn.HybridSequential(prefix="")
    out.add(
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.Conv2D(channels, 1, use_bias=False),
        nn.AvgPool2D(2, 2),
    )
    return out


class DenseNet(HybridBlock):
    """A DenseNet with a 1x1 convolution before each 3x3 convolution, and transitions that halve the
    channels between stages.

    Parameters
    ----------
    num_init_features : int
        Channels of the first convolution.
    growth_rate : int
        Channels that each layer adds.
    block_config : list of int
        Number of layers of each stage.
    bn_size : int, default 4
        Channels after a layer's 1x1 convolution, as a multiple of growth_rate.
    dropout : float, default 0
        Dropout rate after each layer; 0 disables dropout.
    classes : int, default 1000
        Number of classes, the features of the output.

    Examples
    --------
    >>> net = gluon.model_zoo.vision.DenseNet(8, 4, [2, 2], classes=10)
    >>> net.initialize()
    >>> net(nd.zeros((1, 3, 56, 56))).shape
    (1, 10)
    """

    def __init__(
        self,
        num_init_features: int,
        growth_rate: int,
        block_config: Sequence[int],
        bn_size: int = 4,
        dropout: float = 0,
        classes: int = 1000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features: nn.HybridSequential = nn.HybridSequential(prefix="")
            self.features.add(
                nn.Conv2D(num_init_features, 7, 2, 3, use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
                nn.MaxPool2D(3, 2, 1),
            )
            channels = num_init_features
            for number, layers in enumerate(block_config, 1):
                self.features.add(_stage(number, layers, growth_rate, bn_size, dropout))
                channels += layers * growth_rate
                if number < len(block_config):
                    channels //= 2
                    self.features.add(_transition(channels))
            self.features.add(nn.BatchNorm(), nn.Activation("relu"), nn.AvgPool2D(7), nn.Flatten())
            self.output: nn.Dense = nn.Dense(classes)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.output(self.features(x))


densenet_spec: dict[int, tuple[int, int, list[int]]] = {
    121: (64, 32, [6, 12, 24, 16]),
    161: (96, 48, [6, 12, 36, 24]),
    169: (64, 32, [6, 12, 32, 32]),
    201: (64, 32, [6, 12, 48, 32]),
}


def get_densenet(
    num_layers: int,
    pretrained: bool = False,
    ctx: Devices = cpu(),
    root: str | None = None,
    **kwargs: Any,
) -> HybridBlock:
    """Returns a DenseNet for images of 224x224.

    Parameters
    ----------
    num_layers : int
        121, 161, 169 or 201. Raises ValueError for other values.
    pretrained : bool, default False
        Whether to load trained parameters; see `model_store.get_model_file`.
    ctx : Context, default cpu()
        Device to load them to.
    root : str, default $MXNET_HOME/models
        Folder of the parameter files.
    **kwargs
        Arguments of `DenseNet`, such as classes and dropout.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.densenet.get_densenet(121, classes=10)
    >>> net.features[0].weight.shape
    (64, 0, 7, 7)
    """
    if num_layers not in densenet_spec:
        raise ValueError(
            f"num_layers must be one of {', '.join(map(str, densenet_spec))}, not {num_layers}"
        )
    net = DenseNet(*densenet_spec[num_layers], **kwargs)
    if pretrained:
        net.load_parameters(get_model_file(f"densenet{num_layers}", root=root), ctx=ctx)
    return net


def _densenet(num_layers: int) -> Callable[..., HybridBlock]:
    what = f"DenseNet of {num_layers} layers"
    return constructor(f"densenet{num_layers}", what, get_densenet, num_layers)


densenet121: Callable[..., HybridBlock] = _densenet(121)
densenet161: Callable[..., HybridBlock] = _densenet(161)
densenet169: Callable[..., HybridBlock] = _densenet(169)
densenet201: Callable[..., HybridBlock] = _densenet(201)
