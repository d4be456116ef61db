"""Recurrent cells, which compute one time step, and `unroll` for whole sequences.

A cell is called with an input of shape (batch, features) and a list of states. It returns its
output and the new states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _core, ndarray as nd
from ..._internal import domain
from .._compiled import tracing
from ..utils import indent
from ._base_cell import HybridRecurrentCell, RecurrentCell
from ._sequences import arranged, functions_of, is_one, masked, merged, reversed_steps, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._internal.types import Init
    from ..parameter import Parameter, ParameterDict

__all__ = [
    "RecurrentCell",
    "HybridRecurrentCell",
    "RNNCell",
    "LSTMCell",
    "GRUCell",
    "SequentialRNNCell",
    "HybridSequentialRNNCell",
    "DropoutCell",
    "ModifierCell",
    "ZoneoutCell",
    "ResidualCell",
    "BidirectionalCell",
]


class _GatedCell(HybridRecurrentCell):
    """A cell with weights for input (i2h) and state (h2h), each with `_gates` times the hidden
    size as rows."""

    _gates = 1
    _states = 1

    def __init__(
        self,
        hidden_size: int,
        input_size: int,
        i2h_weight_initializer: Init | None,
        h2h_weight_initializer: Init | None,
        i2h_bias_initializer: Init,
        h2h_bias_initializer: Init,
        prefix: str,
        params: ParameterDict,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        domain.size(1, hidden_size=hidden_size)
        domain.size(0, input_size=input_size)
        self._hidden_size = hidden_size
        self._input_size = input_size
        rows = self._gates * hidden_size
        get = self.params.get
        self.i2h_weight: Parameter = get(
            "i2h_weight",
            shape=(rows, input_size),
            init=i2h_weight_initializer,
            allow_deferred_init=True,
        )
        self.h2h_weight: Parameter = get(
            "h2h_weight",
            shape=(rows, hidden_size),
            init=h2h_weight_initializer,
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
            {"shape": (batch_size, self._hidden_size), "__layout__": "NC"}
            for _ in range(self._states)
        ]

    def __repr__(self) -> str:
        rows, size = self.i2h_weight.shape
        return f"{type(self).__name__}({size or None} -> {rows})"

    def _products(self, F, name, inputs, state, i2h_weight, h2h_weight, i2h_bias, h2h_bias):
        rows = self._gates * self._hidden_size
        return (
            F.FullyConnected(inputs, i2h_weight, i2h_bias, num_hidden=rows, name=name + "i2h"),
            F.FullyConnected(state, h2h_weight, h2h_bias, num_hidden=rows, name=name + "h2h"),
        )


class RNNCell(_GatedCell):
    """Elman cell: ``h' = act(W_i x + b_i + W_h h + b_h)``.

    Parameters
    ----------
    hidden_size : int
        Features of the state and the output.
    activation : str or callable, default 'tanh'
        Activation function of the new state.
    input_size : int, default 0
        0 to infer it in the first forward pass.
    i2h_weight_initializer : Initializer or str, optional
        Initial values of the weights of inputs; by default those of the initializer given to
        ``initialize``.
    h2h_weight_initializer : Initializer or str, optional
        Initial values of the weights of states; by default those of the initializer given to
        ``initialize``.
    i2h_bias_initializer : Initializer or str, default 'zeros'
        Initial values of the biases of inputs.
    h2h_bias_initializer : Initializer or str, default 'zeros'
        Initial values of the biases of states.

    Examples
    --------
    >>> cell = gluon.rnn.RNNCell(4)
    >>> cell.initialize()
    >>> output, states = cell(nd.zeros((2, 3)), cell.begin_state(2))
    >>> output.shape
    (2, 4)
    """

    def __init__(
        self,
        hidden_size: int,
        activation: str | Callable[..., Any] = "tanh",
        i2h_weight_initializer: Init | None = None,
        h2h_weight_initializer: Init | None = None,
        i2h_bias_initializer: Init = "zeros",
        h2h_bias_initializer: Init = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(
            hidden_size,
            input_size,
            i2h_weight_initializer,
            h2h_weight_initializer,
            i2h_bias_initializer,
            h2h_bias_initializer,
            prefix,
            params,
        )
        self._check_activations(activation)
        self._activation = activation

    def _alias(self):
        return "rnn"

    def __repr__(self) -> str:
        rows, size = self.i2h_weight.shape
        return f"{type(self).__name__}({size or None} -> {rows}, {self._activation})"

    def hybrid_forward(self, F: Any, inputs: Any, states: Any, **weights: Any) -> Any:
        name = self._step_name()
        i2h, h2h = self._products(F, name, inputs, states[0], **weights)
        output = self._activate(
            F, F.elemwise_add(i2h, h2h, name=name + "plus0"), self._activation, name + "out"
        )
        return output, [output]


class LSTMCell(_GatedCell):
    """Long short-term memory. The order of the gates is input, forget, cell, output. States: h and
    c.

    Parameters
    ----------
    hidden_size : int
        Features of the state and the output.
    input_size : int, default 0
        0 to infer it in the first forward pass.
    activation : str, default 'tanh'
        Activation function of the cell's input and output.
    recurrent_activation : str, default 'sigmoid'
        Activation function of the gates.
    i2h_weight_initializer : Initializer or str, optional
        Initial values of the weights of inputs; by default those of the initializer given to
        ``initialize``.
    h2h_weight_initializer : Initializer or str, optional
        Initial values of the weights of states; by default those of the initializer given to
        ``initialize``.
    i2h_bias_initializer : Initializer or str, default 'zeros'
        Initial values of the biases of inputs.
    h2h_bias_initializer : Initializer or str, default 'zeros'
        Initial values of the biases of states.

    Examples
    --------
    >>> cell = gluon.rnn.LSTMCell(4)
    >>> cell.initialize()
    >>> outputs, states = cell.unroll(5, nd.zeros((2, 5, 3)), merge_outputs=True)
    >>> outputs.shape, [state.shape for state in states]
    ((2, 5, 4), [(2, 4), (2, 4)])
    """

    _gates = 4
    _states = 2

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Init | None = None,
        h2h_weight_initializer: Init | None = None,
        i2h_bias_initializer: Init = "zeros",
        h2h_bias_initializer: Init = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
        activation: str | Callable[..., Any] = "tanh",
        recurrent_activation: str | Callable[..., Any] = "sigmoid",
    ) -> None:
        super().__init__(
            hidden_size,
            input_size,
            i2h_weight_initializer,
            h2h_weight_initializer,
            i2h_bias_initializer,
            h2h_bias_initializer,
            prefix,
            params,
        )
        self._check_activations(activation, recurrent_activation)
        self._activation = activation
        self._recurrent_activation = recurrent_activation

    def _alias(self):
        return "lstm"

    def hybrid_forward(self, F: Any, inputs: Any, states: Any, **weights: Any) -> Any:
        name = self._step_name()
        i2h, h2h = self._products(F, name, inputs, states[0], **weights)
        gates = F.SliceChannel(
            F.elemwise_add(i2h, h2h, name=name + "plus0"), num_outputs=4, name=name + "slice"
        )
        take, keep = [
            self._activate(F, gates[i], self._recurrent_activation, name + gate)
            for i, gate in enumerate("if")
        ]
        new = self._activate(F, gates[2], self._activation, name + "c")
        show = self._activate(F, gates[3], self._recurrent_activation, name + "o")
        kept, taken = (
            F.elemwise_mul(keep, states[1], name=name + "mul0"),
            F.elemwise_mul(take, new, name=name + "mul1"),
        )
        cell = F.elemwise_add(kept, taken, name=name + "state")
        hidden = F.elemwise_mul(
            show, self._activate(F, cell, self._activation, name + "activation0"), name=name + "out"
        )
        return hidden, [hidden, cell]


class GRUCell(_GatedCell):
    """Gated recurrent unit. The order of the gates is reset, update, new.

    Parameters
    ----------
    hidden_size : int
        Features of the state and the output.
    input_size : int, default 0
        0 to infer it in the first forward pass.
    i2h_weight_initializer : Initializer or str, optional
        Initial values of the weights of inputs; by default those of the initializer given to
        ``initialize``.
    h2h_weight_initializer : Initializer or str, optional
        Initial values of the weights of states; by default those of the initializer given to
        ``initialize``.
    i2h_bias_initializer : Initializer or str, default 'zeros'
        Initial values of the biases of inputs.
    h2h_bias_initializer : Initializer or str, default 'zeros'
        Initial values of the biases of states.

    Examples
    --------
    >>> cell = gluon.rnn.GRUCell(4)
    >>> cell.initialize()
    >>> output, states = cell(nd.zeros((2, 3)), cell.begin_state(2))
    >>> output.shape
    (2, 4)
    """

    _gates = 3

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Init | None = None,
        h2h_weight_initializer: Init | None = None,
        i2h_bias_initializer: Init = "zeros",
        h2h_bias_initializer: Init = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(
            hidden_size,
            input_size,
            i2h_weight_initializer,
            h2h_weight_initializer,
            i2h_bias_initializer,
            h2h_bias_initializer,
            prefix,
            params,
        )

    def _alias(self):
        return "gru"

    def hybrid_forward(self, F: Any, inputs: Any, states: Any, **weights: Any) -> Any:
        name = self._step_name()
        i2h, h2h = self._products(F, name, inputs, states[0], **weights)
        i2h_reset, i2h_update, i2h_new = F.SliceChannel(i2h, num_outputs=3, name=name + "i2h_slice")
        h2h_reset, h2h_update, h2h_new = F.SliceChannel(h2h, num_outputs=3, name=name + "h2h_slice")
        reset = F.sigmoid(
            F.elemwise_add(i2h_reset, h2h_reset, name=name + "plus0"), name=name + "r_act"
        )
        update = F.sigmoid(
            F.elemwise_add(i2h_update, h2h_update, name=name + "plus1"), name=name + "z_act"
        )
        gated = F.elemwise_mul(reset, h2h_new, name=name + "mul0")
        new = F.tanh(F.elemwise_add(i2h_new, gated, name=name + "plus2"), name=name + "h_act")
        changed = F.elemwise_mul(1.0 - update, new, name=name + "mul1")
        hidden = F.elemwise_add(
            changed, F.elemwise_mul(update, states[0], name=name + "mul20"), name=name + "out"
        )
        return hidden, [hidden]


class _CellStack:
    """Base class of both stacks of cells."""

    def __repr__(self) -> str:
        lines = "\n".join(
            f"({name}): {indent(repr(cell), 2)}" for name, cell in self._children.items()
        )
        return f"{type(self).__name__}(\n{lines}\n)"

    def add(self, cell: RecurrentCell) -> None:
        """Appends a cell."""
        self.register_child(cell)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [info for cell in self._children.values() for info in cell.state_info(batch_size)]

    def begin_state(self, **kwargs: Any) -> list[Any]:
        self._check_unmodified()
        return [state for cell in self._children.values() for state in cell.begin_state(**kwargs)]

    def _step(self, inputs, states):
        states = list(states)
        next_states = []
        for cell in self._children.values():
            if isinstance(cell, BidirectionalCell):
                raise AssertionError(
                    "a BidirectionalCell needs the whole sequence; call unroll instead of stepping"
                )
            count = len(cell.state_info())
            inputs, new = cell(inputs, states[:count])
            del states[:count]
            next_states += new
        return inputs, next_states

    def unroll(
        self,
        length: int | None,
        inputs: Any,
        begin_state: list[Any] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:
        self.reset()
        states = list(self._begin(begin_state, inputs, layout))
        next_states = []
        cells = list(self._children.values())
        for cell in cells:
            count = len(cell.state_info())
            merge = merge_outputs if cell is cells[-1] else None
            inputs, new = cell.unroll(length, inputs, states[:count], layout, merge, valid_length)
            del states[:count]
            next_states += new
        return inputs, next_states

    def __getitem__(self, i: int) -> Any:
        return list(self._children.values())[i]

    def __len__(self) -> int:
        return len(self._children)


class SequentialRNNCell(_CellStack, RecurrentCell):
    """A stack of cells; each cell receives the output of the previous one.

    Examples
    --------
    >>> cell = gluon.rnn.SequentialRNNCell()
    >>> cell.add(gluon.rnn.LSTMCell(4))
    >>> cell.add(gluon.rnn.GRUCell(3))
    >>> len(cell.state_info())
    3
    """

    def forward(self, inputs: Any, states: Any) -> Any:
        return self._step(inputs, states)

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        """Calls the cells in sequence. `F` is not used."""
        return self._step(inputs, states)


class HybridSequentialRNNCell(_CellStack, HybridRecurrentCell):
    """A stack of cells that can be hybridized.

    Examples
    --------
    >>> cell = gluon.rnn.HybridSequentialRNNCell()
    >>> cell.add(gluon.rnn.LSTMCell(4))
    >>> len(cell.state_info())
    2
    """

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        return self._step(inputs, states)


class DropoutCell(HybridRecurrentCell):
    """Applies dropout to its input. It has no states.

    Parameters
    ----------
    rate : float
        Probability that an element becomes zero, at least 0 and less than 1.
    axes : tuple of int, default ()
        Axes along which all elements share one mask value.

    Examples
    --------
    >>> output, _ = gluon.rnn.DropoutCell(0.5)(nd.ones((1, 2)), [])
    >>> output.asnumpy().tolist()  # only training drops
    [[1.0, 1.0]]
    """

    def __init__(
        self,
        rate: float,
        axes: Sequence[int] = (),
        prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix, params)
        if not isinstance(rate, (int, float)):
            raise AssertionError("rate must be a number")
        domain.fraction(rate=rate)
        domain.axis(axes=axes)
        self._rate = rate
        self._axes = axes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rate={self._rate}, axes={self._axes})"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return []

    def _alias(self):
        return "dropout"

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        if self._rate > 0:
            inputs = F.Dropout(
                inputs, p=self._rate, axes=self._axes, name=self._step_name() + "fwd"
            )
        return inputs, states

    def unroll(
        self,
        length: int | None,
        inputs: Any,
        begin_state: list[Any] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:
        self.reset()
        inputs = arranged(inputs, length, layout, merge_outputs)
        if isinstance(inputs, nd.NDArray):
            return self.hybrid_forward(nd, inputs, begin_state or [])
        return super().unroll(length, inputs, begin_state or [], layout, merge_outputs, None)


class ModifierCell(HybridRecurrentCell):
    """Base class of cells that modify another cell. The modified cell can then only be called
    through its modifier.

    Examples
    --------
    >>> isinstance(gluon.rnn.ResidualCell(gluon.rnn.GRUCell(3)), gluon.rnn.ModifierCell)
    True
    """

    def __init__(self, base_cell: RecurrentCell) -> None:
        if base_cell._modified:
            raise AssertionError(
                f"Cell {base_cell.name} is already modified. One cell cannot be modified twice"
            )
        base_cell._modified = True
        super().__init__(prefix=base_cell.prefix + self._alias(), params=None)
        self.base_cell = base_cell

    @property
    def params(self) -> ParameterDict:
        return self.base_cell.params

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return self.base_cell.state_info(batch_size)

    def _base(self):
        """Returns a scope in which the modified cell can be called directly."""
        return _core.Scope((vars(self.base_cell), "_modified", False))

    def begin_state(self, **kwargs: Any) -> list[Any]:
        self._check_unmodified()
        with self._base():
            return self.base_cell.begin_state(**kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_cell})"


class ZoneoutCell(ModifierCell):
    """Zoneout: keeps elements of the previous output and states, at random in training.

    Parameters
    ----------
    base_cell : RecurrentCell
        Cell to apply zoneout to.
    zoneout_outputs, zoneout_states : float, default 0
        Probabilities of keeping an element.

    Examples
    --------
    >>> gluon.rnn.ZoneoutCell(gluon.rnn.RNNCell(3, input_size=3), zoneout_states=0.1)
    ZoneoutCell(p_out=0.0, p_state=0.1, RNNCell(3 -> 3, tanh))
    """

    def __init__(
        self, base_cell: RecurrentCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0
    ) -> None:
        if isinstance(base_cell, BidirectionalCell):
            raise AssertionError(
                "zoneout works step by step, which a BidirectionalCell does not support; wrap "
                "the cells inside it in ZoneoutCell"
            )
        domain.fraction(zoneout_outputs=zoneout_outputs, zoneout_states=zoneout_states)
        super().__init__(base_cell)
        self.zoneout_outputs = zoneout_outputs
        self.zoneout_states = zoneout_states

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(p_out={self.zoneout_outputs}, p_state={self.zoneout_states}, "
            f"{self.base_cell})"
        )

    def _alias(self):
        return "zoneout"

    def reset(self) -> None:
        super().reset()
        self._former = (None, None)  # (trace in which the output was created, output)

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        output, next_states = self.base_cell(inputs, states)
        trace, former = self._former
        if former is None or trace is not tracing.current():
            former = F.zeros_like(output)

        def mix(probability, new, old):
            return F.where(F.Dropout(F.ones_like(new), p=probability), new, old)

        if self.zoneout_outputs:
            output = mix(self.zoneout_outputs, output, former)
        if self.zoneout_states:
            next_states = [
                mix(self.zoneout_states, new, old) for new, old in zip(next_states, states)
            ]
        self._former = (tracing.current(), output)
        return output, next_states


class ResidualCell(ModifierCell):
    """Adds the input of a cell to its output.

    Examples
    --------
    >>> cell = gluon.rnn.ResidualCell(gluon.rnn.RNNCell(2, i2h_weight_initializer="zeros"))
    >>> cell.initialize("zeros")
    >>> cell(nd.ones((1, 2)), cell.begin_state(batch_size=1))[0].asnumpy().tolist()
    [[1.0, 1.0]]
    """

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        output, states = self.base_cell(inputs, states)
        return F.elemwise_add(output, inputs, name=self._step_name() + "fwd"), states

    def unroll(
        self,
        length: int | None,
        inputs: Any,
        begin_state: list[Any] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:
        self.reset()
        with self._base():
            outputs, states = self.base_cell.unroll(
                length, inputs, begin_state, layout, merge_outputs, valid_length
            )
        merge = is_one(outputs)
        if valid_length is not None:
            inputs = masked(inputs, length, layout, valid_length, merge)
        else:
            inputs = arranged(inputs, length, layout, merge)
        if merge:
            return outputs + inputs, states
        return [output + step for output, step in zip(outputs, inputs)], states


class BidirectionalCell(HybridRecurrentCell):
    """Runs one cell forward and another one backward in time, and concatenates their outputs. It
    can only be unrolled.

    Parameters
    ----------
    l_cell, r_cell : RecurrentCell
        Cells that run forward and backward.
    output_prefix : str, default 'bi_'
        Prefix for the names of the output's nodes.

    Examples
    --------
    >>> cell = gluon.rnn.BidirectionalCell(gluon.rnn.GRUCell(4), gluon.rnn.GRUCell(4))
    >>> cell.initialize()
    >>> cell.unroll(5, nd.zeros((2, 5, 3)), merge_outputs=True)[0].shape
    (2, 5, 8)
    """

    def __init__(
        self, l_cell: RecurrentCell, r_cell: RecurrentCell, output_prefix: str = "bi_"
    ) -> None:
        super().__init__(prefix="", params=None)
        self.register_child(l_cell, "l_cell")
        self.register_child(r_cell, "r_cell")
        self._output_prefix = output_prefix

    def __call__(self, inputs: Any, states: Any) -> Any:
        raise NotImplementedError(
            "a BidirectionalCell needs the whole sequence; call unroll instead of stepping"
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(forward={self._children['l_cell']}, "
            f"backward={self._children['r_cell']})"
        )

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [info for cell in self._children.values() for info in cell.state_info(batch_size)]

    def begin_state(self, **kwargs: Any) -> list[Any]:
        self._check_unmodified()
        return [state for cell in self._children.values() for state in cell.begin_state(**kwargs)]

    def unroll(
        self,
        length: int | None,
        inputs: Any,
        begin_state: list[Any] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:
        self.reset()
        steps = steps_of(inputs, length, layout)
        states = self._begin(begin_state, steps, layout)
        l_cell, r_cell = self._children.values()
        count = len(l_cell.state_info())
        l_outputs, l_states = l_cell.unroll(
            length, steps, states[:count], layout, merge_outputs, valid_length
        )
        r_outputs, r_states = r_cell.unroll(
            length, reversed_steps(steps, valid_length), states[count:], layout, False, valid_length
        )
        r_outputs = reversed_steps(r_outputs, valid_length)
        merge = is_one(l_outputs) if merge_outputs is None else merge_outputs
        if merge:
            both = [merged(outputs, layout) for outputs in (l_outputs, r_outputs)]
            outputs = functions_of(l_outputs).concat(*both, dim=2, name=f"{self._output_prefix}out")
        else:
            pairs = enumerate(zip(steps_of(l_outputs, length, layout), r_outputs))
            outputs = [
                functions_of(left).concat(left, right, dim=1, name=f"{self._output_prefix}t{i}")
                for i, (left, right) in pairs
            ]
        if valid_length is not None:
            outputs = masked(outputs, len(steps), layout, valid_length, merge)
        return outputs, l_states + r_states
