"""Converts a block's trace on arrays to a symbol: each op becomes a node. This is for blocks that
cannot run on symbols, because they read shapes or use captured arrays."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ... import _core
from ...base import MXNetError, NotSupportedError
from ...name import NameManager
from ...symbol._json import is_internal
from .._compiled.call import Signature
from ._free_sizes import Trace, free_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._internal.types import NDArray, Symbol


def output_shapes(block: Any, structure: Any, inputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """Returns the shapes of a block's results for arrays with the descriptions in `inputs`."""
    return Signature(block, block.name or type(block).__name__, structure, False).output_shapes(
        inputs
    )


def traced_symbols(
    block: Any, structure: Any, inputs: Sequence[Any], names: Sequence[str], reason: str
) -> tuple[list[Symbol], dict[str, NDArray]]:
    """Returns the outputs of a block as symbols, and the captured arrays by name. `inputs` has
    the description (`graph_breaks.describe`) of each input, and `names` has the inputs' names.

    An input's size stays variable if the ops can infer it from their inputs. Otherwise the symbol
    rejects other sizes. `reason` explains in error messages why the block cannot run on symbols.
    """
    signature = Signature(block, block.name or type(block).__name__, structure, False)
    try:
        traced = _public(signature.traced_ops(inputs), signature.path)
    except NotSupportedError as error:
        raise NotSupportedError(f"{error} ({reason})") from None
    shapes = [shape for shape, *_ in inputs]
    pairs = [(name, any(desc[3:])) for name, desc in zip(names, inputs)]

    def retrace(changed):
        descs = [(shape, *desc[1:]) for shape, desc in zip(changed, inputs)]
        try:
            return _public(signature.traced_ops(descs), signature.path)
        except MemoryError:
            raise
        except Exception:  # user code can raise any exception for sizes that it rejects
            return None

    def is_valid(params, traces, may_fail):
        with NameManager():
            symbols, constants = _symbols(traced, params, pairs)
        known = {param.name: param.shape for param in traced.parameters.values()}
        known.update({name: array.shape for name, array in constants.items()})

        def is_equal(trace, *others):
            found = _shapes_of(symbols, {**known, **dict(zip(names, trace.shapes))})
            return found in (trace.traced.output_shapes, *others)

        return all([is_equal(trace) for trace in traces]) and all(
            [is_equal(trace, None) for trace in may_fail]
        )

    params, fixed = free_sizes(Trace(shapes, traced), retrace, is_valid)
    return _symbols(traced, params, pairs, [(place, axis, shapes[place]) for place, axis in fixed])


def _shapes_of(symbols, shapes):
    """Infers the shapes of symbols from the shapes of variables. Returns None if a shape cannot be
    inferred completely."""
    from ...symbol._graph import entries_of, topological
    from ...symbol._infer import Inference, known, with_open_shapes

    entries = [entry for symbol in symbols for entry in entries_of(symbol)]
    try:
        inference = Inference(entries, shapes, {}, only="shape")
    except MXNetError:
        return None
    made = inference.of(with_open_shapes(topological(entries)))
    if not all(known(shape) for shape, _ in made):
        return None
    return [shape for shape, _ in inference.outputs()]


# Internal ops of traces -> public ops that replace them in files.
_PUBLIC = {
    "_reshape_exact": "Reshape",
    "_broadcast_exact": "broadcast_to",
    "_detach": "BlockGrad",
    "_head_attention": "_contrib_attention",
    "_dropout_head_attention": "_contrib_attention",
}
# Ops that only mx.np has -> their names in files. Composed ops contain their counterparts in mx.nd.
_NUMPY_ONLY = {
    f"_{name}": f"_npi_{name}"
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_xor_scalar")
}
# The reshape to given sizes, and a size of 0 in its parameter, which Reshape copies from the input.
_EXACT, _EMPTY = "_reshape_exact", re.compile(r"\b0\b")
# Parameters of internal ops that the public ops derive from their inputs.
_DERIVED = {"_head_attention": {"keys", "later"}, "_dropout_head_attention": {"keys", "later"}}


class _Row(str):
    """The name of an op of ``mx.nd``, which also names its counterpart in ``mx.np`` if `numpy`. The
    rules for ops are the same in both."""

    numpy: bool

    def __new__(cls, name, numpy):
        self = super().__new__(cls, name)
        self.numpy = numpy
        return self


def _public(traced, path):
    """Replaces internal ops of a trace by public ops, which files can store."""
    ops = []
    for name, params, *rest in traced.ops:
        row, numpy = (None, False) if name is None else _core.row_of(name)
        public = _PUBLIC.get(row, row)
        if public is row and row in _NUMPY_ONLY:  # a part of a composed op
            name, numpy = _NUMPY_ONLY[row], True
        if public is row and row not in _COMPOSED and (row is None or is_internal(name)):
            raise _core.NotSupportedError(
                f"{path}: {name or 'a compiled call'} cannot be written as a symbol"
            )
        params = {key: text for key, text in params.items() if key not in _DERIVED.get(row, ())}
        if numpy and row == _EXACT and _EMPTY.search(params["shape"]):
            public, params = "_reshape_numpy", {"newshape": params["shape"]}
        ops.append((_Row(public, numpy), params, *rest))
    used = list(traced.parameters.values())
    twice = next((param for param in used if used.count(param) > 1), None)
    if twice is not None:
        raise _core.NotSupportedError(
            f"{path}: parameter '{twice.name}' is divided or replicated over devices, which cannot "
            "be written as a symbol; move the network to one device with net.place"
        )
    return traced._replace(ops=ops)


def _symbols(traced, parameters_of_ops, names, checks=()):
    """Returns the outputs of a trace as symbols, and its captured arrays by name. `names` has the
    name of each input, and whether it is an array of mx.np. `checks` has (input, axis, shape) for
    each fixed axis: the symbol must reject other sizes than in `shape`."""
    from ...symbol._functions import symbol_type
    from ...symbol._graph import Node, entries_of

    values, constants = {}, {}
    kinds = {}
    for value, (name, numpy) in zip(traced.inputs, names):
        values[value], kinds[value] = (Node(name, {}), 0), numpy
    for place, axis, shape in checks:
        value = traced.inputs[place]
        values[value] = _checked(values[value], *names[place], axis, shape)
    for value, param in traced.parameters.items():
        values[value] = entries_of(param.var())[0]
    for number, (value, array) in enumerate(traced.constants.items()):
        name = f"captured{number}"
        constants[name] = array
        values[value] = (Node(name, {}), 0)
    for (op, _, inputs, first, count), params in zip(traced.ops, parameters_of_ops):
        sources = [values[value] for value in inputs]
        op = _Row(params.get("as", op), op.numpy)
        likes = params.get("like", ())
        of = [values[params["of"]]] if "of" in params else []
        cut = params.get("cut", ())
        params = {key: text for key, text in params.items() if key not in _NOT_OF_OP}
        sources += of
        if op in _WITH_RANKS:
            ranks = [len(traced.shapes[value]) for value in inputs]
            node = _WITH_RANKS[op](params, sources, op.numpy, ranks)
        elif op in _COMPOSED:
            node = _COMPOSED[op](params, sources, op.numpy)
        else:
            node = _node(op, params, sources)
        for value, pairs in likes:
            lhs, rhs = zip(*pairs)
            axes = {"lhs_axes": str(lhs), "rhs_axes": str(rhs)}
            both = [(node, 0), values[value]]
            node = _node(_Row("broadcast_like", op.numpy), axes, both)
        for value, *axes in cut:
            node = _sliced_like(node, values[value], *axes, op.numpy)
        values.update({first + index: (node, index) for index in range(count)})
        kinds.update({first + index: op.numpy for index in range(count)})
    return [
        symbol_type(kinds.get(value, False))([values[value]]) for value in traced.outputs
    ], constants


# Parameters of `free_sizes` that the op itself does not have.
_NOT_OF_OP = {"as", "like", "of", "cut"}


def _sliced_like(node, source, axis, at, numpy):
    """Cuts the axis `at` of a node to the size that `source` has along `axis`."""
    if axis != at:
        dims = {"dim1": str(axis), "dim2": str(at)}
        source = _node(_Row("SwapAxis", numpy), dims, [source]), 0
    return _node(_Row("slice_like", numpy), {"axes": f"({at},)"}, [(node, 0), source])


def _node(op, params, sources, name=None, call=None):
    from ...symbol._graph import Node

    name = NameManager.current().get(name, op.lower().lstrip("_"))
    return Node(name, params, call or _core.OpCall(op, params, op.numpy), tuple(sources))


def _checked(source, name, numpy, axis, shape):
    """Returns an input after a reshape that fails if the axis has another size than in `shape`.
    A code keeps the sizes of the other axes: 0, or -2 if 0 is the checked size."""
    empty = numpy and shape[axis] == 0
    row, key, copy = ("_reshape_codes", "newshape", -2) if empty else ("Reshape", "shape", 0)
    sizes = [size if place == axis else copy for place, size in enumerate(shape)]
    params = {key: str(tuple(sizes))}
    name = f"{name}_axis{axis}_must_be_{shape[axis]}"
    return _node(_Row(row, numpy), params, [source], name), 0


def _product(params, sources, numpy, ranks):
    """Returns the product of two arrays with the given numbers of axes. In files, the op of mx.np
    is np.dot, which sums over the last axis of lhs and the second to last one of rhs. It cannot
    transpose its inputs, so other nodes do."""
    from ...symbol.numpy._composition import Composition, Input

    if not numpy:
        return _node(_Row("dot", False), params, sources)
    sources = list(sources)
    for place, key in enumerate(("transpose_a", "transpose_b")):
        transposed = params.get(key, "False") not in ("False", "0")
        axes = list(range(ranks[place]))
        if place == 0 and transposed:
            axes = [*axes[1:], axes[0]]
        elif place == 1 and len(axes) > 1:
            summed = axes.pop(-1 if transposed else 0)
            axes.insert(-1, summed)
        if axes != list(range(ranks[place])):
            node = _node(_Row("transpose", True), {"axes": str(tuple(axes))}, [sources[place]])
            sources[place] = node, 0
    if ranks[1] <= 2:
        return _node(_Row("dot", True), {}, sources)
    call = Composition("np.dot", {"a": Input(0), "b": Input(1)}, 2)
    return _node(_Row("dot", True), call.texts(), sources, call=call)


def _numbers_like(params, sources, numpy):
    """Returns evenly spaced numbers of a dtype, one for each index along an axis of an array."""
    dtype = params.get("dtype")
    if dtype is not None:
        sources = [(_node(_Row("Cast", numpy), {"dtype": dtype}, sources), 0)]
    params = {key: text for key, text in params.items() if key != "dtype"}
    return _node(_Row("_contrib_arange_like", numpy), params, sources)


def _recurrent(params, sources, numpy):
    """Returns MXNet's op for recurrent layers, which has all weights in one array."""
    states = 2 if params["mode"] == "lstm" else 1
    end = len(sources) - (params.get("use_sequence_length", "False") in ("True", "1"))
    reshape = _Row("Reshape", numpy)
    weights = sources[1 + states : end]
    flat = [(_node(reshape, {"shape": "(-1,)"}, [weight]), 0) for weight in weights]
    joined = _node(_Row("_rnn_param_concat", numpy), {"num_args": str(len(flat)), "dim": "0"}, flat)
    inputs = [sources[0], (joined, 0), *sources[1 : 1 + states], *sources[end:]]
    return _node(_Row("RNN", numpy), params, inputs)


def _cross_entropy(params, sources, numpy):
    data, label = sources
    logs = _node(_Row("log_softmax", numpy), {"axis": "-1"}, [data])
    picked = _node(_Row("pick", numpy), {"axis": "-1"}, [(logs, 0), label])
    return _node(_Row("_mul_scalar", numpy), {"scalar": "-1.0"}, [(picked, 0)])


def _filled(params, sources, numpy):
    if numpy:  # also for bools, which have no sum with a number
        return _numpy_filled(params, sources)
    number = params.get("fill_value", "0")
    ones = float(number) == 1  # without an addition, which would change the dtype of bools
    node = _node(_Row("ones_like" if ones else "zeros_like", numpy), {}, sources)
    if params.get("dtype", "None") != "None":
        node = _node(_Row("Cast", numpy), {"dtype": params["dtype"]}, [(node, 0)])
    return (
        _node(_Row("_plus_scalar", numpy), {"scalar": number}, [(node, 0)])
        if float(number) and not ones
        else node
    )


def _numpy_filled(params, sources):
    from ...symbol.numpy._composition import Composition, Input

    value = float(params.get("fill_value", "0"))
    arguments = {"a": Input(0), "fill_value": int(value) if value.is_integer() else value}
    if params.get("dtype", "None") != "None":
        arguments["dtype"] = params["dtype"]
    call = Composition("np.full_like", arguments, 1)
    return _node(_Row("full_like", True), call.texts(), sources, call=call)


def _gelu(params, sources, numpy):
    return _node(_Row("gelu", numpy), {"approximate": "tanh"}, sources)


# Internal ops that MXNet lacks -> functions that compose them from MXNet's ops.
_COMPOSED = {
    "_rnn": _recurrent,
    "_softmax_ce": _cross_entropy,
    "_full_like": _filled,
    "_gelu_tanh": _gelu,
    "_contrib_arange_like": _numbers_like,
}
# Ops that need other nodes for some numbers of axes -> functions that create these nodes.
_WITH_RANKS = {"dot": _product}
