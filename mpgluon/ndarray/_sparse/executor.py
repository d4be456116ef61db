"""Support for sparse arrays in executors of symbols. Programs with sparse arrays run node by
node."""

import ast

from ... import _core
from .arrays import BaseSparseNDArray
from .row_gradients import RowGradientWeight, RowSparseGradient, whole
from .variables import mark


def is_sparse(array):
    """True if the array is sparse."""
    return isinstance(array, BaseSparseNDArray)


def is_handled(array):
    """True if ops on the array are run by `ops.call` instead of the core."""
    return isinstance(array, (BaseSparseNDArray, RowGradientWeight))


def executor_inputs(arguments, gradients, requests, auxiliary):
    """Returns aliases of the arguments and auxiliary states. The arguments' aliases are variables
    with the given gradients, so the user's arrays are not marked."""
    inputs = []
    for array, gradient, request in zip(arguments, gradients, requests):
        if gradient is None or request == "null":
            inputs.append(array if is_sparse(array) else array.detach())
        elif not is_sparse(array) and gradient.stype == "row_sparse":
            row_gradient = RowSparseGradient(array.shape, array.context, array.dtype, request)
            inputs.append(RowGradientWeight(array.detach(), row_gradient))
        else:
            inputs.append(array.detach())
            mark(inputs[-1], gradient, request)
    return [*inputs, *[array if is_sparse(array) else array.detach() for array in auxiliary]]


def _of_lookup(attrs, stypes):
    sparse = str(attrs.get("sparse_grad", "False")) in ("True", "1", "true")
    return {1: "row_sparse" if sparse else "default"}


def _of_product(attrs, stypes):
    return {1: "row_sparse"} if stypes[0] == "csr" else {}


_GRADIENT_STYPES = {
    "Embedding": _of_lookup,
    "_contrib_SparseEmbedding": lambda attrs, stypes: {1: "row_sparse"},
    "dot": _of_product,
}


def gradient_stypes(op, attrs, stypes):
    """Returns a dict from the indices of an op's inputs to the storage types of their gradients. It
    is empty if the op has no rule.

    `stypes` has the storage types of the inputs, or None if unknown.
    """
    rule = _GRADIENT_STYPES.get(op)
    return rule(attrs, stypes) if rule else {}


def _value(text):
    """Parses the text of a parameter."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def run_node(call, attrs, inputs):
    """Computes the outputs of a node with sparse inputs."""
    op = _core.ops().get(getattr(call, "name", None))
    if op is None:
        return call.run([whole(array) for array in inputs], None)
    described = op.describe()
    known = {param["name"] for param in described["params"]}
    params = {
        key: _value(text) for key, text in attrs.items() if key in known and key != "num_args"
    }
    outputs = op(*inputs, **params)
    return outputs if isinstance(outputs, list) else [outputs]
