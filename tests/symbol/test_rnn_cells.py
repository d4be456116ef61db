"""Recurrent cells over symbols and iterators over sentences."""

import numpy as np
import pytest

import mpgluon as mx
from support.calls import raises

LENGTH, BATCH, INPUTS, HIDDEN = 4, 3, 5, 6


def values(symbol, seed=0, **shapes):
    """Returns random arguments of a symbol by name."""
    draw = np.random.RandomState(seed)
    names, (found, _, _) = symbol.list_arguments(), symbol.infer_shape(**shapes)
    return {
        name: mx.nd.array(draw.uniform(-0.5, 0.5, shape)) if shape else mx.nd.zeros(())
        for name, shape in zip(names, found)
    }


def gluon_of(kind):
    return {
        "rnn": mx.gluon.rnn.RNNCell,
        "lstm": mx.gluon.rnn.LSTMCell,
        "gru": mx.gluon.rnn.GRUCell,
    }[kind]


def cell_of(kind, **kwargs):
    return {"rnn": mx.rnn.RNNCell, "lstm": mx.rnn.LSTMCell, "gru": mx.rnn.GRUCell}[kind](
        HIDDEN, **kwargs
    )


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_cells_equal_gluon_cells(kind):
    outputs, states = cell_of(kind, prefix="c_").unroll(
        LENGTH, mx.sym.Variable("data"), merge_outputs=True
    )
    symbol = mx.sym.Group([outputs, *states])
    arrays = values(symbol, data=(BATCH, LENGTH, INPUTS))
    found = symbol.eval(**arrays)
    cell = gluon_of(kind)(HIDDEN, input_size=INPUTS, prefix="c_")
    cell.initialize()
    for name, param in cell.collect_params().items():
        param.set_data(arrays[name])
    expected, expected_states = cell.unroll(LENGTH, arrays["data"], merge_outputs=True)
    for one, other in zip(found, [expected, *expected_states]):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-6)


def test_cell_outputs_and_states_have_mxnet_names():
    step = mx.rnn.LSTMCell(HIDDEN, prefix="l_")
    output, _ = step.unroll(2, [mx.sym.Variable("a"), mx.sym.Variable("b")])
    assert [one.name for one in output] == ["l_t0_out", "l_t1_out"]
    assert {"l_t0_i2h_output", "l_t1_slice_output0", "l_t0_state_output"} <= set(
        mx.sym.Group(output).get_internals().list_outputs()
    )
    assert [state.name for state in step.begin_state()] == ["l_begin_state_2", "l_begin_state_3"]
    step.reset()
    assert step(mx.sym.Variable("a"), step.begin_state())[0].name == "l_t0_out"


@pytest.mark.parametrize("layout", ["NTC", "TNC"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", ["rnn_relu", "rnn_tanh", "lstm", "gru"])
def test_fused_cell_equals_unfused_cells(mode, bidirectional, layout):
    fused = mx.rnn.FusedRNNCell(
        HIDDEN,
        num_layers=2,
        mode=mode,
        bidirectional=bidirectional,
        prefix="f_",
        get_next_state=True,
    )
    shape = (BATCH, LENGTH, INPUTS) if layout == "NTC" else (LENGTH, BATCH, INPUTS)
    outputs, _ = fused.unroll(LENGTH, mx.sym.Variable("data"), layout=layout, merge_outputs=True)
    arrays = values(outputs, data=shape)
    found = outputs.eval(**arrays)[0].asnumpy()
    single = fused.unfuse()
    weights = single.pack_weights(fused.unpack_weights({"f_parameters": arrays["f_parameters"]}))
    unrolled, _ = single.unroll(LENGTH, mx.sym.Variable("data"), layout=layout, merge_outputs=True)
    assert sorted(weights) == sorted(name for name in unrolled.list_arguments() if name != "data")
    np.testing.assert_allclose(
        unrolled.eval(data=arrays["data"], **weights)[0].asnumpy(), found, rtol=1e-5, atol=1e-6
    )
    back = fused.pack_weights(single.unpack_weights(weights))
    assert np.array_equal(back["f_parameters"].asnumpy(), arrays["f_parameters"].asnumpy())


def test_zoneout_and_residual_cells_modify_outputs():
    cell = mx.rnn.ZoneoutCell(
        mx.rnn.ResidualCell(mx.rnn.RNNCell(INPUTS, prefix="r_")),
        zoneout_outputs=0.5,
        zoneout_states=0.5,
    )
    outputs, _ = cell.unroll(LENGTH, mx.sym.Variable("data"), merge_outputs=True)
    arrays = values(outputs, data=(BATCH, LENGTH, INPUTS))
    plain, _ = mx.rnn.RNNCell(INPUTS, prefix="r_").unroll(
        LENGTH, mx.sym.Variable("data"), merge_outputs=True
    )
    expected = plain.eval(**arrays)[0] + arrays["data"]
    # Zoneout is inactive in prediction
    np.testing.assert_allclose(outputs.eval(**arrays)[0].asnumpy(), expected.asnumpy(), rtol=1e-6)
    with mx.autograd.train_mode():
        executor = outputs.bind(mx.cpu(), arrays)
        trained = executor.forward(is_train=True)[0].asnumpy()
    assert (trained == 0).any(), "no first output was zoned out"
    raises(AssertionError, "modifier", lambda: cell.base_cell.begin_state())
    raises(AssertionError, "step by step", lambda: mx.rnn.ZoneoutCell(mx.rnn.FusedRNNCell(HIDDEN)))


def test_stacked_cells_step_as_they_unroll():
    stack = mx.rnn.SequentialRNNCell()
    stack.add(mx.rnn.LSTMCell(HIDDEN, prefix="a_"))
    stack.add(mx.rnn.DropoutCell(0.5))
    stack.add(mx.rnn.GRUCell(HIDDEN, prefix="b_"))
    assert stack.state_shape == [(0, HIDDEN)] * 3
    unrolled = mx.sym.Group(stack.unroll(2, mx.sym.Variable("data"))[0])
    stack.reset()
    states, outputs = stack.begin_state(), []
    for step in mx.sym.split(mx.sym.Variable("data"), num_outputs=2, axis=1, squeeze_axis=True):
        output, states = stack(step, states)
        outputs.append(output)
    arrays = values(unrolled, data=(BATCH, 2, INPUTS))
    for one, other in zip(unrolled.eval(**arrays), mx.sym.Group(outputs).eval(**arrays)):
        assert np.array_equal(one.asnumpy(), other.asnumpy())
    stack.add(
        mx.rnn.BidirectionalCell(
            mx.rnn.RNNCell(HIDDEN, prefix="l_"), mx.rnn.RNNCell(HIDDEN, prefix="r_")
        )
    )
    raises(AssertionError, "unroll", lambda: stack(mx.sym.Variable("x"), stack.begin_state()))


@pytest.mark.parametrize("kind", ["ConvRNNCell", "ConvLSTMCell", "ConvGRUCell"])
def test_convolutional_cells_have_expected_shapes(kind):
    cell = getattr(mx.rnn, kind)(
        input_shape=(BATCH, 2, 8, 8),
        num_hidden=4,
        i2h_stride=(2, 2),
        activation="tanh",
        prefix="c_",
    )
    assert cell.state_shape[0] == (0, 4, 4, 4)
    outputs, _ = cell.unroll(2, [mx.sym.Variable("x0"), mx.sym.Variable("x1")])
    group = mx.sym.Group(outputs)
    assert group.list_outputs() == ["c_t0_out_output", "c_t1_out_output"]
    arrays = values(group, x0=(BATCH, 2, 8, 8), x1=(BATCH, 2, 8, 8))
    assert [one.shape for one in group.eval(**arrays)] == [(BATCH, 4, 4, 4)] * 2
    assert {one.name for one in cell.params._params.values()} == {
        "c_i2h_weight",
        "c_i2h_bias",
        "c_h2h_weight",
        "c_h2h_bias",
    }
    with pytest.raises(AssertionError, match="odd"):
        getattr(mx.rnn, kind)(input_shape=(1, 2, 8, 8), num_hidden=4, h2h_kernel=(2, 2))


def test_cells_share_params():
    params = mx.rnn.RNNParams("p_")
    cells = [mx.rnn.RNNCell(HIDDEN, prefix="p_", params=params) for _ in range(2)]
    assert cells[0].params is cells[1].params
    with pytest.raises(AssertionError, match="not to both"):
        mx.rnn.BidirectionalCell(cells[0], cells[1], params=mx.rnn.RNNParams("q_"))


def test_invalid_cell_arguments_raise():
    cell = mx.rnn.RNNCell(HIDDEN)
    with pytest.raises(AssertionError, match="2 inputs"):
        cell.unroll(3, [mx.sym.Variable("a"), mx.sym.Variable("b")])
    raises(AssertionError, "inputs must not be None", lambda: cell.unroll(3, None))
    with pytest.raises(AssertionError, match="group"):
        cell.unroll(2, mx.sym.Group([mx.sym.Variable("a"), mx.sym.Variable("b")]))
    with pytest.raises(NotImplementedError, match="unfuse"):
        mx.rnn.FusedRNNCell(HIDDEN)(mx.sym.Variable("x"), [])
    raises(ValueError, "mode", lambda: mx.rnn.FusedRNNCell(HIDDEN, mode="lstmp"))
    with pytest.raises(AssertionError, match="do not fit"):
        mx.rnn.FusedRNNCell(HIDDEN, prefix="f_").unpack_weights(
            {"f_parameters": mx.nd.zeros((1001,))}
        )


def test_checkpoints_convert_between_fused_and_single_cells(tmp_path):
    fused = mx.rnn.FusedRNNCell(HIDDEN, mode="gru", prefix="g_")
    outputs, _ = fused.unroll(LENGTH, mx.sym.Variable("data"), merge_outputs=True)
    arrays = values(outputs, data=(BATCH, LENGTH, INPUTS))
    mx.rnn.do_rnn_checkpoint(fused, str(tmp_path / "m"), period=2)(
        1, outputs, {"g_parameters": arrays["g_parameters"]}, {}
    )
    _, weights, aux = mx.rnn.load_rnn_checkpoint(fused.unfuse(), str(tmp_path / "m"), 2)
    assert sorted(weights) == [
        "g_l0_h2h_bias",
        "g_l0_h2h_weight",
        "g_l0_i2h_bias",
        "g_l0_i2h_weight",
    ]
    assert aux == {}
    _, weights, _ = mx.rnn.load_rnn_checkpoint([fused], str(tmp_path / "m"), 2)
    assert np.array_equal(weights["g_parameters"].asnumpy(), arrays["g_parameters"].asnumpy())


def test_encode_sentences_numbers_words():
    coded, vocab = mx.rnn.encode_sentences([["a", "b"], ["b", "c"]], invalid_label=0, start_label=0)
    assert coded == [[1, 2], [2, 3]] and vocab == {"\n": 0, "a": 1, "b": 2, "c": 3}
    again, same = mx.rnn.encode_sentences(
        [["c", "x", "y"]], vocab=dict(vocab), unknown_token="?", start_label=9
    )
    assert again == [[3, 9, 9]] and same["?"] == 9
    raises(AssertionError, "Unknown token x", lambda: mx.rnn.encode_sentences([["x"]], vocab=vocab))


@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_bucket_sentence_iter_pads_to_buckets(layout, caplog):
    sentences = (
        [[i] * 3 for i in range(1, 6)]
        + [[i, i + 1, i + 2, i + 3] for i in range(10, 14)]
        + [[7] * 9]
    )
    batches = mx.rnn.BucketSentenceIter(
        sentences, 2, buckets=[4, 3], invalid_label=-1, layout=layout
    )
    assert "1 sentences" in caplog.text
    assert batches.default_bucket_key == 4
    assert batches.provide_data[0].shape == ((2, 4) if layout == "NT" else (4, 2))
    seen = list(batches)
    assert sorted(batch.bucket_key for batch in seen) == [3, 3, 4, 4]
    for batch in seen:
        data, label = [
            array.asnumpy() if layout == "NT" else array.asnumpy().T
            for array in (batch.data[0], batch.label[0])
        ]
        assert batch.provide_data[0].shape == batch.data[0].shape
        assert np.array_equal(data[:, 1:], label[:, :-1]) and (label[:, -1] == -1).all()
    batches.reset()
    assert len(list(batches)) == 4
    with pytest.raises(ValueError, match="layout"):
        mx.rnn.BucketSentenceIter(sentences, 2, buckets=[4], layout="TC")
    raises(ValueError, "pass buckets", lambda: mx.rnn.BucketSentenceIter([[1], [1, 2]], 2))
    with pytest.raises(ValueError, match="longer than the largest"):
        mx.rnn.BucketSentenceIter([[1, 2, 3]], 1, buckets=[2])


def test_rnn_unroll_creates_input_variables():
    with pytest.warns(UserWarning, match="deprecated"):
        outputs, _ = mx.rnn.rnn_unroll(mx.rnn.RNNCell(HIDDEN, prefix="r_"), 2, input_prefix="in_")
    assert {"in_t0_data", "in_t1_data"} <= set(mx.sym.Group(outputs).list_arguments())
