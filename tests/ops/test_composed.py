"""Composed ops: only the composed op is visible, not its parts."""

import json
from itertools import product

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd
from mpgluon.ndarray._namespaces import place as place_of
from samples.base import all_samples
from support.calls import call, call_in_block, mode, place
from support.compare import same_bits
from support.devices import on

SAMPLES = all_samples()
COMPOSED = sorted(
    name for name in _core.list_ops() if "composed" in _core.get_op(name).describe()["flags"]
)


def hidden(name):
    return "hidden" in _core.get_op(name).describe()["flags"]


def states(name):
    """Positions of the inputs that are also written."""
    return [i for i, row in enumerate(_core.get_op(name).describe()["inputs"]) if row["mutable"]]


def test_composed_flag_covers_known_ops():
    assert "moments" in COMPOSED and "_contrib_interleaved_matmul_selfatt_qk" in COMPOSED


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_results_are_separate_arrays(name):
    for sample in SAMPLES[name]:
        arrays = place(sample, sample.dtypes[0])
        before = [array.asnumpy() for array in arrays]
        with mode(sample):
            outputs = call(name, arrays, sample.params)
        for output in outputs:
            output[:] = 77
        for i, (array, values) in enumerate(zip(arrays, before)):
            if i not in states(name):
                np.testing.assert_array_equal(array.asnumpy(), values)
        for i, output in enumerate(outputs):
            output[:] = i
        assert [set(output.asnumpy().ravel()) for output in outputs if output.size] == [
            {i} for i, output in enumerate(outputs) if output.size
        ]


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_ops_write_to_out(name):
    sample = SAMPLES[name][0]
    arrays = place(sample, sample.dtypes[0])
    mx.random.seed(3)
    with mode(sample):
        expected = call(name, arrays, sample.params)
    out = [nd.zeros(array.shape, dtype=array.dtype) for array in expected]
    mx.random.seed(3)
    with mode(sample):
        _core.get_op(name)(*arrays, **sample.params or {}, out=out if len(out) > 1 else out[0])
    same_bits(expected, out)


class Call(mx.gluon.HybridBlock):
    """An op with a sample's parameters."""

    def __init__(self, name, params):
        super().__init__()
        self._op, self._options = name, params

    def hybrid_forward(self, F, *arrays):
        results = call_in_block(self._op, arrays, self._options)
        return results if len(results) > 1 else results[0]


def large(sample, name):
    """Returns the sample's inputs enlarged by repeating them along an axis.

    Repeats as many inputs as the op accepts. Returns None if it accepts none.
    """
    small = place(sample, sample.dtypes[0])
    axes = [(*range(a.ndim if len(small) <= 3 else a.ndim and 1), None) for a in small]
    for along in product(*axes):
        size = sum(a.size for a, axis in zip(small, along) if axis is not None)
        if not size:
            continue
        times = 16384 // size + 1
        arrays = [
            a if axis is None else nd.tile(a, [times if i == axis else 1 for i in range(a.ndim)])
            for a, axis in zip(small, along)
        ]
        try:
            with mode(sample):
                outputs = call(name, arrays, sample.params)
        except mx.MXNetError as error:
            if "internal" in str(error):
                raise
            continue
        if sum(output.size for output in outputs) < 2**20:
            return arrays
    return None


LARGE = {
    f"{name}-{i}": (name, sample, arrays)
    for name in COMPOSED
    for i, sample in enumerate(SAMPLES[name])
    if (arrays := large(sample, name))
}


def test_every_composed_op_has_a_large_case():
    assert {name for name, *_ in LARGE.values()} == set(COMPOSED)


@pytest.mark.parametrize("case", LARGE)
def test_large_composed_calls_match_compiled_graph(case):
    """Large calls free intermediates early; forward and backward must still match the graph."""
    name, sample, arrays = LARGE[case]
    results = []
    for hybrid in (False, True):
        net, wanted = Call(name, sample.params), [arrays[i] for i in sample.gradient_inputs()]
        for array in wanted:
            array.attach_grad()
        if hybrid:
            net.hybridize()
        mx.random.seed(3)
        with mode(sample):
            outputs = net(*arrays)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        mx.random.seed(3)
        with autograd.record(train_mode=sample.train):
            heads = net(*arrays)
        if wanted:
            autograd.backward([heads[0] if isinstance(heads, (list, tuple)) else heads])
        results.append([array.asnumpy() for array in (*outputs, *[a.grad for a in wanted])])
    for eager, compiled in zip(*results):
        np.testing.assert_array_equal(eager, compiled)


def test_large_composed_call_frees_intermediates():
    ctx = on(60)
    data = nd.random.uniform(shape=(1, 32, 32, 32), ctx=ctx)
    rois = nd.tile(nd.array([[0, 1, 2, 20, 24]], ctx=ctx), (200, 1))
    nd.waitall()
    mx.context.reset_peak_memory(ctx)
    before = mx.context.memory_stats(ctx)["in_use"]
    result = nd.contrib.ROIAlign(data, rois, (14, 14), 1.0, sample_ratio=2)
    nd.waitall()
    taken = mx.context.memory_stats(ctx)["peak_in_use"] - before
    assert taken < 6 * result.size * 4, taken / (result.size * 4)


@pytest.mark.parametrize("name", [name for name in COMPOSED if not hidden(name)])
def test_symbol_of_composed_op_keeps_its_name(name):
    sample = SAMPLES[name][0]
    arrays = place(sample, sample.dtypes[0])
    variables = [mx.sym.var(f"x{i}") for i in range(len(arrays))]
    space, short = place_of(name)
    function = getattr(mx.sym if space == "op" else getattr(mx.sym, space), short)
    made = function(*variables, **sample.params or {})
    assert [n["op"] for n in json.loads(made.tojson())["nodes"] if n["op"] != "null"] == [name]
    shapes = {f"x{i}": array.shape for i, array in enumerate(arrays)}
    _, inferred, _ = made.infer_shape(**shapes)
    mx.random.seed(3)
    with mode(sample):
        expected = call(name, arrays, sample.params)
    assert inferred == [array.shape for array in expected]
    mx.random.seed(3)
    given = {f"x{i}": array for i, array in enumerate(arrays)}
    aux = {f"x{i}": given.pop(f"x{i}") for i in states(name)}
    executor = made.bind(mx.cpu(), given, aux_states=aux)
    for one, other in zip(executor.forward(is_train=sample.train), expected):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in COMPOSED if SAMPLES[name][0].grad])
def test_composed_gradients_match_in_bound_symbol(name):
    sample = SAMPLES[name][0]
    arrays = [array.astype("float32") for array in place(sample, "float32")]
    for array in arrays:
        array.attach_grad()
    mx.random.seed(3)
    with autograd.record(train_mode=bool(sample.train)):
        outputs = call(name, arrays, sample.params)
    autograd.backward(outputs)
    space, short = place_of(name)
    function = getattr(mx.sym if space == "op" else getattr(mx.sym, space), short)
    made = function(*(mx.sym.var(f"x{i}") for i in range(len(arrays))), **sample.params or {})
    executor = made.simple_bind(mx.cpu(), **{f"x{i}": a.shape for i, a in enumerate(arrays)})
    mx.random.seed(3)
    given = {f"x{i}": array for i, array in enumerate(arrays)}
    for i in states(name):
        executor.aux_dict[f"x{i}"][:] = given.pop(f"x{i}")
    executor.forward(True, **given)
    executor.backward([nd.ones_like(output) for output in outputs])
    for i, array in enumerate(arrays):
        if i in states(name):
            continue
        np.testing.assert_allclose(
            executor.grad_dict[f"x{i}"].asnumpy(), array.grad.asnumpy(), rtol=1e-5, atol=1e-6
        )


def test_composed_op_errors_name_the_op():
    with pytest.raises(mx.MXNetError, match=r"^moments: axes must contain at least one axis"):
        nd.moments(nd.ones((2, 3)))
    with pytest.raises(mx.MXNetError, match=r"^moments: .*axis 5"):
        nd.moments(nd.ones((2, 3)), axes=5)
    with pytest.raises(mx.MXNetError, match=r"^moments: dtype int32 is not supported"):
        nd.moments(nd.ones((2, 3), dtype="int32"), axes=0)
    with pytest.raises(mx.MXNetError, match=r"^_random_pdf_normal: parameters of shape \(3,\)"):
        nd.random_pdf_normal(nd.ones((2, 3)), nd.ones((3,)), nd.ones((3,)))
    with pytest.raises(mx.MXNetError, match=r"queries_keys_values must be \(length, batch, heads"):
        nd.contrib.interleaved_matmul_selfatt_qk(nd.ones((2, 3, 10)), heads=2)


OF_SEVERAL = [
    name
    for name in COMPOSED
    # ops of dynamic shape have no place in these graphs; _sparse_retain's function refuses dense
    # arrays
    if "dynamic" not in _core.get_op(name).describe()["flags"]
    and any(len(s.inputs) > 1 for s in SAMPLES[name])
    and name != "_sparse_retain"
]


def test_known_composed_ops_take_several_inputs():
    assert {"Crop", "_contrib_BilinearResize2D", "_contrib_allclose", "khatri_rao"} <= set(
        OF_SEVERAL
    )


@pytest.mark.parametrize("how", ["called", "recorded", "hybridized", "symbol"])
@pytest.mark.parametrize("name", OF_SEVERAL)
def test_composed_op_with_inputs_on_two_devices_is_refused(name, how):
    """Holds even if the composition reads only the shape of an input."""
    sample = next(s for s in SAMPLES[name] if len(s.inputs) > 1)
    arrays = place(sample, sample.dtypes[0], ctx=on(0))
    space, short = place_of(name)

    def compute(F, *inputs):
        home = F if space == "op" else getattr(F, space)
        return getattr(home, short)(*inputs, **sample.params or {})

    class Block(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, *inputs):
            return compute(F, x, *inputs)

    for i in range(1, len(arrays)):
        inputs = list(arrays)
        inputs[i] = inputs[i].as_in_context(on(1))
        fix = name + r": the inputs are on different devices: .*as_in_context\(mx\.[cg]pu\(0\)\)"
        with pytest.raises(mx.MXNetError, match=fix), mode(sample):
            if how == "called":
                compute(mx.nd, *inputs)
            elif how == "recorded":
                with autograd.record():
                    compute(mx.nd, *inputs)
            elif how == "hybridized":
                block = Block()
                block.hybridize()
                block(*inputs)
            else:
                variables = [mx.sym.var(f"x{k}") for k in range(len(inputs))]
                mx.gluon.SymbolBlock(compute(mx.sym, *variables), variables)(*inputs)


def test_discrete_pdf_has_no_gradient_for_samples():
    x, rate = nd.array([[1.0, 2.0]]), nd.array([1.25])
    for array in (x, rate):
        array.attach_grad()
    with autograd.record():
        y = nd.random_pdf_poisson(x, rate, is_log=True)
    y.backward()
    assert (x.grad.asnumpy() == 0).all()
    np.testing.assert_allclose(rate.grad.asnumpy(), [1 / 1.25 - 1 + 2 / 1.25 - 1], rtol=1e-5)


def test_composed_op_survives_each_allocation_failure():
    """The call has more inputs and ops than fit without allocating."""
    rows = [nd.array([[i % 3 + 1.0]]) for i in range(40)]
    for n in range(1, 60):
        _core._memory_fail_after(n)
        try:
            nd.khatri_rao(*rows).wait_to_read()
        except (MemoryError, mx.MXNetError):
            pass
        finally:
            failed = _core._memory_fail_after(0)
        if not failed:
            break
    assert n > 3
    assert nd.khatri_rao(*rows).asnumpy() == 6**13


def test_samples_of_rotated_regions_are_limited():
    """The number of samples grows with the square of the ratio, and overflowed."""
    data, rois = nd.ones((1, 1, 4, 4)), nd.array([[0, 2, 2, 3, 3, 30]])
    options = {"pooled_size": (2, 2), "spatial_scale": 1.0}
    nd.contrib.RROIAlign(data, rois, sampling_ratio=64, **options).wait_to_read()
    with pytest.raises(mx.MXNetError, match="sampling_ratio = .* is outside its range ..4096"):
        nd.contrib.RROIAlign(data, rois, sampling_ratio=1 << 32, **options)
