"""A program that runs as several processes, *ranks*, started by ``mpirun``.

Every rank runs the same script. A device that names its rank, such as ``mx.cpu(0, rank=1)``, is the
same device for all ranks. Its rank computes there and holds its arrays. For the other ranks, an
array on it only has a shape, a dtype and a device. A device without a rank belongs to the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._internal import ranks
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
    return ranks.own()


def num_ranks() -> int:
    """Returns the number of processes of this program; 1 if it was not started by ``mpirun``.

    Examples
    --------
    >>> mx.parallel.num_ranks()
    1
    """
    return ranks.count()


def barrier() -> None:
    """Waits until all ranks have called it.

    Raises
    ------
    MXNetError
        If the ranks have queued different transfers, because they run different programs.

    Examples
    --------
    >>> mx.parallel.barrier()
    """
    ranks.barrier()


def fetch(arrays: Any) -> Any:
    """Copies arrays to all ranks. Collective: all ranks must call it.

    Parameters
    ----------
    arrays : NDArray, or a list, tuple or dict of them, to any depth
        Arrays on devices of any ranks.

    Returns
    -------
    NDArray, or the same structure with copied arrays
        The same values on ``cpu(0)`` of the process.

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
    raise TypeError(f"fetch: expected NDArrays, got {type(arrays).__name__}")
