"""Recurrent cells over symbols, MXNet's interface before Gluon.

`unroll` creates the symbol of a whole sequence, for `Module` and `BucketingModule`. The package
also has iterators over sentences bucketed by length.
"""

from . import conv_cell, fused_cell, io, rnn, rnn_cell
from .conv_cell import *
from .fused_cell import *
from .io import *
from .rnn import *
from .rnn_cell import *

__all__ = [
    *conv_cell.__all__,
    *fused_cell.__all__,
    *io.__all__,
    *rnn.__all__,
    *rnn_cell.__all__,
]
