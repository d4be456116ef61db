"""bfloat16 products, attention and recurrent layers on each instruction set.

The paths are AMX tiles, AVX512-BF16 and emulation. A processor that lacks one uses the next.
"""

import json

import pytest

from support.processes import output_of

# Sizes around those of tiles, vectors, panels and blocks, each in every dimension.
PROGRAM = """
import itertools, json, sys
import numpy as np
import mpgluon as mx
from mpgluon import _core, autograd, nd
from samples.attention import in_place, packed, plain

random = np.random.RandomState(0)
FUTURE = np.triu(np.full((130, 130), -1e30), 1)

def halves(*shape, scale=1):
    return nd.array(random.normal(0, scale, shape)).astype("bfloat16")

def outcome(function, arrays, dtype, slope, needed=None):
    arrays = [array.astype(dtype) for array in arrays]
    for array in arrays[:needed]:
        array.attach_grad()
    mx.random.seed(5)
    with autograd.record():
        out = function(*arrays)
    out.backward(slope.astype(dtype))
    return [a.astype("float64").asnumpy() for a in (out, *[a.grad for a in arrays[:needed]])]

def worst(function, arrays, slope, needed=None, against="float64"):
    found = outcome(function, arrays, "bfloat16", slope, needed)
    exact = outcome(function, arrays, against, slope, needed)
    errors = [np.abs(a - b).max() / (np.abs(b).max() + 1e-3) for a, b in zip(found, exact)]
    return float(np.max(errors))  # NaN where one is

def attention(*sizes, mask=None, p=0.0, lay=None, **more):
    batch, heads, rows, keys = sizes[:4]
    shapes, params = plain(*sizes, **({"lay": lay} if lay else {}), scale=sizes[4] ** -0.5, **more)
    if mask is not None:
        params["mask_at"] = mask[0]
    op = _core.get_op("_dropout_attention" if p else "_attention")
    arrays = [halves(*shape) for shape in shapes]
    arrays += [nd.array(mask[1]).astype("bfloat16")] if mask is not None else []
    if p:
        params["p"] = p
    call = lambda *inputs: op(*inputs, **params)
    # Draws of float64 are others
    return worst(call, arrays, halves(*params["shape"]), 3, "float32" if p else "float64")

result = {}
for sizes in [(1, 2, 64, 128, 32, 64), (2, 3, 65, 129, 33, 65), (1, 1, 1, 300, 64, 16),
              (1, 3, 200, 40, 5, 130), (1, 1, 17, 31, 64, 64), (1, 2, 16, 16, 16, 16)]:
    result[f"attention {sizes}"] = attention(*sizes)
square = (2, 2, 130, 130, 40, 24)
result["causal"] = attention(*square, causal=True)
result["apart"] = attention(*square, causal=True, lay=in_place)
result["mask"] = attention(*square, mask=((0, 0, 130, 1), FUTURE))
result["mask of keys"] = attention(*square, mask=((130, 0, 0, 1), random.normal(size=(2, 130))))
result["dropout"] = attention(*square, p=0.4, causal=True)
result["one device's threads"] = []
for threads in (1, 3):
    mx.context.set_threads(threads)
    random.seed(2)
    shapes, params = plain(1, 2, 150, 300, 64, 64, scale=0.1)
    arrays = [halves(*shape) for shape in shapes]
    call = lambda *inputs: _core.get_op("_attention")(*inputs, **params)
    found = outcome(call, arrays, "bfloat16", halves(*params["shape"]))
    result["one device's threads"].append([hash(a.tobytes()) for a in found])
mx.context.set_threads(0)
whole = packed(2, 3, 60, 32, scale=0.2, causal=True)
data = nd.array(whole.inputs[0]).astype("bfloat16")
call = lambda x: _core.get_op("_attention")(x, x, x, **whole.params)
result["parts of one array"] = worst(call, [data], halves(*whole.params["shape"]))
for m, n, k in [(128, 64, 64), (300, 70, 1100), (257, 129, 95), (130, 200, 64),
                (1040, 300, 95), (2051, 257, 66), (1024, 256, 3000)]:
    for ta, tb in itertools.product((False, True), (False, True)):
        a, b = halves(*((k, m) if ta else (m, k))), halves(*((n, k) if tb else (k, n)))
        call = lambda a, b: nd.dot(a, b, transpose_a=ta, transpose_b=tb)
        result[f"dot {m} {n} {k} {ta} {tb}"] = worst(call, [a, b], halves(m, n))
    inputs = [halves(m, k), halves(n, k), halves(n, scale=30)]
    call = lambda *inputs: nd.FullyConnected(*inputs, num_hidden=n)
    result[f"FullyConnected {m} {n} {k}"] = worst(call, inputs, halves(m, n))
special = np.ones((1256, 64), "float32")
special[3, 5], special[200, 1] = np.nan, np.inf
found = nd.dot(nd.array(special).astype("bfloat16"), halves(64, 100)).astype("float32").asnumpy()
clean = np.isfinite(found).all(1)
result["NaN and infinity stay in their rows"] = float(
    not np.isnan(found[3]).all() or clean.sum() != 1254 or clean[200]
)

sizes = [*itertools.product(("LSTM", "GRU", "RNN"), (37, 64), (8, 20, 33)), ("LSTM", 70, 430)]
for mode, units, batch in sizes:
    more = {"activation": "tanh"} if mode == "RNN" else {}
    layer = getattr(mx.gluon.rnn, mode)
    net = layer(units, num_layers=2, bidirectional=True, input_size=40, **more)
    net.initialize(mx.init.Uniform(0.2))
    x, slope = halves(5, batch, 40), halves(5, batch, 2 * units)
    parameters = list(net.collect_params().values())
    kept = [p.data().astype("bfloat16") for p in parameters]
    found = []
    for dtype in ("bfloat16", "float64"):
        net.cast(dtype)
        for parameter, values in zip(parameters, kept):
            parameter.set_data(values.astype(dtype))
        grads = outcome(net, [x], dtype, slope)
        found.append(grads + [p.grad().astype("float64").asnumpy() for p in parameters])
    errors = [np.abs(one - other).max() / np.abs(other).max() for one, other in zip(*found)]
    result[f"{mode} {units} x {batch}"] = float(np.max(errors))
json.dump(result, sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["ALL", "AVX512_CORE_BF16", "AVX512_CORE"])
def test_every_bfloat16_path_is_close_to_float64(isa):
    result = json.loads(output_of(PROGRAM, ONEDNN_MAX_CPU_ISA=isa, PYTHONHASHSEED="0"))
    one, several = result.pop("one device's threads")
    assert one == several
    assert len(result) > 45
    for case, error in result.items():
        assert error < 2.0**-6, (case, error)
