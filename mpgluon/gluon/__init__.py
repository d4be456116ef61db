"""Neural networks: blocks, parameters, the trainer, layers and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._internal.hints import GLUON as _GLUON, of_module as _of_module
from . import contrib, data, loss, model_zoo, nn, rnn, utils
from .block import Block, HybridBlock, SymbolBlock
from .parameter import Constant, DeferredInitializationError, Parameter, ParameterDict
from .trainer import Trainer

__all__ = [
    "Block",
    "Constant",
    "DeferredInitializationError",
    "HybridBlock",
    "Parameter",
    "ParameterDict",
    "SymbolBlock",
    "Trainer",
    "contrib",
    "data",
    "loss",
    "model_zoo",
    "nn",
    "rnn",
    "utils",
]


if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__

    def __getattr__(name: str) -> object:
        if name == "tensor_types":  # MXNet's name, which programs use with isinstance
            from .. import ndarray, symbol

            return symbol.Symbol, ndarray.NDArray
        raise _of_module(__name__, name, _GLUON)
