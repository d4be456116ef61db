"""The ``onnx`` package, which is optional, and the dtypes it numbers."""

from __future__ import annotations

from typing import Any

from ..base import MXNetError

# LayerNormalization came with 17; runtimes since 2022 read it. Later ones only take axes elsewhere.
OPSET = 17
DOMAINS = ("", "ai.onnx")

# ONNX's numbers of dtypes (TensorProto.DataType).
NUMBERS = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
}
NAMES = {number: name for name, number in NUMBERS.items()}
# Dtypes that no array here has, and those that hold their values.
WIDER = {4: "int32", 5: "int32", 12: "int64", 13: "int64"}


class ONNXError(MXNetError):
    """A graph that one side can't say in the words of the other."""


def onnx_package() -> Any:
    """The ``onnx`` package. ImportError says how to get it."""
    try:
        import onnx
        import onnx.numpy_helper
        import onnx.shape_inference
    except ImportError as error:
        raise ImportError(
            "mx.onnx needs the onnx package: pip install 'mpgluon[onnx]', or pip install onnx"
        ) from error
    return onnx


def dtype_of(number: int) -> str:
    """The dtype here that holds what ONNX numbers so."""
    name = NAMES.get(number) or WIDER.get(number)
    if name is None:
        raise ONNXError(f"there is no array of ONNX's dtype {number} here")
    return name
