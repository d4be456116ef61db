"""Expressions and functions of mx.np compute the same in an ONNX file, evaluated by onnxruntime and
imported again, as in the block."""

import re

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import nd, np, npx
from mpgluon.gluon import nn
from mpgluon.numpy import _fallback
from support.functions import Calling
from support.onnx_files import error, listed, onnx, run

# Expressions of x (float32), i (int32) and m (bool)
EXPRESSIONS = """
np.where(x > 0.5, x, 0.0)
np.where(x > x[0], x, x[:, :1])
np.where(m[:, :, None], x, -np.inf)
np.where(m, i, 0)
np.where(m, m, ~m)
np.where(np.tril(np.ones((4, 4))) > 0, x, -1e9)
np.triu(np.ones((4, 4)), 1) * -1e9 + x
npx.masked_softmax(x, x > 0)
npx.masked_log_softmax(x, x > 0)
x[:, 0]
x[:, -1]
x[1, 0]
x[1, 0, 2]
x[..., 1]
x[None]
x[:, np.array([0, 2], dtype="int32")]
x.reshape(-1, 4)
x.reshape(x.shape[0], -1)
x.reshape(-1)
x.flatten()
x.ravel()
npx.reshape(x, (-2, -1))
npx.reshape(x, (-2, -2, 2, -1))
npx.reshape(x, (-5, -4))
npx.reshape(x, (-2, -6, 2, 2, -4))
np.expand_dims(x, 0)
np.squeeze(x[:1], 0)
x.T
x.transpose(0, 2, 1)
np.swapaxes(x, 1, 2)
np.moveaxis(x, 0, -1)
np.roll(x, 1, axis=1)
np.flip(x, 1)
np.rot90(x)
np.tile(x, (1, 2))
np.repeat(x, 2, axis=1)
np.pad(x, ((0, 0), (1, 1), (0, 0)))
np.broadcast_to(x, (2, 3, 4, 4))
np.split(x, 2, axis=1)
np.array_split(x, 3, axis=1)
np.stack([x, x], axis=1)
np.concatenate([x, x], axis=-1)
np.concatenate([np.ones((3,)), np.ones((2,))]), x
np.vstack([x, x]), np.hstack([x, x]), np.dstack([x, x])
np.meshgrid(x[0, 0], x[0, 1])
x @ x
np.matmul(x, x)
x @ x[0]
x[0] @ x
x[:, 0] @ x[0]
x[0, 0] @ x
x @ x[0, 0]
x[:, None] @ x[None]
i @ i.T
np.dot(x, x[0])
np.inner(x[0], x[1])
np.outer(x[0, 0], x[0, 1])
np.kron(x[0], x[1])
np.vdot(x, x)
np.cross(x[..., :3], x[..., 1:])
np.einsum("bij,bjk->bik", x, x)
np.einsum("bij,bkj->bik", x, x)
np.einsum("bij->bi", x)
np.einsum("bii->b", x)
np.einsum("bii->bi", x)
npx.batch_dot(x, x, transpose_b=True)
np.trace(x, axis1=1, axis2=2)
np.trace(x[0])
np.diag(x[0])
np.diag(x[0], 1)
np.diag(x[0, 0])
np.diag(x[0, 0], -1)
np.diagonal(x, 1, 1, 2)
np.tril(x), np.triu(x, 1), np.tril(m)
np.logical_and(x > 0, x < 0.5)
np.logical_or(x > 0.5, x < 0)
np.logical_xor(x > 0, x > 0.5)
np.logical_not(x)
np.isnan(x), np.isinf(x), np.isfinite(x), np.isnan(i), np.isfinite(i)
np.isposinf(x), np.isneginf(x)
np.isclose(x, x[0])
np.nan_to_num(x)
(x > 0).all(), (x > 0).any(), x.any(), i.all()
(x > 0).all(axis=1), (x > 0).any(axis=1, keepdims=True), i.all(axis=0)
np.count_nonzero(x > 0)
x == 0, x != x, x >= 0, x <= 0, x < x[0]
i == 2, i != 1, i > 0.5, i < 2.5, i == 2.5, i != 2.5, i < i[0]
m == m, m == True, m < 1, m != m[0]
m + m, m * m, m | m, m & m, m ^ m, ~m
m & (m ^ m), (x > 0) * x
m.sum(), m.sum(axis=1), m.mean(), m.prod(), m.max(axis=1), m.min(), m.cumsum(axis=1)
m.astype("float32"), m.astype("int32"), x.astype("bool"), x.astype("int32"), i.astype("float16")
m[:, 0], m.reshape(-1), m.T, m[None], m[:, ::-1]
np.concatenate([m, m]), np.stack([m, m]), np.tile(m, 2), np.broadcast_to(m, (2, 3, 4))
np.argmax(m, axis=1), np.sort(m, axis=1), m[:, np.array([1, 0], dtype="int32")]
i // 2, i // -3, i % 3, i / 2, i // (i * i + 1), i % i, i // i
i * 2.5, i + 1, i ** 2, i - i[0], -i, np.abs(i), np.sign(i), np.square(i)
x // 0.3, x % 0.3, np.mod(x, x[0]), np.fabs(x), np.power(x, 2), 2 ** x
np.maximum(i, 2), np.minimum(x, x[0]), np.clip(x, -0.5, 0.5), np.clip(i, 0, 3)
np.arctan2(x, x[0]), np.copysign(x, x[0]), np.ldexp(x, 2), np.hypot(i, i)
np.exp(i), np.log(np.abs(i) + 1), np.sqrt(m), np.cbrt(i), np.sin(m), np.exp(m), np.tanh(i)
np.log2(i * i + 1), np.log10(i * i + 1), np.log1p(i * i), np.expm1(i)
np.degrees(i), np.radians(i), npx.sigmoid(i), npx.relu(i), npx.erf(i)
np.floor(i), np.ceil(i), np.trunc(i), np.rint(i), np.fix(i)
np.ceil(x * 3), np.floor(x * 3), np.trunc(x * 3), np.fix(x * 3), np.rint(x * 3)
x.round(), x.round(2), np.around(x, 1)
x.std(), x.std(axis=1), x.var(axis=-1, keepdims=True), np.var(x, ddof=1), i.std()
x.mean(), x.mean(axis=(0, 2)), i.mean(), i.mean(axis=0), i.sum(), x.max(), np.max(i, axis=1)
np.median(x, axis=1), np.quantile(x, 0.3, axis=1), np.percentile(x, 30)
np.average(x, axis=1), np.average(x, axis=1, weights=np.array([1.0, 2, 3, 4]))
np.ptp(x, axis=1), np.diff(x, axis=1), np.prod(x, axis=1)
np.linalg.norm(x), np.linalg.norm(x, axis=-1), np.linalg.det(x)
np.cumsum(x, axis=1), np.cumsum(i), np.cumsum(m)
np.argmax(x, axis=1), np.argmin(i), np.sort(x, axis=-1), np.argsort(x, axis=-1)
np.take_along_axis(x, np.argsort(x, axis=-1), axis=-1)
np.take(x, np.array([0, 2], dtype="int32"), axis=0)
np.take(x, np.array(1, dtype="int64"), axis=0, mode="clip")
npx.topk(x, k=2), npx.pick(x, np.abs(i) % 4), npx.one_hot(i, 4)
npx.embedding(np.abs(i) % 4, x[0], 4, 4)
npx.gather_nd(x, np.array([[0, 1], [1, 2]], dtype="int32"))
npx.index_add(x, np.array([[0, 1]], dtype="int32"), np.ones((2, 4, 4)))
npx.index_update(x, np.array([[0, 1]], dtype="int32"), np.ones((2, 4, 4)))
npx.sequence_mask(x, np.array([1, 2, 3, 3], dtype="int32"), use_sequence_length=True)
npx.arange_like(x, axis=1) + x
np.zeros_like(m), np.ones_like(i), np.full_like(x, 3), x
np.eye(4) + x, np.arange(4) + x, np.linspace(0, 1, 4) + x
np.clip(np.abs(i).astype("uint8"), -1, 100), np.abs(i).astype("uint8") % -1
np.abs(i).astype("uint8") // -2, np.maximum(np.abs(i).astype("uint8"), -1)
-np.abs(i).astype("uint8"), npx.norm(np.abs(i).astype("uint8")), i // 0, m // m[:, :1]
i.astype("int8") + 1, i.astype("int8") * 100, i.astype("int8") > 0, i.astype("int8") @ i.T[:, :1]
"""
# Beginnings of expressions that fix the first size: constants of this size, or numbers that depend
# on it
FIXED = ("np.broadcast_to(x", "np.concatenate([m", "x.std", "np.median", "npx.index_")


def values(rows):
    draw = onp.random.default_rng(rows)
    i = draw.integers(-5, 6, (rows, 4)).astype("int32")
    return {"x": draw.uniform(-1, 1, (rows, 4, 4)).astype("float32"), "i": i, "m": i > 0}


VALUES = values(3)


@pytest.fixture(autouse=True)
def _np_mode():
    npx.set_np()
    yield
    npx.reset_np()


def check(block, arrays, folder, **options):
    """Exports a block and compares it with onnxruntime. Returns the path."""
    path = str(folder / "net.onnx")
    expected = listed(block(*[np.array(array, dtype=array.dtype) for array in arrays]))
    shapes, types = [array.shape for array in arrays], [array.dtype for array in arrays]
    mx.onnx.export_model(block, None, shapes, types, path, **options)
    onnx.checker.check_model(path, full_check=True)
    assert error(run(path, arrays), expected) < 1e-5
    return path


def block_of(expression):
    """Returns an expression as a block, and the names of its arrays."""
    names = list(dict.fromkeys(re.findall(r"\b[xim]\b", expression)))
    function = eval(f"lambda {', '.join(names)}: ({expression})", {"np": np, "npx": npx})
    return Calling(function), names


LINES = EXPRESSIONS.strip().split("\n")


@pytest.mark.parametrize("expression", LINES)
def test_expressions_compute_the_same_in_onnx_files(expression, tmp_path):
    block, names = block_of(expression)
    arrays = [VALUES[name] for name in names]
    path = check(block, arrays, tmp_path)
    inputs = [np.array(array, dtype=array.dtype) for array in arrays]
    found, expected = listed(mx.onnx.import_to_gluon(path)(*inputs)), listed(block(*inputs))
    # Results without axes have one after the import, and comparisons return numbers.
    found = [one.reshape(other.shape).astype(other.dtype) for one, other in zip(found, expected)]
    assert error(found, expected) < 1e-5


@pytest.mark.parametrize("expression", [line for line in LINES if not line.startswith(FIXED)])
def test_expressions_compute_the_same_for_other_numbers_of_rows(expression, tmp_path):
    block, names = block_of(expression)
    sizes = [("rows", *VALUES[name].shape[1:]) for name in names]
    arrays = [VALUES[name] for name in names]
    path = check(block, arrays, tmp_path, dynamic=True, dynamic_input_shapes=sizes)
    arrays = [values(5)[name] for name in names]
    expected = listed(block(*[np.array(array, dtype=array.dtype) for array in arrays]))
    assert error(run(path, arrays), expected) < 1e-5


class Attention(nn.HybridBlock):
    def __init__(self, units, heads):
        super().__init__()
        self.heads = heads
        self.projections = nn.HybridSequential()
        for _ in range(4):
            self.projections.add(nn.Dense(units, in_units=units, flatten=False))

    def forward(self, x, mask):
        batch, length, units = x.shape
        query, key, value = [
            layer(x).reshape(batch, length, self.heads, -1).transpose(0, 2, 1, 3)
            for layer in self.projections[:3]
        ]
        scores = query @ key.swapaxes(2, 3) / np.sqrt(units / self.heads)
        found = npx.masked_softmax(scores, mask) @ value
        return self.projections[3](found.transpose(0, 2, 1, 3).reshape(batch, length, -1))


class Encoder(nn.HybridBlock):
    """A transformer with masks of lengths and of later steps, and BERT's pooler."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.attention = Attention(16, 4)
        self.norm = nn.LayerNorm(in_channels=16)
        self.pooler = nn.Dense(16, in_units=16, activation="tanh", flatten=False)

    def forward(self, tokens, lengths):
        x, steps = self.embedding(tokens), tokens.shape[1]
        inside = np.arange(steps)[None] < lengths[:, None].astype("float32")
        earlier = np.tril(np.ones((steps, steps))) > 0
        x = self.norm(x + self.attention(x, np.logical_and(inside[:, None, None], earlier)))
        total = np.where(inside[:, :, None], x, 0.0).sum(axis=1)
        return self.pooler(x[:, 0]), total / lengths[:, None], (tokens == 0).sum(axis=1)


@pytest.mark.parametrize(
    "sizes", [None, [("batch", 5), ("batch",)], [("batch", "time"), ("batch",)]]
)
def test_masked_transformer_computes_the_same_in_an_onnx_file(sizes, tmp_path):
    net = Encoder()
    net.initialize(mx.init.Uniform(0.5))
    draw = onp.random.default_rng(0)

    def inputs(batch, steps):
        lengths = draw.integers(1, steps + 1, batch)
        return [draw.integers(0, 30, (batch, steps)).astype("int32"), lengths.astype("int32")]

    options = {} if sizes is None else {"dynamic": True, "dynamic_input_shapes": sizes}
    path = check(net, inputs(3, 5), tmp_path, **options)
    loaded = mx.onnx.import_to_gluon(path)
    others = [] if sizes is None else [inputs(2, 5), inputs(1, 5 if 5 in sizes[0] else 9)]
    for arrays in (inputs(3, 5), *others):
        expected = listed(net(*[np.array(array, dtype="int32") for array in arrays]))
        assert error(run(path, arrays), expected) < 1e-5
        found = listed(loaded(*[nd.array(array, dtype="int32") for array in arrays]))
        found = [one.astype(other.dtype) for one, other in zip(found, expected)]
        assert error(found, expected) < 1e-5


def test_onnx_inputs_have_the_order_of_arguments(tmp_path):
    """The graph reads the mask first."""
    values = [VALUES["x"], VALUES["x"] > 0]
    check(Calling(npx.masked_softmax), values, tmp_path)


def test_unread_argument_is_no_onnx_input(tmp_path):
    path = str(tmp_path / "net.onnx")
    block = Calling(lambda x, y: y + 1)
    mx.onnx.export_model(block, None, [(2,), (3,)], ["float32", "int32"], path)
    (result,) = run(path, [onp.array([1, 2, 3], "int32")])
    assert result.tolist() == [2, 3, 4]


# Functions of z, an array without axes, and of x and k, an index without axes
WITHOUT_AXES = {
    "take": lambda x, k: np.take(x, k, axis=0, mode="clip"),
    "sum of take": lambda x, k: np.take(x, k * 1, axis=0, mode="clip").sum(axis=0),
    "take of a maximum": lambda x, k: np.take(x[0], np.argmax(x[:, 0, 0]) * k, axis=1, mode="clip"),
    "one_hot": lambda k: npx.one_hot(k, 4),
    "sum of one_hot": lambda k: npx.one_hot(k, 4).sum(axis=0),
    "embedding": lambda x, k: npx.embedding(k, x[0], 4, 4).sum(axis=0),
    "reductions": lambda z: (z.mean(), z.sum(), z.max(), z.min(), z.prod(), z.std()),
    "tests": lambda z: (z.all(), z.any(), z > 0, np.isnan(z), np.argmax(z)),
    "shapes": lambda z: (z.reshape(1, 1), z[None], np.broadcast_to(z, (2, 3)), z.T),
    "element": lambda x, z: x[0, 0, 0] * z + x,
    "stack": lambda x: np.stack([x[0, 0, 1], x[1, 1, 0]]),
}


@pytest.mark.parametrize("name", WITHOUT_AXES)
def test_arrays_without_axes_compute_the_same_in_onnx_files(name, tmp_path):
    function = WITHOUT_AXES[name]
    values = {"x": VALUES["x"], "k": onp.array(1, "int64"), "z": onp.array(2.5, "float32")}
    arrays = [values[key] for key in function.__code__.co_varnames]
    path = check(Calling(function), arrays, tmp_path)
    expected = listed(function(*[np.array(array, dtype=array.dtype) for array in arrays]))
    inputs = [nd.array(array, dtype=array.dtype) for array in arrays]
    found = listed(mx.onnx.import_to_gluon(path)(*inputs))
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape or (one.shape, other.shape) == ((1,), ())
        onp.testing.assert_allclose(one.reshape(other.shape), other, 1e-5)


def test_empty_arrays_are_refused_with_their_shape(tmp_path):
    block = Calling(lambda x: np.concatenate([x[:0], x]))
    with pytest.raises(mx.MXNetError, match=r"has no elements \(shape \(0, 2\)\)"):
        mx.onnx.export_model(block, None, [(3, 2)], onnx_file_path=str(tmp_path / "net.onnx"))


# Functions that cannot be converted, except the functions of bits for bools
LINALG = "cond eig eigh eigvals eigvalsh inv matrix_rank pinv qr slogdet solve svd"
REFUSED = {
    *["np.linalg." + name for name in LINALG.split()],
    *["npx." + name for name in "digamma erfinv gamma gammaln".split()],
    *["np." + name for name in "bitwise_and bitwise_or bitwise_xor bitwise_not invert lcm".split()],
}
OF_BOOLS = {"np.invert", *[f"np.bitwise_{name}" for name in "and or xor not".split()]}


# Functions of undefined values, of shapes that depend on values, or that need definite matrices
SKIPPED = set("empty empty_like delete nonzero unique where cholesky constraint_check".split())


def functions():
    """Yields (name, function) of mx.np, mx.np.linalg and mx.npx."""
    for path, space in (("np", np), ("np.linalg", np.linalg), ("npx", npx)):
        for name in sorted(set(getattr(space, "__all__", dir(space))) - {*_fallback.__all__}):
            function = getattr(space, name)
            if name[0] != "_" and callable(function) and not isinstance(function, type):
                if name not in SKIPPED:
                    yield f"{path}.{name}", function


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "uint8", "bool"])
def test_functions_of_matrices_compute_the_same_in_onnx_files(dtype, count, tmp_path):
    tested = 0
    for name, function in functions():
        draws = [onp.random.default_rng(seed) for seed in range(count)]
        arrays = [draw.uniform(0.1, 0.9, (3, 3)).astype("float32") for draw in draws]
        if dtype != "float32":
            arrays = [draw.integers(0 if dtype == "bool" else 1, 5, (3, 3)) for draw in draws]
            arrays = [array.astype(dtype) for array in arrays]
        block, inputs = Calling(function), [np.array(array, dtype=dtype) for array in arrays]
        try:
            listed(function(*inputs))
            block.hybridize()
            block(*inputs)
        except Exception:  # the function needs other arguments, or cannot be hybridized
            continue
        if name in (REFUSED - OF_BOOLS if dtype == "bool" else REFUSED):
            with pytest.raises(mx.MXNetError, match="cannot be converted|written|bits of bools"):
                check(block, arrays, tmp_path)
            continue
        try:
            check(block, arrays, tmp_path)
        except (AssertionError, mx.MXNetError) as failure:
            raise AssertionError(f"{name}: {failure}") from failure
        tested += 1
    assert tested > 40
