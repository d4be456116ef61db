"""Checkpoints of symbols and parameters, arguments of training callbacks, and `FeedForward`."""

from __future__ import annotations

import logging
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from . import kvstore as kvstores, ndarray as nd, symbol as sym
from ._internal.hints import late_names as _late_names
from .base import MXNetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._core import NDArray
    from .kvstore import KVStoreBase
    from .legacy._feed_forward import FeedForward as FeedForward
    from .symbol import Symbol


__all__ = ["BatchEndParam", "FeedForward", "load_checkpoint", "load_params", "save_checkpoint"]


class BatchEndParam(NamedTuple):
    """The argument of batch callbacks.

    Examples
    --------
    >>> mx.model.BatchEndParam(epoch=0, nbatch=5, eval_metric=None, locals=None).nbatch
    5
    """

    epoch: int
    nbatch: int
    eval_metric: Any  # an EvalMetric, or None
    locals: dict[str, Any] | None


def create_kvstore(
    kvstore: str | KVStoreBase | None, num_device: int, shapes: Sequence[Sequence[int]]
) -> tuple[KVStoreBase | None, bool]:
    """Returns (store, whether the store runs the optimizer) for parameters of these shapes.

    On a single device the store is None, unless it is an object or its name contains 'dist'. A
    store does not run the optimizer if `MXNET_UPDATE_ON_KVSTORE=0`, or if it is 'local' and a
    parameter has more than 16,777,216 elements.
    """
    if kvstore is None:
        return None, False
    setting = os.environ.get("MXNET_UPDATE_ON_KVSTORE") or "1"
    if setting not in ("0", "1"):
        raise ValueError(
            f"environment variable MXNET_UPDATE_ON_KVSTORE must be 0 or 1, not {setting!r}"
        )
    updates = setting == "1"
    if isinstance(kvstore, str):
        if num_device == 1 and "dist" not in kvstore:
            return None, False
        store = kvstores.create(kvstore)
        if kvstore == "local" and any(math.prod(shape) > 1 << 24 for shape in shapes):
            updates = False
    elif isinstance(kvstore, kvstores.KVStoreBase):
        store = kvstore
    else:
        raise TypeError("kvstore must be KVStore, str or None")
    return store, updates and store.is_capable(kvstores.KVStoreBase.OPTIMIZER)


def create_sparse_kvstore(kvstore: str | KVStoreBase) -> tuple[KVStoreBase, bool]:
    """Returns (store, True) for row_sparse parameters: they always need a store that updates."""
    store = kvstores.create(kvstore) if isinstance(kvstore, str) else kvstore
    if not isinstance(store, kvstores.KVStore):
        raise TypeError(
            "parameters with row_sparse storage need a KVStore or the name of one, not "
            f"{type(kvstore).__name__}"
        )
    return store, True


def _create_kvstore(kvstore, num_device, arg_params):
    return create_kvstore(kvstore, num_device, [array.shape for array in arg_params.values()])


_create_sparse_kvstore = create_sparse_kvstore


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Symbol | None,
    arg_params: dict[str, NDArray],
    aux_params: dict[str, NDArray],
    remove_amp_cast: bool = True,
) -> None:
    """Writes ``prefix-symbol.json``, unless `symbol` is None, and ``prefix-0001.params``.

    The number in the second name is the epoch.

    arg_params, aux_params: dicts of name to NDArray.

    Examples
    --------
    >>> import os, tempfile
    >>> y = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=1, name="fc")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "net")
    ...     mx.model.save_checkpoint(path, 3, y, {"fc_weight": nd.ones((1, 2))}, {})
    ...     symbol, arg_params, aux_params = mx.model.load_checkpoint(path, 3)
    ...     names = sorted(os.listdir(folder))
    >>> names, arg_params["fc_weight"].shape
    (['net-0003.params', 'net-symbol.json'], (1, 2))
    """
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json", remove_amp_cast=remove_amp_cast)
    arrays = {f"arg:{name}": array for name, array in arg_params.items()}
    arrays.update({f"aux:{name}": array for name, array in aux_params.items()})
    path = f"{prefix}-{epoch:04d}.params"
    nd.save(path, arrays)
    logging.info('Saved checkpoint to "%s"', path)


def split_params(
    arrays: Any, fname: str, strict: bool
) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Splits the arrays of a file into dicts of arguments and of auxiliary states.

    With `strict`, names of any other kind raise ValueError.
    """
    found = {"arg": {}, "aux": {}}
    if not isinstance(arrays, dict):
        raise ValueError(f"Invalid param file {fname}: it holds arrays without names")
    for key, array in arrays.items():
        kind, colon, name = key.partition(":")
        if not colon or strict and kind not in found:
            raise ValueError(
                f"Invalid param file {fname}: {key!r} is neither an argument (arg:) nor an "
                "auxiliary state (aux:)"
            )
        if array is None:
            raise MXNetError(f"Invalid param file {fname}: the array {key!r} is missing")
        found.setdefault(kind, {})[name] = array
    return found["arg"], found["aux"]


def load_params(prefix: str, epoch: int) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Loads the dicts of arguments and auxiliary states from ``prefix-0001.params``.

    Raises ValueError for a file of another kind.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "net")
    ...     arguments, states = {"gamma": nd.ones(3)}, {"mean": nd.ones(2)}
    ...     mx.model.save_checkpoint(path, 3, None, arguments, states)
    ...     arg_params, aux_params = mx.model.load_params(path, 3)
    >>> arg_params["gamma"].shape, aux_params["mean"].shape
    ((3,), (2,))
    """
    fname = f"{prefix}-{epoch:04d}.params"
    arrays = nd.load(fname)
    if not arrays:
        logging.warning("Params file '%s' is empty", fname)
        return {}, {}
    return split_params(arrays, fname, False)


def load_checkpoint(
    prefix: str, epoch: int
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """Loads a checkpoint as ``(symbol, arg_params, aux_params)``; see `save_checkpoint`.

    Examples
    --------
    >>> import os, tempfile
    >>> y = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=1, name="fc")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "net")
    ...     mx.model.save_checkpoint(path, 3, y, {"fc_weight": nd.ones((1, 2))}, {})
    ...     symbol, arg_params, aux_params = mx.model.load_checkpoint(path, 3)
    >>> symbol.list_arguments(), arg_params["fc_weight"].shape
    (['x', 'fc_weight', 'fc_bias'], (1, 2))
    """
    return (sym.load(f"{prefix}-symbol.json"), *load_params(prefix, epoch))


_late_names(__name__, "_feed_forward")  # legacy/_feed_forward.py, which imports this module
