"""Networks over several devices have the bits of one device, eager and hybridized."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon
from mpgluon.gluon import nn, rnn
from support.compare import same_bits
from support.devices import on
from support.networks import NETS, OPTIMIZERS, Chain, Placed, place, train


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", NETS)
def test_bits_do_not_depend_on_placement(kind, optimizer):
    kind = NETS[kind]
    eager = train(kind, 1, optimizer)
    compiled = train(kind, 1, optimizer, {})
    assert eager[0][-1] < eager[0][0] and np.isfinite(eager[0]).all()
    np.testing.assert_allclose(compiled[0], eager[0], rtol=1e-4)
    for devices in (2, 3):
        same_bits(train(kind, devices, optimizer), eager)
        same_bits(train(kind, devices, optimizer, {"exact": True}), eager)
        same_bits(train(kind, devices, optimizer, {}), compiled)


class ModelParallelLM(gluon.HybridBlock):
    def __init__(self, vocab, hidden, ctx1, ctx2, **kwargs):
        super().__init__(**kwargs)
        self.ctx2 = ctx2
        with self.name_scope():
            self.embed = nn.Embedding(vocab, hidden)
            self.lstm1 = rnn.LSTM(hidden, input_size=hidden)
            self.lstm2 = rnn.LSTM(hidden, input_size=hidden)
            self.decoder = nn.Dense(vocab, in_units=hidden, flatten=False)

    def hybrid_forward(self, F, tokens, state1, state2):
        out, state1 = self.lstm1(self.embed(tokens), state1)
        out, state2 = self.lstm2(out.as_in_context(self.ctx2), state2)
        return self.decoder(out), state1, state2


def language_model(ctx1, ctx2, hybridize):
    mx.random.seed(1)
    net = ModelParallelLM(30, 8, ctx1, ctx2, prefix="lm_")
    for name, child in net._children.items():
        child.initialize(mx.init.Xavier(), ctx=ctx1 if name in ("embed", "lstm1") else ctx2)
    if hybridize is not None:
        net.hybridize(**hybridize)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    state1, state2 = net.lstm1.begin_state(batch_size=4), net.lstm2.begin_state(batch_size=4)
    text = np.random.RandomState(0).randint(0, 30, (31, 4))
    losses = []
    for begin in (0, 10, 20) * 4:
        tokens = mx.nd.array(text[begin : begin + 10], ctx=ctx1)
        target = mx.nd.array(text[begin + 1 : begin + 11], ctx=ctx2)
        state1, state2 = [[state.detach() for state in states] for states in (state1, state2)]
        with autograd.record():
            out, state1, state2 = net(tokens, state1, state2)
            loss = loss_of(out.reshape((-1, 30)), target.reshape((-1,)))
        loss.backward()
        gluon.utils.clip_global_norm([p.grad() for p in net.collect_params().values()], 1.0)
        trainer.step(40)
        losses.append(float(loss.mean().asscalar()))
    assert [state.context for state in state1 + state2] == [ctx1] * 2 + [ctx2] * 2
    return net, (
        losses,
        {name: param.data().asnumpy() for name, param in net.collect_params().items()},
    )


def test_language_model_has_the_same_bits_on_two_devices():
    one, two = on(0), on(1)
    _, eager = language_model(one, one, None)
    assert eager[0][-1] < eager[0][0]
    same_bits(language_model(one, two, None)[1], eager)
    net, exact = language_model(one, two, {"exact": True})
    same_bits(exact, eager)
    same_bits(language_model(one, two, {})[1], language_model(one, one, {})[1])
    text = repr(net.compiled())
    assert "ModelParallelLM" in text and str(on(0)) in text and str(on(1)) in text
    assert set(net.collect_params().list_ctx()) == {one, two}


class Outputs(Placed):
    """Outputs on different devices; the loss does not use one of them."""

    names = ["a", "b"]

    def make(self):
        self.a, self.b = nn.Dense(4), nn.Dense(3)

    def hybrid_forward(self, F, x):
        y = self.a(x.as_in_context(self.places["a"]))
        z = self.b(y.as_in_context(self.places["b"]))
        return y, z, F.exp(y)


def test_outputs_on_several_devices_have_the_bits_of_one():
    results = []
    for devices, options in [(1, None), (2, None), (1, {}), (2, {}), (2, {"exact": True})]:
        mx.random.seed(2)
        net = Outputs(place(Outputs, devices))
        net.start()
        if options is not None:
            net.hybridize(**options)
        x = mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (2, 3)).astype("float32"))
        with autograd.record():
            y, z, _ = net(x)
            losses = [(y * y).sum(), z.sum()]
        autograd.backward(losses)
        assert y.context == on(0) and z.context == on(devices - 1)
        assert net.b.weight.grad().context == on(devices - 1)
        values = {name: param.grad().asnumpy() for name, param in net.collect_params().items()}
        results.append(([y.asnumpy().tolist(), z.asnumpy().tolist()], values))
    same_bits(results[1], results[0])
    same_bits(results[4], results[0])
    same_bits(results[3], results[2])


@pytest.mark.parametrize("hybrid", [False, True])
def test_missing_device_copy_error_names_block_and_devices(hybrid):
    class Forgets(Outputs):
        def hybrid_forward(self, F, x):
            return self.b(self.a(x))

    net = Forgets(place(Forgets, 2))
    net.start()
    net.hybridize(hybrid)
    with pytest.raises(mx.MXNetError) as caught:
        net(mx.nd.ones((2, 3)))
    for part in ("Forgets.b", "net_dense1_", str(on(0)), str(on(1)), "as_in_context"):
        assert part in str(caught.value)
    net.places["a"] = on(0)


@pytest.mark.parametrize("hybrid", [False, True])
def test_own_parameters_on_several_devices_train(hybrid):
    """A block may hold its own parameters on several devices if it moves its input there."""

    class Own(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.first = self.params.get("first", shape=(4, 4))
            self.second = self.params.get("second", shape=(4, 4))

        def hybrid_forward(self, F, x, first, second):
            return F.dot(F.dot(x, first).as_in_context(on(1)), second)

    results = []
    for second in (on(0), on(1)):
        mx.random.seed(4)
        net = Own()
        net.first.initialize(ctx=on(0))
        net.second.initialize(ctx=on(1))
        net.hybridize(hybrid)
        with autograd.record():
            y = net(mx.nd.ones((2, 4)))
        y.backward()
        results.append([y.asnumpy(), net.first.grad().asnumpy(), net.second.grad().asnumpy()])
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("hybrid", [False, True])
def test_replicas_of_a_split_network_use_their_own_parameters(hybrid):
    """Two replicas, each over two devices. Each parameter copy is selected by the device in use."""

    class Pair(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(prefix="net_", **kwargs)
            with self.name_scope():
                self.a, self.b = nn.Dense(4, in_units=3), nn.Dense(2, in_units=4)

        def hybrid_forward(self, F, x):
            # cpu(0) -> cpu(1), cpu(2) -> cpu(3)
            y = self.a(x)
            return self.b(y.as_in_context(on(y.context.device_id + 1)))

    net = Pair()
    net.a.initialize(ctx=[on(0), on(2)])
    net.b.initialize(ctx=[on(1), on(3)])
    net.hybridize(hybrid)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for _ in range(2):
        with autograd.record():
            losses = [
                net(part).sum()
                for part in gluon.utils.split_and_load(np.ones((4, 3)), [on(0), on(2)])
            ]
        autograd.backward(losses)
        assert [loss.context for loss in losses] == [on(1), on(3)]
        trainer.step(4)
    for param in net.collect_params().values():
        one, two = param.list_data()
        np.testing.assert_array_equal(one.asnumpy(), two.asnumpy())


def test_parameters_saved_on_two_devices_load_on_one(tmp_path):
    path = str(tmp_path / "net.params")
    net = Chain(place(Chain, 2))
    net.start()
    x = mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (5, 6)).astype("float32"))
    y = net(x).asnumpy()
    net.save_parameters(path)
    other = Chain(place(Chain, 1))
    other.load_parameters(path, ctx=on(0))
    np.testing.assert_array_equal(other(x).asnumpy(), y)
    third = Chain(place(Chain, 3))
    third.start()
    third.load_parameters(path)
    assert third.c.weight.list_ctx() == [on(2)]
    np.testing.assert_array_equal(third(x).asnumpy(), y)


def test_backward_sends_gradients_before_local_weight_gradients():
    class Split(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.first = nn.Dense(40, in_units=40)
                self.second = nn.Dense(40, in_units=40)
                self.third = nn.Dense(40, in_units=40)

        def hybrid_forward(self, F, x, large):
            y = self.third(self.second(self.first(x).as_in_context(on(1))))
            # Dominates the memory use, so other lifetimes are negligible
            return F.broadcast_add(y, F.mean(F.tanh(large)).reshape((1, 1)))

    net = Split()
    net.first.initialize(ctx=on(0))
    net.second.initialize(ctx=on(1))
    net.third.initialize(ctx=on(1))
    net.hybridize()
    large = mx.nd.ones((1000, 1000), ctx=on(1))
    large.attach_grad()
    with autograd.record():
        out = net(mx.nd.ones((40, 40)), large)
    out.backward()
    steps = net.compiled()[0]["devices"][str(on(1))]["backward"]
    kinds = [
        step["op"] if step["kind"] == "run" else step["kind"]
        for step in steps
        if step["kind"] in ("run", "copy")
    ]
    before, after = kinds[: kinds.index("copy")], kinds[kinds.index("copy") + 1 :]
    # Weight gradients are computed after the gradients of the layer inputs
    assert before.count("dot") < 4 and "dot" in after
