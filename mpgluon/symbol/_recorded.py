"""Symbols of recorded computations."""

from .. import _core
from ..name import NameManager
from ._functions import symbol_type
from ._graph import Node


def symbol_of(array):
    """Returns the symbol of an array on the tape."""
    recorded, (number, output) = _core.recorded(array)
    nodes, variables = [], 0
    for node in recorded:
        if node is None:
            nodes.append(Node(f"var{variables}", {}))
            variables += 1
            continue
        op, params, inputs = node
        name = NameManager.current().get(None, op.lower().lstrip("_"))
        sources = tuple((nodes[source], index) for source, index in inputs)
        nodes.append(Node(name, params, _core.OpCall(op, params), sources))
    return symbol_type(isinstance(array, _core.ndarray))([(nodes[number], output)])
