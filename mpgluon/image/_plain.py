"""Values of NumPy and of arrays as Python's own."""

from typing import Any

import numpy as np

from .. import ndarray as nd


def plain(value: Any) -> Any:
    """A parameter as JSON can hold it, and as integers do not overflow: numbers of Python for those
    of NumPy, also in tuples and lists; lists for arrays."""
    value = value.asnumpy() if isinstance(value, nd.NDArray) else value
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value
