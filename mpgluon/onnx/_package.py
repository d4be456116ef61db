"""The optional ``onnx`` package, and ONNX's ids of dtypes."""

from __future__ import annotations

from typing import Any

from ..base import MXNetError

# Opset of exported files. Version 17 added LayerNormalization, and runtimes since 2022 support it.
# Later versions mostly move axes from attributes to inputs.
OPSET = 17
DOMAINS = ("", "ai.onnx")

# ONNX's ids of dtypes (TensorProto.DataType).
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
# ONNX dtypes that NDArrays do not support, mapped to wider dtypes that can hold their values.
WIDER = {4: "int32", 5: "int32", 12: "int64", 13: "int64"}


class ONNXError(MXNetError):
    """Raised for a graph that cannot be converted to or from ONNX."""


def onnx_package() -> Any:
    """Imports the ``onnx`` package; the ImportError tells how to install it."""
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
    """Converts an ONNX dtype to the name of an NDArray dtype that can hold its values."""
    name = NAMES.get(number) or WIDER.get(number)
    if name is None:
        raise ONNXError(f"arrays of ONNX's dtype {number} are not supported")
    return name
