"""Recurrent layers and cells."""

from ..._internal.hints import near_names as _near_names
from .rnn_cell import *
from .rnn_cell import __all__ as _cells
from .rnn_layer import *
from .rnn_layer import __all__ as _layers

__all__ = [*_cells, *_layers]

_near_names(__name__)
