"""Layers: names, shapes, values against NumPy or PyTorch, eager and hybridized."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd
from mpgluon.gluon import contrib, nn
from support.calls import raises
from support.training import variable

draw = np.random.RandomState(4)


def inputs(*shape):
    return mx.nd.array(draw.uniform(-1, 1, shape).astype("float32"))


# layer, its repr, input shape, output shape, parameters after the first call
LAYERS = [
    (
        lambda: nn.Dense(3),
        "Dense(None -> 3, linear)",
        (2, 4, 5),
        (2, 3),
        {"weight": (3, 20), "bias": (3,)},
    ),
    (
        lambda: nn.Dense(3, flatten=False),
        "Dense(None -> 3, linear)",
        (2, 4, 5),
        (2, 4, 3),
        {"weight": (3, 5), "bias": (3,)},
    ),
    (
        lambda: nn.Dense(3, activation="relu", use_bias=False, in_units=4),
        "Dense(4 -> 3, Activation(relu))",
        (2, 4),
        (2, 3),
        {"weight": (3, 4)},
    ),
    (lambda: nn.Dropout(0.5), "Dropout(p = 0.5, axes=())", (2, 3), (2, 3), {}),
    (lambda: nn.Flatten(), "Flatten", (2, 3, 4), (2, 12), {}),
    (lambda: nn.Activation("tanh"), "Activation(tanh)", (2, 3), (2, 3), {}),
    (lambda: nn.LeakyReLU(0.1), "LeakyReLU(0.1)", (2, 3), (2, 3), {}),
    (lambda: nn.PReLU(), None, (2, 3), (2, 3), {"alpha": (1,)}),
    (lambda: nn.ELU(), None, (2, 3), (2, 3), {}),
    (lambda: nn.SELU(), None, (2, 3), (2, 3), {}),
    (lambda: nn.GELU(), None, (2, 3), (2, 3), {}),
    (lambda: nn.Swish(), None, (2, 3), (2, 3), {}),
    (lambda: nn.HybridLambda("relu"), "HybridLambda(relu)", (2, 3), (2, 3), {}),
    (
        lambda: nn.BatchNorm(),
        "BatchNorm(axis=1, eps=1e-05, momentum=0.9, fix_gamma=False, use_global_stats=False, "
        "in_channels=None)",
        (2, 3, 4, 4),
        (2, 3, 4, 4),
        {"gamma": (3,), "beta": (3,), "running_mean": (3,), "running_var": (3,)},
    ),
    (
        lambda: nn.LayerNorm(),
        "LayerNorm(eps=1e-05, axis=-1, center=True, scale=True, in_channels=0)",
        (2, 3, 4),
        (2, 3, 4),
        {"gamma": (4,), "beta": (4,)},
    ),
    (
        lambda: nn.InstanceNorm(in_channels=3),
        "InstanceNorm(eps=1e-05, axis=1, center=True, scale=False, in_channels=3)",
        (2, 3, 4, 4),
        (2, 3, 4, 4),
        {"gamma": (3,), "beta": (3,)},
    ),
    (
        lambda: nn.GroupNorm(2),
        "GroupNorm(eps=1e-05, num_groups=2, center=True, scale=True)",
        (2, 4, 3),
        (2, 4, 3),
        {"gamma": (2,), "beta": (2,)},
    ),
    (
        lambda: nn.Conv1D(4, 3),
        "Conv1D(None -> 4, kernel_size=(3,), stride=(1,))",
        (2, 3, 8),
        (2, 4, 6),
        {"weight": (4, 3, 3), "bias": (4,)},
    ),
    (
        lambda: nn.Conv2D(
            4,
            (3, 2),
            strides=2,
            padding=1,
            groups=2,
            in_channels=4,
            use_bias=False,
            activation="relu",
        ),
        "Conv2D(2 -> 4, kernel_size=(3, 2), stride=(2, 2), padding=(1, 1), groups=2, bias=False, "
        "Activation(relu))",
        (2, 4, 8, 8),
        (2, 4, 4, 5),
        {"weight": (4, 2, 3, 2)},
    ),
    (
        lambda: nn.Conv3D(2, 2),
        "Conv3D(None -> 2, kernel_size=(2, 2, 2), stride=(1, 1, 1))",
        (1, 2, 3, 3, 3),
        (1, 2, 2, 2, 2),
        {"weight": (2, 2, 2, 2, 2), "bias": (2,)},
    ),
    (
        lambda: nn.Conv2DTranspose(4, 3, strides=2, output_padding=1, in_channels=3),
        "Conv2DTranspose(4 -> 3, kernel_size=(3, 3), stride=(2, 2))",
        (2, 3, 4, 4),
        (2, 4, 10, 10),
        {"weight": (3, 4, 3, 3), "bias": (4,)},
    ),
    (
        lambda: nn.MaxPool2D(),
        "MaxPool2D(size=(2, 2), stride=(2, 2), padding=(0, 0), ceil_mode=False, global_pool=False, "
        "pool_type=max, layout=NCHW)",
        (2, 3, 5, 5),
        (2, 3, 2, 2),
        {},
    ),
    (lambda: nn.MaxPool1D(2, 1), None, (2, 3, 5), (2, 3, 4), {}),
    (lambda: nn.MaxPool3D(2), None, (1, 2, 4, 4, 4), (1, 2, 2, 2, 2), {}),
    (lambda: nn.AvgPool1D(3), None, (2, 3, 9), (2, 3, 3), {}),
    (lambda: nn.AvgPool2D(2, ceil_mode=True), None, (2, 3, 5, 5), (2, 3, 3, 3), {}),
    (lambda: nn.AvgPool3D(2), None, (1, 2, 4, 4, 4), (1, 2, 2, 2, 2), {}),
    (lambda: nn.GlobalAvgPool2D(), None, (2, 3, 5, 5), (2, 3, 1, 1), {}),
    (lambda: nn.GlobalMaxPool1D(), None, (2, 3, 5), (2, 3, 1), {}),
    (lambda: contrib.nn.Identity(), None, (2, 3), (2, 3), {}),
]


@pytest.mark.parametrize(
    "make, text, shape, out_shape, params",
    LAYERS,
    ids=[make().name + str(i) for i, (make, *_) in enumerate(LAYERS)],
)
def test_layer_has_expected_repr_shapes_and_gradients(make, text, shape, out_shape, params):
    layer = make()
    if text is not None:
        assert repr(layer) == text
    layer.initialize(
        mx.init.Xavier() if layer.collect_params(".*weight").keys() else mx.init.Uniform()
    )
    x = variable(inputs(*shape))

    def run():
        mx.random.seed(7)
        with autograd.record():
            y = layer(x)
            loss = (y * y).sum()
        loss.backward()
        grads = [
            p.grad().asnumpy() for p in layer.collect_params().values() if p.grad_req != "null"
        ]
        return [y.asnumpy(), x.grad.asnumpy(), *grads]

    eager = run()
    assert eager[0].shape == out_shape
    assert {
        name: param.shape for name, param in layer._collect_params_with_prefix().items()
    } == params
    layer.hybridize(exact=True)
    for a, b in zip(run(), eager):
        np.testing.assert_array_equal(a, b)


def test_embedding_looks_up_rows():
    layer = nn.Embedding(5, 3)
    assert repr(layer) == "Embedding(5 -> 3, float32)"
    layer.initialize()
    out = layer(mx.nd.array([[0, 4], [2, 2]]))
    np.testing.assert_array_equal(out.asnumpy(), layer.weight.data().asnumpy()[[[0, 4], [2, 2]]])


def test_dense_matches_numpy():
    layer = nn.Dense(3, in_units=4, activation="sigmoid")
    layer.initialize(mx.init.Normal(1))
    x = inputs(2, 4)
    expected = x.asnumpy() @ layer.weight.data().asnumpy().T + layer.bias.data().asnumpy()
    np.testing.assert_allclose(layer(x).asnumpy(), 1 / (1 + np.exp(-expected)), rtol=1e-5)


def test_batch_norm_updates_running_statistics():
    layer = nn.BatchNorm(momentum=0.9)
    layer.initialize()
    x = inputs(8, 3, 5)
    flat = x.asnumpy().transpose(1, 0, 2).reshape(3, -1)
    with autograd.record():
        y = layer(x)
    y.wait_to_read()
    expected = (x.asnumpy() - flat.mean(1)[:, None]) / np.sqrt(flat.var(1) + 1e-5)[:, None]
    np.testing.assert_allclose(y.asnumpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        layer.running_mean.data().asnumpy(), 0.1 * flat.mean(1), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        layer.running_var.data().asnumpy(), 0.9 + 0.1 * flat.var(1), rtol=1e-4
    )
    assert layer.running_mean.grad_req == "null"
    mean = layer.running_mean.data().asnumpy()
    layer(x)
    np.testing.assert_array_equal(layer.running_mean.data().asnumpy(), mean)


@pytest.mark.parametrize("exact", [None, True, False])
def test_batch_norm_gradient_cancels_exactly(exact):
    # The exact gradient of the sum is zero. Without compensation, the rounding error of the mean
    # remains.
    net = nn.BatchNorm(in_channels=20)
    net.initialize()
    if exact is not None:
        net.hybridize(exact=exact)
    x = variable(mx.nd.random.uniform(100, 101, shape=(8, 20, 9, 9)))
    with autograd.record():
        net(x).backward()
    assert abs(x.grad.asnumpy()).max() < 1e-9
    assert abs(net.gamma.grad().asnumpy()).max() < 1e-4


def test_batch_norm_relu_equals_relu_of_batch_norm():
    x = inputs(4, 3, 5)
    plain, fused = nn.BatchNorm(), nn.BatchNormReLU()
    for layer in (plain, fused):
        layer.initialize()
    np.testing.assert_allclose(fused(x).asnumpy(), np.maximum(plain(x).asnumpy(), 0), rtol=1e-6)


def test_grouped_convolution_matches_torch():
    torch = pytest.importorskip("torch")
    layer = nn.Conv2D(6, 3, strides=2, padding=1, dilation=1, groups=2, in_channels=4)
    layer.initialize(mx.init.Normal(1))
    x = inputs(2, 4, 9, 7)
    expected = torch.nn.functional.conv2d(
        torch.tensor(x.asnumpy()),
        torch.tensor(layer.weight.data().asnumpy()),
        torch.tensor(layer.bias.data().asnumpy()),
        stride=2,
        padding=1,
        groups=2,
    )
    np.testing.assert_allclose(layer(x).asnumpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_layers_reject_invalid_arguments():
    raises(AssertionError, "layout", lambda: nn.Conv2D(3, 3, layout="HWCN"))
    raises(AssertionError, "kernel_size", lambda: nn.Conv2D(3, (3, 3, 3)))
    raises(AssertionError, "alpha", lambda: nn.LeakyReLU(-1))
    raises(AssertionError, "no_such_function", lambda: nn.HybridLambda("no_such_function"))
    raises(ValueError, "lambda", lambda: nn.Lambda(3))


def test_concurrent_concatenates_its_children():
    x = inputs(2, 3)
    for kind in (contrib.nn.Concurrent, contrib.nn.HybridConcurrent):
        net = kind(axis=1)
        net.add(nn.Dense(2), nn.Dense(3), contrib.nn.Identity())
        net.initialize()
        assert net(x).shape == (2, 8)
        net.hybridize()
        assert net(x).shape == (2, 8)


def test_lambda_blocks_call_their_function():
    assert nn.Lambda(lambda x: x * 2)(mx.nd.ones((2,))).asnumpy().tolist() == [2, 2]
    assert nn.HybridLambda(lambda F, x: F.relu(x))(mx.nd.array([-1, 1])).asnumpy().tolist() == [
        0,
        1,
    ]
    assert repr(nn.Lambda("relu")) == "Lambda(relu)"


def test_sequential_of_hybrid_children_warns_on_hybridize():
    net = nn.Sequential()
    net.add(nn.Dense(2), nn.Dense(3))
    with pytest.warns(UserWarning, match="HybridSequential"):
        net.hybridize()
