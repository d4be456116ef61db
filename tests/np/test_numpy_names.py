"""Errors for unknown names of mx.np and mx.npx, and the cost of importing mpgluon."""

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
        ("npx", "cpu_count", "use os.cpu_count"),
    ],
)
def test_unknown_names_suggest_a_replacement(module, name, advice):
    with pytest.raises(AttributeError, match=advice):
        getattr(getattr(mx, module), name)


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
