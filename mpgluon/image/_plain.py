"""Conversion of NumPy values and arrays to Python values."""

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
