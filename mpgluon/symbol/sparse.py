"""``mx.sym.sparse``: the same ops as in ``mx.sym``.

The bound arrays and ``var(stype=...)`` determine which arrays are sparse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._namespaces import fill
from .creation import UpSampling as UpSampling

if TYPE_CHECKING:
    from ._sparse_named_ops import *  # noqa: F403
    from .op import *  # noqa: F403

fill("sparse", globals())
fill("op", globals())
