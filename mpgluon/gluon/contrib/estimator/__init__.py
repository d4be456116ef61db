"""Training loops: an `Estimator` trains a block and calls event handlers."""

from . import batch_processor, estimator, event_handler
from .batch_processor import *
from .estimator import *
from .event_handler import *

__all__ = [*batch_processor.__all__, *estimator.__all__, *event_handler.__all__]
