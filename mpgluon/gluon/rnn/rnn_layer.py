"""Recurrent layers: one operator runs whole sequences through all layers and both directions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ..._internal import domain, kinds
from ..block import HybridBlock
from ..nn.activations import check_activation
from ..utils import shape_is_known
from . import _projected, rnn_cell
from ._base_cell import state_options, symbol_of_zeros

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._internal.types import DType, Init

__all__ = ["RNN", "LSTM", "GRU"]

_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


class _RNNLayer(HybridBlock):
    """Base class with the parameters ``{l,r}{layer}_{i2h,h2h}_{weight,bias}`` (l: forward in time,
    r: backward)."""

    def __init__(
        self,
        mode: str,
        hidden_size: int,
        num_layers: int,
        layout: str,
        dropout: float,
        bidirectional: bool,
        input_size: int,
        i2h_weight_initializer: Init | None,
        h2h_weight_initializer: Init | None,
        i2h_bias_initializer: Init,
        h2h_bias_initializer: Init,
        projection_size: int | None = None,
        h2r_weight_initializer: Init | None = None,
        state_clip_min: float | None = None,
        state_clip_max: float | None = None,
        state_clip_nan: bool = False,
        dtype: DType = "float32",
        use_sequence_length: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if layout not in ("TNC", "NTC"):
            raise AssertionError(f"Invalid layout {layout}; must be one of ['TNC' or 'NTC']")
        domain.size(1, hidden_size=hidden_size, num_layers=num_layers)
        domain.size(0, input_size=input_size, projection_size=projection_size or 0)
        domain.fraction(dropout=dropout)
        self._mode = mode
        self._hidden_size = hidden_size
        self._projection_size = projection_size or None
        self._num_layers = num_layers
        self._layout = layout
        self._dropout = dropout
        self._dir = 2 if bidirectional else 1
        self._input_size = input_size
        self._dtype = dtype
        self._use_sequence_length = use_sequence_length
        self._gates = _GATES[mode]
        self._initializers = {
            "i2h_weight_initializer": i2h_weight_initializer,
            "h2h_weight_initializer": h2h_weight_initializer,
            "i2h_bias_initializer": i2h_bias_initializer,
            "h2h_bias_initializer": h2h_bias_initializer,
        }
        self._options = {
            "state_size": hidden_size,
            "num_layers": num_layers,
            "bidirectional": bool(bidirectional),
            "mode": mode,
            "p": dropout,
            "state_outputs": True,
        }
        if projection_size:
            self._options["projection_size"] = projection_size
        if state_clip_min is not None:
            domain.number(state_clip_min=state_clip_min)
            self._options["lstm_state_clip_min"] = state_clip_min
        if state_clip_max is not None:
            domain.number(state_clip_max=state_clip_max)
            self._options["lstm_state_clip_max"] = state_clip_max
        if state_clip_nan:
            self._options["lstm_state_clip_nan"] = True
        if use_sequence_length:
            self._options["use_sequence_length"] = True

        # The operator's inputs are all weights, followed by all biases.
        self._weight_names = []
        self._bias_names = []
        rows = self._gates * hidden_size
        out_size = projection_size or hidden_size
        size = input_size
        for layer in range(num_layers):
            for direction in "lr"[: self._dir]:
                cell = f"{direction}{layer}_"
                self._add(cell + "i2h_weight", (rows, size), i2h_weight_initializer)
                self._add(cell + "h2h_weight", (rows, out_size), h2h_weight_initializer)
                self._add(cell + "i2h_bias", (rows,), i2h_bias_initializer)
                self._add(cell + "h2h_bias", (rows,), h2h_bias_initializer)
                if projection_size:
                    self._add(
                        cell + "h2r_weight", (projection_size, hidden_size), h2r_weight_initializer
                    )
            size = out_size * self._dir

    def _add(self, name, shape, init):
        (self._bias_names if name.endswith("bias") else self._weight_names).append(name)
        setattr(
            self,
            name,
            self.params.get(
                name, shape=shape, init=init, allow_deferred_init=True, dtype=self._dtype
            ),
        )

    def __repr__(self) -> str:
        rows, size = self.l0_i2h_weight.shape
        text = f"{type(self).__name__}({size or None} -> {rows // self._gates}, {self._layout}"
        if self._num_layers != 1:
            text += f", num_layers={self._num_layers}"
        if self._dropout != 0:
            text += f", dropout={self._dropout}"
        if self._dir == 2:
            text += ", bidirectional"
        return text + ")"

    def _collect_params_with_prefix(self, prefix=""):
        # As in MXNet, files use the parameter names of the equivalent stack of cells.
        if prefix:
            prefix += "."
        found = {}
        for name, param in self._reg_params.items():
            match = re.fullmatch(r"(shard\d+_)?([lr])(\d+)_(.+)", name)  # see Mesh.partition
            part, direction, layer, rest = match.groups("")
            cell = f"{direction}_cell." if self._dir == 2 else ""
            found[f"{prefix}_unfused.{layer}.{cell}{part}{rest}"] = param
        return found

    def cast(self, dtype: DType) -> None:
        super().cast(dtype)
        self._dtype = dtype

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """Returns the shapes of the states, as dicts."""
        layers = self._num_layers * self._dir
        shapes = [(layers, batch_size, self._projection_size or self._hidden_size)]
        if self._mode == "lstm":
            shapes.append((layers, batch_size, self._hidden_size))
        return [{"shape": shape, "__layout__": "LNC", "dtype": self._dtype} for shape in shapes]

    def begin_state(
        self, batch_size: int = 0, func: Callable[..., Any] = nd.zeros, **kwargs: Any
    ) -> list[Any]:
        """Returns initial states.

        Parameters
        ----------
        batch_size : int
            Number of samples.
        func : callable, default `mx.nd.zeros`
            Creates an array from a ``shape``.
        **kwargs
            Arguments for `func`. ``ctx`` defaults to the device of the layer's parameters,
            ``dtype`` to their data type.

        Returns
        -------
        list of NDArray
            States of shape (layers * directions, batch_size, hidden_size).
        """
        kwargs = state_options(self, {"dtype": self._dtype, **kwargs})
        return kinds.nested_of_mode(
            [func(shape=info["shape"], **kwargs) for info in self.state_info(batch_size)]
        )

    def __call__(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        if self._use_sequence_length:
            return super().__call__(inputs, states, sequence_length)
        return super().__call__(inputs, states)

    def _export_as(self, structure):
        if structure[2] is not None:
            return structure, False
        # If the layer creates its initial states, they are inputs of the exported layer, as in
        # MXNet.
        states = (list, *[structure[1]] * len(self.state_info()))
        return (*structure[:2], states, *structure[3:]), True

    def forward(self, inputs: Any, *args: Any) -> Any:
        if isinstance(inputs, nd.NDArray) and len(inputs.shape) != 3:
            raise ValueError(
                f"{type(self).__name__}: the input must have 3 dimensions "
                f"({', '.join(self._layout)}), but its shape is {inputs.shape}"
            )
        if isinstance(inputs, nd.NDArray) and not shape_is_known(self.l0_i2h_weight.shape):
            shape = (self._gates * self._hidden_size, inputs.shape[2])
            for direction in "lr"[: self._dir]:
                getattr(self, f"{direction}0_i2h_weight").shape = shape
        return super().forward(inputs, *args)

    def hybrid_forward(
        self, F: Any, inputs: Any, states: Any, sequence_length: Any = None, **params: Any
    ) -> Any:
        if not isinstance(inputs, nd.NDArray):
            return self._symbol(F, inputs, states, sequence_length, params)
        batch_size = inputs.shape[self._layout.find("N")]
        begins = states is None
        if begins:
            states = self.begin_state(batch_size, ctx=inputs.context, dtype=inputs.dtype)
            states = [kinds.like(state, inputs) for state in states]
        elif isinstance(states, nd.NDArray):
            states = [states]
        infos = self.state_info(batch_size)
        if len(states) != len(infos):
            raise ValueError(f"{type(self).__name__} has {len(infos)} states, got {len(states)}")
        for state, info in zip(states, infos):
            if state.shape != info["shape"]:
                raise ValueError(
                    f"Invalid recurrent state shape. Expecting {info['shape']}, got {state.shape}."
                )
        if self._layout == "NTC":
            inputs = F.swapaxes(inputs, dim1=0, dim2=1)
        weights = [params[name] for name in self._weight_names + self._bias_names]
        lengths = self._lengths(sequence_length, batch_size)
        if self._projection_size:
            output, *states = self._run_projected(F, inputs, states, params)
        else:
            output, *states = F._internal._rnn(inputs, *states, *weights, *lengths, **self._options)
        if self._layout == "NTC":
            output = F.swapaxes(output, dim1=0, dim2=1)
        return output if begins else (output, states)

    def _lengths(self, lengths, batch_size):
        """Returns the sequence lengths, if any, as the last inputs of the op."""
        if not self._use_sequence_length:
            return []
        if getattr(lengths, "shape", None) != (batch_size,):
            given = getattr(lengths, "shape", type(lengths).__name__)
            raise ValueError(
                f"{type(self).__name__}(use_sequence_length=True): sequence_length must be an "
                f"array of {batch_size} lengths, one for each sequence, not {given}"
            )
        return [lengths]

    def _run_projected(self, F, inputs, states, params):
        if self._use_sequence_length or "lstm_state_clip_nan" in self._options:
            raise NotImplementedError(
                "LSTM: use_sequence_length and state_clip_nan are not supported with a projection"
            )
        low, high = [self._options.get(f"lstm_state_clip_{what}") for what in ("min", "max")]
        clip = (
            None
            if low is None and high is None
            else (-float("inf") if low is None else low, float("inf") if high is None else high)
        )
        return _projected.run(
            F, inputs, states, params, self._num_layers, self._dir, self._dropout, clip
        )

    def _symbol(self, F, inputs, states, sequence_length, params):
        """Returns the layer in MXNet's form: one op with all weights in one array. If a state's
        batch size is unknown, it is inferred from the input."""
        begins = states is None
        if begins:
            infos = self.state_info(0)
            states = [symbol_of_zeros(self, F, info["shape"], inputs) for info in infos]
        elif not isinstance(states, (list, tuple)):
            states = [states]
        if self._layout == "NTC":
            inputs = F.swapaxes(inputs, dim1=0, dim2=1)
        weights = [params[name].reshape((-1,)) for name in self._weight_names + self._bias_names]
        lengths = [sequence_length] if self._use_sequence_length else []
        flat = F._internal._rnn_param_concat(*weights, dim=0)
        output, *states = F.RNN(inputs, flat, *states, *lengths, **self._options)
        if self._layout == "NTC":
            output = F.swapaxes(output, dim1=0, dim2=1)
        return output if begins else (output, states)

    def _unfuse(self):
        """Returns the equivalent stack of cells, with the same parameters."""
        if (
            self._projection_size
            or "lstm_state_clip_min" in self._options
            or "lstm_state_clip_max" in self._options
            or self._use_sequence_length
        ):
            raise NotImplementedError(
                "layers with a projection, clipped states or sequence lengths cannot be "
                "converted to cells"
            )
        cells = {"lstm": rnn_cell.LSTMCell, "gru": rnn_cell.GRUCell}

        def make(prefix, size):
            options = {"prefix": prefix, "input_size": size, **self._initializers}
            if self._mode.startswith("rnn_"):
                return rnn_cell.RNNCell(self._hidden_size, activation=self._mode[4:], **options)
            return cells[self._mode](self._hidden_size, **options)

        stack = rnn_cell.HybridSequentialRNNCell(prefix=self.prefix, params=self.params)
        with stack.name_scope():
            size = self._input_size
            for layer in range(self._num_layers):
                cell = make(f"l{layer}_", size)
                if self._dir == 2:
                    cell = rnn_cell.BidirectionalCell(cell, make(f"r{layer}_", size))
                stack.add(cell)
                if self._dropout > 0 and layer != self._num_layers - 1:
                    stack.add(rnn_cell.DropoutCell(self._dropout))
                size = self._hidden_size * self._dir
        return stack


_SHARED_DOC = """
    num_layers : int, default 1
        Number of stacked layers.
    layout : {'TNC', 'NTC'}
        Axes of input and output: T is time, N the batch, C the features.
    dropout : float, default 0
        Dropout rate of the outputs of every layer except the last.
    bidirectional : bool, default False
        True if each layer also runs backward in time; the outputs of both directions are
        concatenated.
    i2h_weight_initializer, h2h_weight_initializer : Initializer or str, optional
        Initializers of the weights of inputs and of states.
    i2h_bias_initializer, h2h_bias_initializer : Initializer or str, default 'zeros'
        Initializers of the biases of inputs and of states.
    input_size : int, default 0
        Features of the input; 0 to infer it in the first forward pass.
    dtype : str or numpy.dtype, default 'float32'
        Data type of parameters and states.

    Called with inputs only, it begins with zero states and returns the output, of shape
    (T, N, directions * hidden_size). Called with inputs and states (an array or a list of them), it
    returns the output and the list of states afterwards, each of shape
    (layers * directions, N, hidden_size).

    Examples
    --------
    >>> layer = gluon.rnn.KIND(8, num_layers=2)
    >>> layer.initialize()
    >>> output, states = layer(nd.zeros((5, 3, 4)), layer.begin_state(3))
    >>> output.shape, states[0].shape
    ((5, 3, 8), (2, 3, 8))
    """


class RNN(_RNNLayer):
    __doc__ = """Elman layers: ``h' = act(W_i x + b_i + W_h h + b_h)``.

    Parameters
    ----------
    hidden_size : int
        Features of the state.
    activation : {'relu', 'tanh'}
        Activation function of the new state; follows `num_layers`.""" + _SHARED_DOC.replace(
        "KIND", "RNN"
    )

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        activation: str = "relu",
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        i2h_weight_initializer: Init | None = None,
        h2h_weight_initializer: Init | None = None,
        i2h_bias_initializer: Init = "zeros",
        h2h_bias_initializer: Init = "zeros",
        input_size: int = 0,
        dtype: DType = "float32",
        **kwargs: Any,
    ) -> None:
        check_activation(type(self).__name__, activation, ("relu", "tanh"))
        super().__init__(
            "rnn_" + activation,
            hidden_size,
            num_layers,
            layout,
            dropout,
            bidirectional,
            input_size,
            i2h_weight_initializer,
            h2h_weight_initializer,
            i2h_bias_initializer,
            h2h_bias_initializer,
            dtype=dtype,
            **kwargs,
        )


class LSTM(_RNNLayer):
    __doc__ = """Long short-term memory layers, with states h and c.

    The gates' order is input, forget, cell, output.

    Parameters
    ----------
    hidden_size : int
        Features of the state.
    projection_size : int, optional
        Size that h is projected to.
    h2r_weight_initializer : Initializer or str, optional
        Initializer of the weights of the projection.
    state_clip_min, state_clip_max : float, optional
        Bounds of c.
    state_clip_nan : bool, default False
        True if NaN values of c are clipped as well.""" + _SHARED_DOC.replace("KIND", "LSTM")

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Init | None = None,
        h2h_weight_initializer: Init | None = None,
        i2h_bias_initializer: Init = "zeros",
        h2h_bias_initializer: Init = "zeros",
        projection_size: int | None = None,
        h2r_weight_initializer: Init | None = None,
        state_clip_min: float | None = None,
        state_clip_max: float | None = None,
        state_clip_nan: bool = False,
        dtype: DType = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            "lstm",
            hidden_size,
            num_layers,
            layout,
            dropout,
            bidirectional,
            input_size,
            i2h_weight_initializer,
            h2h_weight_initializer,
            i2h_bias_initializer,
            h2h_bias_initializer,
            projection_size,
            h2r_weight_initializer,
            state_clip_min,
            state_clip_max,
            state_clip_nan,
            dtype,
            **kwargs,
        )


class GRU(_RNNLayer):
    __doc__ = """Gated recurrent unit layers; the gates' order is reset, update, new.

    Parameters
    ----------
    hidden_size : int
        Features of the state.""" + _SHARED_DOC.replace("KIND", "GRU")

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Init | None = None,
        h2h_weight_initializer: Init | None = None,
        i2h_bias_initializer: Init = "zeros",
        h2h_bias_initializer: Init = "zeros",
        dtype: DType = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            "gru",
            hidden_size,
            num_layers,
            layout,
            dropout,
            bidirectional,
            input_size,
            i2h_weight_initializer,
            h2h_weight_initializer,
            i2h_bias_initializer,
            h2h_bias_initializer,
            dtype=dtype,
            **kwargs,
        )


def lstm_arguments(layer: _RNNLayer) -> dict[str, Any] | None:
    """Returns the constructor arguments of an existing LSTM, with its inferred sizes, for
    `parallel.shard`. Returns None for other layers, and for LSTMs with a projection, clipped states
    or sequence lengths."""
    if (
        layer._mode != "lstm"
        or layer._use_sequence_length
        or layer._projection_size
        or any(name.startswith("lstm_state_clip") for name in layer._options)
    ):
        return None
    return {
        "hidden_size": layer._hidden_size,
        "num_layers": layer._num_layers,
        "layout": layer._layout,
        "input_size": layer.l0_i2h_weight.shape[1],
        "dtype": layer._dtype,
        "dropout": layer._dropout,
        "bidirectional": layer._dir == 2,
        **layer._initializers,
    }
