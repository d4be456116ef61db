"""GGUF files: tensors, metadata, and damaged or hostile files."""

import struct

import numpy as np
import pytest

import mpgluon as mx
from mpgluon.base import MXNetError
from mpgluon.contrib.huggingface import GGUF
from support.text.few_bits import gguf_bytes, gguf_tensor, gguf_text, gguf_value, gguf_values

METADATA = {"general.architecture": "llama", "llama.block_count": 2}


def write(path, metadata=METADATA, tensors=None, **options):
    path.write_bytes(gguf_bytes(metadata, tensors or {}, **options))
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 128])
@pytest.mark.parametrize(
    "kind", ["F32", "F16", "BF16", "F64", "I8", "I32", "Q8_0", "Q4_0", "Q4_K", "Q6_K"]
)
def test_tensor_is_read_in_whole_and_in_rows(tmp_path, kind, version, alignment):
    rng = np.random.default_rng(0)
    tensors = {name: gguf_tensor(rng, kind, (6, 512)) for name in ("a", "b")}
    metadata = {**METADATA, "general.alignment": alignment}
    file = GGUF(write(tmp_path / "m.gguf", metadata, tensors, version=version, alignment=alignment))
    assert file.shapes() == {"a": (6, 512), "b": (6, 512)}
    assert file.types() == {"a": kind, "b": kind}
    for name, tensor in tensors.items():
        want = gguf_values(*tensor)
        assert np.array_equal(file.read(name), want)
        assert np.array_equal(file.read(name, rows=(2, 5)), want[2:5])
        part = file.arrays[name].read([(1, 3), (32, 200)])
        assert np.array_equal(part, want[1:3, 32:200])
    with pytest.raises(ValueError, match="rows"):
        file.read("a", rows=(2, 7))
    with pytest.raises(KeyError):
        file.read("c")


def test_tensor_of_three_axes_is_dequantized(tmp_path):
    tensor = gguf_tensor(np.random.default_rng(0), "Q4_0", (3, 4, 64))
    file = GGUF(write(tmp_path / "m.gguf", tensors={"experts": tensor}))
    assert np.array_equal(file.read("experts"), gguf_values(*tensor))
    assert file.arrays["experts"].quantized() is None


def test_reader_agrees_with_package(tmp_path):
    gguf = pytest.importorskip("gguf")
    rng, path = np.random.default_rng(0), tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = {}
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
        raw = gguf.quants.quantize(rng.normal(size=(4, 64)).astype(np.float32), kind)
        values[kind.name] = gguf.quants.dequantize(raw, kind)
        writer.add_tensor(kind.name, raw, raw_dtype=kind)
    for kind, block, size in (("Q4_K", 256, 144), ("Q6_K", 256, 210)):
        raw = np.frombuffer(gguf_tensor(rng, kind, (2, 2 * block))[2], np.uint8).reshape(2, -1)
        kind = gguf.GGMLQuantizationType[kind]
        values[kind.name] = gguf.quants.dequantize(raw, kind)
        writer.add_tensor(kind.name, raw, raw_dtype=kind)
    writer.add_array("words", ["a", "bc", ""])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_bool("yes", True)
    writer.add_float64("third", 1 / 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUF(path)
    for name, want in values.items():
        assert np.array_equal(file.read(name), want), name
    assert file.metadata["words"] == ["a", "bc", ""]
    assert file.metadata["numbers"].tolist() == [1, 2, 3]
    assert file.metadata["yes"] is True
    assert file.metadata["third"] == 1 / 3


def test_metadata_of_all_types(tmp_path):
    scalars = [
        ("<B", 0, 200),
        ("<b", 1, -3),
        ("<H", 2, 60000),
        ("<h", 3, -30000),
        ("<I", 4, 1 << 31),
    ]
    scalars += [("<i", 5, -5), ("<f", 6, 0.5), ("<?", 7, True), ("<Q", 10, 1 << 63), ("<q", 11, -1)]
    scalars += [("<d", 12, 1e300)]
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 2 * len(scalars) + 1)
    for form, code, value in scalars:
        head += gguf_text(f"s{code}") + struct.pack("<I", code) + struct.pack(form, value)
        head += (
            gguf_text(f"a{code}") + struct.pack("<IIQ", 9, code, 2) + struct.pack(form, value) * 2
        )
    nested = struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 8, 1) + gguf_text(b"\xff")
    head += gguf_text("nested") + struct.pack("<I", 9) + nested
    path = tmp_path / "m.gguf"
    path.write_bytes(head)
    found = GGUF(path).metadata
    for _, code, value in scalars:
        assert found[f"s{code}"] == value
        assert found[f"a{code}"].tolist() == [value] * 2
    assert found["nested"] == [["\udcff"]]  # bytes that are not UTF-8 are kept


@pytest.mark.parametrize("kind", ["Q5_0"])
def test_unsupported_type_names_tensor_and_type(tmp_path, kind):
    file = GGUF(
        write(
            tmp_path / "m.gguf",
            tensors={"blk.0.x": gguf_tensor(np.random.default_rng(0), kind, (2, 64))},
        )
    )
    assert file.types() == {"blk.0.x": kind}
    with pytest.raises(MXNetError, match=r"'blk\.0\.x' has the type Q5_0"):
        file.read("blk.0.x")


def entry(name="x", sizes=(4, 2), code=0, offset=0):
    sizes = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return gguf_text(name) + sizes + struct.pack("<IQ", code, offset)


def header(tensors=1, pairs=0, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, pairs)


def pair(key="k", code=4, raw=b"\1\0\0\0"):
    return gguf_text(key) + struct.pack("<I", code) + raw


BODY = bytes(4096)
HOSTILE = {
    "empty": (b"", "not a GGUF file"),
    "magic": (header(magic=b"GGML") + BODY, "not a GGUF file"),
    "version 1": (header(version=1) + BODY, "of version 1"),
    "big-endian": (header(version=3 << 24) + BODY, "big-endian"),
    "many tensors": (header(tensors=1 << 60) + BODY, "more than the file can hold"),
    "many pairs": (header(0, pairs=1 << 63) + BODY, "more than the file can hold"),
    "long key": (header(0, 1) + struct.pack("<Q", (1 << 64) - 1) + BODY, "more than the file"),
    "long string": (
        header(0, 1) + pair(code=8, raw=struct.pack("<Q", 1 << 62)) + BODY,
        "more than",
    ),
    "long array": (
        header(0, 1) + pair(code=9, raw=struct.pack("<IQ", 12, 1 << 61)) + BODY,
        "more than the file can hold",
    ),
    "long array of strings": (
        header(0, 1) + pair(code=9, raw=struct.pack("<IQ", 8, 4000)) + BODY,
        "more than the file can hold",
    ),
    "deep arrays": (
        header(0, 1) + pair(code=9, raw=struct.pack("<IQ", 9, 1) * 50) + BODY,
        "arrays in more than 4 arrays",
    ),
    "unknown type of metadata": (header(0, 1) + pair(code=13) + BODY, "unknown type 13"),
    "bool": (header(0, 1) + pair(code=7, raw=b"\2") + BODY, "bool with the value 2"),
    "bools": (
        header(0, 1) + pair(code=9, raw=struct.pack("<IQ", 7, 2) + b"\1\7") + BODY,
        "neither 0 nor 1",
    ),
    "same key": (header(0, 2) + pair() + pair() + BODY, "occurs twice"),
    "alignment 0": (
        header(0, 1) + pair("general.alignment", raw=bytes(4)) + BODY,
        "not a power of two",
    ),
    "alignment 48": (
        header(0, 1) + pair("general.alignment", raw=struct.pack("<I", 48)) + BODY,
        "not a power of two",
    ),
    "alignment of another type": (
        header(0, 1) + pair("general.alignment", 8, gguf_text("32")) + BODY,
        "not a power of two",
    ),
    "no dimensions": (header() + entry(sizes=()) + BODY, "0 dimensions"),
    "many dimensions": (header() + entry(sizes=(1,) * 9) + BODY, "9 dimensions"),
    "dimension 0": (header() + entry(sizes=(0, 4)) + BODY, "out of range"),
    "size overflows": (header() + entry(sizes=(1 << 33, 1 << 33)) + BODY, "out of range"),
    "bytes overflow": (header() + entry(sizes=(1 << 62, 1)) + BODY, "out of range"),
    "rows of half a block": (header() + entry(sizes=(48, 2), code=8) + BODY, "a multiple of 32"),
    "unknown type": (header() + entry(code=99) + BODY, "'x' has the unknown type 99"),
    "offset between": (header() + entry(offset=8) + BODY, "not a multiple of 32"),
    "offset after the end": (header() + entry(offset=1 << 40) + BODY, "past the end"),
    "large offset": (header() + entry(offset=(1 << 64) - 32) + BODY, "not a multiple of 32"),
    "too large": (header() + entry(sizes=(1 << 20, 2)) + BODY, "past the end"),
    "same tensor": (header(2) + entry() + entry(offset=32) + BODY, "occurs twice"),
    "overlap": (header(2) + entry("a", (64,)) + entry("b", offset=32) + BODY, "overlaps"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_raises_error_with_reason(tmp_path, case):
    path = tmp_path / "m.gguf"
    raw, reason = HOSTILE[case]
    path.write_bytes(raw)
    with pytest.raises(MXNetError, match=reason) as error:
        GGUF(path)
    assert "m.gguf" in str(error.value)


def test_every_truncation_raises_error(tmp_path):
    rng = np.random.default_rng(0)
    metadata = {**METADATA, "tokens": ["a", "b"], "numbers": [1, 2], "f": 0.5, "s": "text"}
    tensors = {"x": gguf_tensor(rng, "Q8_0", (2, 32)), "y": gguf_tensor(rng, "F32", (8,))}
    raw = gguf_bytes(metadata, tensors)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    assert set(GGUF(path).arrays) == {"x", "y"}
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        with pytest.raises(MXNetError):
            GGUF(path)


def test_random_damage_raises_only_error_of_library(tmp_path):
    rng = np.random.default_rng(1)
    metadata = {**METADATA, "tokens": ["a", "b"], "numbers": [1, 2], "flag": True}
    tensors = {"x": gguf_tensor(rng, "Q4_0", (2, 32)), "y": gguf_tensor(rng, "F16", (4, 2))}
    raw = np.frombuffer(gguf_bytes(metadata, tensors), np.uint8)
    path, refused = tmp_path / "m.gguf", 0
    for _ in range(1000):
        damaged = raw.copy()
        at = rng.integers(0, len(raw), rng.integers(1, 4))
        damaged[at] = rng.choice([0, 1, 127, 128, 255], len(at))
        path.write_bytes(damaged.tobytes())
        try:
            file = GGUF(path)
            for name in file.types():
                file.read(name)
        except MXNetError:
            refused += 1
    assert refused > 100


def test_split_file_and_missing_file_raise_error(tmp_path):
    path = write(tmp_path / "m.gguf", {**METADATA, "split.count": 3})
    with pytest.raises(MXNetError, match="one of 3 parts"):
        GGUF(path)
    for value in ([1, 2], "3"):
        path = write(tmp_path / "m.gguf", {**METADATA, "split.count": value})
        with pytest.raises(MXNetError, match=r"split\.count = .* is not an integer"):
            GGUF(path)
    with pytest.raises(MXNetError, match="cannot be read"):
        GGUF(tmp_path / "none.gguf")


def test_file_that_is_truncated_later_raises_error(tmp_path):
    path = write(
        tmp_path / "m.gguf", tensors={"x": gguf_tensor(np.random.default_rng(0), "F32", (64, 64))}
    )
    file = mx.contrib.huggingface.GGUF(path)
    with open(path, "r+b") as raw:
        raw.truncate(8192)
    with pytest.raises(MXNetError, match="it ends within 'x'"):
        file.read("x")


def test_values_of_writer_have_types():
    assert gguf_value(True)[0] == 7
    assert gguf_value(-1)[0] == 11
