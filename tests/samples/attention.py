"""Samples of attention for every layout of rows, heads and packed parts that rewrites produce."""

import numpy as np

from samples.base import Sample

ALL = ("float32", "float64", "float16", "bfloat16")


def view(array, place, counts, width):
    offset, *distances = place
    strides = [d * array.itemsize for d in distances] + [array.itemsize]
    flat = np.ascontiguousarray(array).reshape(-1)[offset:]
    return np.lib.stride_tricks.as_strided(flat, (*counts, width), strides)


def attention(
    query, key, value, mask=None, *, sizes, result_at, shape, scale=1.0, causal=False, **params
):
    batch, heads, rows, keys, width, value_width = sizes
    q = view(query, params["query_at"], (batch, heads, rows), width)
    k = view(key, params["key_at"], (batch, heads, keys), width)
    v = view(value, params["value_at"], (batch, heads, keys), value_width)
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if mask is not None:
        strides = [d * mask.itemsize for d in params["mask_at"]]
        scores = scores + np.lib.stride_tricks.as_strided(
            np.ascontiguousarray(mask), scores.shape, strides
        )
    if causal:
        scores = np.where(np.tril(np.ones((rows, keys), bool)), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    out = np.zeros(shape, query.dtype)
    view(out, result_at, (batch, heads, rows), value_width)[...] = weights / total @ v
    return out


def by_head(batch, heads, rows, width):
    """Strides of the layout (batch * heads, rows, width)."""
    return (0, heads * rows * width, rows * width, width)


def in_place(batch, heads, rows, width):
    """Strides of the layout (batch, rows, heads * width)."""
    return (0, rows * heads * width, width, heads * width)


def plain(batch, heads, rows, keys, width, value_width, lay=by_head, **more):
    shapes = {
        by_head: lambda n, w: (batch * heads, n, w),
        in_place: lambda n, w: (batch, n, heads * w),
    }[lay]
    params = {
        "sizes": (batch, heads, rows, keys, width, value_width),
        "query_at": lay(batch, heads, rows, width),
        "key_at": lay(batch, heads, keys, width),
        "value_at": lay(batch, heads, keys, value_width),
        "result_at": lay(batch, heads, rows, value_width),
        "shape": shapes(rows, value_width),
        **more,
    }
    return [shapes(rows, width), shapes(keys, width), shapes(keys, value_width)], params


def sample(*sizes, name, reference=attention, **more):
    inputs, params = plain(*sizes, **more)
    return Sample(inputs, params, reference=reference, dtypes=ALL, name=name)


def packed(batch, heads, rows, width, **more):
    """A sample with query, key and value as the thirds of (batch, rows, 3 * heads * width)."""
    step = 3 * heads * width
    places = [(i * heads * width, rows * step, width, step) for i in range(3)]
    params = {
        "sizes": (batch, heads, rows, rows, width, width),
        "query_at": places[0],
        "key_at": places[1],
        "value_at": places[2],
        "result_at": in_place(batch, heads, rows, width),
        "shape": (batch, rows, heads * width),
        "packed": True,
        **more,
    }
    data = np.random.RandomState(3).uniform(-1, 1, (batch, rows, step)).astype(np.float32)
    return Sample(
        [data] * 3,
        params,
        reference=attention,
        grad=False,
        dtypes=("float32", "float16"),
        name="parts of one array",
    )


def backward(**more):
    inputs, params = plain(2, 3, 7, 7, 5, 5, **more)
    # Half-precision sums are accumulated in float32
    return Sample(
        [inputs[0], *inputs, (6, 7, 5), (2, 3, 2, 7)],
        params,
        grad=False,
        dtypes=("float32", "float64"),
        name="backward",
    )


def with_mask(distances, shape, name):
    inputs, params = plain(2, 2, 49, 97, 33, 4, scale=0.3)
    return Sample(
        [*inputs, shape],
        {**params, "mask_at": distances},
        reference=attention,
        grad=(0, 1, 2),
        dtypes=ALL,
        name=name,
    )


# --- Arrays with an axis of heads -----------------------------------------------------------------


def visible(batch, rows, keys, causal=False, window=0, lengths=None, segments=None, first=None):
    """Returns the keys that each row sees, (batch, 1, rows, keys). `first` (batch,) are the
    positions of the first rows among the keys; by default, the last row is at the last key."""
    first = np.full(batch, keys - rows) if first is None else np.asarray(first)
    at = first[:, None, None] + np.arange(rows)[None, :, None]
    key = np.arange(keys)[None, None]
    seen = np.ones((batch, rows, keys), bool)
    if causal:
        seen &= key <= at
    if window:
        seen &= (key > at - window) & (key < at + window)
    if lengths is not None:
        seen &= key < np.asarray(lengths)[:, None, None]
    if segments is not None:
        seen &= segments[:, keys - rows :, None] == segments[:, None, :]
    return seen[:, None]


def weigh(query, key, value, seen, mask=None, softcap=0, scale=None):
    """Attention of arrays (batch, time, heads, features)."""
    group = query.shape[2] // key.shape[2]
    key, value = np.repeat(key, group, 2), np.repeat(value, group, 2)
    scores = np.einsum("bthd,bshd->bhts", query, key)
    scores = scores * (query.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None and mask.dtype == bool:
        seen = seen & mask
    elif mask is not None:
        scores = scores + mask
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhts,bshd->bthd", weights / np.where(total > 0, total, 1), value)


def time_first(layout, *arrays):
    return [np.swapaxes(a, 1, 2) if layout == "bhtd" else a for a in arrays]


def heads(
    query,
    key,
    value,
    *more,
    use_mask=False,
    use_lengths=False,
    use_segments=False,
    layout="bthd",
    causal=False,
    window=0,
    softcap=0,
    scale=None,
    p=0,
    keys=None,
):
    more = list(more)
    mask = more.pop(0) if use_mask else None
    lengths = more.pop(0) if use_lengths else None
    segments = more.pop(0) if use_segments else None
    query, key, value = time_first(layout, query, key, value)
    seen = visible(query.shape[0], query.shape[1], key.shape[1], causal, window, lengths, segments)
    return time_first(layout, weigh(query, key, value, seen, mask, softcap, scale))[0]


def cached(
    query,
    key,
    value,
    keys,
    values,
    lengths,
    mask=None,
    layout="bthd",
    window=0,
    softcap=0,
    scale=None,
    use_mask=False,
):
    query, key, value, keys, values = time_first(layout, query, key, value, keys, values)
    keys, values, rows = keys.copy(), values.copy(), query.shape[1]
    for b, first in enumerate(lengths):
        keys[b, first : first + rows], values[b, first : first + rows] = key[b], value[b]
    seen = visible(query.shape[0], rows, keys.shape[1], True, window, first=lengths)
    return time_first(layout, weigh(query, keys, values, seen, mask, softcap, scale))[0]


def heads_sample(query, key, value, *more, name, **params):
    return Sample(
        [query, key, value, *more],
        params,
        reference=heads,
        grad=(0, 1, 2),
        dtypes=ALL,
        name=name,
    )


LENGTHS = np.array([3, 0, 7], np.int32)
SEGMENTS = np.array([[0, 0, 1, 1, 1, 2, 2]] * 3, np.int32)
SEEN = np.random.RandomState(5).uniform(size=(3, 1, 5, 7)) > 0.4


def sums_of_rows(seed):
    """Returns the largest scores and the sums of exponentials of rows. One row sees no key."""
    random = np.random.RandomState(seed)
    sums = np.stack([random.uniform(-50, 50, (2, 3, 5)), random.uniform(1, 9, (2, 3, 5))], 2)
    sums[0, seed, :, 2] = -np.inf, 0
    return sums.astype("float32")


SUMS = [sums_of_rows(0), sums_of_rows(1)]


def of_rows(numbers, layout):
    """Broadcasts numbers (batch, heads, rows) to results in a layout."""
    return (np.swapaxes(numbers, 1, 2) if layout == "bthd" else numbers)[..., None]


def merged(output, sums, part, part_sums, layout):
    largest = np.maximum(sums[:, :, 0], part_sums[:, :, 0])
    shift = np.where(np.isinf(largest), 0, largest)
    left, right = (np.exp(s[:, :, 0] - shift) * s[:, :, 1] for s in (sums, part_sums))
    total = left + right
    weights = [of_rows(w / np.where(total == 0, 1, total), layout) for w in (left, right)]
    return weights[0] * output + weights[1] * part, np.stack([largest, total], 2)


def statistics(grad, output, sums, layout):
    with np.errstate(divide="ignore"):
        whole = np.where(sums[:, :, 1] == 0, np.inf, sums[:, :, 0] + np.log(sums[:, :, 1]))
    inner = (grad * output).sum(-1)
    return np.stack([whole, np.swapaxes(inner, 1, 2) if layout == "bthd" else inner], 2)


SAMPLES = {
    "_contrib_attention": [
        heads_sample((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6), name="shared keys", causal=True),
        heads_sample(
            (1, 3, 70, 8), (1, 3, 110, 8), (1, 3, 110, 8), name="window", layout="bhtd", window=20
        ),
        heads_sample(
            (3, 5, 4, 8),
            (3, 7, 1, 8),
            (3, 7, 1, 33),
            LENGTHS,
            SEGMENTS,
            name="lengths and segments",
            use_lengths=True,
            use_segments=True,
            causal=True,
            scale=0.7,
        ),
        heads_sample(
            (3, 5, 2, 4), (3, 7, 2, 4), (3, 7, 2, 4), SEEN, name="bool", use_mask=True, softcap=0.5
        ),
        heads_sample(
            (2, 5, 2, 4), (2, 7, 1, 4), (2, 7, 1, 4), (2, 5, 7), name="added", use_mask=True
        ),
        heads_sample((2, 3, 2, 4), (2, 0, 2, 4), (2, 0, 2, 4), name="no keys"),
    ],
    "_head_attention": [
        heads_sample(
            (2, 5, 4, 8),
            (2, 7, 2, 8),
            (2, 7, 2, 6),
            name="shared keys",
            keys=7,
            scale=0.5,
            window=3,
        ),
    ],
    "_dropout_head_attention": [
        heads_sample(
            (2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6), name="none dropped", keys=7, scale=1
        ),
        Sample(
            [(2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6)],
            {"keys": 7, "p": 0.5, "causal": True},
            dtypes=ALL,
            name="half dropped",
        ),
    ],
    "_backward_head_attention": [
        Sample(
            [
                *[(2, 5, 4, 6), (2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6)],
                *[(2, 5, 4, 6), (2, 4, 2, 5)],
            ],
            {"keys": 7},
            grad=False,
            dtypes=("float32", "float64"),
            name="backward",
        ),
        Sample(
            [
                *[(2, 5, 4, 6), (2, 5, 4, 8), (2, 3, 2, 8), (2, 3, 2, 6)],
                *[(2, 5, 4, 6), (2, 4, 2, 5)],
            ],
            {"keys": 9, "part": True, "before": 4, "later": -2, "causal": True, "merged": True},
            grad=False,
            dtypes=("float32", "float64"),
            name="backward of a merged part",
        ),
    ],
    # The gradients of a merge are no derivatives (csrc/op/attention/merge_attention.c).
    "_merge_attention": [
        Sample(
            [*[(2, 5, 3, 4), SUMS[0]], *[(2, 5, 3, 4), SUMS[1]]],
            {"layout": "bthd"},
            reference=merged,
            grad=False,
            dtypes=("float32", "float16", "bfloat16"),
            name="time before heads",
        ),
        Sample(
            [*[(2, 3, 5, 4), SUMS[0]], *[(2, 3, 5, 4), SUMS[1]]],
            {"layout": "bhtd"},
            reference=merged,
            grad=False,
            dtypes=("float32", "float16", "bfloat16"),
            name="heads before time",
        ),
    ],
    "_attention_statistics": [
        Sample(
            [(2, 5, 3, 4), (2, 5, 3, 4), SUMS[0]],
            {"layout": "bthd"},
            reference=statistics,
            grad=False,
            dtypes=("float32", "float16", "bfloat16"),
            name="time before heads",
        ),
    ],
    "_contrib_cached_attention": [
        Sample(
            [
                *[(2, 3, 4, 8), (2, 3, 2, 8), (2, 3, 2, 6), (2, 9, 2, 8), (2, 9, 2, 6)],
                np.array([2, 6], np.int32),
            ],
            reference=cached,
            grad=False,
            dtypes=ALL,
            name="several rows",
        ),
        Sample(
            [
                *[(2, 4, 1, 8), (2, 1, 1, 8), (2, 1, 1, 6), (2, 1, 9, 8), (2, 1, 9, 6)],
                np.array([0, 8], np.int32),
            ],
            {"layout": "bhtd", "window": 4, "softcap": 2.0, "scale": 0.3},
            reference=cached,
            grad=False,
            dtypes=ALL,
            name="one row",
        ),
        Sample(
            [
                *[(2, 2, 4, 8), (2, 2, 2, 8), (2, 2, 2, 6), (2, 9, 2, 8), (2, 9, 2, 6)],
                np.array([6, 3], np.int32),
                (2, 4, 2, 9),
            ],
            {"use_mask": True},
            reference=cached,
            grad=False,
            dtypes=ALL,
            name="added to scores",
        ),
        Sample(
            [
                *[(2, 4, 2, 8), (2, 2, 2, 8), (2, 2, 2, 6), (2, 2, 7, 8), (2, 2, 7, 6)],
                np.array([5, 1], np.int32),
                SEEN[1, :, :2],
            ],
            {"use_mask": True, "layout": "bhtd"},
            reference=cached,
            grad=False,
            dtypes=ALL,
            name="hidden keys",
        ),
    ],
    "_attention": [
        sample(1, 1, 3, 4, 2, 5, name="small", scale=0.7),
        sample(2, 3, 50, 100, 16, 33, name="several blocks", scale=0.25),
        sample(2, 2, 130, 130, 8, 8, name="causal", lay=in_place, causal=True, scale=0.5),
        with_mask((0, 0, 97, 1), (49, 97), "a mask for all"),
        with_mask((97, 0, 0, 1), (2, 1, 97), "a mask of keys"),
        with_mask((2 * 49, 49, 1, 0), (4, 49, 1), "a mask of rows"),
        packed(2, 3, 60, 4, scale=0.5, causal=True),
    ],
    "_dropout_attention": [
        sample(2, 2, 5, 6, 4, 4, name="none dropped"),
        sample(
            2, 2, 50, 50, 4, 4, name="half dropped", reference=None, p=0.5, scale=0.5, causal=True
        ),
    ],
    "_backward_attention": [backward(scale=0.5)],
}


# --- Interleaved projections ---------------------------------------------------------------------


def parts_of(projection, heads, parts):
    """Splits a projection into its parts of shape (batch * heads, length, features)."""
    length, batch, width = projection.shape
    split = projection.reshape(length, batch * heads, parts, width // heads // parts)
    return [split[:, :, i].swapaxes(0, 1) for i in range(parts)]


def joined(values, heads):
    rows, length, features = values.shape
    return values.swapaxes(0, 1).reshape(length, rows // heads, heads * features)


def scores(query, key):
    return query @ key.swapaxes(1, 2) / np.sqrt(query.shape[2])


SAMPLES["_contrib_interleaved_matmul_selfatt_qk"] = [
    Sample(
        [(5, 2, 36)],
        {"heads": 3},
        reference=lambda x, heads: scores(*parts_of(x, heads, 3)[:2]),
        dtypes=ALL,
    )
]
SAMPLES["_contrib_interleaved_matmul_selfatt_valatt"] = [
    Sample(
        [(5, 2, 36), (6, 5, 5)],
        {"heads": 3},
        reference=lambda x, a, heads: joined(a @ parts_of(x, heads, 3)[2], heads),
        dtypes=ALL,
    )
]
SAMPLES["_contrib_interleaved_matmul_encdec_qk"] = [
    Sample(
        [(4, 2, 12), (5, 2, 24)],
        {"heads": 3},
        reference=lambda q, x, heads: scores(parts_of(q, heads, 1)[0], parts_of(x, heads, 2)[0]),
        dtypes=ALL,
    )
]
SAMPLES["_contrib_interleaved_matmul_encdec_valatt"] = [
    Sample(
        [(5, 2, 24), (6, 4, 5)],
        {"heads": 3},
        reference=lambda x, a, heads: joined(a @ parts_of(x, heads, 2)[1], heads),
        dtypes=ALL,
    )
]
