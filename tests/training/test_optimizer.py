"""Optimizers: MXNet's values, the same bits on any device and in any grouping, states,
multipliers, and invalid arguments."""

import json
import math
import os
import pickle

import numpy as np
import pytest

import mpgluon as mx
from support.calls import raises
from support.compare import same_bits
from support.devices import on
from support.paths import TESTS

with open(os.path.join(TESTS, "data", "optimizer_reference.json")) as file:
    # MXNet 1.9.1's result of three updates of WEIGHT with GRADIENTS
    REFERENCE = json.load(file)

WEIGHT = np.array([[0.5, -1.25, 2.0], [0.1, -0.3, 0.75]], "float32")
GRADIENTS = [
    np.array([[0.2, -0.4, 1.5], [0.05, 0.3, -2.0]], "float32"),
    np.array([[-0.6, 0.1, 0.9], [1.0, -0.25, 0.4]], "float32"),
    np.array([[0.3, 0.3, -0.7], [0.2, 0.6, -0.1]], "float32"),
]


def make(case, **more):
    return mx.optimizer.create(
        case["optimizer"],
        param_idx2name={i: f"p{i}_weight" for i in range(100)},
        **case["options"],
        **more,
    )


def train(optimizer, ctx=None, dtype="float32", updater=None, gradients=GRADIENTS):
    updater = updater or mx.optimizer.get_updater(optimizer)
    weight = mx.nd.array(WEIGHT, ctx=ctx, dtype=dtype)
    for gradient in gradients:
        updater(0, mx.nd.array(gradient, ctx=ctx, dtype=dtype), weight)
    return weight


@pytest.mark.parametrize("name", REFERENCE)
def test_updates_match_mxnet(name):
    case = REFERENCE[name]
    dtype = case.get("dtype", "float32")
    got = train(make(case), dtype=dtype).asnumpy().ravel()
    tolerance = 2e-3 if dtype == "float16" else 2e-6
    np.testing.assert_allclose(
        got.astype("float64"), case["weight"], rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("name", [*REFERENCE, "sgld"])
def test_same_bits_on_another_device(name):
    case = REFERENCE.get(name, {"optimizer": "sgld", "options": {"learning_rate": 0.1}})
    results = []
    for ctx in (on(0), on(1)):
        mx.random.seed(3)
        optimizer = make(case)
        updater = mx.optimizer.get_updater(optimizer)
        results.append(train(optimizer, ctx, case.get("dtype", "float32"), updater).asnumpy())
        for state in flat(updater.states[0]):
            assert state.context == ctx
    np.testing.assert_array_equal(*results)


def flat(state):
    if isinstance(state, (tuple, list)):
        return [leaf for part in state for leaf in flat(part)]
    return [] if state is None else [state]


def arrays(count, seed, ctx=None, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [
        mx.nd.array(rng.normal(size=(3 + i % 4, 5)), ctx=ctx, dtype=dtype) for i in range(count)
    ]


@pytest.mark.parametrize("name", [n for n in REFERENCE if not n.startswith("test")])
def test_groups_give_the_bits_of_single_updates(name):
    """Seventy weights exceed the limit of one op call."""
    case = REFERENCE[name]
    dtype = case.get("dtype", "float32")
    together, single = arrays(70, 1, dtype=dtype), arrays(70, 1, dtype=dtype)
    updaters = [mx.optimizer.get_updater(make(case)) for _ in range(2)]
    for step in range(2):
        gradients = arrays(70, 10 + step, dtype=dtype)
        updaters[0](list(range(70)), gradients, together)
        for i, (gradient, weight) in enumerate(zip(gradients, single)):
            updaters[1](i, gradient, weight)
    same_bits(together, single)


def test_update_accepts_lists_of_any_length():
    optimizer = mx.optimizer.create("adam", learning_rate=0.1)
    weights, gradients = arrays(130, 1), arrays(130, 2)
    states = [optimizer.create_state(i, w) for i, w in enumerate(weights)]
    before = [w.asnumpy() for w in weights]
    optimizer.update(list(range(130)), weights, gradients, states)
    assert all(not np.array_equal(b, w.asnumpy()) for b, w in zip(before, weights))


@pytest.mark.parametrize("name", [n for n in REFERENCE if not n.startswith("test")])
def test_first_states_are_within_rounding_of_float64(name):
    """Constants such as 1 - beta2 must not be rounded before use."""
    states = []
    for dtype in ("float32", "float64"):
        updater = mx.optimizer.get_updater(make(REFERENCE[name]))
        train(None, dtype=dtype, updater=updater, gradients=GRADIENTS[:1])
        states.append(
            [
                state.asnumpy()
                for state in flat(updater.states[0])
                if isinstance(state, mx.nd.NDArray)
            ]
        )
    assert len(states[0]) == len(states[1])
    for single, double in zip(*states):
        np.testing.assert_allclose(single, double, rtol=1e-6, atol=1e-7 * np.abs(double).max())


def test_adam_matches_the_formula_in_float64():
    weight = WEIGHT.astype("float64")
    mean, var = np.zeros_like(weight), np.zeros_like(weight)
    for t, gradient in enumerate(GRADIENTS, 1):
        gradient = gradient.astype("float64") + 0.01 * weight
        mean = 0.9 * mean + 0.1 * gradient
        var = 0.999 * var + 0.001 * gradient**2
        weight = weight - 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * mean / (
            np.sqrt(var) + 1e-8
        )
    got = train(mx.optimizer.create("adam", learning_rate=0.1, wd=0.01), dtype="float64").asnumpy()
    np.testing.assert_allclose(got, weight, rtol=1e-6)


def test_nag_with_weight_decay_matches_the_formula():
    """As in MXNet's kernel, the momentum uses the decay of the updated weight."""
    weight, momentum = WEIGHT.astype("float64"), 0.0
    for gradient in GRADIENTS:
        decayed = 0.9 * momentum
        weight = weight - decayed + 1.9 * (decayed - 0.1 * (gradient + 0.01 * weight))
        momentum = decayed - 0.1 * (gradient + 0.01 * weight)
    got = train(mx.optimizer.create("nag", learning_rate=0.1, momentum=0.9, wd=0.01)).asnumpy()
    np.testing.assert_allclose(got, weight, rtol=2e-6)


def test_nag_into_another_array_decays_by_the_unchanged_weight():
    arrays = {}
    for into in ("weight", "another", "master"):
        weight, grad, momentum, master = [mx.nd.array([value]) for value in (1.0, 0.5, 0.0, 1.0)]
        options = {"lr": 0.1, "momentum": 0.9, "wd": 0.1}
        if into == "master":
            weight, grad = weight.astype("float16"), grad.astype("float16")
            mx.nd.mp_nag_mom_update(
                weight, grad, momentum, master, out=mx.nd.zeros((1,), dtype="float16"), **options
            )
        else:
            mx.nd.nag_mom_update(
                weight,
                grad,
                momentum,
                out=weight if into == "weight" else mx.nd.zeros((1,)),
                **options,
            )
        arrays[into] = momentum.asscalar()
    after = 1 - 1.9 * 0.1 * (0.5 + 0.1)
    expected = {
        "weight": -0.1 * (0.5 + 0.1 * after),
        "another": -0.1 * (0.5 + 0.1),
        "master": -0.1 * (0.5 + 0.1 * after),
    }
    assert arrays == {name: pytest.approx(value, rel=1e-6) for name, value in expected.items()}


@pytest.mark.parametrize("name", sorted({case["optimizer"] for case in REFERENCE.values()}))
def test_scheduler_starts_with_the_optimizers_rate(name):
    """Except for FTRL, which in MXNet does not pass its rate to the scheduler."""
    scheduler = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5)
    optimizer = mx.optimizer.create(name, learning_rate=0.3, lr_scheduler=scheduler)
    assert optimizer.learning_rate == (0.01 if name == "ftrl" else 0.3)
    assert mx.optimizer.create(name, learning_rate=0.3).learning_rate == 0.3


def test_dcasgd_with_momentum_matches_the_formula():
    weight, previous, momentum = WEIGHT.astype("float64"), WEIGHT.astype("float64"), 0.0
    for gradient in GRADIENTS:
        momentum = 0.9 * momentum - 0.1 * (gradient + 0.04 * gradient**2 * (weight - previous))
        previous, weight = weight, weight + momentum
    got = train(mx.optimizer.create("dcasgd", learning_rate=0.1, momentum=0.9)).asnumpy()
    np.testing.assert_allclose(got, weight, rtol=1e-5)


def test_lbsgd_averages_accumulated_gradients():
    optimizer = mx.optimizer.create("lbsgd", learning_rate=0.1, batch_scale=2, warmup_epochs=0)
    got = train(optimizer, gradients=GRADIENTS[:2]).asnumpy()
    np.testing.assert_allclose(got, WEIGHT - 0.1 * 2 * (GRADIENTS[0] + GRADIENTS[1]) / 2, rtol=1e-5)


def test_lars_rates_do_not_depend_on_grouping():
    """Momentum correction uses the rates of two steps, not of two calls within one step."""
    case = {"optimizer": "lars", "options": {"momentum": 0.9, "eta": 0.01}}
    results = []
    for split in (False, True):
        schedule = mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=8.0)
        updater = mx.optimizer.get_updater(make(case, lr_scheduler=schedule))
        weights = arrays(4, 1)
        for step in range(3):
            gradients = arrays(4, 20 + step)
            for part in ((0, 1), (2, 3)) if split else (range(4),):
                updater(list(part), [gradients[i] for i in part], [weights[i] for i in part])
        results.append(np.concatenate([w.asnumpy().ravel() for w in weights]))
    np.testing.assert_array_equal(*results)


def test_weight_decay_skips_biases_and_multipliers_apply():
    optimizer = mx.optimizer.create(
        "sgd",
        learning_rate=0.1,
        wd=0.5,
        param_idx2name={0: "a_weight", 1: "a_bias", 2: "a_gamma", 3: "a_beta"},
    )
    assert optimizer._get_wds([0, 1, 2, 3]) == [0.5, 0.0, 0.5, 0.0]
    optimizer.set_wd_mult({"a_bias": 2.0})
    optimizer.set_lr_mult({"a_weight": 0.5, 3: 3.0})
    assert optimizer._get_wds([0, 1]) == [0.5, 1.0]
    assert optimizer._get_lrs([0, 1, 3]) == pytest.approx([0.05, 0.1, 0.3])


def test_parameter_multipliers_take_precedence():
    class Parameter:
        lr_mult, wd_mult = 0.5, 0.25

    optimizer = mx.optimizer.create("sgd", learning_rate=0.1, wd=1.0, param_dict={0: Parameter()})
    optimizer.set_lr_mult({0: 7.0})
    assert optimizer._get_lrs([0, 1]) == [0.05, 0.1] and optimizer._get_wds([0, 1]) == [0.25, 1.0]


def test_update_counts_are_kept_per_device():
    optimizer = mx.optimizer.create("adam", begin_num_update=10)
    for device in (0, 1, 0):
        optimizer._set_current_context(device)
        optimizer._update_count([0, 1])
    assert optimizer.num_update == 12
    assert optimizer._all_index_update_counts == {0: {0: 12, 1: 12}, 1: {0: 11, 1: 11}}


def test_multi_precision_states_are_float32():
    weight = mx.nd.array(WEIGHT, dtype="float16")
    momentum, master = mx.optimizer.create(
        "sgd", momentum=0.9, multi_precision=True
    ).create_state_multi_precision(0, weight)
    assert master.dtype == momentum.dtype == np.float32
    master, (mean, var) = mx.optimizer.create(
        "adam", multi_precision=True
    ).create_state_multi_precision(0, weight)
    assert master.dtype == mean.dtype == var.dtype == np.float32
    with pytest.warns(UserWarning, match="multi_precision"):
        assert (
            mx.optimizer.create("adam").create_state_multi_precision(0, weight)[0].dtype
            == np.float16
        )


def test_tiny_steps_accumulate_in_a_half_precision_weight():
    optimizer = mx.optimizer.create("sgd", learning_rate=1e-4, multi_precision=True)
    updater = mx.optimizer.get_updater(optimizer)
    weight = mx.nd.ones((1,), dtype="float16")
    for _ in range(100):
        updater(0, mx.nd.ones((1,), dtype="float16"), weight)
    assert weight.asscalar() == pytest.approx(0.99, abs=1e-3)


@pytest.mark.parametrize("name", ["sgd_mom", "adam", "rmsprop_centered", "sgd_mp", "nadam"])
def test_states_survive_saving_and_moving(name):
    case = REFERENCE[name]
    dtype = case.get("dtype", "float32")
    straight = train(make(case), dtype=dtype, gradients=GRADIENTS + GRADIENTS).asnumpy()

    first = mx.optimizer.get_updater(make(case))
    weight = train(first.optimizer, dtype=dtype, updater=first)
    second = mx.optimizer.get_updater(make(case))
    second.set_states(first.get_states(dump_optimizer=True), trusted=True)
    moved = weight.as_in_context(on(1))
    # Counts are kept per device: copy those of cpu(0) for the weight's copy on cpu(1).
    second.optimizer._all_index_update_counts[1] = dict(
        second.optimizer._all_index_update_counts[0]
    )
    for gradient in GRADIENTS:
        second(0, mx.nd.array(gradient, ctx=on(1), dtype=dtype), moved)
    np.testing.assert_array_equal(moved.asnumpy(), straight)
    assert all(state.context == on(1) for state in flat(second.states[0]))


def test_pickled_optimizer_keeps_counting():
    optimizer = mx.optimizer.create("adam")
    optimizer._set_current_context(1)
    optimizer._update_count(5)
    copy = pickle.loads(pickle.dumps(optimizer))
    copy._update_count(5)
    assert copy._all_index_update_counts[1] == {5: 2} and copy.num_update == 2


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.1])
def test_invalid_rates_raise_and_change_nothing(rate):
    raises(ValueError, "learning_rate", lambda: mx.optimizer.create("sgd", learning_rate=rate))
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9)
    raises(ValueError, "learning_rate", lambda: optimizer.set_learning_rate(rate))
    # Invalid rates set otherwise (attribute, scheduler, multiplier) raise before any change.
    optimizer.set_lr_mult({0: rate})
    updater = mx.optimizer.get_updater(optimizer)
    weight = mx.nd.array(WEIGHT)
    raises(ValueError, "parameter 0", lambda: updater(0, mx.nd.array(GRADIENTS[0]), weight))
    assert mx.test_utils.same(weight, WEIGHT) and optimizer.num_update == 0
    optimizer.set_lr_mult({})
    updater(0, mx.nd.array(GRADIENTS[0]), weight)
    np.testing.assert_allclose(weight.asnumpy(), WEIGHT - 0.1 * GRADIENTS[0], rtol=1e-6)


def test_invalid_optimizer_arguments_raise():
    raises(ValueError, "unknown optimizer", lambda: mx.optimizer.create("sdg"))
    with pytest.raises(ValueError):
        mx.optimizer.create("sgd", wd=float("nan"))
    with pytest.raises(ValueError):
        mx.optimizer.create("sgd", clip_gradient=-1.0)
    with pytest.raises(ValueError, match="rescale_grad"):
        mx.optimizer.create("sgd", rescale_grad=float("inf"))
    optimizer = mx.optimizer.create("sgd")
    optimizer.rescale_grad = float("inf")
    raises(ValueError, "rescale_grad", lambda: train(optimizer))
    with pytest.raises(ValueError, match="must be equal"):
        mx.optimizer.get_updater(optimizer)([0, 1], [mx.nd.zeros((1,))], [mx.nd.zeros((1,))])


def test_gradient_on_another_device_raises():
    weight = mx.nd.array(WEIGHT)
    with pytest.raises(mx.MXNetError, match=r"[cg]pu\(1\)"):
        mx.optimizer.get_updater(mx.optimizer.create("sgd"))(
            0, mx.nd.array(GRADIENTS[0], ctx=on(1)), weight
        )
    np.testing.assert_array_equal(weight.asnumpy(), WEIGHT)


def test_custom_optimizer_receives_single_arrays(monkeypatch):
    registry = mx.optimizer.Optimizer.opt_registry
    monkeypatch.setattr(mx.optimizer.Optimizer, "opt_registry", dict(registry))

    @mx.optimizer.register
    class Halving(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            assert isinstance(weight, mx.nd.NDArray) and not isinstance(index, list)
            weight[:] = weight / 2

    updater = mx.optimizer.get_updater(mx.optimizer.create("halving"))
    weights = [mx.nd.ones((2,)), mx.nd.ones((3,))]
    updater([0, 1], weights, weights)
    assert all((w.asnumpy() == 0.5).all() for w in weights)


def test_updates_into_arrays_overlapping_the_weights_are_exact():
    """Each output overlaps two weights, so results are computed in temporaries, then written."""
    base = mx.nd.arange(13)
    weights = [base[3 * k : 3 * k + 3] for k in range(4)]
    grads = [mx.nd.full((3,), k + 1.0) for k in range(4)]
    wanted = np.concatenate([w.asnumpy() - 0.5 * g.asnumpy() for w, g in zip(weights, grads)])
    out = [base[3 * k + 1 : 3 * k + 4] for k in range(4)]
    mx.nd.multi_sgd_update(
        *[a for pair in zip(weights, grads) for a in pair],
        out=out,
        num_weights=4,
        lrs=[0.5] * 4,
        wds=[0.0] * 4,
    )
    np.testing.assert_array_equal(base.asnumpy(), np.concatenate([[0.0], wanted]))


def test_invalid_rate_keeps_the_update_counts():
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1)
    weights = [mx.nd.ones((2,)) for _ in range(2)]
    grads = [mx.nd.ones((2,)) for _ in range(2)]
    optimizer.update([0, 1], weights, grads, [None, None])
    before, updates = dict(optimizer._index_update_count), optimizer.num_update
    optimizer.set_lr_mult({0: -1.0})
    with pytest.raises(ValueError, match="learning rate"):
        optimizer.update([0, 1], weights, grads, [None, None])
    with pytest.raises(ValueError, match="learning rate"):
        optimizer.update([0, 2], weights, grads, [None, None])
    assert optimizer._index_update_count == before and optimizer.num_update == updates


def test_lbsgd_rates_are_independent_of_placement():
    """On every device, the scheduler receives the number of updates before this one."""

    def weights(places):
        layers = mx.gluon.nn.HybridSequential(prefix="net_")
        layers.add(*[mx.gluon.nn.Dense(1, in_units=1, use_bias=False) for _ in places])
        for layer, place in zip(layers, places):
            layer.initialize("ones", ctx=on(place))
        rate = mx.lr_scheduler.PolyScheduler(4, 0.1)
        trainer = mx.gluon.Trainer(layers.collect_params(), "lbsgd", {"lr_scheduler": rate})
        for _ in range(3):
            with mx.autograd.record():
                losses = [layer(mx.nd.ones((1, 1), ctx=on(p))) for layer, p in zip(layers, places)]
            mx.autograd.backward(losses)
            trainer.step(1)
        return [layer.weight.data().asscalar() for layer in layers]

    assert weights([0, 1, 2]) == weights([0, 0, 0])


def by_single_ops(optimizer, weight, grad, state, count):
    """Computes an Adamax or Nadam update with single ops; returns the weight and both states."""
    mean, second = state
    lr, wd, beta1, beta2 = optimizer.lr, optimizer.wd, optimizer.beta1, optimizer.beta2
    grad = grad * optimizer.rescale_grad + wd * weight
    if optimizer.clip_gradient is not None:
        grad = mx.nd.clip(grad, -optimizer.clip_gradient, optimizer.clip_gradient)
    mean = mean * beta1 + (1.0 - beta1) * grad
    if type(optimizer) is mx.optimizer.Adamax:
        second = mx.nd.maximum(beta2 * second, mx.nd.abs(grad))
        return weight - lr / (1.0 - beta1**count) * mean / second, mean, second
    factors = [beta1 * (1.0 - 0.5 * 0.96 ** (t * 0.004)) for t in range(1, count + 2)]
    product = math.prod(factors[:-1])
    second = second * beta2 + (1.0 - beta2) * grad * grad
    ahead = (1.0 - factors[-2]) * (grad / (1.0 - product)) + factors[-1] * (
        mean / (1.0 - product * factors[-1])
    )
    root = mx.nd.sqrt(second / (1.0 - beta2**count))
    return weight - lr * ahead / (root + optimizer.epsilon), mean, second


@pytest.mark.parametrize("clip", [None, 0, 0.3])
@pytest.mark.parametrize("name", ["adamax", "nadam"])
def test_fused_update_has_the_bits_of_single_ops(name, clip):
    optimizer = mx.optimizer.create(
        name, learning_rate=0.02, wd=0.01, clip_gradient=clip, rescale_grad=0.5
    )
    draw = np.random.RandomState(5)
    weights = [mx.nd.array(draw.normal(size=shape)) for shape in [(3, 5), (7,), (1, 2, 40)]]
    counts = [0, 0, 0]
    states = [optimizer.create_state(i, weight) for i, weight in enumerate(weights)]
    for step in range(5):
        chosen = [i for i in range(3) if i != step % 4]  # makes the counts differ
        grads = [mx.nd.array(draw.normal(size=weights[i].shape)) for i in chosen]
        expected = []
        for i, grad in zip(chosen, grads):
            counts[i] += 1
            expected.append(by_single_ops(optimizer, weights[i], grad, states[i], counts[i]))
        optimizer.update(chosen, [weights[i] for i in chosen], grads, [states[i] for i in chosen])
        for i, arrays in zip(chosen, expected):
            for got, wanted in zip((weights[i], *states[i]), arrays):
                np.testing.assert_array_equal(got.asnumpy(), wanted.asnumpy())
