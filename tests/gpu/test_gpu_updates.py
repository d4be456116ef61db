"""Parameter updates on a GPU compared with the CPU: dtypes with and without specialized kernels,
sizes around a block's, and unaligned addresses."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.compare import at
from support.stand_in import needs_gpu

pytestmark = needs_gpu

RULES = {
    "sgd_update": (0, {"lr": 0.1, "wd": 0.01}),
    "sgd_mom_update": (1, {"lr": 0.1, "momentum": 0.9, "clip_gradient": 0.7}),
    "adam_update": (2, {"lr": 0.1, "wd": 0.01, "rescale_grad": 0.5}),
    "rmspropalex_update": (3, {"lr": 0.1}),
    "ftrl_update": (2, {"lr": 0.1}),
    "signum_update": (1, {"lr": 0.1, "momentum": 0.9}),
}
MIXED = {
    "mp_sgd_update": (0, {"lr": 0.1, "wd": 0.01}),
    "mp_sgd_mom_update": (1, {"lr": 0.1, "momentum": 0.9}),
    "mp_nag_mom_update": (1, {"lr": 0.1, "momentum": 0.9}),
    "mp_lamb_update_phase1": (2, {"t": 3, "wd": 0.01}),
}
TOLERANCES = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}


def run(name, num_states, params, size, dtype, ctx, offset=0, mixed=False):
    """Returns all arrays that an update wrote as float64; they start `offset` elements after an
    aligned address."""
    draw = np.random.RandomState(size)

    array = lambda values, dtype: at(values, ctx, dtype, offset)
    weight = array(draw.uniform(-1, 1, size), dtype)
    grad = array(draw.uniform(-1, 1, size), dtype)
    of_states = "float32" if mixed else dtype
    states = [array(draw.uniform(0.5, 1, size) ** (k + 1), of_states) for k in range(num_states)]
    copies = [weight.astype("float32")] if mixed else []
    if mixed:
        copies = [array(weight.astype("float64").asnumpy(), "float32")]
    arrays = [weight, grad, *states, *copies]
    result = getattr(nd, name)(*arrays, **params)
    changed = [*states, *copies, result]
    if "lamb" not in name:
        result = getattr(nd, name)(*arrays, out=weight, **params)
        changed.append(weight)
    return [a.astype("float64").asnumpy() for a in changed]


CASES = [(name, dtype) for name in RULES for dtype in TOLERANCES]
CASES += [(name, dtype) for name in MIXED for dtype in ("float16", "bfloat16", "float32")]


@pytest.mark.parametrize("name, dtype", CASES)
def test_updates_match_the_cpu(name, dtype):
    mixed = name in MIXED
    states, params = (MIXED if mixed else RULES)[name]
    for size in (2048, 4099) if mixed else (1, 37, 2048, 5003):
        found = run(name, states, params, size, dtype, mx.gpu(0), mixed=mixed)
        wanted = run(name, states, params, size, dtype, mx.cpu(0), mixed=mixed)
        for a, b in zip(found, wanted):
            np.testing.assert_allclose(a, b, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["adam_update", "mp_sgd_mom_update"])
def test_update_bits_do_not_depend_on_the_address(name, dtype):
    mixed = name in MIXED
    states, params = (MIXED if mixed else RULES)[name]
    wanted = run(name, states, params, 4500, dtype, mx.gpu(0), 0, mixed)
    for offset in (1, 2, 4, 6):
        found = run(name, states, params, 4500, dtype, mx.gpu(0), offset, mixed)
        assert [a.tobytes() for a in found] == [b.tobytes() for b in wanted], offset


def test_multi_weight_update_of_several_dtypes_matches_the_cpu():
    sizes, dtypes = [3, 2048, 5000, 1, 2049], ["float32", "bfloat16", "float32", "float16"]

    def updated(ctx):
        arrays, weights = [], []
        for k, size in enumerate(sizes):
            dtype = dtypes[k % len(dtypes)]
            draw = np.random.RandomState(k)
            values = [draw.uniform(-1, 1, size) for _ in range(3)]
            own = [nd.array(v, ctx=ctx, dtype="float64").astype(dtype) for v in values]
            arrays += own
            weights.append(own[0])
        options = {"num_weights": len(sizes), "lrs": [0.1] * 5, "wds": [0.01] * 5, "momentum": 0.9}
        nd.multi_sgd_mom_update(*arrays, out=weights, **options)
        return [a.astype("float64").asnumpy() for a in arrays]

    for a, b in zip(updated(mx.gpu(0)), updated(mx.cpu(0))):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("offset", [0, 1])
def test_all_finite_and_multi_scale_cover_every_element(dtype, offset):
    for size in (1, 7, 8, 4001):
        whole = nd.ones((offset + size,), dtype=dtype, ctx=mx.gpu(0))
        part = whole[offset:]
        assert nd.all_finite(part).asscalar() == 1
        nd._internal._multi_scale(part, nd.array([3], ctx=mx.gpu(0)), num_arrays=2)
        assert (whole.astype("float32").asnumpy() == [1] * offset + [3] * size).all()
        for place in {0, size // 2, size - 1}:
            for value in (np.nan, -np.inf):
                broken = part.copy()
                broken[place] = value
                assert nd.all_finite(broken).asscalar() == 0
                assert nd.multi_all_finite(part, broken, num_arrays=2).asscalar() == 0
