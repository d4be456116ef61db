"""Kinds of arrays: of ``mx.nd`` or of ``mx.np``.

Ops follow their inputs, so only code that creates arrays chooses a kind. It computes with arrays of
``mx.nd`` and converts the result, which shares the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import MXNetTypeError, NDArray, Scope, is_np_array, ndarray, set_np_array

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def is_numpy(array: object) -> bool:
    """True for an array of ``mx.np``."""
    return isinstance(array, ndarray)


def type_name(value: object) -> str:
    """Returns the name of a type for error messages. An array of NumPy is a ``numpy.ndarray``,
    since ``mx.np.ndarray`` has the same short name."""
    kind = type(value)
    return f"numpy.{kind.__name__}" if kind.__module__ == "numpy" else kind.__name__


def of_mode(array: NDArray) -> NDArray:
    """Returns a new array as the kind that the thread's switch selects."""
    return array.as_np_ndarray() if is_np_array() else array


def of_kind(array: NDArray, numpy: bool) -> NDArray:
    """Returns an array as one of ``mx.np``, or of ``mx.nd`` if not `numpy`."""
    return array.as_np_ndarray() if numpy else plain(array)


def like(array: NDArray, other: object) -> NDArray:
    """Returns an array as the kind of another one."""
    return of_kind(array, isinstance(other, ndarray))


def nested_of_mode(values: Any) -> Any:
    """Returns nested lists and tuples with their arrays as the kind that the switch selects."""
    if not is_np_array():
        return values
    if isinstance(values, (list, tuple)):
        return type(values)(map(nested_of_mode, values))
    return values.as_np_ndarray() if isinstance(values, NDArray) else values


def plain(array: NDArray) -> NDArray:
    """Returns an array as one of ``mx.nd``, for code that mixes it with new arrays."""
    return array.as_nd_ndarray() if isinstance(array, ndarray) else array


def check_results(name: str, values: Iterable[object]) -> None:
    """Raises TypeError if a block's results are arrays of both kinds while NumPy's are on."""
    if not is_np_array():
        return
    given = {isinstance(value, ndarray) for value in values if isinstance(value, NDArray)}
    if len(given) > 1:
        raise MXNetTypeError(
            f"{name}: the results are arrays of mx.np and of mx.nd; convert the latter with "
            "x.as_np_ndarray()"
        )


def scope(numpy: bool) -> Scope:
    """Returns a scope in which new arrays are of ``mx.np``, or of ``mx.nd`` if not `numpy`."""
    return Scope((set_np_array, numpy))
