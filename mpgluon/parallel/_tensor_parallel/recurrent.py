"""LSTMs that are split over devices. See `layers.py`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ..._internal import kinds
from ...base import MXNetError
from .. import collectives
from .layers import SplitLayer
from .parameters import split_parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import DTypeLike

    from ...context import Context
    from ...initializer import Initializer
    from ...ndarray import NDArray

__all__ = ["ParallelLSTM"]


class ParallelLSTM(SplitLayer):
    """An `LSTM` whose cells, with all their gates, are split over devices. The devices exchange
    outputs after every time step.

    Parameters
    ----------
    hidden_size : int
        Cells of a layer on all devices together.
    ctx : list of Context
        Devices; each has ``hidden_size / len(ctx)`` of the cells.
    num_layers : int, default 1
        Number of stacked layers.
    layout : {'TNC', 'NTC'}
        Order of axes of input and output: T time, N batch, C features.
    dropout : float, default 0
        Dropout rate of the outputs of every layer except the last, with the mask of `LSTM`.
    bidirectional : bool, default False
        Whether each layer also runs backward in time, which doubles the width of outputs.
    input_size, dtype : optional
        See `LSTM`.
    i2h_weight_initializer, h2h_weight_initializer : optional
        See `LSTM`.
    i2h_bias_initializer, h2h_bias_initializer : optional
        See `LSTM`.

    Called with an array, it starts with zero states and returns the output. Called with an array
    and states, as created by `begin_state`, it returns the output and the final states, all on the
    input's device.

    Raises
    ------
    ValueError
        If the layout is unknown, or the dropout rate is not in [0, 1).

    Examples
    --------
    >>> devices = [mx.cpu(0), mx.cpu(1)]
    >>> layer = mx.parallel.ParallelLSTM(6, devices)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((4, 2, 3))).shape
    (4, 2, 6)
    >>> output, states = layer(mx.nd.ones((4, 2, 3)), layer.begin_state(2))
    >>> [state.shape for state in states]
    [(1, 2, 6), (1, 2, 6)]
    """

    def __init__(
        self,
        hidden_size: int,
        ctx: Sequence[Context],
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Initializer | str | None = None,
        h2h_weight_initializer: Initializer | str | None = None,
        i2h_bias_initializer: Initializer | str | None = "zeros",
        h2h_bias_initializer: Initializer | str | None = "zeros",
        dtype: DTypeLike = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(ctx, **kwargs)
        if layout not in ("TNC", "NTC"):
            raise ValueError(f"ParallelLSTM: the layout must be 'TNC' or 'NTC', not {layout!r}")
        if not 0 <= dropout < 1:
            raise ValueError(f"ParallelLSTM: dropout must be in [0, 1), not {dropout}")
        self._hidden, self._layers, self._layout, self._dtype, self._dropout = (
            hidden_size,
            num_layers,
            layout,
            dtype,
            dropout,
        )
        self._directions = "lr" if bidirectional else "l"
        rows, size = 4 * hidden_size, input_size
        self._inputs = []  # weights whose shape depends on the input size
        for layer in range(num_layers):
            for direction in self._directions:
                cell, split = (
                    f"{direction}{layer}_",
                    {"axis": 0, "ctx": self._ctx, "blocks": 4, "dtype": dtype},
                )
                weight = split_parameter(
                    self, cell + "i2h_weight", (rows, size), init=i2h_weight_initializer, **split
                )
                split_parameter(
                    self,
                    cell + "h2h_weight",
                    (rows, hidden_size),
                    init=h2h_weight_initializer,
                    **split,
                )
                split_parameter(
                    self, cell + "i2h_bias", (rows,), init=i2h_bias_initializer, **split
                )
                split_parameter(
                    self, cell + "h2h_bias", (rows,), init=h2h_bias_initializer, **split
                )
                if not layer:
                    self._inputs.append(weight)
            size = hidden_size * len(self._directions)

    def _alias(self):
        return "lstm"

    def _collect_params_with_prefix(self, prefix=""):
        # Parameter files use LSTM's names with the index of the part inserted.
        found = {}
        for name, param in self._reg_params.items():
            part, direction, layer, rest = re.fullmatch(
                r"(shard\d+_)([lr])(\d+)_(.+)", name
            ).groups()
            cell = f"{direction}_cell." if len(self._directions) == 2 else ""
            found[f"{prefix + '.' if prefix else ''}_unfused.{layer}.{cell}{part}{rest}"] = param
        return found

    def _describe(self):
        text = (
            f"{self._inputs[0].shape[1] or None} -> {self._hidden}, {self._layout}, "
            f"num_layers={self._layers}"
        )
        return text + (", bidirectional" if len(self._directions) == 2 else "")

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """Returns descriptions of the two states, h and c: dicts with ``shape`` (layers *
        directions, batch_size, hidden_size) and ``__layout__``."""
        count = self._layers * len(self._directions)
        return [{"shape": (count, batch_size, self._hidden), "__layout__": "LNC"}] * 2

    def begin_state(
        self, batch_size: int = 0, func: Callable[..., NDArray] = nd.zeros, **kwargs: Any
    ) -> list[NDArray]:
        """Returns initial states: two arrays of shape (layers * directions, batch_size,
        hidden_size). See `LSTM.begin_state`."""
        kwargs = {"ctx": self._ctx[0], "dtype": self._dtype, **kwargs}
        states = [func(shape=info["shape"], **kwargs) for info in self.state_info(batch_size)]
        return kinds.nested_of_mode(states)

    def __call__(self, inputs: NDArray, states: list[NDArray] | None = None) -> Any:
        return super().__call__(inputs, states)

    def _complete(self, x):
        if not isinstance(x, nd.NDArray) or x.ndim != 3:
            raise MXNetError(
                "ParallelLSTM: the input must be one array of 3 dimensions "
                f"({', '.join(self._layout)})"
            )
        for family in self._inputs:
            if not family.shape[1]:
                family.complete((4 * self._hidden, x.shape[2]))

    def hybrid_forward(
        self, F: Any, x: NDArray, states: list[NDArray] | None = None, **params: NDArray
    ) -> Any:
        home, begins = x.context, states is None
        if self._layout == "NTC":
            x = F.swapaxes(x, dim1=0, dim2=1)
        time, batch, _ = x.shape
        draw = None
        # Draw only in this case, as LSTM does, so that the random state advances by the same
        # amount.
        if self._dropout and self._layers > 1:
            draw = F._internal._dropout_draw(x, axis=0, total=time)
        if begins:
            states = self.begin_state(batch, ctx=home, dtype=x.dtype)
            states = [kinds.like(state, x) for state in states]
        for state, info in zip(states, self.state_info(batch)):
            if state.shape != info["shape"]:
                raise ValueError(
                    f"ParallelLSTM: the states must have shape {info['shape']}, got {state.shape}"
                )
        hidden, cells = [self._apart(F, state) for state in states]
        inputs = collectives.broadcast(x, self._ctx)
        last_h, last_c, out = [], [], None
        for layer in range(self._layers):
            steps = []
            for number, direction in enumerate(self._directions):
                at = layer * len(self._directions) + number
                own, c = self._layer(
                    F,
                    inputs,
                    hidden[at],
                    cells[at],
                    {name: self._shards(params, f"{direction}{layer}_{name}") for name in _NAMES},
                    number,
                )
                steps.append(own)
                last_h.append(own[0 if number else -1][0])
                last_c.append(collectives.gather(c, home, 1))
            if layer + 1 < self._layers:
                inputs = self._drop(
                    F, [self._joined(F, steps, rank) for rank in range(len(self._ctx))], draw, layer
                )
            else:
                out = self._joined(F, steps, 0).as_in_context(home)
        if self._layout == "NTC":
            out = F.swapaxes(out, dim1=0, dim2=1)
        return (
            out
            if begins
            else (out, [F.stack(*last_h, axis=0).as_in_context(home), F.stack(*last_c, axis=0)])
        )

    def _apart(self, F, state):
        count = self._layers * len(self._directions)
        return (
            F.split(state, num_outputs=count, axis=0, squeeze_axis=True)
            if count > 1
            else [F.reshape(state, shape=state.shape[1:])]
        )

    @staticmethod
    def _joined(F, steps, rank):
        """Returns the outputs of a layer as one array: steps[direction][time][rank]."""
        ways = [F.stack(*[step[rank] for step in own], axis=0) for own in steps]
        return ways[0] if len(ways) == 1 else F.concat(*ways, dim=2)

    def _drop(self, F, inputs, draw, layer):
        """Applies dropout to the outputs of a layer. Every device uses the same random draw, which
        is the one that LSTM uses for this layer."""
        if not self._dropout:
            return inputs
        offset = nd.array([0, 0, layer << 48, 0, 0], dtype="int64", ctx=draw.context)
        draws = collectives.broadcast(draw + offset, self._ctx)
        return [
            F._internal._dropout_part(x, own, p=self._dropout, axis=0, begin=0, total=x.shape[0])
            for x, own in zip(inputs, draws)
        ]

    def _layer(self, F, inputs, h, c, weights, backwards):
        """Runs a layer in one direction. Returns the whole outputs of all steps on every device,
        and each device's part of the final cell state."""
        h = collectives.broadcast(h, self._ctx)
        c = collectives.scatter(c, self._ctx, 1)
        gates = []
        for x, w, b in zip(inputs, weights["i2h_weight"], weights["i2h_bias"]):
            all_steps = F.FullyConnected(x, w, b, num_hidden=w.shape[0], flatten=False)
            parts = F.split(all_steps, num_outputs=x.shape[0], axis=0, squeeze_axis=True)
            gates.append(parts if isinstance(parts, list) else [parts])
        steps = [None] * inputs[0].shape[0]
        for t in reversed(range(len(steps))) if backwards else range(len(steps)):
            own = []
            for rank, (w, b) in enumerate(zip(weights["h2h_weight"], weights["h2h_bias"])):
                pre = gates[rank][t] + F.FullyConnected(h[rank], w, b, num_hidden=w.shape[0])
                i, f, g, o = F.split(pre, num_outputs=4, axis=1)
                c[rank] = F.sigmoid(f) * c[rank] + F.sigmoid(i) * F.tanh(g)
                own.append(F.sigmoid(o) * F.tanh(c[rank]))
            steps[t] = h = collectives.all_gather(own, 1)
        return steps, c


_NAMES = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
