"""Convolutional recurrent cells for images."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from mpgluon import symbol as sym

from .rnn_cell import BaseRNNCell, gru_step, lstm_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from mpgluon._internal.types import Init, Shape
    from mpgluon.symbol import Symbol

    from .rnn_cell import RNNParams


__all__ = ["BaseConvRNNCell", "ConvRNNCell", "ConvLSTMCell", "ConvGRUCell"]


class BaseConvRNNCell(BaseRNNCell):
    """The base of convolutional cells.

    Parameters
    ----------
    input_shape : tuple of int
        The shape of one step's input, including the batch.
    num_hidden : int
        Channels of the states.
    h2h_kernel, h2h_dilate : tuple of int
        Parameters of the states' convolution; kernels are odd, so that it preserves the size.
    i2h_kernel, i2h_stride, i2h_pad, i2h_dilate : tuple of int
        Parameters of the input's convolution.
    i2h_weight_initializer : Initializer or str, optional
        Initializer of the input weights; by default that of ``initialize``.
    h2h_weight_initializer : Initializer or str, optional
        Initializer of the state weights; by default that of ``initialize``.
    i2h_bias_initializer : Initializer or str, default 'zeros'
        Initializer of the input biases.
    h2h_bias_initializer : Initializer or str, default 'zeros'
        Initializer of the state biases.
    activation : str, default functools.partial(sym.LeakyReLU, act_type='leaky', slope=0.2)
        The activation of the new state, or its name.
    conv_layout : str, default 'NCHW'
        The layout, which determines the channel axis.
    prefix : str
        The prefix of the names of the weights.
    params : RNNParams, optional
        The variables that hold the weights; new ones by default.
    """

    _states = 1

    def __init__(
        self,
        input_shape: Shape,
        num_hidden: int,
        h2h_kernel: Shape = (3, 3),
        h2h_dilate: Shape = (1, 1),
        i2h_kernel: Shape = (3, 3),
        i2h_stride: Shape = (1, 1),
        i2h_pad: Shape = (1, 1),
        i2h_dilate: Shape = (1, 1),
        i2h_weight_initializer: Init | None = None,
        h2h_weight_initializer: Init | None = None,
        i2h_bias_initializer: Init | None = "zeros",
        h2h_bias_initializer: Init | None = "zeros",
        activation: str | Callable[..., Symbol] = functools.partial(
            sym.LeakyReLU, act_type="leaky", slope=0.2
        ),
        prefix: str = "",
        params: RNNParams | None = None,
        conv_layout: str = "NCHW",
    ) -> None:
        super().__init__(prefix, params)
        if any(size % 2 == 0 for size in h2h_kernel):
            raise AssertionError(
                f"{type(self).__name__}: h2h_kernel must be odd, so that the states keep their "
                f"size, but is {h2h_kernel}"
            )
        self._num_hidden = num_hidden
        self._input_shape = input_shape
        self._conv_layout = conv_layout
        self._activation = activation
        self._i2h = {
            "kernel": i2h_kernel,
            "stride": i2h_stride,
            "pad": i2h_pad,
            "dilate": i2h_dilate,
            "layout": conv_layout,
        }
        self._h2h = {
            "kernel": h2h_kernel,
            "stride": (1,) * len(h2h_kernel),
            "dilate": h2h_dilate,
            "layout": conv_layout,
            "pad": tuple(
                [dilate * (size - 1) // 2 for size, dilate in zip(h2h_kernel, h2h_dilate)]
            ),
        }
        shape = sym.Convolution(
            data=sym.Variable("data"), num_filter=num_hidden, **self._i2h
        ).infer_shape(data=input_shape)[1][0]
        self._state_shape = (0, *shape[1:])
        self._iW = self.params.get("i2h_weight", init=i2h_weight_initializer)
        self._hW = self.params.get("h2h_weight", init=h2h_weight_initializer)
        self._iB = self.params.get("i2h_bias", init=i2h_bias_initializer)
        self._hB = self.params.get("h2h_bias", init=h2h_bias_initializer)

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [{"shape": self._state_shape, "__layout__": self._conv_layout}] * self._states

    def _products(self, inputs, states, name):
        filters = self._num_hidden * len(self._gate_names)
        return (
            sym.Convolution(
                data=inputs,
                weight=self._iW,
                bias=self._iB,
                num_filter=filters,
                name=f"{name}i2h",
                **self._i2h,
            ),
            sym.Convolution(
                data=states[0],
                weight=self._hW,
                bias=self._hB,
                num_filter=filters,
                name=f"{name}h2h",
                **self._h2h,
            ),
        )

    def _active(self, x, **kwargs):
        return self._activate(x, self._activation, **kwargs)

    @property
    def _channels(self):
        return self._conv_layout.find("C")


def _with_prefix(prefix):
    """Returns the constructor of the base with another default prefix."""
    return functools.partialmethod(BaseConvRNNCell.__init__, prefix=prefix)


class ConvRNNCell(BaseConvRNNCell):
    """A convolutional `RNNCell`; for the parameters see `BaseConvRNNCell`.

    Examples
    --------
    >>> cell = mx.rnn.ConvRNNCell(input_shape=(1, 3, 8, 8), num_hidden=4)
    >>> output, states = cell(mx.sym.var("x"), cell.begin_state())
    >>> output.infer_shape(x=(1, 3, 8, 8))[1]
    [(1, 4, 8, 8)]
    """

    _gate_names = ("",)
    if not TYPE_CHECKING:  # type checkers only know the default of the base
        __init__ = _with_prefix("ConvRNN_")

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        name = self._step_name()
        i2h, h2h = self._products(inputs, states, name)
        output = self._active(i2h + h2h, name=f"{name}out")
        return output, [output]


class ConvLSTMCell(BaseConvRNNCell):
    """A convolutional `LSTMCell`; for the parameters see `BaseConvRNNCell`.

    Examples
    --------
    >>> cell = mx.rnn.ConvLSTMCell(input_shape=(1, 3, 8, 8), num_hidden=4)
    >>> [info["shape"] for info in cell.state_info]
    [(0, 4, 8, 8), (0, 4, 8, 8)]
    """

    _gate_names = ("_i", "_f", "_c", "_o")
    _states = 2
    if not TYPE_CHECKING:  # type checkers only know the default of the base
        __init__ = _with_prefix("ConvLSTM_")

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        name = self._step_name()
        return lstm_step(
            self._products(inputs, states, name), states, name, self._active, self._channels
        )


class ConvGRUCell(BaseConvRNNCell):
    """A convolutional `GRUCell`; for the parameters see `BaseConvRNNCell`.

    Examples
    --------
    >>> cell = mx.rnn.ConvGRUCell(input_shape=(1, 3, 8, 8), num_hidden=4)
    >>> [info["shape"] for info in cell.state_info]
    [(0, 4, 8, 8)]
    """

    _gate_names = ("_r", "_z", "_o")
    if not TYPE_CHECKING:  # type checkers only know the default of the base
        __init__ = _with_prefix("ConvGRU_")

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        name = self._step_name()
        return gru_step(
            self._products(inputs, states, name), states, name, self._active, self._channels
        )
