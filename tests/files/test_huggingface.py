"""Weights in the layout of Hugging Face: reading, maps, splits, conversions and damaged files."""

import itertools
import json
import os
import re

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.base import MXNetError
from mpgluon.contrib import huggingface as hf
from mpgluon.gluon import nn
from mpgluon.ndarray import _safetensors
from support.devices import on
from support.processes import finished

RNG = np.random.RandomState(0)


def values(**shapes):
    return {
        name.replace("__", "."): RNG.normal(size=shape).astype("float32")
        for name, shape in shapes.items()
    }


def write(path, arrays, dtype="float32"):
    """Writes NumPy arrays as one safetensors file."""
    nd.save(str(path), {name: nd.array(value, dtype=dtype) for name, value in arrays.items()})


def write_shards(folder, *shards):
    """Writes shards and their index. Returns the path of the index."""
    places = {}
    for number, arrays in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write(folder / name, arrays)
        places.update(dict.fromkeys(arrays, name))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


def dense(units=4, inputs=3, **options):
    net = nn.HybridSequential()
    net.add(nn.Dense(units, in_units=inputs, **options))
    return net


# --- Reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["file", "folder", "index", "sharded folder"])
def test_load_reads_file_folder_and_index(tmp_path, layout):
    arrays = values(**{"0__weight": (4, 3), "0__bias": (4,)})
    if layout in ("file", "folder"):
        write(tmp_path / "model.safetensors", arrays)
        path = tmp_path / "model.safetensors" if layout == "file" else tmp_path
    else:
        first, second = ({name: value} for name, value in arrays.items())
        index = write_shards(tmp_path, first, second)
        path = index if layout == "index" else tmp_path
    net = dense()
    net.load_parameters(path, format="huggingface")
    assert (net[0].weight.data().asnumpy() == arrays["0.weight"]).all()
    assert (net[0].bias.data().asnumpy() == arrays["0.bias"]).all()
    weights = hf.Weights(path)
    assert weights.shapes() == {name: value.shape for name, value in arrays.items()}
    assert (weights.read("0.weight", rows=(1, 3)) == arrays["0.weight"][1:3]).all()
    with pytest.raises(ValueError, match="rows"):
        weights.read("0.weight", rows=(2, 5))


def test_load_goes_to_each_device_of_placed_and_replicated_parameters(tmp_path):
    arrays = values(**{"0__weight": (4, 3), "0__bias": (4,), "1__weight": (2, 4), "1__bias": (2,)})
    write(tmp_path / "model.safetensors", arrays)
    net = dense()
    net.add(nn.Dense(2, in_units=4))
    net.place({"0": mx.cpu(1), "1": mx.cpu(2)}, verbose=False)
    net.load_parameters(tmp_path, format="huggingface")
    assert [p.list_ctx() for p in net.collect_params().values()] == [[mx.cpu(1)]] * 2 + [
        [mx.cpu(2)]
    ] * 2
    replicas = dense()
    replicas.add(nn.Dense(2, in_units=4))
    replicas.load_parameters(tmp_path, format="huggingface", ctx=[mx.cpu(0), mx.cpu(1)])
    for name, param in replicas._collect_params_with_prefix().items():
        for data in param.list_data():
            assert (data.asnumpy() == arrays[name]).all()


def test_load_into_initialized_network_is_seen_by_compiled_program_and_keeps_gradients(tmp_path):
    arrays = values(**{"0__weight": (4, 3), "0__bias": (4,)})
    write(tmp_path / "model.safetensors", arrays)
    net = dense()
    net.initialize()
    net.hybridize()
    x = nd.ones((2, 3))
    net(x)
    grad = net[0].weight.grad()
    net.load_parameters(tmp_path, format="huggingface")
    want = x.asnumpy() @ arrays["0.weight"].T + arrays["0.bias"]
    np.testing.assert_allclose(net(x).asnumpy(), want, rtol=1e-6)
    assert net[0].weight.grad() is grad


def test_load_waits_for_queued_work_that_reads_the_old_values(tmp_path):
    arrays = values(**{"0__weight": (512, 512), "0__bias": (512,)})
    write(tmp_path / "model.safetensors", arrays)
    net = dense(512, 512)
    net.initialize(mx.init.One(), ctx=on(1))
    weight = net[0].weight
    weight.data().attach_grad()
    x = nd.ones((512, 512), ctx=on(1))
    for _ in range(8):
        x = nd.dot(x, nd.ones((512, 512), ctx=on(1))) / 512
    with mx.autograd.record():
        y = nd.dot(weight.data(), x) * weight.data()
    z = x + weight.data()
    net.load_parameters(tmp_path, format="huggingface")
    assert (z.asnumpy() == 2).all()
    assert (weight.data().asnumpy() == arrays["0.weight"]).all()
    y.backward()  # uses the values of the forward pass
    assert (weight.data().grad.asnumpy() == 1024).all()


@pytest.mark.parametrize("kind", ["column", "row"])
def test_split_layer_reads_only_its_part(tmp_path, monkeypatch, kind):
    arrays = values(**{"0__weight": (6, 8), "0__bias": (6,)})
    write(tmp_path / "model.safetensors", arrays)
    net = dense(6, 8)
    mx.parallel.shard(net, {"0": kind}, [mx.cpu(0), mx.cpu(1)])
    read, read_into, seen = _safetensors.File.read, _safetensors.File.read_into, []

    def recorded(self, name, ranges=None):
        seen.append((name, [tuple(ranges[axis]) for axis in sorted(ranges)]))
        return read(self, name, ranges)

    def recorded_rows(self, name, begin, end, array, row):
        seen.append((name, [(begin // 8, end // 8)]))
        return read_into(self, name, begin, end, array, row)

    monkeypatch.setattr(_safetensors.File, "read", recorded)
    monkeypatch.setattr(_safetensors.File, "read_into", recorded_rows)
    net.load_parameters(tmp_path, format="huggingface")
    monkeypatch.undo()
    parts = [ranges for name, ranges in seen if name == "0.weight"]
    halves = [(0, 3), (3, 6)] if kind == "column" else [(0, 4), (4, 8)]
    assert [ranges[kind == "row"] for ranges in parts] == halves
    x = RNG.normal(size=(2, 8)).astype("float32")
    want = x @ arrays["0.weight"].T + arrays["0.bias"]
    np.testing.assert_allclose(net(nd.array(x)).asnumpy(), want, rtol=1e-5, atol=1e-6)
    net.save_parameters(tmp_path / "out", format="huggingface")
    saved = nd.load(str(tmp_path / "out" / "model.safetensors"))
    for name, value in arrays.items():
        assert (saved[name].asnumpy() == value).all()


def test_uneven_split_and_embedding_rows(tmp_path):
    arrays = values(**{"0__weight": (7, 4)})
    write(tmp_path / "model.safetensors", arrays)
    net = nn.HybridSequential()
    net.add(nn.Embedding(7, 4))
    mx.parallel.shard(net, {"0": "vocab"}, [mx.cpu(0), mx.cpu(1), mx.cpu(2)])
    net.load_parameters(tmp_path, format="huggingface")
    tokens = nd.array([0, 3, 6], dtype="int32")
    assert (net(tokens).asnumpy() == arrays["0.weight"][[0, 3, 6]]).all()


def test_large_array_is_read_in_pieces(tmp_path, monkeypatch):
    from mpgluon.gluon._huggingface import load

    arrays = values(**{"0__weight": (50, 8), "0__bias": (50,)})
    write(tmp_path / "model.safetensors", arrays)
    monkeypatch.setattr(load, "_PIECE", 8 * 4 * 7)
    net = dense(50, 8)
    net.cast("float64")  # values of the same dtype are not read in pieces
    net.load_parameters(tmp_path, format="huggingface")
    assert (net[0].weight.data().asnumpy() == arrays["0.weight"]).all()
    turned = dense(8, 50, use_bias=False)
    turned.load_parameters(
        tmp_path,
        format="huggingface",
        name_map=[hf.Transpose(r"0\.weight"), hf.Drop(r"0\.bias")],
    )
    assert (turned[0].weight.data().asnumpy() == arrays["0.weight"].T).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "bool"])
def test_stored_rows_are_read_into_the_memory_of_the_parameters(tmp_path, monkeypatch, dtype):
    """Covers a whole array, parts of an array, joined, stacked and empty arrays and a scalar, with
    several replicas, before and after the parameters are initialized."""
    shapes = {"whole": (5, 3), "split": (6, 2), "x": (2, 3), "y": (1, 3), "one": (), "none": (0, 3)}
    shapes |= {f"e{i}": (2, 2) for i in range(3)}
    nan = np.array(np.nan, "float32").view("uint32") + 0x10000  # a NaN with other bits
    arrays = {
        key: nd.array(np.where(RNG.random(shape) < 0.2, nan.view("float32"), 1), dtype=dtype)
        for key, shape in shapes.items()
    }
    nd.save(str(tmp_path / "model.safetensors"), arrays)
    parameters = {"whole": (5, 3), "a": (4, 2), "b": (2, 2), "joined": (3, 3), "stacked": (3, 2, 2)}
    net = Target(**parameters, one=(), none=(0, 3))
    net.cast(dtype)
    entries = [
        hf.Split("split", ["a", "b"], sizes=[4, 2]),
        hf.Join(["x", "y"], "joined"),
        hf.Stack("e{}", "stacked"),
    ]

    def refuse(self, name, ranges=None):
        raise AssertionError(f"{name} is read into other memory")

    monkeypatch.setattr(_safetensors.File, "read", refuse)
    with mx.util.np_shape():
        for _ in range(2):
            net.load_parameters(
                tmp_path, format="huggingface", ctx=[on(0), on(1)], name_map=entries
            )
            for key, want in {
                "whole": arrays["whole"],
                "a": arrays["split"][:4],
                "b": arrays["split"][4:],
                "joined": nd.concat(arrays["x"], arrays["y"], dim=0),
                "stacked": nd.stack(*[arrays[f"e{i}"] for i in range(3)]),
                "one": arrays["one"],
                "none": arrays["none"],
            }.items():
                for got in getattr(net, key).list_data():
                    assert got.shape == want.shape
                    assert got.asnumpy().tobytes() == want.asnumpy().tobytes()
                    if got.size:
                        got[:] = 0


def test_load_in_a_hybridized_block_names_load_parameters(tmp_path):
    class Block(nn.HybridBlock):
        def forward(self, x):
            net.load_parameters(tmp_path, format="huggingface")
            return x

    write(tmp_path / "model.safetensors", {"0.weight": np.ones((2, 3), "float32")})
    net = dense(2, 3, use_bias=False)
    net.initialize()
    block = Block()
    block.hybridize()
    with pytest.raises(MXNetError, match="load_parameters: .* is written to inside"):
        block(nd.ones((1,)))


def test_peak_host_memory_of_load_is_one_piece(tmp_path):
    rows = 32 << 10  # 32 MiB for each array
    code = f"""
        import resource, sys
        import numpy as np
        import mpgluon as mx
        from mpgluon import nd
        from mpgluon.gluon import nn
        def net():
            found = nn.HybridSequential()
            for i in range(4):
                found.add(nn.Embedding({rows}, 256))
            return found
        source = net()
        if sys.argv[1:] == ["write"]:
            source.initialize()
            source.save_parameters({str(tmp_path)!r}, format="huggingface", shard_bytes=50e6)
        else:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            source.load_parameters({str(tmp_path)!r}, format="huggingface")
            nd.waitall()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            print(peak / (4 * {rows}))  # KiB for each KiB of weights
    """
    finished(code.replace("sys.argv[1:]", "['write']"))
    ratio = float(finished(code).stdout.split()[-1])
    assert ratio < 1.15, f"peak memory is {ratio} times the weights"


# --- Dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("wanted", ["float16", "bfloat16", "float32", "float64"])
def test_conversion_that_loses_precision_must_be_asked_for(tmp_path, given, wanted):
    arrays = values(**{"0__weight": (4, 3), "0__bias": (4,)})
    write(tmp_path / "model.safetensors", arrays, given)
    net = dense()
    net.cast(wanted)
    safe = given == wanted or (given != "float32" and wanted in ("float32", "float64"))
    safe = safe or (given, wanted) == ("float32", "float64")
    if not safe:
        with pytest.raises(MXNetError, match=rf"'0.weight' is {given}.*lose precision.*cast_dtype"):
            net.load_parameters(tmp_path, format="huggingface")
        with pytest.raises(MXNetError, match="not been initialized"):
            net[0].weight.data()
    net.load_parameters(tmp_path, format="huggingface", cast_dtype=not safe)
    want = nd.array(arrays["0.weight"], dtype=given).astype(wanted).asnumpy()
    assert (net[0].weight.data().asnumpy() == want).all()


DTYPES = ["float16", "bfloat16", "float32", "float64"]
JOINED = [
    ({"w": (2, 3)}, [hf.Stack(r"e\.{}", "w")], ["e.0", "e.1"]),
    ({"w": (6,)}, [hf.Join(["e.0", "e.1"], "w")], ["e.0", "e.1"]),
]


@pytest.mark.parametrize("dtypes", list(itertools.permutations(DTYPES, 2)))
@pytest.mark.parametrize("shapes, entries, names", JOINED, ids=["Stack", "Join"])
def test_joined_arrays_of_different_dtypes_keep_their_values(
    tmp_path, dtypes, shapes, entries, names
):
    arrays = {
        name: nd.array(RNG.normal(size=3), dtype="float64").astype(dtype)
        for name, dtype in zip(names, dtypes)
    }
    nd.save(str(tmp_path / "model.safetensors"), arrays)
    net = Target(**shapes)
    net.cast("float64")
    net.load_parameters(tmp_path, format="huggingface", name_map=entries)
    want = np.concatenate([arrays[name].astype("float64").asnumpy() for name in names])
    assert (net.w.data().asnumpy().reshape(-1) == want).all()
    net.cast("float16")
    with pytest.raises(MXNetError, match="'w' is float(32|64).*lose precision"):
        net.load_parameters(tmp_path, format="huggingface", name_map=entries)


@pytest.mark.parametrize("dtypes", list(itertools.permutations(DTYPES, 2)))
def test_saved_parts_of_different_dtypes_keep_their_values(tmp_path, dtypes):
    net = Target(q=(2, 3), k=(2, 3))
    net.initialize(mx.init.Normal(1))
    for param, dtype in zip((net.q, net.k), dtypes):
        param.cast(dtype)
    entries = [hf.Split("qk", ["q", "k"])]
    net.save_parameters(tmp_path, format="huggingface", name_map=entries)
    saved = nd.load(str(tmp_path / "model.safetensors"))["qk"].astype("float64").asnumpy()
    want = [param.data().astype("float64").asnumpy() for param in (net.q, net.k)]
    assert (saved == np.concatenate(want)).all()


# --- Names and shapes -----------------------------------------------------------------------------


def test_left_over_names_on_both_sides_are_listed_and_nothing_changes(tmp_path):
    write(tmp_path / "model.safetensors", values(**{"0__weight": (4, 3), "norm__weight": (3,)}))
    net = dense()
    net.initialize()
    before = net[0].weight.data().asnumpy()
    with pytest.raises(AssertionError) as caught:
        net.load_parameters(tmp_path, format="huggingface")
    assert "the file lacks '0.bias'" in str(caught.value)
    assert "the network lacks 'norm.weight'" in str(caught.value)
    assert (net[0].weight.data().asnumpy() == before).all()
    net.load_parameters(tmp_path, format="huggingface", allow_missing=True, ignore_extra=True)
    assert (net[0].weight.data().asnumpy() != before).all()


def test_shapes_that_differ_are_listed(tmp_path):
    write(tmp_path / "model.safetensors", values(**{"0__weight": (5, 3), "0__bias": (5,)}))
    with pytest.raises(AssertionError, match=r"'0.weight' has shape \(5, 3\) instead of \(4, 3\)"):
        dense().load_parameters(tmp_path, format="huggingface")


def test_unknown_input_sizes_are_taken_from_the_file(tmp_path):
    arrays = values(**{"0__weight": (4, 3), "0__bias": (4,)})
    write(tmp_path / "model.safetensors", arrays)
    net = dense(4, 0)
    net.load_parameters(tmp_path, format="huggingface")
    assert net[0].weight.shape == (4, 3)


def tied():
    net = nn.HybridSequential()
    embed = nn.Embedding(5, 4)
    net.add(embed, nn.Dense(5, in_units=4, use_bias=False, flatten=False, params=embed.params))
    return net


@pytest.mark.parametrize("names", [["0.weight"], ["1.weight"], ["0.weight", "1.weight"]])
def test_tied_weight_loads_from_any_of_its_names_and_is_saved_once(tmp_path, names):
    value = RNG.normal(size=(5, 4)).astype("float32")
    write(tmp_path / "model.safetensors", dict.fromkeys(names, value))
    net = tied()
    net.load_parameters(tmp_path, format="huggingface")
    assert (net[1].weight.data().asnumpy() == value).all()
    net.save_parameters(tmp_path / "out", format="huggingface")
    assert list(hf.Weights(tmp_path / "out").shapes()) == ["0.weight"]


def test_tied_weight_with_two_values_raises(tmp_path):
    write(tmp_path / "model.safetensors", values(**{"0__weight": (5, 4), "1__weight": (5, 4)}))
    with pytest.raises(MXNetError, match="tie_word_embeddings"):
        tied().load_parameters(tmp_path, format="huggingface")


# --- Maps -----------------------------------------------------------------------------------------


class Target(gluon.HybridBlock):
    """A block with parameters of given shapes."""

    def __init__(self, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, self.params.get(name, shape=shape))


HALVES = [0, 2, 4, 1, 3, 5]
MAPS = {
    "Rename": (
        {"h.1.w": (3, 2)},
        {"w_1": (3, 2)},
        [hf.Rename(r"h\.(\d+)\.w", r"w_\1")],
        lambda a: {"w_1": a["h.1.w"]},
    ),
    "Rename with swapped groups": (
        {"h.1.w": (3, 2)},
        {"w_1": (3, 2)},
        [hf.Rename(r"h\.(\d+)\.(w|b)", r"\2_\1")],
        lambda a: {"w_1": a["h.1.w"]},
    ),
    "Prefix": (
        {"model.w": (3,), "head": (2,)},
        {"w": (3,), "head": (2,)},
        [hf.Prefix("model.", besides="head")],
        lambda a: {"w": a["model.w"], "head": a["head"]},
    ),
    "Transpose": ({"w": (3, 2)}, {"w": (2, 3)}, [hf.Transpose("w")], lambda a: {"w": a["w"].T}),
    "Transpose three axes": (
        {"w": (3, 2, 4)},
        {"w": (4, 3, 2)},
        [hf.Transpose("w", (2, 0, 1))],
        lambda a: {"w": a["w"].transpose(2, 0, 1)},
    ),
    "Split": (
        {"qkv": (8, 3)},
        {"q": (4, 3), "k": (2, 3), "v": (2, 3)},
        [hf.Split("qkv", ["q", "k", "v"], sizes=[4, 2, 2])],
        lambda a: {"q": a["qkv"][:4], "k": a["qkv"][4:6], "v": a["qkv"][6:]},
    ),
    "Split along axis 1": (
        {"gate_up": (3, 8)},
        {"gate": (3, 4), "up": (3, 4)},
        [hf.Split("gate_up", ["gate", "up"], axis=1)],
        lambda a: {"gate": a["gate_up"][:, :4], "up": a["gate_up"][:, 4:]},
    ),
    "Join": (
        {"a": (2, 3), "b": (4, 3)},
        {"w": (6, 3)},
        [hf.Join(["a", "b"], "w", sizes=[2, 4])],
        lambda a: {"w": np.concatenate([a["a"], a["b"]])},
    ),
    "Stack": (
        {f"e.{i}.w1": (3, 2) for i in range(12)},
        {"w1": (12, 3, 2)},
        [hf.Stack(r"e\.{}\.(w1|w2)", r"\1")],
        lambda a: {"w1": np.stack([a[f"e.{i}.w1"] for i in range(12)])},
    ),
    "Stack along axis 1 of joined arrays": (
        {f"e.{i}.{n}": (3, 2) for i in range(3) for n in "ab"},
        {"w": (6, 3, 2)},
        [hf.Join([r"e\.(\d+)\.a", r"e\.(\d+)\.b"], r"e.\1"), hf.Stack(r"e\.{}", "w", axis=1)],
        lambda a: {
            "w": np.stack(
                [np.concatenate([a[f"e.{i}.a"], a[f"e.{i}.b"]]) for i in range(3)], axis=1
            )
        },
    ),
    "Permute": (
        {"w": (12, 2)},
        {"w": (12, 2)},
        [hf.Permute("w", 6)],
        lambda a: {"w": a["w"].reshape(2, 6, 2)[:, HALVES].reshape(12, 2)},
    ),
    "Permute to pairs": (
        {"w": (2, 6)},
        {"w": (2, 6)},
        [hf.Permute("w", 6, to="pairs", axis=1)],
        lambda a: {"w": a["w"][:, np.argsort(HALVES)]},
    ),
    "Reshape": (
        {"w": (1, 4)},
        {"w": (4,)},
        [hf.Reshape("w", (1, 4), (4,))],
        lambda a: {"w": a["w"][0]},
    ),
    "GPT-2's attention": (
        {"h.0.c_attn.weight": (4, 12), "h.0.c_attn.bias": (12,)},
        {f"{n}0_{v}": (4, 4) if v == "weight" else (4,) for n in "qkv" for v in ("weight", "bias")},
        [
            hf.Transpose(r"h\.\d+\.c_attn\.weight"),
            hf.Split(r"h\.(\d+)\.c_attn\.(weight|bias)", [rf"{n}\1_\2" for n in "qkv"]),
        ],
        lambda a: {
            f"{n}0_{v}": (a["h.0.c_attn.weight"].T if v == "weight" else a["h.0.c_attn.bias"])[
                4 * i : 4 * i + 4
            ]
            for i, n in enumerate("qkv")
            for v in ("weight", "bias")
        },
    ),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("piece", [8, 2 << 20])
def test_map_loads_and_saves(tmp_path, monkeypatch, name, piece):
    from mpgluon.gluon._huggingface import load

    monkeypatch.setattr(load, "_PIECE", piece)
    if piece == 8:
        monkeypatch.setattr(load, "_fill_directly", lambda *_: False)
    shapes, parameters, entries, want = MAPS[name]
    arrays = {key: RNG.normal(size=shape).astype("float32") for key, shape in shapes.items()}
    write(tmp_path / "model.safetensors", arrays)
    net = Target(**parameters)
    net.load_parameters(tmp_path, format="huggingface", name_map=entries)
    for key, value in want(arrays).items():
        got = getattr(net, key).data().asnumpy()
        assert got.shape == value.shape
        assert (got == value).all()
    net.save_parameters(tmp_path / "out", format="huggingface", name_map=entries)
    saved = nd.load(str(tmp_path / "out" / "model.safetensors"))
    assert set(saved) == set(arrays)
    for key, value in arrays.items():
        assert (saved[key].asnumpy() == value).all()


def test_dropped_arrays_are_ignored_and_not_written(tmp_path):
    arrays = values(w=(2,), inv_freq=(3,))
    write(tmp_path / "model.safetensors", arrays)
    net, entries = Target(w=(2,)), [hf.Drop("inv_freq")]
    net.load_parameters(tmp_path, format="huggingface", name_map=entries)
    net.save_parameters(tmp_path / "out", format="huggingface", name_map=entries)
    assert list(hf.Weights(tmp_path / "out").shapes()) == ["w"]


@pytest.mark.parametrize(
    "shapes, entries, message",
    [
        ({"w": (5, 2)}, [hf.Split("w", ["a", "b"])], "'w' of shape .* into 2 equal parts"),
        ({"w": (5, 2)}, [hf.Split("w", ["a", "b"], sizes=[1, 2])], r"parts of \[1, 2\]"),
        ({"w": (5, 2)}, [hf.Split("w", ["a", "b"], axis=2)], "along axis 2"),
        ({"w": (5,)}, [hf.Transpose("w")], "cannot be transposed"),
        ({"w": (5,)}, [hf.Permute("w", 4)], "heads of 4"),
        ({"w": (5,)}, [hf.Reshape("w", (1, 4), (4,))], r"cannot have shape \(4,\)"),
        ({"e.0": (2,), "e.2": (2,)}, [hf.Stack(r"e\.{}", "w")], r"indices \[1\]"),
        ({"e.0": (2,), "e.999999999": (2,)}, [hf.Stack(r"e\.{}", "w")], r"\[1, 2, 3, 4, 5\]"),
        ({"e.0": (2,), "e.00": (2,)}, [hf.Stack(r"e\.{}", "w")], "network lacks 'e.00'"),
        ({"e.0": (2,), "e.1": (3,)}, [hf.Stack(r"e\.{}", "w")], "cannot be stacked"),
        ({"a": (2, 2), "b": (2, 3)}, [hf.Join(["a", "b"], "w")], "cannot be joined"),
        ({"a": (2,), "b": (2,)}, [hf.Rename("(?:a|b)", "w")], "two arrays become 'w'"),
    ],
)
def test_map_that_does_not_fit_names_the_array(tmp_path, shapes, entries, message):
    write(tmp_path / "model.safetensors", {k: np.zeros(s, "float32") for k, s in shapes.items()})
    with pytest.raises(MXNetError, match=message):
        Target(w=(2,)).load_parameters(tmp_path, format="huggingface", name_map=entries)


@pytest.mark.parametrize(
    "entry, message",
    [
        (hf.Rename(r"h\.\d+\.w", "w"), "must be part of a group"),
        (hf.Rename(r"h\.(\d+)\.w", "w"), "must insert each group"),
        (hf.Rename("h.*", "w"), "must be part of a group"),
        (hf.Rename(r"h\.(\d+", r"w\1"), "unbalanced"),
    ],
)
def test_map_that_cannot_be_inverted_raises_when_saving(tmp_path, entry, message):
    net = Target(w=(2,))
    net.initialize()
    with pytest.raises(MXNetError, match=message):
        net.save_parameters(tmp_path, format="huggingface", name_map=[entry])


def test_invalid_arguments(tmp_path):
    net = dense()
    net.initialize()
    with pytest.raises(ValueError, match="format must be None or 'huggingface', not 'gguf'"):
        net.load_parameters(tmp_path, format="gguf")
    with pytest.raises(TypeError, match="name_map must be a list of entries"):
        net.load_parameters(tmp_path, format="huggingface", name_map={"a": "b"})
    with pytest.raises(ValueError, match="shard_bytes must be positive"):
        net.save_parameters(tmp_path, format="huggingface", shard_bytes=0)
    with pytest.raises(ValueError, match="shard_bytes must be a number of bytes, or .* not '2G'"):
        net.save_parameters(tmp_path, format="huggingface", shard_bytes="2G")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: hf.Split("w", ["a", "b"], axis=-1), "Split: axis must not be negative, got -1"),
        (lambda: hf.Join(["a", "b"], "w", axis=-2), "Join: axis must not be negative, got -2"),
        (lambda: hf.Stack("e{}", "w", axis=-1), "Stack: axis must not be negative, got -1"),
        (lambda: hf.Permute("w", 4, axis=-1), "Permute: axis must not be negative, got -1"),
        (lambda: hf.Split("w", []), r"names must be a list with at least one item, not \[\]"),
        (lambda: hf.Join("ab", "w"), "patterns must be a list with at least one item, not 'ab'"),
        (lambda: hf.Split("w", ["a", "b"], sizes=[1]), r"sizes must be 2 sizes.*not \[1\]"),
        (lambda: hf.Split("w", ["a", "b"], sizes=[3, -1]), r"sizes must be 2 sizes.*\[3, -1\]"),
    ],
)
def test_entry_refuses_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- Saving ---------------------------------------------------------------------------------------


def test_save_writes_shards_of_the_given_size_and_removes_earlier_files(tmp_path):
    net = nn.HybridSequential()
    net.add(*(nn.Dense(4, in_units=4, use_bias=False) for _ in range(12)))
    net.initialize()
    net.save_parameters(tmp_path, format="huggingface")
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"]
    net.save_parameters(tmp_path, format="huggingface", shard_bytes="0.3125KiB")
    names = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(os.listdir(tmp_path)) == [*names, "model.safetensors.index.json"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 12 * 64
    assert index["weight_map"]["9.weight"] == names[1]  # after 8, before 10
    assert index["weight_map"]["10.weight"] == names[2]
    other = nn.HybridSequential()
    other.add(*(nn.Dense(4, in_units=4, use_bias=False) for _ in range(12)))
    other.load_parameters(tmp_path, format="huggingface")
    for a, b in zip(net, other):
        assert (a.weight.data().asnumpy() == b.weight.data().asnumpy()).all()
    net.save_parameters(tmp_path, format="huggingface")
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"]


def test_interrupted_save_leaves_the_earlier_files(tmp_path, monkeypatch):
    net = nn.HybridSequential()
    net.add(*(nn.Dense(4, in_units=4, use_bias=False) for _ in range(4)))
    net.initialize(mx.init.One())
    net.save_parameters(tmp_path, format="huggingface", shard_bytes=64)
    before = sorted(os.listdir(tmp_path))
    write, calls = _safetensors.write, []

    def interrupted(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return write(*args, **options)

    net.initialize(mx.init.Zero(), force_reinit=True)
    monkeypatch.setattr(_safetensors, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        net.save_parameters(tmp_path, format="huggingface", shard_bytes=64)
    assert len(calls) == 3 and sorted(os.listdir(tmp_path)) == before
    weights = hf.Weights(tmp_path)
    assert all((weights.read(name) == 1).all() for name in weights.shapes())


def test_save_removes_the_temporary_files_of_a_killed_one(tmp_path):
    left = "model-00001-of-00003.safetensors.0123456789abcdef.new"
    for name in (left, left + ".0123456789abcdef.new", "model.safetensors.new", "own.new"):
        (tmp_path / name).write_bytes(b"x")
    net = dense()
    net.initialize()
    net.save_parameters(tmp_path, format="huggingface")
    found = sorted(os.listdir(tmp_path))
    assert found == ["model.safetensors", "model.safetensors.new", "own.new"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_save_keeps_the_dtype(tmp_path, dtype):
    net = dense()
    net.initialize()
    net.cast(dtype)
    net.save_parameters(tmp_path, format="huggingface")
    assert {array.dtype for array in hf.Weights(tmp_path).arrays.values()} == {dtype}
    other = dense()
    other.cast(dtype)
    other.load_parameters(tmp_path, format="huggingface")
    assert (other[0].weight.data().asnumpy() == net[0].weight.data().asnumpy()).all()


# --- Damaged files --------------------------------------------------------------------------------


def load_fails(path, message):
    with pytest.raises(MXNetError, match=message):
        dense().load_parameters(path, format="huggingface")


def test_missing_folder_file_and_weights_are_named(tmp_path):
    load_fails(tmp_path / "none", "does not exist")
    load_fails(tmp_path, "neither model.safetensors nor model.safetensors.index.json")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    load_fails(tmp_path, "pickle of PyTorch; convert it")


def test_truncated_file_raises_before_anything_changes(tmp_path):
    path = tmp_path / "model.safetensors"
    write(path, values(**{"0__weight": (4, 3), "0__bias": (4,)}))
    whole = path.read_bytes()
    for size in (0, 4, 20, len(whole) - 1):
        path.write_bytes(whole[:size])
        load_fails(path, re.escape(str(path)))


def test_file_that_is_truncated_while_loading_raises(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    write(path, values(**{"0__weight": (4, 3), "0__bias": (4,)}))
    opened = hf.Weights.opened

    def truncated(self):
        os.truncate(path, os.path.getsize(path) - 4)
        return opened(self)

    monkeypatch.setattr(hf.Weights, "opened", truncated)
    net = dense()
    with pytest.raises(MXNetError, match="is damaged: it ends within"):
        net.load_parameters(path, format="huggingface")
    for param in net.collect_params().values():  # also the one that was read before
        with pytest.raises(MXNetError, match="has not been initialized"):
            param.data()


def test_damaged_index_is_named(tmp_path):
    arrays = values(**{"0__weight": (4, 3), "0__bias": (4,)})
    first, second = ({name: value} for name, value in arrays.items())
    index = write_shards(tmp_path, first, second)
    good = index.read_text()
    for text, message in (
        ("", "damaged"),
        ("[]", "not a JSON object"),
        ("{}", "no weight_map"),
        (
            json.dumps({"weight_map": {"0.weight": "../model.safetensors"}}),
            "not the name of a file",
        ),
        (json.dumps({"weight_map": {"0.weight": 3}}), "not the name of a file"),
        (good.replace("00002-of-00002", "00009-of-00002"), "which is missing"),
        (good.replace('"0.weight"', '"1.weight"'), "'1.weight' in .* does not hold it"),
        ("[" * 100000, "damaged"),
    ):
        index.write_text(text)
        load_fails(index, message)
    places = json.loads(good)["weight_map"]
    write(tmp_path / places["0.weight"], {**first, "more": np.zeros(2, "float32")})
    index.write_text(good)
    load_fails(index, r"does not list \['more'\]")
