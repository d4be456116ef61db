"""Base classes of recurrent cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ..._core import dtype_name, is_np_shape
from ..._internal import kinds
from ..block import Block, HybridBlock
from ..nn.activations import LeakyReLU, check_activation
from ._sequences import arranged, functions_of, is_one, masked, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Never

    from ..parameter import ParameterDict


def state_options(block: Block, options: dict[str, Any]) -> dict[str, Any]:
    """Returns `options` for creating a state. ``ctx`` defaults to the device of the block's
    parameters if they are all on one device."""
    if options.get("ctx") is None:
        params = [
            param
            for param in block.params.values()
            if param.arrays is not None or param.deferred_init
        ]
        contexts = {ctx for param in params for ctx in param.list_ctx()}
        if len(contexts) == 1:
            options = {**options, "ctx": contexts.pop()}
    return options


def symbol_of_zeros(block: Block, F: Any, shape: tuple[int, ...], inputs: Any) -> Any:
    """Returns a symbol of an initial state, of the kind of the symbol `inputs` and with the dtype
    of the block's first parameter. Sizes of 0 in `shape` are unknown."""
    if is_np_shape():
        shape = tuple(size or -1 for size in shape)
    dtypes = [dtype_name(param.dtype) for param in block.collect_params().values()]
    zeros = F.zeros(shape=shape, dtype=dtypes[0] if dtypes else "float32")
    return zeros.as_np_ndarray() if inputs.numpy else zeros


class RecurrentCell(Block):
    """Base class of recurrent cells.

    Examples
    --------
    >>> class Sum(gluon.rnn.RecurrentCell):
    ...     def state_info(self, batch_size=0):
    ...         return [{"shape": (batch_size, 1)}]
    ...     def forward(self, x, states):
    ...         total = states[0] + x
    ...         return total, [total]
    ...
    >>> outputs, _ = Sum().unroll(3, nd.ones((1, 3, 1)), merge_outputs=True)
    >>> outputs.asnumpy().ravel().tolist()
    [1.0, 2.0, 3.0]
    """

    def __init__(
        self, prefix: str | None = None, params: ParameterDict | None = None, **kwargs: Never
    ) -> None:
        super().__init__(prefix=prefix, params=params, **kwargs)
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Resets the values that the cell keeps between the steps of a sequence."""
        self._counter = -1
        for child in self._children.values():
            if isinstance(child, RecurrentCell):
                child.reset()

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """Returns the shapes of the states, as dicts."""
        raise NotImplementedError(f"{type(self).__name__} does not define state_info")

    def _step_name(self):
        """Returns the prefix for the names of the next step's nodes, used if the cell is called on
        symbols."""
        self._counter += 1
        return f"t{self._counter}_"

    def _check_unmodified(self):
        if self._modified:
            raise AssertionError(
                "After applying modifier cells (e.g. ZoneoutCell) the base cell cannot be called "
                "directly. Call the modifier cell instead."
            )

    def begin_state(
        self, batch_size: int = 0, func: Callable[..., Any] = nd.zeros, **kwargs: Any
    ) -> list[Any]:
        """Returns initial states.

        Parameters
        ----------
        batch_size : int, default 0
            Number of rows of each state; with symbols, 0 means not known yet.
        func : callable, default `mx.nd.zeros`
            Creates an array from a ``shape``.
        **kwargs
            Arguments for `func`. ``ctx`` defaults to the device of the cell's parameters.

        Returns
        -------
        list of NDArray
        """
        self._check_unmodified()
        kwargs = state_options(self, kwargs)
        return kinds.nested_of_mode(
            [func(shape=info["shape"], **kwargs) for info in self.state_info(batch_size)]
        )

    def _begin(self, begin_state, inputs, layout):
        if begin_state is not None:
            return begin_state
        F = functions_of(inputs)
        first = inputs if is_one(inputs) else inputs[0]
        if F is not nd:
            return self.begin_state(func=lambda shape, **_: symbol_of_zeros(self, F, shape, first))
        batch_size = first.shape[layout.find("N") if is_one(inputs) else 0]
        states = self.begin_state(batch_size=batch_size, ctx=first.context, dtype=first.dtype)
        return [kinds.like(state, first) for state in states]

    def unroll(
        self,
        length: int | None,
        inputs: Any,
        begin_state: list[Any] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:
        """Runs the cell over a sequence.

        Parameters
        ----------
        length : int
            Number of steps.
        inputs : NDArray or list of NDArray
            One array in the order of `layout`, or a list of arrays (batch, ...), one for each step.
        begin_state : list of NDArray, optional
            Initial states; zeros by default.
        layout : {'NTC', 'TNC'}
            Order of axes of inputs and outputs: N batch, T time, C features.
        merge_outputs : bool, optional
            Whether to return one array instead of a list. None selects the form that needs no copy.
        valid_length : NDArray of shape (batch,), optional
            Number of valid steps of each sample. Later outputs are zero, and the returned states
            are those after the last valid step.

        Returns
        -------
        outputs : NDArray or list of NDArray
        states : list of NDArray
        """
        self.reset()
        steps = steps_of(inputs, length, layout)
        states = self._begin(begin_state, steps, layout)
        outputs, all_states = [], []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
            all_states.append(states)
        if valid_length is not None:
            states = [
                functions_of(states).SequenceLast(
                    functions_of(states).stack(*states, axis=0),
                    valid_length,
                    use_sequence_length=True,
                )
                for states in zip(*all_states)
            ]
            outputs = masked(outputs, len(steps), layout, valid_length, True)
        return arranged(outputs, len(steps), layout, merge_outputs), states

    def _check_activations(self, *activations):
        for activation in activations:
            if isinstance(activation, str) or not callable(activation):
                check_activation(type(self).__name__, activation)

    def _activate(self, F, x, activation, name):
        if isinstance(activation, str):
            if activation in ("tanh", "relu", "sigmoid", "softsign"):
                return getattr(F, activation)(x, name=name)
            return F.Activation(x, act_type=activation, name=name)
        if isinstance(activation, LeakyReLU):
            return F.LeakyReLU(x, act_type="leaky", slope=activation.slope, name=name)
        return activation(x)

    def _get_activation(self, F, inputs, activation, **kwargs):
        """Calls `_activate`. MXNet's name, used by cells of other packages."""
        return self._activate(F, inputs, activation, kwargs.get("name"))


class HybridRecurrentCell(RecurrentCell, HybridBlock):
    """Base class of cells that can be hybridized.

    Examples
    --------
    >>> isinstance(gluon.rnn.LSTMCell(3), gluon.rnn.HybridRecurrentCell)
    True
    """

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define hybrid_forward")
