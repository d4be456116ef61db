"""Samples of the ops of mixtures of experts."""

import numpy as np

from samples.base import Sample

# 5 tokens with 2 of 4 experts each, and their rows sorted by expert
EXPERTS = np.array([[2, 0], [0, 3], [2, 3], [0, 2], [3, 2]], "int32")
ORDER = np.argsort(EXPERTS.ravel(), kind="stable").astype("int32")
COUNTS = np.bincount(EXPERTS.ravel(), minlength=4).astype("int32")
assert COUNTS[1] == 0
FEW = np.array([3, 0, -1, 2], "int32")  # leaves rows without a group
MANY = np.array([4, 90, 5, 1], "int32")  # more rows than there are


def probabilities(scores, router):
    if router == "sigmoid":
        return 1 / (1 + np.exp(-scores))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def route(scores, bias=0, *, k, router="softmax", renormalize=True, capacity=0, **_):
    p = probabilities(scores, router)
    experts = np.argsort(-(p + bias), axis=-1, kind="stable")[..., :k]
    weights = np.take_along_axis(p, experts, -1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdims=True)
    flat, groups, dropped = experts.ravel(), [], []
    limit = int(np.ceil(capacity * flat.size / scores.shape[-1])) if capacity else flat.size
    for e in range(scores.shape[-1]):
        rows = np.flatnonzero(flat == e)
        groups.append(rows[:limit])
        dropped.append(rows[limit:])
    weights.reshape(-1)[np.concatenate(dropped)] = 0
    return (
        np.concatenate(groups + dropped),
        np.array([len(rows) for rows in groups]),
        weights,
        experts,
    )


def route_back(grad, scores, weights, experts, router="softmax", renormalize=True):
    p = probabilities(scores, router)
    chosen = np.take_along_axis(p, experts, -1)
    grad = np.where(weights == 0, 0, grad)
    if renormalize:
        grad = (grad - (grad * weights).sum(-1, keepdims=True)) / chosen.sum(-1, keepdims=True)
    own = np.zeros_like(p)
    np.put_along_axis(own, experts, grad, -1)
    if router == "sigmoid":
        return own * p * (1 - p)
    return p * (own - (own * p).sum(-1, keepdims=True))


def dispatch(data, order, weights=None, **_):
    rows = data.reshape(-1, data.shape[-1])
    k = len(order) // max(len(rows), 1)
    out = rows[order // max(k, 1)]
    return out if weights is None else out * weights.reshape(-1)[order][:, None]


def inverse(order):
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


def combine(rows, order, weights=None, k=0, **_):
    if weights is None:
        weights = np.ones((len(rows) // k, k))
    sorted_rows = rows[inverse(order)].reshape(*weights.shape, rows.shape[-1])
    return (sorted_rows * weights[..., None]).sum(-2)


def row_dots(data, rows, order):
    tokens = data.reshape(-1, 1, data.shape[-1])
    chosen = rows[inverse(order)].reshape(len(tokens), -1, data.shape[-1])
    return (tokens * chosen).sum(-1).reshape(*data.shape[:-1], -1)


def groups_of(counts, rows):
    first = 0
    for count in counts:
        count = min(max(int(count), 0), rows - first)
        yield slice(first, first + count)
        first += count


def grouped_dot(data, weight, counts, transpose_b=True, first=0, groups=0):
    matrices = weight.transpose(0, 2, 1) if transpose_b else weight
    out = np.zeros((len(data), matrices.shape[2]))
    for matrix, rows in zip(matrices, [*groups_of(counts, len(data))][first:]):
        out[rows] = data[rows] @ matrix
    return out


def grouped_outer(lhs, rhs, counts, first=0, groups=0):
    sums = [lhs[rows].T @ rhs[rows] for rows in groups_of(counts, len(lhs))]
    return np.stack(sums[first : first + groups] if groups else sums)


FLOATS = ("float32", "float64", "float16", "bfloat16")
WIDE = ("float32", "float64")
WEIGHTED = {"use_weights": True}
# Scores without equal ones, so that half precision chooses the same experts
SCORES = np.stack([np.random.RandomState(i).permutation(6) for i in range(10)])
SCORES = (SCORES / 4.0 - 0.5).astype("float32")
SAMPLES = {
    "_contrib_route": [
        Sample([(7, 5)], dict(k=2), route, name="softmax", dtypes=WIDE),
        Sample([(2, 3, 5)], dict(k=5, renormalize=False), route, name="all", dtypes=WIDE),
        Sample([(7, 5)], dict(k=3, router="sigmoid"), route, name="sigmoid", dtypes=WIDE),
        Sample([(9, 4)], dict(k=1, router="sigmoid", renormalize=False), route, dtypes=WIDE),
        Sample(
            [(7, 5), (5,)],
            dict(k=2, use_bias=True),
            route,
            grad=[0],
            ranges=[None, (0, 0.3)],
            name="bias",
            dtypes=WIDE,
        ),
        Sample([(12, 3)], dict(k=2, capacity=0.75), route, name="capacity", dtypes=WIDE),
        Sample([SCORES], dict(k=3), route, grad=False, name="ranks", dtypes=("float32",)),
        Sample([np.zeros((3, 6), "float16")], dict(k=2), route, grad=False, name="equal"),
        Sample([(300, 70)], dict(k=8), route, grad=False, name="large", dtypes=WIDE),
        Sample([(0, 5)], dict(k=2), route, name="empty", dtypes=WIDE),
    ],
    "_backward_route": [
        Sample(
            [(5, 2), (5, 4), np.full((5, 2), 0.5, "float32"), EXPERTS],
            dict(renormalize=False),
            route_back,
            grad=False,
            dtypes=("float32",),
            name="softmax",
        ),
        Sample(
            [(5, 2), (5, 4), np.full((5, 2), 0.5, "float32"), EXPERTS],
            dict(router="sigmoid"),
            route_back,
            grad=False,
            dtypes=("float32",),
            name="sigmoid",
        ),
    ],
    "_contrib_dispatch": [
        Sample([(5, 3), ORDER], {}, dispatch, name="rows", dtypes=FLOATS),
        Sample([(5, 1, 16), ORDER], {}, dispatch, name="words", dtypes=FLOATS),
        Sample([(5, 3), ORDER, (5, 2)], WEIGHTED, dispatch, name="weights", dtypes=WIDE),
        Sample([(5, 16), ORDER, (5, 2)], WEIGHTED, dispatch, name="weighted_words", dtypes=WIDE),
        Sample([(0, 3), ORDER[:0]], {}, lambda *a: np.zeros((0, 3)), name="empty", dtypes=WIDE),
    ],
    "_contrib_combine": [
        Sample([(10, 3), ORDER], dict(k=2), combine, name="sums", dtypes=FLOATS),
        Sample([(10, 16), ORDER], dict(k=2), combine, name="words", dtypes=FLOATS),
        Sample([(10, 3), ORDER, (5, 1, 2)], WEIGHTED, combine, name="weights", dtypes=WIDE),
        Sample(
            [(10, 600), ORDER, (5, 2)], WEIGHTED, combine, grad=False, name="blocks", dtypes=WIDE
        ),
        Sample(
            [(0, 3), ORDER[:0], (0, 2)],
            WEIGHTED,
            lambda *a, **_: np.zeros((0, 3)),
            name="empty",
            dtypes=WIDE,
        ),
    ],
    "_row_dots": [
        Sample([(5, 1, 3), (10, 3), ORDER], {}, row_dots, name="few", dtypes=FLOATS),
        Sample([(5, 700), (10, 700), ORDER], {}, row_dots, grad=False, name="blocks", dtypes=WIDE),
    ],
    "_contrib_grouped_dot": [
        Sample([(10, 3), (4, 5, 3), COUNTS], {}, grouped_dot, name="small", dtypes=FLOATS),
        Sample(
            [(10, 3), (4, 3, 5), COUNTS],
            dict(transpose_b=False),
            grouped_dot,
            name="plain",
            dtypes=FLOATS,
        ),
        Sample([(8, 3), (4, 2, 3), FEW], {}, grouped_dot, name="rest", dtypes=WIDE),
        Sample([(8, 3), (4, 2, 3), MANY], {}, grouped_dot, name="too_many", dtypes=WIDE),
        Sample(
            [(310, 77), (3, 71, 77), np.array([1, 300, 9], "int32")],
            {},
            grouped_dot,
            grad=False,
            dtypes=FLOATS,
            name="large",
        ),
        Sample(
            [(310, 600), (3, 600, 71), np.array([250, 1, 59], "int32")],
            dict(transpose_b=False),
            grouped_dot,
            grad=False,
            rtol=1e-4,
            atol=1e-4,
            name="large_plain",
        ),
        Sample(
            [(3, 4000), (3, 5, 4000), np.array([1, 1, 1], "int32")],
            {},
            grouped_dot,
            grad=False,
            rtol=1e-4,
            atol=1e-4,
            dtypes=WIDE,
            name="single_rows",
        ),
        Sample([(0, 3), (4, 5, 3), 0 * COUNTS], {}, grouped_dot, name="empty", dtypes=WIDE),
        Sample(
            [(10, 3), (2, 5, 3), COUNTS],
            dict(first=1, groups=2),
            grouped_dot,
            name="part",
            dtypes=FLOATS,
        ),
        Sample(
            [(8, 3), (2, 3, 2), MANY],
            dict(first=2, groups=2, transpose_b=False),
            grouped_dot,
            name="last_part",
            dtypes=WIDE,
        ),
        Sample(
            [(310, 77), (2, 71, 77), np.array([100, 180, 30], "int32")],
            dict(first=1, groups=2),
            grouped_dot,
            grad=False,
            dtypes=FLOATS,
            name="large_part",
        ),
    ],
    "_grouped_outer": [
        Sample([(10, 3), (10, 5), COUNTS], {}, grouped_outer, name="small", dtypes=FLOATS),
        Sample([(8, 3), (8, 2), FEW], {}, grouped_outer, name="rest", dtypes=WIDE),
        Sample(
            [(10, 3), (10, 5), COUNTS],
            dict(first=2, groups=2),
            grouped_outer,
            name="part",
            dtypes=FLOATS,
        ),
        Sample(
            [(700, 130), (700, 70), np.array([600, 0, 100], "int32")],
            {},
            grouped_outer,
            grad=False,
            rtol=1e-4,
            atol=1e-4,
            name="large",
            dtypes=WIDE,
        ),
    ],
    "_contrib_add_loss": [
        Sample([(2, 3), (4,)], dict(grad_scale=0.0), lambda x, y, **_: x, name="nothing"),
    ],
}
