"""Functions of mx.np and mx.npx have the parameters of MXNet 1.9.1, in the same order."""

import functools
import inspect
import os

import pytest

import mpgluon as mx

TABLE = os.path.join(os.path.dirname(__file__), "..", "data", "mxnet-1.9.1", "numpy.tsv")


def rows():
    with open(TABLE) as file:
        for line in file.read().splitlines()[1:]:
            space, name, parameters = line.split("\t")
            yield pytest.param(space, name, parameters.split(), id=f"{space}.{name}")


@pytest.mark.parametrize("space, name, parameters", list(rows()))
def test_parameters_are_mxnets(space, name, parameters):
    module = functools.reduce(lambda *path: getattr(*path, None), space.split("."), mx)
    if not hasattr(module, name):
        pytest.skip("not part of this package")
    function = getattr(module, name)
    found = inspect.signature(function).parameters
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [key for key, each in found.items() if each.kind in kinds]
    wanted = [key for key in parameters if not key.startswith("*")]
    assert names[: len(wanted)] == wanted
