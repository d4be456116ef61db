"""Learning rate schedules: MXNet's values, warm-up, and invalid arguments."""

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


def test_warm_up_as_long_as_the_schedule_ends_at_the_base_rate():
    schedule = schedulers.CosineScheduler(5, base_lr=1.0, warmup_steps=5)
    assert [schedule(n) for n in (0, 4, 5, 6)] == pytest.approx([0.0, 0.8, 1.0, 1.0])
