"""Generation over devices: groups that take turns, split layers, and windows that move."""

import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, nd
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from mpgluon.gluon.model_zoo.text import _generation
from mpgluon.gluon.model_zoo.text._cache import Cache
from mpgluon.gluon.model_zoo.text._lanes import Lane
from mpgluon.gluon.model_zoo.text._requests import Request, Stops
from programs.random_blocks import check_many
from programs.random_generation import case
from support.devices import on
from support.networks import DECODERS, DRAWN, PROMPTS, decoder

HALVES = {"embed": on(0), r"layers\.0": on(0), r"layers\.1": on(1), "norm|head": on(1)}
MORE = [*PROMPTS, [3], [9, 8, 7, 6, 5], [11, 12]]


@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_groups_give_the_tokens_of_one_group(count, options):
    net = decoder()
    expected = text.generate(net, MORE[:count], max_new=9, seed=5, **options)
    net.place(HALVES, verbose=False)
    for groups in (None, 1, 2, 3, 9):
        new = text.generate(net, MORE[:count], max_new=9, seed=5, groups=groups, **options)
        assert new == expected, groups


@pytest.mark.parametrize("part", ["", r"\.attention", r"\.attention\.key", r"\.attention\..*"])
def test_a_layer_apart_from_its_attention_has_no_cache(part):
    """Attention would add rows to a copy of the cache."""
    net = decoder()
    rest = {".*": on(0)} if not part else {"embed|layers|norm|head": on(0)}
    net.place({rf"layers\.1{part}": on(1), **rest}, verbose=False)
    with pytest.raises(ValueError, match=r"layers\.1 and the keys .* different devices"):
        text.generate(net, PROMPTS, max_new=3)


def test_layers_without_a_key_stay_on_their_devices(tmp_path):
    net = text.from_config(
        {
            "model_type": "llama",
            "vocab_size": 97,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
        }
    )
    net.initialize(mx.init.Normal(0.3), ctx=on(0))
    net.save_parameters(tmp_path, format="huggingface")
    with on(0):
        placed = text.from_pretrained(tmp_path, ctx={r"layers\.1": on(1)})
    expected = text.generate(net, PROMPTS, max_new=5)
    assert text.generate(placed, PROMPTS, max_new=5) == expected
    assert placed(nd.array([[1, 2]], dtype="int32", ctx=on(0))).context == on(0)


def test_groups_of_four_or_more_are_those_of_the_devices(monkeypatch):
    net, sizes = decoder(), []

    class Lane(_generation.Lane):
        def __init__(self, net, requests, *given):
            sizes.append(len(requests))
            super().__init__(net, requests, *given)

    monkeypatch.setattr(_generation, "Lane", Lane)
    text.generate(net, MORE * 2, max_new=2)
    net.place(HALVES, verbose=False)
    for count in (9, 8, 7, 1):
        text.generate(net, (MORE * 2)[:count], max_new=2)
    text.generate(net, MORE, max_new=2, groups=2)
    assert sizes == [10, 5, 4, 4, 4, 7, 1, 3, 2]


def split(net, devices=2):
    cut = {
        r"layers\.\d+\.attention": "heads",
        r"layers\.\d+\.mlp\.(gate|up)": "column",
        r"layers\.\d+\.mlp\.down": "row",
    }
    mx.parallel.shard(net, cut, [on(i) for i in range(devices)])
    return net


@pytest.mark.parametrize("name", ["llama", "gemma"])
@pytest.mark.parametrize(
    "options",
    [{}, DRAWN, {"draft": 3}, {"num_beams": 3}],
    ids=["greedy", "drawn", "draft", "beams"],
)
def test_split_heads_have_a_cache_on_each_device(name, options):
    net = decoder(name)
    expected = text.generate(net, PROMPTS, max_new=9, seed=[5, 9], **options)
    split(net)
    assert text.generate(net, PROMPTS, max_new=9, seed=[5, 9], **options) == expected
    kv_heads = DECODERS[name].get("kv_heads", 4)
    for parts in net.make_cache(2, 8):
        assert [keys.context for keys, _ in parts] == [on(0), on(1)]
        assert {array.shape for part in parts for array in part} == {(2, 8, kv_heads // 2, 8)}


@pytest.mark.parametrize("cut", [{"head": "column"}, {"embed": "vocab"}])
def test_split_embeddings_and_heads_give_the_same_tokens(cut):
    mx.random.seed(3)
    sizes = dict(units=32, layers=2, heads=4, hidden=48, rotary={}, deviation=0.5)
    net = text.Decoder(96, **sizes)
    net.initialize(ctx=on(0))
    expected = text.generate(net, PROMPTS, max_new=9)
    mx.parallel.shard(net, cut, [on(0), on(1)])
    for draft in (None, 3):
        assert text.generate(net, PROMPTS, max_new=9, draft=draft) == expected


def test_split_attention_of_another_class_has_no_cache():
    class Own(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.heads = 2
            self.qkv, self.out = (nn.Dense(n, in_units=8, flatten=False) for n in (24, 8))

        def hybrid_forward(self, F, x):
            q, k, v = F.split(F.reshape(self.qkv(x), (0, 0, -4, 3, -1)), 3, axis=2, squeeze_axis=1)
            shape = (0, 0, self.heads, -1)
            y = F.contrib.attention(*(F.reshape(one, shape) for one in (q, k, v)))
            return self.out(F.reshape(y, (0, 0, -3)))

    net = nn.HybridSequential()
    net.add(Own())
    net.initialize(ctx=on(0))
    mx.parallel.shard(net, {"0": "heads"}, [on(0), on(1)])
    with pytest.raises(NotImplementedError, match="only a split MultiHeadAttention has a cache"):
        net[0].make_cache(1, 4)


def whole_caches(monkeypatch):
    make = text.Decoder.make_cache
    monkeypatch.setattr(
        text.Decoder, "make_cache", lambda net, batch, length, chunk=0: make(net, batch, length)
    )


def test_keys_that_are_split_by_units_have_no_cache():
    net = decoder()
    mx.parallel.shard(net, {r"layers\.\d\.attention\.key": "column"}, [on(0), on(1)])
    with pytest.raises(TypeError, match="keys are a ColumnParallelDense.*'heads'"):
        text.generate(net, PROMPTS, max_new=3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [{}, DRAWN, {"num_beams": 2}, {"draft": 2}, {"groups": 2}, {"split": True}],
    ids=["greedy", "drawn", "beams", "draft", "groups", "split"],
)
def test_windows_that_move_keep_the_bits_of_whole_caches(monkeypatch, options, dtype):
    net, options = decoder("gemma"), dict(options)
    net.cast(dtype)
    if options.pop("split", False):
        split(net)
    random = np.random.RandomState(0)
    prompts = [random.randint(0, 97, size).tolist() for size in (1000, 3, 500)]
    shapes = {array.shape[1] for array in flat(net.make_cache(1, 2048, 512)) if array.ndim > 1}
    assert shapes == {960, 2048}
    found = text.generate(net, prompts, max_new=40, seed=1, **options)
    whole_caches(monkeypatch)
    assert text.generate(net, prompts, max_new=40, seed=1, **options) == found


def flat(given):
    if isinstance(given, nd.NDArray):
        return [given]
    return [array for one in given for array in flat(one)]


def test_windows_move_while_tokens_are_generated(monkeypatch):
    """With chunks of 8, the cache of a window of 4 has 448 rows."""
    monkeypatch.setattr("mpgluon.gluon.model_zoo.text._lanes.CHUNKS", (8, 1))
    net = decoder("gemma")
    found = text.generate(net, PROMPTS, max_new=900)
    whole_caches(monkeypatch)
    assert text.generate(net, PROMPTS, max_new=900) == found


@pytest.mark.parametrize("window", [1, 37, 200])
def test_attention_with_a_moved_window_matches_that_to_all_rows(window):
    mx.random.seed(0)
    layer = nn.MultiHeadAttention(16, heads=2, window=window, rotary=True, in_units=16)
    layer.initialize(ctx=on(0))
    x = nd.random.normal(shape=(2, 1500, 16), ctx=on(0))
    expected = layer(x).asnumpy()
    for chunk in (1, 64, 300):
        arrays = layer.make_cache(2, 1500, chunk)
        cache = Cache([arrays], {window: ([arrays], np.zeros(2, "int64"))})
        assert arrays[0].shape[1] < 1500
        results = []
        for at in range(0, 1500, chunk):
            cache.make_room(np.array([at, at]), chunk)
            lengths = nd.array([at, at], dtype="int32", ctx=on(0))
            y = layer(x[:, at : at + chunk], None, None, None, lengths, None, None, arrays)
            results.append(y.asnumpy())
        np.testing.assert_allclose(np.concatenate(results, 1), expected, atol=1e-5)


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_first_device_computes_steps_of_all_groups_while_the_second_is_busy(penalty):
    """So with one group for each device, no device waits for the other one."""
    net = decoder()
    net.place(HALVES, verbose=False)
    options = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    options["repetition_penalty"] = penalty
    with autograd.pause(train_mode=False):
        lanes = []
        for prompt in PROMPTS:
            request = Request(np.array(prompt, "int32"), 9, Stops((), None), None, False)
            lanes.append(Lane(net, [request], [0], 9, options, ahead=False))
        for _ in range(2):  # the first step compiles
            for lane in lanes:
                lane.take()
                lane.advance()
        for lane in lanes:
            lane.take()
        slow = nd.ones((2000, 2000), ctx=on(1))
        nd.waitall()
        started = time.perf_counter()
        for _ in range(3):
            slow = nd.dot(slow, slow)
        for lane in lanes:
            lane.advance()
        for lane in lanes:
            lane.cache.arrays[0][0].wait_to_read()
        first = time.perf_counter() - started
        slow.wait_to_read()
        assert first < (time.perf_counter() - started) / 2


def test_random_networks_and_options_give_the_tokens_of_whole_sequences():
    check_many(case, 6, "random_generation.py")
