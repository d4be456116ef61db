"""Modules of PyTorch as blocks, and blocks as modules of PyTorch."""

import os
import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.paths import ROOT

torch = pytest.importorskip("torch")
VALUES = np.random.default_rng(3).standard_normal((8, 3)).astype("float32")


def torch_network():
    parts = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(inplace=True)
    return torch.nn.Sequential(*parts, torch.nn.Linear(5, 2))


def gluon_network():
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=3), nn.BatchNorm(in_channels=5), nn.Activation("relu"))
    net.add(nn.Dense(2, in_units=5))
    net.initialize(mx.init.Normal(0.5))
    return net


def torch_step(module, optimizer):
    x = torch.tensor(VALUES, requires_grad=True)
    loss = (module(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), x.grad.numpy()


def gluon_step(net, trainer):
    x = nd.array(VALUES)
    x.attach_grad()
    with autograd.record():
        loss = (net(x) ** 2).mean()
    loss.backward()
    trainer.step(1)
    return loss.asscalar(), x.grad.asnumpy()


def assert_steps_agree(module, optimizer, net, trainer):
    for _ in range(4):
        loss, gradient = torch_step(module, optimizer)
        other_loss, other_gradient = gluon_step(net, trainer)
        assert loss == pytest.approx(other_loss, rel=1e-4)
        np.testing.assert_allclose(gradient, other_gradient, rtol=1e-3, atol=1e-5)


def test_a_trainer_trains_a_module(tmp_path):
    module, alone = torch_network(), torch_network()
    alone.load_state_dict(module.state_dict())
    net = mx.interop.torch_function(module)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    assert_steps_agree(alone, optimizer, net, trainer)
    for mine, other in zip(module.state_dict().values(), alone.state_dict().values()):
        assert torch.allclose(mine.float(), other.float(), atol=1e-5)
    x = nd.array(VALUES)
    before = net(x).asnumpy()
    expected = alone.eval()(torch.tensor(VALUES)).detach().numpy()
    np.testing.assert_allclose(before, expected, rtol=1e-4, atol=1e-6)
    net.save_parameters(str(tmp_path / "net"))
    net.collect_params().initialize(mx.init.One(), force_reinit=True)
    assert not np.allclose(net(x).asnumpy(), before)
    net.load_parameters(str(tmp_path / "net"))
    np.testing.assert_array_equal(net(x).asnumpy(), before)


def test_an_optimizer_of_torch_trains_a_block(tmp_path):
    net, alone = gluon_network(), gluon_network()
    net.save_parameters(str(tmp_path / "net"))
    alone.load_parameters(str(tmp_path / "net"))
    net.hybridize()
    module = mx.interop.torch_function(net)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    trainer = gluon.Trainer(alone.collect_params(), "sgd", {"learning_rate": 0.1})
    assert_steps_agree(module, optimizer, alone, trainer)
    x = nd.array(VALUES)
    predicted = module.eval()(torch.tensor(VALUES)).detach().numpy()
    for block in (net, alone):
        np.testing.assert_allclose(predicted, block(x).asnumpy(), rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert not module(torch.tensor(VALUES)).requires_grad


def test_parts_of_both():
    """A module between layers, in one network with them."""
    net = nn.Sequential()
    first, last = nn.Dense(4, in_units=3), nn.Dense(1, in_units=4)
    first.initialize()
    last.initialize()
    net.add(first, mx.interop.torch_function(torch.nn.Linear(4, 4)), last)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    losses = [gluon_step(net, trainer)[0] for _ in range(10)]
    assert len(net.collect_params()) == 6 and losses[-1] < losses[0]


def test_functions():
    x, y = nd.array([[1, 2], [3, 4]]), nd.array([1, 10])
    x.attach_grad()
    y.attach_grad()

    def function(a, factor, b, nothing=None):
        return a * factor * b, a.reshape(-1), a.argmax()

    with autograd.record():
        product, flat, largest = mx.interop.torch_function(function)(x, 2, y, None)
        total = product.sum() + (flat**2).sum()
    total.backward(retain_graph=True)
    expected = [[2 + 2, 20 + 4], [2 + 6, 20 + 8]]
    assert x.grad.asnumpy().tolist() == expected and y.grad.asnumpy().tolist() == [8, 12]
    total.backward()
    assert x.grad.asnumpy().tolist() == expected and largest.asscalar() == 3
    assert mx.interop.torch_function(lambda a: a.t())(x).asnumpy().tolist() == [[1, 3], [2, 4]]


def test_results_own_their_memory():
    x = nd.array([1, 2])
    y = mx.interop.torch_function(torch.nn.Identity())(x)
    x[:] = 7
    assert y.asnumpy().tolist() == [1, 2]
    x.attach_grad()
    with autograd.record():
        y = mx.interop.torch_function(torch.sigmoid)(x)
        loss = y.sum()
    y[:] = 0
    loss.backward()
    assert x.grad.asnumpy() == pytest.approx(np.exp(-7) / (1 + np.exp(-7)) ** 2, rel=1e-3)
    module = mx.interop.torch_function(nn.Activation("sigmoid"))
    source = torch.tensor([0.0, 1.0], requires_grad=True)
    result = module(source)
    result += 1
    result.sum().backward()
    assert source.grad.numpy() == pytest.approx(np.array([0.25, 0.19661193]))


def test_frozen_parameters():
    module = torch.nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    net = mx.interop.torch_function(module)
    assert [p.grad_req for p in net.collect_params().values()] == ["write", "null"]
    net.collect_params().setattr("grad_req", "null")
    x = nd.array(VALUES)
    x.attach_grad()
    with autograd.record():
        y = net(x)
    y.backward()
    assert x.grad.asnumpy().any() and not module.weight.requires_grad


def test_errors():
    x = nd.array([[-1, 1]])
    for wrong, error, words in (
        (lambda: mx.interop.torch_function(torch.nn.ReLU(inplace=True))(x), mx.MXNetError, "wrote"),
        (lambda: mx.interop.torch_function(lambda a: 3)(x), TypeError, "has to be a Tensor"),
        (lambda: mx.interop.torch_function(3), TypeError, "takes a torch.nn.Module"),
        (lambda: mx.interop.torch_function(nn.Dense(2)), RuntimeError, "initialize"),
    ):
        with pytest.raises(error, match=words):
            wrong()
    net = mx.interop.torch_function(torch.nn.Linear(2, 2))
    net.cast("float16")
    with pytest.raises(mx.MXNetError, match="convert the module first"):
        net(x)
    net = mx.interop.torch_function(torch.nn.Linear(2, 2))
    with pytest.raises(mx.base.NotSupportedError, match="no symbol"):
        net(mx.sym.var("x"))
    with pytest.raises(mx.MXNetError, match=r"cpu\(1\) and cpu\(0\)"):
        net(x.as_in_context(mx.cpu(1)))


def trained(hybridize, ctx):
    """What three steps of a network around a module give."""
    torch.manual_seed(0)
    mx.random.seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(3, in_units=3), mx.interop.torch_function(module), nn.Dense(2, in_units=4))
    net[1].collect_params().reset_ctx(ctx)
    for layer in (net[0], net[2]):
        layer.initialize(ctx=ctx)
    if hybridize:
        net.hybridize()
    trainer, found = gluon.Trainer(net.collect_params(), "sgd"), []
    for seed in range(3):
        x = nd.array(np.random.RandomState(seed).rand(4, 3), ctx=ctx)
        x.attach_grad()
        with autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        trainer.step(4)
        found += [loss, x.grad, net(x)]  # trains and predicts in turn
    assert all(array.context == ctx for array in found)
    tensors = [*module.parameters(), *module.buffers()]
    return [array.asnumpy() for array in found] + [one.detach().numpy().copy() for one in tensors]


def test_hybridized_and_on_another_device():
    """A module is a step on the host there; PyTorch's results come back to the device."""
    expected = trained(False, mx.cpu(0))
    for hybridize, ctx in ((True, mx.cpu(0)), (False, mx.cpu(1)), (True, mx.cpu(1))):
        for one, other in zip(trained(hybridize, ctx), expected):
            np.testing.assert_array_equal(one, other)


def test_examples_of_the_page():
    with open(os.path.join(ROOT, "docs", "interop.md")) as file:
        blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
    names = {"mx": mx, "nd": nd, "np": np, "nn": nn, "gluon": gluon, "autograd": autograd}
    names["torch"] = torch
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3 and names["x"].grad.asnumpy().any()
