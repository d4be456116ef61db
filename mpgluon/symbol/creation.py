"""Functions of ``mx.sym`` that are not single ops: symbols of new arrays, and functions of symbols
or numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from .._internal import domain
from ..name import NameManager
from ..ndarray import functions as array_functions
from ._functions import Function, is_number, node_of
from .symbol import Symbol, var

if TYPE_CHECKING:
    from typing import Any

    from .._internal.types import DType, ShapeLike, SymbolLike, SymbolOperator


__all__ = [
    "Custom",
    "UpSampling",
    "arange",
    "eye",
    "full",
    "histogram",
    "hypot",
    "linspace",
    "maximum",
    "minimum",
    "ones",
    "pow",
    "power",
    "split_v2",
    "zeros",
]


def _call(op, *args, **kwargs):
    return Function(_core.get_op(op), op)(*args, **kwargs)


def UpSampling(
    *data: Symbol,
    scale: int,
    sample_type: str,
    num_filter: int = 0,
    multi_input_mode: str = "concat",
    num_args: int | None = None,
    workspace: int = 512,
    weight: Symbol | None = None,
    name: str | None = None,
    attr: dict[str, str] | None = None,
    **kwargs: Any,
) -> Symbol:
    """Upsamples height and width by an integer factor; see ``nd.UpSampling``.

    A missing weight becomes a variable with bilinear initial values.

    Examples
    --------
    >>> y = mx.sym.UpSampling(mx.sym.var("x"), scale=2, sample_type="nearest")
    >>> y.infer_shape(x=(1, 1, 2, 3))[1]
    [(1, 1, 4, 6)]
    """
    if sample_type != "bilinear":
        kwargs.update({} if num_args is None else {"num_args": num_args})
        return _call(
            "UpSampling",
            *data,
            scale=scale,
            sample_type=sample_type,
            multi_input_mode=multi_input_mode,
            name=name,
            attr=attr,
            **kwargs,
        )
    name = NameManager.current().get(name, "upsampling")
    inputs = [
        *data,
        *[symbol for symbol in (kwargs.pop("data", None), weight) if symbol is not None],
    ]
    if len(inputs) == 1:
        inputs.append(var(f"{name}_weight", attr={"__init__": '["bilinear", {}]'}))
    return _call(
        "Deconvolution",
        *inputs,
        name=name,
        attr=attr,
        **array_functions.bilinear_upsampling(scale, num_filter),
        **kwargs,
    )


def eye(N: int, M: int = 0, k: int = 0, dtype: DType | None = None, **kwargs: Any) -> Symbol:
    """Returns an N x M matrix (M=0 means N) of zeros with ones on the k-th diagonal.

    The default dtype is float32.

    Examples
    --------
    >>> mx.sym.eye(2).eval()[0].asnumpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return _call("_eye", N=N, M=M, k=k, dtype=dtype or "float32", **kwargs)


def zeros(shape: ShapeLike, dtype: DType | None = None, **kwargs: Any) -> Symbol:
    """Returns an array of zeros; float32 by default.

    Examples
    --------
    >>> mx.sym.zeros(2).eval()[0].asnumpy()
    array([0., 0.], dtype=float32)
    """
    return _call("_zeros", shape=shape, dtype=dtype or "float32", **kwargs)


def ones(shape: ShapeLike, dtype: DType | None = None, **kwargs: Any) -> Symbol:
    """Returns an array of ones; float32 by default.

    Examples
    --------
    >>> mx.sym.ones(2).eval()[0].asnumpy()
    array([1., 1.], dtype=float32)
    """
    return _call("_ones", shape=shape, dtype=dtype or "float32", **kwargs)


def full(shape: ShapeLike, val: float, dtype: DType | None = None, **kwargs: Any) -> Symbol:
    """Returns an array filled with the number ``val``.

    Examples
    --------
    >>> mx.sym.full(2, 7).eval()[0].asnumpy()
    array([7., 7.], dtype=float32)
    """
    return _call("_full", shape=shape, dtype=dtype or "float32", value=float(val), **kwargs)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    name: str | None = None,
    dtype: DType | None = None,
) -> Symbol:
    """Returns start, start + step, ... up to but excluding stop, each ``repeat`` times.
    ``arange(n)`` starts at 0.

    Examples
    --------
    >>> mx.sym.arange(3).eval()[0].asnumpy()
    array([0., 1., 2.], dtype=float32)
    """
    return _call(
        "_arange",
        start=start,
        stop=stop,
        step=step,
        repeat=repeat,
        infer_range=infer_range,
        name=name,
        dtype=dtype or "float32",
    )


def linspace(
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    name: str | None = None,
    dtype: DType | None = None,
) -> Symbol:
    """Returns ``num`` evenly spaced numbers from start to stop; ``endpoint=False`` excludes stop.

    Examples
    --------
    >>> mx.sym.linspace(0, 1, 3).eval()[0].asnumpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return _call(
        "_linspace",
        start=start,
        stop=stop,
        num=num,
        endpoint=endpoint,
        name=name,
        dtype=dtype or "float32",
    )


def histogram(
    a: Symbol, bins: int | Symbol = 10, range: tuple[float, float] | None = None, **kwargs: Any
) -> Symbol:
    """Returns counts and bin edges. `bins` is a number of equal bins over `range`, or a Symbol with
    the edges.

    Examples
    --------
    >>> counts, edges = mx.sym.histogram(mx.sym.var("x"), bins=2, range=(0, 4))
    >>> counts.eval(x=nd.array([1, 2, 2, 4]))[0].asnumpy()
    array([1, 3])
    """
    if isinstance(bins, Symbol):
        return _call("_histogram", data=a, bins=bins, **kwargs)
    if not isinstance(bins, (int, np.integer)) or range is None:
        raise ValueError("histogram: bins must be a Symbol, or an integer together with a range")
    return _call("_histogram", data=a, bin_cnt=bins, range=range, **kwargs)


def split_v2(
    ary: Symbol,
    indices_or_sections: int | tuple[int, ...],
    axis: int = 0,
    squeeze_axis: bool = False,
) -> Symbol:
    """Splits along ``axis`` into equal sections, or before each of a tuple of indices.

    Examples
    --------
    >>> first, second = mx.sym.split_v2(mx.sym.var("x"), 2)
    >>> first.infer_shape(x=(4, 3))[1]
    [(2, 3)]
    """
    if isinstance(indices_or_sections, int):
        domain.size(1, indices_or_sections=indices_or_sections)
        sections, indices = indices_or_sections, ()
    elif isinstance(indices_or_sections, tuple):
        sections, indices = 0, (0, *indices_or_sections)
    else:
        raise ValueError("indices_or_sections must either int or tuple of ints")
    return _call(
        "_split_v2", ary, indices=indices, axis=axis, squeeze_axis=squeeze_axis, sections=sections
    )


def _either(
    op, op_hint, scalar, scalar_hint, reflected, reflected_hint, numbers, name, words, result
) -> Any:
    """Returns a function of symbols or numbers; `result` is the docstring's output for [1.5, 0]
    and 2."""

    def function(left: SymbolLike, right: SymbolLike) -> Any:
        if isinstance(left, Symbol) and isinstance(right, Symbol):
            return node_of(op, op_hint, [left, right])
        if isinstance(left, Symbol) and is_number(right):
            return node_of(scalar, scalar_hint, [left], {"scalar": right})
        if is_number(left) and isinstance(right, Symbol):
            return node_of(reflected, reflected_hint, [right], {"scalar": left})
        if is_number(left) and is_number(right):
            return numbers(left, right)
        raise TypeError(f"types ({type(left)}, {type(right)}) not supported")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{words}, of symbols or numbers; of two numbers: a number.\n\nExamples\n--------\n"
        f">>> y = mx.sym.{name}(mx.sym.var('x'), 2)\n"
        f">>> y.eval(x=nd.array([1.5, 0]))[0].asnumpy()\narray([{result}], dtype=float32)"
    )
    return function


pow: SymbolOperator = _either(
    "_power",
    "_power",
    "_power_scalar",
    "_powerscalar",
    "_rpower_scalar",
    "_rpowerscalar",
    lambda a, b: a**b,
    "pow",
    "base ** exp",
    "2.25, 0.  ",
)
power: SymbolOperator = pow
maximum: SymbolOperator = _either(
    "_maximum",
    "_maximum",
    "_maximum_scalar",
    "_maximumscalar",
    "_maximum_scalar",
    "_maximumscalar",
    lambda a, b: a if a > b else b,
    "maximum",
    "The larger of both",
    "2., 2.",
)
minimum: SymbolOperator = _either(
    "_minimum",
    "_minimum",
    "_minimum_scalar",
    "_minimumscalar",
    "_minimum_scalar",
    "_minimumscalar",
    lambda a, b: a if a < b else b,
    "minimum",
    "The smaller of both",
    "1.5, 0. ",
)
hypot: SymbolOperator = _either(
    "_hypot",
    "_hypot",
    "_hypot_scalar",
    "_hypotscalar",
    "_hypot_scalar",
    "_hypotscalar",
    np.hypot,
    "hypot",
    "sqrt(left**2 + right**2)",
    "2.5, 2. ",
)


def Custom(
    *data: Symbol, op_type: str | None = None, name: str | None = None, **kwargs: Any
) -> Symbol:
    from ..operator import custom_symbol

    return custom_symbol(*data, op_type=op_type, name=name, **kwargs)


Custom.__doc__ = array_functions.Custom.__doc__
