"""Calls of ops in the compiled graphs of all samples and their gradients. They include hidden ops,
which mostly have no samples."""

import os
import re
import tempfile
from typing import NamedTuple

import mpgluon as mx
from mpgluon import _core, autograd, nd
from samples.base import all_samples

VALUES = re.compile(r"%(\d+) = (.*) : (.*)")
CALL = re.compile(r"(\S+?)(?:\((.*?)\))?(?: \{(.*)\})?$")
DESC = re.compile(r"(\w+) \(([\d, ]*)\)")
REFUSED = re.compile("depends on values|not possible in this trace|has no gradient")


class Call(NamedTuple):
    """A call of an op. `params` are texts, and `inputs` are (shape, dtype)."""

    op: str
    params: tuple
    inputs: tuple


def run(op, sample, dtype):
    arrays = [
        nd.array(value, dtype=dtype if sample.made(i) else value.dtype)
        for i, value in enumerate(sample.arrays(dtype))
    ]
    for i in sample.gradient_inputs():
        arrays[i].attach_grad()

    def function(*inputs):
        result = op(*inputs, **(sample.params or {}))
        return list(result) if isinstance(result, (list, tuple)) else [result]

    compiled = _core.CachedOp(function, {"exact": True})
    try:
        with autograd.record(train_mode=sample.train):
            outputs = compiled(*arrays)
        if sample.gradient_inputs():
            autograd.backward(outputs)
    except mx.MXNetError as error:
        assert REFUSED.search(str(error)), error


def calls_of(dump):
    """Returns the different calls in the text of MPGLUON_DUMP."""
    descs, found = {}, {}
    for line in dump.splitlines():
        match = VALUES.match(line)
        if not match:
            descs = {} if line.startswith("== ") else descs
            continue
        number, expression, outputs = match.groups()
        for i, (dtype, shape) in enumerate(DESC.findall(outputs)):
            shape = tuple(int(n) for n in shape.split(",") if n.strip())
            descs[f"{number}.{i}" if i else number] = shape, dtype
        name, inputs, params = CALL.match(expression).groups()
        inputs = [descs.get(one.strip("% ")) for one in (inputs or "").split(",") if one.strip()]
        pairs = [pair.split("=", 1) for pair in re.split(r", (?=\w+=)", params or "") if pair]
        if name in _core.list_ops() and None not in inputs:
            found[Call(name, tuple(map(tuple, pairs)), tuple(inputs))] = None
    return list(found)


def traced_calls():
    """Compiles and runs all samples with their gradients, and returns the calls in the graphs."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.environ["MPGLUON_DUMP"] = os.path.join(folder, "graphs.txt")
        try:
            for name, samples in all_samples().items():
                for sample in samples:
                    for dtype in ("float32", "float16"):
                        if dtype in sample.dtypes:
                            run(_core.get_op(name), sample, dtype)
            nd.waitall()
        finally:
            del os.environ["MPGLUON_DUMP"]
        with open(path) as file:
            return calls_of(file.read())
