"""Attention on tensor cores compared with the CPU: tiles that are visible wholly, partly or not at
all, with masks and dropout."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core
from samples.attention import plain
from support.compare import same_on_both, uniform
from support.stand_in import needs_gpu

pytestmark = needs_gpu

CAUSAL = {"causal": True}
DROPPED = {"p": 0.4}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "sizes, more, mask",
    [
        ((1, 2, 200, 200, 64, 64), {}, False),
        ((1, 1, 200, 200, 64, 64), CAUSAL, False),
        ((1, 1, 130, 130, 128, 128), CAUSAL, False),
        ((1, 1, 150, 260, 64, 64), {}, False),
        ((1, 1, 260, 150, 64, 64), {}, False),
        ((1, 2, 68, 132, 64, 32), DROPPED, False),
        ((1, 2, 132, 132, 64, 64), {**CAUSAL, **DROPPED}, False),
        ((1, 1, 131, 131, 128, 72), {**CAUSAL, **DROPPED}, False),
        ((1, 1, 70, 131, 72, 128), DROPPED, False),
        ((1, 1, 132, 132, 128, 128), {**CAUSAL, **DROPPED}, True),
        ((1, 2, 70, 133, 24, 24), DROPPED, True),
        ((1, 1, 140, 140, 16, 16), {**CAUSAL, "scale": -0.3}, False),
        ((1, 1, 40, 140, 16, 16), {"scale": -0.3}, True),
        ((1, 1, 70, 70, 16, 16), {"scale": 0.0}, False),
    ],
)
def test_attention_matches_the_cpu_for_all_tile_shapes(sizes, more, mask, dtype):
    """Heads of 64 and 128, more and fewer keys than rows, and rows whose random words start at a
    block boundary (if the number of keys is a multiple of four) or not."""
    batch, heads, rows, keys, _, _ = sizes
    shapes, params = plain(*sizes, **{"scale": 0.2, **more})
    masks = uniform((rows, keys)) if mask else []
    if mask:
        params["mask_at"] = (0, 0, keys, 1)
    values = uniform(*shapes, seed=rows)
    op = _core.get_op("_dropout_attention" if "p" in more else "_attention")

    def run(*arrays):
        masked = [mx.nd.array(m, ctx=arrays[0].context).astype(dtype) for m in masks]
        result = op(*arrays, *masked, **params)
        return result[0] if isinstance(result, list) else result

    same_on_both(run, values, dtype)


def test_causal_attention_copies_the_first_value():
    """The first row of causal attention sees one key, so its result is that key's value."""
    shapes, params = plain(1, 1, 100, 100, 64, 64, causal=True)
    query, key, value = (
        mx.nd.array(v, ctx=mx.gpu(0), dtype="float16") for v in uniform(*shapes, seed=3)
    )
    result = _core.get_op("_attention")(query, key, value, **params)
    np.testing.assert_array_equal(result.asnumpy()[0, 0], value.asnumpy()[0, 0])
