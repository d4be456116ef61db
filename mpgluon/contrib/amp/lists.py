"""The lists of ops, by MXNet's names of them."""

from __future__ import annotations

from types import SimpleNamespace

from .amp import (
    list_conditional_fp32_ops,
    list_fp32_ops,
    list_loss_output_functions,
    list_lp16_fp32_ops,
    list_lp16_ops,
    list_lp16_use_fp32_params,
    list_widest_type_cast,
)

__all__ = ["symbol_bf16", "symbol_fp16"]


def _lists(dtype: str, short: str) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            f"{short}_FUNCS": list_lp16_ops(dtype),
            f"{short}_FP32_FUNCS": list_lp16_fp32_ops(dtype),
            f"{short}_USE_FP32_PARAMS": list_lp16_use_fp32_params(dtype),
            "FP32_FUNCS": list_fp32_ops(dtype),
            "CONDITIONAL_FP32_FUNCS": list_conditional_fp32_ops(dtype),
            "WIDEST_TYPE_CASTS": list_widest_type_cast(dtype),
            "LOSS_OUTPUT_FUNCTIONS": list_loss_output_functions(dtype),
        }
    )


symbol_fp16: SimpleNamespace = _lists("float16", "FP16")
symbol_bf16: SimpleNamespace = _lists("bfloat16", "BF16")
