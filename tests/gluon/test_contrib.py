"""gluon.contrib: convolutional and projected cells, variational dropout, pixel shuffling, samplers.
Expected values are MXNet 1.9.1's formulas in NumPy."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import contrib
from support.calls import raises
from support.training import backward_of


def values(*shape, seed=0):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, shape).astype("float32"))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unrolled(cell, x, **kwargs):
    return cell.unroll(x.shape[1], x, merge_outputs=True, **kwargs)


@pytest.mark.parametrize("dims, layout", [(1, "NCW"), (2, "NCHW"), (3, "NCDHW")])
@pytest.mark.parametrize("kind, gates", [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
def test_convolutional_cells_of_1x1_kernels_match_numpy(dims, layout, kind, gates):
    """With 1x1 kernels a convolution is a matrix product over the channels at each position."""
    size = (5, 4, 3)[:dims]
    cell = getattr(contrib.rnn, f"Conv{dims}D{kind}Cell")((0, *size), 3, 1, 1, prefix="c_")
    cell.initialize(mx.init.Uniform(0.5))
    assert cell._conv_layout == layout and cell.state_info(4)[0]["shape"] == (4, 3, *size)
    x = values(2, 3, 2, *size)
    outputs, states = unrolled(cell, x)
    weights = {name[2:]: param.data().asnumpy() for name, param in cell.collect_params().items()}
    assert weights["i2h_weight"].shape == (3 * gates, 2, *(1,) * dims)
    wi = weights["i2h_weight"].reshape(3 * gates, 2)
    wh = weights["h2h_weight"].reshape(3 * gates, 3)
    h = c = np.zeros((2, *size, 3), "float32")
    for t in range(3):
        i2h = np.moveaxis(x.asnumpy()[:, t], 1, -1) @ wi.T + weights["i2h_bias"]
        h2h = h @ wh.T + weights["h2h_bias"]
        if kind == "RNN":
            h = np.tanh(i2h + h2h)
        elif kind == "LSTM":
            i, f, g, o = np.split(i2h + h2h, 4, -1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            (ri, zi, ni), (rh, zh, nh) = np.split(i2h, 3, -1), np.split(h2h, 3, -1)
            update = sigmoid(zi + zh)
            h = (1 - update) * np.tanh(ni + sigmoid(ri + rh) * nh) + update * h
        np.testing.assert_allclose(
            outputs.asnumpy()[:, t], np.moveaxis(h, -1, 1), rtol=1e-4, atol=1e-5
        )
    assert len(states) == (2 if kind == "LSTM" else 1)
    eager = outputs.asnumpy()
    cell.hybridize()
    np.testing.assert_allclose(unrolled(cell, x)[0].asnumpy(), eager, rtol=1e-5, atol=1e-6)


def test_convolutional_cells_keep_state_shapes():
    cell = contrib.rnn.Conv2DLSTMCell(
        (7, 7, 2),
        3,
        (3, 3),
        (5, 3),
        i2h_pad=1,
        h2h_dilate=(1, 2),
        conv_layout="NHWC",
        activation="relu",
    )
    assert cell.state_info(4) == [{"shape": (4, 7, 7, 3), "__layout__": "NHWC"}] * 2
    assert repr(contrib.rnn.Conv1DGRUCell((2, 7), 3, 3, 3)) == "Conv1DGRUCell(2 -> 9, tanh, NCW)"
    raises(AssertionError, "odd", lambda: contrib.rnn.Conv1DRNNCell((2, 7), 3, 3, 2))
    with pytest.raises(AssertionError, match="i2h_kernel must be an integer or 1 of them"):
        contrib.rnn.Conv1DRNNCell((2, 7), 3, (3, 3), 3)


def test_convolutional_cell_supports_symbols_and_gradients():
    cell = contrib.rnn.Conv1DLSTMCell((2, 7), 3, 3, 3, prefix="c_")
    outputs, _ = cell.unroll(2, [mx.sym.var(f"x{i}") for i in range(2)])
    assert mx.sym.Group(outputs).list_outputs() == ["c_t0_out_output", "c_t1_out_output"]
    assert mx.sym.Group(outputs).infer_shape(x0=(1, 2, 7), x1=(1, 2, 7))[1] == [(1, 3, 5)] * 2
    cell.initialize()
    x = values(2, 2, 2, 7)
    x.attach_grad()
    backward_of(lambda: (unrolled(cell, x)[0] ** 2).sum())
    assert np.abs(x.grad.asnumpy()).sum() > 0 and np.abs(cell.h2h_weight.grad().asnumpy()).sum() > 0


def test_projected_lstm_cell_matches_numpy():
    cell = contrib.rnn.LSTMPCell(5, 3, prefix="p_")
    cell.initialize(mx.init.Uniform(0.5))
    x = values(2, 3, 4)
    outputs, (r, c) = unrolled(cell, x, valid_length=mx.nd.array([1, 3]))
    assert outputs.shape == (2, 3, 3)
    assert r.shape == (2, 3)
    assert c.shape == (2, 5)
    assert repr(cell) == "LSTMPCell(4 -> 20 -> 3)"
    weights = {name[2:]: param.data().asnumpy() for name, param in cell.collect_params().items()}
    out, state = np.zeros((2, 3)), np.zeros((2, 5))
    for t in range(3):
        gates = x.asnumpy()[:, t] @ weights["i2h_weight"].T + out @ weights["h2h_weight"].T
        i, f, g, o = np.split(gates, 4, -1)
        state = sigmoid(f) * state + sigmoid(i) * np.tanh(g)
        out = (sigmoid(o) * np.tanh(state)) @ weights["h2r_weight"].T
        valid = [0] if t else []
        expected = out.copy()
        expected[valid] = 0
        np.testing.assert_allclose(outputs.asnumpy()[:, t], expected, rtol=1e-4, atol=1e-6)
        if t == 0:
            np.testing.assert_allclose(r.asnumpy()[0], out[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("which", ["drop_inputs", "drop_states", "drop_outputs"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_variational_dropout_reuses_its_mask_across_steps(which, hybrid):
    base = gluon.rnn.RNNCell(20, prefix="rnn_", activation="relu", i2h_bias_initializer="ones")
    cell = contrib.rnn.VariationalDropoutCell(base, **{which: 0.5})
    assert cell.prefix == "rnn_vardrop"
    cell.initialize(mx.init.Constant(0.1))

    class Over(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def hybrid_forward(self, F, x):
            return self.cell.unroll(3, x, merge_outputs=True)[0]

    net = Over()
    if hybrid:
        net.hybridize()
    x = mx.nd.ones((4, 3, 10))
    with mx.autograd.record():
        one, two = net(x).asnumpy(), net(x).asnumpy()
    assert not np.array_equal(one, two)  # each sequence draws its own mask
    still = net(x).asnumpy()
    assert np.array_equal(still, net(x).asnumpy())
    if which == "drop_outputs":  # all steps share the mask
        assert np.array_equal(one == 0, np.repeat(one[:, :1] == 0, 3, axis=1))
        assert (one == 0).any()
        assert (one != 0).any()


def test_variational_dropout_rejects_bidirectional_cells():
    cell = gluon.rnn.BidirectionalCell(gluon.rnn.LSTMCell(2), gluon.rnn.LSTMCell(2))
    with pytest.raises(AssertionError, match="cells inside"):
        contrib.rnn.VariationalDropoutCell(cell, drop_states=0.5)


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("valid", [None, [1, 3]])
def test_dynamic_unroll_equals_unroll(layout, valid):
    cell = gluon.rnn.LSTMCell(5, input_size=4)
    cell.initialize(mx.init.Uniform(0.5))
    x = values(*((3, 2, 4) if layout == "TNC" else (2, 3, 4)))
    lengths = None if valid is None else mx.nd.array(valid)
    outputs, states = contrib.rnn.dynamic_unroll(
        cell, x, cell.begin_state(2), layout=layout, valid_length=lengths
    )
    expected, last = cell.unroll(3, x, layout=layout, merge_outputs=True, valid_length=lengths)
    for one, other in zip((outputs, *states), (expected, *last)):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "layer, shape, places",
    [
        (
            contrib.nn.PixelShuffle1D(2),
            (2, 6, 4),
            lambda a: a.reshape(2, 3, 2, 4).transpose(0, 1, 3, 2).reshape(2, 3, 8),
        ),
        (
            contrib.nn.PixelShuffle2D((2, 3)),
            (1, 12, 2, 5),
            lambda a: a.reshape(1, 2, 2, 3, 2, 5).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 4, 15),
        ),
        (
            contrib.nn.PixelShuffle3D((2, 1, 3)),
            (1, 12, 2, 3, 4),
            lambda a: (
                a.reshape(1, 2, 2, 1, 3, 2, 3, 4)
                .transpose(0, 1, 5, 2, 6, 3, 7, 4)
                .reshape(1, 2, 4, 3, 12)
            ),
        ),
    ],
)
def test_pixel_shuffle_matches_numpy(layer, shape, places):
    x = values(*shape)
    np.testing.assert_array_equal(layer(x).asnumpy(), places(x.asnumpy()))
    layer.hybridize()
    np.testing.assert_array_equal(layer(x).asnumpy(), places(x.asnumpy()))
    assert layer(mx.sym.var("x")).infer_shape(x=shape)[1] == [places(x.asnumpy()).shape]


def test_pixel_shuffle_rejects_wrong_factors_and_channels():
    assert repr(contrib.nn.PixelShuffle2D(2)) == "PixelShuffle2D((2, 2))"
    raises(AssertionError, "2 of them", lambda: contrib.nn.PixelShuffle2D((2, 2, 2)))
    with pytest.raises(mx.MXNetError):
        contrib.nn.PixelShuffle1D(2)(mx.nd.ones((1, 3, 4)))


def test_interval_sampler_order_and_length():
    assert list(contrib.data.IntervalSampler(13, 3)) == [0, 3, 6, 9, 12, 1, 4, 7, 10, 2, 5, 8, 11]
    few = contrib.data.IntervalSampler(13, 3, rollover=False)
    assert list(few) == [0, 3, 6, 9, 12]
    assert len(few) == 5
    assert len(contrib.data.IntervalSampler(13, 3)) == 13
    raises(AssertionError, "smaller", lambda: contrib.data.IntervalSampler(3, 5))


def test_sync_batch_norm_of_one_device_equals_batch_norm():
    x = values(3, 2, 4)
    layers = [
        gluon.contrib.nn.SyncBatchNorm(num_devices=1, momentum=0.8),
        gluon.nn.BatchNorm(momentum=0.8),
    ]
    results = []
    for layer in layers:
        layer.initialize()
        with autograd.record():
            y = layer(x)
        results.append([y, layer(x), layer.running_mean.data(), layer.running_var.data()])
    for one, other in zip(*results):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
    with pytest.warns(UserWarning, match="num_devices is not given"):
        gluon.contrib.nn.SyncBatchNorm()


class Named(gluon.Block):
    """Registers its children under names that differ between instances."""

    def add(self, block):
        self.register_child(block, block.name + str(len(self._children)))

    def forward(self, x):
        for child in self._children.values():
            x = child(x)
        return x


def named(first=gluon.nn.Dense):
    inner, net = Named(), Named()
    inner.add(first(4))
    net.add(inner)
    net.add(gluon.nn.Dense(3))
    return net


def test_saved_network_loads_under_different_child_names(tmp_path):
    net, other, x = named(), named(), values(2, 5)
    net.initialize(mx.init.Uniform(1))
    net.hybridize()
    expected = net(x).asnumpy()
    assert list(net._children) != list(other._children)
    net.save(str(tmp_path / "net"))
    other.load(str(tmp_path / "net"))
    np.testing.assert_allclose(other(x).asnumpy(), expected, rtol=1e-6)
    assert list(net._children) == list(other._children)
    assert list(other._children.values())[1]._active
    wrong = named(lambda units: gluon.nn.BatchNorm())
    before = list(wrong._children)
    with pytest.raises(ValueError, match="another model.*batchnorm2.*dense2"):
        wrong.load(str(tmp_path / "net"))
    assert list(wrong._children) == before
    more = named()
    more.add(gluon.nn.Dense(1))
    raises(ValueError, "2 children in the file.*has 3", lambda: more.load(str(tmp_path / "net")))
    (tmp_path / "net-model.json").write_text('{"named0": ')
    raises(ValueError, "not a model description", lambda: named().load(str(tmp_path / "net")))


@pytest.mark.parametrize("symbolic", [False, True])
def test_rand_zipfian_returns_expected_counts(symbolic):
    mx.random.seed(1)
    classes, count, top = mx.nd.array([0, 3]), 8192, 793
    if symbolic:
        group = mx.sym.Group(mx.sym.contrib.rand_zipfian(mx.sym.var("true"), count, top))
        sampled, true, expected = group.bind(mx.cpu(), {"true": classes}).forward()
    else:
        sampled, true, expected = mx.nd.contrib.rand_zipfian(classes, count, top)
    assert str(np.dtype(sampled.dtype)) == "int64"
    assert sampled.shape == expected.shape == (count,)
    assert true.dtype == np.float64
    drawn = sampled.asnumpy()
    assert drawn.min() == 0 and drawn.max() < top
    share = np.log((np.arange(top) + 2) / (np.arange(top) + 1)) / np.log(top + 1) * count
    np.testing.assert_allclose(true.asnumpy(), share[[0, 3]], rtol=1e-12)
    np.testing.assert_allclose(expected.asnumpy(), share[drawn], rtol=1e-12)
    found = np.bincount(drawn, minlength=top)
    np.testing.assert_allclose(found[:8], share[:8], rtol=0.2)


@pytest.mark.parametrize("hybridize", [False, True])
def test_deformable_convolutions_of_zero_offsets_are_convolutions(hybridize):
    x = nd.random.normal(shape=(2, 4, 7, 6))
    options = {"kernel_size": (3, 2), "strides": (1, 2), "padding": 1, "groups": 2}
    plain = gluon.nn.Conv2D(6, activation="relu", **options)
    plain.initialize(mx.init.Xavier())
    expected = plain(x)
    for kind in (
        contrib.cnn.DeformableConvolution,
        contrib.cnn.ModulatedDeformableConvolution,  # 2 sigmoid(0) is 1
    ):
        layer = kind(6, activation="relu", num_deformable_group=2, **options)
        layer.initialize()
        if hybridize:
            layer.hybridize()
        layer(x)
        layer.deformable_conv_weight.set_data(plain.weight.data())
        layer.deformable_conv_bias.set_data(plain.bias.data())
        np.testing.assert_allclose(layer(x).asnumpy(), expected.asnumpy(), rtol=1e-4, atol=1e-5)
        backward_of(lambda: layer(x).sum())
        assert layer.offset_weight.grad().asnumpy().any()
    assert "groups=2" in repr(layer) and layer.offset_weight.shape == (36, 2, 3, 2)
    raises(ValueError, "layout", lambda: contrib.cnn.DeformableConvolution(2, layout="NHWC"))
    bare = contrib.cnn.DeformableConvolution(2, use_bias=False, offset_use_bias=False)
    bare.initialize()
    assert bare(x).shape == (2, 2, 7, 6) and bare.deformable_conv_bias is None
