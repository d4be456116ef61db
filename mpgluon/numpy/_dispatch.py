"""NumPy's protocols for arrays: ``numpy.exp(x)``, ``numpy.concatenate([x, y])``.

For arrays of mx.np, NumPy's functions call mx.np's functions of the same name, which autograd
records. NumPy computes its other functions on copies of the values. Arrays of mx.nd have their own
rules, in ``mpgluon.ndarray._numpy_protocol`` and `_nd_rules`, because their results differ.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._core import ndarray
from ..ndarray import _numpy_protocol as nd_rules
from . import (
    _fallback,
    _nd_rules,  # noqa: F401 - registers more rules
)
from ._arguments import choose, is_float, operand, refuse_recorded

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Names of NumPy's functions that differ from mx.np's.
_NAMES = {
    "acos": "arccos",
    "acosh": "arccosh",
    "amax": "max",
    "amin": "min",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "concat": "concatenate",
    "conjugate": "copy",
    "divide": "true_divide",
    "permute_dims": "transpose",
}
# Reductions of ufuncs, such as numpy.add.reduce.
_REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
# Arguments that functions of mx.np read on the host, so that NumPy arrays remain NumPy arrays.
_ON_HOST = frozenset(
    "axes axis indices_or_sections k newshape obj ord pad_width q reps repeats sections shape "
    "shift".split()
)
# Functions that return another kind of list than mx.np's do -> arguments of a small call.
_CONTAINERS = {
    "atleast_1d": (0, 0),
    "atleast_2d": (0, 0),
    "atleast_3d": (0, 0),
    "broadcast_arrays": (0, 0),
    "meshgrid": (0, 0),
    "eig": (np.eye(1),),
    "eigh": (np.eye(1),),
    "qr": (np.eye(1),),
    "slogdet": (np.eye(1),),
    "svd": (np.eye(1),),
}
_PROMOTING = {"floor_divide", "matmul"}  # functions without an op that promote their operands
_WRITERS = {"copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"}


def _exp2(x, out=None):
    from .. import numpy as package

    return package.power(2, x, out=out)


def _positive(x, out=None):
    from .. import numpy as package

    return package.copy(x) if out is None else package.add(x, 0, out=out)


def _without_nan(name, value):
    """Returns a reduction that replaces NaNs by a number."""

    def reduction(a, axis=None, dtype=None, out=None, keepdims=False):
        from .. import numpy as package

        a = choose(package.isnan(a), value, a) if is_float(a) else a
        return getattr(package, name)(a, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    return reduction


# Functions of NumPy that mx.np lacks or computes on copies, as compositions of functions with ops.
_COMPOSED = {
    "exp2": _exp2,
    "nanprod": _without_nan("prod", 1),
    "nansum": _without_nan("sum", 0),
    "positive": _positive,
}


@functools.cache
def _function_of(module: str, name: str) -> tuple[Callable[..., Any], inspect.Signature] | None:
    """Returns the function of mx.np for a function of NumPy, and its signature; None if NumPy
    computes it on copies."""
    from .. import numpy as package

    sources = {"numpy": package, "numpy.linalg": getattr(package, "linalg", None)}
    source = sources.get(module)
    name = name if hasattr(source, name) else _NAMES.get(name, name)
    function = _COMPOSED.get(name) or getattr(source, name, None)
    if function is None or hasattr(function, "on_copies"):
        return None
    return function, inspect.signature(function)


def has_ops(function: Any) -> bool:
    """True if a function of NumPy calls the function of mx.np of that name."""
    module = "numpy" if isinstance(function, np.ufunc) else function.__module__
    name = function.__name__
    return name not in _COMPOSED and _function_of(module, name) is not None


def _by_ops(module, name, args, kwargs, on_copies):
    """Calls the function of mx.np. Returns NotImplemented if it doesn't have the arguments, or if
    the result belongs in an array of NumPy.

    If the function rejects the values of the arguments, such as a tuple of axes or arrays of
    different dtypes, and NumPy accepts them, returns the result of ``on_copies()``.
    """
    found = _function_of(module, name)
    if found is None:
        return NotImplemented
    function, signature = found
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return NotImplemented
    if isinstance(bound.arguments.get("out"), np.ndarray):
        return NotImplemented
    # Conditions are bool, so NumPy arrays become operands of the other arrays.
    like = max(
        _fallback.arrays_in((*args, kwargs)), key=lambda x: (is_float(x), x.dtype != np.bool_)
    )
    of_op = isinstance(function, _core.NumPyFunction)

    def convert(values):
        """Converts a NumPy array, unless an op converts it as it does for operators."""
        if of_op and values.dtype.kind in "biu":
            return values
        return operand(values, like, name in _PROMOTING)

    for key, value in bound.arguments.items():
        if key not in _ON_HOST:
            bound.arguments[key] = _fallback.converted(value, np.ndarray, convert)
    try:
        return function(*bound.args, **bound.kwargs)
    except NotImplementedError:  # an option without an op, such as where=
        return NotImplemented
    except (_core.MXNetError, TypeError, ValueError, IndexError) as error:
        if not _fallback.has_values(name, (*args, kwargs)):
            raise
        try:
            return on_copies()
        except Exception:
            raise error from None


def _is_np(name, values):
    """True for arrays of mx.np, False for arrays of mx.nd. Mixing the two raises TypeError."""
    kinds = {isinstance(array, ndarray) for array in _fallback.arrays_in(values)}
    if len(kinds) > 1:
        raise _core.MXNetTypeError(
            f"numpy.{name}: got arrays of both mx.np and mx.nd; use x.as_np_ndarray() or "
            "x.as_nd_ndarray()"
        )
    return kinds == {True}


def array_ufunc(ufunc: np.ufunc, method: str, inputs: Any, kwargs: dict[str, Any]) -> Any:
    """Computes ufuncs with ops, or on copies of the values if no op exists."""
    name = ufunc.__name__
    label = name if method == "__call__" else f"{name}.{method}"

    def on_copies():
        return _fallback.on_copies(label, getattr(ufunc, method), inputs, kwargs)

    if _is_np(name, (*inputs, kwargs)):
        result = _ufunc_by_ops(name, method, inputs, kwargs, on_copies)
    else:
        result = nd_rules.of_ufunc(ufunc, method, inputs, kwargs)
    if result is not NotImplemented:
        return result
    if method == "at":
        _refuse_to_write(label, inputs)
    return on_copies()


def _refuse_to_write(name, args):
    if args and isinstance(args[0], _core.NDArray):
        raise _core.MXNetError(f"numpy.{name} writes into an NDArray; assign with x[...] = values")


def _ufunc_by_ops(name, method, inputs, kwargs, on_copies):
    options = dict(kwargs)
    if "out" in options:
        options["out"] = options["out"][0] if len(options["out"]) == 1 else options["out"]
        if not isinstance(options["out"], ndarray):
            return NotImplemented
    if method == "reduce" and name in _REDUCTIONS:
        name = _REDUCTIONS[name]
        options.setdefault("axis", 0)
    elif method != "__call__":
        return NotImplemented
    for x in inputs:
        refuse_recorded(f"numpy.{name}", "a list", x)
    inputs = [np.asarray(x) if isinstance(x, (list, tuple)) else x for x in inputs]
    if not any(isinstance(x, ndarray) for x in inputs):  # only `out` is an array
        return NotImplemented
    # NumPy's comparisons convert their scalars to arrays without dimensions, which act as numbers.
    inputs = [x[()] if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs]
    return _by_ops("numpy", name, inputs, options, on_copies)


@functools.cache
def _container_of(function):
    return type(function(*_CONTAINERS[function.__name__]))


def _as_numpys(function, result):
    """Converts a list to the type that this version of NumPy returns: a list or a tuple, which may
    have names."""
    if not isinstance(result, (list, tuple)) or function.__name__ not in _CONTAINERS:
        return result
    container = _container_of(function)
    return container(*result) if hasattr(container, "_fields") else container(result)


def array_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Computes NumPy's functions with ops, or on copies of the values if no op exists."""
    name = function.__name__

    def on_copies():
        return _fallback.on_copies(name, function._implementation, args, kwargs)

    if _is_np(name, (args, kwargs)):
        found = _function_of(function.__module__, name)
        names = [*found[1].parameters] if found else ()
        args, kwargs = _fallback.with_names(function, args, kwargs, names)
        result = _by_ops(function.__module__, name, args, kwargs, on_copies)
    else:
        result = nd_rules.of_function(function, args, kwargs)
    if result is not NotImplemented:
        return _as_numpys(function, result)
    if name in _WRITERS:
        _refuse_to_write(name, args)
    return on_copies()
