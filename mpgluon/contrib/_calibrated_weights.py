"""Packed weights with less error than rounding to nearest, from the inputs of the layers on
calibration data.

GPTQ rounds column by column, and compensates the error of each column in the later ones (Frantar et
al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022). AWQ
multiplies the columns of important inputs before rounding, and divides the inputs in the layer
before (Lin et al., "AWQ: Activation-aware Weight Quantization", 2023).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core, autograd, ndarray as nd
from .._internal.kinds import plain
from .._internal.ranks.own_arrays import brought_to_all
from ..base import MXNetError
from ..context import cpu
from ..gluon import nn
from ..gluon._packing.formats import BLOCKS, NF4, QUANTIZERS
from ..gluon._packing.weights import quantize_array
from ..gluon._tree import runs_compiled, uncompiled, users_of
from ..gluon.block import Block
from ..gluon.nn.attention import heads_of, normalizes_first
from ..gluon.nn.quantized_layers import GROUPED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Inputs = list[tuple[Any, ...]]

_MOST_PASSES = 16  # limit of GPTQ's passes of the network over the data
_MOST_BYTES = 1 << 30  # limit of the Gram matrices that one pass collects
_COLUMNS = 128  # columns that GPTQ rounds before it updates the later ones
_DAMPING = 0.01  # relative to the mean diagonal of the Gram matrix
_SAMPLES = 256  # rows of inputs by which AWQ measures errors
_EXPONENTS = np.arange(20) / 20
_RATIOS = 1 - np.arange(1, 11) / 20  # at which AWQ clips groups


def inputs_of(who: str, data: Any) -> Inputs:
    """Returns the inputs of each call of the network, as tuples of arrays."""
    if data is None:
        raise ValueError(
            f"{who}: this method needs data, some typical inputs of the network; pass data=, or "
            "omit method"
        )
    if isinstance(data, nd.NDArray):
        data = [data]
    try:
        batches = [getattr(batch, "data", batch) for batch in data]
        calls = [tuple(b) if isinstance(b, (list, tuple)) else (b,) for b in batches]
    except TypeError as error:
        raise ValueError(
            f"{who}: data must be an array, or a list of arrays or of tuples of arrays, not "
            f"{type(data).__name__}"
        ) from error
    for call in calls:
        if not all(array is None or isinstance(array, nd.NDArray) for array in call):
            raise ValueError(f"{who}: data must consist of NDArrays, not {call!r}")
    if not calls:
        raise ValueError(f"{who}: data has no batches")
    return calls


# --- Inputs of layers -----------------------------------------------------------------------------


class _Enough(Exception):
    """Ends a forward pass after the layers of interest."""


def _run(
    net: Block,
    calls: Inputs,
    layers: Iterable[Block],
    take: Callable[[Block, nd.NDArray], None],
    last: Block | None = None,
) -> None:
    """Runs the network, and calls `take` with each of the layers and its input (rows, in_units).
    Passes end when they reach `last`."""

    def hook(layer, arrays):
        if layer is last:
            raise _Enough
        take(layer, arrays[0])

    found = list(layers) if last is None else [*layers, last]
    handles = [layer.register_forward_pre_hook(hook) for layer in found]
    compiled: list[Any] = []  # these blocks would not call the hooks of their children
    net.apply(lambda block: compiled.append(uncompiled(block)) if runs_compiled(block) else None)
    try:
        with _core.Scope(*compiled), autograd.pause():
            for call in calls:
                with contextlib.suppress(_Enough):
                    net(*call)
    finally:
        for handle in handles:
            handle.detach()


def _values_of(array: nd.NDArray) -> np.ndarray:
    """Returns the values of an array. All ranks call it if the array's device names a rank."""
    return brought_to_all(array).asnumpy()


def _rows(layer: nn.Dense, x: nd.NDArray) -> nd.NDArray:
    return plain(x).reshape((-1, layer.weight.shape[1])).astype("float32")


def _shared_inputs(who, net, calls, paths):
    """Returns lists of layers that have the same input, in the order of their calls."""
    seen: list[tuple[Any, list[Block]]] = []
    order: dict[Block, int] = {}

    def take(layer, x):
        if layer in order:
            return
        if not seen or seen[-1][0] is not x:
            seen.append((x, []))
        order[layer] = len(seen)
        seen[-1][1].append(layer)

    _run(net, calls[:1], paths, take)
    for layer, path in paths.items():
        if layer not in order:
            raise ValueError(
                f"{who}: '{path}' is not called for data, so it has no inputs; skip it"
            )
    return [layers for _, layers in seen]


# --- GPTQ -----------------------------------------------------------------------------------------


class Task(NamedTuple):
    """Layers to be rounded.

    Attributes
    ----------
    caller : str
        Name of the function in errors.
    net : Block
        The network.
    paths : dict of Dense to str
        The layers.
    calls : list of tuple
        Inputs of the network.
    replace : callable
        Replaces a layer, given the values of the parameters of a QuantizedDense.
    format : str
        The format of the packed weights.
    groups : dict of str to int
        Group size by path.
    use_zeros : bool
        Whether int4 has zeros.
    """

    caller: str
    net: Block
    paths: dict[nn.Dense, str]
    calls: Inputs
    replace: Callable[[nn.Dense, dict[str, np.ndarray]], None]
    format: str
    groups: dict[str, int]
    use_zeros: bool


def gptq(task: Task, use_order: bool) -> None:
    """Rounds the weights of layers by GPTQ, in the order of importance of the columns if
    `use_order`.

    Later layers are rounded for the inputs that they get from the earlier, rounded ones: the
    network is run once for each of at most `_MOST_PASSES` parts.
    """
    who, net, paths, calls, replace, format, groups, use_zeros = task
    if format not in GROUPED:
        raise ValueError(f"{who}: method 'gptq' needs a format of {', '.join(GROUPED)}")
    shared = _shared_inputs(who, net, calls, paths)
    parts = _parts(shared)
    for number, part in enumerate(parts):
        grams: dict[Block, nd.NDArray] = {}

        def take(layer, x, grams=grams):
            rows = _rows(layer, x)
            gram = nd.dot(rows, rows, transpose_a=True)
            grams[layer] = gram if layer not in grams else grams[layer] + gram

        last = parts[number + 1][0][0] if number + 1 < len(parts) else None
        _run(net, calls, [layers[0] for layers in part], take, last)
        for layers in part:
            own = brought_to_all(grams.pop(layers[0]))
            device, gram = own.context, own.asnumpy().astype(np.float64)
            if not np.isfinite(gram).all():
                raise ValueError(f"{who}: the inputs of '{paths[layers[0]]}' are not finite")
            for layer in layers:
                weight = _values_of(layer.weight.reduced().astype("float32"))
                group = groups[paths[layer]] or weight.shape[1]
                options = format, group, use_zeros, use_order
                replace(layer, _compensated(weight, gram, device, *options))


def _parts(shared: Sequence[list[Block]]) -> list[list[list[Any]]]:
    """Divides the layers into parts, whose inputs are collected in one pass."""
    count = -(-len(shared) // _MOST_PASSES)
    parts: list[list[list[Any]]] = []
    held = 0
    for layers in shared:
        size = layers[0].weight.shape[1] ** 2 * 4
        if not parts or len(parts[-1]) == count or held + size > _MOST_BYTES:
            parts.append([])
            held = 0
        parts[-1].append(layers)
        held += size
    return parts


def _compensated(weight, gram, device, format, group, use_zeros, use_order):
    """Returns the packed form of a weight by GPTQ, given the Gram matrix of its inputs."""
    columns, gram = np.ascontiguousarray(weight.T), gram.copy()  # a row for each input
    in_units, units = columns.shape
    found = {}
    unused = np.diag(gram) == 0
    gram[unused, unused] = 1
    if use_order:
        order = np.argsort(-np.diag(gram), kind="stable")
        columns, gram = columns[order], gram[order][:, order]
        found["order"] = order.astype(np.int32)
    factor = _inverse_factor(gram, device)
    codes = np.empty(columns.shape, np.int16)
    scales = np.empty((in_units // group, units), np.float32)
    zeros = np.empty_like(scales)
    step = _COLUMNS if group == in_units else group * max(1, _COLUMNS // group)
    if group == in_units:
        scales[0], zeros[0] = _scales(columns, format, use_zeros)
    for begin in range(0, in_units, step):
        end = min(begin + step, in_units)
        block, errors = columns[begin:end], np.empty((end - begin, units), np.float32)
        for at in range(end - begin):
            index = begin + at
            own = index // group
            if index % group == 0 and group != in_units:
                scales[own], zeros[own] = _scales(block[at : at + group], format, use_zeros)
            codes[index], value = _nearest(block[at], format, scales[own], zeros[own])
            errors[at] = (block[at] - value) / factor[index, index]
            block[at:] -= factor[index, index:end, None] * errors[at]
        columns[end:] -= factor[begin:end, end:].T @ errors
    codes = codes.T
    if format == "int8":
        found["packed"] = codes.astype(np.int8)
    else:
        found["packed"] = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    found["scales"] = scales.T
    if use_zeros:
        found["zeros"] = zeros.T
    return found


def _inverse_factor(gram, device):
    """Returns the upper Cholesky factor of the inverse of a damped Gram matrix.

    It is the inverse of the lower factor of the matrix with reversed rows and columns, reversed.
    """
    mean, diagonal = np.diag(gram).mean(), np.arange(len(gram))
    backwards = np.ascontiguousarray(gram[::-1, ::-1])
    failure = MXNetError("quantize_weights: the inputs of a layer have no finite Gram matrix")
    for damping in (_DAMPING, 10 * _DAMPING, 100 * _DAMPING):
        backwards[diagonal, diagonal] += damping * mean
        value = nd.array(backwards, ctx=device, dtype="float64")
        try:
            lower = nd.linalg.potrf(value)
            inverse = nd.linalg.trsm(lower, nd.eye(len(gram), ctx=device, dtype="float64"))
            found = np.ascontiguousarray(inverse.asnumpy()[::-1, ::-1], np.float32)
            if np.isfinite(found).all():
                return found
        except MXNetError as error:  # not positive definite after rounding
            failure = error
    raise failure


def _scales(rows, format, use_zeros):
    """Returns scale and zero of each unit for a group, whose rows are the inputs."""
    weight = np.ascontiguousarray(rows.T)
    _, scales, zeros = QUANTIZERS[format](weight, weight.shape[1], use_zeros)
    if zeros is None:
        zeros = np.full_like(scales, 8 if format == "int4" else 0)
    return scales[:, 0], zeros[:, 0]


def _nearest(column, format, scale, zero):
    """Returns the nearest codes of a column, and their values."""
    x = np.divide(column, scale, out=np.zeros_like(column), where=scale != 0)
    if format == "nf4":
        codes = np.searchsorted((NF4[1:] + NF4[:-1]) / 2, x)
        return codes, NF4[codes] * scale
    low, high = (-127, 127) if format == "int8" else (0, 15)
    codes = np.clip(np.rint(x + zero), low, high)
    return codes.astype(np.int16), (codes - zero) * scale


# --- AWQ ------------------------------------------------------------------------------------------


class _Fold(NamedTuple):
    """A place where the inputs of layers can be divided: in the parameters of the block before.

    Attributes
    ----------
    layers : list of Dense
        All layers that read the result of the block.
    params : list of (Parameter, float)
        The parameters to divide, after adding a constant.
    repeats, size : int
        Each run of `size` channels is repeated `repeats` times in the inputs (heads that share a
        value).
    """

    layers: list[nn.Dense]
    params: list[tuple[Any, float]]
    repeats: int = 1
    size: int = 1

    def reduced(self, values: np.ndarray) -> np.ndarray:
        """Returns the mean over the repeats of each channel."""
        return values.reshape(-1, self.repeats, self.size).mean(axis=1).reshape(-1)

    def expanded(self, scale: np.ndarray) -> np.ndarray:
        """Returns the value of each input for values of the channels."""
        return np.repeat(scale.reshape(-1, 1, self.size), self.repeats, axis=1).reshape(-1)

    def apply(self, scale: np.ndarray, values: _Values) -> None:
        """Divides the channels of the block, and multiplies the columns of the layers."""
        for param, shift in self.params:
            each = scale.reshape(-1, *[1] * (len(param.shape) - 1))
            values.change(param, lambda old, each=each, shift=shift: (old + shift) / each - shift)
        columns = self.expanded(scale)
        for layer in self.layers:
            values.change(layer.weight, lambda old: old * columns)


class _Values:
    """The values of parameters after folds. The parameters themselves don't change, so that an
    error leaves the network as it was. Values are computed on demand, because copies of all weights
    would take as much memory as the network."""

    def __init__(self) -> None:
        self._changes: dict[Any, list[Callable[[np.ndarray], np.ndarray]]] = {}

    def change(self, param: Any, function: Callable[[np.ndarray], np.ndarray]) -> None:
        """Applies a function to the value of a parameter."""
        self._changes.setdefault(param, []).append(function)

    def stored(self, param: Any) -> nd.NDArray:
        """Returns a value in the dtype of the parameter."""
        array = param.reduced()
        for function in self._changes.get(param, ()):
            new = function(_values_of(array.astype("float32")))
            array = nd.array(new, ctx=cpu(0), dtype="float32").astype(param.dtype)
        return array

    def __getitem__(self, param: Any) -> np.ndarray:
        """Returns a value as float32."""
        return _values_of(self.stored(param).astype("float32"))

    def changed(self) -> list[Any]:
        """Returns the changed parameters."""
        return list(self._changes)


def awq(task: Task, undo: contextlib.ExitStack) -> None:
    """Rounds the weights of layers by AWQ. Adds callbacks that restore changed parameters to
    `undo`.

    Inputs are divided in the norms of `text.DecoderLayer` and of transformer cells that normalize
    first, in `up` before `down` of `GatedMLP`, and in `value` before `proj` of
    `MultiHeadAttention`. Groups of all layers are clipped where this reduces the error.
    """
    who, net, paths, calls, replace, format, groups, use_zeros = task
    samples: dict[Block, list[nd.NDArray]] = {}
    means: dict[Block, list[Any]] = {}  # sum of magnitudes, number of rows
    shared = _shared_inputs(who, net, calls, paths)
    first = {layer: layers[0] for layers in shared for layer in layers}

    def take(layer, x):
        rows = _rows(layer, x)
        total = means.setdefault(layer, [0, 0])
        total[0], total[1] = total[0] + rows.abs().sum(axis=0), total[1] + rows.shape[0]
        share = max(1, _SAMPLES // len(calls))
        step = max(1, rows.shape[0] // share)
        samples.setdefault(layer, []).append(rows[0 : step * share : step].copy())

    _run(net, calls, dict.fromkeys(first.values()), take)
    x = {layer: nd.concat(*samples[own], dim=0) for layer, own in first.items()}
    size = {layer: _values_of(means[own][0] / means[own][1]) for layer, own in first.items()}
    options = {layer: (format, groups[path], use_zeros) for layer, path in paths.items()}
    values = _Values()
    for fold in _folds(net):
        if not all(layer in paths for layer in fold.layers):
            continue
        scale = _best_scale(fold, values, x, size, options)
        if scale is None:
            continue
        fold.apply(scale, values)
        each = fold.expanded(scale)
        for layer in fold.layers:
            x[layer] = x[layer] / nd.array(each, ctx=x[layer].context)
    for layer in paths:
        replace(layer, _clipped(values[layer.weight], x[layer], *options[layer]))
    packed = {layer.weight for layer in paths}
    for param in values.changed():
        if param not in packed:
            new = values.stored(param)
            undo.callback(param.set_data, param.reduced().copy())
            param.set_data(new)


def _folds(net: Block) -> Iterator[_Fold]:
    """Yields the places where inputs can be divided, in the order of the layers."""
    from ..gluon.model_zoo.text import DecoderLayer
    from ..gluon.model_zoo.text._t5 import MemoryAttention

    found: list[Block] = []
    net.apply(found.append)
    blocks = list(dict.fromkeys(found))
    users = users_of(blocks)
    cells = (nn.TransformerEncoderCell, nn.TransformerDecoderCell)
    for block in blocks:
        folds = []
        cell = type(block) in cells and normalizes_first(block)
        if type(block) is DecoderLayer or cell:
            folds.append(_fold_of_norm(block.attention_norm, _readers(block.attention)))
        if type(block) is DecoderLayer:
            folds.append(_fold_of_norm(block.mlp_norm, _readers(block.mlp)))
        elif cell:
            folds.append(_fold_of_norm(block.ffn_norm, [block.ffn1]))
        elif type(block) is nn.GatedMLP:
            folds.append(_fold_of_rows(block.up, block.down))
        elif type(block) in (nn.MultiHeadAttention, MemoryAttention):
            heads, kv_heads, size = heads_of(block)
            folds.append(_fold_of_rows(block.value, block.proj, heads // kv_heads, size))
        for fold in folds:
            if fold is not None and all(users[param] == 1 for param, _ in fold.params):
                yield fold


def _readers(block):
    """Returns the layers that read the input of a block, or nothing if they are not known."""
    if type(block) is nn.MultiHeadAttention:
        return [block.query, block.key, block.value]
    return [block.gate, block.up] if type(block) is nn.GatedMLP else []


def _fold_of_norm(norm, layers):
    if type(norm) not in (nn.RMSNorm, nn.LayerNorm) or norm.gamma is None or not layers:
        return None
    params = [(norm.gamma, getattr(norm, "_offset", 0.0))]
    if getattr(norm, "beta", None) is not None:
        params.append((norm.beta, 0.0))
    return _Fold(layers, params)


def _fold_of_rows(before, after, repeats=1, size=1):
    if type(before) is not nn.Dense:
        return None
    params = [(param, 0.0) for param in (before.weight, before.bias) if param is not None]
    return _Fold([after], params, repeats, size)


def _best_scale(fold, values, x, size, options):
    """Returns the factors of the channels with the smallest error, or None for 1."""
    mean = np.maximum(fold.reduced(size[fold.layers[0]]), 1e-4)
    weights = [values[layer.weight] for layer in fold.layers]
    best, least = None, None
    for exponent in _EXPONENTS:
        scale = mean**exponent
        scale = (scale / np.sqrt(scale.max() * scale.min())).astype(np.float32)
        each, error = fold.expanded(scale), 0.0
        for layer, weight in zip(fold.layers, weights):
            change = weight - _rounded(weight * each, *options[layer]) / each
            product = nd.dot(x[layer], nd.array(change, ctx=x[layer].context), transpose_b=True)
            error += float(brought_to_all(product.square().sum()))
        if least is None or error < least:
            best, least = (scale if exponent else None), error
    return best


def _rounded(weight, format, group, use_zeros):
    """Returns the values of a weight after rounding to nearest."""
    arrays = quantize_array(nd.array(weight, ctx=cpu(0)), format, group, use_zeros)
    units, in_units = weight.shape
    return nd.contrib.dequantize_weight(
        **arrays, format=format, group=group, units=units, in_units=in_units
    ).asnumpy()


def _clipped(weight, x, format, group, use_zeros):
    """Returns the packed form of a weight whose groups are clipped where this reduces the error of
    the product with `x`."""
    units, in_units = weight.shape
    size = group or (BLOCKS[format] if format not in GROUPED else in_units)
    shape = (units, in_units // size, size)
    parts = x.reshape((-1, in_units // size, size)).transpose((1, 0, 2))
    grams = nd.batch_dot(parts, parts, transpose_a=True)

    def errors(candidate):
        change = (weight - _rounded(candidate, format, group, use_zeros)).reshape(shape)
        change = nd.array(change.transpose(1, 0, 2), ctx=x.context)
        return _values_of((nd.batch_dot(change, grams) * change).sum(axis=2)).T

    best, least = weight.reshape(shape).copy(), errors(weight)
    largest = np.abs(best).max(axis=2, keepdims=True)
    for ratio in _RATIOS.astype(np.float32):
        candidate = weight.reshape(shape).clip(-ratio * largest, ratio * largest)
        error = errors(candidate.reshape(units, in_units))
        better = error < least
        best[better], least[better] = candidate[better], error[better]
    packed, scales, zeros = QUANTIZERS[format](
        best.reshape(units, in_units), group or in_units, use_zeros
    )
    found = {"packed": packed, "scales": scales, "zeros": zeros}
    return {name: value for name, value in found.items() if value is not None}
