"""`divide` and `net.place([...])`: consecutive layers on each device, balanced by their bytes."""

import itertools

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from mpgluon.gluon import nn
from mpgluon.gluon.model_zoo import text
from support.devices import on

COUNTS = [3, 1, 4, 1, 5, 9, 2, 6]


def chain(counts=COUNTS):
    """A chain of layers with ``4 * count`` bytes each."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(*[nn.Dense(1, in_units=count, use_bias=False) for count in counts])
    return net


def llama(layers=4, tied=False):
    return text.from_config(
        {
            "model_type": "llama",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "vocab_size": 32,
            "tie_word_embeddings": tied,
        }
    )


def sums(placement, devices, counts=COUNTS):
    return [sum(counts[int(path)] for path in placement if placement[path] == c) for c in devices]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_divide_finds_the_most_even_division(count):
    devices = [mx.cpu(i) for i in range(count)]
    placement = mx.parallel.divide(chain(), devices)
    assert list(placement) == [str(i) for i in range(len(COUNTS))]
    assert list(dict.fromkeys(placement.values())) == devices
    order = [devices.index(ctx) for ctx in placement.values()]
    assert order == sorted(order)
    best = min(
        sum(sum(COUNTS[a:b]) ** 2 for a, b in itertools.pairwise((0, *cuts, len(COUNTS))))
        for cuts in itertools.combinations(range(1, len(COUNTS)), count - 1)
    )
    assert sum(size**2 for size in sums(placement, devices)) == best


def test_divide_fills_devices_in_proportion_to_their_memory():
    devices = [mx.cpu(0), mx.cpu(1)]
    placement = mx.parallel.divide(chain(), devices, {devices[0]: 40, devices[1]: 120})
    assert sums(placement, devices) == [8, 23]
    with pytest.raises(ValueError, match=r"124 bytes .* memory = {cpu\(0\): 40, cpu\(1\): 80}"):
        mx.parallel.divide(chain(), devices, {devices[0]: 40, devices[1]: 80})
    names = mx.parallel.divide(chain(), ["cpu(0)", devices[1]], {devices[0]: 40, "cpu(1)": 120})
    assert names == placement
    units = mx.parallel.divide(chain(), devices, {devices[0]: "0.04KB", devices[1]: "0.12 KB"})
    assert units == placement
    with pytest.raises(
        ValueError, match=r"memory of cpu\(1\) must be a number of bytes, or .* GiB"
    ):
        mx.parallel.divide(chain(), devices, {devices[0]: 40, devices[1]: "120 bytes"})
    with pytest.raises(TypeError, match=r"memory of cpu\(1\) must be .* such as '20GiB', not None"):
        mx.parallel.divide(chain(), devices, {devices[0]: 40, devices[1]: None})
    with pytest.raises(ValueError, match=r"no limit for cpu\(1\)"):
        mx.parallel.divide(chain(), devices, {devices[0]: 40})
    with pytest.raises(ValueError, match="must be positive, not 0"):
        mx.parallel.divide(chain(), devices, {devices[0]: 40, devices[1]: 0})


def test_a_shared_weight_counts_on_each_of_its_devices():
    """Without the second count, the last layer would move to the first device."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        first = nn.Dense(10, in_units=10, use_bias=False)
        net.add(first, *[nn.Dense(10, in_units=10, use_bias=False) for _ in range(4)])
        net.add(nn.Dense(10, in_units=10, use_bias=False, params=first.params))
    placement = mx.parallel.divide(net, [mx.cpu(0), mx.cpu(1)])
    assert sums(placement, [mx.cpu(0), mx.cpu(1)], [1] * 6) == [3, 3]


def test_divide_counts_the_bytes_of_each_dtype():
    net = chain([4, 4, 4])
    net[0].cast("float64")
    placement = mx.parallel.divide(net, [mx.cpu(0), mx.cpu(1)])
    assert sums(placement, [mx.cpu(0), mx.cpu(1)], [1, 1, 1]) == [1, 2]


def test_divide_rejects_lists_that_do_not_fit():
    with pytest.raises(ValueError, match=r"9 devices for 8 layers of 'net' .*at most 8 devices"):
        chain().place([mx.cpu(i) for i in range(9)])
    with pytest.raises(ValueError, match="the list of devices is empty"):
        chain().place([])
    with pytest.raises(ValueError, match=r"cpu\(1\) is listed twice"):
        chain().place([mx.cpu(1), mx.cpu(1)])
    for one in (mx.cpu(0), "cpu(0)"):
        with pytest.raises(TypeError, match=r"must be a list of Context, not '?cpu\(0\)"):
            mx.parallel.divide(chain(), one)
    with pytest.raises(TypeError, match="must be a list of Context, not of 3"):
        chain().place([mx.cpu(0), 3])
    with pytest.raises(TypeError, match="no other arguments"):
        chain().place([mx.cpu(0)], split={})
    net = nn.HybridSequential()
    net.add(nn.Dense(2))
    with pytest.raises(mx.MXNetError, match="the shape of .* in layer '0' .* is unknown"):
        net.place([mx.cpu(0)])


def test_place_by_a_list_prints_where_layers_are(capsys):
    net = chain([2, 2])
    net.place(["cpu(0)", "cpu(1)"])
    assert capsys.readouterr().out == (
        "HybridSequential 'net':\n"
        "  cpu(0): 0 (1 parameter, 8 B)\n"
        "  cpu(1): 1 (1 parameter, 8 B)\n"
        "  arrays move before 1, from cpu(0) to cpu(1)\n"
        "  moved: 0 parameters\n"
    )


def test_stacks_of_layers_and_parameters_of_the_block_itself_are_placed():
    config = {
        "model_type": "t5",
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 24,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 32,
    }
    placement = mx.parallel.divide(text.from_config(config), [mx.cpu(0), mx.cpu(1)])
    assert "encoder.layers.1" in placement and "decoder.layers.0" in placement

    class Scaled(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="scaled_")
            self.scale = self.params.get("scale", shape=(1,), init="ones")
            self.body = chain([1, 1])

        def hybrid_forward(self, F, x, scale):
            return F.broadcast_mul(self.body(x), scale)

    net = Scaled()
    net.place([on(0), on(1)], verbose=False)
    net.initialize(mx.init.One())
    assert net.scale.list_ctx() == [on(1)]
    assert net(nd.ones((2, 1), ctx=on(0))).context == on(1)


SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 32,
}
IMAGES = {"image_size": 8, "patch_size": 4}
CONFIGS = {
    "bert": {**SIZES, "architectures": ["BertForMaskedLM"]},
    "clip": {
        "projection_dim": 8,
        "text_config": {**SIZES, "max_position_embeddings": 16, "eos_token_id": 2},
        "vision_config": {k: v for k, v in {**SIZES, **IMAGES}.items() if k != "vocab_size"},
    },
    "mixtral": {**SIZES, "num_local_experts": 4},
    "t5": {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": 32},
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_networks_with_several_stacks_are_divided_with_the_bits_of_one_device(kind):
    """Including parameters that several devices use: position biases, tied heads, a scale."""
    net = text.from_config({"model_type": kind, **CONFIGS[kind]})
    net.initialize(mx.init.Normal(0.3), ctx=on(0))
    tokens = nd.array([[1, 5, 3, 2]], dtype="int32", ctx=on(0))
    images = nd.random.normal(shape=(1, 3, 8, 8), ctx=on(0))
    given = {"t5": (tokens, tokens), "clip": (tokens, images)}.get(kind, (tokens,))

    def results():
        found = net(*given)
        return [each.asnumpy() for each in (found if isinstance(found, list | tuple) else [found])]

    want = results()
    net.place([on(0), on(1)], verbose=False)
    assert {param.list_ctx()[0] for param in net.collect_params().values()} == {on(0), on(1)}
    for got, expected in zip(results(), want):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_from_pretrained_divides_the_layers_over_a_list(tmp_path, count, tied):
    """With the scores and tokens of one device."""
    net = llama(tied=tied)
    net.initialize(mx.init.Normal(0.3))
    net.save_parameters(tmp_path, format="huggingface")
    tokens = nd.array([[1, 5, 3, 2]], dtype="int32")
    want = net(tokens).asnumpy()
    devices = [mx.cpu(i) for i in range(count)]
    divided = text.from_pretrained(tmp_path, ctx=devices)
    used = {param.list_ctx()[0] for param in divided.collect_params().values()}
    # The weight of a tied head is on the device of the embedding.
    assert used == set(devices[:6] if tied and count == 7 else devices)
    assert np.array_equal(divided(tokens).asnumpy(), want)
    new = text.generate(net, [[1, 5, 3]], max_new=6)
    assert text.generate(divided, [[1, 5, 3]], max_new=6) == new


def test_from_pretrained_stays_within_the_memory_of_each_device(tmp_path):
    net = llama()
    net.initialize()
    net.save_parameters(tmp_path, format="huggingface")
    devices = [mx.cpu(0), mx.cpu(1)]
    memory = {devices[0]: 12_000, devices[1]: 29_000}
    divided = text.from_pretrained(tmp_path, ctx=devices, memory=memory)
    for ctx in devices:
        params = [p for p in divided.collect_params().values() if p.list_ctx() == [ctx]]
        assert 0 < 4 * sum(p.data().size for p in params) <= memory[ctx]
    with pytest.raises(ValueError, match="no division into consecutive layers fits"):
        text.from_pretrained(tmp_path, ctx=devices, memory=dict.fromkeys(devices, 12_000))
    with pytest.raises(TypeError, match="memory needs a list of devices"):
        text.from_pretrained(tmp_path, ctx=devices[0], memory=memory)


def test_from_pretrained_prints_the_placement_if_asked(tmp_path, capsys):
    net = llama()
    net.initialize()
    net.save_parameters(tmp_path, format="huggingface")
    text.from_pretrained(tmp_path, ctx=[mx.cpu(0), mx.cpu(1)])
    assert capsys.readouterr().out == ""
    text.from_pretrained(tmp_path, ctx=[mx.cpu(0), mx.cpu(1)], verbose=True)
    assert "cpu(0): embed, layers.0, layers.1 (19 parameters," in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"8 devices for 7 layers of .*'layers.3', 'norm', 'head'"):
        text.from_pretrained(tmp_path, ctx=[mx.cpu(i) for i in range(8)])
