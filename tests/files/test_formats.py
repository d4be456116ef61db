"""safetensors and npz files: `nd.save` and `nd.load` by suffix, and foreign parameter names."""

import os
import zipfile

import numpy as np
import pytest
import safetensors.numpy as reference

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn
from support.calls import raises
from support.devices import on

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]


def arrays(dtypes, ctx=None):
    rng = np.random.RandomState(0)
    shapes = [(2, 3), (), (0, 4), (5,)]
    return {
        f"{dtype}.{i}": nd.array(rng.uniform(0, 9, shape), ctx=ctx or on(0)).astype(dtype)
        for dtype in dtypes
        for i, shape in enumerate(shapes)
    }


def same(found, wanted):
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        a, b = (one.astype("float64").asnumpy() for one in (found[name], array))
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_safetensors_and_npz_round_trip(tmp_path, suffix):
    dtypes = [d for d in DTYPES if suffix == ".safetensors" or d != "bfloat16"]
    for number in (0, 1):  # the second save replaces the existing file
        saved = arrays(dtypes, on(number))
        path = tmp_path / f"a{suffix}"
        nd.save(path if number else str(path), saved)
        same(nd.load(path), saved)
        assert os.listdir(tmp_path) == [path.name]


def test_files_are_interchangeable_with_safetensors_and_numpy(tmp_path):
    saved = arrays([d for d in DTYPES if d != "bfloat16"])
    nd.save(str(tmp_path / "a.safetensors"), saved)
    nd.save(str(tmp_path / "a.npz"), saved)
    for found in (
        reference.load_file(tmp_path / "a.safetensors"),
        np.load(tmp_path / "a.npz", allow_pickle=False),
    ):
        assert sorted(found) == sorted(saved)
        for name, array in saved.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array.asnumpy())
    values = {name: array.asnumpy() for name, array in saved.items()}
    reference.save_file(values, tmp_path / "b.safetensors", metadata={"made": "elsewhere"})
    np.savez_compressed(tmp_path / "b.npz", **values)
    for name in ("b.safetensors", "b.npz"):
        found = nd.load(str(tmp_path / name))
        same({key: found[key] for key in saved}, saved)


def test_unsupported_content_is_refused_on_save_and_load(tmp_path):
    for suffix in (".safetensors", ".npz"):
        path = str(tmp_path / f"a{suffix}")
        raises(mx.MXNetError, "need names; pass a dict", lambda: nd.save(path, [nd.ones((2,))]))
        with pytest.raises(mx.MXNetError, match="'s' is sparse"):
            nd.save(path, {"s": nd.ones((2, 2)).tostype("csr")})
        with pytest.raises(mx.base.MXNetIOError, match="cannot be written: No such file"):
            nd.save(os.path.join(str(tmp_path), "missing", f"a{suffix}"), {"a": nd.ones((2,))})
        raises(mx.MXNetError, "missing", lambda: nd.load(str(tmp_path / f"missing{suffix}")))
    with pytest.raises(mx.MXNetError, match="'a' is bfloat16"):
        nd.save(str(tmp_path / "a.npz"), {"a": nd.ones((2,), dtype="bfloat16")})
    np.savez(tmp_path / "b.npz", a=np.ones(2, "uint16"), o=np.ones(1))
    reference.save_file({"a": np.ones(2, "uint16")}, tmp_path / "b.safetensors")
    for suffix in (".safetensors", ".npz"):
        with pytest.raises(
            mx.base.NotSupportedError, match="'a'.* is (uint16|U16), which mpgluon does not"
        ):
            nd.load(str(tmp_path / f"b{suffix}"))
    np.savez(tmp_path / "c.npz", a=np.array([None, {}], dtype=object))
    with pytest.raises(mx.base.MXNetIOError, match="not a readable npz file"):
        nd.load(str(tmp_path / "c.npz"))


def test_failed_save_leaves_file_unchanged(tmp_path, monkeypatch):
    for suffix in (".safetensors", ".npz"):
        path = tmp_path / f"a{suffix}"
        nd.save(str(path), {"a": nd.ones((2,))})
        before = path.read_bytes()
        with monkeypatch.context() as patch:

            def full(descriptor):
                raise OSError(28, "No space left on device")

            patch.setattr(os, "fsync", full)
            with pytest.raises(mx.base.MXNetIOError, match="No space left"):
                nd.save(str(path), {"a": nd.zeros((2,))})
        assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "a.safetensors"]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_truncated_or_changed_file_is_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    nd.save(str(path), {"weight": nd.array([1, 2, 3]), "bias": nd.array([[4]])})
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(mx.MXNetError):
            nd.load(str(path))
    rng = np.random.RandomState(0)
    for _ in range(300):
        changed = bytearray(data)
        for place in rng.randint(0, len(data), 3):
            changed[place] = rng.randint(256)
        path.write_bytes(changed)
        try:
            found = nd.load(str(path))
        except mx.MXNetError:
            continue
        for array in found.values() if isinstance(found, dict) else found:
            array.wait_to_read()


def test_npz_with_false_size_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }"
        header += b" " * (117 - len(header)) + b"\n"
        file.writestr("a.npy", b"\x93NUMPY\x01\x00\x76\x00" + header + bytes(1000))
    with pytest.raises(mx.MXNetError):
        nd.load(str(path))


def test_mxnet_format_is_detected_under_any_suffix(tmp_path):
    nd.save(str(tmp_path / "a.params"), {"a": nd.ones((2,))})
    os.rename(tmp_path / "a.params", tmp_path / "a.npz")
    assert nd.load(str(tmp_path / "a.npz"))["a"].shape == (2,)


def network():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=2), nn.BatchNorm(in_channels=3), nn.Dense(3, in_units=3))
    net.initialize(mx.init.Xavier(), ctx=on(0))
    return net


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_parameters_round_trip_in_safetensors_and_npz(tmp_path, suffix):
    net, other = network(), network()
    x = nd.ones((2, 2), ctx=on(0))
    for save, load in (
        (net.save_parameters, other.load_parameters),
        (net.collect_params().save, net.collect_params().load),
    ):
        save(str(tmp_path / f"net{suffix}"))
        load(str(tmp_path / f"net{suffix}"))
        np.testing.assert_array_equal(net(x).asnumpy(), other(x).asnumpy())


FOREIGN = {
    "layer.0.weight": "0.weight",
    "layer.0.bias": "0.bias",
    "layer.1.weight": "2.weight",
    "layer.1.bias": "2.bias",
    "norm.weight": "1.gamma",
    "norm.bias": "1.beta",
    "norm.running_mean": "1.running_mean",
    "norm.running_var": "1.running_var",
}
MAPS = [
    {
        "layer.1.weight": "2.weight",
        "norm.weight": "1.gamma",
        "norm.bias": "1.beta",
        r"norm\.num_batches_tracked": None,
        r"norm\.(.*)": r"1.\1",
        "layer.1.(bias)": r"2.\1",
        "layer.([0-9])[.](weight|bias)": r"\1.\2",
    },
    lambda name: FOREIGN.get(name),
]


@pytest.mark.parametrize("name_map", MAPS)
def test_foreign_weights_load_with_name_map(tmp_path, name_map):
    net, other = network(), network()
    params = {name: param.data() for name, param in net._collect_params_with_prefix().items()}
    weights = {name: params[ours] for name, ours in FOREIGN.items()}
    nd.save(
        str(tmp_path / "a.safetensors"), {**weights, "norm.num_batches_tracked": nd.zeros((1,))}
    )
    other.load_parameters(str(tmp_path / "a.safetensors"), name_map=name_map)
    x = nd.ones((2, 2), ctx=on(0))
    np.testing.assert_array_equal(net(x).asnumpy(), other(x).asnumpy())


@pytest.mark.parametrize(
    "name_map, error, text",
    [
        (
            {"a": "0.weight", "b": "0.weight"},
            ValueError,
            "both 'a' and 'b' of .* become '0.weight'",
        ),
        ({"(": "a"}, ValueError, "not a regular expression"),
        ({"(.)": r"\2"}, ValueError, "is not a regular expression and"),
        (3, TypeError, "not int"),
        ({}, AssertionError, "'0.weight' is missing|none of them is in the network"),
        (lambda name: 3, TypeError, "returned 3 for 'a'"),
    ],
)
def test_invalid_name_map_is_refused_and_changes_nothing(tmp_path, name_map, error, text):
    net = gluon.nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2, use_bias=False))
    net.initialize(mx.init.One(), ctx=on(0))
    nd.save(str(tmp_path / "a.npz"), {"a": nd.zeros((2, 2)), "b": nd.zeros((2, 2))})
    raises(error, text, lambda: net.load_parameters(str(tmp_path / "a.npz"), name_map=name_map))
    assert net[0].weight.data().asnumpy().all()
