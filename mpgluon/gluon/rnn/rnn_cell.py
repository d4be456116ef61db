"""Recurrent cells: one step of time, and `unroll` for many.

A cell is called with an input of shape (batch, features) and its list of states, and returns its
output and the new states.
"""

from ... import _core, ndarray as nd
from .. import _tracing
from ..block import Block, HybridBlock
from ..nn.activations import LeakyReLU
from ..utils import indent

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


def state_options(block, options):
    """`options` for making a state; without ``ctx``, the device is that of the block's parameters
    where they live on one."""
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


def _functions(sequence):
    """`mx.nd` or `mx.sym`: the functions for an array or a symbol, or for a list of either."""
    first = sequence[0] if isinstance(sequence, (list, tuple)) else sequence
    if isinstance(first, nd.NDArray):
        return nd
    from ... import symbol

    return symbol


def _is_one(sequence):
    """Whether it is one array or symbol, and no list of them."""
    return not isinstance(sequence, (list, tuple))


def _steps(inputs, length, layout):
    """The inputs of the single steps, each (batch, ...)."""
    axis = layout.find("T")
    if _is_one(inputs) and not isinstance(inputs, nd.NDArray):
        if length is None:
            raise ValueError("unroll: a symbol has no shape; give the length")
        return list(
            _functions(inputs).split(inputs, num_outputs=length, axis=axis, squeeze_axis=True)
        )
    if isinstance(inputs, nd.NDArray):
        if length is not None and length != inputs.shape[axis]:
            raise AssertionError(
                f"unroll: length is {length}, but the input of shape {inputs.shape} has "
                f"{inputs.shape[axis]} steps"
            )
        length = inputs.shape[axis]
        if length == 1:
            return [nd.squeeze(inputs, axis=axis)]
        return list(nd.split(inputs, num_outputs=length, axis=axis, squeeze_axis=True))
    if length is not None and length != len(inputs):
        raise AssertionError(f"unroll: length is {length}, but there are {len(inputs)} inputs")
    return list(inputs)


def _merge(steps, layout):
    """Steps as one array."""
    return steps if _is_one(steps) else _functions(steps).stack(*steps, axis=layout.find("T"))


def _format(sequence, length, layout, merge):
    """The sequence as one array (merge True), as a list (False), or as it is (None)."""
    if merge is None:
        return sequence
    return _merge(sequence, layout) if merge else _steps(sequence, length, layout)


def _mask(sequence, length, layout, valid_length, merge):
    """Zeros after each sample's last valid step."""
    merged = _merge(sequence, layout)
    masked = _functions(merged).SequenceMask(
        merged, valid_length, use_sequence_length=True, axis=layout.find("T")
    )
    return masked if merge is None else _format(masked, length, layout, merge)


def _reverse(steps, valid_length):
    """The steps in reverse; with valid lengths, each sample's valid part in reverse."""
    if valid_length is None:
        return list(reversed(steps))
    F = _functions(steps)
    return _steps(
        F.SequenceReverse(F.stack(*steps, axis=0), valid_length, use_sequence_length=True),
        len(steps),
        "TNC",
    )


class RecurrentCell(Block):
    """The base of cells."""

    def __init__(self, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self._modified = False
        self.reset()

    def reset(self):
        """Forgets what the cell keeps between the steps of a sequence."""
        self._counter = -1
        for child in self._children.values():
            if isinstance(child, RecurrentCell):
                child.reset()

    def state_info(self, batch_size=0):
        """The shapes of the states, as dicts."""
        raise NotImplementedError(f"{type(self).__name__} does not define state_info")

    def _step_name(self):
        """What the names of the coming step's nodes begin with, where cells are called on
        symbols."""
        self._counter += 1
        return f"t{self._counter}_"

    def _check_unmodified(self):
        if self._modified:
            raise AssertionError(
                "After applying modifier cells (e.g. ZoneoutCell) the base cell cannot be called "
                "directly. Call the modifier cell instead."
            )

    def begin_state(self, batch_size=0, func=nd.zeros, **kwargs):
        """States to begin with.

        Parameters
        ----------
        batch_size : int
        func : callable, default `mx.nd.zeros`
            Makes an array of a ``shape``.
        **kwargs
            Passed to `func`. ``ctx`` is by default the device of the cell's parameters.

        Returns
        -------
        list of NDArray
        """
        self._check_unmodified()
        kwargs = state_options(self, kwargs)
        return [func(shape=info["shape"], **kwargs) for info in self.state_info(batch_size)]

    def _begin(self, begin_state, inputs, layout):
        if begin_state is not None:
            return begin_state
        F = _functions(inputs)
        if F is not nd:
            return self.begin_state(func=lambda shape, **_: F.zeros(shape=shape))
        if _is_one(inputs):
            first, batch_size = inputs, inputs.shape[layout.find("N")]
        else:
            first, batch_size = inputs[0], inputs[0].shape[0]
        return self.begin_state(batch_size=batch_size, ctx=first.context, dtype=first.dtype)

    def unroll(
        self, length, inputs, begin_state=None, layout="NTC", merge_outputs=None, valid_length=None
    ):
        """Runs the cell over a sequence.

        Parameters
        ----------
        length : int
            Number of steps.
        inputs : NDArray or list of NDArray
            One array as `layout` says, or for each step one of shape (batch, ...).
        begin_state : list of NDArray, optional
            Zeros by default.
        layout : {'NTC', 'TNC'}
        merge_outputs : bool, optional
            Whether to return one array rather than a list; None: whatever is at hand.
        valid_length : NDArray of shape (batch,), optional
            How many steps of each sample count: later outputs are zero, and the states are those
            after the last valid step.

        Returns
        -------
        outputs : NDArray or list of NDArray
        states : list of NDArray
        """
        self.reset()
        steps = _steps(inputs, length, layout)
        states = self._begin(begin_state, steps, layout)
        outputs, all_states = [], []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
            all_states.append(states)
        if valid_length is not None:
            states = [
                _functions(states).SequenceLast(
                    _functions(states).stack(*states, axis=0),
                    valid_length,
                    use_sequence_length=True,
                )
                for states in zip(*all_states)
            ]
            outputs = _mask(outputs, len(steps), layout, valid_length, True)
        return _format(outputs, len(steps), layout, merge_outputs), states

    def _activate(self, F, x, activation, name):
        if isinstance(activation, str):
            if activation in ("tanh", "relu", "sigmoid", "softsign"):
                return getattr(F, activation)(x, name=name)
            return F.Activation(x, act_type=activation, name=name)
        if isinstance(activation, LeakyReLU):
            return F.LeakyReLU(x, act_type="leaky", slope=activation._alpha, name=name)
        return activation(x)


class HybridRecurrentCell(RecurrentCell, HybridBlock):
    """The base of cells that can be hybridized."""

    def hybrid_forward(self, F, x, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} does not define hybrid_forward")


class _GatedCell(HybridRecurrentCell):
    """A cell with weights for input (i2h) and state (h2h), each of `_gates` times the hidden
    size."""

    _gates = 1
    _states = 1

    def __init__(
        self,
        hidden_size,
        input_size,
        i2h_weight_initializer,
        h2h_weight_initializer,
        i2h_bias_initializer,
        h2h_bias_initializer,
        prefix,
        params,
    ):
        super().__init__(prefix=prefix, params=params)
        self._hidden_size = hidden_size
        self._input_size = input_size
        rows = self._gates * hidden_size
        get = self.params.get
        self.i2h_weight = get(
            "i2h_weight",
            shape=(rows, input_size),
            init=i2h_weight_initializer,
            allow_deferred_init=True,
        )
        self.h2h_weight = get(
            "h2h_weight",
            shape=(rows, hidden_size),
            init=h2h_weight_initializer,
            allow_deferred_init=True,
        )
        self.i2h_bias = get(
            "i2h_bias", shape=(rows,), init=i2h_bias_initializer, allow_deferred_init=True
        )
        self.h2h_bias = get(
            "h2h_bias", shape=(rows,), init=h2h_bias_initializer, allow_deferred_init=True
        )

    def state_info(self, batch_size=0):
        return [
            {"shape": (batch_size, self._hidden_size), "__layout__": "NC"}
            for _ in range(self._states)
        ]

    def __repr__(self):
        rows, size = self.i2h_weight.shape
        return f"{type(self).__name__}({size or None} -> {rows})"

    def _products(self, F, name, inputs, state, i2h_weight, h2h_weight, i2h_bias, h2h_bias):
        rows = self._gates * self._hidden_size
        return (
            F.FullyConnected(inputs, i2h_weight, i2h_bias, num_hidden=rows, name=name + "i2h"),
            F.FullyConnected(state, h2h_weight, h2h_bias, num_hidden=rows, name=name + "h2h"),
        )


class RNNCell(_GatedCell):
    """``h' = act(W_i x + b_i + W_h h + b_h)``.

    Parameters
    ----------
    hidden_size : int
    activation : str or callable, default 'tanh'
    input_size : int, default 0
        0 to find it in the first forward pass.
    """

    def __init__(
        self,
        hidden_size,
        activation="tanh",
        i2h_weight_initializer=None,
        h2h_weight_initializer=None,
        i2h_bias_initializer="zeros",
        h2h_bias_initializer="zeros",
        input_size=0,
        prefix=None,
        params=None,
    ):
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
        self._activation = activation

    def _alias(self):
        return "rnn"

    def __repr__(self):
        rows, size = self.i2h_weight.shape
        return f"{type(self).__name__}({size or None} -> {rows}, {self._activation})"

    def hybrid_forward(self, F, inputs, states, **weights):
        name = self._step_name()
        i2h, h2h = self._products(F, name, inputs, states[0], **weights)
        output = self._activate(
            F, F.elemwise_add(i2h, h2h, name=name + "plus0"), self._activation, name + "out"
        )
        return output, [output]


class LSTMCell(_GatedCell):
    """Long short-term memory; the gates' order is input, forget, cell, output. States: h and c.

    Parameters
    ----------
    hidden_size : int
    input_size : int, default 0
        0 to find it in the first forward pass.
    activation : str, default 'tanh'
    recurrent_activation : str, default 'sigmoid'
    """

    _gates = 4
    _states = 2

    def __init__(
        self,
        hidden_size,
        i2h_weight_initializer=None,
        h2h_weight_initializer=None,
        i2h_bias_initializer="zeros",
        h2h_bias_initializer="zeros",
        input_size=0,
        prefix=None,
        params=None,
        activation="tanh",
        recurrent_activation="sigmoid",
    ):
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
        self._activation = activation
        self._recurrent_activation = recurrent_activation

    def _alias(self):
        return "lstm"

    def hybrid_forward(self, F, inputs, states, **weights):
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
    """Gated recurrent unit; the gates' order is reset, update, new.

    Parameters
    ----------
    hidden_size : int
    input_size : int, default 0
        0 to find it in the first forward pass.
    """

    _gates = 3

    def __init__(
        self,
        hidden_size,
        i2h_weight_initializer=None,
        h2h_weight_initializer=None,
        i2h_bias_initializer="zeros",
        h2h_bias_initializer="zeros",
        input_size=0,
        prefix=None,
        params=None,
    ):
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

    def hybrid_forward(self, F, inputs, states, **weights):
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
    """What both stacks of cells have in common."""

    def __repr__(self):
        lines = "\n".join(
            f"({name}): {indent(repr(cell), 2)}" for name, cell in self._children.items()
        )
        return f"{type(self).__name__}(\n{lines}\n)"

    def add(self, cell):
        """Puts a cell on top."""
        self.register_child(cell)

    def state_info(self, batch_size=0):
        return [info for cell in self._children.values() for info in cell.state_info(batch_size)]

    def begin_state(self, **kwargs):
        self._check_unmodified()
        return [state for cell in self._children.values() for state in cell.begin_state(**kwargs)]

    def _step(self, inputs, states):
        states = list(states)
        next_states = []
        for cell in self._children.values():
            if isinstance(cell, BidirectionalCell):
                raise AssertionError(
                    "a BidirectionalCell needs the whole sequence: call unroll instead of stepping"
                )
            count = len(cell.state_info())
            inputs, new = cell(inputs, states[:count])
            del states[:count]
            next_states += new
        return inputs, next_states

    def unroll(
        self, length, inputs, begin_state=None, layout="NTC", merge_outputs=None, valid_length=None
    ):
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

    def __getitem__(self, i):
        return list(self._children.values())[i]

    def __len__(self):
        return len(self._children)


class SequentialRNNCell(_CellStack, RecurrentCell):
    """Cells on top of each other."""

    def forward(self, inputs, states):
        return self._step(inputs, states)


class HybridSequentialRNNCell(_CellStack, HybridRecurrentCell):
    """Hybridizable cells on top of each other."""

    def hybrid_forward(self, F, inputs, states):
        return self._step(inputs, states)


class DropoutCell(HybridRecurrentCell):
    """Applies dropout to its input; it has no states.

    Parameters
    ----------
    rate : float
    axes : tuple of int, default ()
        Axes along which all elements share their fate.
    """

    def __init__(self, rate, axes=(), prefix=None, params=None):
        super().__init__(prefix, params)
        if not isinstance(rate, (int, float)):
            raise AssertionError("rate must be a number")
        self._rate = rate
        self._axes = axes

    def __repr__(self):
        return f"{type(self).__name__}(rate={self._rate}, axes={self._axes})"

    def state_info(self, batch_size=0):
        return []

    def _alias(self):
        return "dropout"

    def hybrid_forward(self, F, inputs, states):
        if self._rate > 0:
            inputs = F.Dropout(
                inputs, p=self._rate, axes=self._axes, name=self._step_name() + "fwd"
            )
        return inputs, states

    def unroll(
        self, length, inputs, begin_state=None, layout="NTC", merge_outputs=None, valid_length=None
    ):
        self.reset()
        inputs = _format(inputs, length, layout, merge_outputs)
        if isinstance(inputs, nd.NDArray):
            return self.hybrid_forward(nd, inputs, begin_state or [])
        return super().unroll(length, inputs, begin_state or [], layout, merge_outputs, None)


class ModifierCell(HybridRecurrentCell):
    """The base of cells that change what another cell does; that one is from then on called through
    the modifier only."""

    def __init__(self, base_cell):
        if base_cell._modified:
            raise AssertionError(
                f"Cell {base_cell.name} is already modified. One cell cannot be modified twice"
            )
        base_cell._modified = True
        super().__init__(prefix=base_cell.prefix + self._alias(), params=None)
        self.base_cell = base_cell

    @property
    def params(self):
        return self.base_cell.params

    def state_info(self, batch_size=0):
        return self.base_cell.state_info(batch_size)

    def _base(self):
        """A scope in which the cell that is changed can be called by itself."""
        return _core.Scope((vars(self.base_cell), "_modified", False))

    def begin_state(self, **kwargs):
        self._check_unmodified()
        with self._base():
            return self.base_cell.begin_state(**kwargs)

    def __repr__(self):
        return f"{type(self).__name__}({self.base_cell})"


class ZoneoutCell(ModifierCell):
    """Keeps elements of the former output and states, at random in training.

    Parameters
    ----------
    base_cell : RecurrentCell
    zoneout_outputs, zoneout_states : float, default 0
        The probabilities.
    """

    def __init__(self, base_cell, zoneout_outputs=0.0, zoneout_states=0.0):
        if isinstance(base_cell, BidirectionalCell):
            raise AssertionError(
                "zoneout acts step by step, which a BidirectionalCell does not: put ZoneoutCell "
                "around the cells inside it"
            )
        super().__init__(base_cell)
        self.zoneout_outputs = zoneout_outputs
        self.zoneout_states = zoneout_states

    def __repr__(self):
        return (
            f"{type(self).__name__}(p_out={self.zoneout_outputs}, p_state={self.zoneout_states}, "
            f"{self.base_cell})"
        )

    def _alias(self):
        return "zoneout"

    def reset(self):
        super().reset()
        self._former = (None, None)  # the tracing in which the output was made, and the output

    def hybrid_forward(self, F, inputs, states):
        output, next_states = self.base_cell(inputs, states)
        tracing, former = self._former
        if former is None or tracing is not _tracing.current():
            former = F.zeros_like(output)

        def mix(probability, new, old):
            return F.where(F.Dropout(F.ones_like(new), p=probability), new, old)

        if self.zoneout_outputs:
            output = mix(self.zoneout_outputs, output, former)
        if self.zoneout_states:
            next_states = [
                mix(self.zoneout_states, new, old) for new, old in zip(next_states, states)
            ]
        self._former = (_tracing.current(), output)
        return output, next_states


class ResidualCell(ModifierCell):
    """Adds the input to the output."""

    def hybrid_forward(self, F, inputs, states):
        output, states = self.base_cell(inputs, states)
        return F.elemwise_add(output, inputs, name=self._step_name() + "fwd"), states

    def unroll(
        self, length, inputs, begin_state=None, layout="NTC", merge_outputs=None, valid_length=None
    ):
        self.reset()
        with self._base():
            outputs, states = self.base_cell.unroll(
                length, inputs, begin_state, layout, merge_outputs, valid_length
            )
        merge = _is_one(outputs)
        if valid_length is not None:
            inputs = _mask(inputs, length, layout, valid_length, merge)
        else:
            inputs = _format(inputs, length, layout, merge)
        if merge:
            return outputs + inputs, states
        return [output + step for output, step in zip(outputs, inputs)], states


class BidirectionalCell(HybridRecurrentCell):
    """Runs one cell forward and another backward in time and concatenates their outputs; it can
    only be unrolled.

    Parameters
    ----------
    l_cell, r_cell : RecurrentCell
        The cells that run forward and backward.
    """

    def __init__(self, l_cell, r_cell, output_prefix="bi_"):
        super().__init__(prefix="", params=None)
        self.register_child(l_cell, "l_cell")
        self.register_child(r_cell, "r_cell")
        self._output_prefix = output_prefix

    def __call__(self, inputs, states):
        raise NotImplementedError(
            "a BidirectionalCell needs the whole sequence: call unroll instead of stepping"
        )

    def __repr__(self):
        return (
            f"{type(self).__name__}(forward={self._children['l_cell']}, "
            f"backward={self._children['r_cell']})"
        )

    def state_info(self, batch_size=0):
        return [info for cell in self._children.values() for info in cell.state_info(batch_size)]

    def begin_state(self, **kwargs):
        self._check_unmodified()
        return [state for cell in self._children.values() for state in cell.begin_state(**kwargs)]

    def unroll(
        self, length, inputs, begin_state=None, layout="NTC", merge_outputs=None, valid_length=None
    ):
        self.reset()
        steps = _steps(inputs, length, layout)
        states = self._begin(begin_state, steps, layout)
        l_cell, r_cell = self._children.values()
        count = len(l_cell.state_info())
        l_outputs, l_states = l_cell.unroll(
            length, steps, states[:count], layout, merge_outputs, valid_length
        )
        r_outputs, r_states = r_cell.unroll(
            length, _reverse(steps, valid_length), states[count:], layout, False, valid_length
        )
        r_outputs = _reverse(r_outputs, valid_length)
        merge = _is_one(l_outputs) if merge_outputs is None else merge_outputs
        if merge:
            merged = [_merge(outputs, layout) for outputs in (l_outputs, r_outputs)]
            outputs = _functions(l_outputs).concat(*merged, dim=2, name=f"{self._output_prefix}out")
        else:
            pairs = enumerate(zip(_steps(l_outputs, length, layout), r_outputs))
            outputs = [
                _functions(left).concat(left, right, dim=1, name=f"{self._output_prefix}t{i}")
                for i, (left, right) in pairs
            ]
        if valid_length is not None:
            outputs = _mask(outputs, len(steps), layout, valid_length, merge)
        return outputs, l_states + r_states
