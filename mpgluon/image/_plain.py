"""Converts parameters to plain Python values, and the base class of augmenters, which store their
parameters."""

import json
from typing import Any

import numpy as np

from .. import ndarray as nd


def plain(value: Any) -> Any:
    """Converts a parameter to a value that JSON can hold and whose integers do not overflow.

    NumPy scalars become Python numbers, even in tuples and lists; arrays become lists.
    """
    value = value.asnumpy() if isinstance(value, nd.NDArray) else value
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


class Described:
    """Base class of augmenters. Stores the parameters for `repr` and `dumps`."""

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = {name: plain(value) for name, value in kwargs.items()}

    def __repr__(self) -> str:
        texts = [f"{name}={value!r}" for name, value in self._kwargs.items()]
        cut = [text if len(text) <= 60 else f"{text[:57]}..." for text in texts]
        return f"{type(self).__name__}({', '.join(cut)})"

    def dumps(self) -> Any:
        """Returns the JSON text of the lower-case class name and the parameters.

        Examples
        --------
        >>> mx.image.ResizeAug(256).dumps()
        '["resizeaug", {"size": 256, "interp": 2}]'
        """
        return json.dumps([type(self).__name__.lower(), self._kwargs])
