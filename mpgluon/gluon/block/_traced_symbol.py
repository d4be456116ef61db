"""Symbols of blocks that cannot run on symbols, because they read shapes or use arrays of their
own: the ops of a trace become nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ... import _core
from ...base import MXNetError, NotSupportedError
from ...name import NameManager
from .._compiled.call import Signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._internal.types import NDArray, Symbol


def output_shapes(block: Any, structure: Any, inputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """Returns the shapes of a block's results for arrays with the (shape, dtype, device) in
    `inputs`."""
    return Signature(block, block.name or type(block).__name__, structure, False).output_shapes(
        inputs
    )


def traced_symbols(
    block: Any, structure: Any, inputs: Sequence[Any], names: Sequence[str], reason: str
) -> tuple[list[Symbol], dict[str, NDArray]]:
    """Returns the outputs of a block as symbols, and the arrays that it uses besides inputs and
    parameters, by name. `inputs` has (shape, dtype, device) of each input, `names` their names.

    The sizes that the block reads are constants in the symbol. Only the batch size stays variable,
    if the ops can infer it: the first dimension of the first input, and of all inputs with the same
    first dimension. `reason` is why the block cannot run on symbols, for errors.
    """
    signature = Signature(block, block.name or type(block).__name__, structure, False)
    try:
        traced = _public(signature.traced_ops(inputs), signature.path)
    except NotSupportedError as error:
        raise NotSupportedError(f"{error} ({reason})") from None
    given = [params for _, params, *_ in traced.ops]
    free = _with_free_batch(signature, traced, inputs)
    found = _symbols(traced, free, names)
    if free != given and not _is_complete(*found, dict(zip(names, inputs))):
        found = _symbols(traced, given, names)
    return found


def _is_complete(symbols, constants, inputs):
    """True if all shapes with open dimensions can be inferred from the shapes of the inputs."""
    from ...symbol._graph import entries_of, topological
    from ...symbol._infer import Inference, known, with_open_shapes

    entries = [entry for symbol in symbols for entry in entries_of(symbol)]
    shapes = {name: array.shape for name, array in constants.items()}
    shapes.update({name: shape for name, (shape, _, _) in inputs.items()})
    made = Inference(entries, shapes, {}).of(with_open_shapes(topological(entries)))
    return all(known(shape) for shape, _ in made)


# Internal ops of traces, and the public ops that replace them in files.
_PUBLIC = {"_reshape_exact": "Reshape", "_broadcast_exact": "broadcast_to", "_detach": "BlockGrad"}


def _public(traced, path):
    """Returns the trace with ops that files can store."""
    ops = [(_PUBLIC.get(op[0], op[0]), *op[1:]) for op in traced.ops]
    for name, *_ in ops:
        if name is None or "hidden" in _core.ops()[name].describe()["flags"]:
            raise _core.NotSupportedError(
                f"{path}: {name or 'a compiled call'} cannot be written as a symbol"
            )
    used = list(traced.parameters.values())
    twice = next((param for param in used if used.count(param) > 1), None)
    if twice is not None:
        raise _core.NotSupportedError(
            f"{path}: parameter '{twice.name}' is divided or replicated over devices, which cannot "
            "be written as a symbol; move the network to one device with net.place"
        )
    return traced._replace(ops=ops)


def _with_free_batch(signature, traced, inputs):
    """Returns the parameters of each op, with the batch size left open.

    A second trace with another batch size shows which parameters depend on it. Returns the
    parameters of the first trace if the batch size does not explain all differences."""
    given = [params for _, params, *_ in traced.ops]
    batch = inputs[0][0][:1]
    if not batch:
        return given
    more = [
        ((shape[0] + 1, *shape[1:]) if shape[:1] == batch else shape, dtype, ctx)
        for shape, dtype, ctx in inputs
    ]
    try:
        other = _public(signature.traced_ops(more), signature.path)
    except MemoryError:
        raise
    except (MXNetError, ValueError, IndexError):
        return given  # the block works only for this batch size
    if [op[0] for op in other.ops] != [op[0] for op in traced.ops]:
        return given
    free = []
    for (name, params, *_), (_, changed, *_), *shapes in zip(
        traced.ops, other.ops, traced.shapes, other.shapes
    ):
        if params != changed:
            params = _inferred(name, params, changed, shapes)
            if params is None:
                return given
        free.append(params)
    return free


# Parameters of ops that can leave a dimension open: the text for an open dimension, and the maximum
# number of open dimensions.
_OPEN = {
    ("Reshape", "shape"): ("-1", 1),
    ("slice", "end"): ("None", 32),
    ("slice_axis", "end"): ("None", 1),
    **{(name, "shape"): ("0", 32) for name in ("_zeros", "_ones", "_full")},
}


def _inferred(name, params, changed, shapes):
    """Returns the parameters with the differing dimensions left open, or None if the op does not
    support this. `shapes` has the shape of the op's first input in both traces."""
    keys = [key for key in params if params[key] != changed.get(key)]
    if params.keys() != changed.keys() or any((name, key) not in _OPEN for key in keys):
        return None
    found = dict(params)
    for key in keys:
        text, most = _OPEN[name, key]
        sizes, others = (re.findall(r"None|-?\d+", texts[key]) for texts in (params, changed))
        differ = [i for i, (size, other) in enumerate(zip(sizes, others)) if size != other]
        # 0 makes Reshape copy the input's first dimension, but with `reverse` it counts from the
        # end.
        if (
            (name, differ[:1]) == ("Reshape", [0])
            and params.get("reverse", "False") in ("False", "0")
            and _are_first(sizes, others, shapes)
        ):
            sizes[0] = "0"
            del differ[0]
        if len(sizes) != len(others) or len(differ) > most or (differ and text in sizes):
            return None
        for i in differ:
            sizes[i] = text
        found[key] = f"({', '.join(sizes)},)" if params[key].startswith("(") else sizes[0]
    return found


def _are_first(sizes, others, shapes):
    """True if the first size of a reshape is the first size of its input, in both traces."""
    return all(
        shape and int(new[0]) == shape[0]
        for new, shape in zip((sizes, others), shapes, strict=True)
    )


def _symbols(traced, parameters_of_ops, names):
    from ...symbol import Symbol
    from ...symbol._graph import Node, entries_of

    values, constants = {}, {}
    for value, name in zip(traced.inputs, names):
        values[value] = (Node(name, {}), 0)
    for value, param in traced.parameters.items():
        values[value] = entries_of(param.var())[0]
    for number, (value, array) in enumerate(traced.constants.items()):
        name = f"captured{number}"
        constants[name] = array
        values[value] = (Node(name, {}), 0)
    for (op, _, inputs, first, count), params in zip(traced.ops, parameters_of_ops):
        sources = [values[value] for value in inputs]
        node = _recurrent(params, sources) if op == "_rnn" else _node(op, params, sources)
        values.update({first + index: (node, index) for index in range(count)})
    return [Symbol([values[value]]) for value in traced.outputs], constants


def _node(op, params, sources):
    from ...symbol._graph import Node

    name = NameManager.current().get(None, op.lower().lstrip("_"))
    return Node(name, params, _core.OpCall(op, params), tuple(sources))


def _recurrent(params, sources):
    """Returns MXNet's op for recurrent layers, which has all weights in one array."""
    states = 2 if params["mode"] == "lstm" else 1
    end = len(sources) - (params.get("use_sequence_length", "False") in ("True", "1"))
    flat = [
        (_node("Reshape", {"shape": "(-1,)"}, [weight]), 0) for weight in sources[1 + states : end]
    ]
    joined = _node("_rnn_param_concat", {"num_args": str(len(flat)), "dim": "0"}, flat)
    inputs = [sources[0], (joined, 0), *sources[1 : 1 + states], *sources[end:]]
    return _node("RNN", params, inputs)
