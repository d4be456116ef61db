"""Checkpoints of symbols with their parameters, and what callbacks of training loops are given."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from . import ndarray as nd, symbol as sym
from .base import MXNetError

if TYPE_CHECKING:
    from typing import Any

    from ._core import NDArray
    from .symbol import Symbol


__all__ = ["BatchEndParam", "load_checkpoint", "load_params", "save_checkpoint"]


class BatchEndParam(NamedTuple):
    """The argument of callbacks for batches.

    Examples
    --------
    >>> mx.model.BatchEndParam(epoch=0, nbatch=5, eval_metric=None, locals=None).nbatch
    5
    """

    epoch: int
    nbatch: int
    eval_metric: Any  # an EvalMetric, or None
    locals: dict[str, Any] | None


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Symbol | None,
    arg_params: dict[str, NDArray],
    aux_params: dict[str, NDArray],
    remove_amp_cast: bool = True,
) -> None:
    """Writes ``prefix-symbol.json`` (unless `symbol` is None) and ``prefix-0001.params`` with the
    epoch's number.

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
    """The loaded arrays of a file, as dicts of arguments and of auxiliary states; strict: names of
    other kinds are errors, too."""
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
            raise MXNetError(f"Invalid param file {fname}: it leaves the array {key!r} out")
        found.setdefault(kind, {})[name] = array
    return found["arg"], found["aux"]


def load_params(prefix: str, epoch: int) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """The dicts of arguments and auxiliary states in ``prefix-0001.params``. ValueError for files
    of other kinds.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "net")
    ...     mx.model.save_checkpoint(path, 3, None, {"gamma": nd.ones(3)}, {"mean": nd.ones(2)})
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
    """``(symbol, arg_params, aux_params)`` of a checkpoint; see `save_checkpoint`.

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
