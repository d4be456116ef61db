"""Recurrent cells over symbols: a single time step, and `unroll` for many.

A cell is called with the input's symbol and a list of its states' symbols, and returns its output
and the new states. Its weights are variables that all steps share (`RNNParams`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpgluon import _core, ndarray as nd, symbol as sym
from mpgluon.initializer import LSTMBias

from ._sequences import arranged, as_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from mpgluon._core import NDArray
    from mpgluon._internal.types import Shape
    from mpgluon.symbol import Symbol


__all__ = [
    "RNNParams",
    "BaseRNNCell",
    "RNNCell",
    "LSTMCell",
    "GRUCell",
    "SequentialRNNCell",
    "DropoutCell",
    "ModifierCell",
    "ZoneoutCell",
    "ResidualCell",
    "BidirectionalCell",
]


class RNNParams:
    """Variables by name, with a prefix; cells that share an instance share their weights.

    Examples
    --------
    >>> params = mx.rnn.RNNParams("lstm_")
    >>> params.get("weight").name
    'lstm_weight'
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._params = {}

    def get(self, name: str, **kwargs: Any) -> Symbol:
        """Returns the variable of that name, created with `kwargs` if it is new."""
        name = self._prefix + name
        if name not in self._params:
            self._params[name] = sym.Variable(name, **kwargs)
        return self._params[name]


class BaseRNNCell:
    """The base of cells.

    Parameters
    ----------
    prefix : str, default ''
        The prefix of the names of weights and outputs.
    params : RNNParams, optional
        Weights to share.
    """

    _cells = ()  # the cells that it contains

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._own_params = params is None
        self._prefix = prefix
        self._params = RNNParams(prefix) if params is None else params
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Resets the step counters; call it before a cell is used in another graph."""
        self._init_counter = -1
        self._counter = -1
        for cell in self._cells:
            cell.reset()

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        """Runs one step; returns (output, new states)."""
        raise NotImplementedError(f"{type(self).__name__} does not define a step")

    @property
    def params(self) -> RNNParams:
        """The cell's weights."""
        self._own_params = False
        return self._params

    @property
    def state_info(self) -> Sequence[dict[str, Any]]:
        """The descriptions of the states: dicts with shape (the batch size is 0) and layout."""
        raise NotImplementedError(f"{type(self).__name__} does not define state_info")

    @property
    def state_shape(self) -> list[Shape]:
        """The states' shapes."""
        return [info["shape"] for info in self.state_info]

    @property
    def _gate_names(self):
        return ()

    def _check_unmodified(self):
        if self._modified:
            raise AssertionError(
                f"{type(self).__name__} is wrapped by a modifier such as ZoneoutCell or "
                "ResidualCell; call the modifier instead"
            )

    def _step_name(self):
        self._counter += 1
        return f"{self._prefix}t{self._counter}_"

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: Any) -> list[Symbol]:
        """Creates the symbols of the initial states.

        Parameters
        ----------
        func : function, default `mx.sym.zeros`
            Creates a state from a name and its `state_info`; `mx.sym.Variable` makes the states
            inputs.
        **kwargs
            Passed to `func`.
        """
        self._check_unmodified()
        states = []
        for info in self.state_info:
            self._init_counter += 1
            states.append(
                func(
                    name=f"{self._prefix}begin_state_{self._init_counter}",
                    **{**kwargs, **(info or {})},
                )
            )
        return states

    def unpack_weights(self, args: dict[str, NDArray]) -> dict[str, NDArray]:
        """Splits stacked weights by gate in a dict of arrays (``lstm_i2h_i_weight``)."""
        args = dict(args)
        gates = self._gate_names
        for group in ("i2h", "h2h") if gates else ():
            for kind in ("weight", "bias"):
                stacked = args.pop(f"{self._prefix}{group}_{kind}")
                rows = stacked.shape[0] // len(gates)
                for i, gate in enumerate(gates):
                    args[f"{self._prefix}{group}{gate}_{kind}"] = stacked[
                        i * rows : (i + 1) * rows
                    ].copy()
        return args

    def pack_weights(self, args: dict[str, NDArray]) -> dict[str, NDArray]:
        """Stacks the weights of gates; the inverse of `unpack_weights`."""
        args = dict(args)
        for group in ("i2h", "h2h") if self._gate_names else ():
            for kind in ("weight", "bias"):
                parts = [
                    args.pop(f"{self._prefix}{group}{gate}_{kind}") for gate in self._gate_names
                ]
                args[f"{self._prefix}{group}_{kind}"] = (
                    parts[0].copy() if len(parts) == 1 else nd.concat(*parts, dim=0)
                )
        return args

    def unroll(
        self,
        length: int,
        inputs: Symbol | Sequence[Symbol] | None,
        begin_state: Sequence[Symbol] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Symbol | Any, list[Symbol]]:
        """Creates the symbols of a whole sequence.

        Parameters
        ----------
        length : int
            Number of steps.
        inputs : Symbol or list of Symbol
            One symbol in the given layout, or a symbol of shape (batch, features) for each step.
        begin_state : list of Symbol, optional
            Zeros by default.
        layout : {'NTC', 'TNC'}
            The layout of inputs and outputs: N batch, T time, C features.
        merge_outputs : bool, optional
            True for one output symbol, False for a list, None for the form that needs no
            conversion.

        Returns
        -------
        (Symbol or list of Symbol, list of Symbol)
            Outputs, and the last states.
        """
        self.reset()
        axis = layout.find("T")
        states = self.begin_state() if begin_state is None else begin_state
        outputs = []
        for step in as_steps(inputs, length, axis):
            output, states = self(step, states)
            outputs.append(output)
        return arranged(outputs, length, axis, merge_outputs), states

    def _activate(self, x, activation, **kwargs):
        return (
            sym.Activation(x, act_type=activation, **kwargs)
            if isinstance(activation, str)
            else activation(x, **kwargs)
        )

    # MXNet's name, which cells written for MXNet call.
    _get_activation = _activate


class _GatedCell(BaseRNNCell):
    """A cell with stacked weights for the input (i2h) and the state (h2h)."""

    def __init__(self, num_hidden: int, prefix: str, params: RNNParams | None, **bias: Any) -> None:
        super().__init__(prefix, params)
        self._num_hidden = num_hidden
        self._iW = self.params.get("i2h_weight")
        self._iB = self.params.get("i2h_bias", **bias)
        self._hW = self.params.get("h2h_weight")
        self._hB = self.params.get("h2h_bias")

    @property
    def state_info(self) -> Sequence[dict[str, Any]]:
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"}]

    def _products(self, inputs, states, name):
        rows = self._num_hidden * len(self._gate_names)
        return (
            sym.FullyConnected(
                data=inputs, weight=self._iW, bias=self._iB, num_hidden=rows, name=f"{name}i2h"
            ),
            sym.FullyConnected(
                data=states[0], weight=self._hW, bias=self._hB, num_hidden=rows, name=f"{name}h2h"
            ),
        )


class RNNCell(_GatedCell):
    """``h' = act(W_i x + b_i + W_h h + b_h)``.

    Parameters
    ----------
    num_hidden : int
        Features of the state and the output.
    activation : str or function, default 'tanh'
        The activation of the new state.
    prefix : str, default 'rnn_'
        The prefix of the names of the weights.
    params : RNNParams, optional
        The variables that hold the weights; new ones by default.

    Examples
    --------
    >>> cell = mx.rnn.RNNCell(4)
    >>> outputs, states = cell.unroll(3, mx.sym.var("data"), merge_outputs=True)
    >>> outputs.infer_shape(data=(2, 3, 5))[1]
    [(2, 3, 4)]
    """

    _gate_names = ("",)

    def __init__(
        self,
        num_hidden: int,
        activation: str = "tanh",
        prefix: str = "rnn_",
        params: RNNParams | None = None,
    ) -> None:
        super().__init__(num_hidden, prefix, params)
        self._activation = activation

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        name = self._step_name()
        i2h, h2h = self._products(inputs, states, name)
        output = self._activate(i2h + h2h, self._activation, name=f"{name}out")
        return output, [output]


def lstm_step(
    products: Sequence[Symbol],
    states: Sequence[Symbol],
    name: str,
    activate: Callable[..., Symbol],
    axis: int = 1,
) -> Any:
    """Returns the output and new states of an LSTM from the products of its gates.

    The order of the gates is input, forget, cell, output.
    """
    gates = sym.SliceChannel(
        products[0] + products[1], num_outputs=4, axis=axis, name=f"{name}slice"
    )
    take, keep, show = [
        sym.Activation(gates[i], act_type="sigmoid", name=name + gate)
        for i, gate in ((0, "i"), (1, "f"), (3, "o"))
    ]
    new = activate(gates[2], name=f"{name}c")
    cell = sym._internal._plus(keep * states[1], take * new, name=f"{name}state")
    hidden = sym._internal._mul(show, activate(cell), name=f"{name}out")
    return hidden, [hidden, cell]


def gru_step(
    products: Sequence[Symbol],
    states: Sequence[Symbol],
    name: str,
    activate: Callable[..., Symbol],
    axis: int = 1,
) -> Any:
    """Returns the output and new state of a GRU from the products of its gates.

    The order of the gates is reset, update, new.
    """
    parts = [
        sym.SliceChannel(part, num_outputs=3, axis=axis, name=f"{name}_{kind}_slice")
        for part, kind in zip(products, ("i2h", "h2h"))
    ]
    reset, update = [
        sym.Activation(parts[0][i] + parts[1][i], act_type="sigmoid", name=f"{name}_{gate}_act")
        for i, gate in ((0, "r"), (1, "z"))
    ]
    new = activate(parts[0][2] + reset * parts[1][2], name=f"{name}_h_act")
    hidden = sym._internal._plus((1.0 - update) * new, update * states[0], name=f"{name}out")
    return hidden, [hidden]


def _tanh(x, **kwargs):
    return sym.Activation(x, act_type="tanh", **kwargs)


class LSTMCell(_GatedCell):
    """A long short-term memory cell with the states h and c.

    Parameters
    ----------
    num_hidden : int
        Features of the state and the output.
    prefix : str, default 'lstm_'
        The prefix of the names of the weights.
    params : RNNParams, optional
        The variables that hold the weights; new ones by default.
    forget_bias : float, default 1.0
        The initial value of the forget gate's bias.

    Examples
    --------
    >>> cell = mx.rnn.LSTMCell(4)
    >>> outputs, states = cell.unroll(3, mx.sym.var("data"), merge_outputs=True)
    >>> outputs.infer_shape(data=(2, 3, 5))[1]
    [(2, 3, 4)]
    """

    _gate_names = ("_i", "_f", "_c", "_o")

    def __init__(
        self,
        num_hidden: int,
        prefix: str = "lstm_",
        params: RNNParams | None = None,
        forget_bias: float = 1.0,
    ) -> None:
        super().__init__(num_hidden, prefix, params, init=LSTMBias(forget_bias=forget_bias))

    @property
    def state_info(self) -> Sequence[dict[str, Any]]:
        return super().state_info * 2

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        name = self._step_name()
        return lstm_step(self._products(inputs, states, name), states, name, _tanh)


class GRUCell(_GatedCell):
    """A gated recurrent unit cell.

    Parameters
    ----------
    num_hidden : int
        Features of the state and the output.
    prefix : str, default 'gru_'
        The prefix of the names of the weights.
    params : RNNParams, optional
        The variables that hold the weights; new ones by default.

    Examples
    --------
    >>> cell = mx.rnn.GRUCell(4)
    >>> outputs, states = cell.unroll(3, mx.sym.var("data"), merge_outputs=True)
    >>> outputs.infer_shape(data=(2, 3, 5))[1]
    [(2, 3, 4)]
    """

    _gate_names = ("_r", "_z", "_o")

    def __init__(
        self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        name = self._step_name()
        return gru_step(self._products(inputs, states, f"{name}_"), states, name, _tanh)


class _Composite(BaseRNNCell):
    """The base of cells that contain other cells."""

    def __init__(self, params: RNNParams | None) -> None:
        self._cells: list[Any] = []
        super().__init__("", params)
        self._override_cell_params = params is not None

    def _take(self, cell):
        self._cells.append(cell)
        if self._override_cell_params:
            if not cell._own_params:
                raise AssertionError(
                    f"params must be given either to {type(self).__name__} or to the cells "
                    "inside it, not to both"
                )
            cell.params._params.update(self.params._params)
        self.params._params.update(cell.params._params)

    @property
    def state_info(self) -> Sequence[dict[str, Any]]:
        return [info for cell in self._cells for info in cell.state_info]

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: Any) -> list[Symbol]:
        self._check_unmodified()
        return [state for cell in self._cells for state in cell.begin_state(func=func, **kwargs)]

    def unpack_weights(self, args: dict[str, NDArray]) -> dict[str, NDArray]:
        for cell in self._cells:
            args = cell.unpack_weights(args)
        return args

    def pack_weights(self, args: dict[str, NDArray]) -> dict[str, NDArray]:
        for cell in self._cells:
            args = cell.pack_weights(args)
        return args


class SequentialRNNCell(_Composite):
    """Stacked cells.

    Parameters
    ----------
    params : RNNParams, optional
        Weights shared by all of them.

    Examples
    --------
    >>> cell = mx.rnn.SequentialRNNCell()
    >>> cell.add(mx.rnn.LSTMCell(4))
    >>> len(cell.state_info)
    2
    """

    def __init__(self, params: RNNParams | None = None) -> None:
        super().__init__(params)

    def add(self, cell: BaseRNNCell) -> None:
        """Appends a cell to the stack."""
        self._take(cell)

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        self._counter += 1
        states, following = list(states), []
        for cell in self._cells:
            if isinstance(cell, BidirectionalCell):
                raise AssertionError(
                    "a BidirectionalCell needs the whole sequence; call unroll instead of stepping"
                )
            count = len(cell.state_info)
            inputs, new = cell(inputs, states[:count])
            del states[:count]
            following += new
        return inputs, following

    def unroll(
        self,
        length: int,
        inputs: Symbol | Sequence[Symbol] | None,
        begin_state: Sequence[Symbol] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Symbol | Any, list[Symbol]]:
        self.reset()
        states = list(self.begin_state() if begin_state is None else begin_state)
        following = []
        for i, cell in enumerate(self._cells):
            count = len(cell.state_info)
            merge = merge_outputs if i == len(self._cells) - 1 else None
            inputs, new = cell.unroll(
                length,
                inputs=inputs,
                begin_state=states[:count],
                layout=layout,
                merge_outputs=merge,
            )
            del states[:count]
            following += new
        return inputs, following


class DropoutCell(BaseRNNCell):
    """Applies dropout to the input; it has no states.

    Parameters
    ----------
    dropout : float
        The dropout probability.

    Examples
    --------
    >>> cells = mx.rnn.SequentialRNNCell()
    >>> cells.add(mx.rnn.LSTMCell(4))
    >>> cells.add(mx.rnn.DropoutCell(0.5))
    """

    state_info: Sequence[dict[str, Any]] = ()

    def __init__(
        self, dropout: float, prefix: str = "dropout_", params: RNNParams | None = None
    ) -> None:
        super().__init__(prefix, params)
        if not isinstance(dropout, (int, float)):
            raise AssertionError(f"dropout must be a number, not {type(dropout).__name__}")
        self.dropout = dropout

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        return (sym.Dropout(data=inputs, p=self.dropout) if self.dropout > 0 else inputs), states

    def unroll(
        self,
        length: int,
        inputs: Symbol | Sequence[Symbol] | None,
        begin_state: Sequence[Symbol] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Symbol | Any, list[Symbol]]:
        self.reset()
        inputs = arranged(inputs, length, layout.find("T"), merge_outputs)
        if isinstance(inputs, sym.Symbol):
            return self(inputs, [])
        return super().unroll(length, inputs, begin_state, layout, merge_outputs)


class ModifierCell(BaseRNNCell):
    """The base of cells that modify another cell, which can then only be called through the
    modifier."""

    def __init__(self, base_cell: BaseRNNCell) -> None:
        self._cells = [base_cell]
        super().__init__()
        base_cell._modified = True
        self.base_cell = base_cell

    @property
    def params(self) -> RNNParams:
        self._own_params = False
        return self.base_cell.params

    @property
    def state_info(self) -> Sequence[dict[str, Any]]:
        return self.base_cell.state_info

    def _base(self):
        """Returns a scope in which the modified cell can be called directly."""
        return _core.Scope((vars(self.base_cell), "_modified", False))

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: Any) -> list[Symbol]:
        self._check_unmodified()
        with self._base():
            return self.base_cell.begin_state(func=func, **kwargs)

    def unpack_weights(self, args: dict[str, NDArray]) -> dict[str, NDArray]:
        return self.base_cell.unpack_weights(args)

    def pack_weights(self, args: dict[str, NDArray]) -> dict[str, NDArray]:
        return self.base_cell.pack_weights(args)


def _whole_sequence(cell):
    """True if the cell, or a cell inside it, can only run on whole sequences."""
    from .fused_cell import FusedRNNCell

    return isinstance(cell, (BidirectionalCell, FusedRNNCell)) or any(
        map(_whole_sequence, cell._cells)
    )


class ZoneoutCell(ModifierCell):
    """Randomly keeps elements of the former output and states in training (zoneout).

    Parameters
    ----------
    base_cell : BaseRNNCell
        The cell whose outputs and states are kept.
    zoneout_outputs, zoneout_states : float, default 0
        The probabilities of keeping an element.

    Examples
    --------
    >>> cell = mx.rnn.ZoneoutCell(mx.rnn.LSTMCell(4, prefix="lstm_"), zoneout_outputs=0.5)
    >>> outputs, states = cell.unroll(2, mx.sym.var("x"), merge_outputs=True)
    >>> outputs.infer_shape(x=(1, 2, 3))[1]
    [(1, 2, 4)]
    """

    def __init__(
        self, base_cell: BaseRNNCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0
    ) -> None:
        if _whole_sequence(base_cell):
            raise AssertionError(
                "zoneout works step by step; unfuse a FusedRNNCell first, and wrap the cells "
                "inside a BidirectionalCell in ZoneoutCell"
            )
        super().__init__(base_cell)
        self.zoneout_outputs = zoneout_outputs
        self.zoneout_states = zoneout_states

    def reset(self) -> None:
        super().reset()
        self.prev_output = None

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        output, following = self.base_cell(inputs, states)

        def mix(probability, new, old):
            return sym.where(sym.Dropout(sym.ones_like(new), p=probability), new, old)

        if self.zoneout_outputs:
            former = sym.zeros_like(output) if self.prev_output is None else self.prev_output
            output = mix(self.zoneout_outputs, output, former)
        if self.zoneout_states:
            following = [mix(self.zoneout_states, new, old) for new, old in zip(following, states)]
        self.prev_output: Symbol | None = output
        return output, following


def _plus_residual(output, inputs):
    return sym.elemwise_add(output, inputs, name=f"{output.name}_plus_residual")


class ResidualCell(ModifierCell):
    """Adds the input to the output.

    Examples
    --------
    >>> cell = mx.rnn.ResidualCell(mx.rnn.GRUCell(3, prefix="gru_"))
    >>> outputs, states = cell.unroll(2, mx.sym.var("x"), merge_outputs=True)
    >>> outputs.infer_shape(x=(1, 2, 3))[1]
    [(1, 2, 3)]
    """

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        output, states = self.base_cell(inputs, states)
        return _plus_residual(output, inputs), states

    def unroll(
        self,
        length: int,
        inputs: Symbol | Sequence[Symbol] | None,
        begin_state: Sequence[Symbol] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Symbol | Any, list[Symbol]]:
        self.reset()
        with self._base():
            outputs, states = self.base_cell.unroll(
                length,
                inputs=inputs,
                begin_state=begin_state,
                layout=layout,
                merge_outputs=merge_outputs,
            )
        merge = isinstance(outputs, sym.Symbol) if merge_outputs is None else merge_outputs
        inputs = arranged(inputs, length, layout.find("T"), bool(merge))
        if merge:
            return _plus_residual(outputs, inputs), states
        return [_plus_residual(output, step) for output, step in zip(outputs, inputs)], states


class BidirectionalCell(_Composite):
    """Runs one cell forward and another backward in time, and concatenates their outputs.

    It can only be unrolled.

    Parameters
    ----------
    l_cell, r_cell : BaseRNNCell
        The cells that run forward and backward.
    params : RNNParams, optional
        The variables that hold the weights; new ones by default.
    output_prefix : str, default 'bi_'
        The prefix of the names of the output's nodes.

    Examples
    --------
    >>> cell = mx.rnn.BidirectionalCell(mx.rnn.GRUCell(4, "l_"), mx.rnn.GRUCell(4, "r_"))
    >>> len(cell.state_info)
    2
    """

    def __init__(
        self,
        l_cell: BaseRNNCell,
        r_cell: BaseRNNCell,
        params: RNNParams | None = None,
        output_prefix: str = "bi_",
    ) -> None:
        super().__init__(params)
        self._output_prefix = output_prefix
        self._take(l_cell)
        self._take(r_cell)

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> NoReturn:
        raise NotImplementedError(
            "a BidirectionalCell needs the whole sequence; call unroll instead of stepping"
        )

    def unroll(
        self,
        length: int,
        inputs: Symbol | Sequence[Symbol] | None,
        begin_state: Sequence[Symbol] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Symbol | Any, list[Symbol]]:
        self.reset()
        axis = layout.find("T")
        steps = as_steps(inputs, length, axis)
        states = list(self.begin_state() if begin_state is None else begin_state)
        left, right = self._cells
        count = len(left.state_info)
        l_outputs, l_states = left.unroll(
            length,
            inputs=steps,
            begin_state=states[:count],
            layout=layout,
            merge_outputs=merge_outputs,
        )
        r_outputs, r_states = right.unroll(
            length,
            inputs=steps[::-1],
            begin_state=states[count:],
            layout=layout,
            merge_outputs=merge_outputs,
        )
        if merge_outputs is None:
            merge_outputs = isinstance(l_outputs, sym.Symbol) and isinstance(r_outputs, sym.Symbol)
        l_outputs, r_outputs = [
            arranged(outputs, length, axis, bool(merge_outputs))
            for outputs in (l_outputs, r_outputs)
        ]
        if merge_outputs:
            outputs = sym.concat(
                l_outputs,
                sym.reverse(r_outputs, axis=axis),
                dim=2,
                name=f"{self._output_prefix}out",
            )
        else:
            pairs = zip(l_outputs, r_outputs[::-1])
            outputs = [
                sym.concat(forward, backward, dim=1, name=f"{self._output_prefix}t{i}")
                for i, (forward, backward) in enumerate(pairs)
            ]
        return outputs, [l_states, r_states]
