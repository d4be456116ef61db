"""`FusedRNNCell`: stacked recurrent layers as one `RNN` node, with one flat weight vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpgluon import ndarray as nd, symbol as sym
from mpgluon.initializer import FusedRNN

from ._sequences import arranged, as_one
from .rnn_cell import (
    BaseRNNCell,
    BidirectionalCell,
    DropoutCell,
    GRUCell,
    LSTMCell,
    RNNCell,
    SequentialRNNCell,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from mpgluon._core import NDArray
    from mpgluon.symbol import Symbol

    from .rnn_cell import RNNParams


__all__ = ["FusedRNNCell"]

_GATES = {
    "rnn_relu": ("",),
    "rnn_tanh": ("",),
    "lstm": ("_i", "_f", "_c", "_o"),
    "gru": ("_r", "_z", "_o"),
}


class FusedRNNCell(BaseRNNCell):
    """Stacked recurrent layers that run as one op; they can only be unrolled.

    Parameters
    ----------
    num_hidden : int
        Features of the state and the output.
    num_layers : int, default 1
        The number of stacked layers.
    mode : {'rnn_relu', 'rnn_tanh', 'lstm', 'gru'}, default 'lstm'
        The kind of the layers.
    bidirectional : bool, default False
        True if each layer also runs backward in time.
    dropout : float, default 0
        The dropout probability between layers.
    get_next_state : bool, default False
        True if `unroll` returns the last states; otherwise their list is empty.
    forget_bias : float, default 1.0
        Initial value of the bias of an LSTM's forget gate.
    prefix : str, default the mode and an underscore
        The prefix of the names of the weights.
    params : RNNParams, optional
        The variables that hold the weights; new ones by default.

    Examples
    --------
    >>> cell = mx.rnn.FusedRNNCell(4, num_layers=2, mode="gru")
    >>> len(cell.unfuse().state_info)
    2
    """

    def __init__(
        self,
        num_hidden: int,
        num_layers: int = 1,
        mode: str = "lstm",
        bidirectional: bool = False,
        dropout: float = 0.0,
        get_next_state: bool = False,
        forget_bias: float = 1.0,
        prefix: str | None = None,
        params: RNNParams | None = None,
    ) -> None:
        if mode not in _GATES:
            raise ValueError(f"FusedRNNCell: mode must be one of {', '.join(_GATES)}, not {mode!r}")
        super().__init__(f"{mode}_" if prefix is None else prefix, params)
        self._num_hidden = num_hidden
        self._num_layers = num_layers
        self._mode = mode
        self._bidirectional = bidirectional
        self._dropout = dropout
        self._get_next_state = get_next_state
        self._directions = ("l", "r") if bidirectional else ("l",)
        self._parameter = self.params.get(
            "parameters",
            init=FusedRNN(None, num_hidden, num_layers, mode, bidirectional, forget_bias),
        )

    @property
    def state_info(self) -> list[dict[str, Any]]:
        info = {
            "shape": (len(self._directions) * self._num_layers, 0, self._num_hidden),
            "__layout__": "LNC",
        }
        return [info] * (2 if self._mode == "lstm" else 1)

    @property
    def _gate_names(self):
        return _GATES[self._mode]

    @property
    def _num_gates(self):
        return len(self._gate_names)

    def _slice_weights(self, arr, num_input, num_hidden):
        """Returns views of the flat vector, by the names of the single cells' weights.

        All weights come before all biases.
        """
        pieces, begin = {}, 0
        for kind in ("weight", "bias"):
            for layer in range(self._num_layers):
                inputs = num_input if layer == 0 else num_hidden * len(self._directions)
                for direction in self._directions:
                    for group, width in (("i2h", inputs), ("h2h", num_hidden)):
                        for gate in self._gate_names:
                            shape = (num_hidden, width) if kind == "weight" else (num_hidden,)
                            end = begin + num_hidden * (width if kind == "weight" else 1)
                            pieces[f"{self._prefix}{direction}{layer}_{group}{gate}_{kind}"] = arr[
                                begin:end
                            ].reshape(shape)
                            begin = end
        if begin != arr.size:
            raise AssertionError(
                f"FusedRNNCell: {arr.size} parameters do not fit {self._num_layers} layers of "
                f"{num_hidden} units, of mode {self._mode}"
            )
        return pieces

    def _size(self, num_input):
        """Returns the number of parameters."""
        hidden, directions = self._num_hidden, len(self._directions)
        widths = (
            num_input
            + (self._num_layers - 1) * hidden * directions
            + self._num_layers * (hidden + 2)
        )
        return directions * self._num_gates * hidden * widths

    def unpack_weights(self, args: dict[str, NDArray]) -> dict[str, NDArray]:
        args = dict(args)
        arr = args.pop(self._parameter.name)
        num_input = (arr.size - self._size(0)) // (
            len(self._directions) * self._num_gates * self._num_hidden
        )
        args.update(
            {
                name: piece.copy()
                for name, piece in self._slice_weights(arr, num_input, self._num_hidden).items()
            }
        )
        return args

    def pack_weights(self, args: dict[str, NDArray]) -> dict[str, NDArray]:
        args = dict(args)
        first = args[f"{self._prefix}l0_i2h{self._gate_names[0]}_weight"]
        arr = nd.zeros((self._size(first.shape[1]),), ctx=first.context, dtype=first.dtype)
        for name, piece in self._slice_weights(arr, first.shape[1], self._num_hidden).items():
            piece[:] = args.pop(name)
        args[self._parameter.name] = arr
        return args

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> NoReturn:
        raise NotImplementedError(
            "a FusedRNNCell runs whole sequences; call unroll, or unfuse() it to step"
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
        if axis not in (0, 1):
            raise AssertionError(f"unroll: the layout must be NTC or TNC, not {layout!r}")
        inputs = as_one(inputs, axis)
        if axis == 1:
            inputs = sym.swapaxes(inputs, dim1=0, dim2=1)
        states = dict(
            zip(("state", "state_cell"), self.begin_state() if begin_state is None else begin_state)
        )
        rnn = sym.RNN(
            data=inputs,
            parameters=self._parameter,
            state_size=self._num_hidden,
            num_layers=self._num_layers,
            bidirectional=self._bidirectional,
            p=self._dropout,
            state_outputs=self._get_next_state,
            mode=self._mode,
            name=f"{self._prefix}rnn",
            attr={"__layout__": "LNC"} if self._get_next_state else None,
            **states,
        )
        outputs = rnn[0]
        if axis == 1:
            outputs = sym.swapaxes(outputs, dim1=0, dim2=1)
        last = [rnn[1 + i] for i in range(len(states))] if self._get_next_state else []
        return arranged(outputs, length, axis, merge_outputs), last

    def unfuse(self) -> SequentialRNNCell:
        """Returns the same layers as a `SequentialRNNCell` of single cells.

        To convert the weights, use `unpack_weights` of this cell and `pack_weights` of that one.
        """

        def cell(prefix):
            if self._mode.startswith("rnn"):
                return RNNCell(self._num_hidden, activation=self._mode[4:], prefix=prefix)
            return (LSTMCell if self._mode == "lstm" else GRUCell)(self._num_hidden, prefix=prefix)

        stack = SequentialRNNCell()
        for i in range(self._num_layers):
            layer = cell(f"{self._prefix}l{i}_")
            if self._bidirectional:
                layer = BidirectionalCell(
                    layer, cell(f"{self._prefix}r{i}_"), output_prefix=f"{self._prefix}bi_l{i}_"
                )
            stack.add(layer)
            if self._dropout > 0 and i != self._num_layers - 1:
                stack.add(DropoutCell(self._dropout, prefix=f"{self._prefix}_dropout{i}_"))
        return stack
