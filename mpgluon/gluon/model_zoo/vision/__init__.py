"""Networks for images.

Each network has the same name, parameter names and structure as in MXNet, so parameter files can be
exchanged. Images are arrays of shape (batch, 3, height, width). Training images were scaled to
0..1 and normalized with mean (0.485, 0.456, 0.406) and standard deviation (0.229, 0.224, 0.225).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._internal.hints import near as _near
from .alexnet import *
from .alexnet import __all__ as _alexnet
from .densenet import *
from .densenet import __all__ as _densenet
from .inception import *
from .inception import __all__ as _inception
from .mobilenet import *
from .mobilenet import __all__ as _mobilenet
from .resnet import *
from .resnet import __all__ as _resnet
from .squeezenet import *
from .squeezenet import __all__ as _squeezenet
from .vgg import *
from .vgg import __all__ as _vgg

if TYPE_CHECKING:
    from ...block import HybridBlock

__all__ = [
    "get_model",
    *_alexnet,
    *_densenet,
    *_inception,
    *_mobilenet,
    *_resnet,
    *_squeezenet,
    *_vgg,
]

_MODELS = {
    "alexnet": alexnet,
    "densenet121": densenet121,
    "densenet161": densenet161,
    "densenet169": densenet169,
    "densenet201": densenet201,
    "inceptionv3": inception_v3,
    "mobilenet0.25": mobilenet0_25,
    "mobilenet0.5": mobilenet0_5,
    "mobilenet0.75": mobilenet0_75,
    "mobilenet1.0": mobilenet1_0,
    "mobilenetv2_0.25": mobilenet_v2_0_25,
    "mobilenetv2_0.5": mobilenet_v2_0_5,
    "mobilenetv2_0.75": mobilenet_v2_0_75,
    "mobilenetv2_1.0": mobilenet_v2_1_0,
    "resnet101_v1": resnet101_v1,
    "resnet101_v2": resnet101_v2,
    "resnet152_v1": resnet152_v1,
    "resnet152_v2": resnet152_v2,
    "resnet18_v1": resnet18_v1,
    "resnet18_v2": resnet18_v2,
    "resnet34_v1": resnet34_v1,
    "resnet34_v2": resnet34_v2,
    "resnet50_v1": resnet50_v1,
    "resnet50_v2": resnet50_v2,
    "squeezenet1.0": squeezenet1_0,
    "squeezenet1.1": squeezenet1_1,
    "vgg11": vgg11,
    "vgg11_bn": vgg11_bn,
    "vgg13": vgg13,
    "vgg13_bn": vgg13_bn,
    "vgg16": vgg16,
    "vgg16_bn": vgg16_bn,
    "vgg19": vgg19,
    "vgg19_bn": vgg19_bn,
}


def get_model(name: str, **kwargs: Any) -> HybridBlock:
    """Returns a model by name, as in ``get_model('resnet18_v1', classes=10)``.

    Parameters
    ----------
    name : str
        Name of the model, such as ``'resnet18_v1'`` or ``'squeezenet1.0'``, in upper or lower case.
        Raises a ValueError that lists all names if it does not exist.
    **kwargs
        Arguments of the model's function.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.get_model("resnet18_v1", classes=10, thumbnail=True)
    >>> type(net).__name__
    'ResNetV1'
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a model must be a str, not {type(name).__name__}")
    if name.lower() not in _MODELS:
        raise ValueError(
            f"unknown model {name!r}{_near(name, _MODELS)}; expected one of "
            f"{', '.join(sorted(_MODELS))}"
        )
    return _MODELS[name.lower()](**kwargs)
