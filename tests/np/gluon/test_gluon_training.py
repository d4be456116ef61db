"""Training on arrays of mx.np: the bits of mx.nd with each optimizer, initializer, metric, store
and placement."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, init, nd, npx
from mpgluon.gluon import nn
from programs.features.table import OPTIMIZERS
from support.compare import same_bits
from support.kinds import Momentum, both

draw = np.random.RandomState(5)
DATA = draw.uniform(-1, 1, (6, 3)).astype("float32")
LABELS = draw.randint(0, 2, 6).astype("float32")


@pytest.fixture(autouse=True)
def _off():
    yield
    npx.reset_np()


def array(values, numpy, dtype=None):
    made = nd.array(values, dtype=dtype or "float32")
    return made.as_np_ndarray() if numpy else made


def network(ctx=None, dtype="float32"):
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Dense(4, activation="relu"), nn.BatchNorm(), nn.Dense(2))
    net.initialize(init.Xavier(), ctx=ctx)
    net.cast(dtype)
    return net


def trained(net, trainer, numpy, steps=3, dtype="float32"):
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(steps):
        with autograd.record():
            result = loss(net(array(DATA, numpy, dtype)), array(LABELS, numpy)).mean()
        result.backward()
        trainer.step(1)
    return [param.data() for param in net.collect_params().values()]


OWN = [name for name in OPTIMIZERS if name not in ("nested", "muon")]


@pytest.mark.parametrize("way", ["float32", "float16", "store"])
@pytest.mark.parametrize("name", OWN)
def test_optimizers_update_with_the_bits_of_nd(name, way):
    dtype = "float16" if way == "float16" else "float32"
    options = {**OPTIMIZERS[name], "multi_precision": dtype == "float16"}

    def train(numpy):
        net = network(dtype=dtype)
        net(array(DATA, numpy, dtype))
        store = {"update_on_kvstore": True} if way == "store" else {}
        trainer = gluon.Trainer(net.collect_params(), name.split()[0], options, **store)
        return trained(net, trainer, numpy, dtype=dtype)

    both(train)


def test_optimizers_of_programs_get_arrays_of_nd():
    def train(numpy):
        net = network()
        net(array(DATA, numpy))
        optimizer = Momentum(learning_rate=0.5)
        arrays = trained(net, gluon.Trainer(net.collect_params(), optimizer), numpy)
        assert optimizer.kind is nd.NDArray
        return arrays

    both(train)


def test_subclasses_of_own_optimizers_get_arrays_of_nd():
    class Counting(mx.optimizer.SGD):
        def update(self, index, weight, grad, state):
            one = weight[0] if isinstance(weight, list) else weight
            self.kind = type(one)
            super().update(index, weight, grad, state)

    def train(numpy):
        net = network()
        net(array(DATA, numpy))
        optimizer = Counting(learning_rate=0.5, momentum=0.5)
        arrays = trained(net, gluon.Trainer(net.collect_params(), optimizer), numpy)
        assert optimizer.kind is nd.NDArray
        return arrays

    both(train)


LISTS = ("sgd", "ccsgd", "lars", "lamb")  # optimizers whose `update` gets lists in MXNet


@pytest.mark.parametrize("method", ["update", "update_multi_precision"])
@pytest.mark.parametrize("name", OWN)
def test_overridden_updates_get_single_arrays_except_where_mxnet_passes_lists(name, method):
    short, options = name.split()[0], OPTIMIZERS[name]
    base = mx.optimizer.Optimizer.class_of(short)

    class Own(base):
        seen = frozenset()

        def update(self, index, weight, grad, state):
            self._see(index, weight, grad)
            super().update(index, weight, grad, state)

        def update_multi_precision(self, index, weight, grad, state):
            self._see(index, weight, grad)
            super().update_multi_precision(index, weight, grad, state)

        def _see(self, *given):
            self.seen = self.seen | {isinstance(part, list) for part in given}

    setattr(Own, method, vars(Own)[method])
    delattr(Own, {"update": "update_multi_precision"}.get(method, "update"))

    def train(optimizer):
        mx.random.seed(3)
        net = network()
        net(array(DATA, False))
        trainer = gluon.Trainer(net.collect_params(), optimizer)
        return [value.asnumpy() for value in trained(net, trainer, False)]

    own = Own(**options)
    for result, expected in zip(train(own), train(base(**options))):
        same_bits(result, expected)
    assert own.seen == {short in LISTS}


class MixedState(mx.optimizer.Optimizer):
    def create_state(self, index, weight):
        return mx.np.zeros(weight.shape)


class Multiplies(MixedState):
    def update(self, index, weight, grad, state):
        weight[:] = weight - state * grad


class Assigns(MixedState):
    def update(self, index, weight, grad, state):
        state[:] = grad


class Copies(mx.optimizer.Adam):
    def create_state(self, index, weight):
        return mx.np.zeros_like(weight)


@pytest.mark.parametrize("optimizer", [Multiplies, Assigns, Copies])
def test_optimizers_that_mix_kinds_raise_an_error_that_tells_what_they_get(optimizer):
    npx.set_np()
    net = network()
    trainer = gluon.Trainer(net.collect_params(), optimizer())
    message = f"^{optimizer.__name__}: .*of optimizers get arrays of mx.nd.*as_np_ndarray"
    with pytest.raises(TypeError, match=message):
        trained(net, trainer, True)


INITIALIZERS = [
    init.Zero(),
    init.One(),
    init.Constant(0.5),
    init.Uniform(0.3),
    init.Normal(0.2),
    init.Orthogonal(),
    init.Orthogonal(rand_type="normal"),
    init.Xavier(),
    init.Xavier("gaussian", "in", 2),
    init.MSRAPrelu(),
    init.Mixed([".*bias", ".*"], [init.One(), init.Uniform()]),
]


@pytest.mark.parametrize("initializer", INITIALIZERS, ids=repr)
@pytest.mark.parametrize("deferred", [False, True])
def test_initializers_fill_the_bits_of_nd(initializer, deferred):
    def fill(numpy):
        net = nn.Dense(4, in_units=0 if deferred else 3)
        net.initialize(initializer)
        net(array(DATA, numpy))
        return [param.data() for param in net.collect_params().values()]

    both(fill)


@pytest.mark.parametrize(
    ("initializer", "shape"), [(init.Bilinear(), (2, 1, 4, 4)), (init.LSTMBias(2.0), (8,))]
)
def test_initializers_of_other_shapes(initializer, shape):
    def fill(numpy):
        param = gluon.Parameter("x_weight", shape=shape, init=initializer)
        param.initialize()
        return [param.data()]

    both(fill)


def test_initializer_of_a_program_gets_numpy_arrays():
    kinds = []

    class Own(init.Initializer):
        def _init_weight(self, name, arr):
            kinds.append(type(arr))
            arr[:] = 2

    npx.set_np()
    net = nn.Dense(2, in_units=3, weight_initializer=Own())
    net.initialize()
    assert kinds == [mx.np.ndarray] and (net.weight.data().asnumpy() == 2).all()


def test_verbose_initializers_log_the_norm(caplog):
    npx.set_np()
    initializer = init.Constant(3.0).set_verbosity(True)
    with caplog.at_level("INFO"):
        initializer(init.InitDesc("x_weight"), mx.np.zeros((2, 2)))
    assert caplog.messages == ["Initialized x_weight as weight: 3.0"]


PROBABILITIES = np.float32([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
BINARY = np.float32([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
CLASSES = (np.float32([0, 1, 0]), PROBABILITIES)
METRICS = {
    "acc": CLASSES,
    "top_k_accuracy": CLASSES,
    "f1": (np.float32([0, 1, 1]), BINARY),
    "mcc": (np.float32([0, 1, 1]), BINARY),
    "perplexity": CLASSES,
    "mae": (DATA, -DATA),
    "mse": (DATA, -DATA),
    "rmse": (DATA, -DATA),
    "ce": CLASSES,
    "nll_loss": CLASSES,
    "pearsonr": (DATA, DATA**3),
    "pcc": CLASSES,
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_those_of_nd(name):
    label, pred = METRICS[name]
    options = {"top_k_accuracy": {"top_k": 2}, "perplexity": {"ignore_label": None}}
    found = []
    for numpy in (False, True):
        (npx.set_np if numpy else npx.reset_np)()
        metric = mx.metric.create(name, **options.get(name, {}))
        for _ in range(2):
            metric.update([array(label, numpy)], [array(pred, numpy)])
        found.append(metric.get())
    assert found[0] == found[1]


def test_loss_metric_takes_results_without_dimensions():
    npx.set_np()
    metric = mx.metric.Loss()
    metric.update(None, [array([1, 2, 6], True).mean()])
    metric.update(None, array([1, 5], True))
    assert metric.get() == ("loss", 3.0)


PLACES = {
    "one device": None,
    "two devices": {"0": mx.cpu(1), "1|2": mx.cpu(0)},
}


def test_placed_networks_train_to_the_bits_of_one_device():
    npx.set_np()
    results = []
    for where in PLACES.values():
        for options in (None, {}, {"exact": True}):
            mx.random.seed(4)
            net = network()
            if where is not None:
                net.place(where)
            if options is not None:
                net.hybridize(**options)
            net(array(DATA, True))
            arrays = trained(net, gluon.Trainer(net.collect_params(), "adam"), True)
            assert {type(a) for a in arrays} == {mx.np.ndarray}
            results.append([a.asnumpy() for a in arrays])
    for result in results[1:]:
        same_bits(result, results[0])


@pytest.mark.parametrize("kvstore", ["device", None])
@pytest.mark.parametrize("store", [False, True])
def test_replicas_train_to_the_bits_of_nd(kvstore, store):
    devices = [mx.cpu(0), mx.cpu(1)]
    if kvstore is None and store:
        pytest.skip("no store")

    def train(numpy):
        net = network(ctx=devices)
        loss = gluon.loss.L2Loss()
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", kvstore=kvstore, update_on_kvstore=store or None
        )
        for _ in range(2):
            parts = gluon.utils.split_and_load(DATA, devices)
            assert {type(part) for part in parts} == {mx.np.ndarray if numpy else nd.NDArray}
            with autograd.record():
                losses = [loss(net(part), part[:, :2]) for part in parts]
            autograd.backward(losses)
            trainer.step(6)
        return [a for p in net.collect_params().values() for a in p.list_data()]

    both(train)


@pytest.mark.parametrize("where", PLACES)
def test_pipelines_train_to_the_bits_of_nd(where):
    def train(numpy):
        net = nn.HybridSequential()
        with net.name_scope():
            net.add(nn.Dense(4, activation="relu"), nn.Dropout(0.3), nn.Dense(2))
        net.initialize(init.Xavier())
        if PLACES[where] is not None:
            net.place(PLACES[where])
        net(array(DATA, numpy))
        net.hybridize(pipeline=mx.parallel.Pipeline(micro_batches=3))
        results = trained(net, gluon.Trainer(net.collect_params(), "sgd"), numpy)
        return [*results, net(array(DATA, numpy))]

    both(train)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_train_steps_compute_the_bits_of_nd(micro_batches):
    def train(numpy):
        net = network()
        net(array(DATA, numpy))
        trainer = gluon.Trainer(net.collect_params(), "adam")
        step = mx.parallel.TrainStep(
            net, gluon.loss.L2Loss(), trainer, mx.parallel.Pipeline(micro_batches)
        )
        losses = [step(array(DATA, numpy), array(DATA[:, :2], numpy)) for _ in range(3)]
        assert {type(one) for one in losses} == {mx.np.ndarray if numpy else nd.NDArray}
        return [*losses, *[param.data() for param in net.collect_params().values()]]

    both(train)


def test_clip_global_norm_scales_numpy_arrays():
    def clip(numpy):
        arrays = [array(DATA, numpy), array(LABELS, numpy)]
        norm = gluon.utils.clip_global_norm(arrays, 0.5)
        other = gluon.utils.clip_global_norm(arrays, 0.25, check_isfinite=False)
        assert isinstance(norm, float) and type(other) is type(arrays[0])
        return [*arrays, other]

    both(clip)


def test_test_utils_accept_numpy_arrays():
    from mpgluon import test_utils

    npx.set_np()
    x = array(DATA, True)
    assert test_utils.same(x, DATA) and test_utils.same_array(x, x.as_nd_ndarray())
    assert test_utils.almost_equal(x, x + 1e-9)
    test_utils.assert_almost_equal(x, DATA)
    with pytest.raises(AssertionError):
        test_utils.assert_almost_equal(x, x + 1)
    kinds = set()

    def function(a, b):
        kinds.update((type(a), type(b)))
        return [nd.tanh(a) * b, (a * b).sum()]

    test_utils.check_numeric_gradient(function, [DATA, DATA[::-1].copy()])
    assert kinds == {mx.np.ndarray}


def test_hybridized_results_are_compared_with_eager_ones():
    class Net(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.weight = self.params.get("weight", shape=(3,))

        def hybrid_forward(self, F, x, weight):
            assert type(x) is mx.np.ndarray
            return x * weight if hybridized is None else x * hybridized(x)

    hybridized = None
    inputs = [array(DATA, True)]
    mx.test_utils.check_gluon_hybridize_consistency(Net, inputs)
    hybridized = lambda x: 2.0 if x._in_trace else 1.0
    with pytest.raises(AssertionError, match="hybridized"):
        mx.test_utils.check_gluon_hybridize_consistency(Net, inputs)
    hybridized = lambda x: 2.0
    check = mx.test_utils.check_gluon_hybridize_consistency
    check(Net, inputs, numpy_func=lambda x: 2 * x, test_grad=False)
    with pytest.raises(AssertionError, match="numpy_func"):
        check(Net, inputs, numpy_func=lambda x: 3 * x)
