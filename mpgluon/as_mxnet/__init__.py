"""The name mxnet: makes ``import mxnet`` import mpgluon, for code that cannot be changed.

In a program, before anything imports mxnet::

    import mpgluon
    mpgluon.as_mxnet()

For an unmodified script::

    python -m mpgluon.as_mxnet FILE ...
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing.pool
import os
import runpy
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import MXNetError
from . import imported_names

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS = __name__.rpartition(".")[0]
VERSION = "1.9.1"

# MXNet modules that have a different name in mpgluon.
MODULES = {
    "contrib.ndarray": "ndarray.contrib",
    "contrib.onnx.mx2onnx": "onnx",
    "contrib.onnx.mx2onnx.export_model": "onnx",
    "contrib.onnx.onnx2mx": "contrib.onnx",
    "contrib.onnx.onnx2mx.import_model": "contrib.onnx",
    "contrib.onnx.onnx2mx.import_to_gluon": "contrib.onnx",
    "contrib.symbol": "symbol.contrib",
    "gluon.contrib.cnn.conv_layers": "gluon.contrib.cnn",
    "gluon.contrib.nn.basic_layers": "gluon.contrib.nn",
    "kvstore.base": "kvstore",
    "kvstore.kvstore": "kvstore",
    "kvstore.kvstore_server": "kvstore",
    "kvstore_server": "kvstore",
    "module.executor_group": "executor_manager",
    "ndarray.numpy": "numpy",
    "ndarray.numpy_extension": "numpy_extension",
    "ndarray.register": "as_mxnet.register",
    "ndarray.utils": "ndarray",
    "numpy.fallback": "numpy._fallback",
    "numpy.multiarray": "numpy",
    "onnx.mx2onnx": "onnx",
    "symbol.register": "as_mxnet.register",
}

# Names that NumPy 1.24 and 2 removed, and their replacements.
NUMPY_NAMES: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "object": object,
    "str": str,
    "long": int,
    "unicode": str,
    "float_": np.float64,
    "complex_": np.complex128,
    "unicode_": np.str_,
    "string_": np.bytes_,
    "Inf": np.inf,
    "Infinity": np.inf,
    "infty": np.inf,
    "NaN": np.nan,
    "NINF": -np.inf,
    "PINF": np.inf,
    "NZERO": -0.0,
    "PZERO": 0.0,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "sometrue": np.any,
    "alltrue": np.all,
    "row_stack": np.vstack,
    "in1d": lambda ar1, ar2, **options: np.isin(np.ravel(ar1), ar2, **options),
    "asscalar": lambda a: a.item(),
}


_text_of_numbers = np.fromstring


def _fromstring(string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", **more: Any):
    """Implements ``np.fromstring`` with bytes, which NumPy 2.3 rejects."""
    if sep:
        return _text_of_numbers(string, dtype, count, sep=sep, **more)
    return np.frombuffer(string, dtype, count).copy()


class _Renamed(types.ModuleType):
    """A module with MXNet's version and the names of a module of mpgluon."""

    def __init__(self, name: str, module: types.ModuleType):
        super().__init__(name, module.__doc__)
        self.__version__ = VERSION
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # for `from mxnet import *`, which reads no other attribute
            return [public for public in dir(self) if not public.startswith("_")]
        return getattr(self._module, name)

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, which is {self._module.__name__}>"

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._module), *vars(self)})


def _ours(name: str) -> str:
    """Converts the name of a module of MXNet to the name of mpgluon's module."""
    inner = name[len("mxnet.") :]
    return f"{OURS}.{MODULES.get(inner, inner)}".rstrip(".")


class _Loader(importlib.abc.Loader):
    """Loads the modules of mxnet: the same objects as mpgluon's, except those with a version."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        ours = importlib.import_module(_ours(spec.name))
        if spec.name in ("mxnet", "mxnet.libinfo"):
            return _Renamed(spec.name, ours)
        self._spec = ours.__spec__
        return ours

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "mxnet":
            module.libinfo = importlib.import_module("mxnet.libinfo")
        elif not isinstance(module, _Renamed):
            module.__spec__ = self._spec  # importing it as mxnet has replaced __spec__


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook that finds mxnet, and its modules as far as mpgluon has them."""

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != "mxnet":
            return None
        try:
            ours = importlib.util.find_spec(_ours(fullname))
        except ModuleNotFoundError:
            return None
        if ours is None:
            return None
        inner = fullname + "."
        package = ours.submodule_search_locations is not None or any(
            f"mxnet.{name}".startswith(inner) for name in MODULES
        )
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=package)


def install(numpy_names: bool = False) -> None:
    """Makes ``import mxnet``, and imports of its modules, import mpgluon.

    ``mxnet.__version__`` is 1.9.1, the version whose behavior mpgluon implements.

    Parameters
    ----------
    numpy_names : bool, default False
        True to restore names that NumPy has removed, such as ``np.bool`` and ``np.float``, for
        packages that use them. It changes NumPy for the whole program.

    Raises
    ------
    MXNetError
        If another mxnet has been imported already.

    Examples
    --------
    >>> import mpgluon
    >>> mpgluon.as_mxnet()
    >>> import mxnet
    >>> mxnet.__version__
    '1.9.1'
    >>> mxnet.gluon.nn is mpgluon.gluon.nn
    True
    """
    present = sys.modules.get("mxnet")
    if present is not None and not isinstance(present, _Renamed) and not _is_wheel(present):
        raise MXNetError(
            f"mxnet is already imported, from {getattr(present, '__file__', 'somewhere')}; call "
            "mpgluon.as_mxnet() before anything imports mxnet"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if present is None or _is_wheel(present):
        sys.modules.pop("mxnet", None)
        importlib.import_module("mxnet")
    imported_names.give(OURS, MODULES)
    if numpy_names:
        for name, value in NUMPY_NAMES.items():
            if name not in vars(np):
                setattr(np, name, value)
        if np.fromstring is not _fromstring:
            np.fromstring = _fromstring


def _is_wheel(module: types.ModuleType) -> bool:
    """True if the module is the package `mxnet` of mpgluon's own wheel (tools/mxnet_wheel)."""
    return bool(getattr(module, "provided_by_mpgluon", False))


def _give_to_children(numpy_names: bool) -> None:
    """Makes child processes of the program find mxnet.

    Those of multiprocessing inherit the path; all other processes read PYTHONPATH.
    """
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "path")
    sys.path.insert(0, folder)
    paths = [folder, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if numpy_names:
        os.environ["MPGLUON_NUMPY_NAMES"] = "1"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a script, or a module, with mpgluon as mxnet."""
    parser = argparse.ArgumentParser(
        prog="python -m mpgluon.as_mxnet", description="Runs a program whose mxnet is mpgluon."
    )
    parser.add_argument(
        "--numpy-names", action="store_true", help="restore NumPy's removed names: np.bool, …"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, not a file")
    parser.add_argument("program", help="the script, or with -m the module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    options = parser.parse_args(arguments)
    if not options.module and not os.path.exists(options.program):
        parser.error(f"no such file: {options.program}")
    install(options.numpy_names)
    _give_to_children(options.numpy_names)
    sys.argv = [options.program, *options.arguments]
    if options.module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(options.program)))
        runpy.run_path(options.program, run_name="__main__")


class _Function(types.ModuleType):
    """This module, which is also a function: `mpgluon.as_mxnet()`."""

    def __call__(self, numpy_names: bool = False) -> None:
        install(numpy_names)


sys.modules[__name__].__class__ = _Function
