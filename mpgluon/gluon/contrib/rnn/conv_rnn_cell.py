"""Convolutional recurrent cells over signals, images and volumes."""

from ...._internal import domain
from ...._internal.domain import per_axis
from ....base import MXNetAssertionError
from ...nn.conv_layers import check_layout
from ...rnn.rnn_cell import HybridRecurrentCell

__all__ = [
    "Conv1DRNNCell",
    "Conv2DRNNCell",
    "Conv3DRNNCell",
    "Conv1DLSTMCell",
    "Conv2DLSTMCell",
    "Conv3DLSTMCell",
    "Conv1DGRUCell",
    "Conv2DGRUCell",
    "Conv3DGRUCell",
]


class _ConvCell(HybridRecurrentCell):
    """Base class of the convolutional cells."""

    _gates = 1
    _states = 1

    def _set_up(
        self,
        dims,
        input_shape,
        hidden_channels,
        kernels,
        i2h_pad,
        dilates,
        initializers,
        conv_layout,
        activation,
    ):
        """Creates the parameters. `kernels` and `dilates` are pairs, for the convolutions of the
        input and of the state."""
        domain.size(1, hidden_channels=hidden_channels)
        if not hasattr(input_shape, "__len__") or len(input_shape) != dims + 1:
            raise MXNetAssertionError(
                f"{type(self).__name__}: input_shape must be the {dims + 1} sizes of one step's "
                f"input, without the batch, got {input_shape!r}"
            )
        input_shape = per_axis(input_shape, dims + 1, "input_shape", 0)
        conv_layout = check_layout(conv_layout, dims)
        self._hidden_channels = hidden_channels
        self._input_shape = input_shape
        self._conv_layout = conv_layout
        self._check_activations(activation)
        self._activation = activation
        self._channel_axis = conv_layout.find("C")
        i2h_kernel, h2h_kernel = [
            per_axis(kernel, dims, f"{name}_kernel", 1)
            for name, kernel in zip(("i2h", "h2h"), kernels)
        ]
        i2h_dilate, h2h_dilate = [
            per_axis(dilate, dims, f"{name}_dilate", 1)
            for name, dilate in zip(("i2h", "h2h"), dilates)
        ]
        if any(size % 2 == 0 for size in h2h_kernel):
            raise AssertionError(
                f"{type(self).__name__}: h2h_kernel must be odd, so that the states keep their "
                f"size, but is {h2h_kernel}"
            )
        common = {
            "stride": (1,) * dims,
            "num_filter": self._gates * hidden_channels,
            "layout": conv_layout,
        }
        self._i2h = {
            "kernel": i2h_kernel,
            "pad": per_axis(i2h_pad, dims, "i2h_pad", 0),
            "dilate": i2h_dilate,
            **common,
        }
        same = tuple([dilate * (size - 1) // 2 for size, dilate in zip(h2h_kernel, h2h_dilate)])
        self._h2h = {"kernel": h2h_kernel, "pad": same, "dilate": h2h_dilate, **common}
        first = self._channel_axis == 1
        channels, sizes = (
            (input_shape[0], input_shape[1:]) if first else (input_shape[-1], input_shape[:-1])
        )
        out = tuple(
            [
                max(size + 2 * pad - dilate * (kernel - 1), 0) if size else 0
                for size, pad, dilate, kernel in zip(
                    sizes, self._i2h["pad"], i2h_dilate, i2h_kernel
                )
            ]
        )
        self._state_shape = (hidden_channels, *out) if first else (*out, hidden_channels)
        rows, get = common["num_filter"], self.params.get

        def weight(name, count, kernel, init):
            shape = (rows, count, *kernel) if first else (rows, *kernel, count)
            return get(name, shape=shape, init=init, allow_deferred_init=True)

        self.i2h_weight = weight("i2h_weight", channels, i2h_kernel, initializers[0])
        self.h2h_weight = weight("h2h_weight", hidden_channels, h2h_kernel, initializers[1])
        self.i2h_bias = get(
            "i2h_bias", shape=(rows,), init=initializers[2], allow_deferred_init=True
        )
        self.h2h_bias = get(
            "h2h_bias", shape=(rows,), init=initializers[3], allow_deferred_init=True
        )

    def state_info(self, batch_size=0):
        return [
            {"shape": (batch_size, *self._state_shape), "__layout__": self._conv_layout}
            for _ in range(self._states)
        ]

    def __repr__(self):
        shape = self.i2h_weight.shape
        channels = shape[1 if self._channel_axis == 1 else -1]
        return (
            f"{type(self).__name__}({channels or None} -> {shape[0]}, {self._activation}, "
            f"{self._conv_layout})"
        )

    def _products(self, F, name, inputs, state, i2h_weight, h2h_weight, i2h_bias, h2h_bias):
        return (
            F.Convolution(inputs, i2h_weight, i2h_bias, name=name + "i2h", **self._i2h),
            F.Convolution(state, h2h_weight, h2h_bias, name=name + "h2h", **self._h2h),
        )


class _ConvRNNCell(_ConvCell):
    def _alias(self):
        return "conv_rnn"

    def hybrid_forward(self, F, inputs, states, **weights):
        name = self._step_name()
        i2h, h2h = self._products(F, name, inputs, states[0], **weights)
        output = self._activate(F, i2h + h2h, self._activation, name + "out")
        return output, [output]


class _ConvLSTMCell(_ConvCell):
    _gates = 4
    _states = 2

    def _alias(self):
        return "conv_lstm"

    def hybrid_forward(self, F, inputs, states, **weights):
        name = self._step_name()
        i2h, h2h = self._products(F, name, inputs, states[0], **weights)
        gates = F.SliceChannel(
            i2h + h2h, num_outputs=4, axis=self._channel_axis, name=name + "slice"
        )
        take, keep, show = [
            F.sigmoid(gates[i], name=name + gate) for i, gate in ((0, "i"), (1, "f"), (3, "o"))
        ]
        cell = F.elemwise_add(
            keep * states[1],
            take * self._activate(F, gates[2], self._activation, name + "c"),
            name=name + "state",
        )
        hidden = F.elemwise_mul(
            show, self._activate(F, cell, self._activation, name + "activation0"), name=name + "out"
        )
        return hidden, [hidden, cell]


class _ConvGRUCell(_ConvCell):
    _gates = 3

    def _alias(self):
        return "conv_gru"

    def hybrid_forward(self, F, inputs, states, **weights):
        name = self._step_name()
        i2h, h2h = self._products(F, name, inputs, states[0], **weights)
        i2h_reset, i2h_update, i2h_new = F.SliceChannel(
            i2h, num_outputs=3, axis=self._channel_axis, name=name + "i2h_slice"
        )
        h2h_reset, h2h_update, h2h_new = F.SliceChannel(
            h2h, num_outputs=3, axis=self._channel_axis, name=name + "h2h_slice"
        )
        reset = F.sigmoid(i2h_reset + h2h_reset, name=name + "r_act")
        update = F.sigmoid(i2h_update + h2h_update, name=name + "z_act")
        new = self._activate(F, i2h_new + reset * h2h_new, self._activation, name + "h_act")
        hidden = F.elemwise_add((1.0 - update) * new, update * states[0], name=name + "out")
        return hidden, [hidden]


def _constructor(dims, layout):
    """Returns the constructor of the cells with `dims` spatial dimensions."""

    def __init__(
        self,
        input_shape,
        hidden_channels,
        i2h_kernel,
        h2h_kernel,
        i2h_pad=(0,) * dims,
        i2h_dilate=(1,) * dims,
        h2h_dilate=(1,) * dims,
        i2h_weight_initializer=None,
        h2h_weight_initializer=None,
        i2h_bias_initializer="zeros",
        h2h_bias_initializer="zeros",
        conv_layout=layout,
        activation="tanh",
        prefix=None,
        params=None,
    ):
        _ConvCell.__init__(self, prefix=prefix, params=params)
        initializers = (
            i2h_weight_initializer,
            h2h_weight_initializer,
            i2h_bias_initializer,
            h2h_bias_initializer,
        )
        self._set_up(
            dims,
            input_shape,
            hidden_channels,
            (i2h_kernel, h2h_kernel),
            i2h_pad,
            (i2h_dilate, h2h_dilate),
            initializers,
            conv_layout,
            activation,
        )

    return __init__


_PARAMETERS = """

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one step's input, without the batch; a number of channels of 0 is inferred in the
        first forward pass.
    hidden_channels : int
        Channels of the states.
    i2h_kernel, i2h_pad, i2h_dilate : int or tuple of int
        Arguments of the input's convolution.
    h2h_kernel, h2h_dilate : int or tuple of int
        Arguments of the states' convolution, which keeps their size: kernels must be odd.
    i2h_weight_initializer, h2h_weight_initializer : Initializer or str, optional
        Initializers of the weights of inputs and of states.
    i2h_bias_initializer, h2h_bias_initializer : Initializer or str, default 'zeros'
        Initializers of the biases of inputs and of states.
    conv_layout : str
        Order of the axes: ``'{layout}'`` by default, or channels last.
    activation : str or Block, default 'tanh'
        Activation function of the new state.

    Examples
    --------
    >>> Cell = gluon.contrib.rnn.{name}
    >>> cell = Cell({shape}, 4, i2h_kernel=3, h2h_kernel=3, i2h_pad={pad})
    >>> cell.initialize()
    >>> cell(nd.zeros({batch}), cell.begin_state(2))[0].shape
    {output}
    """


def _cell(base, kind, dims, layout):
    what = {1: "signals", 2: "images", 3: "volumes"}[dims]
    name, space = f"Conv{dims}D{kind}", (8,) * dims
    doc = f"{kind} over {what}, with convolutions instead of matrix products." + _PARAMETERS.format(
        layout=layout,
        name=name,
        shape=(3, *space),
        pad=(1,) * dims,
        batch=(2, 3, *space),
        output=(2, 4, *space),
    )
    return type(
        name,
        (base,),
        {"__init__": _constructor(dims, layout), "__doc__": doc, "__module__": __name__},
    )


Conv1DRNNCell: type[HybridRecurrentCell] = _cell(_ConvRNNCell, "RNNCell", 1, "NCW")
Conv2DRNNCell: type[HybridRecurrentCell] = _cell(_ConvRNNCell, "RNNCell", 2, "NCHW")
Conv3DRNNCell: type[HybridRecurrentCell] = _cell(_ConvRNNCell, "RNNCell", 3, "NCDHW")
Conv1DLSTMCell: type[HybridRecurrentCell] = _cell(_ConvLSTMCell, "LSTMCell", 1, "NCW")
Conv2DLSTMCell: type[HybridRecurrentCell] = _cell(_ConvLSTMCell, "LSTMCell", 2, "NCHW")
Conv3DLSTMCell: type[HybridRecurrentCell] = _cell(_ConvLSTMCell, "LSTMCell", 3, "NCDHW")
Conv1DGRUCell: type[HybridRecurrentCell] = _cell(_ConvGRUCell, "GRUCell", 1, "NCW")
Conv2DGRUCell: type[HybridRecurrentCell] = _cell(_ConvGRUCell, "GRUCell", 2, "NCHW")
Conv3DGRUCell: type[HybridRecurrentCell] = _cell(_ConvGRUCell, "GRUCell", 3, "NCDHW")
