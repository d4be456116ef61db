"""The examples in docstrings run and print the shown output."""

import doctest
import functools
import importlib.util
import inspect
import pkgutil
import warnings

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, gluon, nd
from mpgluon.ndarray._namespaces import place
from mpgluon.symbol._functions import Function
from support.processes import output_of

# Bases and helpers that users do not construct; exceptions are skipped separately.
WITHOUT = {
    "BaseConvRNNCell",
    "BaseModule",
    "BaseRNNCell",
    "CustomCall",
    "ExecutorGroup",
    "KVStoreBase",
    "ModifierCell",
    "OptimizingStore",
    "Program",
    "PythonModule",
    "TestStore",
    "ndarray",
    "DeferredInitializationError",
    "HookHandle",
    "GroupedOptimizer",
    "DecayedMeans",
    "CountedOptimizer",
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
    if not info.name.startswith("mpgluon._internal.stubs")
    and info.name.split(".")[1] not in ("test_utils", "numpy_extension")
    and info.name != "mpgluon.numpy"
    and importlib.util.find_spec(info.name).origin.endswith(".py")  # not shared libraries
]


def objects(module):
    """Yields (name, class or function) of a module's definitions and of its classes' methods."""
    for name, value in list(vars(module).items()):  # an example may import a submodule
        if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value
        if inspect.isclass(value):
            for member, function in vars(value).items():
                function = getattr(function, "__func__", function)
                if inspect.isfunction(function) and not member.startswith("_"):
                    yield f"{name}.{member}", function


def failures_of(name, text, **names):
    """Returns the report of running the examples in a text."""
    if ">>>" not in text:
        return ""
    failures = []
    names = {"mx": mx, "nd": nd, "gluon": gluon, "nn": gluon.nn, "np": np, **names}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner.run(test, out=failures.append)
    return "".join(failures)


@pytest.mark.slow
def test_as_mxnet_examples_run():
    """Runs in a subprocess, because it registers the package's modules under MXNet's names."""
    code = "import doctest, mpgluon.as_mxnet; print(doctest.testmod(mpgluon.as_mxnet).failed)"
    assert output_of(code).strip() == "0"


@pytest.mark.parametrize("module", [name for name in MODULES if name != "mpgluon.as_mxnet"])
def test_examples_of_modules_run(module):
    if module.startswith("mpgluon.interop"):
        pytest.importorskip("torch")
    module = importlib.import_module(module)
    names = {"np": mx.np} if module.__name__.startswith("mpgluon.numpy") else {}
    failures = [
        failures_of(name, inspect.cleandoc(str(value.__doc__)), **names)
        for name, value in objects(module)
    ]
    assert not any(failures), "".join(failures)


def call_of(name):
    """Returns the start of a call of an op; None if it is not public."""
    space, short = place(name)
    spaces = {"op": "nd", "_internal": None}
    space = spaces.get(space, f"nd.{space}")
    return space and f"{space}.{short}("


def test_every_public_op_has_an_example_that_runs():
    """Every public op in `nd` and its namespaces has an example that calls it."""
    missing, failures = [], []
    for name in _core.list_ops():
        about = _core.get_op(name).describe()
        calls = list(filter(None, map(call_of, [name, *about["aliases"].split()])))
        if calls and "hidden" not in about["flags"]:
            if not any(call in about["example"] for call in calls):
                missing.append(name)
            failures.append(failures_of(name, about["example"]))
    assert not missing, missing
    assert len(failures) > 250 and not any(failures), "".join(failures)


def test_op_docstrings_end_with_their_examples():
    example = "\n\nExamples\n--------\n>>> nd.relu(nd.array([-1, 0, 2])).asnumpy()\n"
    assert nd.relu.__doc__.endswith(example + "array([0., 0., 2.], dtype=float32)")
    assert example.replace(">>>", "As a function of arrays:\n\n>>>") in mx.sym.relu.__doc__
    assert _core.get_op("relu").describe()["doc"] == "The value, or 0 where it is negative."
    assert "Examples" not in nd._internal._mod.__doc__


def is_public(name):
    return not any(part.startswith("_") for part in name.split("."))


def without_example(value):
    return ">>>" not in str(value.__doc__)


def test_classes_have_examples():
    missing = []
    for name in filter(is_public, MODULES):
        for path, value in objects(importlib.import_module(name)):
            if inspect.isclass(value) and path not in WITHOUT and without_example(value):
                missing += [] if issubclass(value, Exception) else [f"{name}.{path}"]
    missing += [kind.__name__ for kind in (nd.NDArray, mx.Context) if without_example(kind)]
    assert not missing, missing


@pytest.mark.parametrize(
    "name",
    ["nd", "nd.random", "nd.contrib", "nd.image", "sym", "sym.random", "sym.contrib", "profiler"],
)
def test_functions_have_examples(name):
    """Covers functions that are not ops; those of `sym` may rely on the example of `nd`."""
    space = functools.reduce(getattr, name.split("."), mx)
    # Defined in other modules, always raising, or old names
    elsewhere = {"current_context", "fill", "histogram", "dump_profile"}
    missing = [
        key
        for key, value in vars(space).items()
        if is_public(key)
        and inspect.isroutine(value)
        and not isinstance(value, (_core.Op, Function))
        and not key.startswith("profiler_")
        and key not in elsewhere
        and without_example(value)
    ]
    assert not missing, missing


@pytest.mark.parametrize("space", ["np", "npx"])
def test_examples_of_numpy_functions_run(space):
    """In these examples, np is mx.np."""
    functions = vars(getattr(mx, space))
    failures = [
        failures_of(name, str(inspect.getdoc(value)), np=mx.np, npx=mx.npx)
        for name, value in functions.items()
        if inspect.isroutine(value) and value.__module__.startswith("mpgluon.numpy")
    ]
    assert len(failures) > 40 and not any(failures), "".join(failures)


def test_examples_of_core_functions_run():
    """Covers functions and types written in C."""
    values = [nd.NDArray, mx.Context, nd.array, nd.waitall, nd.from_dlpack]
    values += [nd.to_dlpack_for_read, nd.to_dlpack_for_write]
    failures = [failures_of(value.__name__, inspect.getdoc(value)) for value in values]
    assert not any(failures), "".join(failures)


def test_every_name_of_parallel_has_examples():
    """Except for the split form of attention, which only `shard` creates."""
    there = {name: getattr(mx.parallel, name) for name in mx.parallel.__all__}
    found = [name for name, value in there.items() if ">>>" not in str(value.__doc__)]
    assert found == ["ParallelHeads", "schedules"]
