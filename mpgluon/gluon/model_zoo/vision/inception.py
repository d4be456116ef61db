"""Inception version 3 (`arXiv:1512.00567`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....context import cpu
from ... import nn
from ...block import HybridBlock
from ...contrib.nn import HybridConcurrent
from ..model_store import get_model_file

if TYPE_CHECKING:
    from ...._internal.types import Devices

__all__ = ["Inception3", "inception_v3"]


def _sequence(*layers):
    out = nn.HybridSequential(prefix="")
    out.add(*layers)
    return out


def _conv(channels, kernel, strides=1, padding=0):
    return _sequence(
        nn.Conv2D(channels, kernel, strides, padding, use_bias=False),
        nn.BatchNorm(epsilon=0.001),
        nn.Activation("relu"),
    )


def _branch(*convolutions):
    return _sequence(*(_conv(*settings) for settings in convolutions))


def _mean_branch(channels):
    return _sequence(nn.AvgPool2D(3, 1, 1), _conv(channels, 1))


def _maximum_branch():
    return _sequence(nn.MaxPool2D(3, 2))


def _split_branch(*convolutions):
    """Returns a branch of convolutions that ends in parallel 1x3 and 3x1 convolutions."""
    trunk = _branch(*convolutions)
    parts = HybridConcurrent(axis=1, prefix="")
    parts.add(_branch((384, (1, 3), 1, (0, 1))), _branch((384, (3, 1), 1, (1, 0))))
    return _sequence(trunk, parts)


# Settings (kernel, stride, padding) of convolutions that keep the size. Sizes in the docstrings
# below are for images of 299x299.
_ROW, _COLUMN = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))


def _a(pooled):
    """Returns the branches of a module for inputs of 35x35."""
    return (
        _branch((64, 1)),
        _branch((48, 1), (64, 5, 1, 2)),
        _branch((64, 1), (96, 3, 1, 1), (96, 3, 1, 1)),
        _mean_branch(pooled),
    )


def _b():
    """Returns the branches of a module that reduces 35x35 to 17x17."""
    return (
        _branch((384, 3, 2)),
        _branch((64, 1), (96, 3, 1, 1), (96, 3, 2)),
        _maximum_branch(),
    )


def _c(narrow):
    """Returns the branches of a module for inputs of 17x17. Its inner convolutions have `narrow`
    channels."""
    return (
        _branch((192, 1)),
        _branch((narrow, 1), (narrow, *_ROW), (192, *_COLUMN)),
        _branch((narrow, 1), (narrow, *_COLUMN), (narrow, *_ROW), (narrow, *_COLUMN), (192, *_ROW)),
        _mean_branch(192),
    )


def _d():
    """Returns the branches of a module that reduces 17x17 to 8x8."""
    return (
        _branch((192, 1), (320, 3, 2)),
        _branch((192, 1), (192, *_ROW), (192, *_COLUMN), (192, 3, 2)),
        _maximum_branch(),
    )


def _e():
    """Returns the branches of a module for inputs of 8x8."""
    return (
        _branch((320, 1)),
        _split_branch((384, 1)),
        _split_branch((448, 1), (384, 3, 1, 1)),
        _mean_branch(192),
    )


def _module(prefix, branches, *settings):
    """Returns a module of parallel branches, which `branches` creates in the module's name
    scope."""
    out = HybridConcurrent(axis=1, prefix=prefix)
    with out.name_scope():
        out.add(*branches(*settings))
    return out


class Inception3(HybridBlock):
    """Modules of parallel convolutions with different kernel shapes, for images of 299x299.

    Parameters
    ----------
    classes : int, default 1000
        Number of classes, the features of the output.

    Examples
    --------
    >>> net = gluon.model_zoo.vision.Inception3(classes=10)
    >>> len(net.features), net.output.weight.shape
    (20, (10, 0))
    """

    def __init__(self, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features: nn.HybridSequential = nn.HybridSequential(prefix="")
            self.features.add(
                _conv(32, 3, 2),
                _conv(32, 3),
                _conv(64, 3, 1, 1),
                nn.MaxPool2D(3, 2),
                _conv(80, 1),
                _conv(192, 3),
                nn.MaxPool2D(3, 2),
                _module("A1_", _a, 32),
                _module("A2_", _a, 64),
                _module("A3_", _a, 64),
                _module("B_", _b),
                _module("C1_", _c, 128),
                _module("C2_", _c, 160),
                _module("C3_", _c, 160),
                _module("C4_", _c, 192),
                _module("D_", _d),
                _module("E1_", _e),
                _module("E2_", _e),
                nn.AvgPool2D(8),
                nn.Dropout(0.5),
            )
            self.output: nn.Dense = nn.Dense(classes)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.output(self.features(x))


def inception_v3(
    pretrained: bool = False, ctx: Devices = cpu(), root: str | None = None, **kwargs: Any
) -> HybridBlock:
    """Returns Inception version 3 for images of 299x299.

    Parameters
    ----------
    pretrained : bool, default False
        Whether to load trained parameters; see `model_store.get_model_file`.
    ctx : Context, default cpu()
        Device to load them to.
    root : str, default $MXNET_HOME/models
        Folder of the parameter files.
    **kwargs
        Arguments of `Inception3`, such as classes.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.inception_v3(classes=10)
    >>> net.features[0][0].weight.shape
    (32, 0, 3, 3)
    """
    net = Inception3(**kwargs)
    if pretrained:
        net.load_parameters(get_model_file("inceptionv3", root=root), ctx=ctx)
    return net
