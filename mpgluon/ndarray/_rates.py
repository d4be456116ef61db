"""Parameters of samplers from those that users give."""

import math

import numpy as np


def rate_of(scale):
    """``1 / scale``, in the limit for 0; what cannot be a parameter as it is, to be refused."""
    if isinstance(scale, (int, float, np.generic)):
        return 1.0 / scale if scale else math.inf
    return 1.0 / scale if hasattr(scale, "__rtruediv__") else scale
