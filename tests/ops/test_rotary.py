"""Rotary position embedding: all scalings against NumPy in float64, large angles, positions in
pipelines and on several devices, and errors."""

import math

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.devices import on
from support.pipelines import results_in_all_ways

FACTORS = (1.0, 1.5, 2.0, 8.0)
SCALINGS = {
    "linear": {"factor": 3.0},
    "llama3": {"factor": 8.0, "original_length": 16, "low_freq_factor": 1.0},
    "yarn": {"factor": 4.0, "original_length": 64, "beta_fast": 2.0},
    "longrope": {"factor": 4.0, "original_length": 16, "factors": FACTORS},
}


def frequencies_of(scaling, options, base=10000.0, pairs=4):
    """Returns the frequencies of the pairs, and the factor of the results."""
    plain = base ** (-np.arange(pairs) / pairs)
    factor, length = options.get("factor", 1.0), options.get("original_length", 0)
    if scaling == "linear":
        return plain / factor, 1
    if scaling == "longrope":
        return plain / np.array(FACTORS), math.sqrt(1 + math.log(factor) / math.log(length))
    if scaling == "llama3":
        share = np.clip((length * plain / (2 * np.pi) - 1) / (4 - 1), 0, 1)
        return (1 - share) * plain / factor + share * plain, 1
    turns = [pairs * math.log(length / (n * 2 * np.pi)) / math.log(base) for n in (2.0, 1.0)]
    low, high = max(math.floor(turns[0]), 0), min(math.ceil(turns[1]), 2 * pairs - 1)
    scaled = np.clip((np.arange(pairs) - low) / (high - low), 0, 1)
    return plain * (1 - scaled) + plain / factor * scaled, 0.1 * math.log(factor) + 1


def rotated(x, positions, frequencies, factor=1, sign=1):
    """Rotates pairs of adjacent features of x (batch, time, heads, features)."""
    frequencies = frequencies.astype("float32").astype("float64")
    turns = np.exp(sign * 1j * positions[:, :, None, None] * frequencies)
    pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turns * factor
    return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)


@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
@pytest.mark.parametrize("start", [0, 7, 100000])
def test_start_is_the_first_position(layout, start):
    results = []
    for given in ((), (nd.arange(start, start + 6, dtype="int32", ctx=on(0)),)):
        options = {} if given else {"start": start}
        x = nd.array(np.random.RandomState(0).randn(2, 6, 6, 8), ctx=on(0))
        x.attach_grad()
        with autograd.record():
            y = nd.contrib.rotary(x, *given, layout=layout, **options)
        y.backward(y * 2)
        results.append((y.asnumpy(), x.grad.asnumpy()))
    for found, wanted in zip(*results):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
def test_scalings_and_their_gradients_match_numpy(scaling, layout):
    random = np.random.RandomState(0)
    values, heads = random.randn(2, 2, 50, 3, 8)
    positions = random.randint(0, 1000, (2, 50))
    frequencies, factor = frequencies_of(scaling, SCALINGS[scaling])
    turn = (lambda a: a.swapaxes(1, 2)) if layout == "bhtd" else lambda a: a
    x, head = (nd.array(turn(a), dtype="float64", ctx=on(0)) for a in (values, heads))
    x.attach_grad()
    with autograd.record():
        y = nd.contrib.rotary(
            x,
            nd.array(positions, dtype="int64", ctx=on(0)),
            style="pairs",
            layout=layout,
            scaling=scaling,
            **SCALINGS[scaling],
        )
    y.backward(head)
    wanted = rotated(values, positions, frequencies, factor)
    np.testing.assert_allclose(turn(y.asnumpy()), wanted, atol=1e-12)
    wanted = rotated(heads, positions, frequencies, factor, -1)
    np.testing.assert_allclose(turn(x.grad.asnumpy()), wanted, atol=1e-12)


@pytest.mark.parametrize("base", [1e-40, 1e-8, 0.5])
def test_frequencies_may_grow_with_the_pair(base):
    """A base below 1 makes the last pair the fastest one."""
    frequencies = base ** (-np.arange(4) / 4)
    x = np.ones((1, 3, 1, 8))
    positions = np.array([[0, 1, 3_000_000]])
    found = nd.contrib.rotary(
        nd.array(x, dtype="float64", ctx=on(0)),
        nd.array(positions, dtype="int32", ctx=on(0)),
        base=base,
        style="pairs",
    )
    np.testing.assert_allclose(found.asnumpy(), rotated(x, positions, frequencies), atol=1e-9)


@pytest.mark.parametrize("each", [False, True])
def test_positions_in_pipelines_have_the_bits_of_one_device(each):
    """Positions of each batch entry are divided; shared ones are read whole by every part."""

    class Net(gluon.HybridBlock):
        def __init__(self, ctx):
            super().__init__()
            self.own = ctx

        def hybrid_forward(self, F, x, positions):
            half = F.contrib.rotary(x, positions, style="half")
            half, positions = (a.as_in_context(self.own) for a in (half, positions))
            return F.contrib.rotary(half, positions, style="pairs", dims=4, layout="bhtd")

    random = np.random.RandomState(4)
    shape = (6, 5) if each else (5,)
    positions = nd.array(random.randint(0, 99, shape), dtype="int32", ctx=on(0))
    x = nd.array(np.random.RandomState(1).randn(6, 5, 5, 8), ctx=on(0))
    results_in_all_ways(Net, [x], positions)


ERRORS = {
    "dims must be an even number": {"dims": 3},
    "and up to 512": {"dims": 10},
    "base and factor must be > 0": {"base": 0},
    "needs original_length": {"scaling": "yarn", "factor": 2},
    "high_freq_factor must be larger": {
        "scaling": "llama3",
        "original_length": 8,
        "low_freq_factor": math.nan,
    },
    "beta_fast and beta_slow > 0": {
        "scaling": "yarn",
        "original_length": 8,
        "beta_fast": math.nan,
    },
    "longrope needs 4 factors": {
        "scaling": "longrope",
        "original_length": 8,
        "factors": (1, 2),
    },
    "factors must be > 0": {
        "scaling": "longrope",
        "original_length": 8,
        "factors": (1, 1, 1, 0),
    },
    "needs an attention_factor": {
        "scaling": "longrope",
        "original_length": 1,
        "factors": FACTORS,
        "factor": 2,
    },
}


@pytest.mark.parametrize("text", ERRORS)
def test_invalid_options_raise(text):
    with pytest.raises(mx.MXNetError, match=text):
        nd.contrib.rotary(nd.ones((1, 2, 1, 8), ctx=on(0)), **ERRORS[text])
