"""Expands functions of ``mx.np`` that are written in Python (`Composition`) into ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import MXNetError
from ..context import current_context
from ..symbol._graph import Node, entries_of, made_at, topological
from ..symbol.numpy._composition import Composition
from ._package import ONNXError
from ._sizes import inferred
from ._table import FUNCTIONS

if TYPE_CHECKING:
    from typing import Any


def expanded(entries: Any, arrays: dict[str, Any], shapes: Any, dtypes: Any) -> tuple[Any, Any]:
    """Returns the entries of the graph in which ops replace each function without an exporter, and
    the arrays by name, with those that the functions capture.

    The ops are those that the function calls for the given shapes. Sizes stay dynamic as in files
    of blocks.
    """
    order = topological(entries)
    if not any(_is_composed(node) for node in order):
        return entries, arrays
    found = inferred(entries, shapes, dtypes)
    made: dict[Any, Any] = {}
    arrays = dict(arrays)
    for node in order:
        sources = tuple([made[source][index] for source, index in node.inputs])
        if _is_composed(node):
            descs = [found.values[found.place[source]][index] for source, index in node.inputs]
            made[node] = _expand(node, sources, descs, arrays)
        else:
            copy = node if node.call is None else _copy(node, node.name, sources)
            made[node] = [(copy, index) for index in range(node.num_outputs)]
    return [made[node][index] for node, index in entries], arrays


def _is_composed(node):
    call = node.call
    return isinstance(call, Composition) and not call.is_op and call.name not in FUNCTIONS


def _copy(node, name, sources):
    copy = Node(name, node.attrs, node.call, sources)
    copy.origin = node.origin
    return copy


def _expand(node, sources, descs, arrays):
    """Returns the entries of a function's results as ops of `sources`."""
    from .. import gluon
    from ..gluon.block._traced_symbol import traced_symbols

    class Block(gluon.HybridBlock):
        def forward(self, *given):
            results = node.call.run(list(given))
            return results[0] if len(results) == 1 else results

    names = [f"data{place}" for place in range(len(sources))]
    device = current_context()
    try:
        symbols, captured = traced_symbols(
            Block(),
            (tuple, *[gluon._nested.ARRAY] * len(sources)),
            [(*desc, device, True) for desc in descs],
            names,
            node.call.name,
        )
    except MXNetError as error:
        raise ONNXError(
            f"ONNX export: node '{node.name}': the op {node.call.name} cannot be converted: "
            f"{error}{made_at(node)}"
        ) from None
    made = {}
    results = [entry for symbol in symbols for entry in entries_of(symbol)]
    for inner in topological(results):
        name = f"{node.name}/{inner.name}"
        if inner.call is not None:
            inputs = tuple([made[source][index] for source, index in inner.inputs])
            copy = _copy(inner, name, inputs)
            copy.origin = node.origin
            made[inner] = [(copy, index) for index in range(inner.num_outputs)]
        elif inner.name in captured:
            arrays[name] = captured[inner.name]
            made[inner] = [(Node(name, {}), 0)]
        else:
            made[inner] = [sources[names.index(inner.name)]]
    return [made[inner][index] for inner, index in results]
