"""Writers and NumPy references of weights in few bits: GGUF, GPTQ, AWQ, compressed-tensors and
bitsandbytes. They follow the published layouts and share no code with the readers."""

import json
import struct

import numpy as np

from mpgluon import nd

# --- GGUF -----------------------------------------------------------------------------------------

GGUF_CODES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q5_0": 6,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q6_K": 14,
    "I8": 24,
    "I32": 26,
    "F64": 28,
    "BF16": 30,
}
BLOCKS = {
    "Q4_0": (32, 18),
    "Q5_0": (32, 22),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
}
_PLAIN = {"F32": "<f4", "F16": "<f2", "I8": "i1", "I32": "<i4", "F64": "<f8"}


def gguf_text(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(value):
    """Returns the type and the bytes of a value of the metadata."""
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        return (4, struct.pack("<I", value)) if value >= 0 else (11, struct.pack("<q", value))
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, (str, bytes)):
        return 8, gguf_text(value)
    kinds = [gguf_value(item) for item in value]
    kind = kinds[0][0] if kinds else 4
    body = b"".join(raw for _, raw in kinds)
    return 9, struct.pack("<IQ", kind, len(kinds)) + body


def gguf_bytes(metadata, tensors, version=3, alignment=32):
    """Returns the bytes of a GGUF file. `tensors` maps names to (type, shape, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, raw = gguf_value(value)
        head += gguf_text(key) + struct.pack("<I", kind) + raw
    body = b""
    for name, (kind, shape, raw) in tensors.items():
        head += gguf_text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", GGUF_CODES[kind], len(body))
        body += raw + bytes(-len(raw) % alignment)
    return head + bytes(-len(head) % alignment) + body


def gguf_tensor(rng, kind, shape, scale=0.1):
    """Returns (type, shape, bytes) of a random tensor."""
    if kind in _PLAIN:
        values = rng.normal(size=shape) * (scale if kind[0] == "F" else 100)
        return kind, shape, values.astype(_PLAIN[kind]).tobytes()
    if kind == "BF16":
        values = (rng.normal(size=shape) * scale).astype("<f4").view("<u4") >> 16
        return kind, shape, values.astype("<u2").tobytes()
    block, size = BLOCKS[kind]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // block, size), dtype=np.uint8)
    # The scales of a block are finite floats of 16 bits.
    small = (rng.uniform(0.2, 1, (len(blocks), 2)) * scale).astype("<f2")
    if kind == "Q4_K":
        blocks[:, :4] = (small / 200).astype("<f2").view(np.uint8)
    elif kind == "Q6_K":
        blocks[:, -2:] = (small[:, :1] / 1000).astype("<f2").view(np.uint8)
    else:
        divisor = 100 if kind == "Q8_0" else 8
        blocks[:, :2] = (small[:, :1] / divisor).astype("<f2").view(np.uint8)
    return kind, shape, blocks.tobytes()


def gguf_values(kind, shape, raw):
    """Returns the float32 values of a tensor."""
    raw = np.frombuffer(raw, np.uint8)
    if kind in _PLAIN:
        return raw.view(_PLAIN[kind]).reshape(shape)
    if kind == "BF16":
        return (raw.view("<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    blocks = raw.reshape(-1, BLOCKS[kind][1])
    return _DEQUANTIZED[kind](blocks).astype(np.float32).reshape(shape)


def _half(columns):
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def _q8_0(blocks):
    return blocks[:, 2:].view(np.int8) * _half(blocks[:, :2])


def _q4_0(blocks):
    low, high = blocks[:, 2:] & 15, blocks[:, 2:] >> 4
    return (np.hstack([low, high]).astype(np.float32) - 8) * _half(blocks[:, :2])


def _q4_k(blocks):
    found = np.empty((len(blocks), 256), np.float32)
    scale, least = _half(blocks[:, :2]), _half(blocks[:, 2:4])
    small, q = blocks[:, 4:16].astype(int), blocks[:, 16:].astype(int)
    for run in range(8):
        if run < 4:
            s, m = small[:, run] & 63, small[:, run + 4] & 63
        else:
            s = small[:, run + 4] & 15 | small[:, run - 4] >> 6 << 4
            m = small[:, run + 4] >> 4 | small[:, run] >> 6 << 4
        part = q[:, run // 2 * 32 : run // 2 * 32 + 32]
        part = part >> 4 if run % 2 else part & 15
        factor = scale * s[:, None].astype(np.float32)
        offset = least * m[:, None].astype(np.float32)
        found[:, run * 32 : run * 32 + 32] = factor * part.astype(np.float32) - offset
    return found


def _q6_k(blocks):
    found = np.empty((len(blocks), 256), np.float32)
    low, high = blocks[:, :128].astype(int), blocks[:, 128:192].astype(int)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    scale = _half(blocks[:, 208:])
    for at in range(256):
        half, run, column = at // 128, at % 128 // 32, at % 32
        byte = low[:, half * 64 + run % 2 * 32 + column]
        four = byte >> 4 if run > 1 else byte & 15
        two = high[:, half * 32 + column] >> 2 * run & 3
        q = (four | two << 4) - 32
        factor = scale[:, 0] * scales[:, at // 16]
        found[:, at] = factor * q.astype(np.float32)
    return found


_DEQUANTIZED = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_K": _q4_k, "Q6_K": _q6_k}


# --- Folders of Hugging Face ----------------------------------------------------------------------


def words(values, bits, axis):
    """Packs integers from 0 into int32 along an axis, the first into the lowest bits."""
    values = np.moveaxis(np.asarray(values, np.uint32), axis, -1)
    count = 32 // bits
    values = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % count)])
    values = values.reshape(*values.shape[:-1], -1, count)
    shifts = np.arange(count, dtype=np.uint32) * bits
    packed = np.bitwise_or.reduce(values << shifts, axis=-1).view(np.int32)
    return np.moveaxis(packed, -1, axis)


def rounded(rng, units, in_units, group, bits=4, dtype="float16"):
    """Returns random integers (units, in_units), scales and zeros (units, groups)."""
    groups = in_units // (group or in_units)
    q = rng.integers(0, 1 << bits, (units, in_units))
    scales = (rng.uniform(0.2, 1, (units, groups)) * 0.4 / (1 << bits)).astype(dtype)
    return q, scales, rng.integers(0, 1 << bits, (units, groups))


def gptq(name, q, scales, zeros, bits=4, g_idx=None, first=True):
    """Returns the arrays of a weight in the layout of AutoGPTQ, and its values."""
    units, in_units = q.shape
    if g_idx is None:
        g_idx = np.arange(in_units) // (in_units // scales.shape[1])
    stored = (zeros - first) & ((1 << bits) - 1)
    values = (q - zeros[:, g_idx]).astype(np.float32) * scales[:, g_idx].astype(np.float32)
    return {
        f"{name}.qweight": words(q, bits, 1).T,
        f"{name}.qzeros": words(stored, bits, 0).T,
        f"{name}.scales": scales.T,
        f"{name}.g_idx": g_idx.astype(np.int32),
    }, values


def awq(name, q, scales, zeros):
    """Returns the arrays of a weight in the layout of AutoAWQ, and its values."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def interleaved(values):  # (rows, units) -> (rows, units / 8)
        found = values.reshape(len(values), -1, 8)[:, :, order]
        return words(found.reshape(values.shape), 4, 1)

    size = q.shape[1] // scales.shape[1]
    each = np.arange(q.shape[1]) // size
    values = (q - zeros[:, each]).astype(np.float32) * scales[:, each].astype(np.float32)
    return {
        f"{name}.qweight": interleaved(q.T),
        f"{name}.qzeros": interleaved(zeros.T),
        f"{name}.scales": scales.T,
    }, values


def compressed(name, q, scales, zeros=None, bits=4, g_idx=None):
    """Returns the arrays of a weight in the layout of compressed-tensors, and its values."""
    units, in_units = q.shape
    each = np.arange(in_units) // (in_units // scales.shape[1]) if g_idx is None else g_idx
    arrays = {
        f"{name}.weight_packed": words(q, bits, 1),
        f"{name}.weight_scale": scales,
        f"{name}.weight_shape": np.array([units, in_units], np.int64),
    }
    shift = np.full(scales.shape, 1 << (bits - 1)) if zeros is None else zeros
    if zeros is not None:
        arrays[f"{name}.weight_zero_point"] = words(zeros, bits, 0)
    if g_idx is not None:
        arrays[f"{name}.weight_g_idx"] = g_idx.astype(np.int32)
    values = (q - shift[:, each]).astype(np.float32) * scales[:, each].astype(np.float32)
    return arrays, values


NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)


def nf4(name, rng, units, in_units, size=64, nested=False):
    """Returns the arrays of a weight in the layout of bitsandbytes, and its values."""
    q = rng.integers(0, 16, units * in_units).astype(np.uint8)
    blocks = units * in_units // size
    state = {"quant_type": "nf4", "blocksize": size, "dtype": "float16", "shape": [units, in_units]}
    arrays = {
        f"{name}.weight": (q[0::2] << 4 | q[1::2])[:, None],
        f"{name}.weight.quant_map": NF4,
    }
    if nested:
        codes = rng.integers(0, 256, blocks).astype(np.uint8)
        table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        outer = rng.uniform(0.01, 0.05, -(-blocks // 256)).astype(np.float32)
        offset = 0.1
        scales = table[codes] * np.repeat(outer, 256)[:blocks] + np.float32(offset)
        arrays[f"{name}.weight.absmax"] = codes
        arrays[f"{name}.weight.nested_absmax"] = outer
        arrays[f"{name}.weight.nested_quant_map"] = table
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=offset)
    else:
        scales = rng.uniform(0.05, 0.2, blocks).astype(np.float32)
        arrays[f"{name}.weight.absmax"] = scales
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    arrays[f"{name}.weight.quant_state.bitsandbytes__nf4"] = text
    return arrays, (NF4[q] * np.repeat(scales, size)).reshape(units, in_units)


def write_folder(folder, config, arrays):
    """Writes ``config.json`` and a safetensors file of NumPy arrays."""
    (folder / "config.json").write_text(json.dumps(config))
    found = {name: nd.array(value, dtype=value.dtype) for name, value in arrays.items()}
    nd.save(str(folder / "model.safetensors"), found)
