"""Blocks: layers and models.

A `Block` computes with Python code on arrays. A `HybridBlock` describes its computation in
``hybrid_forward(F, x, ...)`` so that it can also be compiled: after `hybridize` a call traces it
once, whatever devices it spans, and runs programs from then on. A `SymbolBlock` computes what
symbols describe.
"""

from ._block import Block as Block
from ._formats import flatten as _flatten, regroup as _regroup
from ._hybrid_block import HybridBlock as HybridBlock
from ._symbol_block import SymbolBlock as SymbolBlock, symbol_of as symbol_of

__all__ = ["Block", "HybridBlock", "SymbolBlock"]
