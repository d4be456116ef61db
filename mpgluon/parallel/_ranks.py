"""One program on several processes, *ranks*, which ``mpirun`` starts.

Every rank runs the same script. A device that names its rank, ``mx.cpu(0, rank=1)``, is one device
for all of them: the rank that it belongs to computes there and holds what lies there, for the
others an array on it has a shape, a dtype and a device only. A device without a rank is the
process's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _ranks
from ..context import cpu
from ..ndarray import NDArray

if TYPE_CHECKING:
    from typing import Any

__all__ = ["barrier", "fetch", "num_ranks", "rank"]


def rank() -> int:
    """Returns the rank of this process, from 0.

    Examples
    --------
    >>> mx.parallel.rank()
    0
    """
    return _ranks.own()


def num_ranks() -> int:
    """Returns the number of processes of this program; 1 where it was not started by ``mpirun``.

    Examples
    --------
    >>> mx.parallel.num_ranks()
    1
    """
    return _ranks.count()


def barrier() -> None:
    """Returns when all ranks have called it.

    Raises
    ------
    MXNetError
        If the ranks have queued different transfers so far: they run different programs.

    Examples
    --------
    >>> mx.parallel.barrier()
    """
    _ranks.barrier()


def fetch(arrays: Any) -> Any:
    """Brings arrays to all ranks. All ranks call it.

    Parameters
    ----------
    arrays : NDArray, or a list, tuple or dict of them, to any depth
        On devices of any ranks.

    Returns
    -------
    NDArray, or what was given with arrays in place of arrays
        The same values on ``cpu(0)``, the process's own.

    Examples
    --------
    >>> x = nd.ones(2, ctx=mx.cpu(0, rank=0))
    >>> mx.parallel.fetch(x).asnumpy()
    array([1., 1.], dtype=float32)
    """
    if isinstance(arrays, NDArray):
        return arrays.as_in_context(cpu(0))
    if isinstance(arrays, dict):
        return {key: fetch(value) for key, value in arrays.items()}
    if isinstance(arrays, (list, tuple)):
        return type(arrays)(fetch(value) for value in arrays)
    raise TypeError(f"fetch takes NDArrays, not {type(arrays).__name__}")
