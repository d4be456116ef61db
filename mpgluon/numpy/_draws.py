"""The arguments that the samplers of `random` share, and draws of noise."""

from __future__ import annotations

import contextlib
from operator import index
from typing import TYPE_CHECKING

import numpy as _np

from .. import _core
from .._core import MXNetTypeError, MXNetValueError, NDArray, ndarray

if TYPE_CHECKING:
    from typing import Any

    Parameter = Any  # a number, an array, or values for an array


def op(name: str) -> _core.Op:
    """Returns the op of mx.np for an op of mx.nd."""
    return _core.get_op("_npi_" + name)


_broadcast, _cast, _copy_to, _full = map(op, ["broadcast_to", "cast", "_copyto", "_full"])


def shape_of(size: Any) -> tuple[int, ...]:
    """Converts an int, a sequence of ints or None to a shape."""
    if size is None:
        return ()
    return tuple(map(index, size)) if hasattr(size, "__iter__") else (index(size),)


def stretched(array: ndarray, shape: tuple[int, ...]) -> ndarray:
    """Broadcasts an array to a shape."""
    return array if array.shape == shape else _broadcast(array, shape=shape)


def as_parameter(name, key, value, ctx):
    """Returns a number as a float or int, and arrays and nested lists as an array of mx.np."""
    if isinstance(value, ndarray):
        return value
    if isinstance(value, NDArray):
        raise MXNetTypeError(
            f"random.{name}: {key} is an array of mx.nd; convert it with x.as_np_ndarray()"
        )
    if isinstance(value, (bool, int, float)):
        return value
    values = _np.asarray(value)
    if values.dtype.kind not in "biuf":
        raise MXNetValueError(
            f"random.{name}: {key} must be a number or an array, got {type(value).__name__}"
        )
    if values.ndim == 0:
        return values.item()
    return _core.array(values, ctx, "float64").as_np_ndarray()


class Call:
    """The arguments that samplers share, and the operations on them.

    Attributes
    ----------
    shape, dtype, ctx : the result's
    work : the dtype of the computation: float64 for float64 results, otherwise float32
    arrays : True if a parameter is an array
    """

    def __init__(self, name, params, size, dtype, ctx, out, *, default="float32", work=None):
        self.name = name
        if ctx is None and out is not None:
            ctx = out.context
        given = ctx
        for value in params.values():
            if ctx is None and isinstance(value, ndarray):
                ctx = value.context
        self.ctx = _core.current_context() if ctx is None else ctx
        self.params = {
            key: as_parameter(name, key, value, self.ctx) for key, value in params.items()
        }
        self.arrays = any(isinstance(value, ndarray) for value in self.params.values())
        for key, value in self.params.items():
            if given is not None and isinstance(value, ndarray) and value.context != given:
                raise MXNetValueError(
                    f"random.{name}: {key} is on {value.context}, but the result is to be on "
                    f"{given}; move the parameters first"
                )
        if size is None and out is not None:
            size = out.shape
        self.shape = self._broadcast(size)
        if dtype is None:
            dtype = default if out is None else out.dtype
        self.dtype = _core.dtype_name(dtype)
        self.out = out
        if work is None:
            work = "float64" if self.dtype == "float64" else "float32"
        self.work = work

    def _broadcast(self, size):
        shapes = [value.shape for value in self.params.values() if isinstance(value, ndarray)]
        with contextlib.suppress(ValueError):
            shape = _np.broadcast_shapes(*shapes)
            if size is None or _np.broadcast_shapes(shape, shape_of(size)) == shape_of(size):
                return shape if size is None else shape_of(size)
        raise MXNetValueError(
            f"random.{self.name}: parameters of shapes {', '.join(map(str, shapes))} cannot be "
            f"broadcast to {'one shape' if size is None else shape_of(size)}"
        )

    def require(self, key, *, positive=False):
        """Raises an error if parameter `key` is a negative number, or zero if `positive`."""
        value = self.params[key]
        if not isinstance(value, ndarray) and not (value > 0 if positive else value >= 0):
            raise MXNetValueError(
                f"random.{self.name}: {key} must {'be positive' if positive else 'not be negative'}"
                f", got {value}"
            )

    def fraction(self, key):
        """Raises an error if parameter `key` is a number outside [0, 1]."""
        value = self.params[key]
        if not isinstance(value, ndarray) and not 0 <= value <= 1:
            raise MXNetValueError(f"random.{self.name}: {key} must be from 0 to 1, got {value}")

    def checked_fraction(self, key):
        """Returns parameter `key` so that its elements outside [0, 1] raise an error when the
        numbers are drawn: the draws for `n = 0` are 0, and their op checks the probabilities."""
        self.fraction(key)
        p = self.floats(key)
        if not isinstance(p, ndarray):
            return p
        valid = p + (p == 0)  # the op can't draw for p = 0, which is valid here
        return p + op("_sample_negative_binomial")(valid * 0, valid)

    def floats(self, key):
        """Returns parameter `key` as a number, or as an array of the working dtype."""
        value = self.params[key]
        return self.cast(value, self.work) if isinstance(value, ndarray) else value

    def cast(self, array, dtype):
        return array if _core.dtype_name(array.dtype) == dtype else _cast(array, dtype=dtype)

    def filled(self, value):
        """Returns a number or an array as an array of the result's shape."""
        if isinstance(value, ndarray):
            return stretched(value, self.shape)
        return _full(self.shape, value, dtype=self.work, ctx=self.ctx)

    def noise(self, name, *params):
        """Draws from a distribution whose parameters are numbers, in the working dtype."""
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
        options = (
            {"dtype": self.dtype} if self.out is None else {"dtype": self.dtype, "out": self.out}
        )
        if any(isinstance(value, ndarray) for value in values):
            return op("_sample_" + name)(*map(self.filled, values), **options)
        return op("_random_" + name)(*values, shape=self.shape, ctx=self.ctx, **options)

    def normal(self):
        """Returns the result for the normal distribution of `loc` and `scale`."""
        self.require("scale")
        loc, scale = self.floats("loc"), self.floats("scale")
        if not self.arrays:
            return self.direct("normal", loc, scale)
        return self.finish(loc + scale * self.noise("normal", 0, 1))

    def finish(self, result):
        """Converts the result to its dtype, and writes it to ``out``."""
        if self.out is None:
            return self.cast(result, self.dtype)
        result = self.cast(result, _core.dtype_name(self.out.dtype))
        return _copy_to(result, out=self.out)


def place_of(ctx, device):
    return device if ctx is None else ctx


def values_of(value):
    """Converts values that are no array to a NumPy array with at least one dimension."""
    return value if isinstance(value, NDArray) else _np.atleast_1d(value)
