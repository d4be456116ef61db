"""Residual networks: version 1 (`arXiv:1512.03385`) and version 2, with pre-activation
(`arXiv:1603.05027`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....context import cpu
from ... import nn
from ...block import HybridBlock
from ..model_store import get_model_file
from ._constructors import constructor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...._internal.types import Devices

__all__ = [
    "ResNetV1",
    "ResNetV2",
    "BasicBlockV1",
    "BasicBlockV2",
    "BottleneckV1",
    "BottleneckV2",
    "resnet18_v1",
    "resnet34_v1",
    "resnet50_v1",
    "resnet101_v1",
    "resnet152_v1",
    "resnet18_v2",
    "resnet34_v2",
    "resnet50_v2",
    "resnet101_v2",
    "resnet152_v2",
    "get_resnet",
]


def _conv3x3(channels, stride, in_channels):
    return nn.Conv2D(channels, 3, stride, 1, use_bias=False, in_channels=in_channels)


def _projection(channels, stride, in_channels):
    return nn.Conv2D(channels, 1, stride, use_bias=False, in_channels=in_channels)


class _BlockV1(HybridBlock):
    """A residual block of version 1.

    Parameters
    ----------
    channels : int
        Channels of the output.
    stride : int
        Stride of the first convolution.
    downsample : bool, default False
        Whether the shortcut has a convolution, because stride or channels change.
    in_channels : int, default 0
        0 to infer it in the first forward pass.
    """

    def __init__(
        self,
        channels: int,
        stride: int,
        downsample: bool = False,
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.body: nn.HybridSequential = nn.HybridSequential(prefix="")
        self._fill(self.body, channels, stride, in_channels)
        self.downsample: nn.HybridSequential | None = None
        if downsample:
            self.downsample = nn.HybridSequential(prefix="")
            self.downsample.add(_projection(channels, stride, in_channels), nn.BatchNorm())

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        around = x if self.downsample is None else self.downsample(x)
        return F.Activation(self.body(x) + around, act_type="relu")


class BasicBlockV1(_BlockV1):
    __doc__ = _BlockV1.__doc__.replace(
        "A residual block",
        "Two 3x3 convolutions: the residual block of the 18- and 34-layer networks,",
    )

    def _fill(self, body, channels, stride, in_channels):
        body.add(_conv3x3(channels, stride, in_channels), nn.BatchNorm(), nn.Activation("relu"))
        body.add(_conv3x3(channels, 1, channels), nn.BatchNorm())


class BottleneckV1(_BlockV1):
    __doc__ = _BlockV1.__doc__.replace(
        "A residual block",
        "A 3x3 convolution between two 1x1 ones: the block of networks of 50 or more layers,",
    )

    def _fill(self, body, channels, stride, in_channels):
        body.add(nn.Conv2D(channels // 4, 1, stride), nn.BatchNorm(), nn.Activation("relu"))
        body.add(_conv3x3(channels // 4, 1, channels // 4), nn.BatchNorm(), nn.Activation("relu"))
        body.add(nn.Conv2D(channels, 1, 1), nn.BatchNorm())


class _BlockV2(HybridBlock):
    __doc__ = _BlockV1.__doc__.replace(
        "version 1.", "version 2: normalization and relu precede each convolution."
    )

    def __init__(
        self,
        channels: int,
        stride: int,
        downsample: bool = False,
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._pairs = []
        for i, make in enumerate(self._convolutions(channels, stride, in_channels), 1):
            setattr(self, f"bn{i}", nn.BatchNorm())
            setattr(self, f"conv{i}", make())
            self._pairs.append((f"bn{i}", f"conv{i}"))
        self.downsample: nn.Conv2D | None = (
            _projection(channels, stride, in_channels) if downsample else None
        )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        around = x
        for i, (norm, conv) in enumerate(self._pairs):
            x = F.Activation(getattr(self, norm)(x), act_type="relu")
            if i == 0 and self.downsample is not None:
                around = self.downsample(x)
            x = getattr(self, conv)(x)
        return x + around


class BasicBlockV2(_BlockV2):
    __doc__ = _BlockV2.__doc__.replace(
        "A residual block",
        "Two 3x3 convolutions: the residual block of the 18- and 34-layer networks,",
    )

    def _convolutions(self, channels, stride, in_channels):
        return (
            lambda: _conv3x3(channels, stride, in_channels),
            lambda: _conv3x3(channels, 1, channels),
        )


class BottleneckV2(_BlockV2):
    __doc__ = _BlockV2.__doc__.replace(
        "A residual block",
        "A 3x3 convolution between two 1x1 ones: the block of networks of 50 or more layers,",
    )

    def _convolutions(self, channels, stride, in_channels):
        return (
            lambda: nn.Conv2D(channels // 4, 1, 1, use_bias=False),
            lambda: _conv3x3(channels // 4, stride, channels // 4),
            lambda: nn.Conv2D(channels, 1, 1, use_bias=False),
        )


class _ResNet(HybridBlock):
    """A residual network of version 1.

    Parameters
    ----------
    block : type
        Class of the residual blocks: BasicBlockV1 or BottleneckV1.
    layers : list of int
        Number of blocks of each stage.
    channels : list of int
        Channels of the first convolution and of each stage.
    classes : int, default 1000
        Number of classes, the features of the output.
    thumbnail : bool, default False
        For small images: the first convolution is 3x3, without pooling before the stages.
    """

    def __init__(
        self,
        block: type[HybridBlock],
        layers: Sequence[int],
        channels: Sequence[int],
        classes: int = 1000,
        thumbnail: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if len(layers) != len(channels) - 1:
            raise AssertionError(
                f"channels must have one more element than layers, not {len(channels)} for "
                f"{len(layers)}"
            )
        with self.name_scope():
            self.features: nn.HybridSequential = nn.HybridSequential(prefix="")
            self._before()
            if thumbnail:
                self.features.add(_conv3x3(channels[0], 1, 0))
            else:
                self.features.add(
                    nn.Conv2D(channels[0], 7, 2, 3, use_bias=False),
                    nn.BatchNorm(),
                    nn.Activation("relu"),
                    nn.MaxPool2D(3, 2, 1),
                )
            for i, (blocks, inputs, outputs) in enumerate(zip(layers, channels, channels[1:])):
                self.features.add(
                    self._stage(block, blocks, inputs, outputs, 1 if i == 0 else 2, i + 1)
                )
            self._behind()
            self.output: nn.Dense = nn.Dense(classes, in_units=channels[-1])

    def _stage(self, block, blocks, inputs, outputs, stride, number):
        stage = nn.HybridSequential(prefix=f"stage{number}_")
        with stage.name_scope():
            stage.add(block(outputs, stride, outputs != inputs, in_channels=inputs, prefix=""))
            for _ in range(blocks - 1):
                stage.add(block(outputs, 1, False, in_channels=outputs, prefix=""))
        return stage

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.output(self.features(x))


class ResNetV1(_ResNet):
    __doc__ = _ResNet.__doc__

    def _before(self):
        pass

    def _behind(self):
        self.features.add(nn.GlobalAvgPool2D())


class ResNetV2(_ResNet):
    __doc__ = _ResNet.__doc__.replace("version 1", "version 2").replace("V1", "V2")

    def _before(self):
        self.features.add(nn.BatchNorm(scale=False, center=False))

    def _behind(self):
        self.features.add(nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Flatten())


_BASIC, _DEEP = [64, 64, 128, 256, 512], [64, 256, 512, 1024, 2048]
resnet_spec: dict[int, tuple[str, list[int], list[int]]] = {
    18: ("basic_block", [2, 2, 2, 2], _BASIC),
    34: ("basic_block", [3, 4, 6, 3], _BASIC),
    50: ("bottle_neck", [3, 4, 6, 3], _DEEP),
    101: ("bottle_neck", [3, 4, 23, 3], _DEEP),
    152: ("bottle_neck", [3, 8, 36, 3], _DEEP),
}
# Indexed by version - 1.
resnet_net_versions: list[type[HybridBlock]] = [ResNetV1, ResNetV2]
resnet_block_versions: list[dict[str, type[HybridBlock]]] = [
    {"basic_block": BasicBlockV1, "bottle_neck": BottleneckV1},
    {"basic_block": BasicBlockV2, "bottle_neck": BottleneckV2},
]


def get_resnet(
    version: int,
    num_layers: int,
    pretrained: bool = False,
    ctx: Devices = cpu(),
    root: str | None = None,
    **kwargs: Any,
) -> HybridBlock:
    """Returns a ResNet for images of 224x224.

    Parameters
    ----------
    version : int
        1 or 2.
    num_layers : int
        18, 34, 50, 101 or 152.
    pretrained : bool, default False
        Whether to load trained parameters; see `model_store.get_model_file`.
    ctx : Context, default cpu()
        Device to load them to.
    root : str, default $MXNET_HOME/models
        Folder of the parameter files.
    **kwargs
        Arguments of `ResNetV1` or `ResNetV2`, such as classes.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.get_resnet(2, 18, classes=10)
    >>> net.output.weight.shape
    (10, 512)
    """
    if num_layers not in resnet_spec:
        raise AssertionError(
            f"num_layers must be one of {', '.join(map(str, resnet_spec))}, not {num_layers}"
        )
    if version not in (1, 2):
        raise AssertionError(f"version must be 1 or 2, not {version}")
    kind, layers, channels = resnet_spec[num_layers]
    block = resnet_block_versions[version - 1][kind]
    net = resnet_net_versions[version - 1](block, layers, channels, **kwargs)
    if pretrained:
        net.load_parameters(get_model_file(f"resnet{num_layers}_v{version}", root=root), ctx=ctx)
    return net


def _resnet(num_layers: int, version: int) -> Callable[..., HybridBlock]:
    what = f"ResNet-{num_layers} of version {version}"
    return constructor(f"resnet{num_layers}_v{version}", what, get_resnet, version, num_layers)


resnet18_v1: Callable[..., HybridBlock] = _resnet(18, 1)
resnet34_v1: Callable[..., HybridBlock] = _resnet(34, 1)
resnet50_v1: Callable[..., HybridBlock] = _resnet(50, 1)
resnet101_v1: Callable[..., HybridBlock] = _resnet(101, 1)
resnet152_v1: Callable[..., HybridBlock] = _resnet(152, 1)
resnet18_v2: Callable[..., HybridBlock] = _resnet(18, 2)
resnet34_v2: Callable[..., HybridBlock] = _resnet(34, 2)
resnet50_v2: Callable[..., HybridBlock] = _resnet(50, 2)
resnet101_v2: Callable[..., HybridBlock] = _resnet(101, 2)
resnet152_v2: Callable[..., HybridBlock] = _resnet(152, 2)
