"""VGG: stacks of 3x3 convolutions (`arXiv:1409.1556`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import initializer
from ....context import cpu
from ... import nn
from ...block import HybridBlock
from ..model_store import get_model_file
from ._constructors import constructor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...._internal.types import Devices

__all__ = [
    "VGG",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
    "vgg11_bn",
    "vgg13_bn",
    "vgg16_bn",
    "vgg19_bn",
    "get_vgg",
]


def _dense(units, activation=None):
    return nn.Dense(
        units, activation=activation, weight_initializer="normal", bias_initializer="zeros"
    )


class VGG(HybridBlock):
    """Stages of 3x3 convolutions, each followed by a pooling layer, and three dense layers.

    Parameters
    ----------
    layers : list of int
        Number of convolutions of each stage.
    filters : list of int
        Channels of each stage's convolutions.
    classes : int, default 1000
        Number of classes, the features of the output.
    batch_norm : bool, default False
        Whether a BatchNorm follows each convolution.

    Raises
    ------
    AssertionError
        If `layers` and `filters` differ in length.

    Examples
    --------
    >>> net = gluon.model_zoo.vision.VGG([1, 2], [8, 16], classes=10)
    >>> len(net.features)
    12
    """

    def __init__(
        self,
        layers: Sequence[int],
        filters: Sequence[int],
        classes: int = 1000,
        batch_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if len(layers) != len(filters):
            raise AssertionError(
                f"filters must have one element for each of layers, not {len(filters)} for "
                f"{len(layers)}"
            )
        with self.name_scope():
            self.features: nn.HybridSequential = nn.HybridSequential(prefix="")
            for convolutions, channels in zip(layers, filters):
                self._stage(convolutions, channels, batch_norm)
            for _ in range(2):
                self.features.add(_dense(4096, "relu"), nn.Dropout(0.5))
            self.output: nn.Dense = _dense(classes)

    def _stage(self, convolutions, channels, batch_norm):
        for _ in range(convolutions):
            weights = initializer.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)
            self.features.add(
                nn.Conv2D(
                    channels, 3, padding=1, weight_initializer=weights, bias_initializer="zeros"
                )
            )
            if batch_norm:
                self.features.add(nn.BatchNorm())
            self.features.add(nn.Activation("relu"))
        self.features.add(nn.MaxPool2D(strides=2))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.output(self.features(x))


_FILTERS = [64, 128, 256, 512, 512]
vgg_spec: dict[int, tuple[list[int], list[int]]] = {
    11: ([1, 1, 2, 2, 2], _FILTERS),
    13: ([2, 2, 2, 2, 2], _FILTERS),
    16: ([2, 2, 3, 3, 3], _FILTERS),
    19: ([2, 2, 4, 4, 4], _FILTERS),
}


def get_vgg(
    num_layers: int,
    pretrained: bool = False,
    ctx: Devices = cpu(),
    root: str | None = None,
    **kwargs: Any,
) -> HybridBlock:
    """Returns a VGG for images of 224x224.

    Parameters
    ----------
    num_layers : int
        11, 13, 16 or 19. Raises ValueError for other values.
    pretrained : bool, default False
        Whether to load trained parameters; see `model_store.get_model_file`.
    ctx : Context, default cpu()
        Device to load them to.
    root : str, default $MXNET_HOME/models
        Folder of the parameter files.
    **kwargs
        Arguments of `VGG`, such as classes and batch_norm.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.get_vgg(11, batch_norm=True, classes=10)
    >>> net.output.weight.shape
    (10, 0)
    """
    if num_layers not in vgg_spec:
        raise ValueError(
            f"num_layers must be one of {', '.join(map(str, vgg_spec))}, not {num_layers}"
        )
    net = VGG(*vgg_spec[num_layers], **kwargs)
    if pretrained:
        name = f"vgg{num_layers}{'_bn' if kwargs.get('batch_norm') else ''}"
        net.load_parameters(get_model_file(name, root=root), ctx=ctx)
    return net


def _vgg(num_layers: int) -> Callable[..., HybridBlock]:
    return constructor(f"vgg{num_layers}", f"VGG of {num_layers} layers", get_vgg, num_layers)


def _vgg_bn(num_layers: int) -> Callable[..., HybridBlock]:
    what = f"VGG of {num_layers} layers with a BatchNorm after each convolution"
    return constructor(f"vgg{num_layers}_bn", what, get_vgg, num_layers, batch_norm=True)


vgg11: Callable[..., HybridBlock] = _vgg(11)
vgg13: Callable[..., HybridBlock] = _vgg(13)
vgg16: Callable[..., HybridBlock] = _vgg(16)
vgg19: Callable[..., HybridBlock] = _vgg(19)
vgg11_bn: Callable[..., HybridBlock] = _vgg_bn(11)
vgg13_bn: Callable[..., HybridBlock] = _vgg_bn(13)
vgg16_bn: Callable[..., HybridBlock] = _vgg_bn(16)
vgg19_bn: Callable[..., HybridBlock] = _vgg_bn(19)
