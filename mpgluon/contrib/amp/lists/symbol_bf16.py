"""The lists of ops for bfloat16, under MXNet's names."""

from __future__ import annotations

from ..amp import (
    list_conditional_fp32_ops,
    list_fp32_ops,
    list_loss_output_functions,
    list_lp16_fp32_ops,
    list_lp16_ops,
    list_lp16_use_fp32_params,
    list_widest_type_cast,
)

__all__: list[str] = []

BF16_FUNCS: list[str] = list_lp16_ops("bfloat16")
BF16_FP32_FUNCS: list[str] = list_lp16_fp32_ops("bfloat16")
BF16_USE_FP32_PARAMS: dict[str, list[str]] | None = list_lp16_use_fp32_params("bfloat16")
FP32_FUNCS: list[str] = list_fp32_ops("bfloat16")
CONDITIONAL_FP32_FUNCS: list[tuple[str, str, list[str]]] = list_conditional_fp32_ops("bfloat16")
WIDEST_TYPE_CASTS: list[str] = list_widest_type_cast("bfloat16")
LOSS_OUTPUT_FUNCTIONS: list[str] = list_loss_output_functions("bfloat16")
