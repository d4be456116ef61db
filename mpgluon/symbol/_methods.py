"""The operators of `Symbol`, and its methods that call ops."""

from __future__ import annotations

from .. import _core
from ..base import NotImplementedForSymbol
from ._functions import Function, is_number, node_of, texts_of_number


def function(op, name=None):
    """Returns the function of symbols for an op, under the given name."""
    return Function(_core.get_op(op), name or op)


class SymbolMethods:
    """Base of `Symbol` with the operators, and the methods that are functions of ``mx.sym``."""

    __slots__ = ()

    def _with_number(self, op, hint, number):
        """Applies the op of an operator with a number."""
        return node_of(op, hint, [self], texts_of_number(op, number))


NO_VALUE = ("wait_to_read", "asnumpy", "asscalar", "copy", "detach", "backward")


def _without_value(name):
    def method(self, *args):
        raise NotImplementedForSymbol(getattr(self, name), None)

    method.__name__ = name
    method.__qualname__ = f"Symbol.{name}"
    method.__doc__ = "Symbols have no values: NotImplementedForSymbol."
    return method


for _name in NO_VALUE:
    setattr(SymbolMethods, _name, _without_value(_name))

# operator -> flat tuple of three pairs (op, prefix of the node name): for two symbols, for a number
# on the right, and for a number on the left.
OPERATORS = {
    "add": ("elemwise_add", "_plus", "_plus_scalar", "_plusscalar", "_plus_scalar", "_plusscalar"),
    "sub": (
        "elemwise_sub",
        "_minus",
        "_minus_scalar",
        "_minusscalar",
        "_rminus_scalar",
        "_rminusscalar",
    ),
    "mul": ("elemwise_mul", "_mul", "_mul_scalar", "_mulscalar", "_mul_scalar", "_mulscalar"),
    "truediv": ("elemwise_div", "_div", "_div_scalar", "_divscalar", "_rdiv_scalar", "_rdivscalar"),
    "mod": ("_mod", "_mod", "_mod_scalar", "_modscalar", "_rmod_scalar", "_rmodscalar"),
    "pow": (
        "_power",
        "_power",
        "_power_scalar",
        "_powerscalar",
        "_rpower_scalar",
        "_rpower_scalar",
    ),
    "eq": ("_equal", "_equal", "_equal_scalar", "_equal_scalar", None, None),
    "ne": ("_not_equal", "_not_equal", "_not_equal_scalar", "_not_equal_scalar", None, None),
    "gt": ("_greater", "_greater", "_greater_scalar", "_greater_scalar", None, None),
    "ge": (
        "_greater_equal",
        "_greater_equal",
        "_greater_equal_scalar",
        "_greater_equal_scalar",
        None,
        None,
    ),
    "lt": ("_lesser", "_lesser", "_lesser_scalar", "_lesser_scalar", None, None),
    "le": (
        "_lesser_equal",
        "_lesser_equal",
        "_lesser_equal_scalar",
        "_lesser_equal_scalar",
        None,
        None,
    ),
}


def add_operators(owner: type, operators: dict[str, tuple[str | None, ...]]) -> None:
    """Adds the operators of a table like `OPERATORS` to a class of symbols."""

    def make(op, hint, scalar, scalar_hint):
        def method(self, other):
            if isinstance(other, SymbolMethods):
                return node_of(op, hint, [self, other])
            if is_number(other):
                return self._with_number(scalar, scalar_hint, other)
            raise TypeError(f"type {type(other)} not supported")

        return method

    def reflected(op, hint, array_op):
        def method(self, other):
            if isinstance(other, SymbolMethods):  # Python asks a subclass first
                return node_of(array_op, array_op, [other, self])
            if isinstance(other, _core.NDArray):
                raise NotImplementedForSymbol(method, "operator", other)
            if is_number(other):
                return self._with_number(op, hint, other)
            raise TypeError(f"type {type(other)} not supported")

        return method

    for name, (op, hint, scalar, scalar_hint, other, other_hint) in operators.items():
        methods = {f"__{name}__": make(op, hint, scalar, scalar_hint)}
        if other is not None:
            methods[f"__r{name}__"] = reflected(other, other_hint, op)
        for key, method in methods.items():
            method.__name__ = key
            method.__qualname__ = f"{owner.__name__}.{key}"
            setattr(owner, key, method)
    owner.__div__ = owner.__truediv__
    owner.__rdiv__ = owner.__rtruediv__


add_operators(SymbolMethods, OPERATORS)

# Methods that call the functions of the same name.
METHODS = (
    "abs arccos arccosh arcsin arcsinh arctan arctanh argmax argmax_channel argmin argsort "
    "broadcast_axes broadcast_like broadcast_to cbrt ceil clip cos cosh degrees depth_to_space exp "
    "expm1 fix flip floor log log10 log1p log2 log_softmax max mean min nanprod nansum norm "
    "one_hot ones_like pad pick prod radians rcbrt reciprocal relu repeat reshape_like rint round "
    "rsqrt shape_array sigmoid sign sin sinh size_array slice slice_axis slice_like softmax "
    "softmin sort space_to_depth split sqrt square sum swapaxes take tan tanh tile topk trunc "
    "zeros_like"
).split()


def _add_methods():
    ops = _core.ops()

    def make(name):
        def method(self, *args, **kwargs):
            return function(name)(self, *args, **kwargs)

        method.__name__ = name
        method.__qualname__ = f"Symbol.{name}"
        method.__doc__ = f"``sym.{name}`` of this symbol."
        return method

    for name in METHODS:
        if name in ops:
            setattr(SymbolMethods, name, make(name))


_add_methods()
