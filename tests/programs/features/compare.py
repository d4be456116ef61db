"""Comparison of the results of feature programs, by bits or within a tolerance."""

import numpy as np

import mpgluon as mx
from mpgluon import nd

# A few rounding errors of each type, relative to the largest value
TOLERANCE = {
    "float32": 5e-6,
    "float64": 1e-14,
    "float16": 1e-2,
    "multi_precision": 1e-2,
    "bfloat16": 4e-2,
    "amp float16": 1e-2,
    "amp bfloat16": 4e-2,
}
FLOAT32_NORMS = 4e-7  # clipping and LARS compute norms in float32, and parts add them up
# Gradients of a saturated softmax are rounding errors, and fused attention has larger ones.
SATURATED = 100
ILL_CONDITIONED = 6  # factor on the effect of other rounding errors on the wanted values


def values(arrays):
    """Returns the values of arrays as float64, on all ranks."""
    return [a.asnumpy() for a in mx.parallel.fetch([a.astype("float64") for a in arrays])]


def close(found, wanted, row, what, others=()):
    """Raises AssertionError if found and wanted differ by more than a few rounding errors. `others`
    lists wanted with other rounding errors, which widen the limit if the program amplifies them."""
    norms = row["clipping"] != "none" or row["optimizer"] == "lars"
    switched = "amp bfloat16" if row["event"] == "amp" else row["precision"]
    tolerance = max(TOLERANCE[row["precision"]], TOLERANCE[switched], FLOAT32_NORMS * norms)
    if row["layer"] in ("attention", "decoder") and row["exact"] == "default":
        tolerance *= SATURATED
    found = found if isinstance(found, (list, tuple)) else [found]
    assert len(found) == len(wanted), f"{what}: {len(found)} arrays instead of {len(wanted)}"
    # A small array may come from sums of terms that are as large as the other arrays.
    least = 0.05 * max([np.nanmax(np.abs(b), initial=0) for b in wanted], default=0)
    for i, (a, b) in enumerate(zip(found, wanted)):
        a = values([a])[0] if isinstance(a, nd.NDArray) else a
        limit = tolerance * max(np.nanmax(np.abs(b), initial=0), least)
        amplified = [np.nanmax(np.abs(b - other[i]), initial=0) for other in others]
        limit += ILL_CONDITIONED * max(amplified, default=0)
        assert a.shape == b.shape, f"{what}: array {i} has shape {a.shape} instead of {b.shape}"
        assert np.array_equal(np.isnan(a), np.isnan(b)), f"{what}: array {i} has NaN elsewhere"
        assert np.nanmax(np.abs(a - b), initial=0) <= limit, (
            f"{what}: array {i} differs by {np.abs(a - b).max()}, more than {limit}"
        )


def equal(found, wanted, what):
    for name in wanted:
        if name not in found:  # `TrainStep` runs do not record gradients
            continue
        assert len(found[name]) == len(wanted[name]), f"{what}: {name}"
        for i, (a, b) in enumerate(zip(found[name], wanted[name])):
            assert a.shape == b.shape, f"{what}: {name}, array {i}: {a.shape} instead of {b.shape}"
            assert np.array_equal(a, b, equal_nan=True), (
                f"{what}: {name}, array {i} of {len(wanted[name])} differs by {np.abs(a - b).max()}"
            )


def flat(value):
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in flat(value[key])]
    if isinstance(value, (list, tuple)):
        return [x for part in value for x in flat(part)]
    return [] if value is None else [value]
