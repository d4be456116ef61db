"""PyTorch modules as blocks, and blocks as PyTorch modules."""

import copy
import io
import os
import pickle
import re
import threading
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from support.calls import raises
from support.compare import same_bits
from support.paths import ROOT
from support.training import backward_of, variable

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
    x = variable(nd.array(VALUES))
    loss = backward_of(lambda: (net(x) ** 2).mean())
    trainer.step(1)
    return loss.asscalar(), x.grad.asnumpy()


def assert_steps_agree(module, optimizer, net, trainer):
    for _ in range(4):
        loss, gradient = torch_step(module, optimizer)
        other_loss, other_gradient = gluon_step(net, trainer)
        assert loss == pytest.approx(other_loss, rel=1e-4)
        np.testing.assert_allclose(gradient, other_gradient, rtol=1e-3, atol=1e-5)


def test_trainer_trains_a_torch_module(tmp_path):
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


def test_torch_optimizer_trains_a_block(tmp_path):
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


def test_network_mixes_blocks_and_torch_modules():
    """A torch module between two Gluon layers trains with them."""
    net = nn.Sequential()
    first, last = nn.Dense(4, in_units=3), nn.Dense(1, in_units=4)
    first.initialize()
    last.initialize()
    net.add(first, mx.interop.torch_function(torch.nn.Linear(4, 4)), last)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    losses = [gluon_step(net, trainer)[0] for _ in range(10)]
    assert len(net.collect_params()) == 6 and losses[-1] < losses[0]


def test_torch_function_wraps_a_plain_function():
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


def test_torch_results_own_their_memory():
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


def test_requires_grad_maps_to_grad_req():
    module = torch.nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    net = mx.interop.torch_function(module)
    assert [p.grad_req for p in net.collect_params().values()] == ["write", "null"]
    net.collect_params().setattr("grad_req", "null")
    x = variable(nd.array(VALUES))
    backward_of(lambda: net(x))
    assert x.grad.asnumpy().any() and not module.weight.requires_grad


def test_torch_function_rejects_invalid_arguments():
    x = nd.array([[-1, 1]])
    for wrong, error, words in (
        (lambda: mx.interop.torch_function(torch.nn.ReLU(inplace=True))(x), mx.MXNetError, "wrote"),
        (lambda: mx.interop.torch_function(lambda a: 3)(x), TypeError, "must be a Tensor"),
        (lambda: mx.interop.torch_function(3), TypeError, "expected a torch.nn.Module"),
        (lambda: mx.interop.torch_function(nn.Dense(2)), RuntimeError, "initialize"),
    ):
        raises(error, words, wrong)
    net = mx.interop.torch_function(torch.nn.Linear(2, 2))
    net.cast("float16")
    raises(mx.MXNetError, "convert the module first", lambda: net(x))
    net = mx.interop.torch_function(torch.nn.Linear(2, 2))
    raises(mx.base.NotSupportedError, "no symbol", lambda: net(mx.sym.var("x")))
    raises(mx.MXNetError, r"cpu\(1\) and cpu\(0\)", lambda: net(x.as_in_context(mx.cpu(1))))


def ones_after(change):
    """Result of a linear layer that `change` modified after it became a block."""
    module = torch.nn.Linear(2, 1, bias=False)
    net = mx.interop.torch_function(module)
    change(module)
    return net(nd.ones((1, 2))).asscalar(), module.weight.sum().item()


def test_module_can_change_before_its_first_call():
    assert ones_after(lambda m: m.load_state_dict({"weight": torch.tensor([[1.0, 2]])})) == (3, 3)
    assert ones_after(lambda m: torch.nn.init.constant_(m.weight, 4)) == (8, 8)

    def replace(module):
        module.weight = torch.nn.Parameter(torch.tensor([[3.0, 4]]))

    def assign(module):
        module.weight.data = torch.tensor([[4.0, 5]])

    assert ones_after(replace) == (7, 7) and ones_after(assign) == (9, 9)


def test_state_dict_and_parameters_share_values():
    module = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    net = mx.interop.torch_function(module)
    (weight,) = net.collect_params().values()
    for number in range(1, 6):  # the writes are asynchronous
        weight.set_data(nd.dot(nd.ones((1, 400000)), nd.ones((400000, 2))) * 0 + number)
        assert module.state_dict()["0.weight"].tolist() == [[number, number]]
    weight.set_data(nd.dot(nd.ones((1, 400000)), nd.ones((400000, 2))))
    module.load_state_dict({"0.weight": torch.tensor([[1.0, 2]])})
    assert weight.data().asnumpy().tolist() == [[1, 2]]
    weight.initialize(mx.init.One(), force_reinit=True)  # reallocates the weight
    assert module.state_dict()["0.weight"].tolist() == [[1, 1]]
    module.load_state_dict({"0.weight": torch.tensor([[3.0, 4]])})
    assert weight.data().asnumpy().tolist() == [[3, 4]]


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_copied_wrapper_shares_weights_with_its_own_module(copied):
    block = nn.Dense(1, in_units=2, use_bias=False)
    block.initialize(mx.init.One())
    module = copied(mx.interop.torch_function(block))
    (name,) = module.state_dict()
    module.load_state_dict({name: torch.tensor([[1.0, 2]])})
    assert module(torch.ones(1, 2)).item() == 3
    assert module.block.weight.data().asnumpy().tolist() == [[1, 2]]
    assert block.weight.data().asnumpy().tolist() == [[1, 1]]
    net = mx.interop.torch_function(torch_network())
    net.module[0].weight.data = torch.full((5, 3), 7.0)
    net = copied(net)
    assert (net.module[0].weight == 7).all()
    with torch.no_grad():
        for tensor in net.module.parameters():
            tensor.fill_(2)
    x = torch.tensor(VALUES)
    assert np.allclose(net(nd.array(VALUES)).asnumpy(), net.module(x).detach().numpy())
    assert all(
        (p.data().asnumpy() == 2).all() for p in net.collect_params(".*(weight|bias)").values()
    )


def test_block_backward_raises_after_an_in_place_weight_update():
    block = nn.HybridSequential()
    block.add(*[nn.Dense(1, in_units=1, use_bias=False) for _ in range(2)])
    block.initialize(mx.init.Constant(2))
    module = mx.interop.torch_function(block)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for hybridize in (False, True):
        block.hybridize(hybridize)
        x = torch.ones(1, 1, requires_grad=True)
        first, second = module(x), module(x)
        first.backward()
        optimizer.step()
        raises(RuntimeError, "modified by an inplace operation", second.backward)
    frozen = nn.BatchNorm(in_channels=1)
    frozen.initialize()
    module = mx.interop.torch_function(frozen).eval()
    y = module(x)
    with torch.no_grad():
        next(module.buffers()).add_(1)
    raises(RuntimeError, "modified by an inplace operation", lambda: y.sum().backward())
    hidden = x * 1
    y = mx.interop.torch_function(nn.Activation("sigmoid"))(hidden)
    hidden += 1
    raises(RuntimeError, "modified by an inplace operation", lambda: y.sum().backward())


@pytest.mark.parametrize("hybridize", [False, True])
def test_module_backward_raises_after_an_in_place_weight_update(hybridize):
    parts = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    for part in parts:
        torch.nn.init.constant_(part.weight, 2)
    net = nn.HybridSequential()
    net.add(mx.interop.torch_function(torch.nn.Sequential(*parts)))
    net.hybridize(hybridize)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x = variable(nd.ones((1, 1)))
    for _ in range(2):  # only the first call copies its arguments
        with autograd.record():
            first, second = net(x), net(x)
        first.backward()
        trainer.step(1)
        raises(mx.MXNetError, "before trainer.step", second.backward)
    backward_of(lambda: net(x))
    slope = parts[0].weight.item() * parts[1].weight.item()
    assert x.grad.asscalar() == pytest.approx(slope)


def test_backward_raises_after_an_argument_changes():
    square, twice = (mx.interop.torch_function(f) for f in (torch.square, lambda a: a * 2))
    for number in range(3):
        x = variable(nd.array([3]))
        with autograd.record():
            y, z = square(x), twice(x)
        x[:] = 5
        z.backward()  # this gradient does not read the argument
        assert x.grad.asscalar() == 2
        if number:
            raises(mx.MXNetError, "call the module again", y.backward)


class Averages(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("scale", torch.tensor(1.0))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        self.scale = self.scale * 2
        self.calls += 1
        self.seen = torch.zeros(len(self.seen) + 1)
        return (x - self.mean) * self.weight * self.scale


@pytest.mark.parametrize("ctx", [mx.cpu(0), mx.cpu(1)])
def test_replaced_buffers_are_synchronized(tmp_path, ctx):
    module = Averages()
    alone = copy.deepcopy(module)
    net = mx.interop.torch_function(module)
    net.collect_params().reset_ctx(ctx)
    x = variable(nd.array([[1, 2], [3, 4]], ctx=ctx))
    with autograd.record():
        first, second = net(x), net(x)
    found = [first, second]
    source = torch.tensor([[1.0, 2], [3, 4]], requires_grad=True)
    for mine in found:
        y = alone(source)
        (expected,) = torch.autograd.grad(y.sum(), source)
        mine.backward()
        assert mine.asnumpy().tolist() == y.tolist()
        assert x.grad.asnumpy().tolist() == expected.tolist()
    values = net._collect_params_with_prefix()
    assert sorted(values) == ["mean", "scale", "seen", "weight"]
    assert values["mean"].data().asnumpy().tolist() == alone.mean.tolist() == module.mean.tolist()
    assert values["scale"].data().asscalar() == 4 and values["scale"].shape == ()
    net.save_parameters(str(tmp_path / "net"))
    other = mx.interop.torch_function(Averages())
    other.load_parameters(str(tmp_path / "net"))
    assert other.module.state_dict()["mean"].tolist() == alone.mean.tolist()
    assert other.module.state_dict()["scale"].item() == 4


def test_replaced_torch_parameters_are_trained():
    module = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    net = mx.interop.torch_function(module)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1})
    x = nd.ones((1, 2))
    net(x)
    for replace in (
        lambda: setattr(module[0], "weight", torch.nn.Parameter(torch.tensor([[3.0, 4]]))),
        lambda: module.__setitem__(0, torch.nn.Linear(2, 1, bias=False)),
        lambda: module[0].load_state_dict({"weight": torch.ones(1, 2)}, assign=True),
    ):
        replace()
        before = module[0].weight.detach().clone()
        y = backward_of(lambda: net(x))
        trainer.step(1)
        nd.waitall()
        assert y.asscalar() == before.sum().item()
        assert module[0].weight.tolist() == (before - 1).tolist()
    module[0].weight = torch.nn.Parameter(torch.zeros(2, 2))
    raises(mx.MXNetError, r"weight has shape \(1, 2\).*shape \(2, 2\)", lambda: net(x))
    module[0] = torch.nn.Linear(2, 1)
    raises(mx.MXNetError, r"the parameter 0.bias was added", lambda: net(x))
    module[0] = torch.nn.Identity()
    raises(mx.MXNetError, r"the parameter 0.weight was removed", lambda: net(x))


def test_module_shared_by_two_blocks_has_one_parameter():
    shared = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(shared.weight, 1)
    net = nn.Sequential()
    net.add(
        *[mx.interop.torch_function(module) for module in (shared, torch.nn.Sequential(shared))]
    )
    assert len(net.collect_params()) == 1
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1})
    backward_of(lambda: net(nd.array([[3]])))
    trainer.step(1)
    nd.waitall()
    assert shared.weight.item() == 1 - 6 and net(nd.ones((1, 1))).asscalar() == 25
    block = nn.Dense(1, in_units=1, use_bias=False)
    block.initialize(mx.init.One())
    modules = torch.nn.Sequential(*[mx.interop.torch_function(block) for _ in range(2)])
    (weight,) = modules.parameters()
    modules(torch.tensor([[3.0]])).sum().backward()
    assert weight.grad.item() == 6


class Mode(torch.nn.Module):
    def forward(self, x):
        before = self.training
        held.set()
        time.sleep(0.2)
        assert self.training == before
        return x * 0 + self.training


held = threading.Event()


def test_training_mode_is_per_thread():
    net = mx.interop.torch_function(Mode())
    x, found = nd.ones(1), {}

    def run(training):
        with autograd.record(train_mode=training):
            found[training] = net(x).asscalar()

    threads = [threading.Thread(target=run, args=(mode,)) for mode in (True, False)]
    threads[0].start()
    held.wait()
    threads[1].start()
    for thread in threads:
        thread.join()
    assert found == {True: 1, False: 0}


def test_null_grad_req_drops_only_that_gradient():
    block = nn.Dense(1, in_units=1)
    block.initialize(mx.init.One())
    module = mx.interop.torch_function(block)
    for wanted in (False, True):
        block.weight.grad_req = "write" if wanted else "null"
        module.zero_grad()
        module(torch.ones(1, 1)).backward()
        grads = {name: p.grad is not None for name, p in module.named_parameters()}
        assert grads == {block.weight.name: wanted, block.bias.name: True}
    layer = torch.nn.Linear(1, 1)
    net = mx.interop.torch_function(layer)
    weight = net.collect_params()[net.prefix + "weight"]
    for wanted in (False, True):
        layer.weight.requires_grad_(wanted)
        backward_of(lambda: net(nd.ones((1, 1))))
        assert (weight.grad_req != "null") == wanted
    block = nn.Dense(1, in_units=1)
    block.initialize()
    block.bias.grad_req = "null"
    module = mx.interop.torch_function(block)
    block.bias.grad_req = "write"
    with pytest.raises(mx.MXNetError, match="is a buffer of the module: set grad_req first"):
        module(torch.ones(1, 1))


def test_in_place_module_raises_and_keeps_its_input():
    for module in (torch.nn.ReLU(inplace=True), lambda a: a.view(-1).mul_(2)):
        for dtype in ("float32", "int32"):
            x = nd.array([-1, 1], dtype=dtype)
            net = mx.interop.torch_function(module)
            for scope in (autograd.pause, autograd.record):
                with scope(), pytest.raises(mx.MXNetError, match="wrote into one of its inputs"):
                    net(x)
                assert x.asnumpy().tolist() == [-1, 1]


def test_modules_from_inference_mode_are_rejected():
    block = nn.Dense(1, in_units=2)
    block.initialize(mx.init.One())
    module = mx.interop.torch_function(block)
    x = variable(nd.ones((1, 2)))
    with torch.inference_mode():
        assert module(torch.ones(1, 2)).item() == 2
        with pytest.raises(
            mx.MXNetError, match="weight of the module was created in torch.inference"
        ):
            mx.interop.torch_function(torch.nn.Linear(2, 1))
    layer = torch.nn.Linear(2, 1)
    with torch.inference_mode():
        net = mx.interop.torch_function(layer)
        for _ in range(2):
            backward_of(lambda: net(x))
        assert x.grad.asnumpy().tolist() == layer.weight.tolist()
    module(torch.ones(1, 2)).backward()
    assert [p.grad is not None for p in module.parameters()] == [True, True]


def test_unsupported_tensor_types_raise():
    for tensor, name in (
        (torch.zeros(2, dtype=torch.int16), "int16"),
        (torch.zeros(2) * 1j, "complex64"),
        (torch.tensor(1j), "complex64"),
    ):
        module = torch.nn.Linear(1, 1)
        module.register_buffer("numbers", tensor)
        with pytest.raises(ValueError, match=f"buffer numbers is torch.{name}.*Convert it"):
            mx.interop.torch_function(module)
        with pytest.raises(ValueError, match=f"a result is torch.{name}"):
            mx.interop.torch_function(lambda x: tensor)(nd.ones(1))
    with pytest.raises(mx.MXNetError, match="weight of the module has no shape yet"):
        mx.interop.torch_function(torch.nn.LazyLinear(1))


def trained(hybridize, ctx):
    """Losses, gradients and results of three steps of a network that contains a module."""
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
        x = variable(nd.array(np.random.RandomState(seed).rand(4, 3), ctx=ctx))
        loss = backward_of(lambda: (net(x) ** 2).sum())
        trainer.step(4)
        found += [loss, x.grad, net(x)]  # alternates training and prediction
    assert all(array.context == ctx for array in found)
    tensors = [*module.parameters(), *module.buffers()]
    return [array.asnumpy() for array in found] + [one.detach().numpy().copy() for one in tensors]


def test_module_has_the_same_bits_hybridized_and_on_another_device():
    """There, a module runs on the host and its results are copied back to the device."""
    expected = trained(False, mx.cpu(0))
    for hybridize, ctx in ((True, mx.cpu(0)), (False, mx.cpu(1)), (True, mx.cpu(1))):
        same_bits(trained(hybridize, ctx), expected)


def test_interop_page_examples_run():
    with open(os.path.join(ROOT, "docs", "interop.md")) as file:
        blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
    names = {"mx": mx, "nd": nd, "np": np, "nn": nn, "gluon": gluon, "autograd": autograd}
    names["torch"] = torch
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3 and names["x"].grad.asnumpy().any()
