"""MobileNet (`arXiv:1704.04861`) and MobileNetV2 (`arXiv:1801.04381`): depthwise convolutions with
1x1 convolutions between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....context import cpu
from ... import nn
from ...block import HybridBlock
from ..model_store import get_model_file
from ._constructors import constructor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...._internal.types import Devices

__all__ = [
    "MobileNet",
    "MobileNetV2",
    "mobilenet1_0",
    "mobilenet_v2_1_0",
    "mobilenet0_75",
    "mobilenet_v2_0_75",
    "mobilenet0_5",
    "mobilenet_v2_0_5",
    "mobilenet0_25",
    "mobilenet_v2_0_25",
    "get_mobilenet",
    "get_mobilenet_v2",
]


class RELU6(HybridBlock):
    """ReLU6: clips the input to the range from 0 to 6.

    Examples
    --------
    >>> gluon.model_zoo.vision.mobilenet.RELU6()(nd.array([-1, 3, 9])).asnumpy().tolist()
    [0.0, 3.0, 6.0]
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.clip(x, 0, 6, name="relu6")


def _conv(channels, kernel=1, stride=1, groups=1, activation: type[HybridBlock] | None = None):
    """Yields a padded convolution, which keeps the size if the stride is 1, BatchNorm and an
    activation."""
    padding = kernel // 2
    yield nn.Conv2D(channels, kernel, stride, padding, groups=groups, use_bias=False)
    yield nn.BatchNorm()
    if activation is not None:
        yield activation()


def _relu():
    return nn.Activation("relu")


class LinearBottleneck(HybridBlock):
    """Inverted residual block: a 1x1 convolution expands the channels, a depthwise convolution
    follows, and a 1x1 convolution without an activation reduces them.

    If neither size nor channels change, the input is added to the result.

    Parameters
    ----------
    in_channels : int
        Channels of the input.
    channels : int
        Channels of the output.
    t : int
        Expansion factor of the channels.
    stride : int
        Stride of the depthwise convolution.

    Examples
    --------
    >>> block = gluon.model_zoo.vision.mobilenet.LinearBottleneck(4, 8, t=6, stride=2)
    >>> block.initialize()
    >>> block(nd.zeros((1, 4, 6, 6))).shape
    (1, 8, 3, 3)
    """

    def __init__(self, in_channels: int, channels: int, t: int, stride: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use_shortcut: bool = stride == 1 and in_channels == channels
        wide = in_channels * t
        with self.name_scope():
            self.out: nn.HybridSequential = nn.HybridSequential()
            self.out.add(
                *_conv(wide, activation=RELU6),
                *_conv(wide, 3, stride, wide, RELU6),
                *_conv(channels),
            )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        out = self.out(x)
        return F.elemwise_add(out, x) if self.use_shortcut else out


# Channels after each 1x1 convolution, and the stride of the depthwise convolution before each.
_CHANNELS = [64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]
_STRIDES = [1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1]


class MobileNet(HybridBlock):
    """A MobileNet for images of any size.

    Parameters
    ----------
    multiplier : float, default 1.0
        Width multiplier: a factor for all numbers of channels.
    classes : int, default 1000
        Number of classes, the features of the output.

    Examples
    --------
    >>> net = gluon.model_zoo.vision.MobileNet(0.25, classes=10)
    >>> net.initialize()
    >>> net(nd.zeros((1, 3, 32, 32))).shape
    (1, 10)
    """

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features: nn.HybridSequential = nn.HybridSequential(prefix="")
            inputs = int(32 * multiplier)
            self.features.add(*_conv(inputs, 3, 2, activation=_relu))
            for channels, stride in zip(_CHANNELS, _STRIDES):
                outputs = int(channels * multiplier)
                self.features.add(
                    *_conv(inputs, 3, stride, inputs, _relu), *_conv(outputs, activation=_relu)
                )
                inputs = outputs
            self.features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.output: nn.Dense = nn.Dense(classes)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.output(self.features(x))


# Stages of bottlenecks: channels, number of blocks, stride of the first block. The first stage does
# not expand the channels.
_STAGES = [
    (16, 1, 1),
    (24, 2, 2),
    (32, 3, 2),
    (64, 4, 2),
    (96, 3, 1),
    (160, 3, 2),
    (320, 1, 1),
]


class MobileNetV2(HybridBlock):
    """A MobileNetV2 for images of any size.

    Parameters
    ----------
    multiplier : float, default 1.0
        Width multiplier: a factor for all numbers of channels. The last convolution never gets
        narrower.
    classes : int, default 1000
        Number of classes, the features of the output.

    Examples
    --------
    >>> net = gluon.model_zoo.vision.MobileNetV2(0.25, classes=10)
    >>> net.initialize()
    >>> net(nd.zeros((1, 3, 32, 32))).shape
    (1, 10)
    """

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features: nn.HybridSequential = nn.HybridSequential(prefix="features_")
            with self.features.name_scope():
                self._fill(multiplier)
            self.output: nn.HybridSequential = nn.HybridSequential(prefix="output_")
            with self.output.name_scope():
                self.output.add(nn.Conv2D(classes, 1, use_bias=False, prefix="pred_"), nn.Flatten())

    def _fill(self, multiplier):
        inputs = int(32 * multiplier)
        self.features.add(*_conv(inputs, 3, 2, activation=RELU6))
        for number, (channels, blocks, stride) in enumerate(_STAGES):
            outputs, widening = int(channels * multiplier), 6 if number else 1
            for i in range(blocks):
                self.features.add(LinearBottleneck(inputs, outputs, widening, 1 if i else stride))
                inputs = outputs
        last = int(1280 * max(multiplier, 1.0))
        self.features.add(*_conv(last, activation=RELU6), nn.GlobalAvgPool2D())

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.output(self.features(x))


def get_mobilenet(
    multiplier: float,
    pretrained: bool = False,
    ctx: Devices = cpu(),
    root: str | None = None,
    **kwargs: Any,
) -> HybridBlock:
    """Returns a MobileNet.

    Parameters
    ----------
    multiplier : float
        Width multiplier; trained parameters exist for 1.0, 0.75, 0.5 and 0.25.
    pretrained : bool, default False
        Whether to load trained parameters; see `model_store.get_model_file`.
    ctx : Context, default cpu()
        Device to load them to.
    root : str, default $MXNET_HOME/models
        Folder of the parameter files.
    **kwargs
        Arguments of `MobileNet`, such as classes.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.get_mobilenet(0.5, classes=10)
    >>> net.features[0].weight.shape
    (16, 0, 3, 3)
    """
    net = MobileNet(multiplier, **kwargs)
    if pretrained:
        name = f"mobilenet{float(multiplier)}"
        net.load_parameters(get_model_file(name, root=root), ctx=ctx)
    return net


def get_mobilenet_v2(
    multiplier: float,
    pretrained: bool = False,
    ctx: Devices = cpu(),
    root: str | None = None,
    **kwargs: Any,
) -> HybridBlock:
    """Returns a MobileNetV2.

    Parameters
    ----------
    multiplier : float
        Width multiplier; trained parameters exist for 1.0, 0.75, 0.5 and 0.25.
    pretrained : bool, default False
        Whether to load trained parameters; see `model_store.get_model_file`.
    ctx : Context, default cpu()
        Device to load them to.
    root : str, default $MXNET_HOME/models
        Folder of the parameter files.
    **kwargs
        Arguments of `MobileNetV2`, such as classes.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.get_mobilenet_v2(0.5, classes=10)
    >>> net.features[0].weight.shape
    (16, 0, 3, 3)
    """
    net = MobileNetV2(multiplier, **kwargs)
    if pretrained:
        name = f"mobilenetv2_{float(multiplier)}"
        net.load_parameters(get_model_file(name, root=root), ctx=ctx)
    return net


def _mobilenet(width: str) -> Callable[..., HybridBlock]:
    name = f"mobilenet{width.replace('.', '_')}"
    return constructor(name, f"MobileNet of width {width}", get_mobilenet, float(width))


def _mobilenet_v2(width: str) -> Callable[..., HybridBlock]:
    name = f"mobilenet_v2_{width.replace('.', '_')}"
    return constructor(name, f"MobileNetV2 of width {width}", get_mobilenet_v2, float(width))


mobilenet1_0: Callable[..., HybridBlock] = _mobilenet("1.0")
mobilenet0_75: Callable[..., HybridBlock] = _mobilenet("0.75")
mobilenet0_5: Callable[..., HybridBlock] = _mobilenet("0.5")
mobilenet0_25: Callable[..., HybridBlock] = _mobilenet("0.25")
mobilenet_v2_1_0: Callable[..., HybridBlock] = _mobilenet_v2("1.0")
mobilenet_v2_0_75: Callable[..., HybridBlock] = _mobilenet_v2("0.75")
mobilenet_v2_0_5: Callable[..., HybridBlock] = _mobilenet_v2("0.5")
mobilenet_v2_0_25: Callable[..., HybridBlock] = _mobilenet_v2("0.25")
