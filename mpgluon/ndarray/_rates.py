"""Conversion of samplers' user-facing parameters to the ops' parameters."""

import math

import numpy as np


def rate_of(scale):
    """Returns ``1 / scale``, infinity for 0, and any invalid parameter unchanged for the op to
    reject."""
    if isinstance(scale, (int, float, np.generic)):
        return 1.0 / scale if scale else math.inf
    return 1.0 / scale if hasattr(scale, "__rtruediv__") else scale
