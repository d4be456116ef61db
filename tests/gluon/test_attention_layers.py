"""MultiHeadAttention and the cells of transformers: against NumPy, compiled, on several devices, in
pipelines, split by heads, with caches, exported, in half precision."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import MXNetError, autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline, shard
from samples.attention import visible, weigh
from support.devices import on

BATCH, TIME, UNITS, HEADS, SHARED, SIZE = 4, 12, 16, 8, 2, 4
WAYS = {
    "plain": {},
    "not causal": {"causal": False},
    "rotary": {"rotary": True},
    "pairs": {
        "rotary": {"style": "pairs", "dims": 2, "base": 100.0, "scaling": "linear", "factor": 2.0},
        "use_bias": {"query": True, "proj": True},
    },
    "norm": {"qk_norm": True, "rotary": True},
    "norm with offset": {"qk_norm": {"offset": 1.0, "epsilon": 0.1}, "use_bias": True},
    "norm of all heads": {"qk_norm": {"whole": True, "epsilon": 0.1}, "rotary": True},
    "window": {"window": 5, "softcap": 3.0, "scale": 0.3},
}


def made(way, ctx=None, **more):
    mx.random.seed(1)
    options = {**WAYS[way], **more}
    layer = nn.MultiHeadAttention(
        UNITS, HEADS, kv_heads=SHARED, head_dim=SIZE, in_units=UNITS, **options
    )
    layer.initialize(mx.init.Normal(0.5), ctx=ctx or on(0))
    return layer


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def rotated(x, style="half", dims=0, base=10000.0, scaling="none", factor=1.0):
    dims = dims or x.shape[3]
    at = np.arange(x.shape[1]) / factor
    angles = at[:, None] * base ** (-2 * np.arange(dims // 2) / dims)
    turn = np.exp(1j * angles)[:, None]
    result = x.copy()
    if style == "half":
        low, high = slice(0, dims // 2), slice(dims // 2, dims)
    else:
        low, high = slice(0, dims, 2), slice(1, dims, 2)
    turned = (x[..., low] + 1j * x[..., high]) * turn
    result[..., low], result[..., high] = turned.real, turned.imag
    return result


def normed(x, gamma, epsilon=1e-6, offset=0.0):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * (gamma + offset)


def reference(layer, x, options):
    """The layer in NumPy, in float64."""
    values = {
        name: p.data().asnumpy().astype("float64")
        for name, p in layer._collect_params_with_prefix().items()
    }
    x = x.astype("float64")
    project = lambda name, a: a @ values[name + ".weight"].T + values.get(name + ".bias", 0)
    split = lambda a: a.reshape(*a.shape[:2], -1, SIZE)
    q, k, v = (split(project(name, x)) for name in ("query", "key", "value"))
    if options.get("qk_norm"):
        norm = dict(options["qk_norm"]) if isinstance(options["qk_norm"], dict) else {}
        whole = norm.pop("whole", False)
        q, k = (
            normed(
                a.reshape(*a.shape[:2], -1) if whole else a, values[f"{name}_norm.gamma"], **norm
            )
            for a, name in ((q, "query"), (k, "key"))
        )
        q, k = split(q), split(k)
    if options.get("rotary"):
        given = options["rotary"] if isinstance(options["rotary"], dict) else {}
        q, k = rotated(q, **given), rotated(k, **given)
    seen = visible(
        len(x), x.shape[1], x.shape[1], options.get("causal", True), options.get("window", 0)
    )
    out = weigh(q, k, v, seen, None, options.get("softcap", 0), options.get("scale"))
    return project("proj", out.reshape(*out.shape[:2], -1))


def run(net, *args, seed=5):
    """Returns the result and the gradients of all parameters."""
    mx.random.seed(seed)
    with autograd.record():
        out = net(*args)
        loss = (out * out).sum()
    loss.backward()
    params = net.collect_params().values()
    return [out.asnumpy(), *[p.grad().asnumpy() for p in params if p.grad_req != "null"]]


def equal(one, other):
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other))


@pytest.mark.parametrize("way", WAYS)
def test_layer_matches_numpy(way):
    x, layer = numbers(BATCH, TIME, UNITS), made(way)
    if layer.query_norm is not None:
        size = layer.query_norm.gamma.shape[0]
        layer.query_norm.gamma.set_data(nd.array(numbers(size, seed=7)))
    wanted = reference(layer, x, WAYS[way])
    found = layer(nd.array(x, ctx=on(0))).asnumpy()
    assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("way", WAYS)
def test_layer_has_the_same_bits_everywhere(way):
    """Eager, compiled, on another device, and in micro-batches on one or two devices."""
    x = nd.array(numbers(BATCH, TIME, UNITS), ctx=on(0))

    class Moved(gluon.HybridBlock):
        def __init__(self, ctx):
            super().__init__()
            with self.name_scope():
                self.layer, self.own = made(way, ctx, dropout=0.3), ctx

        def hybrid_forward(self, F, x):
            return self.layer(x.as_in_context(self.own)).as_in_context(on(0))

    wanted = run(Moved(on(0)), x)
    for ctx in (on(0), on(1)):
        net = Moved(ctx)
        net.hybridize(exact=True)
        assert equal(run(net, x), wanted)
    pieces = []
    for ctx in (on(0), on(1)):
        net = Moved(ctx)
        net.hybridize(exact=True, pipeline=Pipeline(2))
        pieces.append(run(net, x))
    assert equal(*pieces) and np.array_equal(pieces[0][0], wanted[0])


def test_heads_that_are_normalized_together_are_not_split():
    net = nn.HybridSequential()
    net.add(made("norm of all heads"))
    with pytest.raises(MXNetError, match="all heads together, .* place whole layers on devices"):
        shard(net, {"0": "heads"}, [on(0), on(1)])


@pytest.mark.parametrize("way", [way for way in WAYS if way != "norm of all heads"])
def test_heads_are_split_by_whole_groups(way):
    x = nd.array(numbers(BATCH, TIME, UNITS), ctx=on(0))
    wanted = run(made(way), x)
    net = nn.HybridSequential()
    net.add(made(way))
    shard(net, {"0": "heads"}, [on(0), on(1)])
    shapes = {name: p.shape for name, p in net.collect_params().items()}
    for name, units in (("query", HEADS * SIZE), ("key", SHARED * SIZE), ("value", SHARED * SIZE)):
        parts = [
            shape for key, shape in shapes.items() if f"{name}_shard" in key and len(shape) > 1
        ]
        assert parts == [(units // 2, UNITS)] * 2
    for hybridize in (False, True):
        net.hybridize(hybridize)
        out = run(net, x)[0]
        assert np.abs(out - wanted[0]).max() < 1e-5 * np.abs(wanted[0]).max()


def test_gradients_of_split_norms_match_one_device():
    x, results = nd.array(numbers(BATCH, TIME, UNITS), ctx=on(0)), []
    for split in (False, True):
        net = nn.HybridSequential()
        net.add(made("norm"))
        if split:
            shard(net, {"0": "heads"}, [on(0), on(1)])
        net.hybridize()
        run(net, x)
        params = net.collect_params().items()
        results.append([p.grad().asnumpy() for n, p in params if n.endswith("norm_gamma")])
    assert len(results[0]) == 2
    for a, b in zip(*results):
        assert np.abs(a - b).max() < 1e-5 * np.abs(a).max()


def test_heads_are_not_split_within_a_group():
    net = nn.HybridSequential()
    net.add(nn.MultiHeadAttention(8, 4, kv_heads=1, in_units=8))
    net.initialize()
    with pytest.raises((MXNetError, ValueError), match="1|heads"):
        shard(net, {"0": "heads"}, [on(0), on(1)])
        net(nd.ones((1, 2, 8)))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "not causal"])
@pytest.mark.parametrize("hybridize", [False, True])
def test_cache_gives_the_results_of_the_whole_sequence(way, hybridize):
    x, layer = nd.array(numbers(BATCH, TIME, UNITS), ctx=on(0)), made(way)
    layer.hybridize(hybridize)
    whole = layer(x).asnumpy()
    cache = [nd.zeros((BATCH, 20, SHARED, SIZE), ctx=on(0)) for _ in range(2)]
    results, begin = [], 0
    for count in (5, 1, 1, 5):
        lengths = nd.full((BATCH,), begin, dtype="int32", ctx=on(0))
        part = layer(x[:, begin : begin + count], None, None, None, lengths, None, None, cache)
        results.append(part.asnumpy())
        begin += count
    assert np.abs(np.concatenate(results, 1) - whole).max() < 1e-5 * np.abs(whole).max()


def test_cross_attention_with_lengths():
    layer = nn.MultiHeadAttention(UNITS, 4, causal=False)
    layer.initialize(ctx=on(0))
    x, memory = (nd.array(numbers(2, n, c, seed=n), ctx=on(0)) for n, c in ((5, UNITS), (7, 10)))
    lengths = nd.array([4, 0], ctx=on(0))
    whole = layer(x, memory, None, None, lengths).asnumpy()
    part = layer(x[:1], memory[:1, :4]).asnumpy()
    assert np.abs(whole[:1] - part).max() < 1e-6 and not whole[1].any()
    keys_alone = layer(x, memory, memory * 2).asnumpy()
    assert np.abs(keys_alone - 2 * layer(x, memory).asnumpy()).max() < 1e-5


def test_masks_segments_and_positions_are_passed_on():
    x, layer = nd.array(numbers(BATCH, TIME, UNITS), ctx=on(0)), made("rotary")
    mask = nd.array(np.tri(TIME) > 0, dtype="bool", ctx=on(0))
    layer._causal = False
    assert np.array_equal(layer(x, None, None, mask).asnumpy(), made("rotary")(x).asnumpy())
    layer = made("rotary")
    joined = nd.reshape(x[:2], shape=(1, 2 * TIME, UNITS))
    segments = nd.array([[0] * TIME + [1] * TIME], dtype="int32", ctx=on(0))
    positions = nd.array([*range(TIME)] * 2, ctx=on(0))
    apart = layer(x[:2]).asnumpy().reshape(1, 2 * TIME, UNITS)
    for own in (positions, nd.expand_dims(positions, axis=0)):
        packed = layer(joined, None, None, None, None, segments, own).asnumpy()
        assert np.abs(packed - apart).max() < 1e-5 * np.abs(apart).max()


@pytest.mark.parametrize("way", WAYS)
def test_export_and_half_precision(way, tmp_path):
    x, layer = nd.array(numbers(BATCH, TIME, UNITS), ctx=on(0)), made(way)
    layer.hybridize()
    wanted = layer(x).asnumpy()
    layer.export(str(tmp_path / "layer"))
    loaded = gluon.SymbolBlock.imports(
        str(tmp_path / "layer-symbol.json"), ["data"], str(tmp_path / "layer-0000.params"), on(0)
    )
    assert np.array_equal(loaded(x).asnumpy(), wanted)
    symbol = made(way)(mx.sym.Variable("data"))
    assert symbol.infer_shape(data=x.shape)[1] == [x.shape]
    for dtype, limit in (("float16", 5e-3), ("bfloat16", 4e-2)):
        half = made(way)
        half.cast(dtype)
        for hybridize in (False, True):
            half.hybridize(hybridize)
            out = half(x.astype(dtype))
            assert out.dtype == half.query.weight.data().dtype
            error = np.abs(out.astype("float32").asnumpy() - wanted).max()
            assert error < limit * np.abs(wanted).max()


@pytest.mark.parametrize("pre_norm", [False, True])
def test_transformer_cells_train_in_a_pipeline(pre_norm):
    class Net(gluon.HybridBlock):
        def __init__(self, devices):
            super().__init__()
            mx.random.seed(3)
            with self.name_scope():
                self.encoder = nn.TransformerEncoderCell(
                    8, 16, 2, dropout=0.2, attention_dropout=0.2, pre_norm=pre_norm
                )
                self.decoder = nn.TransformerDecoderCell(
                    8, 16, 2, kv_heads=1, rotary=True, dropout=0.2, pre_norm=pre_norm
                )
            self.devices = devices
            for part, ctx in zip((self.encoder, self.decoder), devices):
                part.initialize(mx.init.Normal(0.3), ctx=ctx)

        def hybrid_forward(self, F, x, y, lengths):
            one, two = self.devices
            memory = self.encoder(x.as_in_context(one), None, lengths.as_in_context(one))
            y, lengths = y.as_in_context(two), lengths.as_in_context(two)
            return self.decoder(y, memory.as_in_context(two), None, lengths)

    arrays = [
        nd.array(numbers(4, 6, 8, seed=1), ctx=on(0)),
        nd.array(numbers(4, 5, 8, seed=2), ctx=on(0)),
        nd.array([6, 2, 4, 1], dtype="int32", ctx=on(0)),
    ]
    results = []
    for devices in ([on(0), on(0)], [on(0), on(1)]):
        net = Net(devices)
        net(*arrays)  # completes shapes
        net.hybridize(exact=True, pipeline=Pipeline(2))
        results.append(run(net, *arrays))
    assert equal(*results)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_transformer_cells_have_parameters_of_their_dtype(dtype):
    for kind, count in ((nn.TransformerEncoderCell, 1), (nn.TransformerDecoderCell, 2)):
        cell = kind(8, hidden=16, heads=2, dtype=dtype)
        cell.initialize(ctx=on(0))
        result = cell(*[nd.ones((2, 5, 8), dtype=dtype, ctx=on(0))] * count)
        assert np.isfinite(result.astype("float32").asnumpy()).all()
        wanted = {nd.ones(1, dtype=dtype).dtype}
        assert {param.data().dtype for param in cell.collect_params().values()} == wanted


def test_wrong_options_are_refused():
    for options, text in (
        ({"kv_heads": 3}, "kv_heads must divide 4 heads, not 3"),
        ({"rotary": {"bass": 1}}, "no option 'bass'"),
        ({"rotary": {"dims": 5}}, "dims must be even"),
        ({"rotary": {"style": "whole"}}, "one of half, pairs"),
        ({"use_bias": {"q": True}}, "no projection 'q'"),
        ({"window": -1}, "window"),
        ({"units": 10}, "4 heads do not divide 10 units"),
    ):
        with pytest.raises((MXNetError, ValueError), match=text):
            nn.MultiHeadAttention(**{"units": 16, "heads": 4, **options})
    layer = made("rotary")
    x = nd.ones((2, 3, UNITS), ctx=on(0))
    with pytest.raises(MXNetError, match="same sequence"):
        layer(x, x * 2)
    with pytest.raises(MXNetError, match="needs lengths"):
        layer(x, None, None, None, None, None, None, [x, x])
