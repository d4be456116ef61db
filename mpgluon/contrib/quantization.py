"""``mx.contrib.quantization``: networks with fewer bits.

`quantize_weights` packs the weights of Dense layers into 4 to 8 bits, and data stay floats. The
other functions create inference networks with 8-bit convolutions and dense layers, whose data have
8 bits as well. Calibration data determines the ranges of values (``calib_mode`` 'naive' takes the
minimum and maximum, 'entropy' clips with the least loss of information), or each call computes them
('none').
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import tempfile
from typing import TYPE_CHECKING

from .. import _core, model as _model, ndarray as nd, symbol as _symbol
from ..context import cpu as _cpu
from ..gluon._packing.weights import quantize_array
from ..gluon._tree import own_parameters
from ._calibration import HistogramCollector, MinMaxCollector
from ._quantize_graph import calibrate, fold_batch_norms, quantize
from ._weight_only import quantize_weights

if TYPE_CHECKING:
    from typing import Any

    from .._core import Context, NDArray
    from ..symbol import Symbol

__all__ = [
    "calib_graph",
    "quantize_array",
    "quantize_graph",
    "quantize_model",
    "quantize_net",
    "quantize_net_v2",
    "quantize_weights",
]

DTYPES = ("auto", "int8", "uint8")
MODES = ("none", "naive", "entropy", "customize")


def _check(calib_mode, quantized_dtype, quantize_mode, quantize_granularity):
    if quantized_dtype not in DTYPES:
        raise ValueError(
            f"quantized_dtype must be one of {', '.join(DTYPES)}, not {quantized_dtype!r}"
        )
    if calib_mode not in (None, *MODES):
        raise ValueError(f"calib_mode must be one of {', '.join(MODES)}, not {calib_mode!r}")
    if quantize_mode not in ("full", "smart"):
        raise ValueError(f"quantize_mode must be 'full' or 'smart', not {quantize_mode!r}")
    if quantize_granularity != "tensor-wise":
        raise _core.NotSupportedError(
            "quantize_granularity must be 'tensor-wise' (one range for each tensor)"
        )


def _quantized_params(qsym, params):
    """Returns the parameters of a quantized symbol. The value of ``NAME_quantize`` is computed from
    the parameter NAME."""
    made = {}
    for name in qsym.list_arguments():
        if name in params:
            made[name] = params[name]
        elif name.endswith("_quantize") and name.removesuffix("_quantize") in params:
            values = params[name.removesuffix("_quantize")]
            low, high = values.min(), values.max()
            made[name], made[name + "_min"], made[name + "_max"] = nd.contrib.quantize(
                values, low, high, out_type="int8"
            )
    return made


def _with_params(qsym, params, aux):
    """Returns the symbol, its arguments and its states.

    Statistics of a quantized BatchNorm are arguments, because it does not write them.
    """
    states = set(qsym.list_auxiliary_states())
    kept = {name: array for name, array in aux.items() if name in states}
    return qsym, _quantized_params(qsym, {**params, **aux}), kept


def _batches(data, num_examples):
    """Yields the arrays of each batch of an iterator, a loader or a list, up to `num_examples`."""
    seen = 0
    if hasattr(data, "reset"):
        data.reset()
    for batch in data:
        arrays = getattr(batch, "data", batch)
        if not isinstance(arrays, (list, tuple)):
            arrays = [arrays]
        yield list(arrays)
        seen += arrays[0].shape[0]
        if num_examples is not None and seen >= num_examples:
            return


def _collect(sym, params, aux, names, data_names, data, collector, num_examples, ctx, logger):
    """Runs the symbol on data and passes the tensors that need a range to the collector."""
    internals = sym.get_internals()
    outputs = internals.list_outputs()
    wanted = [name for name in names if name in outputs and name not in data_names]
    inputs = [name for name in names if name in data_names]
    group = _symbol.Group([internals[name] for name in wanted]) if wanted else None
    arguments = set() if group is None else set(group.list_arguments())
    arrays = {k: v.as_in_context(ctx) for k, v in params.items() if k in arguments}
    states = {k: v.as_in_context(ctx) for k, v in aux.items()}
    count = 0
    for batch in _batches(data, num_examples):
        given = {k: v.as_in_context(ctx) for k, v in zip(data_names, batch)}
        count += batch[0].shape[0]
        for name in inputs:
            collector.collect(name, given[name])
        if group is None:
            continue
        held = {k: states[k] for k in group.list_auxiliary_states()}
        used = {k: v for k, v in given.items() if k in arguments}
        executor = group.bind(ctx, {**arrays, **used}, grad_req="null", aux_states=held)
        for name, array in zip(wanted, executor.forward(is_train=False)):
            collector.collect(name, array)
    if not count:
        raise ValueError("calib_data has no batches")
    if logger:
        logger.info("collected the ranges of %d tensors from %d examples", len(names), count)


def quantize_graph(
    sym: Symbol,
    arg_params: dict[str, NDArray],
    aux_params: dict[str, NDArray],
    ctx: Context | None = None,
    excluded_sym_names: list[str] | None = None,
    excluded_op_names: list[str] | None = None,
    calib_mode: str | None = "entropy",
    quantized_dtype: str = "int8",
    quantize_mode: str = "full",
    quantize_granularity: str = "tensor-wise",
    LayerOutputCollector: Any = None,
    logger: Any = None,
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray], Any]:
    """Returns a quantized symbol without ranges, its parameters, and a collector of the ranges.

    Parameters
    ----------
    sym : Symbol
        A float32 network.
    arg_params, aux_params : dict of str to NDArray
        The parameters of the network.
    ctx : Context, optional
        Kept for MXNet's signature; ignored.
    excluded_sym_names, excluded_op_names : list of str, optional
        Nodes, and ops, that stay in float32.
    calib_mode : {'entropy', 'naive', 'customize', 'none'} or None
        The calibration method; 'customize' uses `LayerOutputCollector`.
    quantized_dtype : {'int8', 'uint8', 'auto'}
        The dtype of layers' inputs; auto means uint8 if the range has no negative numbers.
    quantize_mode : {'full', 'smart'}
        full quantizes every op with a quantized form; smart quantizes ops between layers only if
        their data is already quantized.
    quantize_granularity : {'tensor-wise'}
        One range for each tensor.
    LayerOutputCollector : object, optional
        With a method ``collect(name, array)`` and a dict ``min_max_dict``.
    logger : logging.Logger, optional
        Receives progress messages.

    Returns
    -------
    (Symbol, dict, dict, collector or None)
        The collector's `include_layer` lists the tensors to pass to it; see `calib_graph`.
    """
    _check(calib_mode, quantized_dtype, quantize_mode, quantize_granularity)
    calibrated = calib_mode not in (None, "none")
    qsym, names = quantize(
        sym,
        arg_params,
        dtype=quantized_dtype,
        full=quantize_mode == "full",
        calibrated=calibrated,
        excluded_names=set(excluded_sym_names or ()),
        excluded_ops=set(excluded_op_names or ()),
    )
    collector = None
    if calib_mode == "entropy":
        collector = HistogramCollector(include_layer=names)
    elif calib_mode == "naive":
        collector = MinMaxCollector(include_layer=names)
    elif calib_mode == "customize":
        if LayerOutputCollector is None:
            raise ValueError("calib_mode='customize' needs a LayerOutputCollector")
        collector = LayerOutputCollector
        collector.include_layer = names
    if logger:
        logger.info("quantized; %d ranges remain to be calibrated", len(names))
    return *_with_params(qsym, arg_params, aux_params), collector


def calib_graph(
    qsym: Symbol,
    arg_params: dict[str, NDArray],
    aux_params: dict[str, NDArray],
    collector: Any,
    calib_mode: str = "entropy",
    quantized_dtype: str = "int8",
    logger: Any = logging,
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """Returns a symbol of `quantize_graph` with the ranges from a collector.

    Parameters
    ----------
    qsym : Symbol
        The symbol returned by `quantize_graph`.
    arg_params, aux_params : dict of str to NDArray
        The parameters of the float32 network.
    collector : object
        The collector of `quantize_graph`, after all tensors of `include_layer` were passed to it.
    calib_mode, quantized_dtype : str
        As in `quantize_graph`.
    logger : logging.Logger, optional
        Receives progress messages.

    Returns
    -------
    (Symbol, dict, dict)
    """
    _check(calib_mode, quantized_dtype, "full", "tensor-wise")
    if hasattr(collector, "ranges"):
        ranges = collector.ranges(quantized_dtype)
    else:
        ranges = dict(collector.min_max_dict)
    qsym = calibrate(qsym, ranges, quantized_dtype)
    if logger:
        logger.info("calibrated %d tensors", len(ranges))
    return _with_params(qsym, arg_params, aux_params)


def quantize_model(
    sym: Symbol,
    arg_params: dict[str, NDArray],
    aux_params: dict[str, NDArray],
    data_names: tuple[str, ...] = ("data",),
    label_names: tuple[str, ...] = ("softmax_label",),
    ctx: Context | None = None,
    excluded_sym_names: list[str] | None = None,
    excluded_op_names: list[str] | None = None,
    calib_mode: str | None = "entropy",
    calib_data: Any = None,
    num_calib_examples: int | None = None,
    quantized_dtype: str = "int8",
    quantize_mode: str = "smart",
    quantize_granularity: str = "tensor-wise",
    logger: Any = None,
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """Returns a quantized symbol and its parameters, for inference with a Module.

    Parameters
    ----------
    sym : Symbol
        A float32 network.
    arg_params, aux_params : dict of str to NDArray
        The parameters of the network.
    data_names, label_names : tuple of str
        The inputs of the network.
    ctx : Context, optional
        The device that runs `calib_data`; cpu() by default.
    excluded_sym_names, excluded_op_names : list of str, optional
        Nodes, and ops, that stay in float32.
    calib_mode : {'entropy', 'naive', 'none'} or None
        The calibration method.
    calib_data : DataIter, DataLoader or list of NDArray, optional
        Batches of data, for all modes but 'none'.
    num_calib_examples : int, optional
        The number of examples to use; all by default.
    quantized_dtype, quantize_mode, quantize_granularity : str
        As in `quantize_graph`.
    logger : logging.Logger, optional
        Receives progress messages.

    Returns
    -------
    (Symbol, dict, dict)
    """
    ctx = ctx or _cpu()
    qsym, qargs, aux, collector = quantize_graph(
        sym,
        arg_params,
        aux_params,
        ctx,
        excluded_sym_names,
        excluded_op_names,
        calib_mode,
        quantized_dtype,
        quantize_mode,
        quantize_granularity,
        None,
        logger,
    )
    if collector is None:
        return qsym, qargs, aux
    if calib_data is None:
        raise ValueError(f"calib_mode={calib_mode!r} needs calib_data")
    names = collector.include_layer
    arguments = (sym, arg_params, aux_params, names, list(data_names), calib_data)
    _collect(*arguments, collector, num_calib_examples, ctx, logger)
    return calib_graph(qsym, arg_params, aux_params, collector, calib_mode, quantized_dtype, logger)


def _exported(network, shapes, ctx):
    """Returns the symbol of a block, its parameters, and the names of its inputs."""
    network.hybridize()
    network(*(nd.zeros(shape, ctx=ctx) for shape in shapes))
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "network")
        network.export(prefix, epoch=0)
        sym, args, aux = _model.load_checkpoint(prefix, 0)
    return sym, args, aux, [n for n in sym.list_arguments() if n not in args]


def _shapes(calib_data, data_shapes):
    if data_shapes is None and hasattr(calib_data, "provide_data"):
        data_shapes = calib_data.provide_data
    if data_shapes is None and calib_data is not None:
        data_shapes = [array.shape for array in next(_batches(calib_data, None))]
    if data_shapes is None:
        raise ValueError("data_shapes or calib_data must be given")
    return [tuple(getattr(shape, "shape", shape)) for shape in data_shapes]


def quantize_net_v2(
    network: Any,
    quantized_dtype: str = "auto",
    quantize_mode: str = "full",
    quantize_granularity: str = "tensor-wise",
    exclude_layers: list[str] | None = None,
    exclude_layers_match: list[str] | None = None,
    exclude_operators: list[str] | None = None,
    calib_data: Any = None,
    data_shapes: Any = None,
    calib_mode: str = "none",
    num_calib_examples: int | None = None,
    ctx: Context | None = None,
    LayerOutputCollector: Any = None,
    logger: Any = None,
) -> Any:
    """Returns a block equivalent to `network` with 8-bit convolutions and dense layers.

    BatchNorm after a convolution is folded into it first. `network` is hybridized but otherwise
    unchanged.

    Parameters
    ----------
    network : HybridBlock
        A float32 network with its parameters.
    quantized_dtype, quantize_mode, quantize_granularity : str
        As in `quantize_graph`.
    exclude_layers, exclude_layers_match, exclude_operators : list of str, optional
        Names of nodes, parts of such names, and ops that stay in float32.
    calib_data : DataLoader, DataIter or list of NDArray, optional
        Batches of data, for all modes but 'none'. In batches with labels, the data come first.
    data_shapes : list of tuple or of DataDesc, optional
        The shapes of the inputs, if `calib_data` does not determine them.
    calib_mode : {'none', 'naive', 'entropy', 'customize'}
        The calibration method; 'none' computes ranges in each call.
    num_calib_examples : int, optional
        The number of examples to use; all by default.
    ctx : Context, optional
        The device of the new block's parameters; cpu() by default.
    LayerOutputCollector : object, optional
        For calib_mode 'customize'; see `quantize_graph`.
    logger : logging.Logger, optional
        Receives progress messages.

    Returns
    -------
    SymbolBlock

    Raises
    ------
    NotSupportedError
        If the parameters are arrays of ``mx.np``.

    Examples
    --------
    >>> net = gluon.nn.HybridSequential()
    >>> net.add(gluon.nn.Conv2D(8, 3, activation="relu"), gluon.nn.Dense(4))
    >>> net.initialize()
    >>> x = nd.random.uniform(shape=(2, 3, 8, 8))
    >>> quantize = mx.contrib.quantization.quantize_net_v2
    >>> small = quantize(net, calib_data=[x], calib_mode="naive")
    >>> bool((abs(small(x) - net(x)).max() < 0.02 * abs(net(x)).max()).asscalar())
    True
    """
    if any(param.is_numpy for param in network.collect_params().values()):
        raise _core.NotSupportedError(
            "quantize_net: the network's parameters are arrays of mx.np, but 8-bit ops need arrays "
            "of mx.nd; create and load the network after npx.reset_np(), or use quantize_weights"
        )
    ctx = ctx or _cpu()
    shapes = _shapes(calib_data, data_shapes)
    sym, args, aux, names = _exported(network, _inputs_of(network, shapes), ctx)
    sym, args, aux = fold_batch_norms(sym, args, aux)
    excluded = set(exclude_layers or ())
    for node in json.loads(sym.tojson())["nodes"]:
        if any(part in node["name"] for part in exclude_layers_match or ()):
            excluded.add(node["name"])
    qsym, qargs, qaux, collector = quantize_graph(
        sym,
        args,
        aux,
        ctx,
        list(excluded),
        exclude_operators,
        calib_mode,
        quantized_dtype,
        quantize_mode,
        quantize_granularity,
        LayerOutputCollector,
        logger,
    )
    if collector is not None:
        if calib_data is None:
            raise ValueError(f"calib_mode={calib_mode!r} needs calib_data")
        wanted = collector.include_layer
        given = (sym, args, aux, wanted, names, calib_data)
        _collect(*given, collector, num_calib_examples, ctx, logger)
        qsym, qargs, qaux = calib_graph(
            qsym, args, aux, collector, calib_mode, quantized_dtype, logger
        )
    from ..gluon import SymbolBlock

    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "quantized")
        _model.save_checkpoint(prefix, 0, qsym, qargs, qaux)
        files = prefix + "-symbol.json", prefix + "-0000.params"
        return SymbolBlock.imports(files[0], names, files[1], ctx)


def _inputs_of(network, shapes):
    """Returns the first shapes, one for each input of the network. The rest are shapes of labels,
    which come last in a loader's batches."""
    takes = list(inspect.signature(network.hybrid_forward).parameters.values())[1:]
    if any(parameter.kind == parameter.VAR_POSITIONAL for parameter in takes):
        return shapes
    own = own_parameters(network)
    names = [p.name for p in takes if p.kind == p.POSITIONAL_OR_KEYWORD]
    return shapes[: len([name for name in names if name not in own])]


def quantize_net(
    network: Any,
    quantized_dtype: str = "auto",
    quantize_mode: str = "full",
    exclude_layers: list[str] | None = None,
    exclude_layers_match: list[str] | None = None,
    exclude_operators: list[str] | None = None,
    calib_data: Any = None,
    data_shapes: Any = None,
    calib_mode: str = "none",
    num_calib_examples: int | None = None,
    ctx: Context | None = None,
    logger: Any = None,
) -> Any:
    """Calls `quantize_net_v2` with one range for each tensor.

    Parameters
    ----------
    network : HybridBlock
        A float32 network with its parameters.
    quantized_dtype, quantize_mode, exclude_layers, exclude_layers_match, exclude_operators
        As in `quantize_net_v2`.
    calib_data, data_shapes, calib_mode, num_calib_examples, ctx, logger
        As in `quantize_net_v2`.

    Returns
    -------
    SymbolBlock
    """
    return quantize_net_v2(
        network,
        quantized_dtype,
        quantize_mode,
        "tensor-wise",
        exclude_layers,
        exclude_layers_match,
        exclude_operators,
        calib_data,
        data_shapes,
        calib_mode,
        num_calib_examples,
        ctx,
        None,
        logger,
    )
