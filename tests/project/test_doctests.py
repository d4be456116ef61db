"""The examples in docstrings run and give what they show."""

import doctest
import importlib.util
import inspect
import pkgutil
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd

# Whose classes all have an example; `gluon` with the packages in it.
COMPLETE = ["gluon", "optimizer", "metric", "initializer", "lr_scheduler", "parallel"]
# Bases and helpers that users do not make.
WITHOUT = {
    "DeferredInitializationError",
    "HookHandle",
    "GroupedOptimizer",
    "MultiStep",
    "Round",
    "Torch",
    "Caffe",
    "ccSGD",
    "Test",
    "BasicBlockV1",
    "BasicBlockV2",
    "BottleneckV1",
    "BottleneckV2",
    "ResNetV1",
    "ResNetV2",
    "GroupAdaGrad",
}
MODULES = [
    info.name
    for info in pkgutil.walk_packages(mx.__path__, "mpgluon.")
    if info.name.split(".")[1] not in ("_stubs", "test_utils", "numpy", "numpy_extension")
    and importlib.util.find_spec(info.name).origin.endswith(".py")  # no shared library
]


def objects(module):
    """(name, class or function) of what a module defines, and of the methods of its classes."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value
        if inspect.isclass(value):
            for member, function in vars(value).items():
                function = getattr(function, "__func__", function)
                if inspect.isfunction(function) and not member.startswith("_"):
                    yield f"{name}.{member}", function


@pytest.mark.parametrize("module", MODULES)
def test_examples(module):
    module = importlib.import_module(module)
    parser, failures = doctest.DocTestParser(), []
    for name, value in objects(module):
        if ">>>" not in str(value.__doc__):
            continue
        names = {"mx": mx, "nd": nd, "gluon": gluon, "nn": gluon.nn, "np": np}
        test = parser.get_doctest(inspect.cleandoc(value.__doc__), names, name, None, 0)
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runner.run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("package", COMPLETE)
def test_classes_have_examples(package):
    missing = []
    for name in MODULES:
        if name.split(".")[1] != package or any(p[0] == "_" for p in name.split(".")):
            continue
        for path, value in objects(importlib.import_module(name)):
            if inspect.isclass(value) and path not in WITHOUT and ">>>" not in str(value.__doc__):
                missing.append(f"{name}.{path}")
    assert not missing, missing


def test_everything_of_parallel_has_examples():
    """But for attention's split form, which `shard` makes."""
    there = {name: getattr(mx.parallel, name) for name in mx.parallel.__all__}
    found = [name for name, value in there.items() if ">>>" not in str(value.__doc__)]
    assert found == ["ParallelHeads", "schedules"]
