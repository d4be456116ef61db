"""The names of a block's inputs, for messages."""

import inspect
from itertools import chain, count

from .._nested import ARRAY


def input_names(block, structure):
    """Returns a name for each array among the arguments of a block, such as ``x`` or
    ``states[0]``. `structure` is that of the arguments (see `_nested.flatten`)."""
    kind = type(block)
    own = "forward" in vars(kind) and "hybrid_forward" not in vars(kind)
    parameters = inspect.signature(kind.forward if own else kind.hybrid_forward).parameters
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in parameters.items() if parameter.kind in kinds]
    rest = (f"args[{number}]" for number in count())
    arguments = chain(names[1 if own else 2 :], rest)
    return [
        name for part, argument in zip(structure[1:], arguments) for name in _names(part, argument)
    ]


def _names(part, name):
    """Yields the names of the arrays in an argument with the given structure."""
    if part is ARRAY:
        yield name
    elif part is not None and part[0] in (list, tuple):
        for number, item in enumerate(part[1:]):
            yield from _names(item, f"{name}[{number}]")
    elif part is not None and part[0] is dict:
        for key, item in zip(part[1:-1], part[-1][1:]):
            yield from _names(item, f"{name}[{key!r}]")
