"""Blocks: layers and models.

A `Block` computes with Python code on arrays. A `HybridBlock` defines its computation in
``hybrid_forward(F, x, ...)`` so that it can also be compiled. After `hybridize`, the first call
traces it, even if it spans devices, and later calls run the compiled programs. A `SymbolBlock`
computes a symbol.
"""

from ._block import Block as Block
from ._formats import flatten as _flatten, regroup as _regroup
from ._hybrid_block import HybridBlock as HybridBlock
from ._symbol_block import SymbolBlock as SymbolBlock, symbol_of as symbol_of

__all__ = ["Block", "HybridBlock", "SymbolBlock"]
