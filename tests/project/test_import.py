"""Importing the package loads only the modules that every program needs; its names work."""

import importlib
import inspect
import os
import pickle
import shutil
import subprocess
import sys
import types

import pytest

import mpgluon as mx
from support.processes import output_of

PROGRAM = """
import sys
before = set(sys.modules)
import numpy
numpy_loads = set(sys.modules)
import mpgluon
heavy = {
    "multiprocessing", "PIL", "matplotlib", "tqdm", "mpgluon.symbol", "mpgluon.module",
    "mpgluon.gluon.data", "mpgluon.optimizer",
}
print(sorted((set(sys.modules) - numpy_loads) & heavy))
import os
with open("/proc/self/maps") as f:
    maps = f.read()
print([name for name in ("libcuda", "libcudart", "libdnnl") if name in maps])
"""


def test_import_is_light():
    """Heavy modules and kernel libraries, especially CUDA's, load on first use."""
    assert output_of(PROGRAM).split("\n")[:2] == ["[]", "[]"]


def test_import_of_unbuilt_sources_raises_with_a_hint(tmp_path):
    """For instance if Python starts in a clone while the package is installed."""
    folder = tmp_path / "mpgluon"
    folder.mkdir()
    for name in ("__init__.py", "libinfo.py"):
        shutil.copy(os.path.join(os.path.dirname(mx.__file__), name), folder)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import mpgluon"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "sources in" in done.stderr and "start Python in another folder" in done.stderr


def test_failed_import_can_be_repeated():
    """NumPy may be available the next time."""
    printed = output_of("""
        import sys
        names = ("numpy", "numpy._core", "numpy._core._multiarray_umath", "numpy.core",
                 "numpy.core._multiarray_umath")
        sys.modules.update(dict.fromkeys(names))
        try:
            import mpgluon
        except ImportError:
            print("refused")
        for name in list(sys.modules):
            if name.split(".")[0] in ("numpy", "mpgluon"):
                del sys.modules[name]
        import mpgluon
        print(mpgluon.nd.ones((2,)).asnumpy().sum())
        """)
    assert printed.split() == ["refused", "2.0"]


def test_python_without_gil_is_rejected():
    """A free-threaded Python enables the GIL for extension modules that do not declare support.
    With PYTHON_GIL=0 it stays off, and the import must fail."""
    for answer, expected in (
        ("False", "ImportError mpgluon needs Python's global interpreter lock"),
        ("True", "imported"),
    ):
        code = (
            f"import sys; sys._is_gil_enabled = lambda: {answer}\n"
            "try:\n    import mpgluon\nexcept ImportError as error:\n    "
            "print(type(error).__name__, error)\nelse:\n    print('imported')"
        )
        assert output_of(code).startswith(expected)


def test_names_in_dir_exist():
    """Every name in dir() of a public module exists. The only public modules of `mpgluon.parallel`
    are its schedules and collectives."""
    printed = output_of("""
        import importlib, pkgutil
        import mpgluon as mx
        names = [info.name for info in pkgutil.walk_packages(mx.__path__, "mpgluon.")]
        for name in ["mpgluon", *names]:
            if not any(part.startswith("_") for part in name.split(".")):
                module = importlib.import_module(name)
                for listed in dir(module):
                    getattr(module, listed)
        inside = [name.rsplit(".", 1) for name in names if name.startswith("mpgluon.parallel.")]
        print(*[name for parent, name in inside if parent == "mpgluon.parallel" and name[0] != "_"])
        """)
    assert printed.split() == ["collectives", "schedules"]


@pytest.mark.parametrize(
    "name", [*"executor_manager log misc monitor numpy_dispatch_protocol rnn".split()]
)
def test_legacy_modules_are_imported_under_their_own_names(name):
    module = importlib.import_module(f"mpgluon.{name}")
    assert getattr(mx, name) is module and module.__name__ == f"mpgluon.{name}"
    assert os.path.join("mpgluon", "legacy", name) in module.__file__
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"mpgluon.legacy.{name}")


@pytest.mark.parametrize(
    "name", ["model.FeedForward", "monitor.Monitor", "rnn.rnn_cell.LSTMCell", "rnn.io.DataIter"]
)
def test_pickles_name_legacy_classes_by_public_modules(name):
    module, _, kind = name.rpartition(".")
    loaded = pickle.loads(f"cmpgluon.{module}\n{kind}\n.".encode())
    assert loaded is getattr(importlib.import_module(f"mpgluon.{module}"), kind)
    assert b"legacy" not in pickle.dumps(loaded)


def public_names(module):
    return getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]


def test_listed_names_are_documented_and_complete():
    """Each listed name is a module with all its names, or has a docstring."""
    listed = [name for name in dir(mx) if not name.startswith("__")]
    assert {"nd", "np", "npx", "sym", "gluon", "mod", "parallel", "cpu", "NDArray"} <= set(listed)
    assert not any(name.startswith("_") for name in listed)
    for name in listed:
        value = getattr(mx, name)
        if isinstance(value, types.ModuleType):
            assert inspect.getdoc(value), name
            for inner in public_names(value):
                assert hasattr(value, inner), f"{name}.{inner}"
        else:
            assert callable(value) and inspect.getdoc(value), name
