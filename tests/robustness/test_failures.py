"""User errors, exhausted memory and pitfalls of hybridize raise exceptions with cause and location,
and later work succeeds."""

import gc

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.context import memory_stats, set_memory_limit
from mpgluon.gluon import nn, rnn
from support.failures import Session, Small, sweep
from support.networks import place, wide as networks

pytestmark = pytest.mark.usefixtures("garbage_set_aside")  # collected if memory is short


def model(kind, options):
    net = kind(place(kind, 2))
    if options is not None:
        net.hybridize(**options)
    return net, gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})


@pytest.mark.parametrize(
    "options", [None, {}, {"exact": True}], ids=["eager", "hybridized", "exact"]
)
@pytest.mark.parametrize("kind", ["MLP", "Branches", "Recurrent"])
def test_every_failed_allocation_of_a_step_raises(kind, options, tmp_path):
    kind, x, path = networks.NETS[kind], networks.batch(), str(tmp_path / "net.params")

    def step(net, trainer):
        nd.Concat(*[x] * 40, dim=0)  # needs workspace even with memory cached from earlier steps
        return networks.step(net, trainer, x).asscalar()

    def first():
        step(*model(kind, options))

    # Memory cached from earlier steps saves an eager step most of its allocations, so every
    # remaining one fails once.
    assert sweep(first, stride=1 if options is None else 5) > (0 if options is None else 2)
    net, trainer = model(kind, options)
    step(net, trainer)
    used = [memory_stats(mx.cpu(i))["in_use"] for i in range(2)]
    assert sweep(lambda: step(net, trainer)) > 0
    assert sweep(lambda: net.save_parameters(path)) > 5
    net.save_parameters(path)
    assert sweep(lambda: net.load_parameters(path)) > 5
    assert np.isfinite(step(net, trainer))
    gc.collect()
    nd.waitall()
    for i in range(2):
        assert memory_stats(mx.cpu(i))["in_use"] <= used[i] + (1 << 18)


def export(session, folder):
    net = Small()
    net.hybridize()
    net(session.x).asnumpy()
    net.export(f"{folder}/exported")
    gluon.SymbolBlock.imports(
        f"{folder}/exported-symbol.json", ["data"], f"{folder}/exported-0000.params"
    )


@pytest.mark.parametrize(
    "stride, counts", [(9, [1, 12]), pytest.param(1, [1, 2, 12], marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("way", ["eager", "hybridized", "exact", "pipelined", "train step"])
def test_failed_allocations_of_each_operation_raise(way, stride, counts, tmp_path):
    """Makes host and device allocations fail during each operation: a MemoryError is raised and the
    next step is unaffected."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "other").mkdir()
    session = Session(way)
    session.step()
    session.save(tmp_path / "kept")

    def again():
        session.load(tmp_path / "kept")
        mx.random.seed(9)
        return session.step(), session.net.out.weight.data().asnumpy().tobytes()

    again()
    expected, first = again(), Session(way).step()
    for count in counts:
        for name, work, check, wanted in [
            ("step", session.step, again, expected),
            ("save", lambda: session.save(tmp_path / "other"), again, expected),
            ("load", lambda: session.load(tmp_path / "kept"), again, expected),
            ("compile", lambda: Session(way).step(), lambda: Session(way).step(), first),
            ("export", lambda: export(session, tmp_path), again, expected),
        ]:
            every = stride if name in ("step", "save", "load") else 12 * stride

            def one(work=work):
                for ctx in (mx.cpu(0), mx.cpu(1)):
                    ctx.empty_cache()
                work()

            def after(name=name, check=check, wanted=wanted):
                assert check() == wanted, f"after an error in {name} the next step differs"

            failures = sweep(one, stride=every, count=count, after=after)
            assert failures > 0 or every > 1, name


@pytest.mark.parametrize("options", [None, {}], ids=["eager", "hybridized"])
def test_step_under_any_memory_limit_works_or_names_the_device(options):
    """No memory leaks and no update is lost."""
    devices = [mx.cpu(90), mx.cpu(91)]

    def attempt():
        net = networks.Chain(
            {name: devices[ctx.device_id] for name, ctx in place(networks.Chain, 2).items()}
        )
        if options is not None:
            net.hybridize(**options)
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9}
        )
        loss = networks.step(net, trainer, networks.batch().as_in_context(devices[0])).asscalar()
        nd.waitall()
        return loss

    mx.random.seed(1)
    expected = attempt()
    gc.collect()
    outcomes = []
    try:
        for limit in range(1, 900_000, 45_000):
            for ctx in devices:
                ctx.empty_cache()
                set_memory_limit(ctx, limit)
            mx.random.seed(1)
            try:
                assert attempt() == expected
                outcomes.append(True)
            except MemoryError as error:
                assert isinstance(error, mx.MXNetError)
                for part in ("is out of memory: asked for", "held", f"limit {limit} bytes"):
                    assert part in str(error)
                outcomes.append(False)
            try:
                nd.waitall()  # work queued before the failure
            except MemoryError:
                pass
            gc.collect()
    finally:
        for ctx in devices:
            set_memory_limit(ctx, None)
    assert not outcomes[0] and outcomes[-1]
    mx.random.seed(1)
    assert attempt() == expected


TRAPS = {
    "bool": lambda F, x: x if x.sum() > 0 else -x,
    "float": lambda F, x: x * float(x.sum()),
    "int": lambda F, x: x * int(x.sum()),
    "asnumpy": lambda F, x: x * x.asnumpy().sum(),
    "asscalar": lambda F, x: x * x.sum().asscalar(),
    "value": lambda F, x: x.__setitem__(0, 1),
}


@pytest.mark.parametrize("name", TRAPS)
def test_reading_values_in_a_trace_raises_with_a_hint(name):
    net = nn.HybridLambda(TRAPS[name])
    net.hybridize()
    with pytest.raises(mx.MXNetError, match=name) as caught:
        net(nd.ones((2, 3)))
    for part in ("hybridize()", "test_failures.py:", "F.where"):  # cause, location and remedy
        assert part in str(caught.value)
    net.hybridize(False)
    assert name == "value" or net(nd.ones((2, 3))).shape == (2, 3)


def test_invalid_layer_and_optimizer_arguments_raise():
    layer = rnn.LSTM(4)
    layer.initialize()
    with pytest.raises(
        ValueError,
        match=r"LSTM: the input must have 3 dimensions \(T, N, C\), but its shape is \(2, 3\)",
    ):
        layer(nd.ones((2, 3)))
    dense = nn.Dense(3, in_units=2)
    dense.initialize()
    with pytest.raises(TypeError, match="learning_rate must be at least 0.*got str: 'fast'"):
        gluon.Trainer(dense.collect_params(), "sgd", {"learning_rate": "fast"})
    with pytest.raises(
        mx.MXNetError,
        match="dilate has the element 4611686018427387904; it must be at least 1 and at most",
    ):
        nd.Convolution(
            nd.ones((1, 1, 3, 3)),
            nd.ones((1, 1, 3, 3)),
            no_bias=True,
            kernel=(3, 3),
            dilate=(2**62, 1),
            num_filter=1,
        )
    for shape, words in [
        ((2**40, 2**40), "too large"),
        ((-2, 3), "negative"),
        ((2**50,), "out of memory"),
    ]:
        with pytest.raises(mx.MXNetError, match=words):
            nd.zeros(shape)
    assert dense(nd.ones((1, 2))).shape == (1, 3)


EMPTY = {
    "dense": (lambda: nn.Dense(3), (0, 4), (0, 3)),
    "conv": (lambda: nn.Conv2D(3, 3), (0, 2, 5, 5), (0, 3, 3, 3)),
    "pool": (lambda: nn.MaxPool2D(2), (0, 2, 4, 4), (0, 2, 2, 2)),
    "lstm": (lambda: rnn.LSTM(3), (0, 2, 4), (0, 2, 3)),
    "lstm without batch": (lambda: rnn.LSTM(3), (5, 0, 4), (5, 0, 3)),
    "layer norm": (lambda: nn.LayerNorm(), (0, 4), (0, 4)),
    "embedding": (lambda: nn.Embedding(5, 3), (0, 2), (0, 2, 3)),
    "dropout": (lambda: nn.Dropout(0.5), (0, 4), (0, 4)),
}


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("name", EMPTY)
def test_layers_accept_arrays_of_zero_size(name, hybridize):
    make, shape, expected = EMPTY[name]
    net = make()
    net.initialize()
    net.hybridize(hybridize)
    params = net.collect_params()
    x = nd.zeros(shape)
    if not params:
        x.attach_grad()
    with autograd.record():
        y = net(x)
        loss = (y * y).sum()
    loss.backward()
    assert y.shape == expected and loss.asscalar() == 0
    if params:
        before = {key: param.data().asnumpy() for key, param in params.items()}
        gluon.Trainer(params, "sgd", {"learning_rate": 0.1}).step(1)
        for key, param in params.items():
            np.testing.assert_array_equal(param.data().asnumpy(), before[key])


@pytest.mark.parametrize("automatic", [True, False], ids=["gc enabled", "gc disabled"])
def test_garbage_is_collected_before_a_device_is_out_of_memory(automatic):
    """Reference cycles are collected to free memory, for instance a model in the traceback of an
    earlier error."""
    ctx = mx.cpu(92)
    set_memory_limit(ctx, 20 << 20)
    finalized = []

    class Holder:
        def __init__(self):
            self.me, self.array = self, nd.ones((3 << 20,), ctx=ctx)

        def __del__(self):
            # runs ops inside the allocating call
            finalized.append(float(self.array[:4].sum().asscalar()))

    (gc.enable if automatic else gc.disable)()
    try:
        for _ in range(2):
            Holder()
            assert nd.ones((3 << 20,), ctx=ctx)[0].asscalar() == 1
        Holder()
        net = nn.Dense(1 << 10, in_units=1 << 10)
        net.initialize(ctx=ctx)
        net.hybridize()
        assert net(nd.ones((1, 1 << 10), ctx=ctx)).shape == (1, 1 << 10)
        assert net.weight.grad().shape == (1 << 10, 1 << 10)  # allocates it
        assert finalized == [4.0] * 3
        # live arrays are kept
        with pytest.raises(MemoryError, match="is out of memory: asked for"):
            nd.ones((3 << 20,), ctx=ctx)
    finally:
        gc.enable()
        set_memory_limit(ctx, None)


def test_training_continues_after_a_too_large_batch():
    ctx = mx.cpu(93)

    def attempt(rows):
        net = nn.HybridSequential()
        for _ in range(3):
            net.add(nn.Dense(512, in_units=512))
        net.initialize(ctx=ctx)
        net.hybridize()
        cycle = [net]
        cycle.append(cycle)
        with autograd.record():
            loss = net(nd.ones((rows, 512), ctx=ctx)).sum()
        loss.backward()
        return loss.asscalar()

    set_memory_limit(ctx, 16 << 20)
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(MemoryError):
                attempt(5000)
            assert np.isfinite(attempt(8))
    finally:
        gc.enable()
        set_memory_limit(ctx, None)
