"""The arguments that the samplers of `random` share, and draws of noise."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as _np

from .. import _core
from .._core import MXNetTypeError, MXNetValueError, NDArray, ndarray
from . import _arguments
from ._arguments import broadcast, refuse_recorded

if TYPE_CHECKING:
    from typing import Any

    Parameter = Any  # a number, an array, or values for an array


def op(name: str) -> _core.Op:
    """Returns the op of mx.np for an op of mx.nd."""
    return _core.get_op("_npi_" + name)


_block, _cast, _copy_to, _full = map(op, ["BlockGrad", "cast", "_copyto", "_full"])


def shape_of(size: Any) -> tuple[int, ...]:
    """Converts an int, a sequence of ints or None to a shape."""
    return () if size is None else _arguments.shape_of(size)


def as_parameter(name, key, value, ctx):
    """Returns a number as a float or int, and arrays and nested lists as an array of mx.np on the
    device `ctx`. Raises an error if an array of mx.np is on another device."""
    if isinstance(value, ndarray):
        if value.context != ctx:
            raise MXNetValueError(
                f"random.{name}: {key} is on {value.context}, but the result is to be on {ctx}; "
                "move the parameters first"
            )
        return value
    if isinstance(value, NDArray):
        raise MXNetTypeError(
            f"random.{name}: {key} is an array of mx.nd; convert it with x.as_np_ndarray()"
        )
    if isinstance(value, (bool, int, float)):
        return value
    refuse_recorded(f"random.{name}", key, value)
    values = _np.asarray(value)
    if values.dtype.kind not in "biuf":
        raise MXNetValueError(
            f"random.{name}: {key} must be a number or an array, got {type(value).__name__}"
        )
    if values.ndim == 0:
        return values.item()
    return _core.array(values, ctx, "float64").as_np_ndarray()


# The largest mean of a Poisson distribution whose draws fit into int64, as in NumPy
LARGEST_MEAN = 2.0**63 - 10 * 2.0**31.5

# Conditions of `Call.values`, as error messages word them, with their tests of numbers and arrays
_CONDITIONS = {
    "be positive": lambda value: value > 0,
    "not be negative": lambda value: value >= 0,
    "be from 0 to 1": lambda value: (value >= 0) * (value <= 1),
    "be above 0 and at most 1": lambda value: (value > 0) * (value <= 1),
    "be from 0 to 9.2e18": lambda value: (value >= 0) * (value <= LARGEST_MEAN),
}


class Call:
    """The arguments that samplers share, and the operations on them.

    Attributes
    ----------
    shape, dtype, ctx : the result's
    work : the dtype of the computation: float64 for float64 results and for counts, which it holds
        exactly, otherwise float32
    arrays : True if a parameter is an array
    """

    def __init__(self, name, params, size, dtype, ctx, device, out, *, counts=False):
        self.name = name
        if out is not None and not isinstance(out, ndarray):
            raise MXNetTypeError(
                f"random.{name}: out must be an array of mx.np, got {type(out).__name__}"
            )
        self.ctx = place_of(ctx, device, out, *params.values())
        self.params = {
            key: as_parameter(name, key, value, self.ctx) for key, value in params.items()
        }
        if size is None and out is not None:
            size = out.shape
        shapes = [value.shape for value in self.params.values() if isinstance(value, ndarray)]
        self.arrays = bool(shapes)
        self.shape = self._broadcast(shapes, size)
        if dtype is None:
            dtype = ("int64" if counts else "float32") if out is None else out.dtype
        self.dtype = _core.dtype_name(dtype)
        self.out = out
        self.work = "float64" if counts or self.dtype == "float64" else "float32"
        self._unchecked = []  # conditions of array elements that the next draw of noise checks

    def _broadcast(self, shapes, size):
        if size is not None:
            size = shape_of(size)
        with contextlib.suppress(ValueError):
            shape = _np.broadcast_shapes(*shapes, () if size is None else size)
            if size in (None, shape):
                return shape
        raise MXNetValueError(
            f"random.{self.name}: parameters of shapes {', '.join(map(str, shapes))} cannot be "
            f"broadcast to {'one shape' if size is None else size}"
        )

    def values(self, **conditions):
        """Returns the parameters as numbers, or as arrays of the working dtype. Raises an error if
        a number doesn't meet the condition that is given for its parameter. Elements of arrays
        raise an error when the first `noise` is drawn."""
        for key, value in self.params.items():
            if not isinstance(value, ndarray) and value != value:
                raise MXNetValueError(f"random.{self.name}: {key} must not be NaN")
        for key, condition in conditions.items():
            value = self.params[key]
            if isinstance(value, ndarray):
                self.require(_CONDITIONS[condition](value))
            elif not _CONDITIONS[condition](value):
                raise MXNetValueError(f"random.{self.name}: {key} must {condition}, got {value}")
        return [
            self.cast(value, self.work) if isinstance(value, ndarray) else value
            for value in self.params.values()
        ]

    def checked(self, p):
        """Returns probabilities so that elements outside [0, 1] raise an error when the numbers
        are drawn: the draws for `n = 0` are 0, and their op checks the probabilities."""
        if not isinstance(p, ndarray):
            return p
        valid = p + (p == 0)  # the op can't draw for p = 0, which is valid here
        return p + op("_sample_negative_binomial")(valid * 0, valid)

    def cast(self, array, dtype):
        return array if _core.dtype_name(array.dtype) == dtype else _cast(array, dtype=dtype)

    def filled(self, value):
        """Returns a number or an array as an array of the result's shape."""
        if isinstance(value, ndarray):
            return broadcast(value, self.shape)
        return _full(self.shape, value, dtype=self.work, ctx=self.ctx)

    def require(self, valid):
        """Makes the next `noise` raise an error if an element of `valid` is false."""
        self._unchecked.append(valid)

    def _checks(self):
        """Returns an array of the result's shape: 1, or -1 if a condition isn't met."""
        valid = 1
        for each in self._unchecked:
            valid = self.cast(each, self.work) * valid
        self._unchecked = []
        return self.filled(2 * valid - 1)

    def noise(self, name, *params):
        """Draws from a distribution whose parameters are numbers, in the working dtype."""
        if self._unchecked and name in ("normal", "exponential"):
            # The ops for arrays of parameters draw the same numbers and refuse a negative scale.
            checks = self._checks()
            params = [checks] if name == "exponential" else [checks * 0, checks]
            return op("_sample_" + name)(*params, dtype=self.work)
        return op("_random_" + name)(*params, shape=self.shape, dtype=self.work, ctx=self.ctx)

    def exponential(self):
        """Draws from the standard exponential distribution. No draw is 0, so that all logarithms
        are finite. The bound replaces draws whose uniform number was rounded to 1."""
        least = 2.0 ** (-54 if self.work == "float64" else -26)
        return op("_maximum_scalar")(self.noise("exponential", 1), scalar=least)

    def drawn(self, name, *values):
        """Draws with an op of `nd.random` that has no gradient. The values are in the op's order.
        The result is of the working dtype."""
        if any(isinstance(value, ndarray) for value in values):
            return op("_sample_" + name)(*map(self.filled, values), dtype=self.work)
        return self.noise(name, *values)

    def direct(self, name, *values):
        """Returns the result of one op of `nd.random`."""
        options = {"dtype": self.dtype, "out": self.out}
        if any(isinstance(value, ndarray) for value in values):
            return op("_sample_" + name)(*map(self.filled, values), **options)
        return op("_random_" + name)(*values, shape=self.shape, ctx=self.ctx, **options)

    def differentiable(self, draws, *parts):
        """Returns draws with gradients: `parts` are parameters and functions that map the draws to
        their derivatives by the parameter. The values do not change."""
        arrays = [value for value, _ in parts if isinstance(value, ndarray)]
        if self.out is not None or not any(_core.is_recording() or a._traced for a in arrays):
            return draws
        values = self.cast(_block(draws), self.work)
        for value, derivative in parts:
            if isinstance(value, ndarray):
                zero = value - _block(value)
                draws = draws + self.cast(zero * _block(derivative(values)), self.dtype)
        return draws

    def uniform(self, low, high):
        """Returns the result for the uniform distribution."""

        def fraction(values):
            length = high - low
            return (values - low) / (length + (length == 0))

        draws = self.direct("uniform", low, high)
        return self.differentiable(
            draws, (low, lambda values: 1 - fraction(values)), (high, fraction)
        )

    def normal(self, loc, scale):
        """Returns the result for the normal distribution."""
        if not self.arrays:
            return self.direct("normal", loc, scale)
        return self.finish(loc + scale * self.noise("normal", 0, 1))

    def finish(self, result):
        """Converts the result to its dtype, and writes it to ``out``."""
        if self.out is None:
            return self.cast(result, self.dtype)
        result = self.cast(result, _core.dtype_name(self.out.dtype))
        return _copy_to(result, out=self.out)


def place_of(ctx, device, *values):
    """Returns the device of a result: the given one, or else the first array's, or else the
    current one."""
    if ctx is None:
        ctx = device
    for value in values:
        if ctx is None and isinstance(value, ndarray):
            ctx = value.context
    return _core.current_context() if ctx is None else ctx


def values_of(value):
    """Converts values that are no array to a NumPy array with at least one dimension."""
    return value if isinstance(value, NDArray) else _np.atleast_1d(value)
