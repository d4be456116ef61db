"""Functions of mx.np and mx.npx exist, with the parameters of MXNet 1.9.1, in the same order."""

import functools
import inspect
import os

import pytest

import mpgluon as mx

# Functions of MXNet's table that mpgluon lacks on purpose -> the reason.
MISSING = {
    "npx.check_call": "a helper for MXNet's C API, which npx only imports",
    "npx.classproperty": "a helper for MXNet's classes, which npx only imports",
    "npx.with_metaclass": "a helper for Python 2, which npx only imports",
}
TABLE = os.path.join(os.path.dirname(__file__), "..", "data", "mxnet-1.9.1", "numpy.tsv")


def rows():
    with open(TABLE) as file:
        for line in file.read().splitlines()[1:]:
            space, name, parameters = line.split("\t")
            yield pytest.param(space, name, parameters.split(), id=f"{space}.{name}")


@pytest.mark.parametrize("space, name, parameters", list(rows()))
def test_parameters_are_mxnets(space, name, parameters):
    module = functools.reduce(getattr, space.split("."), mx)
    if f"{space}.{name}" in MISSING:
        assert not hasattr(module, name)
        return
    function = getattr(module, name)
    found = inspect.signature(function).parameters
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [key for key, each in found.items() if each.kind in kinds]
    wanted = [key for key in parameters if not key.startswith("*")]
    assert names[: len(wanted)] == wanted
