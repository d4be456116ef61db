"""Random graphs over several devices are bitwise equal to eager on one device in any order."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mpgluon as mx
from mpgluon import _core, autograd, nd
from support import networks
from support.compare import same_bits

pytestmark = pytest.mark.usefixtures("async_afterwards")
MODES = [("async", 0), ("sync", 0), ("shuffle", 1), ("shuffle", 2), ("shuffle", 3)]
UNARY = ["tanh", "relu", "negative", "square", "sigmoid", "copy"]
BINARY = ["add", "mul", "sub", "maximum"]

step = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 99)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 99), st.integers(0, 99)),
    st.tuples(st.just("dense"), st.integers(0, 99), st.integers(0, 2)),
    st.tuples(st.just("dropout"), st.integers(0, 99)),
    st.tuples(st.just("view"), st.integers(0, 99)),
    st.tuples(st.just("rows"), st.integers(0, 99)),
    st.tuples(st.just("update"), st.integers(0, 99), st.integers(0, 99)),
    st.tuples(st.just("move"), st.integers(0, 99), st.integers(0, 3)),
)
program = st.tuples(
    st.lists(st.tuples(step, st.integers(0, 3)), min_size=1, max_size=14),
    st.lists(st.integers(0, 99), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
)


def interpret(steps, outputs, x, weights, devices, recorded):
    """Runs the steps on arrays of shape (4, 6), moving the inputs of each step to its device."""
    values = [x]

    def pick(number, device):
        return values[number % len(values)].as_in_context(devices[device])

    for (kind, *numbers), device in steps:
        if kind == "dense":
            value = nd.FullyConnected(
                pick(numbers[0], device),
                weights[numbers[1]].as_in_context(devices[device]),
                no_bias=True,
                num_hidden=6,
            )
        elif kind == "dropout":
            value = nd.Dropout(pick(numbers[0], device), p=0.4)
        elif kind == "view":
            value = pick(numbers[0], device).reshape((6, 4)).reshape((2, 12)).reshape((4, 6))
        elif kind == "rows":
            a = pick(numbers[0], device)
            value = nd.concat(a[2:4], a[0:2], dim=0)
        elif kind == "update":  # in place if the tape allows it
            value = pick(numbers[0], device) * 1
            other = pick(numbers[1], device)
            if recorded:
                value = value + other
            else:
                value += other
                value[1:3] = other[0:2]
        elif kind == "move":
            value = (
                pick(numbers[0], device)
                .as_in_context(devices[numbers[1]])
                .as_in_context(devices[device])
            )
        elif kind in BINARY:
            a, b = pick(numbers[0], device), pick(numbers[1], device)
            value = (
                {"add": a + b, "mul": a * b, "sub": a - b, "maximum": nd.maximum(a, b)}[kind]
                if kind != "mul"
                else nd.tanh(a) * b
            )
        elif kind == "square":
            value = nd.square(nd.tanh(pick(numbers[0], device)))
        elif kind == "copy":
            value = pick(numbers[0], device).copy()
        else:
            value = getattr(nd, kind)(pick(numbers[0], device))
        values.append(value)
    return [values[-1 - number % len(values)] for number in outputs]


def run(program, num_devices, compiled, exact=True):
    steps, outputs, homes = program
    devices = [mx.cpu(60 + i % num_devices) for i in range(4)]
    mx.random.seed(5)
    draw = np.random.RandomState(1)
    x = nd.array(draw.uniform(-1, 1, (4, 6)), ctx=devices[0])
    weights = [nd.array(draw.uniform(-1, 1, (6, 6)), ctx=devices[home]) for home in homes]
    arrays = [x, *weights]
    for array in arrays:
        array.attach_grad()

    def function(x, *weights):
        return interpret(steps, outputs, x, weights, devices, True)

    op = _core.CachedOp(function, {"exact": exact}) if compiled else function
    results = []
    for _ in range(2):
        with autograd.record():
            values = op(*arrays)
            losses = [
                (value * (i + 1)).sum().as_in_context(devices[0]) for i, value in enumerate(values)
            ]
            loss = nd.add_n(*losses)
        loss.backward()
        # The next round sees new weights, written while the last round may still run.
        for weight in weights:
            weight -= 0.1 * weight.grad
        results += [*values, *[array.grad.copy() for array in arrays]]
    if not compiled:
        with autograd.pause(train_mode=True):
            results += interpret(steps, outputs, x, weights, devices, False)
    return [result.asnumpy() for result in results]


def check(program, num_devices):
    mx.engine.set_mode("async")
    expected = run(program, 1, False)
    quick = run(program, 1, True, exact=False)
    for mode, seed in MODES:
        mx.engine.set_mode(mode, seed)
        for compiled in (False, True):
            for found, wanted in zip(run(program, num_devices, compiled), expected):
                np.testing.assert_array_equal(
                    found, wanted, err_msg=f"{mode} {seed}, compiled: {compiled}"
                )
        for found, wanted in zip(run(program, num_devices, True, exact=False), quick):
            np.testing.assert_array_equal(found, wanted, err_msg=f"{mode} {seed}, compiled")


SETTINGS = dict(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@settings(max_examples=25, **SETTINGS)
@given(program, st.integers(2, 4))
def test_random_graphs_are_bitwise_equal_to_single_device_eager(program, num_devices):
    check(program, num_devices)


@pytest.mark.slow
@settings(max_examples=600, **SETTINGS)
@given(program, st.integers(2, 4))
def test_many_random_graphs_are_bitwise_equal_to_single_device_eager(program, num_devices):
    check(program, num_devices)


@pytest.mark.parametrize("mode,seed", MODES)
@pytest.mark.parametrize("kind", networks.NETS)
def test_network_training_bits_do_not_depend_on_engine_mode(kind, mode, seed):
    kind = networks.NETS[kind]
    mx.engine.set_mode("async")
    eager, compiled = (
        networks.train(kind, 1, "sgd", steps=4),
        networks.train(kind, 1, "sgd", {}, steps=4),
    )
    mx.engine.set_mode(mode, seed)
    same_bits(networks.train(kind, 3, "sgd", steps=4), eager)
    same_bits(networks.train(kind, 3, "sgd", {"exact": True}, steps=4), eager)
    same_bits(networks.train(kind, 3, "sgd", {}, steps=4), compiled)


@pytest.mark.parametrize("compiled", [False, True])
def test_three_gradients_across_devices_are_summed_in_fixed_order(compiled):
    """If one of an array's three uses is on another device, the summation order stays the same."""
    program = ([(("move", 0, 0), 1), (("tanh", 0), 0), (("mul", 1, 1), 1)], [0, 1, 2], [0, 0, 0])
    for found, wanted in zip(run(program, 2, compiled), run(program, 1, compiled)):
        np.testing.assert_array_equal(found, wanted)
