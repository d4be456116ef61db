"""``mx.contrib.autograd``: MXNet's older names of `mx.autograd` functions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .. import autograd, ndarray as nd
from ..autograd import mark_variables as mark_variables
from ..base import MXNetAssertionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..ndarray import NDArray

__all__ = [
    "TrainingStateScope",
    "backward",
    "compute_gradient",
    "grad",
    "grad_and_loss",
    "mark_variables",
    "set_is_training",
    "test_section",
    "train_section",
]


def set_is_training(is_train: bool) -> bool:
    """Turns recording and training mode on or off; returns True if recording was on."""
    autograd.set_training(is_train)
    return autograd.set_recording(is_train)


class TrainingStateScope:
    """Turns recording and training mode on or off in a ``with`` block.

    Parameters
    ----------
    enter_state : bool
        True records in training mode; False does neither.

    Examples
    --------
    >>> with mx.contrib.autograd.TrainingStateScope(True):
    ...     mx.autograd.is_recording()
    True
    """

    def __init__(self, enter_state: bool) -> None:
        self._enter_state = enter_state
        self._before = False, False

    def __enter__(self) -> None:
        self._before = autograd.is_training(), autograd.is_recording()
        set_is_training(self._enter_state)

    def __exit__(self, *_: object) -> None:
        training, recording = self._before
        autograd.set_training(training)
        autograd.set_recording(recording)


def train_section() -> TrainingStateScope:
    """Returns a scope equivalent to ``autograd.record()``."""
    return TrainingStateScope(True)


def test_section() -> TrainingStateScope:
    """Returns a scope equivalent to ``autograd.pause()``."""
    return TrainingStateScope(False)


test_section.__test__ = False  # tells pytest that this is not a test


def backward(
    outputs: Sequence[NDArray], out_grads: Sequence[Any] | None = None, retain_graph: bool = False
) -> None:
    """Computes the gradients of a list of outputs into the variables' arrays."""
    if not isinstance(outputs, (list, tuple)):
        raise MXNetAssertionError("outputs must be a list or tuple of NDArrays")
    autograd.backward(list(outputs), out_grads, retain_graph)


def compute_gradient(outputs: Sequence[NDArray]) -> None:
    """Calls `backward` on a list of outputs."""
    backward(outputs)


def grad_and_loss(
    func: Callable[..., Any], argnum: int | Sequence[int] | None = None
) -> Callable[..., Any]:
    """Returns a function that returns (gradients, result).

    The gradients are with respect to all arguments, or those with the indices `argnum`.

    Examples
    --------
    >>> square = mx.contrib.autograd.grad_and_loss(lambda x: x * x)
    >>> gradients, result = square(nd.array([3.0]))
    >>> gradients[0].asnumpy().tolist(), result.asnumpy().tolist()
    ([6.0], [9.0])
    """

    @functools.wraps(func)
    def wrapped(*args: Any) -> Any:
        places = (
            range(len(args)) if argnum is None else [argnum] if isinstance(argnum, int) else argnum
        )
        variables = [args[place] for place in places]
        if not all(isinstance(x, nd.NDArray) for x in variables):
            raise MXNetAssertionError("type of autograd input should NDArray.")
        gradients = [nd.zeros_like(x) for x in variables]
        mark_variables(variables, gradients)
        with train_section():
            outputs = func(*args)
        backward([outputs] if isinstance(outputs, nd.NDArray) else outputs)
        return gradients, outputs

    return wrapped


def grad(func: Callable[..., Any], argnum: int | Sequence[int] | None = None) -> Callable[..., Any]:
    """Returns a function that returns only the gradients; see `grad_and_loss`."""
    both = grad_and_loss(func, argnum)

    @functools.wraps(both)
    def wrapped(*args: Any) -> Any:
        return both(*args)[0]

    return wrapped
