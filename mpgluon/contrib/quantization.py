"""``mx.contrib.quantization``: quantized networks are not there, and each function says so."""

from __future__ import annotations

from typing import Any, NoReturn

from .. import _core

__all__ = ["calib_graph", "quantize_graph", "quantize_model", "quantize_net", "quantize_net_v2"]


def _refuse(name) -> NoReturn:
    raise _core.NotSupportedError(
        f"{name}: networks of 8-bit integers are not available; mx.contrib.amp has float16 and "
        "bfloat16"
    )


def quantize_model(*args: Any, **kwargs: Any) -> NoReturn:
    """NotSupportedError."""
    _refuse("quantize_model")


def quantize_graph(*args: Any, **kwargs: Any) -> NoReturn:
    """NotSupportedError."""
    _refuse("quantize_graph")


def calib_graph(*args: Any, **kwargs: Any) -> NoReturn:
    """NotSupportedError."""
    _refuse("calib_graph")


def quantize_net(*args: Any, **kwargs: Any) -> NoReturn:
    """NotSupportedError."""
    _refuse("quantize_net")


def quantize_net_v2(*args: Any, **kwargs: Any) -> NoReturn:
    """NotSupportedError."""
    _refuse("quantize_net_v2")
