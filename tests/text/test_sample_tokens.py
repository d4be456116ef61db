"""Draws of tokens: every option against a NumPy reference, and independence of the batch."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.devices import on


def philox(seed, call, counter):
    """Returns the four words of a block of Philox4x32-10 (base/philox.h)."""
    low = 0xFFFFFFFF
    c = [counter & low, counter >> 32 & low, call & low, call >> 32 & low]
    k = [seed & low, seed >> 32 & low]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & low, (p0 >> 32) ^ c[3] ^ k[1], p0 & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c


def uniform_double(seed, call):
    """Returns the first uniform number of a call's stream, with 53 bits."""
    high, low, _, _ = philox(int(seed), int(call), 0)
    return ((high << 32 | low) >> 11) * 2.0**-53


def kept(logits, temperature=1, top_k=0, top_p=1, min_p=0, repetition_penalty=1, history=()):
    """Returns the weights of the tokens that remain, in float32 as the op computes them."""
    logits = logits.astype("float32").copy()
    for token in {t for t in history if t >= 0}:
        x = logits[token]
        logits[token] = x / repetition_penalty if x > 0 else x * repetition_penalty
    weights = np.exp((logits - logits.max()) / np.float32(temperature)).astype("float64")
    order = np.lexsort((np.arange(len(logits)), -weights))
    if top_k:
        weights[order[top_k:]] = 0
    if top_p < 1:
        sums = np.cumsum(weights[order])
        count = 1 + np.searchsorted(sums, top_p * sums[-1] * (1 - 1e-9))
        weights[order[count:]] = 0
    weights[weights < min_p] = 0
    return weights


OPTIONS = [
    {},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 1000},
    {"top_p": 0.4},
    {"top_p": 0.0},
    {"min_p": 0.3},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.02, "temperature": 1.7},
    {"repetition_penalty": 3.0},
]


@pytest.mark.parametrize("tokens", [1, 2, 33, 5000])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_drawn_tokens_match_the_reference(options, tokens):
    random = np.random.RandomState(tokens)
    rows = 40
    logits = random.randn(rows, tokens).astype("float32") * 2
    keys = random.randint(0, 1 << 62, (rows, 2))
    history = random.randint(-2, tokens, (rows, 7)).astype("int32")
    arrays = [nd.array(logits, ctx=on(0)), nd.array(keys, dtype="int64", ctx=on(0))]
    if "repetition_penalty" in options:
        arrays.append(nd.array(history, dtype="int32", ctx=on(0)))
    drawn = nd.contrib.sample_tokens(*arrays, **options).asnumpy()
    assert drawn.dtype == np.int32
    different = 0
    for r in range(rows):
        weights = kept(logits[r], **options, history=history[r] if len(arrays) > 2 else ())
        sums = np.cumsum(weights)
        expected = np.searchsorted(sums, uniform_double(*keys[r]) * sums[-1], side="right")
        assert weights[drawn[r]] > 0
        different += expected != drawn[r]
    assert different <= 1  # a draw may be within rounding of a boundary


@pytest.mark.parametrize("seed", range(12))
def test_random_options_match_the_reference(seed):
    """Also equal logits at the limits, -inf, NaN, padding and repeated tokens in the history."""
    random = np.random.RandomState(seed)
    different = 0
    for _ in range(10):
        rows, tokens = random.randint(1, 9), int(random.choice([1, 3, 40, 700]))
        logits = random.randn(rows, tokens).astype("float32") * 2
        if random.rand() < 0.5:
            logits = np.round(logits)
        logits[random.rand(rows, tokens) < random.choice([0, 0.3])] = -np.inf
        logits[random.rand(rows, tokens) < random.choice([0, 0.1])] = np.nan
        logits[:, random.randint(tokens)] = 1  # a finite logit
        options = {
            "temperature": random.choice([0.2, 1.0, 3.0]),
            "top_k": int(random.choice([0, 1, 4, 50])),
            "top_p": random.choice([0.0, 0.3, 0.9, 1.0]),
            "min_p": random.choice([0.0, 0.05, 1.0]),
            "repetition_penalty": random.choice([1.0, 0.5, 2.0]),
        }
        keys = random.randint(-(1 << 62), 1 << 62, (rows, 2))
        history = random.randint(-3, tokens + 3, (rows, random.randint(0, 9))).astype("int32")
        drawn = nd.contrib.sample_tokens(
            nd.array(logits, ctx=on(0)),
            nd.array(keys, dtype="int64", ctx=on(0)),
            nd.array(history, dtype="int32", ctx=on(0)),
            **options,
        ).asnumpy()
        for r in range(rows):
            known = [t for t in history[r] if t < tokens]
            row = np.where(np.isnan(logits[r]), np.float32(-np.inf), logits[r])
            weights = kept(row, **options, history=known)
            sums = np.cumsum(weights)
            expected = np.searchsorted(sums, uniform_double(*keys[r]) * sums[-1], side="right")
            assert weights[drawn[r]] > 0, options
            different += expected != drawn[r]
    assert different <= 1  # a draw may be within rounding of a boundary


def test_equal_logits_are_preferred_in_order():
    keys = nd.array([[s, 3] for s in range(200)], dtype="int64", ctx=on(0))
    drawn = nd.contrib.sample_tokens(nd.zeros((200, 50), ctx=on(0)), keys, top_k=4).asnumpy()
    assert set(drawn) == {0, 1, 2, 3}
    drawn = nd.contrib.sample_tokens(nd.zeros((200, 50), ctx=on(0)), keys, top_p=0.1).asnumpy()
    assert set(drawn) == {0, 1, 2, 3, 4}


def test_a_request_does_not_depend_on_the_batch():
    random = np.random.RandomState(0)
    logits = nd.array(random.randn(9, 300), ctx=on(0))
    keys = nd.array(random.randint(0, 1000, (9, 2)), dtype="int64", ctx=on(0))
    whole = nd.contrib.sample_tokens(logits, keys, top_p=0.9).asnumpy()
    parts = [
        nd.contrib.sample_tokens(logits[i : i + 1], keys[i : i + 1], top_p=0.9).asnumpy()
        for i in range(9)
    ]
    assert (np.concatenate(parts) == whole).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_all_dtypes_draw_from_the_rounded_logits(dtype):
    random = np.random.RandomState(1)
    logits = nd.array(random.randn(20, 100), ctx=on(0)).astype(dtype)
    keys = nd.array(random.randint(0, 1000, (20, 2)), dtype="int64", ctx=on(0))
    same = nd.contrib.sample_tokens(logits.astype("float32"), keys).asnumpy()
    assert (nd.contrib.sample_tokens(logits, keys).asnumpy() == same).all()


def test_special_values():
    keys = nd.array([[1, 2]] * 4, dtype="int64", ctx=on(0))
    nan, inf = np.nan, np.inf
    logits = [[nan, 1, -inf], [-inf, -inf, -inf], [0, inf, 0], [nan, nan, nan]]
    for temperature in (0, 1):
        drawn = nd.contrib.sample_tokens(
            nd.array(logits, ctx=on(0)), keys, temperature=temperature
        ).asnumpy()
        assert list(drawn) == [1, 0, 1, 0]


def test_invalid_arguments_raise():
    logits, keys = nd.zeros((2, 3)), nd.zeros((2, 2), dtype="int64")
    for arrays, options, text in (
        ((logits, keys), {"repetition_penalty": 2}, "needs history"),
        ((logits, keys), {"top_p": 1.5}, "top_p"),
        ((logits, keys), {"temperature": -1}, "temperature"),
        ((logits, nd.zeros((2, 2))), {}, "int64"),
        ((logits, nd.zeros((3, 2), dtype="int64")), {}, "shape"),
        ((logits[0], keys), {}, "requests, tokens"),
        ((nd.zeros((2, 0)), keys), {}, "tokens"),
    ):
        with pytest.raises((mx.base.MXNetError, ValueError, TypeError), match=text):
            nd.contrib.sample_tokens(*arrays, **options).wait_to_read()
