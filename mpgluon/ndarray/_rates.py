"""Conversion of samplers' user-facing parameters to the ops' parameters."""

import math

import numpy as np


def rate_of(scale):
    """Returns ``1 / scale``, or infinity for 0. Returns an invalid parameter unchanged, so that the
    op rejects it."""
    if isinstance(scale, (int, float, np.generic)):
        return 1.0 / scale if scale else math.inf
    return 1.0 / scale if hasattr(scale, "__rtruediv__") else scale
