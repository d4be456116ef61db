"""Attention with shared key heads, windows, masks, lengths, segments and caches, against NumPy; the
bits of its rows; micro-batches; errors."""

import itertools

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.parallel import Pipeline
from samples.attention import cached, time_first, visible, weigh
from support.devices import on
from support.pipelines import results_in_all_ways

TOLERANCE = {"float64": 1e-12, "float32": 3e-6, "float16": 4e-3, "bfloat16": 4e-2}
# Batch, rows, keys, heads, key heads, features, value features
SIZES = {
    "grouped": (2, 5, 9, 4, 2, 8, 6),
    "several blocks": (2, 70, 130, 4, 1, 16, 16),
    "square": (1, 60, 60, 2, 2, 5, 32),
    "more rows than keys": (2, 7, 3, 2, 1, 4, 4),
    "one row": (3, 1, 200, 6, 2, 32, 32),
    "groups over blocks": (1, 100, 230, 6, 2, 8, 8),
}
WAYS = list(
    itertools.product(
        (False, True), (0, 5, 40), (0, 2.0), (None, "bool", "added", "keys"), (False, True)
    )
)


def arrays_of(sizes, seed):
    batch, rows, keys, heads, key_heads, width, value_width = sizes
    random = np.random.RandomState(seed)
    return [
        random.randn(*shape)
        for shape in (
            (batch, rows, heads, width),
            (batch, keys, key_heads, width),
            (batch, keys, key_heads, value_width),
        )
    ]


def options_of(sizes, way, seed):
    """Returns the mask, the lengths, the segments and the options of a call."""
    batch, rows, keys, heads, *_ = sizes
    causal, window, softcap, kind, more = way
    random = np.random.RandomState(seed + 1)
    mask = {
        None: lambda: None,
        "bool": lambda: random.uniform(size=(batch, 1, rows, keys)) > 0.3,
        "added": lambda: random.randn(heads, rows, keys),
        "keys": lambda: random.uniform(size=keys) > 0.3,
    }[kind]()
    lengths = random.randint(0, keys + 1, batch) if more else None
    segments = np.sort(random.randint(0, 4, (batch, keys)), 1) if more and rows <= keys else None
    return mask, lengths, segments, {"causal": causal, "window": window, "softcap": softcap}


def on_device(value, dtype, ctx=None):
    value = np.asarray(value)
    if value.dtype == bool:
        return nd.array(value, dtype="bool", ctx=ctx or on(0))
    if value.dtype.kind == "i":
        return nd.array(value, dtype="int32", ctx=ctx or on(0))
    wide = "float32" if dtype == "bfloat16" else dtype
    return nd.array(value, dtype=wide, ctx=ctx or on(0)).astype(dtype)


def wide(array):
    return array.astype("float64").asnumpy()


def given(mask, lengths, segments, dtype):
    named = {"mask": mask, "lengths": lengths, "segments": segments}
    return {name: on_device(a, dtype) for name, a in named.items() if a is not None}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES)
def test_attention_matches_numpy(size, dtype):
    sizes = SIZES[size]
    for seed, way in enumerate(WAYS[:: 3 if sizes[1] * sizes[2] > 1000 else 1]):
        mask, lengths, segments, options = options_of(sizes, way, seed)
        arrays = [on_device(a, dtype) for a in arrays_of(sizes, seed)]
        more = given(mask, lengths, segments, dtype)
        result = wide(nd.contrib.attention(*arrays, **more, **options))
        if mask is not None and mask.dtype != bool:
            mask = wide(more["mask"])  # rounded
        causal, window, softcap = options.values()
        seen = visible(*sizes[:3], causal, window, lengths, segments)
        wanted = weigh(*map(wide, arrays), seen, mask, softcap)
        limit = TOLERANCE[dtype] * max(1, np.abs(wanted).max(initial=0))
        assert np.abs(result - wanted).max(initial=0) <= limit, way


def composed(query, key, value, seen, mask, softcap):
    """The same attention of ordinary ops, in float64."""
    group = query.shape[2] // key.shape[2]
    key, value = (nd.repeat(x, repeats=group, axis=2) for x in (key, value))
    query, key, value = (nd.swapaxes(x, dim1=1, dim2=2) for x in (query, key, value))
    scores = nd.batch_dot(query, key, transpose_b=True) * query.shape[3] ** -0.5
    if softcap:
        scores = softcap * nd.tanh(scores / softcap)
    if mask is not None:
        scores = nd.broadcast_add(scores, mask)
    scores = nd.where(seen, scores, nd.full(scores.shape, -1e300, dtype="float64", ctx=on(0)))
    weights = nd.softmax(scores, axis=-1) * seen
    return nd.swapaxes(nd.batch_dot(weights, value), dim1=1, dim2=2)


def gradients(function, arrays, head):
    for a in arrays:
        a.attach_grad()
    with autograd.record():
        result = function(*arrays)
    result.backward(head)
    return [wide(a.grad) for a in arrays]


@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
@pytest.mark.parametrize("size", [s for s in SIZES if s != "one row"])
def test_attention_gradient_matches_composed_attention(size, layout):
    sizes = SIZES[size]
    batch, rows, keys, heads, *_ = sizes
    for seed, way in enumerate(WAYS[:: 11 if rows * keys > 1000 else 3]):
        mask, lengths, segments, options = options_of(sizes, way, seed)
        causal, window, softcap = options.values()
        seen = visible(*sizes[:3], causal, window, lengths, segments)
        added = mask if mask is not None and mask.dtype != bool else None
        if mask is not None and added is None:
            seen = seen & mask
        arrays = arrays_of(sizes, seed)
        head = np.random.RandomState(7).randn(batch, rows, heads, sizes[6])
        whole = on_device(np.broadcast_to(seen, (batch, heads, rows, keys)) * 1.0, "float64")
        wanted = gradients(
            lambda q, k, v: composed(
                q,
                k,
                v,
                whole,
                None if added is None else on_device(added[None], "float64"),
                softcap,
            ),
            [on_device(a, "float64") for a in arrays],
            on_device(head, "float64"),
        )
        for dtype in TOLERANCE:
            more = given(mask, lengths, segments, dtype)
            found = gradients(
                lambda *a: nd.contrib.attention(*a, **more, **options, layout=layout),
                [on_device(a, dtype) for a in time_first(layout, *arrays)],
                on_device(time_first(layout, head)[0], dtype),
            )
            for a, b in zip(time_first(layout, *found), wanted):
                limit = 4 * TOLERANCE[dtype] * max(1, np.abs(b).max())
                assert np.abs(a - b).max() <= limit, (dtype, way)


CHUNKS = [
    (4, 2, 64, 64, 333, 0, 0),
    (8, 1, 48, 80, 500, 0, 0),
    (2, 2, 64, 64, 257, 50, 0),
    (6, 3, 20, 33, 400, 129, 5.0),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads, key_heads, width, value_width, keys, window, softcap", CHUNKS)
def test_row_bits_do_not_depend_on_the_other_rows(
    heads, key_heads, width, value_width, keys, window, softcap, dtype
):
    """A row computed alone, in a chunk, or with the whole sequence; also with segments."""
    keys = keys if on(0).device_type == "cpu" else keys // 3
    sizes = (2, keys, keys, heads, key_heads, width, value_width)
    query, key, value = (on_device(a, dtype) for a in arrays_of(sizes, 3))
    segments = np.sort(np.random.RandomState(2).randint(0, 3, (2, keys)), 1)
    options = {"causal": True, "window": window, "softcap": softcap}
    cuts = [(i, i + 1) for i in range(0, keys, 37)] + [(0, 60), (60, 77), (77, 78), (78, keys)]
    for own in (None, on_device(segments, dtype)):
        whole = wide(nd.contrib.attention(query, key, value, segments=own, **options))
        for begin, end in cuts:
            part = nd.contrib.attention(
                query[:, begin:end],
                key[:, :end],
                value[:, :end],
                segments=None if own is None else own[:, :end],
                **options,
            )
            assert wide(part).tobytes() == whole[:, begin:end].tobytes(), (begin, end)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window, softcap", [(0, 0), (37, 0), (0, 4.0)])
def test_cached_attention_has_the_bits_of_the_whole_sequence(dtype, window, softcap):
    """For any division into calls. Unused rows of the caches hold NaN."""
    sizes = (2, 70, 70, 6, 2, 40, 32)
    query, key, value = (on_device(a, dtype) for a in arrays_of(sizes, 5))
    options = {"window": window, "softcap": softcap}
    whole = wide(nd.contrib.attention(query, key, value, causal=True, **options))
    for layout in ("bthd", "bhtd"):
        for counts in ([1] * 20 + [50], [70], [50, 18, 1, 1], [7] * 10):
            turn = lambda x: x if layout == "bthd" else nd.swapaxes(x, dim1=1, dim2=2)
            caches = [
                turn(nd.full((2, 110, 2, n), np.nan, dtype=dtype, ctx=on(0))) for n in (40, 32)
            ]
            results, begin = [], 0
            for count in counts:
                part = [turn(x[:, begin : begin + count]) for x in (query, key, value)]
                lengths = on_device([begin] * 2, dtype)
                result = nd.contrib.cached_attention(
                    *part, *caches, lengths, layout=layout, **options
                )
                results.append(wide(turn(result)))
                begin += count
            assert np.concatenate(results, 1).tobytes() == whole.tobytes(), (layout, counts)
            assert np.array_equal(wide(turn(caches[0])[:, :70]), wide(key))
            assert np.isnan(wide(turn(caches[1])[:, 70:])).all()


def test_cached_attention_writes_at_each_entry_and_drops_rows_past_the_end():
    random = np.random.RandomState(1)
    shapes = [(3, 2, 2, 4), (3, 2, 1, 4), (3, 2, 1, 4), (3, 6, 1, 4), (3, 6, 1, 4)]
    arrays = [random.randn(*shape) for shape in shapes]
    lengths = np.array([0, 4, 2], np.int32)
    ours = [on_device(a, "float64") for a in arrays]
    result = nd.contrib.cached_attention(*ours, on_device(lengths, None))
    np.testing.assert_allclose(wide(result), cached(*arrays, lengths), 1e-12)
    before = wide(ours[3])
    nd.contrib.cached_attention(*ours, on_device([5, 6, -2], None)).wait_to_read()
    now = wide(ours[3])
    assert np.array_equal(now[0, 5], arrays[1][0, 0]) and np.array_equal(now[1:], before[1:])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", ["bool", "added"])
def test_masked_cached_attention_has_the_bits_of_the_whole_sequence(dtype, kind):
    query, key, value = (on_device(a, dtype) for a in arrays_of((2, 40, 40, 4, 2, 8, 8), 6))
    random = np.random.RandomState(3)
    if kind == "bool":
        mask = nd.array(random.uniform(size=(2, 1, 40, 60)) > 0.3, dtype="bool", ctx=on(0))
    else:
        mask = on_device(random.randn(4, 40, 60), dtype)
    whole = nd.contrib.attention(query, key, value, mask[..., :40], causal=True)
    caches = [nd.full((2, 60, 2, 8), np.nan, dtype=dtype, ctx=on(0)) for _ in range(2)]
    results, begin = [], 0
    for count in (20, 1, 1, 18):
        part = [x[:, begin : begin + count] for x in (query, key, value)]
        seen = nd.slice_axis(mask, axis=-2, begin=begin, end=begin + count)
        lengths = on_device([begin] * 2, None)
        results.append(wide(nd.contrib.cached_attention(*part, *caches, lengths, seen)))
        begin += count
    assert np.concatenate(results, 1).tobytes() == wide(whole).tobytes()


def test_masks_of_cached_attention_are_checked():
    arrays = [nd.ones((2, n, 2, 4), ctx=on(0)) for n in (3, 3, 3, 9, 9)]
    lengths = on_device([0, 0], None)
    for mask, message in (
        (nd.ones((2, 1, 3, 3), ctx=on(0)), r"which is \(2, 2, 3, 9\)"),
        (nd.ones((9,), dtype="int32", ctx=on(0)), "mask must be bool .* or float"),
    ):
        with pytest.raises(mx.MXNetError, match=message):
            nd.contrib.cached_attention(*arrays, lengths, mask)


@pytest.mark.parametrize("static", [False, True])
def test_compiled_step_writes_the_cache_in_place(static):
    class Step(gluon.HybridBlock):
        def hybrid_forward(self, F, q, k, v, keys, values, lengths):
            first = F.contrib.cached_attention(q, k, v, keys, values, lengths)
            return F.contrib.cached_attention(first, 2 * k, 2 * v, keys, values, lengths + 2)

    results = []
    for hybridize in (False, True):
        net, random = Step(), np.random.RandomState(0)
        net.hybridize(hybridize, static_alloc=static, static_shape=static)
        caches = [nd.zeros((2, 16, 2, 8), ctx=on(0)) for _ in range(2)]
        for i in range(0, 8, 2):
            arrays = [on_device(random.randn(2, 2, n, 8), "float32") for n in (4, 2, 2)]
            out = net(*arrays, *caches, on_device([i, i + 1], None))
        results.append([wide(a) for a in (out, *caches)])
    for a, b in zip(*results):
        assert np.array_equal(a, b)


def test_hidden_nan_does_not_reach_the_results():
    """Keys after the lengths, which padding leaves uninitialized."""
    query, key, value = arrays_of((2, 3, 150, 2, 1, 8, 8), 1)
    lengths = np.array([40, 0])
    for dtype in TOLERANCE:
        clean = [on_device(a, dtype) for a in (query, key, value)]
        dirty = [clean[0].copy(), clean[1].copy(), clean[2].copy()]
        for array in dirty[1:]:
            array[0, 40:] = np.nan
            array[1] = np.nan
        own = on_device(lengths, None)
        wanted, found = (nd.contrib.attention(*a, lengths=own) for a in (clean, dirty))
        assert wide(found).tobytes() == wide(wanted).tobytes()
        assert not wide(found)[1].any()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("empty", ["rows", "keys", "features", "value features", "batch"])
def test_gradients_of_attention_with_an_empty_axis_are_finite(empty, dtype):
    sizes = {"batch": 2, "rows": 3, "keys": 5, "features": 8, "value features": 6}
    sizes[empty] = 0
    batch, rows, keys, width, value_width = sizes.values()
    arrays = [
        on_device(a, dtype) for a in arrays_of((batch, rows, keys, 4, 2, width, value_width), 1)
    ]
    nd.full((1 << 16,), np.nan, ctx=on(0)).wait_to_read()  # memory that the call may reuse
    head = nd.ones((batch, rows, 4, value_width), ctx=on(0), dtype=dtype)
    found = gradients(lambda *a: nd.contrib.attention(*a, causal=True), arrays, head)
    for grad, array in zip(found, arrays):
        assert grad.shape == array.shape and np.isfinite(grad).all()
        assert empty == "features" or not grad.any()


@pytest.mark.parametrize("window", [0, 2, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_positions_outside_the_cache_see_the_keys_inside(dtype, window):
    """Lengths below 0 and above the size of the cache, even if sums of them overflow int32."""
    rows, size = 3, 8
    lengths = [-(1 << 31), -5, -2, 0, 6, 8, 9, (1 << 31) - 1]
    shapes = [(8, rows, 2, 4), (8, rows, 1, 4), (8, rows, 1, 4), (8, size, 1, 4), (8, size, 1, 4)]
    random = np.random.RandomState(1)
    arrays = [on_device(random.randn(*shape), dtype) for shape in shapes]
    before = [wide(a) for a in arrays]
    result = wide(nd.contrib.cached_attention(*arrays, on_device(lengths, None), window=window))
    keys, values = (wide(a) for a in arrays[3:])
    for b, first in enumerate(lengths):
        for i in range(rows):
            if 0 <= first + i < size:
                before[3][b, first + i], before[4][b, first + i] = before[1][b, i], before[2][b, i]
    assert np.array_equal(keys, before[3]) and np.array_equal(values, before[4])
    at = np.array(lengths)[:, None] + np.arange(rows)
    key = np.arange(size)
    seen = key <= at[..., None]
    if window:
        seen &= key > at[..., None] - min(window, 1 << 40)
    wanted = weigh(before[0], keys, values, seen[:, None])
    assert np.abs(result - wanted).max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_lengths_beyond_int32_are_limited(dtype):
    query, key, value = (on_device(a, "float32") for a in arrays_of((4, 3, 6, 2, 1, 4, 4), 2))
    given = nd.array([1 << 40, -(1 << 40), 4, (1 << 32) + 2], dtype=dtype, ctx=on(0))
    found = nd.contrib.attention(query, key, value, lengths=given)
    wanted = nd.contrib.attention(query, key, value, lengths=on_device([6, 0, 4, 6], None))
    assert np.array_equal(wide(found), wide(wanted))


def test_ops_without_draws_refuse_dropout():
    """Their gradient would read the third output, which only the ops with draws have."""
    sizes = {"sizes": (2, 1, 3, 3, 4, 4), "shape": (2, 3, 4)}
    places = {f"{name}_at": (0, 12, 12, 4) for name in ("query", "key", "value", "result")}
    x = nd.ones((2, 3, 4), ctx=on(0))
    for name, params in (
        ("_attention", {**sizes, **places}),
        ("_head_attention", {"keys": 3}),
    ):
        with pytest.raises(mx.MXNetError, match="p must be 0"):
            arrays = [x if name == "_attention" else x.reshape((2, 3, 1, 4))] * 3
            _core.get_op(name)(*arrays, p=0.5, **params)


def test_packed_attention_refuses_several_arrays():
    """The gradient is one array of the query's size."""
    params = {
        "sizes": (1, 1, 2, 9, 4, 4),
        "shape": (1, 2, 4),
        "query_at": (0, 8, 8, 4),
        "result_at": (0, 8, 8, 4),
        "key_at": (0, 36, 36, 4),
        "value_at": (0, 36, 36, 4),
    }
    arrays = [nd.ones((1, n, 4), ctx=on(0)) for n in (2, 9, 9)]
    assert _core.get_op("_attention")(*arrays, **params).shape == (1, 2, 4)
    with pytest.raises(mx.MXNetError, match="needs one array"):
        _core.get_op("_attention")(*arrays, **params, packed=True)


def test_cost_of_cached_attention_grows_with_rows_and_keys():
    def flops(rows, size, window=0):
        shapes = [(2, rows, 8, 64), (2, rows, 2, 64), (2, rows, 2, 64), (2, size, 2, 64)]
        shapes += [(2, size, 2, 64), (2,)]
        inputs = [(shape, "int32" if len(shape) == 1 else "float32") for shape in shapes]
        return _core.op_cost("_contrib_cached_attention", inputs, {"window": window})[1]

    one = flops(1, 1024)
    assert flops(100, 1024) == 100 * one and flops(1, 2048) == 2 * one
    assert flops(1, 1024, window=128) == one / 4
    # Half of the cache is in use, and a score takes two products of 64 numbers.
    assert one >= 2 * 8 * 512 * (4 * 64)


def test_attention_dropout_draws_the_same_weights_everywhere():
    """Eager, compiled, in micro-batches on several devices; rows of the identity show the
    weights."""

    class Net(gluon.HybridBlock):
        def __init__(self, ctx):
            super().__init__()
            self.own = ctx

        def hybrid_forward(self, F, q, k, v, lengths):
            q, k, v, lengths = (a.as_in_context(self.own) for a in (q, k, v, lengths))
            return F.contrib.attention(q, k, v, lengths=lengths, causal=True, p=0.5)

    random = np.random.RandomState(3)
    query, key = (on_device(random.randn(6, 8, n, 4), "float32") for n in (4, 2))
    value = on_device(np.broadcast_to(np.eye(8)[None, :, None], (6, 8, 2, 8)), "float32")
    lengths = on_device([8, 3, 5, 8, 1, 6], None)
    out, *_ = results_in_all_ways(Net, [query, key, value], lengths)
    assert 0.4 < (out == 0).mean() < 0.95
    evaluated = wide(Net(on(0))(query, key, value, lengths))
    np.testing.assert_allclose(evaluated.sum(-1), 1, 1e-6)


def test_attention_bits_do_not_depend_on_threads():
    sizes = (1, 100, 170, 6, 1, 16, 16)
    results = []
    try:
        for threads in (1, 2, 5):
            mx.context.set_threads(threads)
            arrays = [on_device(a, "float32") for a in arrays_of(sizes, 2)]
            results.append(
                gradients(
                    lambda *a: nd.contrib.attention(*a, causal=True, window=30),
                    arrays,
                    nd.ones((1, 100, 6, 16), ctx=on(0)),
                )
            )
    finally:
        mx.context.set_threads(0)
    for other in results[1:]:
        for a, b in zip(other, results[0]):
            assert np.array_equal(a, b)


def test_symbol_derives_which_arrays_are_given():
    q, k, v, n = (mx.sym.Variable(name) for name in "qkvn")
    y = mx.sym.contrib.attention(q, k, v, lengths=n, causal=True)
    assert y.list_arguments() == ["q", "k", "v", "n"]
    shapes, outputs, _ = y.infer_shape(q=(2, 5, 4, 8), k=(2, 7, 2, 8), v=(2, 7, 2, 6))
    assert shapes[3] == (2,) and outputs == [(2, 5, 4, 6)]
    loaded = mx.sym.load_json(y.tojson())
    arrays = [on_device(a, "float32") for a in arrays_of(SIZES["grouped"], 1)]
    lengths = on_device([4, 9], None)
    given = dict(zip("qkvn", [*arrays, lengths]))
    bound = loaded.bind(on(0), given).forward()[0]
    eager = nd.contrib.attention(*arrays, lengths=lengths, causal=True)
    assert np.array_equal(bound.asnumpy(), eager.asnumpy())


def test_wide_lengths_and_masks_are_cast():
    arrays = [on_device(a, "bfloat16") for a in arrays_of(SIZES["grouped"], 1)]
    mask = np.random.RandomState(1).randn(5, 9).astype(np.float32)
    for wide_mask, lengths in ((mask, [4.0, 9.0]), (mask.astype(np.float64), [4, 9])):
        result = nd.contrib.attention(
            *arrays,
            nd.array(wide_mask, dtype=wide_mask.dtype, ctx=on(0)),
            nd.array(lengths, dtype="int64" if isinstance(lengths[0], int) else None, ctx=on(0)),
        )
        seen = visible(2, 5, 9, lengths=lengths)
        wanted = weigh(*map(wide, arrays), seen, mask)
        assert result.dtype == arrays[0].dtype
        assert np.abs(wide(result) - wanted).max() < TOLERANCE["bfloat16"]


Q, K, V = (2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 6)
ERRORS = {
    "window = -1": ((Q, K, V), {"window": -1}),
    "same features, not 8 and 4": ((Q, (2, 6, 2, 4), V), {}),
    "a multiple of the key heads, not 3 and 2": (((2, 6, 3, 8), K, V), {}),
    "same number of heads, not 2 and 1": ((Q, K, (2, 6, 1, 6)), {}),
    "same length, not 6 and 5": ((Q, K, (2, 5, 2, 6)), {}),
    "same batch size": ((Q, (3, 6, 2, 8), V), {}),
    "query must have four dimensions: batch, heads, time, features": (
        ((2, 6, 8), K, V),
        {"layout": "bhtd"},
    ),
    r"mask must broadcast .*\(2, 4, 6, 6\)": ((Q, K, V, (5,)), {}),
    r"lengths must have the shape \(2,\)": ((Q, K, V, None, (5,)), {}),
    "rows must be the last keys": (((2, 7, 4, 8), K, V, None, None, (2, 6)), {}),
}


@pytest.mark.parametrize("text", ERRORS)
def test_wrong_shapes_are_refused(text):
    shapes, options = ERRORS[text]
    arrays = [None if s is None else nd.ones(s, ctx=on(0)) for s in shapes]
    with pytest.raises(mx.MXNetError, match=text):
        nd.contrib.attention(*arrays, **options)


def test_wrong_masks_are_refused():
    arrays = [nd.ones(s, ctx=on(0)) for s in (Q, K, V)]
    with pytest.raises(mx.MXNetError, match="mask must be bool"):
        nd.contrib.attention(*arrays, nd.ones((6,), dtype="int32", ctx=on(0)))
    mask = nd.ones((6, 6), ctx=on(0))
    for a in (mask, arrays[0]):
        a.attach_grad()
    with autograd.record():
        result = nd.contrib.attention(*arrays, mask)
    with pytest.raises(mx.MXNetError, match="the mask requires a gradient"):
        result.backward()


@pytest.mark.parametrize("shape", [(2, 1, 6, 6), (2, 6)])
def test_undivided_masks_and_lengths_are_refused_in_micro_batches(shape):
    """An array of all batch entries that the block holds."""
    own = nd.ones(shape if len(shape) > 2 else (2,), dtype="bool" if len(shape) > 2 else "int32")

    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, q):
            given = {"mask": own} if len(shape) > 2 else {"lengths": own}
            return F.contrib.attention(q, q, q, **given)

    net = Net()
    net.hybridize(pipeline=Pipeline(2))
    with pytest.raises(mx.MXNetError, match="same for every micro-batch"):
        net(nd.ones((4, 6, 4, 8)))
