"""``mx.contrib``: MXNet's contrib ops, text, mixed precision and quantization.

The ops are in ``mx.contrib.nd`` and ``mx.contrib.sym``, vocabularies and word vectors in
``mx.contrib.text``, mixed precision in ``mx.contrib.amp``, low-rank adapters in
``mx.contrib.lora``, int8 networks in ``mx.contrib.quantization``, and weights of Hugging Face in
``mx.contrib.huggingface``.
"""

import sys as _sys

from .._internal.hints import near_names as _near_names
from ..ndarray import contrib as nd, contrib as ndarray
from ..symbol import contrib as sym, contrib as symbol
from . import (
    amp,
    autograd,
    huggingface,
    io,
    lora,
    onnx,
    quantization,
    quantization as quant,
    tensorboard,
    text,
)

__all__ = [
    "amp",
    "autograd",
    "huggingface",
    "io",
    "lora",
    "nd",
    "ndarray",
    "onnx",
    "quant",
    "quantization",
    "sym",
    "symbol",
    "tensorboard",
    "text",
]

_near_names(__name__, svrg_optimization="mx.mod.Module with an optimizer of mx.optimizer")

# `import mpgluon.contrib.ndarray` returns the same modules as the attributes.
_sys.modules[f"{__name__}.ndarray"], _sys.modules[f"{__name__}.symbol"] = ndarray, symbol
