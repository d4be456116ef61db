"""Arrays from outside that a block uses when it is traced: where they are kept, so that later calls use what is kept there then.

What is written into such an array is seen by compiled calls anyway. Another array in its place (``block.mask = new``) is looked for before each call, where the
array was found when the block was traced: in the blocks' attributes, in variables that their functions see, and in lists, dicts, tuples and plain objects
there.
"""

import functools
import types

from .. import ndarray as nd
from .parameter import Parameter, ParameterDict

# How many objects are looked at, and how far behind an attribute or variable.
_OBJECTS, _DEPTH = 20000, 6


class Captured:
    """One array, and how to find it again: `keys` lead to it from `root`, one at a time."""

    __slots__ = ("root", "keys", "array", "place")

    def __init__(self, root, keys, array):
        self.root, self.keys = root, keys
        self._note(array)

    def _note(self, array):
        self.array, self.place = array, array._place

    def current(self):
        """The array that is there now; None: there is none."""
        value = self.root
        try:
            for get, key in self.keys:
                value = get(value, key)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        return value if isinstance(value, nd.NDArray) else None

    def renew(self, op):
        """Makes calls of `op` use the array that is there now. False where that takes another trace."""
        array, former = self.current(), self.array
        if array is former and array._place == self.place:
            return True
        if array is None or array._traced or (array.shape, array.dtype, array.context) != (former.shape, former.dtype, former.context):
            return False
        if op is None or not op.recapture(self.place, array):
            return False
        self._note(array)
        return True


def _item(container, key):
    return container[key]


def _attribute(value, name):
    return vars(value)[name]


def _cell(function, index):
    return function.__closure__[index].cell_contents


def _global(function, name):
    return function.__globals__[name]


def _default(function, index):
    return function.__defaults__[index]


def _names(code):
    """Names that a function, or functions in it, look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _parts(value, names):
    """(get, key, part) of what may lead to an array."""
    if isinstance(value, dict):
        return [(_item, key, part) for key, part in list(value.items())]
    if isinstance(value, (list, tuple)):
        return [(_item, key, part) for key, part in enumerate(value)]
    if isinstance(value, types.FunctionType):
        names = _names(value.__code__)
        parts = [(_global, name, value.__globals__[name]) for name in sorted(names) if name in value.__globals__]
        for index, cell in enumerate(value.__closure__ or ()):
            try:
                parts.append((_cell, index, cell.cell_contents))
            except ValueError:
                pass  # the variable has no value yet
        return parts + [(_default, index, part) for index, part in enumerate(value.__defaults__ or ())]
    if isinstance(value, types.MethodType):
        return [(getattr, "__self__", value.__self__), (getattr, "__func__", value.__func__)]
    if isinstance(value, functools.partial):
        return [(getattr, name, getattr(value, name)) for name in ("func", "args", "keywords")]
    if isinstance(value, types.ModuleType):
        return [(_attribute, name, vars(value)[name]) for name in sorted(names) if isinstance(vars(value).get(name), nd.NDArray)]
    if isinstance(value, (type, Parameter, ParameterDict)) or not hasattr(value, "__dict__"):
        return []
    parts = [(_attribute, name, part) for name, part in list(vars(value).items())]
    functions = [getattr(type(value), name, None) for name in ("hybrid_forward", "forward", "__call__")]
    return parts + [(_method, name, function) for name, function in zip(("hybrid_forward", "forward", "__call__"), functions) if isinstance(function, types.FunctionType)]


def _method(value, name):
    return getattr(type(value), name)


def find(block, arrays):
    """The `Captured` among what `block` can see that share memory with one of `arrays`."""
    memory = {array._place[0] for array in arrays}
    found, seen, queue = [], {id(block)}, [(block, (), frozenset())]
    for value, keys, names in queue:  # it grows
        if isinstance(value, types.FunctionType):
            names = _names(value.__code__)
        for get, key, part in _parts(value, names):
            if isinstance(part, nd.NDArray):
                if not part._traced and part._place[0] in memory:
                    found.append(Captured(block, (*keys, (get, key)), part))
            elif id(part) not in seen and len(seen) < _OBJECTS and (len(keys) < _DEPTH or hasattr(part, "_children")):
                if isinstance(part, types.FunctionType) and part.__module__ and part.__module__.startswith("mpgluon."):
                    continue
                seen.add(id(part))
                queue.append((part, (*keys, (get, key)), names))
    return found
