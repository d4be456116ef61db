"""mpgluon: MXNet Gluon's API, in which one hybridized block may span many devices.

It is imported as mx::

    import mpgluon as mx
"""

# ruff: noqa: E402 - the rest of the package needs the folders of libraries

import importlib as _importlib
import os as _os
import sys as _sys

from . import _core
from .libinfo import __version__

_core._set_package_folder(_os.path.dirname(_os.path.abspath(__file__)))


def _library_folders():
    """Where wheels put libraries (oneDNN, OpenBLAS, and what GPUs need), seen from the interpreter
    and from where NumPy was found."""
    site = _os.path.dirname(_os.path.dirname(_sys.modules["numpy"].__file__))
    folders = [
        _os.path.join(_sys.prefix, "lib"),
        _os.path.join(site, "..", "..", ""),
        _os.path.join(site, "scipy_openblas32", "lib"),
        site,
    ]
    folders += [
        path
        for path in _sys.path
        if _os.path.basename(path) in ("site-packages", "dist-packages") and path != site
    ]
    return [_os.path.normpath(folder) for folder in folders if _os.path.isdir(folder)]


_core.set_library_folders(_library_folders())

from . import autograd, base, context, engine, ndarray, ndarray as nd, random, runtime, util
from ._hints import FUNCTIONS as _FUNCTIONS, of_module as _of_module
from .base import MXNetError, bfloat16
from .context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from .ndarray import NDArray, waitall
from .random import seed as _seed
from .util import is_np_array, is_np_shape, np_shape, set_np_shape, use_np_shape

# Loaded when first used, so that `import mpgluon` stays quick.
_LAZY = {
    "attribute": "attribute",
    "callback": "callback",
    "executor": "executor",
    "gluon": "gluon",
    "info": "info",
    "init": "initializer",
    "initializer": "initializer",
    "io": "io",
    "kv": "kvstore",
    "kvstore": "kvstore",
    "log": "log",
    "lr_scheduler": "lr_scheduler",
    "metric": "metric",
    "mod": "module",
    "model": "model",
    "module": "module",
    "mon": "monitor",
    "monitor": "monitor",
    "name": "name",
    "np": "numpy",
    "numpy": "numpy",
    "opt": "optimizer",
    "optimizer": "optimizer",
    "operator": "operator",
    "parallel": "parallel",
    "profiler": "profiler",
    "registry": "registry",
    "rnn": "rnn",
    "sym": "symbol",
    "symbol": "symbol",
    "test_utils": "test_utils",
    "viz": "visualization",
    "visualization": "visualization",
}
_LAZY_NAMES = {"AttrScope": "attribute", "Symbol": "symbol"}


def __getattr__(name):
    if name in _LAZY_NAMES:
        return getattr(_importlib.import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)
    if name in _LAZY:
        module = globals()[name] = _importlib.import_module(f"{__name__}.{_LAZY[name]}")
        return module
    raise _of_module(__name__, name, _FUNCTIONS)


def __dir__():
    return sorted(set(globals()) | set(_LAZY) | set(_LAZY_NAMES))
