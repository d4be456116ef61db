"""Places outside a block's arguments and parameters that its compiled programs depend on.

`find` searches attributes of blocks and their classes, variables that their functions can read, and
lists, dicts, tuples, modules, classes and plain objects that are reachable from these. It returns
the places of captured arrays. It also returns the containers and variables that hold captured
arrays, blocks or parameters, because the trace is invalid once they change.
"""

import collections
import contextvars
import functools
import sys
import threading
import types
import weakref

import numpy as np

from ... import ndarray as nd
from .._tree import Parts, TreeNode, children, own_parameters
from ..parameter import Parameter

# Limits of the search: the number of objects, and the depth below a block's attribute or variable.
_OBJECTS, _DEPTH = 20000, 6
# Values of these types hold no user arrays. Neither do the functions, classes and modules of these
# packages.
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
    np.generic,
    types.BuiltinFunctionType,
)
_PACKAGES = sys.stdlib_module_names | {"mpgluon", "numpy"}
_CONTAINERS = (dict, list, tuple, collections.deque, np.ndarray)
# Types from the packages above whose objects are searched nevertheless, because they can hold user
# arrays.
_FOLLOWED = (
    *_CONTAINERS,
    TreeNode,
    type,
    types.FunctionType,
    types.MethodType,
    types.ModuleType,
    types.SimpleNamespace,
    staticmethod,
    classmethod,
    property,
    functools.partial,
    functools.partialmethod,
    type(functools.lru_cache(lambda: None)),
    collections.ChainMap,
    collections.UserDict,
    collections.UserList,
    types.MappingProxyType,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    contextvars.ContextVar,
    threading.local,
    weakref.ref,
)
# Types of attributes that hold code. Instances usually share the code that their class defines.
_CODE = (types.FunctionType, staticmethod, classmethod, property)
_MISSING = object()


class Place:
    """A path from a block, the root, to a variable. `keys` holds (getter, key) for each step."""

    __slots__ = ("root", "keys")

    def __init__(self, root, keys):
        self.root, self.keys = weakref.ref(root), keys

    def value(self):
        """Returns the object that the place holds now, or `_MISSING` if the path is broken."""
        value = self.root()
        try:
            for get, key in self.keys:
                value = get(value, key)
        except (AttributeError, LookupError, TypeError, ValueError):
            return _MISSING
        return value

    def text(self):
        """Returns the place for error messages, such as ``self.masks[0] of Net 'net0'``."""
        value = root = self.root()
        text = "self"
        for get, key in self.keys:
            if get is _cell:
                text = value.__code__.co_freevars[key]
            else:
                text = _TEXTS.get(get, "{}.{}").format(text, key)
            value = get(value, key)
        return f"{text} of {type(root).__name__} '{root.name}'"


class Fixed(Place):
    """A place that must hold the same object: a block, a parameter, or an object that is reached
    from several places."""

    __slots__ = ("expected",)

    def __init__(self, root, keys, expected):
        super().__init__(root, keys)
        try:
            self.expected = weakref.ref(expected)  # weak, because the object may own the root
        except TypeError:
            self.expected = lambda: expected

    def holds(self):
        expected = self.expected()
        return expected is not None and self.value() is expected


class Container(Place):
    """The place of a container that must keep its length or keys, its blocks and parameters, and
    the types of its other items."""

    __slots__ = ("layout",)

    def __init__(self, root, keys, container):
        super().__init__(root, keys)
        self.layout = _layout(container)

    def holds(self):
        value = self.value()
        return isinstance(value, _CONTAINERS) and _layout(value) == self.layout


def _items(container):
    if isinstance(container, dict):
        return container.values()
    return container.flat if isinstance(container, np.ndarray) else container


def _layout(container):
    """Returns the properties of a container that a trace depends on, besides its arrays."""
    items = list(_items(container))
    return [
        container.shape
        if isinstance(container, np.ndarray)
        else list(container)
        if isinstance(container, dict)
        else len(items),
        *[item if isinstance(item, (TreeNode, Parameter)) else type(item) for item in items],
    ]


def _item(container, key):
    return container[key]


def _attribute(value, name):
    """Returns an attribute of an object or class as it is stored, without invoking descriptors:
    properties are not evaluated and functions are not bound."""
    own = getattr(value, "__dict__", ())
    if name in own:
        return own[name]
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        if name in kind.__dict__:
            found = kind.__dict__[name]
            # Members of __slots__ are descriptors that hold the value.
            return found.__get__(value) if isinstance(found, types.MemberDescriptorType) else found
    raise AttributeError(name)


def _inherited(_, key):
    """Returns an attribute of a base class that a subclass overrides. `key` is (base, name)."""
    base, name = key
    return base.__dict__[name]


def _imported(_, name):
    return sys.modules[name]


def _flat_item(array, index):
    return array.flat[index]


def _variable(variable, _):
    return variable.get()


def _referent(reference, _):
    return reference()


def _cell(function, index):
    return function.__closure__[index].cell_contents


def _global(function, name):
    return function.__globals__[name]


def _default(function, key):
    return function.__defaults__[key] if isinstance(key, int) else function.__kwdefaults__[key]


# Maps a getter to the format that `Place.text` applies to the text so far and the key. Getters that
# are missing here use "{}.{}".
_TEXTS = {
    _item: "{}[{!r}]",
    _flat_item: "{}.flat[{}]",
    _variable: "{}.get()",
    _referent: "{}()",
    _global: "{1}",
    _imported: "{1}",
    _inherited: "{1[0].__name__}.{1[1]}",
    _default: "{}.__defaults__[{!r}]",
}


def _names(code):
    """Returns the global and attribute names that a function and its nested functions use."""
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
    """Returns (get, key, part) for each attribute and method of `value` that its class `kind` or a
    base class defines. ``__init__``, ``__new__`` and special attributes other than code are
    skipped. Overridden parts are included because `super()` reaches them."""
    parts, seen = [], set()
    for base in [base for base in kind.__mro__ if not _of_a_package(base)]:
        for name, part in list(base.__dict__.items()):
            special = name.startswith("__") and name.endswith("__")
            if special and (name in ("__init__", "__new__") or not isinstance(part, _CODE)):
                continue
            try:
                get, key = (_inherited, (base, name)) if name in seen else (_attribute, name)
                parts.append((get, key, get(value, key)))
            except AttributeError:
                pass  # a slot without a value
            seen.add(name)
    return parts


def _parts(value, names):
    """Returns (get, key, part) for each part of `value` that may lead to an array."""
    if isinstance(value, (*_CONTAINERS, types.MappingProxyType)):
        if isinstance(value, (dict, types.MappingProxyType)):
            parts = [(_item, key, part) for key, part in list(value.items())]
        else:
            get = _flat_item if isinstance(value, np.ndarray) else _item
            parts = [(get, key, part) for key, part in enumerate(list(_items(value)))]
        return parts if _of_a_package(type(value)) else parts + _own_parts(value)
    if isinstance(value, contextvars.ContextVar):
        try:
            return [(_variable, None, value.get())]
        except LookupError:
            return []  # the context variable has neither a value nor a default
    if isinstance(value, weakref.ref):
        return [(_referent, None, value())]
    if isinstance(value, types.FunctionType):
        parts = [
            (_global, name, value.__globals__[name])
            for name in sorted(names)
            if name in value.__globals__
        ]
        parts += [
            (_imported, name, sys.modules[name])
            for name in sorted(names)
            if name in sys.modules and name not in value.__globals__
        ]
        for index, cell in enumerate(value.__closure__ or ()):
            try:
                parts.append((_cell, index, cell.cell_contents))
            except ValueError:
                pass  # the closure's variable is not assigned yet
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
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return [(getattr, name, getattr(value, name)) for name in ("func", "args", "keywords")]
    if isinstance(value, types.ModuleType):
        return [
            (_attribute, name, vars(value)[name]) for name in sorted(names) if name in vars(value)
        ]
    if isinstance(value, type):
        return _class_parts(value, value)
    return _own_parts(value)


def _own_parts(value):
    """Returns the attributes of an object and the parts that its class defines."""
    own = [(_attribute, name, part) for name, part in list(getattr(value, "__dict__", {}).items())]
    return own + _class_parts(type(value), value)


def _variable_of(value, get, key, part):
    """Returns an id of the variable that stores `part`. Several paths can lead to one variable,
    such as a global that several functions read, or a method of several instances. These paths
    need no check that they hold the same object."""
    if get is _cell:
        return id(value.__closure__[key]), None
    if get is _global:
        return id(value.__globals__), key
    if isinstance(value, types.ModuleType):
        return id(vars(value)), key
    if get is _imported:
        return id(sys.modules), key
    if get is _inherited:
        return id(key[0]), key[1]
    if get is _attribute and isinstance(part, _CODE) and key not in getattr(value, "__dict__", ()):
        if any([base.__dict__.get(key) is part for base in type(value).__mro__]):
            return id(type(value)), key
    return id(value), key


def _is_opaque(value):
    """True if the search does not descend into the value."""
    if isinstance(value, _VALUES):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype != object
    if isinstance(value, (types.FunctionType, types.ModuleType, type)):
        return _of_a_package(value)
    return not isinstance(value, _FOLLOWED) and _of_a_package(type(value))


class Found:
    """The result of `find`."""

    def __init__(self):
        self.arrays = []  # (root, keys, array) for each place that holds a captured array
        self.conditions = []  # `Fixed` and `Container`
        self.blocks = []  # descendants, and unregistered blocks that were reached


def find(block, arrays):
    """Searches everything reachable from `block`, and returns a `Found`: the places of arrays that
    share memory with `arrays`, and the conditions under which the block's traces are valid."""
    memory = {array._place[0] for array in arrays}
    found, seen, wanted, again = Found(), {id(block): 0}, set(), []
    variables = set()  # ids (`_variable_of`) of the variables that hold the objects found so far
    # Objects to search: (object, root, keys, names that functions use, queue index of the
    # container). The object is reached from `root` by `keys`. A block is the root of its
    # attributes.
    queue = [(block, block, (), frozenset(), None)]

    def want(number):
        """Marks an object of the queue and its ancestors as parts of the result."""
        while number is not None and number not in wanted:
            wanted.add(number)
            number = queue[number][-1]

    for number, (value, root, keys, names, _) in enumerate(queue):  # the queue grows
        registered = ()
        if isinstance(value, TreeNode):
            registered = {*map(id, children(value).values())}
            registered.update(map(id, own_parameters(value).values()))
        elif isinstance(value, types.FunctionType):
            names = frozenset(_names(value.__code__))
        for get, key, part in _parts(value, names):
            here = (*keys, (get, key))
            if isinstance(part, nd.NDArray):
                if not part._traced and part._place[0] in memory:
                    found.arrays.append((root, here, part))
                    want(number)
                continue
            if isinstance(part, (TreeNode, Parameter)):
                if isinstance(value, _CONTAINERS):
                    want(number)
                elif id(part) not in registered:
                    found.conditions.append(Fixed(root, here, part))
                    want(number)
                if isinstance(part, TreeNode) and id(part) not in seen:
                    seen[id(part)] = len(queue)
                    found.blocks.append(part)
                    queue.append((part, part, (), frozenset(), None))
                continue
            if _is_opaque(part):
                continue
            # In a module, only the names that the function uses are searched.
            mark = (id(part), names) if isinstance(part, types.ModuleType) else id(part)
            if mark in seen:
                variable = _variable_of(value, get, key, part)
                if variable not in variables:
                    variables.add(variable)
                    again.append((seen[mark], number, (root, here, part)))
            elif len(seen) < _OBJECTS and len(keys) < _DEPTH:
                seen[mark] = len(queue)
                variables.add(_variable_of(value, get, key, part))
                queue.append((part, root, here, names, number))
    # If an object leads to a captured array, block or parameter and is reached on several paths,
    # each of its places must keep holding the same object. Maps the object's queue index to its
    # first place.
    shared = {}
    while True:
        valid = [entry for entry in again if entry[0] in wanted]
        if not valid:
            break
        again = [entry for entry in again if entry[0] not in wanted]
        for first, number, place in valid:
            found.conditions.append(Fixed(*place))
            value, root, keys, *_ = queue[first]
            shared[first] = Fixed(root, keys, value)
            want(number)
    found.conditions.extend(shared.values())
    for number in sorted(wanted):
        value, root, keys, *_ = queue[number]
        if isinstance(value, _CONTAINERS) and not isinstance(value, Parts):
            found.conditions.append(Container(root, keys, value))
    return found
