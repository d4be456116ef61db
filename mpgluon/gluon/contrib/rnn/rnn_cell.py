"""Recurrent cells with a projection or with variational dropout, and unrolling as a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._internal import domain
from ..._compiled import tracing
from ..._tree import children
from ...rnn._sequences import arranged, functions_of, masked, merged
from ...rnn.rnn_cell import BidirectionalCell, HybridRecurrentCell, ModifierCell, SequentialRNNCell

if TYPE_CHECKING:
    from ...._internal.types import Init
    from ...parameter import Parameter, ParameterDict
    from ...rnn.rnn_cell import RecurrentCell

__all__ = ["LSTMPCell", "VariationalDropoutCell", "dynamic_unroll"]


class VariationalDropoutCell(ModifierCell):
    """Applies variational dropout to the inputs, the first state and the outputs of a cell: one
    mask for all steps of a sequence.

    The masks are drawn in the first step after `reset`, which `unroll` calls. A cell that is
    itself hybridized and called step by step draws masks in every call.

    Parameters
    ----------
    base_cell : RecurrentCell
        The cell to which dropout is applied.
    drop_inputs, drop_states, drop_outputs : float, default 0
        Dropout probabilities.

    Examples
    --------
    >>> lstm = gluon.rnn.LSTMCell(3)
    >>> gluon.contrib.rnn.VariationalDropoutCell(lstm, drop_inputs=0.2).drop_inputs
    0.2
    """

    def __init__(
        self,
        base_cell: RecurrentCell,
        drop_inputs: float = 0.0,
        drop_states: float = 0.0,
        drop_outputs: float = 0.0,
    ) -> None:
        both = isinstance(base_cell, SequentialRNNCell) and any(
            isinstance(cell, BidirectionalCell) for cell in children(base_cell).values()
        )
        if drop_states and (both or isinstance(base_cell, BidirectionalCell)):
            raise AssertionError(
                "drop_states works step by step, which a BidirectionalCell does not support; "
                "wrap the cells inside it in VariationalDropoutCell"
            )
        drops = {"inputs": drop_inputs, "states": drop_states, "outputs": drop_outputs}
        for name, rate in drops.items():
            if rate is not None:
                domain.fraction(**{f"drop_{name}": rate})
        super().__init__(base_cell)
        self.drop_inputs = drop_inputs
        self.drop_states = drop_states
        self.drop_outputs = drop_outputs

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out={self.drop_outputs}, p_state={self.drop_states})"

    def _alias(self):
        return "vardrop"

    def reset(self) -> None:
        super().reset()
        self._masks = {}  # name of the masked value -> (trace in which the mask was created, mask)

    def _masked(self, F, what, probability, x):
        if not probability:
            return x
        trace, mask = self._masks.get(what, (None, None))
        if mask is None or trace is not tracing.current():
            mask = F.Dropout(F.ones_like(x), p=probability)
            self._masks[what] = (tracing.current(), mask)
        return x * mask

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        states = [self._masked(F, "states", self.drop_states, states[0]), *states[1:]]
        inputs = self._masked(F, "inputs", self.drop_inputs, inputs)
        output, next_states = self.base_cell(inputs, states)
        return self._masked(F, "outputs", self.drop_outputs, output), next_states

    def unroll(
        self,
        length: int | None,
        inputs: Any,
        begin_state: list[Any] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:
        if self.drop_states:
            return super().unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        # If states have no dropout, the dropout of inputs and outputs can be applied to whole
        # sequences.
        self.reset()
        axis = layout.find("T")
        whole = merged(inputs, layout)
        F = functions_of(whole)
        if self.drop_inputs:
            whole = F.Dropout(whole, p=self.drop_inputs, axes=(axis,))
        with self._base():
            outputs, states = self.base_cell.unroll(
                length, whole, begin_state, layout, True, valid_length
            )
        if self.drop_outputs:
            outputs = F.Dropout(outputs, p=self.drop_outputs, axes=(axis,))
        if valid_length is not None:
            outputs = masked(outputs, length, layout, valid_length, True)
        return arranged(outputs, length, layout, merge_outputs), states


class LSTMPCell(HybridRecurrentCell):
    """Long short-term memory with a projected output ``r = W_hr h``. The order of the gates is
    input, forget, cell, output.

    States: r, of `projection_size`, and c, of `hidden_size`.

    Parameters
    ----------
    hidden_size, projection_size : int
        Features of the cell's state, and of the projected output.
    i2h_weight_initializer, h2h_weight_initializer, h2r_weight_initializer : Initializer, optional
        Initial values of the weights of inputs, of states and of the projection.
    i2h_bias_initializer, h2h_bias_initializer : Initializer or str, default 'zeros'
        Initial values of the biases of inputs and states.
    input_size : int, default 0
        0 to infer it in the first forward pass.

    Examples
    --------
    >>> cell = gluon.contrib.rnn.LSTMPCell(8, 4)
    >>> cell.initialize()
    >>> cell(nd.zeros((2, 3)), cell.begin_state(2))[0].shape
    (2, 4)
    """

    def __init__(
        self,
        hidden_size: int,
        projection_size: int,
        i2h_weight_initializer: Init | None = None,
        h2h_weight_initializer: Init | None = None,
        h2r_weight_initializer: Init | None = None,
        i2h_bias_initializer: Init = "zeros",
        h2h_bias_initializer: Init = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        domain.size(1, hidden_size=hidden_size, projection_size=projection_size)
        domain.size(0, input_size=input_size)
        self._hidden_size = hidden_size
        self._input_size = input_size
        self._projection_size = projection_size
        get, rows = self.params.get, 4 * hidden_size
        self.i2h_weight: Parameter = get(
            "i2h_weight",
            shape=(rows, input_size),
            init=i2h_weight_initializer,
            allow_deferred_init=True,
        )
        self.h2h_weight: Parameter = get(
            "h2h_weight",
            shape=(rows, projection_size),
            init=h2h_weight_initializer,
            allow_deferred_init=True,
        )
        self.h2r_weight: Parameter = get(
            "h2r_weight",
            shape=(projection_size, hidden_size),
            init=h2r_weight_initializer,
            allow_deferred_init=True,
        )
        self.i2h_bias: Parameter = get(
            "i2h_bias", shape=(rows,), init=i2h_bias_initializer, allow_deferred_init=True
        )
        self.h2h_bias: Parameter = get(
            "h2h_bias", shape=(rows,), init=h2h_bias_initializer, allow_deferred_init=True
        )

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [
            {"shape": (batch_size, size), "__layout__": "NC"}
            for size in (self._projection_size, self._hidden_size)
        ]

    def _alias(self):
        return "lstmp"

    def __repr__(self) -> str:
        rows, size = self.i2h_weight.shape
        return f"{type(self).__name__}({size or None} -> {rows} -> {self._projection_size})"

    def hybrid_forward(
        self,
        F: Any,
        inputs: Any,
        states: Any,
        i2h_weight: Any,
        h2h_weight: Any,
        h2r_weight: Any,
        i2h_bias: Any,
        h2h_bias: Any,
    ) -> Any:
        name, rows = self._step_name(), 4 * self._hidden_size
        i2h = F.FullyConnected(inputs, i2h_weight, i2h_bias, num_hidden=rows, name=name + "i2h")
        h2h = F.FullyConnected(states[0], h2h_weight, h2h_bias, num_hidden=rows, name=name + "h2h")
        gates = F.SliceChannel(i2h + h2h, num_outputs=4, name=name + "slice")
        take, keep = F.sigmoid(gates[0], name=name + "i"), F.sigmoid(gates[1], name=name + "f")
        new, show = F.tanh(gates[2], name=name + "c"), F.sigmoid(gates[3], name=name + "o")
        cell = F.elemwise_add(keep * states[1], take * new, name=name + "state")
        hidden = F.elemwise_mul(show, F.tanh(cell), name=name + "hidden")
        output = F.FullyConnected(
            hidden, h2r_weight, no_bias=True, num_hidden=self._projection_size, name=name + "out"
        )
        return output, [output, cell]


def dynamic_unroll(
    cell: RecurrentCell,
    inputs: Any,
    begin_state: list[Any],
    drop_inputs: float = 0,
    drop_outputs: float = 0,
    layout: str = "TNC",
    valid_length: Any = None,
) -> tuple[Any, list[Any]]:
    """Unrolls a cell over a sequence as a loop (``contrib.foreach``), so that the size of the graph
    does not depend on the length of the sequence.

    Parameters
    ----------
    cell : RecurrentCell
        The cell, called at each step.
    inputs : NDArray or Symbol
        Sequence in the order of `layout`.
    begin_state : list of NDArray or Symbol
        Initial states, each (batch, ...).
    drop_inputs, drop_outputs : float, default 0
        Dropout probabilities; the masks are the same for all steps.
    layout : {'TNC', 'NTC'}
        Order of axes of inputs and outputs: N batch, T time, C features.
    valid_length : NDArray of shape (batch,), optional
        Number of valid steps of each sample. Later outputs are zero, and the returned states are
        those after the last valid step.

    Returns
    -------
    outputs : NDArray or Symbol
    states : list of NDArray or Symbol

    Examples
    --------
    >>> cell = gluon.rnn.GRUCell(4)
    >>> cell.initialize()
    >>> steps = nd.zeros((5, 2, 3))
    >>> gluon.contrib.rnn.dynamic_unroll(cell, steps, cell.begin_state(2))[0].shape
    (5, 2, 4)
    """
    F, axis = functions_of(inputs), layout.find("T")
    if drop_inputs:
        inputs = F.Dropout(inputs, p=drop_inputs, axes=(axis,))
    if axis != 0:
        inputs = F.swapaxes(inputs, 0, axis)
    states = list(begin_state) if isinstance(begin_state, (list, tuple)) else [begin_state]
    if valid_length is None:
        outputs, states = F.contrib.foreach(lambda step, now: cell(step, now), inputs, states)
    else:

        def body(step, now):
            output, new = cell(step, now[:-1])
            valid = F.broadcast_greater(valid_length, now[-1])
            return output, [*[F.where(valid, one, old) for one, old in zip(new, now)], now[-1] + 1]

        outputs, states = F.contrib.foreach(
            body,
            inputs,
            [*states, F.zeros_like(F.slice_axis(valid_length, axis=0, begin=0, end=1))],
        )
        states = states[:-1]
    if axis != 0:
        outputs = F.swapaxes(outputs, 0, axis)
    if drop_outputs:
        outputs = F.Dropout(outputs, p=drop_outputs, axes=(axis,))
    if valid_length is not None:
        outputs = F.SequenceMask(outputs, valid_length, use_sequence_length=True, axis=axis)
    return outputs, states
