"""Networks over several devices: the same bits as on one, eager and hybridized."""

import numpy as np
import pytest
from support.devices import on

import mpgluon as mx
from mpgluon import autograd, gluon
from mpgluon.gluon import nn, rnn

STEPS = 20
OPTIMIZERS = {"sgd": {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3}, "adam": {"learning_rate": 0.01}}


class Placed(gluon.HybridBlock):
    """The base of the networks below: `places` says on which device each child lives."""

    def __init__(self, places, **kwargs):
        super().__init__(prefix="net_", **kwargs)
        self.places = places
        with self.name_scope():
            self.make()

    def start(self):
        for name, child in self._children.items():
            child.initialize(mx.init.Xavier(), ctx=self.places[name])


class Chain(Placed):
    """One layer after the other, with dropout, over as many devices as there are."""

    names = ["a", "b", "c"]

    def make(self):
        self.a, self.b, self.c = nn.Dense(8, activation="tanh"), nn.Dense(8, activation="relu"), nn.Dense(4)
        self.drop = nn.Dropout(0.3)

    def hybrid_forward(self, F, x):
        for name in self.names:
            x = getattr(self, name)(x.as_in_context(self.places[name]))
            x = self.drop(x) if name != "c" else x
        return x


class BackAndForth(Placed):
    """Every device is visited twice."""

    names = ["a", "b", "c"]

    def make(self):
        self.a, self.b, self.c = nn.Dense(8, in_units=6), nn.Dense(8, in_units=8), nn.Dense(8, in_units=8)
        self.drop = nn.Dropout(0.2)

    def hybrid_forward(self, F, x):
        x = self.a(x.as_in_context(self.places["a"]))
        y = self.b(F.tanh(x).as_in_context(self.places["b"]))
        z = self.c(self.drop(y).as_in_context(self.places["c"]))
        z = self.b(F.relu(z).as_in_context(self.places["b"]))
        return x + z.as_in_context(self.places["a"])


class Branches(Placed):
    """Branches on several devices, joined on the first."""

    names = ["stem", "left", "right", "head"]

    def make(self):
        self.stem = nn.Dense(8, activation="tanh")
        self.left = nn.HybridSequential()
        self.left.add(nn.Dense(8, activation="relu"), nn.Dropout(0.5), nn.Dense(6))
        self.right = nn.HybridSequential()
        self.right.add(nn.Dense(6), nn.LayerNorm())
        self.head = nn.Dense(4)

    def hybrid_forward(self, F, x):
        x = self.stem(x.as_in_context(self.places["stem"]))
        left = self.left(x.as_in_context(self.places["left"]))
        right = self.right(x.as_in_context(self.places["right"]))
        joined = F.concat(*[y.as_in_context(self.places["head"]) for y in (left, right)], dim=1)
        return self.head(joined)


class Shared(Placed):
    """One weight used on two devices: it is copied, and its gradient is the sum of both uses."""

    names = ["embed", "middle"]

    def make(self):
        self.embed = Tied(12, 6)
        self.middle = nn.Dense(6, activation="tanh")

    def hybrid_forward(self, F, x):
        tokens = F.floor(F.abs(x) * 11)
        y = self.middle(self.embed(tokens).as_in_context(self.places["middle"]))
        return self.embed.decode(y)


class Tied(gluon.HybridBlock):
    def __init__(self, vocab, units, **kwargs):
        super().__init__(**kwargs)
        self.vocab, self.units = vocab, units
        self.weight = self.params.get("weight", shape=(vocab, units))

    def hybrid_forward(self, F, tokens, weight):
        return F.Embedding(tokens, weight, input_dim=self.vocab, output_dim=self.units)

    def decode(self, x):
        weight = self.weight.data(self.weight.list_ctx()[0]).as_in_context(x.context)
        return mx.nd.FullyConnected(x, weight, num_hidden=self.vocab, no_bias=True)


class Recurrent(Placed):
    """A language model: embedding and first LSTM, then second LSTM and decoder elsewhere."""

    names = ["embed", "lstm1", "lstm2", "decoder"]

    def make(self):
        self.embed = nn.Embedding(20, 6)
        self.lstm1 = rnn.LSTM(6, input_size=6)
        self.lstm2 = rnn.LSTM(6, input_size=6)
        self.decoder = nn.Dense(20, in_units=6, flatten=False)
        self.drop = nn.Dropout(0.2)

    def hybrid_forward(self, F, x):
        tokens = F.floor(F.abs(x) * 19)
        out = self.lstm1(self.embed(tokens).as_in_context(self.places["lstm1"]))
        out = self.lstm2(self.drop(out).as_in_context(self.places["lstm2"]))
        return self.decoder(out.as_in_context(self.places["decoder"]))


NETS = {net.__name__: net for net in (Chain, BackAndForth, Branches, Shared, Recurrent)}


def place(kind, devices):
    """Children spread over so many devices in order; those without parameters need no place."""
    names = kind.names
    return {**dict.fromkeys(["drop"], on(0)), **{name: on(i * devices // len(names)) for i, name in enumerate(names)}}


def train(kind, devices, optimizer, hybridize=None, steps=STEPS):
    """Losses and final parameters."""
    mx.random.seed(9)
    net = kind(place(kind, devices))
    net.start()
    if hybridize is not None:
        net.hybridize(**hybridize)
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]))
    draw = np.random.RandomState(0)
    losses = []
    for _ in range(steps):
        x = mx.nd.array(draw.uniform(-1, 1, (5, 6)).astype("float32"))
        with autograd.record():
            y = net(x)
            loss = (y * y).mean()
        loss.backward()
        gluon.utils.clip_global_norm([p.grad() for p in net.collect_params().values()], 0.5, check_isfinite=False)
        trainer.step(1)
        losses.append(loss)
    values = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    return [loss.asscalar() for loss in losses], values


def same(a, b):
    assert a[0] == b[0]
    for name in a[1]:
        np.testing.assert_array_equal(a[1][name], b[1][name], err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", NETS)
def test_bits_do_not_depend_on_placement(kind, optimizer):
    kind = NETS[kind]
    eager = train(kind, 1, optimizer)
    compiled = train(kind, 1, optimizer, {})
    assert eager[0][-1] < eager[0][0] and np.isfinite(eager[0]).all()
    np.testing.assert_allclose(compiled[0], eager[0], rtol=1e-4)
    for devices in (2, 3):
        same(train(kind, devices, optimizer), eager)
        same(train(kind, devices, optimizer, {"exact": True}), eager)
        same(train(kind, devices, optimizer, {}), compiled)


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
    return net, (losses, {name: param.data().asnumpy() for name, param in net.collect_params().items()})


def test_language_model():
    one, two = on(0), on(1)
    _, eager = language_model(one, one, None)
    assert eager[0][-1] < eager[0][0]
    same(language_model(one, two, None)[1], eager)
    net, exact = language_model(one, two, {"exact": True})
    same(exact, eager)
    same(language_model(one, two, {})[1], language_model(one, one, {})[1])
    text = repr(net.compiled())
    assert "ModelParallelLM" in text and str(on(0)) in text and str(on(1)) in text
    assert set(net.collect_params().list_ctx()) == {one, two}


class Outputs(Placed):
    """Outputs on different devices, one of them not used for the loss."""

    names = ["a", "b"]

    def make(self):
        self.a, self.b = nn.Dense(4), nn.Dense(3)

    def hybrid_forward(self, F, x):
        y = self.a(x.as_in_context(self.places["a"]))
        z = self.b(y.as_in_context(self.places["b"]))
        return y, z, F.exp(y)


def test_outputs_on_several_devices():
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
    same(results[1], results[0])
    same(results[4], results[0])
    same(results[3], results[2])


@pytest.mark.parametrize("hybrid", [False, True])
def test_forgotten_move(hybrid):
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
def test_own_parameters_on_several_devices(hybrid):
    """A block may hold parameters of its own on devices to which it moves its input itself."""

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
def test_replicas_of_a_split_network(hybrid):
    """Two replicas of a network, each over two devices: every copy is found by the device it is used on."""

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
            losses = [net(part).sum() for part in gluon.utils.split_and_load(np.ones((4, 3)), [on(0), on(2)])]
        autograd.backward(losses)
        assert [loss.context for loss in losses] == [on(1), on(3)]
        trainer.step(4)
    for param in net.collect_params().values():
        one, two = param.list_data()
        np.testing.assert_array_equal(one.asnumpy(), two.asnumpy())


def test_save_on_two_devices_and_load_on_one(tmp_path):
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


def test_a_device_sends_what_another_waits_for_before_it_does_the_rest():
    class Split(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.first = nn.Dense(40, in_units=40)
                self.second = nn.Dense(40, in_units=40)
                self.third = nn.Dense(40, in_units=40)

        def hybrid_forward(self, F, x, large):
            y = self.third(self.second(self.first(x).as_in_context(on(1))))
            return F.broadcast_add(y, F.mean(F.tanh(large)).reshape((1, 1)))  # what lives longer is little beside this

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
    kinds = [step["op"] if step["kind"] == "run" else step["kind"] for step in steps if step["kind"] in ("run", "copy")]
    before, after = kinds[: kinds.index("copy")], kinds[kinds.index("copy") + 1 :]
    assert before.count("dot") < 4 and "dot" in after  # gradients of weights come after those of the layers' inputs
