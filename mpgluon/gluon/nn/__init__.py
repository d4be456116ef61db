"""Neural network layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._internal.hints import LAYERS as _LAYERS, of_module as _of_module
from ..block import Block, HybridBlock, SymbolBlock
from .activations import *
from .activations import __all__ as _activations
from .attention import *
from .attention import __all__ as _attention
from .basic_layers import *
from .basic_layers import __all__ as _basic
from .conv_layers import *
from .conv_layers import __all__ as _conv
from .experts import *
from .experts import __all__ as _experts
from .quantized_layers import *
from .quantized_layers import __all__ as _quantized
from .transformer_layers import *
from .transformer_layers import __all__ as _transformer

__all__ = [
    "Block",
    "HybridBlock",
    "SymbolBlock",
    *_activations,
    *_attention,
    *_basic,
    *_conv,
    *_quantized,
    *_experts,
    *_transformer,
]


if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__

    def __getattr__(name: str) -> object:
        raise _of_module(__name__, name, _LAYERS, "nn.")
