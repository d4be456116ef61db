"""The lists of ops under MXNet's names."""

from . import symbol_bf16 as symbol_bf16, symbol_fp16 as symbol_fp16

__all__ = ["symbol_bf16", "symbol_fp16"]
