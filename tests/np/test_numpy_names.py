"""Errors for unknown names of mx.np and mx.npx, and the cost of importing mpgluon."""

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
