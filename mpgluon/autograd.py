"""Automatic differentiation: `backward` and `grad` differentiate ops run under `record`.

::

    x.attach_grad()
    with autograd.record():
        loss = (x * x).sum()
    loss.backward()        # x.grad is 2 * x
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import _core
from ._core import (
    NDArray,
    backward,
    grad,
    is_recording,
    is_training,
    pause,
    predict_mode,
    record,
    set_recording,
    set_training,
    train_mode,
)
from ._internal import graph_breaks
from ._internal.hints import (
    AUTOGRAD as _WAYS,
    FUNCTION as _FUNCTION,
    absent as _absent,
    of_module as _of_module,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .symbol import Symbol


__all__ = [
    "Function",
    "NDArray",
    "backward",
    "get_symbol",
    "grad",
    "is_recording",
    "is_training",
    "mark_variables",
    "pause",
    "predict_mode",
    "record",
    "set_recording",
    "set_training",
    "train_mode",
]


def mark_variables(
    variables: Any, gradients: Any, grad_reqs: str | Sequence[str] = "write"
) -> None:
    """Makes arrays variables; `backward` writes their gradients into the given arrays.

    Parameters
    ----------
    variables : NDArray or list of NDArray
        The arrays.
    gradients : NDArray or list of NDArray
        One array for each variable, with its shape, in any storage type.
    grad_reqs : str or list of str, default 'write'
        For each variable: 'write' overwrites the gradient, 'add' adds to it, and 'null' computes
        none.

    Examples
    --------
    >>> x, gradient = nd.array([3]), nd.zeros(1)
    >>> mx.autograd.mark_variables(x, gradient)
    >>> with mx.autograd.record():
    ...     y = x * x
    >>> y.backward()
    >>> gradient.asnumpy()
    array([6.], dtype=float32)
    """
    pair = [
        [arrays] if isinstance(arrays, NDArray) else list(arrays)
        for arrays in (variables, gradients)
    ]
    if all(getattr(array, "stype", "default") == "default" for array in (*pair[0], *pair[1])):
        _core.mark_variables(variables, gradients, grad_reqs)
        return
    from .ndarray._sparse.variables import mark

    requests = [grad_reqs] * len(pair[0]) if isinstance(grad_reqs, str) else grad_reqs
    if not len(pair[0]) == len(pair[1]) == len(requests):
        raise ValueError("mark_variables: each variable needs a gradient array")
    for variable, gradient, request in zip(*pair, requests):
        mark(variable, gradient, request)


def get_symbol(x: NDArray) -> Symbol:
    """Returns the recorded computation of `x` as a Symbol.

    Its variables, named ``var0``, ``var1``, ..., are the variables that `x` was computed from. An
    array that is not a variable becomes a separate variable for each op that read it. Hybridized
    calls are expanded into their ops.

    Parameters
    ----------
    x : NDArray
        An array that was computed while recording, and not differentiated since then.

    Raises
    ------
    MXNetError
        If it was not recorded, or its computation contains a `Function`.

    Examples
    --------
    >>> x = nd.array([3])
    >>> x.attach_grad()
    >>> with mx.autograd.record():
    ...     y = x * x + 1
    >>> sym = mx.autograd.get_symbol(y)
    >>> sym.list_arguments()
    ['var0']
    >>> sym.eval(var0=nd.array([5]))[0].asnumpy()
    array([26.], dtype=float32)
    """
    from .symbol._recorded import symbol_of

    return symbol_of(x)


@contextmanager
def refuse_release(what: str, arrays: Sequence[NDArray]) -> Iterator[None]:
    """Returns a scope that raises MXNetError if a backward pass inside it releases the recorded
    computation of `arrays`. Otherwise, their later gradients would be lost silently."""
    recorded = [array for array in arrays if array._wants_gradient] if is_recording() else []
    yield
    if not all(array._wants_gradient for array in recorded):
        raise _core.MXNetError(
            f"{what} called backward on the computation that it is part of, and released it; pass "
            "retain_graph=True to that backward, or record another computation, which begins with "
            "copies of the inputs"
        )


class Function:
    """A function with a custom gradient.

    ``forward(*inputs)`` computes the outputs, and ``backward(*output_grads)`` returns one gradient
    for each input (None for zero). Pass the values to keep for backward to `save_for_backward`, and
    read them from ``saved_tensors``. An instance can be called once. In a hybridized block it runs
    on the host, between two compiled parts; a pipeline calls it for each micro-batch. Its gradient
    is not differentiable. `backward` is also called if the gradients of all results are zero, as
    before a `BlockGrad`. A result that the caller stores on the instance (``f.y = y``) keeps both
    alive until `backward` has run.

        class Sigmoid(autograd.Function):
            def forward(self, x):
                y = 1 / (1 + nd.exp(-x))
                self.save_for_backward(y)
                return y

            def backward(self, dy):
                (y,) = self.saved_tensors
                return dy * y * (1 - y)

    Examples
    --------
    >>> class Twice(mx.autograd.Function):
    ...     def forward(self, x):
    ...         return x * 2
    ...     def backward(self, grad):
    ...         return grad * 2
    >>> x = nd.array([3])
    >>> x.attach_grad()
    >>> with mx.autograd.record():
    ...     y = Twice()(x)
    >>> y.backward()
    >>> y.asnumpy(), x.grad.asnumpy()
    (array([6.], dtype=float32), array([2.], dtype=float32))
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("forward", "backward"):
            method = cls.__dict__.get(name)
            if isinstance(method, (staticmethod, classmethod)):
                kind = type(method).__name__
                raise TypeError(
                    f"{cls.__name__}.{name}: a {kind} cannot keep values for backward; remove "
                    f"@{kind} and write `def {name}(self, ...)`, with self instead of ctx"
                )

    def __init__(self) -> None:
        self._used = False
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *args: Any) -> None:
        """Keeps arrays for `backward` as ``self.saved_tensors``.

        `backward` reads the contents that they have when `forward` returns, even if they are
        written later.
        """
        self.saved_tensors = args

    def __call__(self, *inputs: Any) -> Any:
        if getattr(self, "_used", False):
            raise _core.MXNetError(
                f"{type(self).__name__}: an instance of autograd.Function can be called only "
                "once; create another instance"
            )
        arrays = [array for array in inputs if isinstance(array, _core.NDArray)]
        self._refuse_lists(inputs)
        if any(array._in_trace for array in arrays):
            return self._in_a_step(inputs, arrays)
        self._used = True
        with (
            refuse_release(f"{type(self).__name__}.forward", arrays),
            pause(train_mode=is_training()),
        ):
            outputs = self.forward(*inputs)
        if not is_recording():
            return outputs
        single = isinstance(outputs, _core.NDArray)
        listed = _core.record_function(
            self._with_saved(), arrays, [outputs] if single else self._listed(outputs)
        )
        if single:
            return listed[0]
        return outputs._make(listed) if hasattr(outputs, "_make") else type(outputs)(listed)

    def _refuse_lists(self, inputs):
        for number, item in enumerate(inputs):
            if isinstance(item, (list, tuple)) and any(isinstance(x, _core.NDArray) for x in item):
                raise TypeError(
                    f"{type(self).__name__}: argument {number} is a {type(item).__name__} of "
                    "arrays, which would get no gradients; pass the arrays one by one"
                )

    def _with_saved(self):
        """Returns a `backward` for which the saved arrays keep their present contents, even if they
        are written later."""
        places = [i for i, x in enumerate(self.saved_tensors) if isinstance(x, _core.NDArray)]
        if not places:
            return self._backward
        kept = _core.SavedContents([self.saved_tensors[i] for i in places])

        def backward(*output_grads):
            tensors = list(self.saved_tensors)
            for place, array in zip(places, kept.arrays()):
                tensors[place] = array
            self.saved_tensors = tuple(tensors)
            return self._backward(*output_grads)

        return backward

    def _listed(self, outputs):
        if isinstance(outputs, (list, tuple)) and all(
            isinstance(array, _core.NDArray) for array in outputs
        ):
            return list(outputs)
        raise TypeError(
            f"{type(self).__name__}.forward must return an NDArray, or a list or tuple of them, "
            f"not {type(outputs).__name__}"
        )

    def _in_a_step(self, inputs, arrays):
        """Adds the call to the trace as a host step between two compiled parts.

        Each run of the step uses a copy of this instance, in the state before the call.
        """
        name = type(self).__name__
        tracer = graph_breaks.current()
        if tracer is None:
            raise _core.MXNetError(
                f"{name}: a Function runs Python code on values, which this trace does not support"
            )

        def run(values):
            values = iter(values)
            outputs = copy.copy(self)(
                *[next(values) if isinstance(item, _core.NDArray) else item for item in inputs]
            )
            if isinstance(outputs, _core.NDArray):
                return [outputs]
            if len(self._listed(outputs)) < 2:
                raise TypeError(
                    f"{name}.forward: in a hybridized block, one array must be returned by "
                    f"itself, not in a {type(outputs).__name__}"
                )
            return list(outputs)

        results = tracer.dynamic(name, run, arrays)
        return results[0] if len(results) == 1 else tuple(results)

    def _backward(self, *output_grads):
        with pause():
            return self.backward(*output_grads)

    def forward(self, *inputs: Any) -> Any:
        """Computes the outputs; subclasses must define it."""
        raise NotImplementedError(f"{type(self).__name__}.forward is not defined")

    def backward(self, *output_grads: Any) -> Any:
        """Computes the gradients of the inputs; subclasses must define it."""
        raise NotImplementedError(f"{type(self).__name__}.backward is not defined")


_absent(Function, _FUNCTION)


if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__

    def __getattr__(name: str) -> object:
        raise _of_module(__name__, name, _WAYS)
