"""Finds the products and the attributes of a block with attention, which `heads` splits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...gluon import nn
from ...gluon._tree import children, own_parameters
from ...gluon.nn.basic_layers import dense_arguments

if TYPE_CHECKING:
    from ...gluon.block import Block

__all__ = ["find"]

_HEADS = ("heads", "num_heads", "n_heads", "nhead", "_heads", "_num_heads")
_INPUTS = (
    ("qkv",),
    ("_qkv",),
    ("in_proj",),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("q_proj", "k_proj", "v_proj"),
    ("proj_query", "proj_key", "proj_value"),
)
_OUTPUT = ("out", "output", "proj", "out_proj", "proj_out", "_out")


def find(block: Block, options: dict[str, Any]) -> tuple[Any, ...]:
    """Analyzes a block whose attention is to be split. Returns the names of its input and output
    children, the number of heads, the candidates for attributes, and the number of blocks."""
    options = dict(options)
    inputs, output, attributes = (
        options.pop(name, None) for name in ("inputs", "output", "attributes")
    )
    blocks = options.pop("blocks", 3)
    if options:
        raise ValueError(
            f"'heads' has no option {', '.join(map(repr, options))}; its options are inputs, "
            "output, attributes and blocks"
        )
    if own_parameters(block):
        raise NotImplementedError(
            f"the block has its own parameters ({', '.join(own_parameters(block))}), which "
            "cannot be split by 'heads'"
        )
    own = children(block)
    dense = {name: child for name, child in own.items() if isinstance(child, nn.Dense)}
    packed = [name for name, child in own.items() if isinstance(child, nn.QuantizedDense)]
    inputs, output = _products(dense, packed, inputs, output)
    blocks_of_input = blocks if len(inputs) == 1 else 1
    heads, choices = _counters(
        block, attributes, dense[inputs[0]].weight.shape[0] // blocks_of_input, blocks
    )
    for name in inputs:
        units = dense[name].weight.shape[0]
        if units % (blocks_of_input * heads):
            raise ValueError(
                f"the {units} units of '{name}' cannot be divided into {blocks_of_input} x "
                f"{heads} heads"
            )
        if dense_arguments(dense[name])["flatten"]:
            raise ValueError(
                f"'{name}' has flatten=True, so it cannot compute the heads of a sequence"
            )
    return inputs, output, heads, choices, blocks_of_input


def _products(dense, packed, inputs, output):
    """Returns the names of the Dense children that compute queries, keys and values, and of the
    output child. If they are not given, common names are tried. `packed` lists the children with
    packed weights, for errors."""
    there = f"its Dense children are {', '.join(dense) or 'none'}"
    if packed:
        there += f"; {', '.join(packed)} have packed weights, so split the block before packing"
    if inputs is None:
        inputs = next((names for names in _INPUTS if all(name in dense for name in names)), None)
        if inputs is None:
            raise ValueError(
                f"cannot infer which children compute queries, keys and values ({there}); pass "
                "inputs="
            )
    inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    if output is None:
        output = next((name for name in _OUTPUT if name in dense and name not in inputs), None)
        if output is None:
            raise ValueError(
                f"cannot infer which child computes the output ({there}); pass output="
            )
    for name in (*inputs, output):
        if name not in dense:
            raise ValueError(f"'{name}' is not a Dense child of the block; {there}")
    return inputs, output


def _counters(block, attributes, units, blocks):
    """Returns the number of heads, and candidates for the attributes to divide: the number of
    heads, and possibly numbers of units of all heads."""
    numbers = {
        name: value for name, value in block.__dict__.items() if type(value) is int and value > 0
    }
    if attributes is None:
        attributes = getattr(block, "_counts_of_heads", None)
    if attributes is not None:
        attributes = (attributes,) if isinstance(attributes, str) else tuple(attributes)
        missing = [name for name in attributes if name not in numbers]
        if missing:
            raise ValueError(
                f"the block has no integer attribute '{missing[0]}'; it has "
                f"{', '.join(numbers) or 'none'}"
            )
        return numbers[attributes[0]], [attributes]
    counting = next((name for name in _HEADS if name in numbers), None)
    if counting is None:
        raise ValueError(
            "cannot infer which attribute is the number of heads (integer attributes: "
            f"{', '.join(numbers) or 'no numbers'}); pass attributes="
        )
    more = tuple(
        name
        for name, value in numbers.items()
        if value in (units, blocks * units) and name != counting
    )
    choices = [(counting,), (counting, *more)] if more else [(counting,)]
    return numbers[counting], choices
