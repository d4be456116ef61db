"""Automatic mixed precision: ``mx.contrib.amp``."""

from . import lists as lists
from .amp import *
from .amp import __all__ as _amp
from .loss_scaler import LossScaler as LossScaler

__all__ = [*_amp, "LossScaler"]
