"""Helpers for tests of code that uses arrays: comparison, random arrays, numerical gradients."""

from __future__ import annotations

import os
import random as _random
from typing import TYPE_CHECKING

import numpy as np

from . import autograd, ndarray as nd
from .context import Context, current_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ._core import NDArray
    from ._types import ArrayLike, DType, Shape
    from .symbol import Symbol


__all__ = [
    "almost_equal",
    "assert_almost_equal",
    "assert_exception",
    "check_numeric_gradient",
    "check_speed",
    "default_context",
    "default_dtype",
    "effective_dtype",
    "find_max_violation",
    "get_atol",
    "get_rtol",
    "list_gpus",
    "numeric_grad",
    "rand_ndarray",
    "rand_shape_2d",
    "rand_shape_3d",
    "rand_shape_nd",
    "random_arrays",
    "same",
    "set_default_context",
    "simple_forward",
]

_default_context = None

# What results of a dtype may differ by: relative, absolute.
_TOLERANCES = {
    "float16": (1e-2, 1e-2),
    "bfloat16": (2e-2, 2e-2),
    "float32": (1e-4, 1e-5),
    "float64": (1e-6, 1e-8),
}


def default_context() -> Context:
    """The device tests run on: set by `set_default_context`, or the environment's
    MXNET_TEST_DEFAULT_CTX ("cpu(1)"), or the current one."""
    if _default_context is not None:
        return _default_context
    text = os.environ.get("MXNET_TEST_DEFAULT_CTX")
    if not text:
        return current_context()
    kind, _, number = text.partition("(")
    return Context(kind, int(number.rstrip(")") or 0))


def set_default_context(ctx: Context) -> None:
    """Makes tests run on `ctx`."""
    global _default_context
    _default_context = ctx


def default_dtype() -> type[np.floating[Any]]:
    """The dtype tests use unless they say otherwise: numpy.float32."""
    return np.float32


def list_gpus() -> list[int]:
    """The numbers of the GPUs there are."""
    from .context import num_gpus

    return range(num_gpus())


def _values(value):
    """Values in NumPy of an array of either kind, a list or a number."""
    return value.asnumpy() if isinstance(value, nd.NDArray) else np.asarray(value)


def effective_dtype(value: Any) -> np.dtype[Any]:
    """The name of the dtype whose precision a value has."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        dtype = np.asarray(value).dtype
    name = getattr(dtype, "__name__", None) or str(dtype)
    return name if name in _TOLERANCES else "float64"


def _tolerance(a, b, position, given):
    if given is not None:
        return given
    return max(_TOLERANCES[effective_dtype(a)][position], _TOLERANCES[effective_dtype(b)][position])


def get_rtol(rtol: float | None = None, a: Any = 0.0, b: Any = 0.0) -> float:
    """The relative tolerance for comparing `a` and `b`: that of the less precise dtype, unless
    given."""
    return _tolerance(a, b, 0, rtol)


def get_atol(atol: float | None = None, a: Any = 0.0, b: Any = 0.0) -> float:
    """The absolute tolerance, likewise."""
    return _tolerance(a, b, 1, atol)


def same(a: ArrayLike, b: ArrayLike) -> bool:
    """Whether shapes and all values are equal (NaN to nothing)."""
    return np.array_equal(_values(a), _values(b))


def almost_equal(
    a: ArrayLike,
    b: ArrayLike,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
) -> bool:
    """Whether |a - b| <= atol + rtol * |b| everywhere."""
    rtol, atol = get_rtol(rtol, a, b), get_atol(atol, a, b)
    a, b = _values(a), _values(b)
    return a.shape == b.shape and np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def find_max_violation(
    a: ArrayLike, b: ArrayLike, rtol: float | None = None, atol: float | None = None
) -> tuple[Any, Any]:
    """(position, size) of where a and b differ most in units of what is allowed."""
    rtol, atol = get_rtol(rtol, a, b), get_atol(atol, a, b)
    a, b = _values(a).astype(np.float64), _values(b).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        violation = np.abs(a - b) / (atol + rtol * np.abs(b) + 1e-300)
    violation = np.where(a == b, 0.0, np.where(np.isnan(violation), np.inf, violation))
    if violation.size == 0:
        return (), 0.0
    place = np.unravel_index(np.argmax(violation), violation.shape)
    return tuple(int(i) for i in place), float(violation[place])


def assert_almost_equal(
    a: ArrayLike,
    b: ArrayLike,
    rtol: float | None = None,
    atol: float | None = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """AssertionError, with the worst differences, unless `almost_equal`. `mismatches`: how many of
    them are shown at most."""
    rtol, atol = get_rtol(rtol, a, b), get_atol(atol, a, b)
    x, y = _values(a), _values(b)
    if x.shape != y.shape:
        raise AssertionError(f"shapes differ: {names[0]} {x.shape}, {names[1]} {y.shape}")
    close = np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)
    if close.all():
        return
    place, worst = find_max_violation(x, y, rtol, atol)
    lines = [
        f"{int((~close).sum())} of {close.size} values differ by more than rtol={rtol:g}, "
        f"atol={atol:g}; worst at {place}: {worst:.3g} times that"
    ]
    for where in np.argwhere(~close)[: mismatches[0]]:
        where = tuple(int(i) for i in where)
        lines.append(f"  {where}: {names[0]}={x[where]!r} {names[1]}={y[where]!r}")
    raise AssertionError("\n".join(lines))


def assert_exception(
    function: Callable[..., Any], exception_type: type[BaseException], *args: Any, **kwargs: Any
) -> None:
    """AssertionError unless the call raises `exception_type`."""
    try:
        function(*args, **kwargs)
    except exception_type:
        return
    raise AssertionError(
        f"{getattr(function, '__name__', function)} did not raise {exception_type.__name__}"
    )


def random_arrays(*shapes: Shape) -> Any:
    """Standard normal NumPy arrays of these shapes: a list, or the array itself for one shape."""
    arrays = [
        np.asarray(np.random.standard_normal(shape), dtype=default_dtype()) for shape in shapes
    ]
    return arrays[0] if len(arrays) == 1 else arrays


def rand_ndarray(
    shape: Shape,
    stype: str = "default",
    density: float | None = None,
    dtype: DType | None = None,
    ctx: Context | None = None,
) -> NDArray:
    """An array of uniform values in [-1, 1), drawn by numpy.random. Only stype "default": arrays
    are dense here."""
    if stype != "default":
        raise NotImplementedError(
            f"rand_ndarray: arrays are dense; stype {stype!r} is not supported"
        )
    return nd.array(
        np.random.uniform(-1, 1, shape),
        ctx=ctx or default_context(),
        dtype=dtype or default_dtype(),
    )


def rand_shape_nd(num_dim: int, dim: int = 10, allow_zero_size: bool = False) -> Shape:
    """A shape of `num_dim` random dimensions up to `dim`."""
    return tuple(_random.randint(0 if allow_zero_size else 1, dim) for _ in range(num_dim))


def rand_shape_2d(dim0: int = 10, dim1: int = 10, allow_zero_size: bool = False) -> tuple[int, int]:
    """A shape of two dimensions up to `dim0` and `dim1`."""
    least = 0 if allow_zero_size else 1
    return _random.randint(least, dim0), _random.randint(least, dim1)


def rand_shape_3d(
    dim0: int = 10, dim1: int = 10, dim2: int = 10, allow_zero_size: bool = False
) -> tuple[int, int, int]:
    """A shape of three dimensions up to `dim0`, `dim1` and `dim2`."""
    return rand_shape_2d(dim0, dim1, allow_zero_size) + (
        _random.randint(0 if allow_zero_size else 1, dim2),
    )


def numeric_grad(
    function: Callable[..., Any], inputs: Sequence[Any], eps: float = 1e-3
) -> list[np.ndarray[Any, Any]]:
    """Gradients of `function(*inputs)`, a number, by central differences; inputs are NumPy arrays
    of float64."""
    gradients = []
    for array in inputs:
        gradient = np.zeros_like(array, dtype=np.float64)
        for place in np.ndindex(array.shape):
            kept = array[place]
            array[place] = kept + eps / 2
            above = function(*inputs)
            array[place] = kept - eps / 2
            below = function(*inputs)
            array[place] = kept
            gradient[place] = (above - below) / eps
        gradients.append(gradient)
    return gradients


def check_numeric_gradient(
    function: Any,
    location: Any,
    numeric_eps: float = 1e-3,
    rtol: float = 1e-2,
    atol: float = 1e-4,
    grad_nodes: Any = None,
    ctx: Context | None = None,
    dtype: DType = "float64",
) -> None:
    """Compares the gradients that backward gives with differences.

    function : callable of NDArrays that returns an NDArray (or a list of them); a Block is one too.
    location : list of arrays, the point at which gradients are taken.
    grad_nodes : list of int, the inputs whose gradients are compared; default: all.
    AssertionError when they differ. The output is projected on random numbers, so that its elements
    cannot cancel.
    """
    ctx = ctx or default_context()
    points = [_values(value).astype(np.float64) for value in location]
    weights = []

    def project(outputs):
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        while len(weights) < len(outputs):
            weights.append(np.random.uniform(0.5, 1.5, outputs[len(weights)].shape))
        return outputs

    def value(*arrays):
        with autograd.pause(train_mode=True):
            outputs = project(function(*[nd.array(a, ctx=ctx, dtype=dtype) for a in arrays]))
        return sum(
            float((output.asnumpy().astype(np.float64) * w).sum())
            for output, w in zip(outputs, weights)
        )

    arrays = [nd.array(a, ctx=ctx, dtype=dtype) for a in points]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        outputs = project(function(*arrays))
    autograd.backward(
        list(outputs),
        [
            nd.array(w, ctx=output.context, dtype=output.dtype)
            for output, w in zip(outputs, weights)
        ],
    )
    chosen = range(len(arrays)) if grad_nodes is None else grad_nodes
    expected = numeric_grad(value, points, numeric_eps)
    for i in chosen:
        assert_almost_equal(
            arrays[i].grad, expected[i], rtol, atol, (f"gradient of input {i}", "differences")
        )


def check_speed(
    function: Callable[..., Any], location: Sequence[Any], N: int = 20, ctx: Context | None = None
) -> float:
    """Seconds per call of `function(*location)`, its results waited for."""
    import time

    ctx = ctx or default_context()
    arrays = [nd.array(value, ctx=ctx) for value in location]
    function(*arrays)
    nd.waitall()
    begin = time.perf_counter()
    for _ in range(N):
        function(*arrays)
    nd.waitall()
    return (time.perf_counter() - begin) / N


def simple_forward(
    sym: Symbol, ctx: Context | None = None, is_train: bool = False, **inputs: Any
) -> Any:
    """Evaluates a symbol once.

    Parameters
    ----------
    sym : Symbol
        Without auxiliary states; MXNetError otherwise, and where an argument is missing.
    ctx : Context, default `default_context()`
        The device to run on.
    is_train : bool, default False
        Whether to run as in training.
    **inputs
        The arguments by name: NDArray, array or list; anything but an NDArray becomes float32.

    Returns
    -------
    numpy.ndarray, or a list of them where the symbol has several outputs.
    """
    ctx = ctx or default_context()
    outputs = sym.bind(
        ctx, args={name: nd.array(value, ctx=ctx) for name, value in inputs.items()}
    ).forward(is_train=is_train)
    values = [output.asnumpy() for output in outputs]
    return values[0] if len(values) == 1 else values
