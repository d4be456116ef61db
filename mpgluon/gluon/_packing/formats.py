"""Rounding of weights to the packed formats of ``quantized_dot``, in NumPy.

Each function takes a float32 matrix and returns (packed, scales or None, zeros or None). The
results of q8_0 and q4_0 have the bytes that ggml writes. q4_k and q6_k derive scales from the
extremes of a run; ggml also searches for scales with a smaller error. Sources: the quantized types
of ggml; Dettmers et al., "QLoRA", 2023.
"""

from __future__ import annotations

import numpy as np

from ..nn.quantized_layers import FORMATS, NF4 as NF4_VALUES

NF4 = np.array(NF4_VALUES, np.float32)
BLOCKS = {name: elements for name, (elements, _) in FORMATS.items()}


def _inverse(x):
    """Returns 1 / x, or 0 for zeros and for numbers whose inverse would be infinite."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / x
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _nearest(x, low, high):
    return np.clip(np.rint(x), low, high)


def _extreme(groups):
    """Returns the number with the largest magnitude of each group, with its sign."""
    at = np.abs(groups).argmax(-1)[..., None]
    return np.take_along_axis(groups, at, -1)


def _nibbles(q):
    """Packs integers 0 to 15 into bytes, the first of each pair into the low bits."""
    return q[..., 0::2] | q[..., 1::2] << 4


def int8(weight, group, zeros):
    groups = weight.reshape(len(weight), -1, group)
    scales = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    q = _nearest(groups * _inverse(scales), -127, 127).astype(np.int8)
    return q.reshape(weight.shape), scales[..., 0], None


def int4(weight, group, zeros):
    groups = weight.reshape(len(weight), -1, group)
    if zeros:
        low = np.minimum(groups.min(-1, keepdims=True), 0)
        scales = (np.maximum(groups.max(-1, keepdims=True), 0) - low) / np.float32(15)
        zero = _nearest(-low * _inverse(scales), 0, 15)
    else:
        scales = _extreme(groups) / np.float32(-8)
        zero = np.float32(8)
    q = _nearest(groups * _inverse(scales) + zero, 0, 15).astype(np.uint8)
    packed = _nibbles(q.reshape(weight.shape))
    return packed, scales[..., 0], zero[..., 0] if zeros else None


def nf4(weight, group, zeros):
    groups = weight.reshape(len(weight), -1, group)
    scales = np.abs(groups).max(-1, keepdims=True)
    between = (NF4[1:] + NF4[:-1]) / 2
    q = np.searchsorted(between, groups * _inverse(scales)).astype(np.uint8)
    return _nibbles(q.reshape(weight.shape)), scales[..., 0], None


def _blocks(weight, *parts):
    """Joins the bytes of the parts of each block."""
    parts = [np.ascontiguousarray(part).view(np.uint8) for part in parts]
    blocks = np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=-1)
    return blocks.reshape(len(weight), -1), None, None


def q8_0(weight, group, zeros):
    blocks = weight.reshape(len(weight), -1, 32)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    x = blocks * _inverse(scales)
    away = np.trunc(x)  # halves round away from zero, as in C
    q = (away + np.trunc(2 * (x - away))).astype(np.int8)
    return _blocks(weight, scales.astype("<f2"), q)


def q4_0(weight, group, zeros):
    blocks = weight.reshape(len(weight), -1, 32)
    scales = _extreme(blocks) / np.float32(-8)
    q = np.trunc(blocks * _inverse(scales) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    return _blocks(weight, scales.astype("<f2"), q[..., :16] | q[..., 16:] << 4)


def q4_k(weight, group, zeros):
    runs = weight.reshape(len(weight), -1, 8, 32)
    low = -np.minimum(runs.min(-1), 0)
    scales = (np.maximum(runs.max(-1), 0) + low) / np.float32(15)
    scale = (scales.max(-1, keepdims=True) / np.float32(63)).astype("<f2")
    least = (low.max(-1, keepdims=True) / np.float32(63)).astype("<f2")
    small = _nearest(scales * _inverse(scale.astype(np.float32)), 0, 63)
    minimum = _nearest(low * _inverse(least.astype(np.float32)), 0, 63)
    offset = (least.astype(np.float32) * minimum)[..., None]
    factor = (scale.astype(np.float32) * small)[..., None]
    q = _nearest((runs + offset) * _inverse(factor), 0, 15).astype(np.uint8)
    s, m = small.astype(np.uint8), minimum.astype(np.uint8)
    first = s[..., :4] | s[..., 4:] >> 4 << 6
    second = m[..., :4] | m[..., 4:] >> 4 << 6
    third = s[..., 4:] & 15 | (m[..., 4:] & 15) << 4
    packed = q[..., 0::2, :] | q[..., 1::2, :] << 4
    return _blocks(weight, scale, least, first, second, third, packed)


def q6_k(weight, group, zeros):
    runs = weight.reshape(len(weight), -1, 16, 16)
    scales = _extreme(runs)[..., 0] / np.float32(-32)
    scale = (_extreme(scales) / np.float32(-128)).astype("<f2")
    small = _nearest(scales * _inverse(scale.astype(np.float32)), -128, 127)
    factor = (scale.astype(np.float32) * small)[..., None]
    q = (_nearest(runs * _inverse(factor), -32, 31) + 32).astype(np.uint8)
    # Axes: halves of 128 elements, four runs of 32 elements.
    q = q.reshape(*q.shape[:2], 2, 4, 32)
    low = np.concatenate(
        [q[..., run, :] & 15 | (q[..., run + 2, :] & 15) << 4 for run in (0, 1)], -1
    )
    high = sum(q[..., run, :] >> 4 << 2 * run for run in range(4))
    return _blocks(weight, low, high, small.astype(np.int8), scale)


QUANTIZERS = {f.__name__: f for f in (int8, int4, nf4, q8_0, q4_0, q4_k, q6_k)}
