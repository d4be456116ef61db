"""``mx.contrib``: the ops that MXNet keeps under ``contrib``, by the names ``mx.contrib.nd`` and
``mx.contrib.sym``, and vocabularies and word vectors, ``mx.contrib.text``."""

from ..ndarray import contrib as nd, contrib as ndarray
from ..symbol import contrib as sym, contrib as symbol
from . import text

__all__ = ["nd", "ndarray", "sym", "symbol", "text"]
