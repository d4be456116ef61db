"""Metrics, which measure how well predictions match labels.

A metric accumulates a sum and a number of instances over calls of `update(labels, preds)`, both
lists of arrays (single arrays are accepted). `get()` returns the mean since the last `reset()` or
`reset_local()`, and `get_global()` the mean since the last `reset()`. Reading values waits for
them, so each update reads only once, after all of its device work is queued.
"""

from __future__ import annotations

from .. import ndarray as ndarray  # GluonTS imports it from here
from .._internal.hints import near_names as _near_names
from .base import *
from .base import __all__ as _base
from .classification import *
from .classification import __all__ as _classification
from .regression import *
from .regression import __all__ as _regression

__all__ = [*_base, *_classification, *_regression]

_near_names(__name__)
