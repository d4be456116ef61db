"""Feature programs: each has one value of every factor of `features/table.py` and is compared
with eager execution on one device.

    python tests/programs/feature_programs.py --strength 2 [--seed 7] [--seconds 600]

`--strength 2` covers every pair of values, `--strength 3` every triple. A failure is printed with
the fewest values that still fail and the command that reproduces it. The exit status is 1 if there
was a failure.

A program trains a network of four stages for three steps. The event occurs between the first two.
Bits must be equal where the contract promises it: placement, schedule, engine, recomputation,
static memory and events do not change them. Rewrites of `hybridize()` without `exact=True`,
replicas, split layers and dropout in micro-batches agree within a tolerance in the first step.
"""

import argparse
import json
import os
import sys
import time
import warnings

import numpy as np

import mpgluon as mx

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

from programs.features.compare import close, equal
from programs.features.covering import cover
from programs.features.run import Run
from programs.features.table import (
    CHANGING_BITS,
    DEFAULTS,
    DRAWING,
    FACTORS,
    OF_NORMS,
    PARTITIONS,
    PIPELINED,
    REPLICAS,
    SMOOTH,
    SPLIT,
    excluded,
)
from programs.random_blocks import fresh_seed


def by_bits(row):
    """True if the contract promises the bits of one device."""
    if row["placement"] in (*REPLICAS, *SPLIT, *CHANGING_BITS):
        return False
    if row["placement"] in PARTITIONS and (
        row["optimizer"] in OF_NORMS or row["clipping"] not in ("none", "elements")
    ):
        return False  # norms of a weight in parts are sums of the parts' norms
    if row["gradient"] == "second order" and row["placement"] != "one device":
        return False  # gradients on another device are summed there first
    several = row["accumulate"] == "2" or row["calls"] == "2"
    if row["layer"] == "row_sparse" and several and row["way"] in PIPELINED:
        return False  # rows of micro-batches are summed in another order
    return not (row["layer"] in DRAWING and row["way"] in PIPELINED)


def check(row):
    """Raises AssertionError if the program of a row does not match eager execution on one
    device."""
    compiled = row["exact"] == "default" and row["way"] not in ("eager", "inactive")
    wanted = Run(row, True, False).run()
    found = Run(row, False, False).run()
    first = [name for name in wanted if name.endswith(" 0") and not name.startswith("weights")]
    if by_bits(row) and compiled:
        equal(found, Run(row, True, True).run(), "unlike one device, hybridized")
    elif by_bits(row):
        equal(found, wanted, "unlike eager execution on one device")
    # Lookups by sign and rounding turn rounding differences into different rows and integers.
    smooth = row["optimizer"] in SMOOTH and row["layer"] not in ("Embedding", "row_sparse")
    smooth &= row["custom"] != "straight through" and row["event"] != "quantize"
    divided = row["placement"] in REPLICAS or (row["layer"] in DRAWING and row["way"] in PIPELINED)
    if divided and row["precision"] == "amp float16":
        smooth, first = False, ["losses 0"]  # only sums over the whole batch may overflow
    others = None
    for name in wanted if smooth else first:
        if not found.get(name):
            continue
        if not all(np.isfinite(array).all() for array in wanted[name]):
            break  # rounding decides which of the following numbers are infinite or NaN
        try:
            close(found[name], wanted[name], row, f"unlike eager execution: {name}")
        except AssertionError:
            others = others or rounded_otherwise(row)
            close(
                found[name],
                wanted[name],
                row,
                f"unlike eager execution: {name}",
                [other[name] for other in others],
            )


def rounded_otherwise(row):
    """Returns results of a row's program in float64, and for inputs that differ by rounding errors.
    BatchNorm of two rows, for example, divides a difference of almost equal gradients by a small
    deviation."""
    runs = [Run(row, True, False, disturbed) for disturbed in range(4)]
    if row["optimizer"] != "sgld":  # draws different numbers in float64
        runs.append(Run({**row, "precision": "float64"}, True, False))
    return [run.run() for run in runs]


def shorter(row, fails):
    """Returns the failing row with as many default values as possible."""
    changed = True
    while changed:
        changed = False
        for factor in row:
            if row[factor] == DEFAULTS[factor]:
                continue
            tried = {**row, factor: DEFAULTS[factor]}
            if not possible(tried):
                continue
            if fails(tried):
                row, changed = tried, True
    return row


def possible(row):
    values = list(row.items())
    return not any(excluded(a, b) for a in values for b in values if a != b)


def told(row):
    return ", ".join(f"{k}={v}" for k, v in row.items() if v != DEFAULTS[k]) or "all defaults"


def failure(row):
    """Returns the error of a row's program, or None."""
    try:
        check(row)
    except Exception as error:
        return error
    return None


def same_failure(row, error):
    """True if a row's program fails with the same type of error."""
    found = failure(row)
    return found is not None and type(found) is type(error)


def finding(row, error):
    """Returns the report of a failure: the fewest values that still fail and the command to
    reproduce it."""
    small = shorter(row, lambda tried: same_failure(tried, error))
    chosen = {k: v for k, v in small.items() if v != DEFAULTS[k]}
    command = f"python tests/programs/feature_programs.py --row {json.dumps(json.dumps(chosen))}"
    return f"{type(error).__name__}: {error}\n  fewest values: {told(small)}\n  {command}"


def hunt(seconds, seed, strength=3):
    """Checks programs in random order for a time; returns the number of failures."""
    rows, tuples, _ = cover(FACTORS, excluded, strength, seed)
    findings, done, end = 0, 0, time.monotonic() + seconds
    for row in rows:
        if time.monotonic() > end:
            break
        error, done = failure(row), done + 1
        if error is not None:
            findings += 1
            print(finding(row, error), flush=True)
    kind = {2: "pairs", 3: "triples"}[strength]
    print(
        f"{done} of {len(rows)} programs for {tuples} {kind} from seed {seed}: {findings} findings",
        flush=True,
    )
    return findings


def main():
    parser = argparse.ArgumentParser(description="Feature programs.")
    parser.add_argument("--strength", type=int, choices=(2, 3), default=2)
    parser.add_argument("--seed", type=int, help="a fresh one by default")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--row", type=json.loads, help="one program: a JSON object of values")
    options = parser.parse_args()
    if options.row is not None:
        check({**DEFAULTS, **options.row})
        return 0
    seed = fresh_seed() if options.seed is None else options.seed
    return bool(hunt(options.seconds, seed, options.strength))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    mx.context.set_threads(1)
    sys.exit(main())
