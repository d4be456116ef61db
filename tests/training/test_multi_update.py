"""MultiUpdate: a step of all weights of a device in one call has the bits, counts, rates and
errors of single updates."""

import pickle
from contextlib import suppress

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.optimizer import multi
from support.calls import raises
from support.devices import on
from support.failures import sweep

MultiUpdate = _core.MultiUpdate

OPTIMIZERS = [
    ("sgd", {"wd": 0.01}),
    ("sgd", {"momentum": 0.9, "wd": 0.01, "clip_gradient": 0.3}),
    ("nag", {"momentum": 0.9, "wd": 0.1}),
    ("adam", {"wd": 0.01}),
    ("adagrad", {"wd": 0.01}),
    ("rmsprop", {"clip_weights": 0.7}),
    ("adamax", {"wd": 0.01, "clip_gradient": 0.3}),
    ("nadam", {"wd": 0.01}),
    ("adamw", {"wd": 0.1, "clip_gradient": 0.3}),
    ("adamw", {"amsgrad": True}),
    ("lion", {"wd": 0.1}),
]


def params(count, devices=(mx.cpu(0),), dtype="float32", seed=3):
    """Returns parameters of many shapes and sizes with random values and gradients."""
    draw, made = np.random.RandomState(seed), []
    for i in range(count):
        param = gluon.Parameter(
            f"p{i}_weight", shape=[(3,), (40, 50), (1,), (2, 3, 4)][i % 4], dtype=dtype
        )
        param.initialize(ctx=devices[i % len(devices)])
        param.set_data(nd.array(draw.uniform(-1, 1, param.shape), dtype=dtype))
        made.append(param)
    return made


def backward(made, seed):
    """Computes new gradients by a backward pass."""
    draw = np.random.RandomState(seed)
    with autograd.record():
        heads = [
            param.data()
            * nd.array(draw.uniform(-1, 1, param.shape), dtype=param.dtype, ctx=param.list_ctx()[0])
            for param in made
        ]
    autograd.backward(heads)


def train(made, trainer, steps, first=0):
    for step in range(first, first + steps):
        backward(made, step)
        trainer.step(1)


def bits(made, trainer):
    arrays = [param.data() for param in made]
    for i, param in enumerate(made):
        state = trainer._state.state_of(i, param)
        arrays += [
            part for part in (state if isinstance(state, tuple) else [state]) if part is not None
        ]
    return [array.asnumpy().tobytes() for array in arrays]


def groups(trainer):
    return trainer._current_plan().work


def in_one_call(trainer):
    return all(
        group.multi is not None and group.multi.counts is not None for group in groups(trainer)
    )


def run(
    name, options, alone, count=70, steps=7, devices=(mx.cpu(0),), dtype="float32", monkeypatch=None
):
    made = params(count, devices, dtype)
    trainer = gluon.Trainer(made, name, {"learning_rate": 0.05, **options})
    if alone:
        monkeypatch.setattr(multi, "prepare", lambda *_: None)
    for step in range(steps):
        if step == 4:
            made[1].lr_mult, made[2].wd_mult = 0.5, 0.25
            trainer.set_learning_rate(0.02)
        backward(made, step)
        trainer.step(1 + step % 3)
    assert in_one_call(trainer) is not alone
    return (
        bits(made, trainer),
        dict(trainer._optimizer._all_index_update_counts),
        trainer._optimizer.num_update,
    )


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name, options", OPTIMIZERS)
def test_one_call_has_the_bits_of_grouped_updates(name, options, devices, monkeypatch):
    devices = tuple(map(mx.cpu, range(devices)))
    assert run(name, options, False, devices=devices) == run(
        name, options, True, devices=devices, monkeypatch=monkeypatch
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_one_call_has_the_bits_of_grouped_updates_in_other_dtypes(dtype, momentum, monkeypatch):
    options = {"momentum": momentum, "multi_precision": True}
    assert run("sgd", options, False, dtype=dtype, count=9) == run(
        "sgd", options, True, dtype=dtype, count=9, monkeypatch=monkeypatch
    )


def test_one_call_mixes_dtypes(monkeypatch):
    def weights(alone):
        made = params(3) + [gluon.Parameter("half_weight", shape=(5,), dtype="float16")]
        made[3].initialize(mx.init.One())
        trainer = gluon.Trainer(
            made, "sgd", {"learning_rate": 0.1, "momentum": 0.5, "multi_precision": True}
        )
        if alone:
            monkeypatch.setattr(multi, "prepare", lambda *_: None)
        train(made, trainer, 5)
        assert in_one_call(trainer) is not alone
        return bits(made, trainer)

    assert weights(False) == weights(True)


def test_scheduler_is_called_once_per_step():
    seen = []

    class Schedule(mx.lr_scheduler.LRScheduler):
        def __call__(self, num_update):
            seen.append(num_update)
            return 0.1 / num_update

    made = params(130)
    trainer = gluon.Trainer(made, "sgd", {"lr_scheduler": Schedule(), "learning_rate": None})
    for step in range(6):
        backward(made, step)
        before = made[0].data().asnumpy(), made[0].grad().asnumpy()
        trainer.step(1)
    assert in_one_call(trainer)
    assert seen[-3:] == [4, 5, 6] and seen == sorted(seen)
    np.testing.assert_allclose(made[0].data().asnumpy(), before[0] - 0.1 / 6 * before[1], rtol=1e-5)


def trained(name="adam", steps=5, count=6, **options):
    made = params(count)
    trainer = gluon.Trainer(made, name, {"learning_rate": 0.05, **options})
    train(made, trainer, steps)
    assert in_one_call(trainer)
    return made, trainer


def test_update_counts_can_be_read_and_written():
    made, trainer = trained()
    optimizer = trainer._optimizer
    assert optimizer._index_update_count == dict.fromkeys(range(6), 5) and optimizer.num_update == 5
    train(made, trainer, 1, 9)
    assert pickle.loads(pickle.dumps(optimizer))._all_index_update_counts == {
        0: dict.fromkeys(range(6), 6)
    }
    optimizer._index_update_count[2] = 9  # unequal counts return to grouped updates
    train(made, trainer, 2)
    assert optimizer._index_update_count == {**dict.fromkeys(range(6), 8), 2: 11}
    assert optimizer.num_update == 11
    optimizer._all_index_update_counts = {0: dict.fromkeys(range(6), 20)}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]
    train(made, trainer, 1, 1)
    assert optimizer._index_update_count == dict.fromkeys(range(6), 21)


def test_loaded_states_are_used_by_the_next_step(tmp_path):
    made, trainer = trained()
    trainer.save_states(str(tmp_path / "a.states"))
    kept = [param.data().asnumpy() for param in made]

    def further():
        train(made, trainer, 3)
        return bits(made, trainer)

    first = further()
    trainer.load_states(str(tmp_path / "a.states"))
    for param, value in zip(made, kept):
        param.set_data(nd.array(value))
    assert further() == first


def test_replaced_states_and_multipliers_are_used_by_the_next_step():
    made, trainer = trained("sgd", momentum=0.9)
    updater = trainer._state.by_device[mx.cpu(0)]
    updater.states[0] = nd.zeros(made[0].shape)
    value = made[0].data().asnumpy()
    train(made, trainer, 1, 1)
    np.testing.assert_allclose(
        made[0].data().asnumpy(), value - 0.05 * made[0].grad().asnumpy(), rtol=1e-6
    )
    updater.set_states(updater.get_states())
    made[1].lr_mult = 0.0
    value = made[1].data().asnumpy()
    updater.states[1][:] = 0
    train(made, trainer, 4)
    assert (made[1].data().asnumpy() == value).all() and updater.states_synced[1]


def test_stale_gradients_are_not_applied():
    made, trainer = trained()
    values = [param.data().asnumpy() for param in made]
    backward(made[:2], 1)
    raises(UserWarning, "p2_weight", lambda: trainer.step(1))
    trainer.step(1, ignore_stale_grad=True)
    changed = [(param.data().asnumpy() != value).any() for param, value in zip(made, values)]
    assert changed == [True, True, False, False, False, False]
    assert trainer._optimizer._index_update_count == {0: 6, 1: 6, 2: 5, 3: 5, 4: 5, 5: 5}


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_invalid_rates_change_nothing(rate):
    made, trainer = trained()
    before = bits(made, trainer)
    backward(made, 1)
    made[3].lr_mult = rate
    raises(ValueError, "p3_weight", lambda: trainer.step(1))
    assert bits(made, trainer) == before and trainer._optimizer.num_update == 5
    assert trainer._optimizer._index_update_count == dict.fromkeys(range(6), 5)
    made[3].lr_mult = 1
    trainer.step(1)
    assert trainer._optimizer.num_update == 6
    raises(ValueError, "batch_size", lambda: trainer.step(0))


@pytest.mark.parametrize("what", ["nan", "negative", "decay", "sparse"])
@pytest.mark.parametrize("name", ["sgd", "adam", "lars", "lbsgd", "dcasgd", "own"])
def test_invalid_rates_on_the_last_device_change_nothing(name, what):
    class Own(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            self._update_count(index)
            weight -= self._get_lr(index) * (grad + self._get_wd(index) * weight)

    optimizer = Own() if name == "own" else mx.optimizer.create(name)
    optimizer.wd = 0.1
    made = [
        gluon.Parameter(
            f"p{i}_weight",
            shape=(3, 2),
            grad_stype="row_sparse" if what == "sparse" and i == 2 else "default",
        )
        for i in range(3)
    ]
    for i, param in enumerate(made):
        param.initialize("ones", ctx=on(i))
    trainer = gluon.Trainer(made, optimizer)

    def back():
        with mx.autograd.record():
            losses = [(p.data(p.list_ctx()[0]) * 2).sum() for p in made]
        mx.autograd.backward(losses)

    for _ in range(3):
        back()
        trainer.step(1)
    back()
    before = [p.data(p.list_ctx()[0]).asnumpy() for p in made]
    if what == "decay":
        made[2].wd_mult = float("inf")
    else:
        made[2].lr_mult = -1.0 if what == "negative" else float("nan")
    with pytest.raises(ValueError):
        trainer.step(1)
    for param, value in zip(made, before):
        np.testing.assert_array_equal(param.data(param.list_ctx()[0]).asnumpy(), value)
    assert optimizer.num_update == 3
    made[2].lr_mult = made[2].wd_mult = 1.0
    trainer.step(1)
    assert optimizer.num_update == 4


def test_optimizer_subclass_with_its_own_step_is_called():
    calls = []

    class Mine(mx.optimizer.SGD):
        def _step_alike(self, indices, weights, grads, states, lrs, wds, master):
            calls.append(len(indices))
            super()._step_alike(indices, weights, grads, states, lrs, wds, master)

    class Renamed(mx.optimizer.Adam):
        def __init__(self):
            super().__init__(learning_rate=0.1)

    for optimizer, expected in ((Mine(), [5] * 6), (Renamed(), [])):
        del calls[:]
        made = params(5)
        trainer = gluon.Trainer(made, optimizer)
        train(made, trainer, 6)
        assert calls == expected and in_one_call(trainer) is not bool(expected)


def test_moved_parameters_are_updated_on_their_device():
    made, trainer = trained("sgd", momentum=0.9)
    made[0].reset_ctx(mx.cpu(1))
    train(made, trainer, 5)
    assert in_one_call(trainer) and len(groups(trainer)) == 2
    assert trainer._optimizer._all_index_update_counts == {
        0: dict.fromkeys(range(1, 6), 10),
        1: {0: 10},
    }


def some(count=3, dtype="float32", ctx=None, seed=1):
    draw = np.random.RandomState(seed)
    return [
        nd.array(draw.uniform(0.5, 1, (4, 5)), dtype=dtype, ctx=ctx or mx.cpu(0))
        for _ in range(count)
    ]


def test_multi_update_rejects_invalid_arrays():
    w, g, m = some()
    good = [w, g, m]
    mom = "multi_sgd_mom_update"
    for op, arrays, per_weight, factors, kind, match in [
        ("nothing", good, 3, [1, 1], ValueError, "unknown update op 'nothing'"),
        ("sgd_mom_update", good, 3, [1, 1], ValueError, "not a multi-weight update op"),
        ("preloaded_" + mom, good, 3, [1, 1], ValueError, "not a multi-weight update op"),
        (mom, good, 2, [1, 1], ValueError, "2 for each weight"),
        (mom, good, 0, [1, 1], ValueError, "0 for each weight"),
        (mom, [], 3, [], ValueError, "0 arrays"),
        (mom, good, 3, [1], ValueError, "1 factors"),
        (mom, good, 3, [1, "a"], TypeError, "real number"),
        (mom, good, 3, 7, TypeError, "list of numbers"),
        (mom, [w, g, 3], 3, [1, 1], TypeError, "MultiUpdate"),
        (
            mom,
            [w, g, some(1, ctx=mx.cpu(1))[0]],
            3,
            [1, 1],
            mx.MXNetError,
            r"cpu\(0\) and cpu\(1\)",
        ),
        (mom, [w, g, nd.zeros((3,))], 3, [1, 1], mx.MXNetError, mom),
        (mom, [w, g, g], 3, [1, 1], ValueError, "share memory"),
        (mom, [w[0:2], g[0:2], w[1:3]], 3, [1, 1], ValueError, "share memory"),
        ("multi_sgd_update", good, 3, [1, 1], mx.MXNetError, "2 each"),
    ]:
        raises(kind, match, lambda: MultiUpdate(op, arrays, per_weight, factors))
    # disjoint parts of one array
    update = MultiUpdate("multi_sgd_mom_update", [w[0:2], g[0:2], w[2:4]], 3, [1, 1])
    for call, match in [
        (lambda: update(1.0), "lr, correction and wd"),
        (lambda: update(1.0, "a", 0.0), "real number"),
        (lambda: update(1.0, 1.0, 0.0, 7), "dict of options"),
        (lambda: update(1.0, 1.0, 0.0, {"beta1": 1}), "no parameter 'beta1'"),
        (lambda: update(1.0, 1.0, 0.0, {"momentum": "a"}), "momentum"),
    ]:
        raises((TypeError, ValueError), match, call)
    values = w.asnumpy(), g.asnumpy()
    update(0.5, 2.0, 0.0)
    assert (w.asnumpy()[:2] == values[0][:2] + values[0][2:] * 0 - values[1][:2]).all()
    with pytest.raises(TypeError):
        _core.holds([], [], [])
    raises(ValueError, "1 keys but 0 values", lambda: _core.holds({}, [1], []))


def test_multi_update_in_a_traced_block_raises():
    w, g, m = some()
    update = MultiUpdate("multi_sgd_mom_update", [w, g, m], 3, [1, 1])
    before = w.asnumpy()

    def trace(x):
        assert not update.ready()
        update(1.0, 1.0, 0.0)
        return [x * 2]

    raises(mx.MXNetError, "traced", lambda: _core.CachedOp(trace)(nd.ones((2,))))
    assert update.ready() and (w.asnumpy() == before).all()


@pytest.mark.parametrize("known", [False, True])
def test_failed_gradient_fails_the_weight(known):
    w, g, m = (nd.full((2, 2), value) for value in (3, 1, 0))
    update = MultiUpdate("multi_sgd_mom_update", [w, g, m], 3, [1, 1])
    square = nd.array([[1.0, 2.0], [2.0, 1.0]])
    _core.set_engine_mode("shuffle", 1)  # work is deferred until a wait
    try:
        nd.linalg_potrf(square, out=g)  # not positive definite
        if not known:
            update(1.0, 1.0, 0.0)
            for array in (w, m, w + 1):
                raises(mx.MXNetError, "potrf", array.asnumpy)
        raises(mx.MXNetError, "potrf", g.asnumpy)
    finally:
        with suppress(mx.MXNetError):
            nd.waitall()
        _core.set_engine_mode("async")
    if known:
        with pytest.raises(mx.MXNetError, match="potrf"):
            update(1.0, 1.0, 0.0)
            w.asnumpy()
    for array, value in ((w, 1), (g, 1), (m, 0)):
        nd.full(array.shape, value).copyto(array)
    update(1.0, 1.0, 0.0)
    assert (w.asnumpy() == 0).all()


def test_earlier_copies_to_other_devices_hold_the_old_weight():
    w, g = (nd.ones((300, 300)) for _ in range(2))
    update = MultiUpdate("multi_sgd_update", [w, g], 2, [1, 1])
    for step in range(20):
        copies = [w.as_in_context(mx.cpu(k)) for k in (1, 2, 3)]
        update(1.0, 1.0, 0.0)
        assert all((copy.asnumpy() == 1 - step).all() for copy in copies)
        g[:] = 1
    assert (w.asnumpy() == -19).all()


def test_memory_is_freed_while_work_is_queued():
    before = mx.context.memory_stats(mx.cpu(0))["in_use"]
    w, g = (nd.ones((500, 500)) for _ in range(2))
    update = MultiUpdate("multi_sgd_update", [w, g], 2, [1, 1])
    _core._stall(mx.cpu(0), 0.02)
    update(1.0, 1.0, 0.0)
    total = w.sum()
    del update, w, g
    assert mx.context.memory_stats(mx.cpu(0))["in_use"] <= before + 4096
    assert total.asscalar() == 0


def test_every_failed_allocation_raises():
    arrays = some(6)

    def work():
        update = MultiUpdate("multi_sgd_mom_update", arrays, 3, [1.0] * 4)
        _core._stall(mx.cpu(0), 0.0)
        update(0.1, 1.0, 0.0)
        nd.waitall()

    assert sweep(work) > 2
