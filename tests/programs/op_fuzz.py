"""Fuzzer that calls every op, including hidden ones, with hostile parameters, shapes and values. It
is a separate program because the defects that it searches for end the process:

    python tests/programs/op_fuzz.py [--seed N] [--first N] [--last N] [--seconds S | --calls N]
    [--ops NAME ...] [--without PARAMETER ...] [--log FILE] [--shrink]     # 60 seconds by default

All ops are called about equally often. Half of the calls are valid calls, of `tests/samples` or of
the graphs of their gradients, with changed parameters, sizes and values; the others are random.
Each call is logged before it runs, so the last line of the log is the call that ended the process.
A call that takes longer than a minute also ends it. The expected result of a hostile call is an
error; exceptions of other types (SystemError, ...) end the process. The same seed makes the same
calls.

With `--shrink` the calls run in a subprocess. If it ends with an error, a minimized set of calls
and parameters is printed with the command that reproduces it.
"""

import argparse
import contextlib
import faulthandler
import itertools
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

import mpgluon as mx
from mpgluon import _core, autograd

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

from samples.base import all_samples
from samples.traced_calls import traced_calls

HUGE = [1 << 31, 1 << 32, (1 << 53), 1 << 62, (1 << 63) - 1, -(1 << 63), -(1 << 31)]
INTEGERS = [0, 1, -1, 2, 3, *HUGE]
FLOATS = [
    0.0,
    1.0,
    -1.0,
    0.5,
    1e300,
    -1e300,
    1e-320,
    math.nan,
    math.inf,
    -math.inf,
    *map(float, HUGE),
]
DTYPES = ["float32", "float64", "float16", "bfloat16", "uint8", "int8", "int32", "int64", "bool"]
SIZES = [1, 1, 2, 2, 3, 4, 5, 8]
LARGEST = 1 << 16  # elements per array
DEVICES = [mx.cpu(0), mx.cpu(1)]
REFUSALS = (mx.MXNetError, ValueError, TypeError, OverflowError, MemoryError)


def plain(rng, param):
    """Returns a value that is likely to be valid."""
    kind, words = param["kind"], param["constraint"]
    if kind.startswith("tuple of integers"):
        return tuple(rng.choice([0, 1, 1, 2, 2, 3]) for _ in range(rng.choice([1, 2, 2, 3, 4])))
    if kind.startswith("tuple"):
        return tuple(rng.choice([0.5, 1.0, 2.0]) for _ in range(rng.choice([1, 2, 4])))
    if kind.startswith("integer"):
        return rng.choice([0, 1, 1, 2, 2, 3, 4])
    if kind.startswith("number"):
        return rng.choice([0.0, 0.25, 0.5, 1.0, 2.0])
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "one of":
        return rng.choice(words.split("|"))
    if kind.startswith("dtype"):
        return rng.choice(DTYPES)
    if kind == "Context":
        return rng.choice(DEVICES)
    return rng.choice(["", "x", "(1, 2)"])


def hostile(rng, param):
    kind = param["kind"]
    if rng.random() < 0.05:
        return rng.choice(
            [None, "", "()", "nan", "(1,", [], {}, object(), 1 << 70, -(1 << 70), b"1", 1j]
        )
    if kind.startswith("tuple of integers"):
        return tuple(
            rng.choice(INTEGERS if rng.random() < 0.9 else [None])
            for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 6, 10, 16, 40]))
        )
    if kind.startswith("tuple"):
        return tuple(rng.choice(FLOATS) for _ in range(rng.choice([0, 1, 2, 4, 16, 100])))
    if kind.startswith("integer"):
        return rng.choice(INTEGERS)
    if kind.startswith("number"):
        return rng.choice(FLOATS)
    return plain(rng, param)


def choose_params(rng, op):
    params = {}
    wild = rng.random() < 0.8
    for param in op["params"]:
        if param["name"] in ("num_args", "num_weights", "num_arrays"):
            if rng.random() < 0.1:
                params[param["name"]] = rng.choice(INTEGERS)
            continue
        chance = rng.random()
        if wild and chance < 0.3:
            params[param["name"]] = hostile(rng, param)
        elif param["required"] or chance < 0.5:
            params[param["name"]] = plain(rng, param)
    return params


def choose_shape(rng):
    return tuple(rng.choice(SIZES) for _ in range(rng.choice([0, 1, 2, 2, 3, 3, 4, 4, 5, 6])))


def size(shape):
    return math.prod(shape)


def choose_inputs(rng, op, params):
    """Returns [(shape, dtype)] of the inputs, completed by inference if possible. None means that
    the op is not called."""
    count = 0
    for one in op["inputs"]:
        count += (
            rng.choice([1, 2, 3, 4, 8])
            if one["variadic"]
            else 0
            if one["optional"] and rng.random() < 0.4
            else 1
        )
    allowed = op["dtypes"] or DTYPES
    for attempt in range(6):
        dtype = rng.choice(allowed if rng.random() < 0.9 else DTYPES)
        known = 1 if attempt < 3 else rng.randint(1, max(count, 1))
        first = choose_shape(rng)
        inputs = [
            (
                (first if rng.random() < 0.7 else choose_shape(rng)) if i < known else None,
                dtype if i == 0 or rng.random() < 0.3 else None,
            )
            for i in range(count)
        ]
        try:
            inputs, outputs = _core.infer_shape(
                op["name"], [(shape and tuple(shape), one) for shape, one in inputs], params
            )
        except REFUSALS:
            continue
        break
    else:
        # Inference rejects all of them, so the call must raise as well.
        return (
            [(choose_shape(rng), rng.choice(DTYPES)) for _ in range(count)]
            if rng.random() < 0.5
            else None
        )
    inputs = [
        (
            choose_shape(rng) if shape is None else tuple(n or rng.choice(SIZES) for n in shape),
            dtype or rng.choice(DTYPES),
        )
        for shape, dtype in inputs
    ]
    if any(shape is not None and size(shape) > LARGEST * 4 for shape, _ in outputs) or any(
        size(shape) > LARGEST for shape, _ in inputs
    ):
        return None
    if rng.random() < 0.25:  # no elements
        gone = rng.choice([n for shape, _ in inputs for n in shape] or [1])
        inputs = [(tuple(0 if n == gone else n for n in shape), dtype) for shape, dtype in inputs]
    elif rng.random() < 0.2:  # shapes that inference does not expect
        inputs = [
            (choose_shape(rng) if rng.random() < 0.5 else shape, dtype) for shape, dtype in inputs
        ]
    return inputs


def valid_calls():
    """Returns the parameters and inputs [(shape, dtype)] of valid calls of each op, hidden ops
    included."""
    found = {}
    for name, samples in all_samples().items():
        found[name] = [
            (
                sample.params or {},
                [
                    (one.shape, one.dtype.name) if isinstance(one, np.ndarray) else (one, dtype)
                    for one in sample.inputs
                ],
            )
            for sample in samples
            for dtype in sample.dtypes
        ]
    sampled = set(found)
    for call in traced_calls():
        if call.op not in sampled:
            found.setdefault(call.op, []).append((dict(call.params), list(call.inputs)))
    return found


def choose_near(rng, op, calls):
    """Returns parameters and inputs [(shape, dtype)] that differ a little from a valid call. Ops
    with many inputs or related parameters reject almost all random calls."""
    given, inputs = rng.choice(calls)
    params, known = dict(given), {param["name"]: param for param in op["params"]}
    for name in rng.sample(sorted(known), min(len(known), rng.choice([0, 0, 1, 1, 2]))):
        change = hostile if rng.random() < 0.5 else plain
        params[name] = change(rng, known[name])
    inputs = list(inputs)
    sizes = sorted({n for shape, _ in inputs for n in shape})
    if sizes and rng.random() < 0.4:  # the same size changes in all inputs
        old, new = rng.choice(sizes), rng.choice([0, *SIZES])
        inputs = [(tuple(new if n == old else n for n in shape), own) for shape, own in inputs]
    if inputs and rng.random() < 0.15:
        i = rng.randrange(len(inputs))
        inputs[i] = (choose_shape(rng), inputs[i][1])
    if inputs and rng.random() < 0.1:
        i = rng.randrange(len(inputs))
        inputs[i] = (inputs[i][0], rng.choice(DTYPES))
    if any(size(shape) > LARGEST for shape, _ in inputs):
        return params, None
    return params, inputs


def make_array(rng, numbers, shape, dtype, ctx):
    kind = rng.randrange(5)
    if kind == 0:
        values = numbers.standard_normal(shape)
    elif kind == 1:
        values = numbers.integers(-2, 6, shape)
    elif kind == 2:
        values = np.zeros(shape)
    else:
        values = numbers.choice(
            [
                0,
                1,
                -1,
                2,
                1e30,
                -1e30,
                2.0**31,
                -(2.0**31),
                2.0**63,
                -(2.0**63),
                math.nan,
                math.inf,
                -math.inf,
            ],
            shape,
        )
    with np.errstate(all="ignore"):
        return mx.nd.array(
            np.asarray(values, "float32").astype("float32" if dtype == "bfloat16" else dtype),
            ctx=ctx,
            dtype=dtype,
        )


def call(rng, numbers, op, params, inputs):
    ctx = rng.choice(DEVICES)
    arrays = [make_array(rng, numbers, *one, ctx) for one in inputs]
    if "float32" in [array.dtype.__name__ for array in arrays] and rng.random() < 0.05 and arrays:
        arrays[rng.randrange(len(arrays))] = rng.choice(arrays)  # the same array twice
    ways = rng.random()
    if ways < 0.4:
        for array in arrays:
            if (
                rng.random() < 0.8
                and np.dtype(array.dtype if array.dtype is not mx.bfloat16 else "float32").kind
                == "f"
            ):
                array.attach_grad(rng.choice(["write", "add"]))
        with autograd.record(rng.random() < 0.8):
            results = _core.get_op(op["name"])(*arrays, **params)
        results = results if isinstance(results, list) else [results]
        autograd.backward([result for result in results if result.dtype is not np.bool_])
    elif ways < 0.5:
        compiled = _core.CachedOp(lambda *traced: _core.get_op(op["name"])(*traced, **params))
        results = compiled(*arrays)
        results = results if isinstance(results, list) else [results]
    else:
        results = _core.get_op(op["name"])(*arrays, **params)
        results = results if isinstance(results, list) else [results]
    for result in results:
        result.wait_to_read()


def process(*arguments):
    """Runs calls in a subprocess; returns its exit status, the last call and its messages."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        done = subprocess.run(
            [sys.executable, os.path.abspath(__file__), *map(str, arguments), "--log", log],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": path},
        )
        last = ""
        if os.path.exists(log):
            with open(log, errors="replace") as f:
                last = f.read().strip()
    return done.returncode, last, done.stderr


def shrink(args):
    """Runs the calls of the options in a subprocess. If it fails, prints a minimized set of calls
    and parameters that still fail. Returns the exit status."""
    chosen = ["--seed", args.seed, *(["--ops", *args.ops] if args.ops else [])]
    limit = ["--seconds", args.seconds] if args.seconds else ["--calls", args.calls]
    status, last, messages = process(*chosen, "--first", args.first, *limit)
    if status == 0:
        return 0
    found = re.search(r" number (\d+) params", last)
    if found is None:
        print(f"finding: exit status {status} before the first call\n{messages}", flush=True)
        return 1
    number = int(found[1])

    def attempt(first, without):
        options = [*chosen, "--first", first, "--last", number]
        return options + (["--without", *without] if without else [])

    # One call suffices unless it reads memory that an earlier call corrupted.
    first, back = number, 1
    while first > args.first and process(*attempt(first, []))[0] == 0:
        first, back = max(args.first, number - back), 4 * back
    without = []
    for name in re.findall(r"'(\w+)':", last.partition(" params ")[2].partition(" inputs ")[0]):
        if first == number and process(*attempt(first, [*without, name]))[0] != 0:
            without.append(name)
    repeated = process(*attempt(first, without))
    if repeated[0] != 0:
        status, last, messages = repeated
    print(
        f"finding: exit status {status} in the last of {number - first + 1} calls\n{last}\n"
        f"{messages[-2000:]}\n"
        f"python tests/programs/op_fuzz.py {' '.join(map(str, attempt(first, without)))}",
        flush=True,
    )
    return 1


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--last", type=int, help="the number of the last call")
    parser.add_argument("--without", nargs="*", default=[], help="parameters to leave out")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--log")
    args = parser.parse_args(arguments)
    if not args.seconds and not args.calls and args.last is None:
        args.seconds = 60
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 32)
        print(f"--seed {args.seed}", flush=True)
    if args.shrink:
        return shrink(args)
    log = os.open(args.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if args.log else None
    names = [name for name in _core.list_ops() if not args.ops or name in args.ops]
    valid = valid_calls()
    ops = [_core.get_op(name).describe() for name in names]
    for device in DEVICES:
        mx.context.set_memory_limit(device, 1 << 28)
    started, made, failed = time.monotonic(), 0, 0
    for number in itertools.count(args.first):
        if args.last is not None:
            if number > args.last:
                break
        elif time.monotonic() - started > args.seconds if args.seconds else made >= args.calls:
            break
        op = ops[number % len(ops)]
        rng = random.Random(args.seed * 1000003 + number)
        numbers = np.random.default_rng(rng.getrandbits(32))
        inputs = None
        near = op["name"] in valid and rng.random() < 0.5
        if near:
            params, inputs = choose_near(rng, op, valid[op["name"]])
        else:
            params = choose_params(rng, op)
        text = f"{op['name']} seed {args.seed} number {number} params {params}".encode()
        if log is not None:
            os.pwrite(log, text[:3900].ljust(3999) + b"\n", 0)
        faulthandler.dump_traceback_later(60, exit=True)
        if not near:
            inputs = choose_inputs(rng, op, params)
        if inputs is None:
            continue
        made += 1
        for name in args.without:
            params.pop(name, None)
        if log is not None:
            os.pwrite(log, (text + f" inputs {inputs}".encode())[:3900].ljust(3999) + b"\n", 0)
        try:
            call(rng, numbers, op, params, inputs)
            if made % 100 == 0:
                mx.nd.waitall()
        except REFUSALS:
            failed += 1
    with contextlib.suppress(*REFUSALS):  # errors of calls in flight
        mx.nd.waitall()
    faulthandler.cancel_dump_traceback_later()
    print(f"{made} calls, {failed} of them refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
