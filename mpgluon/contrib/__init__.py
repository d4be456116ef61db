"""``mx.contrib``: the ops that MXNet keeps under ``contrib``, by the names ``mx.contrib.nd`` and
``mx.contrib.sym``."""

from ..ndarray import contrib as nd, contrib as ndarray
from ..symbol import contrib as sym, contrib as symbol

__all__ = ["nd", "ndarray", "sym", "symbol"]
