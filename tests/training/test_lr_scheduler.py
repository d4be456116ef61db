"""Learning rate schedules: MXNet's values, warm-up, and invalid arguments."""

import inspect
import warnings

import pytest

import mpgluon as mx
from mpgluon import lr_scheduler as schedulers

UPDATES = [0, 1, 2, 4, 5, 6, 9, 10, 11, 15, 20, 21, 30]
# Computed by MXNet 1.9.1 at these updates.
EXPECTED = {
    "factor": [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.0625, 0.03125],
    "factor_stop": [0.1, 0.325, 0.55, 0.1, 0.01, 0.01] + [0.005] * 7,
    "multi": [0.2, 0.2, 0.2, 1.0, 1.0, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001, 0.001],
    "poly": [0.0, 0.2, 0.4, 0.8, 1.0, 0.884, 0.584, 0.5, 0.424, 0.2, 0.1, 0.1, 0.1],
    "cosine": [0.2, 0.36, 0.52, 0.84, 1.0],  # and after the warm-up:
}
EXPECTED["cosine"] += [0.99016642033, 0.851108772861, 0.775, 0.689057647469, 0.325, 0.1, 0.1, 0.1]
MAKE = {
    "factor": lambda: schedulers.FactorScheduler(5, 0.5, base_lr=1.0),
    "factor_stop": lambda: schedulers.FactorScheduler(
        2, 0.1, stop_factor_lr=0.005, base_lr=1.0, warmup_steps=4, warmup_begin_lr=0.1
    ),
    "multi": lambda: schedulers.MultiFactorScheduler(
        [5, 10, 20], 0.1, base_lr=1.0, warmup_steps=3, warmup_mode="constant", warmup_begin_lr=0.2
    ),
    "poly": lambda: schedulers.PolyScheduler(20, base_lr=1.0, pwr=2, final_lr=0.1, warmup_steps=5),
    "cosine": lambda: schedulers.CosineScheduler(
        20, base_lr=1.0, final_lr=0.1, warmup_steps=5, warmup_begin_lr=0.2
    ),
}


@pytest.mark.parametrize("name", MAKE)
def test_schedules_match_mxnet(name):
    schedule = MAKE[name]()
    assert [schedule(n) for n in UPDATES] == pytest.approx(EXPECTED[name], rel=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedulers.FactorScheduler(0),
        lambda: schedulers.FactorScheduler(5, factor=1.5),
        lambda: schedulers.FactorScheduler(5, factor=float("nan")),
        lambda: schedulers.FactorScheduler(5, base_lr=float("inf")),
        lambda: schedulers.FactorScheduler(5, base_lr=0.1, warmup_begin_lr=0.2),
        lambda: schedulers.FactorScheduler(5, warmup_steps=-1),
        lambda: schedulers.FactorScheduler(5, warmup_steps=3, warmup_mode="slow"),
        lambda: schedulers.MultiFactorScheduler([5, 5]),
        lambda: schedulers.MultiFactorScheduler([0, 5]),
        lambda: schedulers.PolyScheduler(0),
        lambda: schedulers.CosineScheduler(0),
    ],
)
def test_invalid_schedule_arguments_raise(make):
    with pytest.raises(ValueError):
        make()


def test_invalid_schedule_types_raise():
    with pytest.raises(TypeError):
        schedulers.MultiFactorScheduler(5)
    with pytest.raises(TypeError):
        schedulers.PolyScheduler(2.5)


def test_optimizer_follows_its_scheduler():
    optimizer = mx.optimizer.create(
        "sgd", lr_scheduler=schedulers.FactorScheduler(1, 0.5, base_lr=0.8)
    )
    assert optimizer.learning_rate == 0.8
    updater = mx.optimizer.get_updater(optimizer)
    weight = mx.nd.zeros((1,))
    for _ in range(3):
        updater(0, mx.nd.ones((1,)), weight)
    assert weight.asscalar() == pytest.approx(-(0.8 + 0.4 + 0.2))
    with pytest.raises(UserWarning):
        optimizer.set_learning_rate(0.1)
    with pytest.warns(UserWarning, match="base_lr"):
        optimizer = mx.optimizer.create(
            "sgd", learning_rate=0.3, lr_scheduler=schedulers.FactorScheduler(1, base_lr=0.8)
        )
    assert optimizer.learning_rate == 0.3


SCHEDULERS = {
    "factor": lambda **options: schedulers.FactorScheduler(3, 0.5, **options),
    "multi factor": lambda **options: schedulers.MultiFactorScheduler([4], 0.5, **options),
    "poly": lambda **options: schedulers.PolyScheduler(6, **options),
    "cosine": lambda **options: schedulers.CosineScheduler(6, **options),
}


def rates(optimizer):
    return [optimizer.rate_at(step) for step in range(1, 8)]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "signum", "muon", "ftrl"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_given_base_rate_takes_precedence_over_an_optimizers_default(name, kind):
    make, options = SCHEDULERS[kind], {"base_lr": 0.1, "warmup_steps": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = mx.optimizer.create(name, lr_scheduler=make(**options))
    alone = make(**options)
    assert rates(optimizer) == [alone(step) for step in range(1, 8)]
    assert rates(optimizer)[:3] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1])


@pytest.mark.parametrize("kind", ["factor", "multi factor"])
def test_optimizers_default_rate_applies_without_a_given_base_rate(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = mx.optimizer.Adam(lr_scheduler=SCHEDULERS[kind](warmup_steps=2))
    assert rates(optimizer)[:2] == [0.0005, 0.001]


@pytest.mark.parametrize("kind", ["poly", "cosine"])
def test_warm_up_ends_at_the_first_rate_of_an_annealing_scheduler(kind):
    """Its rates do not depend on the optimizer's default rate."""
    optimizer = mx.optimizer.Adam(lr_scheduler=SCHEDULERS[kind](warmup_steps=2))
    assert rates(optimizer)[:2] == [0.005, 0.01]


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_learning_rate_that_differs_from_the_base_rate_warns_with_its_effect(kind):
    annealing = kind in ("poly", "cosine")
    words = "0.2 has no effect.* base_lr 0.1;" if annealing else "0.2 replaces the base_lr 0.1 of"
    with pytest.warns(UserWarning, match=f"learning_rate {words}"):
        optimizer = mx.optimizer.Adam(learning_rate=0.2, lr_scheduler=SCHEDULERS[kind](base_lr=0.1))
    assert optimizer.rate_at(0) == (0.1 if annealing else 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mx.optimizer.Adam(learning_rate=0.1, lr_scheduler=SCHEDULERS[kind](base_lr=0.1))
    # equal to Adam's default, but given
    with pytest.warns(UserWarning, match="learning_rate 0.001"):
        mx.optimizer.Adam(learning_rate=0.001, lr_scheduler=SCHEDULERS[kind](base_lr=0.1))


def test_first_update_uses_the_rate_of_update_one_unless_a_function_shifts_it():
    schedule = schedulers.CosineScheduler(20, base_lr=0.4, warmup_steps=4)
    assert rates(mx.optimizer.SGD(lr_scheduler=schedule))[:2] == pytest.approx([0.1, 0.2])
    shifted = mx.optimizer.SGD(lr_scheduler=lambda n: schedule(max(n - 1, 0)))
    assert rates(shifted)[:2] == pytest.approx([0.0, 0.1])


def test_defaults_look_and_compare_like_numbers():
    assert repr(schedulers.CosineScheduler(5)) == "CosineScheduler(max_update=5, base_lr=0.01)"
    assert "learning_rate: 'float' = 0.001" in str(inspect.signature(mx.optimizer.Adam))
    assert type(mx.optimizer.Adam().lr) is float
    assert type(schedulers.CosineScheduler(5).base_lr) is float


@pytest.mark.parametrize("kind", [schedulers.CosineScheduler, schedulers.PolyScheduler])
def test_warm_up_longer_than_the_schedule_warns_and_keeps_the_base_rate(kind):
    with pytest.warns(UserWarning, match=r"max_update \(3\) includes the 10 warm-up") as caught:
        schedule = kind(3, base_lr=1.0, warmup_steps=10)
    assert caught[0].filename == __file__
    assert [schedule(n) for n in (0, 5, 10, 20)] == [0.0, 0.5, 1.0, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(11, warmup_steps=10)


def test_warm_up_as_long_as_the_schedule_ends_at_the_base_rate():
    with pytest.warns(UserWarning, match="the rate never decays"):
        schedule = schedulers.CosineScheduler(5, base_lr=1.0, warmup_steps=5)
    assert [schedule(n) for n in (0, 4, 5, 6)] == pytest.approx([0.0, 0.8, 1.0, 1.0])
