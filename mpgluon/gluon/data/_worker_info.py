"""Information about the worker process that loads data."""

from __future__ import annotations

from typing import Any, NamedTuple


class WorkerInfo(NamedTuple):
    """A worker process of a DataLoader, which `get_worker_info` returns.

    Parameters
    ----------
    id : int
        Number of the worker, from 0.
    num_workers : int
        Number of worker processes of the loader.
    seed : int
        Seed of this worker in this round. It differs for each worker.
    dataset : Dataset
        The worker's copy of the data set.

    Examples
    --------
    >>> gluon.data.WorkerInfo(0, 2, 7, None).num_workers
    2
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


class _State:
    """This process's worker, and whether a data set has asked for it since the stream began."""

    info: WorkerInfo | None = None
    asked = False


def get_worker_info() -> WorkerInfo | None:
    """Returns the `WorkerInfo` of a DataLoader's worker process, or None in all other processes.

    An IterableDataset that calls it must do so before its first sample, and must then return the
    share of its worker only. See `IterableDataset`.

    Examples
    --------
    >>> gluon.data.get_worker_info() is None
    True
    """
    if _State.info is not None and not _State.asked:
        _State.asked = True
        seed_all(_State.info.seed)
    return _State.info


def set_worker_info(info: WorkerInfo, asked: bool = False) -> None:
    """Sets the worker of this process. Unless `asked`, the first `get_worker_info` seeds the random
    number generators with the worker's seed."""
    _State.info, _State.asked = info, asked


def was_asked() -> bool:
    """True if the data set has called `get_worker_info` since `set_worker_info`."""
    return _State.asked


def mixed(base: int, number: int) -> int:
    """Returns a seed that depends on both numbers."""
    import numpy as np

    return int(np.random.SeedSequence([base, number]).generate_state(1)[0])


def seed_all(seed: int) -> None:
    """Seeds the random number generators of Python, NumPy and mpgluon."""
    import random

    import numpy as np

    from ... import random as mx_random

    random.seed(seed)
    np.random.seed(seed)
    mx_random.seed(seed)
