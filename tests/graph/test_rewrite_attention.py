"""Attention pattern matching: all forms that users write match, and similar graphs do not."""

import math

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd
from support.devices import on
from support.graphs import array, check, dump, error, ops, run

B, H, T, D = 2, 3, 10, 4
FUSED = {"_attention", "_dropout_attention"}


def fused(function, *arrays, train=True):
    return [name for name in ops(function, *arrays, train=train) if name in FUSED]


def by_head(x, heads=H):
    return nd.reshape(
        nd.transpose(nd.reshape(x, shape=(0, 0, heads, -1)), axes=(0, 2, 1, 3)), shape=(-3, 0, 0)
    )


def together(x, heads=H):
    return nd.reshape(
        nd.transpose(nd.reshape(x, shape=(-4, -1, heads, 0, 0)), axes=(0, 2, 1, 3)),
        shape=(0, 0, -3),
    )


def future(like, axis=1, low=-1e9):
    at = nd.contrib.arange_like(like, axis=axis)
    after = nd.broadcast_lesser(nd.expand_dims(at, axis=1), nd.expand_dims(at, axis=0))
    return after * low if math.isfinite(low) else nd.zeros_like(after) - after / (1 - after)


def packed(x, mask=True, p=0.0, scale=1 / math.sqrt(D)):
    q, k, v = nd.split(x, num_outputs=3, axis=-1)
    scores = nd.batch_dot(by_head(q), by_head(k), transpose_b=True) * scale
    if mask:
        scores = nd.broadcast_add(scores, nd.expand_dims(future(x), axis=0))
    weights = nd.softmax(scores)
    if p:
        weights = nd.Dropout(weights, p=p)
    return together(nd.batch_dot(weights, by_head(v)))


def separate(q, k, v):
    return together(
        nd.batch_dot(
            nd.softmax(nd.batch_dot(by_head(q), by_head(k), transpose_b=True) / 2), by_head(v)
        )
    )


def four_dimensions(q, k, v, mask):
    q, k, v = (
        nd.transpose(nd.reshape(x, shape=(0, 0, H, -1)), axes=(0, 2, 1, 3)) for x in (q, k, v)
    )
    scores = nd.broadcast_add(nd.contrib.div_sqrt_dim(nd.batch_dot(q, k, transpose_b=True)), mask)
    return nd.reshape(
        nd.swapaxes(nd.batch_dot(nd.softmax(scores), v), dim1=1, dim2=2), shape=(0, 0, -3)
    )


def permuted(x):
    qkv = nd.transpose(nd.reshape(x, shape=(0, 0, 3, H, -1)), axes=(2, 0, 3, 1, 4))
    q, k, v = (
        nd.reshape(nd.slice_axis(qkv, axis=0, begin=i, end=i + 1), shape=(-3, -2)) for i in range(3)
    )
    scores = nd.batch_dot(
        nd.reshape(q, shape=(-3, 0, 0)) / 2, nd.reshape(k, shape=(-3, 0, 0)), transpose_b=True
    )
    return together(nd.batch_dot(nd.softmax(scores, axis=-1), nd.reshape(v, shape=(-3, 0, 0))))


def plain(q, k, v):
    return nd.batch_dot(nd.softmax(nd.batch_dot(q, nd.transpose(k, axes=(0, 2, 1)))), v)


def key_transposed_at_once(q, k, v):
    kt = nd.reshape(
        nd.transpose(nd.reshape(k, shape=(0, 0, H, -1)), axes=(0, 2, 3, 1)), shape=(-3, 0, 0)
    )
    return nd.batch_dot(nd.softmax(nd.batch_dot(by_head(q * 0.5), kt), temperature=2.0), by_head(v))


def chosen(low, inverted=False):
    def function(q, k, v):
        scores = nd.batch_dot(q, k, transpose_b=True) * 0.5
        at = nd.contrib.arange_like(q, axis=1)
        compare = nd.broadcast_lesser if inverted else nd.broadcast_greater_equal
        seen = nd.broadcast_like(
            nd.expand_dims(compare(nd.expand_dims(at, axis=1), nd.expand_dims(at, axis=0)), axis=0),
            scores,
        )
        filled = nd.full_like(scores, fill_value=low)
        return nd.batch_dot(
            nd.softmax(
                nd.where(seen, filled, scores) if inverted else nd.where(seen, scores, filled)
            ),
            v,
        )

    return function


def two_masks(low):
    def function(q, k, v, padding):
        scores = nd.batch_dot(q, k, transpose_b=True)
        scores = nd.broadcast_add(
            nd.broadcast_add(scores, padding), nd.expand_dims(future(q, low=low), axis=0)
        )
        return nd.batch_dot(nd.softmax(scores), v)

    return function


QKV = [(B, T, 3 * H * D)]
ROWS = [(B, T, H * D)] * 3
HEADS = [(B * H, T, D)] * 3
FORMS = {
    "packed causal": (packed, QKV),
    "packed": (lambda x: packed(x, mask=False), QKV),
    "long": (packed, [(2, 130, 3 * H * 8)]),
    "separate": (separate, ROWS),
    "keys of another length": (separate, [(B, 7, H * D), (B, 120, H * D), (B, 120, H * 5)]),
    "four dimensions, mask of keys": (four_dimensions, ROWS + [(B, 1, 1, T)]),
    "four dimensions, mask of all": (four_dimensions, ROWS + [(B, H, T, T)]),
    "four dimensions, mask of heads": (four_dimensions, ROWS + [(1, H, T, T)]),
    "permuted": (permuted, QKV),
    "plain": (plain, HEADS),
    "key transposed at once, temperature": (key_transposed_at_once, ROWS),
    "where": (chosen(-1e9), HEADS),
    "where, -inf": (chosen(-math.inf), HEADS),
    "where, the other way round": (chosen(-1e18, True), HEADS),
    "two masks": (two_masks(-1e9), HEADS + [(B * H, 1, T)]),
    "two masks, one of -inf": (two_masks(-math.inf), HEADS + [(1, 1, T)]),
    "one array for all": (lambda x: plain(x, x, x), HEADS[:1]),
    "dropout": (lambda x: packed(x, p=0.4), QKV),
}


def arrays_of(shapes, ctx=None):
    return [array(s, 3 + i, ctx) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_attention_is_fused(form):
    function, shapes = FORMS[form]
    arrays = arrays_of(shapes)
    masks = arrays[3:]
    arrays = arrays[:3]
    closed = lambda *a: function(*a, *[m.detach() for m in masks])
    assert len(fused(closed, *arrays)) == 1
    assert "batch_dot" not in ops(closed, *arrays)
    check(closed, arrays)


def test_fused_attention_graph_has_expected_parameters():
    lines = dump(packed, array(QKV[0], 1))
    assert lines[-3:] == [
        "%1 = _attention(%0, %0, %0) {sizes=(2, 3, 10, 10, 4, 4), query_at=(0, 360, 4, 36), "
        "key_at=(12, 360, 4, 36), value_at=(24, 360, 4, 36), result_at=(0, 120, 4, 12), shape=(2, "
        "10, 3, 4), scale=0.5, causal=True, packed=True}",
        "%2 = Reshape(%1) {shape=(0, 0, -3)}",
        "return %2",
    ]


def test_fused_attention_never_stores_the_score_matrix():
    x = array((1, 512, 3 * 8), 1)
    x.attach_grad()
    op = _core.CachedOp(lambda a: [packed_heads(a)], {})
    with autograd.record():
        y = op(x)[0]
    y.backward()
    [entry] = op.compiled()
    assert entry["devices"][str(on(0))]["planned"]["total"] < 512 * 512 * 4


def packed_heads(x):
    q, k, v = nd.split(x, num_outputs=3, axis=-1)
    return nd.batch_dot(nd.softmax(nd.batch_dot(q, k, transpose_b=True)), v)


def test_fused_attention_dropout_draws_same_mask():
    """With equal weights in each row, the result shows the dropped elements."""
    q, v = nd.zeros((2, 6, 3)), nd.array(np.tile(np.eye(6, dtype=np.float32), (2, 1, 1)))

    def function(q, v):
        nd.random.uniform(shape=(2,))
        return nd.batch_dot(
            nd.Dropout(nd.softmax(nd.batch_dot(q, q, transpose_b=True)), p=0.5, mode="always"), v
        )

    assert fused(function, q, v) == ["_dropout_attention"]
    results = [run(function, [q, v], hybridize=h)[0] for h in (False, True)]
    assert (results[0] == 0).any() and np.array_equal(*results)


def scores_of(q, k):
    return nd.batch_dot(q, k, transpose_b=True)


NEAR_MISSES = {
    "scores used elsewhere": lambda q, k, v: (
        lambda s: nd.batch_dot(nd.softmax(s), v).sum() + s.sum()
    )(scores_of(q, k)),
    "weights used elsewhere": lambda q, k, v: (lambda w: nd.batch_dot(w, v).sum() + w.sum())(
        nd.softmax(scores_of(q, k))
    ),
    "another axis": lambda q, k, v: nd.batch_dot(nd.softmax(scores_of(q, k), axis=1), v),
    "weights transposed": lambda q, k, v: nd.batch_dot(
        nd.softmax(scores_of(q, k)), v, transpose_a=True
    ),
    "log_softmax": lambda q, k, v: nd.batch_dot(nd.log_softmax(scores_of(q, k)), v),
    "masked weights": lambda q, k, v: nd.batch_dot(
        nd.broadcast_mul(nd.softmax(scores_of(q, k)), nd.ones((1, T, T)) * 0.5), v
    ),
    "a length": lambda q, k, v: nd.batch_dot(
        nd.softmax(scores_of(q, k), nd.full((B * H, T), 3, dtype="int32"), use_length=True), v
    ),
    "a mask that wants a gradient": lambda q, k, v: nd.batch_dot(
        nd.softmax(scores_of(q, k) + nd.slice_axis(q, axis=2, begin=0, end=1)), v
    ),
    "scores added to scores": lambda q, k, v: nd.batch_dot(
        nd.softmax(scores_of(q, k) + scores_of(k, q)), v
    ),
    "dropout of whole rows": lambda q, k, v: nd.batch_dot(
        nd.Dropout(nd.softmax(scores_of(q, k)), p=0.5, axes=(2,)), v
    ),
    "a sum instead of a softmax": lambda q, k, v: nd.batch_dot(scores_of(q, k) + 1, v),
}


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_patterns_similar_to_attention_are_not_fused(miss):
    function, arrays = NEAR_MISSES[miss], arrays_of(HEADS)
    for a in arrays:
        a.attach_grad()
    assert not fused(function, *arrays)
    assert ops(function, *arrays, train=True) == ops(function, *arrays, train=True, exact=True)
    check(function, arrays, 1e-30)


def test_fused_attention_in_half_precision_is_accurate():
    """Sums are accumulated in float32: errors of results and gradients are rounding errors only."""
    arrays = arrays_of(HEADS)
    expected = run(plain, arrays, hybridize=False)
    for dtype, tolerance in (("float16", 4e-3), ("bfloat16", 3e-2)):
        halves = [a.astype(dtype) for a in arrays]
        for a in halves:
            a.attach_grad()
        assert fused(plain, *halves) == ["_attention"]
        for a, b in zip(run(plain, halves), expected):
            assert np.abs(a.astype("float32") - b).max() < tolerance * max(1, np.abs(b).max())


def masked_plain(q, k, v, cast=lambda mask: mask, bias=0.0):
    """Causal attention with a mask built in float32, as client code does."""
    at = nd.arange(q.shape[1], ctx=q.ctx)
    later = nd.broadcast_lesser(nd.reshape(at, (-1, 1)), nd.reshape(at, (1, -1))) * -1e9 + bias
    scores = nd.broadcast_add(scores_of(q, k), nd.expand_dims(cast(later), axis=0))
    return nd.batch_dot(nd.softmax(scores), v)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_causal_mask_in_half_precision_is_recognized(dtype):
    """float16 rounds -1e9 to -inf. A mask that rounds to a different value is not causal."""
    arrays = arrays_of(HEADS)
    expected = run(masked_plain, arrays, hybridize=False)
    halves = [a.astype(dtype) for a in arrays]
    for a in halves:
        a.attach_grad()
    function = lambda *xs: masked_plain(*xs, cast=lambda mask: nd.Cast(mask, dtype=dtype))
    [line] = [line for line in dump(function, *halves) if "_attention" in line]
    assert "causal" in line and "mask_at" not in line
    for a, b in zip(run(function, halves), expected):
        assert np.abs(a.astype("float32") - b).max() < 4e-2 * max(1, np.abs(b).max())
    for bias, hides in ((1e-9, dtype == "float16"), (1e-5, False)):
        function = lambda *xs: masked_plain(
            *xs, cast=lambda mask: nd.Cast(mask, dtype=dtype), bias=bias
        )
        [line] = [line for line in dump(function, *halves) if "_attention" in line]
        assert ("causal" in line) == hides, (bias, line)


@pytest.mark.parametrize(
    "dtype, later",
    [
        ("float32", lambda far: (far * 0.1 > 0.1) * -1e9),  # in kernel precision 0.1 > 0.1 is false
        ("float16", lambda far: (far > 0) * -1e9),  # -inf and 0 * -inf
    ],
)
def test_mask_constants_are_rounded_like_kernels(dtype, later):
    """A mask that hides different keys or contains NaN is not causal."""

    def function(q, k, v):
        at = nd.arange(q.shape[1], ctx=q.ctx, dtype=dtype)
        far = nd.broadcast_sub(nd.reshape(at, (1, -1)), nd.reshape(at, (-1, 1)))
        scores = nd.broadcast_add(scores_of(q, k), nd.expand_dims(later(far), axis=0))
        return nd.batch_dot(nd.softmax(scores), v)

    arrays = [a.astype(dtype) for a in arrays_of(HEADS)]
    for a in arrays:
        a.attach_grad()
    [line] = [line for line in dump(function, *arrays) if "_attention" in line]
    assert "causal" not in line
    for a, b in zip(run(function, arrays), run(function, arrays, hybridize=False)):
        np.testing.assert_allclose(a, b, 1e-2 if dtype == "float16" else 1e-5, 1e-5)


@pytest.mark.parametrize("shift", [-1, 1, 2])
def test_almost_causal_mask_is_added(shift):
    def function(q, k, v):
        at = nd.contrib.arange_like(q, axis=1)
        mask = (
            nd.broadcast_lesser(nd.expand_dims(at, axis=1) + shift, nd.expand_dims(at, axis=0))
            * -1e9
        )
        return nd.batch_dot(
            nd.softmax(nd.broadcast_add(scores_of(q, k), nd.expand_dims(mask, axis=0))), v
        )

    arrays = arrays_of(HEADS)
    [line] = [line for line in dump(function, *arrays) if "_attention" in line]
    assert "causal" not in line and "mask_at" in line
    check(function, arrays)


def test_single_element_mask_is_not_causal():
    function = lambda q, k, v: nd.batch_dot(
        nd.softmax(nd.broadcast_add(scores_of(q, k), nd.zeros((1, 1, 1)))), v
    )
    [line] = [line for line in dump(function, *arrays_of(HEADS)) if "_attention" in line]
    assert "causal" not in line
    check(function, arrays_of(HEADS))


def test_fully_masked_rows_match_unfused_attention():
    """As in unfused attention, finite masks keep the scores' weights and -inf gives NaN."""
    arrays = arrays_of(HEADS)
    for low in (-1e4, -np.inf):
        mask = np.zeros((1, T, T), np.float32)
        mask[0, 2] = low
        function = lambda q, k, v: nd.batch_dot(
            nd.softmax(nd.broadcast_add(scores_of(q, k), nd.array(mask))), v
        )
        eager, default = run(function, arrays, hybridize=False), run(function, arrays)
        for a, b in zip(default, eager):
            assert np.array_equal(np.isnan(a), np.isnan(b))
            assert np.allclose(a, b, rtol=2e-4, atol=1e-5, equal_nan=True)


def test_overlapping_slices_are_not_packed_attention():
    """Gradients of overlapping parts are summed."""

    def function(x):
        q, k, v = (nd.slice_axis(x, axis=1, begin=b, end=b + 4) for b in (0, 2, 8))
        return plain(q, k, v)

    x = array((2, 12, 3), 1)
    assert "packed" not in "".join(dump(function, x))
    check(function, [x])


def spread(devices):
    def function(x, w):
        x = nd.FullyConnected(
            x.as_in_context(devices[0]),
            w.as_in_context(devices[0]),
            no_bias=True,
            num_hidden=3 * H * D,
            flatten=False,
        )
        q, k, v = nd.split(x, num_outputs=3, axis=-1)
        q, k, v = (
            q.as_in_context(devices[1]),
            k.as_in_context(devices[1]),
            v.as_in_context(devices[2]),
        )
        weights = nd.softmax(scores_of(by_head(q), by_head(k)).as_in_context(devices[2]) / 2)
        y = nd.batch_dot(nd.Dropout(weights, p=0.2), by_head(v)).as_in_context(devices[1])
        return (together(y) + together(y) * 2).as_in_context(devices[0])

    return function


@pytest.mark.parametrize("mode", ["async", "shuffle"])
def test_fused_attention_bits_do_not_depend_on_placement(mode):
    arrays = [array((B, T, H * D), 1), array((3 * H * D, H * D), 2, scale=0.3)]
    one = run(spread([on(0)] * 3), arrays)
    many = spread([on(0), on(1), on(2)])
    assert fused(many, *arrays) == ["_dropout_attention"]
    mx.engine.set_mode(mode, 5)
    try:
        for a, b in zip(run(many, arrays), one):
            assert np.array_equal(a, b)
    finally:
        mx.engine.set_mode("async")
    check(many, arrays)


def test_fused_attention_bits_do_not_depend_on_threads():
    """One head on many threads is split into blocks of rows and keys, with equal sums."""
    results = []
    try:
        for threads in (1, 2, 5):
            mx.context.set_threads(threads)
            results.append(run(lambda x: packed(x, p=0.1), [array((1, 200, 3 * H * 16), 2)]))
    finally:
        mx.context.set_threads(0)
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert np.array_equal(a, b)


def test_second_gradient_of_fused_attention_matches_eager():
    def second(function):
        x = array(QKV[0], 1)
        x.attach_grad()
        with autograd.record():
            y = function(x)
            y = y[0] if isinstance(y, list) else y
            [g] = autograd.grad((y * y).sum(), [x], create_graph=True, retain_graph=True)
            z = (g * g).sum()
        z.backward()
        return [x.grad.asnumpy()]

    assert error(second(_core.CachedOp(lambda x: [packed(x)], {})), second(packed)) < 1e-5


def test_fused_causal_attention_matches_pytorch():
    torch = pytest.importorskip("torch")
    x = array((2, 150, 3 * H * 16), 4)
    ours = run(lambda a: packed(a, scale=0.25), [x])
    t = torch.tensor(x.asnumpy(), dtype=torch.float64, requires_grad=True)
    q, k, v = t.view(2, 150, 3, H, 16).permute(2, 0, 3, 1, 4)
    y = (
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        .transpose(1, 2)
        .reshape(2, 150, H * 16)
    )
    y.backward(torch.tensor(np.random.RandomState(7).randn(*y.shape)))
    assert error(ours, [y.detach().numpy(), t.grad.numpy()]) < 1e-6
