"""Graph simplification: common subexpressions, dead identities and near misses; bits never
change."""

import numpy as np
import pytest

from mpgluon import _core, autograd, nd
from support.devices import on

SPECIAL = np.array(
    [0.0, -0.0, 1.5, -2.5, np.nan, np.inf, -np.inf, 1e-42, -1e-42, 3e38, 2.0**24 + 2, -1.0],
    dtype="float32",
).reshape(3, 4)


@pytest.fixture
def dumped(tmp_path, monkeypatch):
    """Returns a function that compiles `function`, checks it bitwise against eager and returns the
    passes as text.
    """

    def run(function, *arrays, **options):
        path = tmp_path / "passes.txt"
        path.unlink(missing_ok=True)
        op = _core.CachedOp(function, {"exact": True, "fuse": False, **options})
        with monkeypatch.context() as patch:
            patch.setenv("MPGLUON_DUMP", str(path))
            results = op(*arrays)
            passes = dict(part.split("\n", 1) for part in path.read_text().split("== ")[1:])
        for result, expected in zip(results, function(*arrays), strict=True):
            assert result.dtype == expected.dtype and result.shape == expected.shape
            np.testing.assert_array_equal(bits(result), bits(expected))
        return passes

    return run


def bits(array):
    array = array.asnumpy() if array.dtype != "bfloat16" else array.astype("float32").asnumpy()
    same = array.copy()
    if array.dtype.kind == "f":
        same[np.isnan(array)] = np.nan  # NaN payloads are ignored
    return np.frombuffer(same.tobytes(), dtype=np.uint8)


def ops(plan):
    """Returns the ops that run, in order."""
    return [line.split()[2].rstrip(":") for line in plan.splitlines() if " %" in line]


GOLDEN = """\
%0 = input : float32 (3, 4) cpu(0)
%1 = exp(%0) : float32 (3, 4) cpu(0)
%2 = _mul_scalar(%1) : float32 (3, 4) cpu(0)
%3 = exp(%0) : float32 (3, 4) cpu(0)
%4 = broadcast_add(%1, %1) : float32 (3, 4) cpu(0)
%5 = Reshape(%4) {shape=(2, 6)} : float32 (2, 6) cpu(0)
%6 = Reshape(%5) {shape=(3, 4)} : float32 (3, 4) cpu(0)
%7 = tanh(%4) : float32 (3, 4) cpu(0)
%8 = transpose(%4) : float32 (4, 3) cpu(0)
%9 = transpose(%8) : float32 (3, 4) cpu(0)
%10 = tanh(%4) : float32 (3, 4) cpu(0)
%11 = broadcast_sub(%7, %7) : float32 (3, 4) cpu(0)
return %11
"""


def test_simplified_graph_matches_expected_dump(dumped):
    def function(x):
        y = nd.exp(x) * 1 + nd.exp(x)
        return [nd.tanh(y.reshape((2, 6)).reshape((3, 4))) - nd.tanh(y.T.T)]

    passes = dumped(function, nd.array(SPECIAL))
    assert passes["simplified"].replace(str(on(0)), "cpu(0)") == GOLDEN
    assert ops(passes["forward plan"]) == ["exp", "broadcast_add", "tanh", "broadcast_sub"]


GONE = {
    "x * 1": lambda x: x * 1,
    "x / 1": lambda x: x / 1,
    "x ** 1": lambda x: x**1,
    "x - 0": lambda x: x - 0.0,
    "x + -0": lambda x: x + -0.0,
    "copy": lambda x: nd.identity(x),
    "same dtype": lambda x: nd.cast(x, "float32"),
    "there and back": lambda x: nd.cast(nd.cast(x, "float64"), "float32"),
    "transpose": lambda x: nd.transpose(nd.transpose(x)),
    "transpose by axes": lambda x: nd.transpose(x, axes=(0, 1)),
    "swapaxes": lambda x: nd.swapaxes(nd.transpose(x), dim1=0, dim2=1),
    "reshapes": lambda x: x.reshape((2, 6)).expand_dims(0).reshape((3, 4)),
    "flatten": lambda x: nd.flatten(x),
    "broadcast": lambda x: nd.broadcast_to(x, shape=(3, 4)),
    "tile": lambda x: nd.tile(x, reps=(1, 1)),
    "slice": lambda x: nd.slice(x, begin=(0, 0), end=(3, 4)),
    "slice_axis": lambda x: nd.slice_axis(x, axis=1, begin=0, end=None),
    "concat": lambda x: nd.concat(x, dim=0),
    "add_n": lambda x: nd.add_n(x),
    "where": lambda x: nd.where(x, x, x),
    "clip": lambda x: nd.clip(x, -np.inf, np.inf),
    "x * -1 * -1": lambda x: -(-x),
    "negative": lambda x: nd.negative(nd.negative(x)),
    "both": lambda x: nd.negative(x * -1),
}
HALF = {
    "clips": (lambda x: nd.clip(nd.clip(x, -1, 1), -2, 1), "clip"),
    "relu": (lambda x: nd.relu(nd.relu(x)), "relu"),
    "abs": (lambda x: nd.abs(nd.abs(x)), "abs"),
    "floor": (lambda x: nd.floor(nd.floor(x)), "floor"),
    "casts": (lambda x: nd.cast(nd.cast(x, "float64"), "float16"), "Cast"),
}


@pytest.mark.parametrize("name", GONE)
def test_identity_ops_are_removed(dumped, name):
    passes = dumped(lambda x: [nd.sigmoid(GONE[name](nd.tanh(x)))], nd.array(SPECIAL))
    assert ops(passes["forward plan"]) == ["tanh", "sigmoid"]


@pytest.mark.parametrize("name", GONE)
def test_returned_identity_is_a_separate_array(dumped, name):
    """An identity that is the only op returns a separate array, as in eager mode."""
    x = nd.array(SPECIAL)
    function = GONE[name]
    dumped(lambda x: [function(x)], x)
    op = _core.CachedOp(lambda x: [function(x)], {})
    (result,) = op(x)
    result[:] = 7
    assert not (x.asnumpy() == 7).all()


@pytest.mark.parametrize("name", HALF)
def test_idempotent_op_applied_twice_runs_once(dumped, name):
    function, op = HALF[name]
    passes = dumped(lambda x: [nd.sin(function(nd.tanh(x)))], nd.array(SPECIAL))
    assert ops(passes["forward plan"]) == ["tanh", op, "sin"]
    dumped(lambda x: [function(x)], nd.array(SPECIAL))


NOT = {
    "x + 0": lambda x: x + 0.0,  # turns -0.0 into 0.0
    "0 - x, twice": lambda x: 0 - (0 - x),  # turns -0.0 into 0.0
    "x - -0": lambda x: x - -0.0,
    "x * -1 * -2": lambda x: x * -1 * -2,
    "x ** 2 ** .5": lambda x: (x**2) ** 0.5,
    "x / x": lambda x: x / x,
    "narrower and back": lambda x: nd.cast(nd.cast(x, "float16"), "float32"),
    "clips, the second tighter": lambda x: nd.clip(nd.clip(x, -1, 1), -0.5, 1),
    "one transpose": lambda x: nd.transpose(nd.reshape(x, shape=(4, 3))),
    "other axes": lambda x: nd.reshape(
        nd.transpose(nd.transpose(nd.reshape(x, shape=(3, 2, 2)), axes=(1, 2, 0)), axes=(1, 2, 0)),
        shape=(3, 4),
    ),
    "backwards": lambda x: nd.slice(x, begin=(None, None), end=(None, None), step=(-1, 1)),
    "where": lambda x: nd.where(x, x, -x),
    "relu of abs": lambda x: nd.relu(nd.abs(x)),
}


@pytest.mark.parametrize("name", NOT)
def test_ops_similar_to_identities_stay(dumped, name):
    x = nd.array(SPECIAL)
    passes = dumped(lambda x: [nd.sin(NOT[name](x))], x)
    run = ops(passes["forward plan"])
    traced = [line for line in passes["traced"].splitlines() if "(%" in line]
    assert len(run) == len(traced)


def test_integer_simplifications_keep_exact_values(dumped):
    large = nd.array(np.array([2**53 + 1, -(2**62) - 3, 7], dtype="int64"), dtype="int64")
    assert ops(dumped(lambda x: [nd.identity(x) * 1 + 0 - 0 + x], large)["forward plan"]) == [
        "broadcast_add"
    ]
    run = ops(
        dumped(lambda x: [nd.cast(nd.cast(x, "float64"), "int64") + x], large)["forward plan"]
    )
    assert run == ["Cast", "Cast", "broadcast_add"]
    small = nd.array([300, -5, 127], dtype="int32")
    assert ops(
        dumped(lambda x: [nd.cast(nd.cast(x, "float64"), "int32") + x], small)["forward plan"]
    ) == ["broadcast_add"]
    run = ops(
        dumped(
            lambda x: [nd.cast(nd.cast(x, "float64"), "int8")],
            nd.array([3, -5, 127], dtype="int32"),
        )["forward plan"]
    )
    assert run == ["Cast", "Cast"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_identity_ops_are_removed_for_other_float_dtypes(dumped, dtype):
    x = nd.array(SPECIAL).astype(dtype)
    passes = dumped(lambda x: [nd.tanh(nd.tanh(x) * 1 / 1 - 0.0)], x)
    assert ops(passes["forward plan"]) == ["tanh", "tanh"]


# --- Common subexpressions ------------------------------------------------------------------------


def test_common_subexpressions_are_computed_once(dumped):
    def function(x, y):
        a = nd.dot(x, y.T) + nd.dot(x, y.T)
        parts = [nd.split(x, num_outputs=2, axis=1)[i] for i in (0, 1)]
        return [a, parts[0] - parts[1]]

    passes = dumped(function, nd.array(SPECIAL), nd.ones((3, 4)))
    run = ops(passes["forward plan"])
    assert (
        run.count("dot") == run.count("SliceChannel") == run.count("broadcast_add") == 1
        and run.count("transpose") <= 1
    )


def test_ops_with_different_parameters_are_not_merged(dumped):
    passes = dumped(
        lambda x: [
            nd.sum(x, axis=0),
            nd.sum(x, axis=1),
            nd.sum(x, axis=0) + nd.sum(x, axis=0, keepdims=True),
        ],
        nd.array(SPECIAL),
    )
    assert ops(passes["forward plan"]).count("sum") == 3


def test_random_draws_are_not_merged():
    op = _core.CachedOp(
        lambda x: [
            nd.random.uniform(shape=(64,)),
            nd.random.uniform(shape=(64,)),
            nd.Dropout(x),
            nd.Dropout(x),
        ],
        {},
    )
    with autograd.train_mode():
        a, b, c, d = [result.asnumpy() for result in op(nd.ones((64,)))]
    assert (a != b).any() and (c != d).any()


def test_reads_before_and_after_a_state_write_are_not_merged():
    """Reads of a state before and after a write to it differ."""

    def function(x, gamma, beta, mean, variance):
        before = mean * 2
        y = nd.BatchNorm(x, gamma, beta, mean, variance, fix_gamma=False)
        same = nd.BatchNorm(x, gamma, beta, mean, variance, fix_gamma=False)
        return [before, mean * 2, mean * 1, y, same]

    def arrays():
        return (
            nd.array(np.arange(12).reshape(4, 3)),
            nd.ones((3,)),
            nd.zeros((3,)),
            nd.array([1, 2, 3]),
            nd.ones((3,)),
        )

    compiled, eager = arrays(), arrays()
    with autograd.train_mode():
        results, expected = _core.CachedOp(function, {"exact": True})(*compiled), function(*eager)
    for a, b in zip([*results, *compiled], [*expected, *eager]):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
    assert (results[0].asnumpy() != results[1].asnumpy()).any()


def test_merged_results_are_separate_arrays():
    op = _core.CachedOp(
        lambda x: [nd.exp(x), nd.exp(x), nd.exp(x) * 1, x * 1, x.astype("float32")], {}
    )
    x = nd.array([1.0, 2.0])
    expected = [array.asnumpy() for array in op(x)]
    for i in range(5):
        results = op(x)
        results[i][:] = -1
        for k, (result, value) in enumerate(zip(results, expected)):
            np.testing.assert_array_equal(result.asnumpy(), value if k != i else value * 0 - 1)
        np.testing.assert_array_equal(x.asnumpy(), [1.0, 2.0])


def test_duplicate_copies_to_a_device_are_merged(dumped):
    def function(x):
        a, b = x.as_in_context(on(1)), x.as_in_context(on(1))
        return [nd.exp(a) + nd.sin(b), nd.tanh(x.as_in_context(on(2)))]

    assert ops(dumped(function, nd.array(SPECIAL))["forward plan"]).count("_copyto") == 2


def train(function, arrays, compiled, **options):
    arrays = [nd.array(array) for array in arrays]
    for array in arrays:
        array.attach_grad()
    op = _core.CachedOp(function, options) if compiled else None
    with autograd.record():
        results = op(*arrays) if compiled else function(*arrays)
    autograd.backward(results)
    return [array.asnumpy() for array in [*results, *[array.grad for array in arrays]]], op


def test_gradients_pass_through_simplified_graphs():
    """Covers merged and removed ops, and gradients that are the same value."""
    rng = np.random.default_rng(0)

    def function(x, y):
        a = nd.tanh(nd.dot(x, y)) * 1 + nd.tanh(nd.dot(x, y))
        b = nd.cast(nd.cast(x.T.T, "float64"), "float32") + y.reshape((2, 8)).reshape((4, 4))
        return [a, b, nd.relu(nd.relu(x)) * nd.clip(nd.clip(y, -1, 1), -2, 2)]

    arrays = [rng.standard_normal((4, 4)).astype("float32") for _ in range(2)]
    expected, _ = train(function, arrays, False)
    results, op = train(function, arrays, True, exact=True)
    for a, b in zip(results, expected):
        np.testing.assert_array_equal(a, b)
    entry = op.compiled()[0]["devices"][str(on(0))]
    assert sum("dot" in step.get("op", "") for step in entry["forward"]) == 1


def test_equal_gradients_are_separate_arrays():
    expected, _ = train(lambda x, y: [x + y], [np.ones((2, 3))] * 2, False)
    results, _ = train(lambda x, y: [x + y], [np.ones((2, 3))] * 2, True)
    for a, b in zip(results, expected):
        np.testing.assert_array_equal(a, b)
    x, y = nd.ones((2, 3)), nd.ones((2, 3))
    x.attach_grad()
    y.attach_grad()
    with autograd.record():
        (z,) = _core.CachedOp(lambda x, y: [x * 1 + y * 1], {})(x, y)
    z.backward()
    x.grad[:] = 5
    assert (y.grad.asnumpy() == 1).all()


def test_recomputed_regions_are_not_merged_with_kept_values():
    """A value recomputed in backward is not kept just because another op also computes it."""

    def block(x, w):
        return nd.tanh(nd.dot(nd.tanh(nd.dot(x, w)), w))

    def function(x, w):
        a = block(x, w)
        _core.begin_recompute()
        b = block(x, w)
        return [a + b]

    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((8, 8)).astype("float32") for _ in range(2)]
    expected, _ = train(function, arrays, False)
    results, op = train(function, arrays, True, exact=True)
    for a, b in zip(results, expected):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("limit", [None, 70_000])
def test_recompute_budget_does_not_split_merged_nodes(limit):
    """Regions chosen for a budget do not duplicate merged nodes."""
    rng = np.random.default_rng(2)

    def function(x, w):
        for _ in range(6):
            x = nd.tanh(nd.dot(x, w)) + nd.tanh(nd.dot(x, w))
        return [x]

    arrays = [rng.standard_normal(shape).astype("float32") / 6 for shape in ((64, 32), (32, 32))]
    expected, _ = train(function, arrays, False)
    results, op = train(
        function, arrays, True, exact=True, **({"budget": [(str(on(0)), limit)]} if limit else {})
    )
    for a, b in zip(results, expected):
        np.testing.assert_array_equal(a, b)
    entry = op.compiled()[0]["devices"][str(on(0))]
    assert sum("dot" in step.get("op", "") for step in entry["forward"]) == 6
