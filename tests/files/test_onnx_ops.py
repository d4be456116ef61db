"""Every op with an ONNX conversion, on its samples, against onnxruntime and the reimported file."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core
from mpgluon.onnx._package import ONNXError
from mpgluon.onnx._table import EXPORTS, IMPORTS
from mpgluon.symbol._functions import node_of
from samples.base import all_samples
from support.calls import call, place
from support.onnx_files import error, listed, onnx, run

SAMPLES = all_samples()
# Ops that convert only in part, with words of the error for the rest.
IN_PART = {
    "BatchNorm": "output_mean_var",
    "Dropout": "mode='always'",
    "GroupNorm": "output_mean_var",
    "LayerNorm": "output_mean_var",
    "LeakyReLU": "cannot be converted",  # also covers the mask output of rrelu
    "Pooling": "pooling_convention='same'",
    "RNN": "lstm_state_clip_min",
    "_random_normal": "above 0",
    "_random_normal_like": "above 0",
    "_sample_multinomial": "get_prob",
    "_contrib_MultiBoxDetection": "contrib.box_nms",
    "_contrib_ROIAlign": "position_sensitive",
    "_bitwise_and": "bits of bools",
    "_bitwise_not": "bits of bools",
    "_bitwise_or": "bits of bools",
    "_bitwise_xor": "bits of bools",
    "_linalg_gemm": "axis=-2",
    "_linalg_gemm2": "axis=-2",
}
# Results that ONNX leaves undefined: the maximum with NaN, and integer division by 0.
OF_NAN = {"argmax", "argmin", "max", "min"}
UNDEFINED = {("broadcast_div", np.int32), ("broadcast_mod", np.int32)}
# Valid files that onnxruntime has no kernels for.
NO_KERNEL = {("depth_to_space", np.int32), ("space_to_depth", np.int32)}


# Ops that draw new values in each call.
RANDOM = {op for op in EXPORTS if "random" in _core.get_op(op).describe()["flags"]} - {
    "Dropout",
    "LeakyReLU",
    "RNN",
}


class Case:
    """A sample as a symbol of one op, with its input arrays and parameter arrays."""

    def __init__(self, op, sample):
        dtype = "float32" if "float32" in sample.dtypes else sample.dtypes[0]
        arrays = [
            array.astype("float32") if array.dtype == np.float64 else array
            for array in place(sample, dtype)
        ]
        count = len(arrays)
        states = _core.OpCall(op, sample.params or {}).states(count)
        fixed = {i for i in range(count) if states[i]} | ({1} if op == "RNN" else set())
        self.symbol = node_of(
            op, op.lower(), [mx.sym.var(f"in{i}") for i in range(count)], sample.params
        )
        self.params = {f"in{i}": arrays[i] for i in fixed}
        read = set(range(count)) - set(EXPORTS[op].unread if op in EXPORTS else ()) - fixed
        self.inputs = [arrays[i] for i in sorted(read)]
        self.op, self.dtypes = op, {array.dtype for array in arrays}
        with mx.autograd.predict_mode():
            self.expected = listed(call(op, arrays, sample.params))[: len(self.symbol)]
        # Symbols of mx.nd do not support arrays without axes.
        self.empty = any(0 in (array.shape or (0,)) for array in (*arrays, *self.expected))
        self.odd = op in OF_NAN and any(np.isnan(array.asnumpy()).any() for array in arrays)

    def export(self, path, **more):
        shapes = [array.shape for array in self.inputs]
        types = [array.dtype for array in self.inputs]
        mx.onnx.export_model(self.symbol, self.params, shapes, types, path, **more)

    def check(self, path):
        if not any((self.op, dtype) in NO_KERNEL for dtype in self.dtypes):
            found = run(path, [array.asnumpy() for array in self.inputs])
            if self.op in RANDOM:
                found = [one * 0 + other for one, other in zip(found, self.expected)]
            assert error(found, self.expected) < 1e-4


def cases(op):
    for sample in SAMPLES[op]:
        case = Case(op, sample)
        undefined = any((op, dtype) in UNDEFINED for dtype in case.dtypes)
        if not (case.empty or case.odd or undefined):
            yield case


def export(case, path, **more):
    """True if the file was written; otherwise the error must be a known one."""
    try:
        case.export(path, **more)
    except ONNXError as failure:
        assert IN_PART[case.op] in str(failure)
        assert f"(op {case.op})" in str(failure)
        return False
    return True


@pytest.mark.parametrize("op", sorted(EXPORTS))
def test_onnx_op_matches_onnxruntime_and_reimport(op, tmp_path):
    path = str(tmp_path / "op.onnx")
    for case in cases(op):
        if not export(case, path):
            continue
        onnx.checker.check_model(path, full_check=True)
        case.check(path)
        readable = all(
            node.op_type in IMPORTS or node.op_type == "Constant"
            for node in onnx.load(path).graph.node
        )
        if not readable or not case.inputs:
            continue
        try:
            block = mx.onnx.import_to_gluon(path)
        except ONNXError as failure:
            assert op in UNREADABLE and UNREADABLE[op] in str(failure)
            continue
        found = listed(block(*case.inputs))
        found = [one.astype(other.dtype) for one, other in zip(found, case.expected)]
        assert error(found, case.expected) < 1e-4


# Ops that export to nodes whose import does not support these inputs.
UNREADABLE = {
    "Pad": "mode 'reflect'",
    "SequenceLast": "batch_dims",
    "_contrib_box_nms": "NonMaxSuppression",
}


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(EXPORTS))
def test_onnx_op_with_dynamic_sizes_matches_onnxruntime(op, tmp_path):
    path = str(tmp_path / "op.onnx")
    for case in cases(op):
        try:
            case.export(path, dynamic=True)
        except ONNXError as failure:
            assert op in str(failure)
            continue
        case.check(path)


@pytest.mark.parametrize("op", sorted(set(_core.list_ops()) & set(SAMPLES) - set(EXPORTS)))
def test_op_without_onnx_conversion_is_refused(op, tmp_path):
    """The error names the op, its node and a remedy."""
    found = [case for case in (Case(op, sample) for sample in SAMPLES[op][:1]) if case.inputs]
    if not found:
        return
    (case,) = found
    with pytest.raises(ONNXError, match=r"get_operator_support|shape or dtype") as failure:
        case.export(str(tmp_path / "op.onnx"))
    assert op in str(failure.value) or "shape or dtype" in str(failure.value)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "max", "argmax", "trace", "var", "vdot", "transpose"]
)
@pytest.mark.parametrize("kind", ["np", "nd"])
def test_results_without_dimensions_are_exported(name, kind, tmp_path):
    """Runs functions of mx.np, and NumPy's functions of arrays of mx.nd that call them."""
    package = mx.np if kind == "np" else np
    function = getattr(package, name)

    class Block(mx.gluon.HybridBlock):
        def forward(self, x):
            if name == "transpose":
                return function(package.sum(x))
            return function(x, x) if name == "vdot" else function(x)

    values = np.array([[0.5, 2], [3, 1.5]], "float32")
    x = mx.nd.array(values)
    expected = listed(Block()(x.as_np_ndarray() if kind == "np" else x))
    block = Block()
    block.hybridize()
    block(x.as_np_ndarray() if kind == "np" else x)
    path = tmp_path / "model.onnx"
    mx.onnx.export_model(block, in_shapes=[(2, 2)], in_types="float32", onnx_file_path=str(path))
    found = run(path, [values])
    assert found[0].shape == () and error(found, expected) < 1e-6
