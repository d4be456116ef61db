"""Recurrent layers and cells."""

import os
from functools import partial

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import rnn
from support.calls import raises
from support.devices import on
from support.training import variable

draw = np.random.RandomState(2)
LAYERS = {
    "relu": (lambda **k: rnn.RNN(4, **k), 1),
    "tanh": (lambda **k: rnn.RNN(4, activation="tanh", **k), 1),
    "lstm": (lambda **k: rnn.LSTM(4, **k), 2),
    "gru": (lambda **k: rnn.GRU(4, **k), 1),
}
SHAPES = [{}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}]


def inputs(*shape):
    return mx.nd.array(draw.uniform(-1, 1, shape).astype("float32"))


def test_recurrent_layers_have_mxnet_names_and_repr():
    layer = rnn.GRU(5, 2, bidirectional=True, dropout=0.3, input_size=3, prefix="gru_")
    assert repr(layer) == "GRU(3 -> 5, TNC, num_layers=2, dropout=0.3, bidirectional)"
    names = [name[4:] for name in layer.collect_params()]
    parts = ["i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias"]
    assert names == [f"{d}{i}_{part}" for i in (0, 1) for d in "lr" for part in parts]
    assert layer.l1_i2h_weight.shape == (15, 10)
    assert "_unfused.1.r_cell.h2h_bias" in layer._collect_params_with_prefix()
    single = rnn.LSTM(5)
    assert repr(single) == "LSTM(None -> 5, TNC)"
    assert sorted(single._collect_params_with_prefix())[0] == "_unfused.0.h2h_bias"
    assert repr(rnn.LSTMCell(3, input_size=2)) == "LSTMCell(2 -> 12)"
    assert repr(rnn.RNNCell(3)) == "RNNCell(None -> 3, tanh)"


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_equals_stack_of_cells(kind, shape):
    """The fused operator equals a stack of cells with the same parameters."""
    make, num_states = LAYERS[kind]
    layer = make(input_size=3, **shape)
    layer.initialize(mx.init.Normal(0.5))
    for param in layer.collect_params(".*bias").values():
        param.set_data(draw.normal(size=param.shape).astype("float32"))
    x = inputs(5, 2, 3)
    states = [inputs(*info["shape"]) for info in layer.state_info(2)]
    assert len(states) == num_states
    with autograd.record():
        out, new = layer(x, states)
        loss = (out * out).sum() + sum((state * state).sum() for state in new)
    loss.backward()
    grads = {name: param.grad().asnumpy().copy() for name, param in layer.collect_params().items()}

    stack = layer._unfuse()
    flat = [state[i] for i in range(states[0].shape[0]) for state in states]
    with autograd.record():
        expected, last = stack.unroll(5, x, flat, layout="TNC", merge_outputs=True)
        loss = (expected * expected).sum() + sum((state * state).sum() for state in last)
    loss.backward()
    np.testing.assert_allclose(out.asnumpy(), expected.asnumpy(), rtol=1e-4, atol=1e-5)
    for i, state in enumerate(last):
        np.testing.assert_allclose(
            new[i % num_states][i // num_states].asnumpy(), state.asnumpy(), rtol=1e-4, atol=1e-5
        )
    for name, param in stack.collect_params().items():
        np.testing.assert_allclose(
            grads[name], param.grad().asnumpy(), rtol=1e-3, atol=1e-4, err_msg=name
        )


@pytest.mark.parametrize(
    "options", [{"projection_size": 2}, {"state_clip_min": -1}, {"use_sequence_length": True}]
)
def test_layers_without_equivalent_cells_refuse_to_unfuse(options):
    with pytest.raises(NotImplementedError, match="cannot be converted to cells"):
        gluon.rnn.LSTM(3, **options)._unfuse()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_layer_matches_torch(kind):
    torch = pytest.importorskip("torch")
    layer = LAYERS[kind][0](num_layers=2, bidirectional=True, input_size=3)
    layer.initialize(mx.init.Normal(0.5))
    module = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(3, 4, 2, bidirectional=True)
    with torch.no_grad():
        for i in range(2):
            for direction, suffix in (("l", ""), ("r", "_reverse")):
                for ours, theirs in (("i2h", "ih"), ("h2h", "hh")):
                    for what in ("weight", "bias"):
                        value = getattr(layer, f"{direction}{i}_{ours}_{what}").data().asnumpy()
                        getattr(module, f"{what}_{theirs}_l{i}{suffix}").copy_(torch.tensor(value))
    x = inputs(5, 2, 3)
    np.testing.assert_allclose(
        layer(x).asnumpy(),
        module(torch.tensor(x.asnumpy()))[0].detach().numpy(),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_returns_states_only_if_given_states(kind):
    make, num_states = LAYERS[kind]
    layer = make()
    layer.initialize()
    results = []
    for hybrid in (False, True):
        layer.hybridize(hybrid, exact=True)
        x = mx.nd.ones((5, 2, 3))
        alone = layer(x)
        assert layer.l0_i2h_weight.shape[1] == 3
        out, states = layer(x, layer.begin_state(2))
        assert isinstance(states, list) and [s.shape for s in states] == [(1, 2, 4)] * num_states
        np.testing.assert_array_equal(alone.asnumpy(), out.asnumpy())
        if num_states == 1:
            out, states = layer(x, layer.begin_state(2)[0])
        results.append(out.asnumpy())
    np.testing.assert_array_equal(*results)


def test_layer_supports_ntc_layout():
    layer = rnn.LSTM(4, input_size=3)
    other = rnn.LSTM(4, layout="NTC", input_size=3, params=layer.params)
    layer.initialize()
    x = inputs(5, 2, 3)
    np.testing.assert_array_equal(
        layer(x).asnumpy(), other(x.swapaxes(0, 1)).asnumpy().swapaxes(0, 1)
    )
    raises(AssertionError, "layout", lambda: rnn.LSTM(4, layout="CNT"))


def test_wrong_state_shapes_raise():
    layer = rnn.LSTM(4, input_size=3)
    layer.initialize()
    x = inputs(5, 2, 3)
    raises(ValueError, r"\(1, 2, 4\).*\(1, 3, 4\)", lambda: layer(x, layer.begin_state(3)))
    raises(ValueError, "2 states, got 1", lambda: layer(x, layer.begin_state(2)[:1]))


def test_begin_state_uses_the_parameters_device():
    layer, cell = rnn.LSTM(4, input_size=3), rnn.GRUCell(4)
    for block in (layer, cell):
        block.initialize(ctx=on(1))
        assert {state.context for state in block.begin_state(batch_size=2)} == {on(1)}
        assert {state.context for state in block.begin_state(batch_size=2, ctx=on(2))} == {on(2)}
    assert layer.begin_state(2, func=mx.nd.ones)[0].asnumpy().min() == 1
    out, state = layer(inputs(5, 2, 3).as_in_context(on(1)), layer.begin_state(2))
    assert out.context == on(1)


def test_dropout_between_layers_is_seeded_and_training_only():
    layer = rnn.LSTM(4, 2, dropout=0.5, input_size=3)
    layer.initialize()
    x = inputs(5, 2, 3)
    np.testing.assert_array_equal(layer(x).asnumpy(), layer(x).asnumpy())
    with autograd.train_mode():
        assert (layer(x).asnumpy() != layer(x).asnumpy()).any()
        mx.random.seed(3)
        one = layer(x).asnumpy()
        mx.random.seed(3)
        np.testing.assert_array_equal(one, layer(x).asnumpy())


CELLS = {
    "rnn": lambda: rnn.RNNCell(4),
    "lstm": lambda: rnn.LSTMCell(4),
    "gru": lambda: rnn.GRUCell(4),
    "residual": lambda: rnn.ResidualCell(rnn.GRUCell(3)),
    "zoneout": lambda: rnn.ZoneoutCell(rnn.LSTMCell(4), 0.3, 0.2),
    "stack": lambda: stack(rnn.SequentialRNNCell()),
    "hybrid stack": lambda: stack(rnn.HybridSequentialRNNCell()),
}


def stack(cells):
    cells.add(rnn.LSTMCell(4))
    cells.add(rnn.DropoutCell(0.2))
    cells.add(rnn.GRUCell(3))
    return cells


@pytest.mark.parametrize("kind", CELLS)
def test_cells_unroll_equals_single_steps(kind):
    cell = CELLS[kind]()
    cell.initialize()
    x = inputs(2, 5, 3)
    out, states = cell.unroll(5, x, merge_outputs=True)
    steps, again = cell.unroll(5, x, merge_outputs=False)
    assert isinstance(steps, list) and len(steps) == 5
    np.testing.assert_array_equal(out.asnumpy(), np.stack([step.asnumpy() for step in steps], 1))
    assert len(states) == len(cell.state_info())
    for info, a, b in zip(cell.state_info(2), states, again):
        assert a.shape == info["shape"]
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
    # Step by step, and from a list of steps.
    cell.reset()
    state = cell.begin_state(batch_size=2)
    for t in range(5):
        step, state = cell(x[:, t], state)
        np.testing.assert_allclose(step.asnumpy(), steps[t].asnumpy(), rtol=1e-5, atol=1e-6)
    cell.hybridize()
    np.testing.assert_allclose(
        cell.unroll(5, x, merge_outputs=True)[0].asnumpy(), out.asnumpy(), rtol=1e-5, atol=1e-6
    )
    raises(AssertionError, "length", lambda: cell.unroll(6, x))


@pytest.mark.parametrize("kind", ["lstm", "residual", "stack", "bidirectional"])
def test_unroll_with_valid_length_equals_each_sequence_alone(kind):
    make = {
        **CELLS,
        "bidirectional": lambda: rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.GRUCell(4)),
    }[kind]
    cell = make()
    cell.initialize(mx.init.Normal(0.5))
    x = inputs(2, 5, 3)
    out, states = cell.unroll(5, x, merge_outputs=True, valid_length=mx.nd.array([3, 5]))
    for row, length in enumerate((3, 5)):
        alone, last = cell.unroll(length, x[row : row + 1, :length], merge_outputs=True)
        np.testing.assert_allclose(
            out.asnumpy()[row, :length], alone.asnumpy()[0], rtol=1e-5, atol=1e-6
        )
        assert (out.asnumpy()[row, length:] == 0).all()
        for a, b in zip(states, last):
            np.testing.assert_allclose(a.asnumpy()[row], b.asnumpy()[0], rtol=1e-5, atol=1e-6)


def test_bidirectional_cell_unrolls_but_does_not_step():
    cell = rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.LSTMCell(4))
    cell.initialize()
    out, states = cell.unroll(5, inputs(2, 5, 3), merge_outputs=True)
    assert out.shape == (2, 5, 8) and len(states) == 4
    out, _ = cell.unroll(5, inputs(5, 2, 3), layout="TNC", merge_outputs=True)
    assert out.shape == (5, 2, 8)
    raises(NotImplementedError, "unroll", lambda: cell(inputs(2, 3), states))


def test_modified_cells_are_called_through_their_modifier():
    base = rnn.LSTMCell(4)
    modifier = rnn.ResidualCell(base)
    assert repr(modifier) == "ResidualCell(LSTMCell(None -> 16))"
    raises(AssertionError, "modifier", lambda: base.begin_state(batch_size=2))
    raises(AssertionError, "twice", lambda: rnn.ZoneoutCell(base))
    assert len(modifier.begin_state(batch_size=2)) == 2


def test_zoneout_keeps_some_previous_outputs():
    cell = rnn.ZoneoutCell(rnn.RNNCell(50, input_size=3), zoneout_outputs=0.5)
    cell.initialize(mx.init.Normal(1))
    with autograd.train_mode():
        steps, _ = cell.unroll(2, inputs(2, 2, 3), merge_outputs=False)
    first, second = (step.asnumpy() for step in steps)
    assert 0.2 < (first == 0).mean() < 0.8
    assert 0.2 < (second == first).mean() < 0.8


@pytest.mark.parametrize("hybrid", [False, True])
def test_truncated_backpropagation_reaches_recurrent_weights(hybrid):
    """Detached states carry over from batch to batch."""
    layer = rnn.LSTM(4, input_size=3)
    layer.initialize()
    layer.hybridize(hybrid)
    states = layer.begin_state(2)
    for _ in range(3):
        states = [state.detach() for state in states]
        with autograd.record():
            out, states = layer(inputs(5, 2, 3), states)
            loss = (out * out).sum()
        loss.backward()
        assert np.abs(layer.l0_h2h_weight.grad().asnumpy()).max() > 0


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("make", [rnn.LSTM, rnn.GRU, rnn.RNN], ids=["lstm", "gru", "rnn"])
def test_long_sequences_agree_with_single_steps(make, dtype, tolerance):
    """Many steps use packed weights, single steps do not. The sizes leave remainders in every
    blocked loop."""
    time, batch, hidden = 7, 13, 75
    layer = make(hidden, num_layers=2, input_size=21)
    layer.initialize(mx.init.Uniform(0.3))
    layer.cast(dtype)
    data = mx.nd.random.normal(shape=(time, batch, 21)).astype(dtype)
    weights = mx.nd.random.normal(shape=(time, batch, hidden)).astype(dtype)
    results = []
    for steps in (time, 1):
        data.attach_grad()
        with autograd.record():
            states = layer.begin_state(batch, dtype=dtype)
            outputs = []
            for t in range(0, time, steps):
                out, states = layer(data[t : t + steps], states)
                outputs.append(out)
            loss = (mx.nd.concat(*outputs, dim=0) * weights).sum()
        loss.backward()
        gradients = [p.grad().asnumpy() for p in layer.collect_params().values()]
        results.append(
            [
                mx.nd.concat(*outputs, dim=0).asnumpy(),
                *[s.asnumpy() for s in states],
                data.grad.asnumpy(),
                *gradients,
            ]
        )
    for many, single in zip(*results):
        np.testing.assert_allclose(
            many, single, rtol=tolerance * 10, atol=tolerance * max(1, np.abs(single).max())
        )


def test_cells_unroll_to_symbols():
    cell = mx.gluon.rnn.GRUCell(3, input_size=2)
    cell.initialize()
    data = mx.nd.random.uniform(shape=(4, 5, 2))
    state = mx.nd.random.uniform(shape=(4, 3))
    outputs, _ = cell.unroll(5, mx.sym.var("data"), [mx.sym.var("state")], merge_outputs=True)
    arguments = {name: param.data() for name, param in cell.collect_params().items()}
    (found,) = outputs.bind(on(0), {"data": data, "state": state, **arguments}).forward()
    expected, _ = cell.unroll(5, data, [state], merge_outputs=True)
    assert found.shape == (4, 5, 3)
    np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())
    with pytest.raises(ValueError, match="length"):
        cell.unroll(None, mx.sym.var("data"), [mx.sym.var("state")])


@pytest.mark.parametrize(
    "layers, bidirectional, hybrid", [(1, False, False), (2, False, True), (2, True, True)]
)
def test_projected_layers_equal_stack_of_cells(layers, bidirectional, hybrid):
    """Same results as a stack of cells with the same parameters."""
    layer = rnn.LSTM(6, layers, projection_size=4, bidirectional=bidirectional, prefix="lstm_")
    stack = rnn.HybridSequentialRNNCell(prefix="lstm_")
    with stack.name_scope():
        for i in range(layers):
            cells = [
                gluon.contrib.rnn.LSTMPCell(6, 4, prefix=f"{direction}{i}_")
                for direction in "lr"[: 1 + bidirectional]
            ]
            stack.add(rnn.BidirectionalCell(*cells) if bidirectional else cells[0])
    layer.initialize(mx.init.Uniform(0.5))
    if hybrid:
        layer.hybridize()
    x = variable(mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (3, 2, 5))))
    with mx.autograd.record():
        output, (r, c) = layer(x, layer.begin_state(2))
        (output**2).sum().backward()
    grad = x.grad.asnumpy()
    stack.initialize()
    stack.unroll(3, x, layout="TNC")
    for name, param in stack.collect_params().items():
        param.set_data(layer.collect_params()[name].data())
    with mx.autograd.record():
        expected, states = stack.unroll(3, x, layout="TNC", merge_outputs=True)
        (expected**2).sum().backward()
    np.testing.assert_allclose(output.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad, x.grad.asnumpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        r.asnumpy(), np.stack([s.asnumpy() for s in states[::2]]), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        c.asnumpy(), np.stack([s.asnumpy() for s in states[1::2]]), rtol=1e-5, atol=1e-6
    )
    lengths = rnn.LSTM(6, projection_size=4, use_sequence_length=True)
    lengths.initialize()
    with pytest.raises(NotImplementedError, match="projection"):
        lengths(x, lengths.begin_state(2), mx.nd.array([1, 3]))


def test_projected_states_are_clipped():
    layer = rnn.LSTM(6, projection_size=4, state_clip_min=-0.1, state_clip_max=0.1, input_size=5)
    layer.initialize(mx.init.Uniform(2))
    _, (_, c) = layer(mx.nd.ones((3, 2, 5)), layer.begin_state(2))
    assert np.abs(c.asnumpy()).max() == np.float32(0.1)


@pytest.mark.parametrize("kind, states", [("RNN", 1), ("GRU", 1), ("LSTM", 2)])
@pytest.mark.parametrize("begins", [True, False])
def test_exported_layers_have_state_inputs(kind, states, begins, tmp_path):
    """As in MXNet, data0 is the sequence and data1 and data2 are the states."""
    x = mx.nd.random.normal(shape=(3, 2, 4))
    net = getattr(mx.gluon.rnn, kind)(5)
    net.initialize()
    net.hybridize()
    given = net.begin_state(2)
    expected = net(x) if begins else net(x, given)[0]
    symbol_file, param_file = net.export(str(tmp_path / "net"))
    names = [f"data{i}" for i in range(1 + states)]
    symbol = mx.sym.load(symbol_file)
    assert [name for name in symbol.list_arguments() if name.startswith("data")] == names
    assert len(symbol.list_outputs()) == (1 if begins else 1 + states)
    outputs = mx.gluon.SymbolBlock.imports(symbol_file, names, param_file)(x, *given)
    np.testing.assert_allclose(
        (outputs if begins else outputs[0]).asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6
    )


def test_maximum_number_of_layers_trains():
    net = rnn.LSTM(1, num_layers=64, bidirectional=True, input_size=1)
    net.initialize()
    x = variable(mx.nd.ones((2, 1, 1)))
    with mx.autograd.record():
        y = net(x)
    y.backward()
    assert np.isfinite(x.grad.asnumpy()).all() and len(net.collect_params()) == 512


def test_state_info_reports_dtype():
    for layer, count in ((mx.gluon.rnn.LSTM(3), 2), (mx.gluon.rnn.GRU(3, dtype="float64"), 1)):
        infos = layer.state_info(2)
        assert len(infos) == count
        assert all(
            info["dtype"] == ("float32" if count == 2 else "float64") and info["shape"] == (1, 2, 3)
            for info in infos
        )


@pytest.mark.parametrize("dtype, bound", [("float16", 2.0**-9), ("bfloat16", 2.0**-6)])
@pytest.mark.parametrize("units", [48, 37])  # odd sizes leave an unpaired last element
@pytest.mark.parametrize("layer", [rnn.LSTM, rnn.GRU, partial(rnn.RNN, activation="tanh")])
def test_half_precision_results_are_near_float64(layer, units, dtype, bound):
    """Large enough for library half-precision products; cells and sums are float32 internally."""
    random = np.random.RandomState(0)
    sizes = (9, 8, 40), (9, 8, 2 * units)
    x, slope = (mx.nd.array(random.normal(size=size)).astype(dtype) for size in sizes)

    def run(dtype, weights=None):
        net = layer(units, num_layers=2, bidirectional=True, input_size=40)
        net.initialize(mx.init.Uniform(0.2))
        net.cast(dtype)
        parameters = list(net.collect_params().values())
        for i, parameter in enumerate(parameters if weights else ()):
            parameter.set_data(weights[i].astype(dtype))
        data = variable(x.astype(dtype))
        with mx.autograd.record():
            y = net(data)
        y.backward(slope.astype(dtype))
        values = [p.data() for p in parameters]
        found = [y, data.grad, *(p.grad() for p in parameters)]
        return values, [a.astype("float64").asnumpy() for a in found]

    weights, found = run(dtype)
    _, exact = run("float64", weights)
    for one, other in zip(found, exact):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * np.abs(other).max())


@pytest.mark.skipif(
    "libtsan" in os.environ.get("LD_PRELOAD", ""),
    reason="ThreadSanitizer does not know OpenMP's barriers",
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layer", [rnn.LSTM, rnn.GRU, rnn.RNN])
def test_half_precision_bits_do_not_depend_on_thread_count(layer, dtype):
    """Covers the per-step products; libraries compute the products over all steps, tiny here."""
    random = np.random.RandomState(0)
    net = layer(35, input_size=2)
    net.initialize(mx.init.Uniform(0.3))
    net.cast(dtype)
    x = mx.nd.array(random.normal(size=(8, 5, 2))).astype(dtype)
    slope = mx.nd.array(random.normal(size=(8, 5, 35))).astype(dtype)
    x.attach_grad()

    def run(threads):
        mx.context.set_threads(threads)
        with mx.autograd.record():
            y = net(x)
        y.backward(slope)
        return [a.asnumpy().tobytes() for a in (y, x.grad)]

    try:
        first, *others = (run(threads) for threads in (1, 2, 3))
    finally:
        mx.context.set_threads(0)
    assert all(other == first for other in others)


@pytest.mark.parametrize("layer", [rnn.LSTM, rnn.GRU])
def test_bfloat16_propagates_nan_and_infinity(layer):
    """Hidden states and gradients are rounded to bfloat16 for the per-step products."""
    net = layer(20, input_size=4)
    net.initialize()
    net.cast("bfloat16")
    state = mx.nd.zeros((1, 8, 20)).asnumpy()
    state[0, 3, 7], state[0, 5, 2] = np.nan, np.inf
    states = [mx.nd.array(state).astype("bfloat16")]
    if layer is rnn.LSTM:
        states.append(mx.nd.zeros((1, 8, 20)).astype("bfloat16"))
    y = net(mx.nd.ones((6, 8, 4)).astype("bfloat16"), states)[0].asnumpy()
    assert np.isnan(y[:, 3]).all()
    rest = [n for n in range(8) if n not in (3, 5)]
    assert np.isfinite(y[:, rest]).all()


def gradients_of(layer, x, states, weights, lengths=None):
    """Returns output and states, then the gradients of a weighted sum of them with respect to the
    inputs and the parameters."""
    given = [x, *states]
    for array in given:
        array.attach_grad()
    with mx.autograd.record():
        output, after = layer(x, states) if lengths is None else layer(x, states, lengths)
        results = [output, *after]
        loss = sum((one * weight).sum() for one, weight in zip(results, weights))
    loss.backward()
    parameters = [parameter.grad() for parameter in layer.collect_params().values()]
    return [one.asnumpy() for one in results], [
        one.asnumpy() for one in [*[array.grad for array in given], *parameters]
    ]


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("layers, bidirectional", [(1, False), (1, True), (3, True)])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("steps, size", [(4, 3), (12, 16)])  # per-step and packed products
def test_sequence_lengths_equal_each_sequence_alone(
    kind, layers, bidirectional, hybrid, steps, size
):
    """Padding does not matter, not even NaN; a sequence of length 0 keeps its initial states."""
    lengths, random = [3, 0, steps, 1, 99], np.random.RandomState(steps)
    options = {"input_size": 4, "bidirectional": bidirectional, "dtype": "float64"}
    layer = getattr(rnn, kind)(size, layers, use_sequence_length=True, **options)
    layer.initialize(mx.init.Uniform(0.5))
    alone = getattr(rnn, kind)(
        size, layers, params=layer.collect_params(), prefix=layer.prefix, **options
    )
    if hybrid:
        layer.hybridize()

    def array(*shape):
        return nd.array(random.uniform(-1, 1, shape), dtype="float64")

    state = (layers * (1 + bidirectional), len(lengths), size)
    x, states = array(steps, 5, 4), [array(*state) for _ in range(2 if kind == "LSTM" else 1)]
    weights = [array(steps, 5, size * (1 + bidirectional)), *[array(*state) for _ in states]]
    padded = x.asnumpy()
    for n, length in enumerate(lengths):
        padded[length:, n] = [np.nan, np.inf, -np.inf, 3e300]
    results, gradients = gradients_of(
        layer,
        nd.array(padded, dtype="float64"),
        states,
        weights,
        nd.array(lengths, dtype="int32" if hybrid else "float32"),
    )
    total = [0] * (len(gradients) - 1 - len(states))
    for n, length in enumerate(lengths):
        length = min(length, steps)
        behind, own = slice(length, None), slice(n, n + 1)
        assert not results[0][behind, n].any() and not gradients[0][behind, n].any()
        if not length:
            for after, before in zip(results[1:], states):
                np.testing.assert_array_equal(after[:, n], before.asnumpy()[:, n])
            continue
        expected, slopes = gradients_of(
            alone,
            x[:length, own],
            [one[:, own] for one in states],
            [weights[0][:length, own], *[one[:, own] for one in weights[1:]]],
        )
        np.testing.assert_allclose(results[0][:length, own], expected[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(gradients[0][:length, own], slopes[0], rtol=1e-9, atol=1e-12)
        for i in range(len(states)):
            np.testing.assert_allclose(results[1 + i][:, own], expected[1 + i], rtol=1e-9)
            np.testing.assert_allclose(
                gradients[1 + i][:, own], slopes[1 + i], rtol=1e-8, atol=1e-12
            )
        total = [a + b for a, b in zip(total, slopes[1 + len(states) :])]
    for found, expected in zip(gradients[1 + len(states) :], total):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


def test_invalid_sequence_lengths_raise():
    layer = rnn.GRU(3, use_sequence_length=True)
    layer.initialize()
    x = nd.ones((4, 2, 3))
    for wrong in (None, [2, 4], nd.array([1, 2, 3]), nd.array([[1, 2]])):
        with pytest.raises(ValueError, match="must be an array of 2 lengths, one for each"):
            layer(x, layer.begin_state(2), wrong)
    options = {"mode": "gru", "state_size": 3, "num_layers": 1}
    arrays = [x, nd.ones(72), nd.zeros((1, 2, 3))]
    with pytest.raises(mx.MXNetError, match=r"\(data, parameters, state, sequence_length\), got 3"):
        nd.RNN(*arrays, use_sequence_length=True, **options)
    with pytest.raises(mx.MXNetError, match=r"\(data, parameters, state\), got 4"):
        nd.RNN(*arrays, nd.array([1, 2]), **options)
    with pytest.raises(mx.MXNetError, match=r"sequence_length must have the shape \(2,\)"):
        nd.RNN(*arrays, nd.array([1, 2, 3]), use_sequence_length=True, **options)
    with pytest.raises(mx.MXNetError, match="projection_size must be None.*gluon.rnn.LSTM"):
        nd.RNN(*arrays, projection_size=2, **options)
    with pytest.raises(mx.MXNetError, match="require mode='lstm'"):
        nd.RNN(*arrays, lstm_state_clip_min=0, **options)
    options["mode"] = "lstm"
    with pytest.raises(
        mx.MXNetError, match="lstm_state_clip_min must be at most lstm_state_clip_max"
    ):
        nd.RNN(*arrays, arrays[2], lstm_state_clip_min=1, lstm_state_clip_max=0, **options)


def test_sequence_length_is_a_symbol_input(tmp_path):
    symbol = mx.sym.RNN(
        mx.sym.var("x"), mode="gru", state_size=3, num_layers=1, use_sequence_length=True, name="r"
    )
    assert symbol.list_arguments() == ["x", "r_parameters", "r_state", "r_sequence_length"]
    variables = [mx.sym.var(letter) for letter in "xpsl"]
    options = {"mode": "gru", "state_size": 3, "num_layers": 1, "use_sequence_length": True}
    for made in (
        mx.sym.RNN(*variables, **options),
        mx.sym.RNN(*variables[:3], sequence_length=variables[3], **options),
    ):
        assert made.list_arguments() == list("xpsl")
    with pytest.raises(TypeError, match="inputs are data, parameters, state, sequence_length"):
        mx.sym.RNN(*variables, mx.sym.var("more"), **options)
    for place in (1, 2):
        some = [None if i == place else one for i, one in enumerate(variables)]
        left = ["r_parameters", "r_state"][place - 1]
        assert mx.sym.RNN(*some, name="r", **options).list_arguments() == [
            left if i == place else letter for i, letter in enumerate("xpsl")
        ]
    layer = rnn.LSTM(3, 2, use_sequence_length=True, bidirectional=True, input_size=3)
    layer.initialize()
    layer.hybridize()
    x, states, lengths = nd.random.uniform(shape=(4, 2, 3)), layer.begin_state(2), nd.array([2, 4])
    expected, _ = layer(x, states, lengths)
    symbol_file, parameters = layer.export(str(tmp_path / "a"))
    names = ["data0", "data1", "data2", "data3"]
    block = gluon.SymbolBlock.imports(symbol_file, names, parameters)
    np.testing.assert_array_equal(block(x, *states, lengths)[0].asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("lengths", [[1.5, 2.9, 0.3], [-1, 2, np.nan]])
def test_second_gradients_truncate_sequence_lengths(lengths):
    """Lengths are truncated to integers, as in the first gradients."""
    random = np.random.RandomState(3)
    x = nd.array(random.uniform(-1, 1, (3, 3, 2)), dtype="float64")
    weights = nd.array(random.uniform(-0.5, 0.5, 63), dtype="float64")
    state = nd.zeros((1, 3, 3), dtype="float64")
    slopes = []
    for given in (lengths, np.trunc(np.nan_to_num(lengths))):
        x[2] = np.nan if given is not lengths and max(given) < 3 else 0
        x.attach_grad()
        with autograd.record():
            y = nd.RNN(
                x,
                weights,
                state,
                nd.array(given, dtype="float64"),
                mode="gru",
                state_size=3,
                num_layers=1,
                use_sequence_length=True,
            )
            slope = autograd.grad(y.sum(), [x], create_graph=True)[0]
            total = (slope * slope).sum()
        total.backward()
        slopes.append(x.grad.asnumpy())
    assert slopes[0].any()
    np.testing.assert_array_equal(*slopes)


@pytest.mark.parametrize("kind, count", [("GRU", 1), ("LSTM", 2), ("RNN", 1)])
def test_gradient_arrays_can_be_head_gradients(kind, count):
    """The op must read each head gradient completely before it overwrites it."""
    layer = getattr(rnn, kind)(3, input_size=2)
    layer.initialize(mx.init.Uniform(0.5))
    random = np.random.RandomState(0)
    x = nd.array(random.uniform(-1, 1, (1, 4, 2)))
    states = [nd.array(random.uniform(-1, 1, (1, 4, 3))) for _ in range(count)]
    heads = [nd.array(random.uniform(-1, 1, (1, 4, 3))) for _ in range(1 + count)]
    found = []
    for own in (False, True):
        for state in states:
            state.attach_grad()
        if own:  # in a different order from the states
            for state, head in zip(states, heads):
                state.grad[:] = head
            given = [*[state.grad for state in states], *heads[count:]]
        with autograd.record():
            y, after = layer(x, states)
        autograd.backward([y, *after], given if own else heads)
        found.append([state.grad.asnumpy() for state in states])
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


def test_unused_named_arrays_raise():
    x, arrays = nd.ones((4, 2, 3)), [nd.ones(72), nd.zeros((1, 2, 3))]
    options = {"mode": "gru", "state_size": 3, "num_layers": 1, "use_sequence_length": True}
    with pytest.raises(TypeError, match="RNN: the array state_cell is not used with these"):
        nd.RNN(x, *arrays, state_cell=nd.array([1, 2]), **options)
    with pytest.raises(TypeError, match="the array bias is not used with these parameters"):
        nd.FullyConnected(x, nd.ones((2, 6)), bias=nd.ones(2), no_bias=True, num_hidden=2)
    variables = [mx.sym.var(letter) for letter in "xb"]
    with pytest.raises(TypeError, match="the input 'bias' is not used"):
        mx.sym.FullyConnected(variables[0], None, variables[1], no_bias=True, num_hidden=3)
    loss = mx.sym.CTCLoss(variables[0], None, variables[1], use_label_lengths=True, name="c")
    assert loss.list_arguments() == ["x", "c_label", "b"]


class Unrolled(gluon.HybridBlock):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def hybrid_forward(self, F, x):
        if isinstance(self.cell, rnn.RecurrentCell):
            return self.cell.unroll(3, x, layout="TNC", merge_outputs=True)[0]
        return self.cell(x)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: rnn.LSTM(4, input_size=4),
        lambda: rnn.GRU(4, input_size=4, bidirectional=True),
        lambda: rnn.LSTMCell(4, input_size=4),
        lambda: rnn.ResidualCell(rnn.GRUCell(4, input_size=4)),
        lambda: rnn.BidirectionalCell(
            rnn.RNNCell(4, input_size=4), rnn.RNNCell(4, input_size=4, prefix="r_")
        ),
    ],
)
def test_exported_recurrent_net_runs_in_its_own_dtype(make, dtype, tmp_path):
    net = Unrolled(make())
    net.initialize(mx.init.Xavier())
    net.cast(dtype)
    net.hybridize()
    x = nd.random.uniform(shape=(3, 2, 4)).astype(dtype)
    expected = net(x)
    symbol, params = net.export(str(tmp_path / "net"))
    found = gluon.SymbolBlock.imports(symbol, ["data"], params)(x)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=2e-3, atol=1e-3)
