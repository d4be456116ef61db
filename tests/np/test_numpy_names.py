"""Errors for unknown names of mx.np and mx.npx, and the cost of importing mpgluon."""

import operator

import numpy
import pytest

import mpgluon as mx
from support.processes import output_of


@pytest.mark.parametrize(
    "module, name, advice",
    [
        ("np", "msort", r"use np.sort\(x, axis=0\)"),
        ("np", "npv", "use the package numpy-financial"),
        ("np", "gradient", "use numpy.gradient, which computes on copies of the values"),
        ("np", "nanmaxx", "did you mean 'nanmax'"),
        ("np", "int32_", "has no attribute 'int32_'"),
        ("npx", "savee", "did you mean 'save'"),
        ("npx", "box_nms", "use mx.nd.contrib.box_nms, which accepts arrays of mx.np"),
        ("npx", "slice_like", "use mx.nd.slice_like, which accepts arrays of mx.np"),
        ("npx", "exp", "use np.exp"),
        ("np", "softmax", "use npx.softmax"),
        ("np", "asnumpy", "use x.asnumpy()"),
        ("np.random", "normal_n", "use npx.random.normal_n"),
        ("np.linalg", "LinAlgError", "use mx.MXNetError"),
        ("np", "isscalar", "use numpy.isscalar$"),
        ("np", "from_dlpack", r"use mx.nd.from_dlpack\(tensor\).as_np_ndarray\(\)"),
        ("np", "int", "use int$"),
        ("np", "object", "use NumPy's arrays"),
        ("np", "testing", "use numpy.testing"),
        ("np.random", "random", r"use np.random.uniform\(size=size\)"),
        ("np.random", "standard_normal", r"use np.random.normal\(size=size\)"),
        ("np.random", "default_rng", "use mx.random.seed"),
        ("np.random", "bernoulli", "use npx.random.bernoulli"),
        ("np.random", "norma", "did you mean 'normal'"),
        ("np.linalg", "dett", "did you mean 'det'"),
        ("np", "concat", "use np.concatenate$"),
        ("np", "int_", "use np.int64$"),
        ("np", "single", "use np.float32$"),
        ("np", "r_", "use np.concatenate$"),
        ("np", "mgrid", "use np.indices"),
        ("np", "vectorize", "use functions of arrays"),
        ("np", "matrix", "use np.array$"),
        ("np", "asnumpy", r"use x.asnumpy\(\)$"),
        ("np.random", "normal_n", "use npx.random.normal_n$"),
        ("np.linalg", "LinAlgError", "use mx.MXNetError, which is raised when the result is read"),
        ("np.linalg", "solve_triangular", "use mx.nd.linalg.trsm"),
        ("npx", "slice_like", "use mx.nd.slice_like, which accepts arrays of mx.np"),
        ("npx", "box_nms", "use mx.nd.contrib.box_nms, which accepts arrays of mx.np"),
        ("npx", "interleaved_matmul_selfatt_qk", "use mx.nd.contrib.interleaved_matmul_selfatt_qk"),
        ("npx", "linalg_trsm", "use mx.nd.linalg_trsm"),
        ("npx", "cpu_count", "use os.cpu_count"),
        ("npx", "seed", "use np.random.seed"),
        ("npx", "linalg", "use np.linalg"),
        ("npx.random", "normal", "use np.random.normal"),
        ("np.ndarray", "trace", r"use np.trace\(x\)"),
        ("np.ndarray", "nbytes", "use x.size"),
        ("gluon", "metric", "use mx.metric"),
        ("gluon", "probability", "use mx.np.random"),
        ("gluon.data", "batchify", "batchify_fn=f"),
        ("gluon.Block", "share_parameters", "use nn.Dense.8, params=net.params"),
        ("gluon.nn", "HybridConcatenate", "HybridConcurrent"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_unknown_names_suggest_a_replacement(module, name, advice):
    with pytest.raises(AttributeError, match=advice):
        getattr(operator.attrgetter(module)(mx), name)


NAMES = (mx.np, mx.np.random, mx.np.linalg, mx.npx, mx.npx.random)


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_modules_list_public_names_only(module):
    listed = {name for name in dir(module) if not name.startswith("_")}
    submodules = {"linalg", "random"} if module is mx.np else set()
    assert listed == {*module.__all__} | submodules
    assert all(getattr(module, name) is not None or name == "newaxis" for name in module.__all__)


@pytest.mark.parametrize("hybridize", [False, True])
def test_blocks_call_functions_of_mx_np_through_f(hybridize):
    class Block(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.np.exp(F.np.vstack([x, -x]))

    block = Block()
    if hybridize:
        block.hybridize()
    x = mx.nd.array([[0.5, 1]]).as_np_ndarray()
    result = block(x)
    assert type(result) is mx.np.ndarray and mx.nd.npx is mx.npx
    assert abs(result.asnumpy() - numpy.exp([[0.5, 1], [-0.5, -1]])).max() < 1e-6


def test_import_of_mpgluon_does_not_import_its_numpy_packages():
    code = """
        import sys
        import mpgluon as mx
        import numpy
        print([name for name in sys.modules if name.startswith("mpgluon.numpy")])
        x = mx.nd.ones(2)
        print(numpy.exp(x).shape, "mpgluon.numpy" in sys.modules)
    """
    assert output_of(code).splitlines() == ["[]", "(2,) True"]
