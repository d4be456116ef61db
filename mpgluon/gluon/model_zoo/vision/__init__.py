"""Networks for images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .resnet import *
from .resnet import __all__ as _resnet

if TYPE_CHECKING:
    from ...block import HybridBlock

__all__ = ["get_model", *_resnet]

_MODELS = {name: globals()[name] for name in _resnet if name.startswith("resnet")}


def get_model(name: str, **kwargs: Any) -> HybridBlock:
    """A model by its name, as ``get_model('resnet18_v1', classes=10)``.

    Parameters
    ----------
    name : str
        The name, such as ``'resnet18_v1'``; ValueError when there is none of it.
    **kwargs
        Parameters of the function of that name.

    Returns
    -------
    HybridBlock

    Examples
    --------
    >>> net = gluon.model_zoo.vision.get_model("resnet18_v1", classes=10, thumbnail=True)
    >>> type(net).__name__
    'ResNetV1'
    """
    if name.lower() not in _MODELS:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(sorted(_MODELS))}")
    return _MODELS[name.lower()](**kwargs)
