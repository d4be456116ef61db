"""Automatic mixed precision: products in float16 or bfloat16, sums and losses in float32.

After `init`, each op casts its inputs according to its kind; parameters and their gradients stay
float32. The graphs of hybridized blocks contain the casts.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from ... import _core
from ...base import MXNetAssertionError, MXNetError
from ...gluon import HybridBlock, SymbolBlock, Trainer
from ...gluon.block._symbol_block import symbol_and_constants
from ...gluon.trainer import adds_up, loss_scaling, scaled_by, set_loss_scaler
from ...module import BucketingModule
from ...optimizer import Optimizer
from ...symbol import Symbol, var
from ...symbol._precision import with_casts
from ._rules import CONDITIONS, Rules, low_dtype, names_of
from .loss_scaler import LossScaler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..._core import Context, NDArray
    from ..._internal.types import DType

    Conditions = Sequence[tuple[str, str, Sequence[str]]]

__all__ = [
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

_amp_initialized = False
_amp_loss_scale_initialized = False
_loss_scaler: LossScaler | None = None


def init(
    target_dtype: DType = "float16",
    target_precision_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Conditions | None = None,
    fp32_ops: Sequence[str] | None = None,
) -> None:
    """Turns mixed precision on for all later calls of ops; a second call has no effect.

    Parameters
    ----------
    target_dtype : {'float16', 'bfloat16'}
        The low precision. bfloat16 has the range of float32, and needs no loss scaling.
    target_precision_ops, fp32_ops : list of str, optional
        Ops that compute in the low precision, and in float32; they replace `list_lp16_ops` and
        `list_fp32_ops`.
    conditional_fp32_ops : list of (str, str, list of str), optional
        (op, parameter, values) that compute in float32; replaces `list_conditional_fp32_ops`.

    Examples
    --------
    >>> from mpgluon.contrib import amp
    >>> amp.init("bfloat16")
    >>> x, w = nd.ones((1, 2)), nd.ones((3, 2))
    >>> nd.FullyConnected(x, w, no_bias=True, num_hidden=3).dtype
    <class 'mpgluon.bfloat16'>
    >>> amp.turn_off()
    """
    global _amp_initialized, _loss_scaler
    if _amp_initialized:
        return
    Rules(target_dtype, target_precision_ops, fp32_ops, conditional_fp32_ops).turn_on()
    _amp_initialized = True
    _loss_scaler = LossScaler()
    logging.info("Using AMP")


def turn_off() -> None:
    """Turns mixed precision off for all later calls of ops; trainers keep their loss scales."""
    global _amp_initialized, _amp_loss_scale_initialized
    _core.set_precision(None, {}, [])
    _amp_initialized = _amp_loss_scale_initialized = False


def _require_trainer(trainer):
    if isinstance(trainer, Optimizer):
        raise TypeError("AMP: expected a gluon.Trainer, got an Optimizer")
    if not isinstance(trainer, Trainer):
        raise TypeError(f"AMP: expected a gluon.Trainer, got {type(trainer).__name__}")


def init_trainer(optimizer_or_trainer: Trainer) -> None:
    """Adds dynamic loss scaling to a Trainer: a step whose gradients overflow is skipped and halves
    the scale. Call `init` first; see `scale_loss`."""
    global _amp_loss_scale_initialized
    if not _amp_initialized:
        raise MXNetAssertionError("AMP not initialized, did you forget to call amp.init()?")
    _require_trainer(optimizer_or_trainer)
    scaler = LossScaler() if _amp_loss_scale_initialized else _loss_scaler
    _amp_loss_scale_initialized = True
    if scaler is _loss_scaler:
        scaler.scale_outputs()
    set_loss_scaler(optimizer_or_trainer, scaler)


def _scale_of(trainer):
    """Returns the loss scale of a trainer."""
    _require_trainer(trainer)
    scaler = loss_scaling(trainer)
    if scaler is None:
        raise MXNetAssertionError(
            "Loss scaler is not initialized, did you forget to call amp.init_trainer()?"
        )
    return scaler.loss_scale


@contextlib.contextmanager
def scale_loss(loss: Any, optimizer_or_trainer: Trainer) -> Iterator[Any]:
    """Multiplies the loss, or each of a list, by the loss scale in a ``with`` block.

    Use it as ``with amp.scale_loss(loss, trainer) as scaled: autograd.backward(scaled)``. The
    Trainer's next step divides the gradients by the scale.
    """
    scale = _scale_of(optimizer_or_trainer)
    scaled_by(optimizer_or_trainer, scale)
    if isinstance(loss, (list, tuple)):
        yield [one * scale for one in loss]
    else:
        yield loss * scale


def unscale(optimizer_or_trainer: Trainer) -> None:
    """Divides the gradients by the loss scale immediately, for instance to clip them.

    The next step does not divide them. Raises MXNetError if the Trainer accumulates gradients and
    more batches will follow, because their gradients would be scaled.
    """
    factor = 1 / _scale_of(optimizer_or_trainer)
    if adds_up(optimizer_or_trainer):
        raise MXNetError(
            "AMP: this Trainer accumulates gradients, and the gradients of later batches will "
            "be scaled by the loss scale; call amp.unscale before the step that updates"
        )
    for param in optimizer_or_trainer.parameters:
        for grad in (param.gradients or {}).values():
            grad[:] = grad * factor
    scaled_by(optimizer_or_trainer, 1)


def convert_symbol(
    sym: Symbol,
    target_dtype: DType = "float16",
    target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None,
    data_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> Symbol:
    """Inserts casts (`amp_cast`, `amp_multicast`) before ops, according to the kinds of ops.

    Parameters
    ----------
    sym : Symbol
        A network in float32.
    target_dtype : {'float16', 'bfloat16'}
        The low precision.
    target_dtype_ops, fp32_ops, conditional_fp32_ops : list, optional
        As in `init`.
    excluded_sym_names : list of str, optional
        Nodes that stay in float32.
    data_names : list of str, optional
        Variables that are not parameters.
    cast_optional_params : bool, default False
        True to store parameters in the low precision if only low-precision ops use them, instead of
        casting them.

    Examples
    --------
    >>> y = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2, name="fc")
    >>> mx.contrib.amp.convert_symbol(y).get_internals().list_outputs()[:2]
    ['x', 'x_amp_cast_float16_output']
    """
    if not isinstance(sym, Symbol):
        raise MXNetAssertionError("First argument to convert_symbol should be Symbol")
    if excluded_sym_names is not None and not isinstance(excluded_sym_names, (list, tuple)):
        raise MXNetAssertionError("excluded_sym_names should be a list of strs")
    rules = Rules(target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops)
    attributes = sym.attr_dict()
    if data_names is None:
        data_names = [
            name for name in sym.list_inputs() if "__dtype__" not in attributes.get(name, {})
        ]
    optional = set(sym.list_arguments()) - set(data_names) if cast_optional_params else ()
    return with_casts(sym, rules.low, rules.of, excluded_sym_names or (), optional)


def _cast_params(symbol, params):
    """Casts arrays by name to the dtypes of the symbol's variables."""
    types = {"2": "float16", "12": "bfloat16"}
    attributes = symbol.attr_dict()
    cast = {}
    for name, array in params.items():
        dtype = types.get(attributes.get(name, {}).get("__dtype__"))
        cast[name] = array if dtype is None else array.astype(dtype)
    return cast


def convert_model(
    sym: Symbol,
    arg_params: dict[str, NDArray],
    aux_params: dict[str, NDArray],
    target_dtype: DType = "float16",
    target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """Converts a symbol and its parameters: (symbol, arg_params, aux_params).

    See `convert_symbol`.
    """
    for name, value, kind in (
        ("First", sym, Symbol),
        ("Second", arg_params, dict),
        ("Third", aux_params, dict),
    ):
        if not isinstance(value, kind):
            raise MXNetAssertionError(
                f"{name} argument to convert_model should be a {kind.__name__}"
            )
    names = [name for name in sym.list_inputs() if name not in {**arg_params, **aux_params}]
    converted = convert_symbol(
        sym,
        target_dtype,
        target_dtype_ops,
        fp32_ops,
        conditional_fp32_ops,
        excluded_sym_names,
        names,
        cast_optional_params,
    )
    return converted, _cast_params(converted, arg_params), _cast_params(converted, aux_params)


def convert_bucketing_module(
    bucketing_mod: BucketingModule,
    target_dtype: DType = "float16",
    target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> BucketingModule:
    """Converts the symbols of all buckets, including future ones, with `convert_model`.

    Returns an unbound module. The given module must have parameters.
    """
    if not isinstance(bucketing_mod, BucketingModule):
        raise MXNetAssertionError("module should be instance of bucketing module")
    if not (bucketing_mod.binded and bucketing_mod.params_initialized):
        raise MXNetAssertionError(
            "AMP: the bucketing module must be bound and have parameters to be converted"
        )
    params = bucketing_mod.get_params()

    def converted(symbol):
        return convert_model(
            symbol,
            *params,
            target_dtype,
            target_dtype_ops,
            fp32_ops,
            conditional_fp32_ops,
            excluded_sym_names,
            cast_optional_params,
        )

    return bucketing_mod.converted(
        lambda symbol: converted(symbol)[0], converted(bucketing_mod.default_symbol)[1:]
    )


def convert_hybrid_block(
    block: HybridBlock,
    target_dtype: DType = "float16",
    target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Conditions | None = None,
    excluded_sym_names: Sequence[str] | None = None,
    ctx: Context | Sequence[Context] | None = None,
    cast_optional_params: bool = False,
) -> SymbolBlock:
    """Creates a block for inference in mixed precision from a hybridized block that was called.

    `ctx` has the devices of its parameters; by default, they are on the devices of the block's
    parameters. See `convert_symbol` for the remaining arguments.
    """
    if not isinstance(block, HybridBlock):
        raise MXNetAssertionError("block input should be a HybridBlock")
    symbol, constants = symbol_and_constants(block, purpose="calling convert_hybrid_block")
    params = block.collect_params()
    names = [name for name in symbol.list_inputs() if name not in {**params, **constants}]
    converted = convert_symbol(
        symbol,
        target_dtype,
        target_dtype_ops,
        fp32_ops,
        conditional_fp32_ops,
        excluded_sym_names,
        names,
        cast_optional_params,
    )
    made = SymbolBlock(converted, [var(name) for name in names])
    used = set(converted.list_inputs())
    arrays = {name: param.reduced() for name, param in params.items() if name in used}
    values = _cast_params(converted, {**arrays, **constants})
    for name, param in made.collect_params().items():
        param.cast(values[name].dtype)
        param.shape = values[name].shape
        own = [constants[name].context] if name in constants else params[name].list_ctx()
        param.initialize(ctx=ctx if ctx is not None else own, init="zeros")
        param.set_data(values[name])
    return made


def list_lp16_ops(target_dtype: DType) -> list[str]:
    """Returns the ops that compute in the low precision.

    Examples
    --------
    >>> "Convolution" in mx.contrib.amp.list_lp16_ops("bfloat16")
    True
    """
    return names_of(target_dtype, "low")


def list_fp32_ops(target_dtype: DType) -> list[str]:
    """Returns the ops that compute in float32.

    Examples
    --------
    >>> "softmax" in mx.contrib.amp.list_fp32_ops("float16")
    True
    """
    return names_of(target_dtype, "full", "loss")


def list_lp16_fp32_ops(target_dtype: DType) -> list[str]:
    """Returns the ops that compute in the dtype of their input.

    Examples
    --------
    >>> "transpose" in mx.contrib.amp.list_lp16_fp32_ops("float16")
    True
    """
    conditional = {name for name, _, _ in CONDITIONS}
    return [name for name in names_of(target_dtype, "any") if name not in conditional]


def list_widest_type_cast(target_dtype: DType) -> list[str]:
    """Returns the ops that compute in the widest dtype of their inputs.

    Examples
    --------
    >>> "dot" in mx.contrib.amp.list_widest_type_cast("float16")
    True
    """
    conditional = {name for name, _, _ in CONDITIONS}
    return [name for name in names_of(target_dtype, "widest") if name not in conditional]


def list_conditional_fp32_ops(target_dtype: DType) -> list[tuple[str, str, list[str]]]:
    """Returns the (op, parameter, values) that compute in float32.

    Examples
    --------
    >>> mx.contrib.amp.list_conditional_fp32_ops("float16")[0]
    ('Activation', 'act_type', ['softrelu'])
    """
    low_dtype(target_dtype)
    return [(name, param, list(values)) for name, param, values in CONDITIONS]


def list_loss_output_functions(target_dtype: DType) -> list[str]:
    """Returns the output layers, which compute the gradient themselves and apply the loss scale.

    Examples
    --------
    >>> "SoftmaxOutput" in mx.contrib.amp.list_loss_output_functions("float16")
    True
    """
    low = low_dtype(target_dtype)
    return names_of(low, "loss")


def list_lp16_use_fp32_params(target_dtype: DType) -> dict[str, list[str]] | None:
    """Returns the inputs that stay float32 in ops whose data has the low precision.

    Examples
    --------
    >>> mx.contrib.amp.list_lp16_use_fp32_params("bfloat16")["BatchNorm"]
    ['', 'gamma', 'beta', 'moving_mean', 'moving_var']
    """
    if low_dtype(target_dtype) == "float16":
        return None
    return {"BatchNorm": ["", "gamma", "beta", "moving_mean", "moving_var"]}
