"""Samples of products with packed weights, and their formats in NumPy."""

import numpy as np

from mpgluon.gluon._packing.formats import NF4
from samples.base import Sample

BLOCKS = {"q8_0": (32, 34), "q4_0": (32, 18), "q4_k": (256, 144), "q6_k": (256, 210)}


def random_weight(format, units, in_units, group=0, zeros=False, seed=0):
    """Returns random packed arrays. Blocks of GGUF get finite scales."""
    random = np.random.RandomState(seed)
    if format in BLOCKS:
        elements, size = BLOCKS[format]
        packed = random.randint(0, 256, (units, in_units // elements, size)).astype(np.uint8)
        for at in {"q8_0": [0], "q4_0": [0], "q4_k": [0, 2], "q6_k": [208]}[format]:
            scales = random.uniform(0.01, 0.1, packed.shape[:2]).astype("<f2")
            packed[:, :, at : at + 2] = scales[..., None].view(np.uint8)
        return {"packed": packed.reshape(units, -1)}
    found = {}
    if format == "int8":
        found["packed"] = random.randint(-128, 128, (units, in_units)).astype(np.int8)
    else:
        found["packed"] = random.randint(0, 256, (units, in_units // 2)).astype(np.uint8)
    groups = (units, in_units // (group or in_units))
    found["scales"] = random.uniform(0.01, 0.1, groups).astype(np.float32)
    if zeros:
        found["zeros"] = random.randint(0, 16, groups).astype(np.float32)
    return found


def half(bytes_):
    return np.ascontiguousarray(bytes_).view("<f2").astype(np.float32)


def dequantized(format, packed, scales=None, zeros=None, group=0, **_):
    """Reference in NumPy, from the definitions of the formats."""
    rows = len(packed)
    if format == "int8":
        q = packed.astype(np.float32)
    elif format in ("int4", "nf4"):
        q = np.stack([packed & 15, packed >> 4], -1).reshape(rows, -1)
        q = NF4[q] if format == "nf4" else q.astype(np.float32)
    else:
        blocks = packed.reshape(rows, -1, BLOCKS[format][1])
        return {"q8_0": from_q8_0, "q4_0": from_q4_0, "q4_k": from_q4_k, "q6_k": from_q6_k}[format](
            blocks
        ).reshape(rows, -1)
    repeat = q.shape[1] // scales.shape[1]
    scales = np.repeat(scales.astype(np.float32), repeat, 1)
    if format == "int4":
        q = q - (np.float32(8) if zeros is None else np.repeat(zeros.astype(np.float32), repeat, 1))
    return q * scales


def from_q8_0(blocks):
    return half(blocks[..., :2]) * blocks[..., 2:].view(np.int8).astype(np.float32)


def from_q4_0(blocks):
    q = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).astype(np.float32)
    return half(blocks[..., :2]) * (q - 8)


def from_q4_k(blocks):
    bits = blocks[..., 4:16].astype(int)
    small = np.concatenate([bits[..., :4] & 63, bits[..., 8:] & 15 | bits[..., :4] >> 6 << 4], -1)
    least = np.concatenate([bits[..., 4:8] & 63, bits[..., 8:] >> 4 | bits[..., 4:8] >> 6 << 4], -1)
    q = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 1, 32)
    q = np.concatenate([q & 15, q >> 4], -2).reshape(*blocks.shape[:2], 8, 32)
    factor = (half(blocks[..., :2]) * small.astype(np.float32))[..., None]
    offset = (half(blocks[..., 2:4]) * least.astype(np.float32))[..., None]
    return factor * q.astype(np.float32) - offset


def from_q6_k(blocks):
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], -2).reshape(*blocks.shape[:2], 2, 4, 32)
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32)
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], -2)
    q = (low | high << 4).astype(np.float32).reshape(*blocks.shape[:2], 16, 16) - 32
    scales = blocks[..., 192:208].view(np.int8).astype(np.float32)
    return (half(blocks[..., 208:]) * scales)[..., None] * q


def quantized_dot(x, packed, *rest, format="int8", group=0, use_bias=False, **_):
    rest = list(rest)
    bias = rest.pop() if use_bias else 0
    return x @ dequantized(format, packed, *rest).astype(x.dtype).T + bias


def dequantize_weight(packed, *rest, format="int8", **_):
    return dequantized(format, packed, *rest)


def samples(op):
    """One sample per format."""
    for format, in_units, group, zeros, bias in [
        ("int8", 8, 0, False, True),
        ("int8", 12, 4, False, False),
        ("int4", 16, 8, False, True),
        ("int4", 16, 4, True, True),
        ("nf4", 12, 6, False, False),
        ("q8_0", 64, 0, False, True),
        ("q4_0", 64, 0, False, False),
        ("q4_k", 256, 0, False, False),
        ("q6_k", 256, 0, False, True),
    ]:
        arrays = list(random_weight(format, 5, in_units, group, zeros).values())
        params = {"units": 5, "in_units": in_units, "format": format, "group": group}
        params |= {"use_scales": len(arrays) > 1, "use_zeros": zeros}
        name = format + ("-zeros" if zeros else "") + (f"-{group}" if group else "")
        if op is dequantize_weight:
            yield Sample(arrays, params, op, grad=False, dtypes=("float32",), name=name)
            continue
        shape = (2, 1, in_units) if in_units < 64 else (2, in_units)
        yield Sample(
            [shape, *arrays] + [(5,)] * bias,
            params | {"use_bias": bias},
            op,
            dtypes=("float32", "float64", "float16", "bfloat16"),
            rtol=1e-5,
            atol=1e-5,
            name=name,
        )
    if op is quantized_dot:
        arrays = list(random_weight("int4", 5, 64, 16, True).values())
        params = {"units": 5, "in_units": 64, "format": "int4", "group": 16}
        params |= {"use_scales": True, "use_zeros": True}
        for rows in (0, 20):
            yield Sample(
                [(rows, 64), *arrays], params, op, rtol=1e-5, atol=1e-5, name=f"{rows}-rows"
            )


SAMPLES = {
    "_contrib_quantized_dot": list(samples(quantized_dot)),
    "_contrib_dequantize_weight": list(samples(dequantize_weight)),
}
