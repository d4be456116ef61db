"""Collectives as single ops that span devices, the form that NCCL implements: the same suite on any
devices, eager, recorded and compiled."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import mpgluon as mx
from mpgluon import _core, autograd, nd, parallel as par
from support.collective_cases import DEVICES, NAMES, Collective, arrays_of, check, in_order
from support.devices import cpus_only, on
from support.processes import output_of

pytestmark = cpus_only  # on GPUs the transport is NCCL: test_gpu_nccl.py
SINGLE = [name for name in NAMES if name != "two_shot"]


@pytest.fixture(autouse=True)
def single():
    with par.collectives.transport("single"):
        yield


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize(
    "shape, axis", [((7, 5), 0), ((12, 24), 0), ((12, 24), 1), ((2, 12, 5), 1)]
)
def test_collective_op_values_and_gradients_are_exact(name, count, hybridize, shape, axis):
    check(count, shape, axis, name, hybridize)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 6), min_size=1, max_size=3),
    st.data(),
    st.integers(0, 99),
)
def test_collective_op_supports_any_sizes(count, shape, data, seed):
    check(
        count,
        tuple(shape),
        data.draw(st.integers(0, len(shape) - 1)),
        data.draw(st.sampled_from(SINGLE)),
        data.draw(st.booleans()),
        seed,
    )


def plan(count, shape, kind, axis=0):
    return _core.collective_plan(
        kind, arrays_of(count, shape)[1], DEVICES[:count], axis, axis, None, "auto", "single"
    )["ops"]


def test_plan_has_one_collective_op():
    assert plan(3, (6, 4), "all_reduce") == ["_collective"]
    assert [op for op in plan(3, (6, 4), "all_gather") if op != "_reshape_exact"] == ["_collective"]
    assert [op for op in plan(3, (6, 4), "reduce_scatter") if op != "_reshape_exact"] == [
        "_collective"
    ]
    assert plan(3, (6, 9), "all_gather", 1).count("transpose") == 3
    assert plan(2, (6, 4), "all_to_all") == ["_split_v2"] * 2 + ["_collective"] + ["Concat"] * 2


def test_compiled_collective_is_one_instruction():
    block = Collective(lambda x: par.all_reduce([a * 2 for a in x]))
    block.hybridize()
    _, arrays = arrays_of(3, (4, 4))
    block(*arrays)
    (entry,) = block.compiled()
    kinds = [step["kind"] for device in entry["devices"].values() for step in device["forward"]]
    ops = [step.get("op") for device in entry["devices"].values() for step in device["forward"]]
    assert (
        ops.count("_collective") == 1
        and kinds.count("copy") == 0
        and kinds.count("wait") == 4
        and len(entry["devices"]) == 3
    )


def test_unused_results_and_gradients_do_not_block():
    """All devices participate even if their results or gradients are unused."""
    values, arrays = arrays_of(3, (4, 4))
    for hybridize in (False, True):
        block = Collective(lambda x: par.all_reduce([a * 2 for a in x])[1])
        if hybridize:
            block.hybridize()
        for array in arrays:
            array.attach_grad()
        with autograd.record():
            out = block(*arrays)
        out.backward()
        for array in arrays:
            assert np.array_equal(array.grad.asnumpy(), np.full((4, 4), 2, "float32"))
        assert np.array_equal(out.asnumpy(), in_order([2 * v for v in values]))


def test_failed_input_fails_the_results_on_all_devices():
    _, arrays = arrays_of(3, (64, 64))
    arrays[1] = nd.linalg.potrf(-nd.eye(64, ctx=on(1)))
    results = par.all_reduce(arrays)
    for result in results:
        with pytest.raises(mx.MXNetError, match="potrf"):
            result.asnumpy()
    fresh = par.all_reduce(arrays_of(3, (4, 4))[1])
    assert all(np.isfinite(r.asnumpy()).all() for r in fresh)


def test_chain_of_collectives_has_equal_values_and_small_plans():
    """A chain of layers with sums between them: values, gradients and plan sizes."""

    def layers(x):
        for i in range(6):
            x = par.all_reduce([(a * 0.5 + i).tanh() for a in x])
        return x

    _, arrays = arrays_of(3, (32, 32))
    results = {}
    for kind in ("single", "local"):
        with par.collectives.transport(kind):
            for hybridize in (False, True):
                block = Collective(layers)
                if hybridize:
                    block.hybridize()
                for array in arrays:
                    array.attach_grad()
                with autograd.record():
                    out = block(*arrays)
                autograd.backward(out, [a.ones_like() for a in out])
                results[kind, hybridize] = [a.asnumpy() for a in out] + [
                    a.grad.asnumpy() for a in arrays
                ]
    for key, values in results.items():
        for one, other in zip(values, results["single", False]):
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=str(key))


@pytest.mark.parametrize(
    "params, inputs, text",
    [
        (
            {
                "kind": "all_reduce",
                "input_devices": "cpu(0),cpu(7)",
                "output_devices": "cpu(0),cpu(7)",
            },
            [(2,), (2,)],
            r"input 1 is on cpu\(0\), not on cpu\(7\)",
        ),
        (
            {"kind": "all_reduce", "input_devices": "cpu(0)"},
            [(2,), (2,)],
            "must name one device for each input",
        ),
        (
            {"kind": "all_reduce", "output_devices": "tpu(0),tpu(1)"},
            [(2,), (2,)],
            "must name one device for each output",
        ),
        ({"kind": "all_reduce"}, [(2,), (3,)], "the arrays must have the same shape and dtype"),
        ({"kind": "reduce_scatter"}, [(3,), (3,)], "3 rows cannot be split into 2 equal parts"),
        ({"kind": "broadcast"}, [(3,), (3,)], "a broadcast must have one input"),
    ],
)
def test_invalid_collective_op_arguments_raise(params, inputs, text):
    with pytest.raises(mx.MXNetError, match=text):
        _core.ops()["_collective"](*[nd.ones(shape) for shape in inputs], **params)


def test_pipeline_rejects_collective_op():
    class Staged(mx.gluon.HybridBlock):
        def forward(self, x):
            one = x * 2
            two = one.as_in_context(on(1)) * 3
            return par.all_reduce([one, two])[0]

    block = Staged()
    block.hybridize(pipeline=par.Pipeline(micro_batches=2))
    with par.collectives.transport("single"), pytest.raises(mx.MXNetError, match="."):
        block(nd.ones((4, 2))).asnumpy()


def test_collective_op_has_the_same_bits_in_any_engine_order():
    script = (
        "from support import collective_cases as t\nfrom mpgluon import parallel as par\n"
        "with par.collectives.transport('single'):\n"
        "  for name in t.NAMES:\n    for hybrid in (False, True):\n      t.check(3, (7, 5), 1, "
        "name, hybrid)\n      t.check(3, (6, 5), 0, name, hybrid)\nprint('same')"
    )
    assert output_of(script, timeout=280, MPGLUON_ENGINE="shuffle").strip() == "same"
