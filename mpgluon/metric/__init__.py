"""Measures of how well predictions fit labels.

A metric gathers a sum and a number of instances over calls of `update(labels, preds)`, both lists
of arrays (single arrays are accepted); `get()` gives the mean since the last `reset()` or
`reset_local()`, `get_global()` the one since the last `reset()`. Reading values waits for them; so
it happens once per update, after all device work of it is queued.
"""

from __future__ import annotations

from .. import ndarray as ndarray  # GluonTS imports it from here
from .._hints import near_names as _near_names
from .base import *
from .base import __all__ as _base
from .classification import *
from .classification import __all__ as _classification
from .regression import *
from .regression import __all__ as _regression

__all__ = [*_base, *_classification, *_regression]

_near_names(__name__)
