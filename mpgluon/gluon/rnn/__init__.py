"""Recurrent layers and cells."""

from .rnn_cell import *
from .rnn_cell import __all__ as _cells
from .rnn_layer import *
from .rnn_layer import __all__ as _layers

__all__ = [*_cells, *_layers]
