"""Automatic mixed precision: ``mx.contrib.amp``."""

from . import lists as lists
from .amp import (
    convert_bucketing_module as convert_bucketing_module,
    convert_hybrid_block as convert_hybrid_block,
    convert_model as convert_model,
    convert_symbol as convert_symbol,
    init as init,
    init_trainer as init_trainer,
    list_conditional_fp32_ops as list_conditional_fp32_ops,
    list_fp32_ops as list_fp32_ops,
    list_loss_output_functions as list_loss_output_functions,
    list_lp16_fp32_ops as list_lp16_fp32_ops,
    list_lp16_ops as list_lp16_ops,
    list_lp16_use_fp32_params as list_lp16_use_fp32_params,
    list_widest_type_cast as list_widest_type_cast,
    scale_loss as scale_loss,
    turn_off as turn_off,
    unscale as unscale,
)
from .loss_scaler import LossScaler as LossScaler

__all__ = [
    "LossScaler",
    "convert_bucketing_module",
    "convert_hybrid_block",
    "convert_model",
    "convert_symbol",
    "init",
    "init_trainer",
    "list_conditional_fp32_ops",
    "list_fp32_ops",
    "list_loss_output_functions",
    "list_lp16_fp32_ops",
    "list_lp16_ops",
    "list_lp16_use_fp32_params",
    "list_widest_type_cast",
    "scale_loss",
    "turn_off",
    "unscale",
]
