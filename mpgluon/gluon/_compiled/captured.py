"""Captured arrays: arrays from outside that a block uses while it is traced, and where they are
kept, so that later calls use the current contents of these places.

Compiled calls see every write into such an array. Before each call, the places where a captured
array was found during tracing are checked for a replacement (``block.mask = new``): attributes of
blocks and their classes, variables that their functions see, and lists, dicts, tuples, modules,
classes and plain objects reachable from there.
"""

import collections
import functools
import sys
import types

import numpy as np

from ... import ndarray as nd
from ..parameter import Parameter, ParameterDict

# Limits of the search: the number of objects, and the depth below an attribute or variable.
_OBJECTS, _DEPTH = 20000, 6
# Values of these types, and functions, classes and modules of these packages, hold no user arrays.
_VALUES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    range,
    np.ndarray,
    np.generic,
    types.BuiltinFunctionType,
)
_PACKAGES = sys.stdlib_module_names | {"mpgluon", "numpy"}


class Captured:
    """A place where a captured array is kept, reached from `root` by `keys`, one at a time. The
    same array may be kept in several places."""

    __slots__ = ("root", "keys", "array", "place")

    def __init__(self, root, keys, array):
        self.root, self.keys = root, keys
        self.array, self.place = array, array._place

    def current(self):
        """Returns the array that is kept there now, or None."""
        value = self.root
        try:
            for get, key in self.keys:
                value = get(value, key)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        return value if isinstance(value, nd.NDArray) else None


def are_current(signature):
    """True if calls of a signature use the current arrays in place of the captured ones.

    Rebinds replaced arrays if the replacement is unambiguous: all places that held a captured
    array's memory hold the same new array, and no two captured arrays now share memory. If false,
    the block must be traced again."""
    for captured in signature.captured:
        array = captured.current()
        if array is not captured.array or array._place != captured.place:
            break
    else:
        return True
    done = None
    while done is None:  # retry if another thread rebound arrays meanwhile
        places = signature.captured
        now = [captured.current() for captured in places]
        renewed = _renewed(places, now)
        if renewed is None or signature.op is None:
            return False
        done = signature.op.recapture(
            renewed,
            signature,
            places,
            tuple([Captured(c.root, c.keys, array) for c, array in zip(places, now)]),
        )
    return done


def _renewed(places, now):
    """Returns (place, array) for each captured array that was replaced by another one. Returns
    None if the replacement is ambiguous."""
    memory, renewed = {}, []
    for captured, array in zip(places, now):
        memory.setdefault(captured.place[0], []).append((captured, array))
    for kept in memory.values():
        former, array = kept[0]
        if all([a is captured.array and a._place == captured.place for captured, a in kept]):
            continue
        if (
            array is None
            or array._traced
            or any([a is not array or captured.place != former.place for captured, a in kept])
        ):
            return None
        if (array.shape, array.dtype, array.context) != (
            former.array.shape,
            former.array.dtype,
            former.array.context,
        ):
            return None
        renewed.append((former.place, array))
    return (
        renewed if len({kept[0][1]._place[0] for kept in memory.values()}) == len(memory) else None
    )


def _item(container, key):
    return container[key]


def _attribute(value, name):
    """Returns an attribute of an object or class as it is stored: without evaluating properties or
    binding functions."""
    own = getattr(value, "__dict__", ())
    if name in own:
        return own[name]
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        if name in kind.__dict__:
            found = kind.__dict__[name]
            # Members of __slots__ are descriptors that hold the value.
            return found.__get__(value) if isinstance(found, types.MemberDescriptorType) else found
    raise AttributeError(name)


def _cell(function, index):
    return function.__closure__[index].cell_contents


def _global(function, name):
    return function.__globals__[name]


def _default(function, key):
    return function.__defaults__[key] if isinstance(key, int) else function.__kwdefaults__[key]


def _names(code):
    """Returns the names that a function and the functions inside it look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _of_a_package(value):
    """True if a function, class or module belongs to a package that holds no user arrays."""
    module = (
        value.__name__
        if isinstance(value, types.ModuleType)
        else getattr(value, "__module__", None)
    )
    return isinstance(module, str) and module.partition(".")[0] in _PACKAGES


def _class_parts(kind, value):
    """Returns the parts of `value` that its class `kind` and the base classes define."""
    parts = {}
    for base in kind.__mro__:
        if not _of_a_package(base):
            for name in base.__dict__:
                if name not in parts and not (name.startswith("__") and name != "__call__"):
                    try:
                        parts[name] = (_attribute, name, _attribute(value, name))
                    except AttributeError:
                        pass  # a slot without a value
    return list(parts.values())


def _parts(value, names):
    """Returns (get, key, part) for each part of `value` that may lead to an array."""
    if isinstance(value, dict):
        return [(_item, key, part) for key, part in list(value.items())]
    if isinstance(value, (list, tuple, collections.deque)):
        return [(_item, key, part) for key, part in enumerate(list(value))]
    if isinstance(value, types.FunctionType):
        parts = [
            (_global, name, value.__globals__[name])
            for name in sorted(names)
            if name in value.__globals__
        ]
        for index, cell in enumerate(value.__closure__ or ()):
            try:
                parts.append((_cell, index, cell.cell_contents))
            except ValueError:
                pass  # the variable is not assigned yet
        defaults = [*enumerate(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()]
        return (
            parts
            + [(_default, key, part) for key, part in defaults]
            + [(_attribute, name, part) for name, part in list(vars(value).items())]
        )
    if isinstance(value, types.MethodType):
        return [(getattr, "__self__", value.__self__), (getattr, "__func__", value.__func__)]
    if isinstance(value, (staticmethod, classmethod)):
        return [(getattr, "__func__", value.__func__)]
    if isinstance(value, property):
        return [(getattr, "fget", value.fget)]
    if isinstance(value, functools.partial):
        return [(getattr, name, getattr(value, name)) for name in ("func", "args", "keywords")]
    if isinstance(value, types.ModuleType):
        return [
            (_attribute, name, vars(value)[name]) for name in sorted(names) if name in vars(value)
        ]
    if isinstance(value, (Parameter, ParameterDict)):
        return []
    if isinstance(value, type):
        return _class_parts(value, value)
    own = [(_attribute, name, part) for name, part in list(getattr(value, "__dict__", {}).items())]
    return own + _class_parts(type(value), value)


def find(block, arrays):
    """Returns a `Captured` for each array reachable from `block` that shares memory with
    `arrays`."""
    memory = {array._place[0] for array in arrays}
    found, seen, queue = [], {id(block)}, [(block, (), frozenset())]
    for value, keys, names in queue:  # the queue grows during the loop
        if isinstance(value, types.FunctionType):
            names = frozenset(_names(value.__code__))
        for get, key, part in _parts(value, names):
            # In a module, only the names that the function uses are searched.
            mark = (id(part), names) if isinstance(part, types.ModuleType) else id(part)
            if isinstance(part, nd.NDArray):
                if not part._traced and part._place[0] in memory:
                    found.append(Captured(block, (*keys, (get, key)), part))
            elif (
                isinstance(part, _VALUES)
                or mark in seen
                or len(seen) >= _OBJECTS
                or not (len(keys) < _DEPTH or hasattr(part, "_children"))
            ):
                pass
            elif not (
                isinstance(part, (types.FunctionType, types.ModuleType, type))
                and _of_a_package(part)
            ):
                seen.add(mark)
                queue.append((part, (*keys, (get, key)), names))
    return found
