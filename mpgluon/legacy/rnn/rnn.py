"""Checkpoints with unpacked cell weights, which are interchangeable between fused and single
cells."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from mpgluon.model import load_checkpoint, save_checkpoint

from .rnn_cell import BaseRNNCell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from mpgluon._core import NDArray
    from mpgluon.symbol import Symbol


__all__ = ["rnn_unroll", "save_rnn_checkpoint", "load_rnn_checkpoint", "do_rnn_checkpoint"]


def _list(cells):
    return [cells] if isinstance(cells, BaseRNNCell) else cells


def rnn_unroll(
    cell: BaseRNNCell,
    length: int,
    inputs: Symbol | Sequence[Symbol] | None = None,
    begin_state: Sequence[Symbol] | None = None,
    input_prefix: str = "",
    layout: str = "NTC",
) -> tuple[Any, Any]:
    """Calls ``cell.unroll``; the default inputs are variables named ``input_prefix + 't0_data'``,
    ..."""
    from mpgluon import symbol

    warnings.warn("rnn_unroll is deprecated; call cell.unroll", stacklevel=2)
    if inputs is None:
        inputs = [symbol.Variable(f"{input_prefix}t{i}_data") for i in range(length)]
    return cell.unroll(length, inputs=inputs, begin_state=begin_state, layout=layout)


def save_rnn_checkpoint(
    cells: BaseRNNCell | Sequence[BaseRNNCell],
    prefix: str,
    epoch: int,
    symbol: Symbol,
    arg_params: dict[str, NDArray],
    aux_params: dict[str, NDArray],
) -> None:
    """Calls `mx.model.save_checkpoint` with the weights of `cells`, one or a list, unpacked."""
    for cell in _list(cells):
        arg_params = cell.unpack_weights(arg_params)
    save_checkpoint(prefix, epoch, symbol, arg_params, aux_params)


def load_rnn_checkpoint(
    cells: BaseRNNCell | Sequence[BaseRNNCell], prefix: str, epoch: int
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """Loads a checkpoint of `save_rnn_checkpoint` with the weights packed for `cells`.

    Returns ``(symbol, arg_params, aux_params)``.
    """
    symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
    for cell in _list(cells):
        arg_params = cell.pack_weights(arg_params)
    return symbol, arg_params, aux_params


def do_rnn_checkpoint(
    cells: BaseRNNCell | Sequence[BaseRNNCell], prefix: str, period: int = 1
) -> Callable[..., None]:
    """Returns an epoch callback that calls `save_rnn_checkpoint` every `period` epochs."""
    period = max(1, int(period))

    def callback(iter_no, sym=None, arg=None, aux=None):
        if (iter_no + 1) % period == 0:
            save_rnn_checkpoint(cells, prefix, iter_no + 1, sym, arg, aux)

    return callback
