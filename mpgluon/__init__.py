"""mpgluon: MXNet Gluon's API, in which one hybridized block may span many devices.

Import it as mx::

    import mpgluon as mx
"""

# ruff: noqa: E402 - the later imports need the library folders set first

from __future__ import annotations

import importlib as _importlib
import os as _os
import sys as _sys

try:
    from . import _core
except ImportError as _error:
    _folder = _os.path.dirname(_os.path.abspath(__file__))
    if any(name.startswith("_core.") and name.endswith(".so") for name in _os.listdir(_folder)):
        raise
    raise ImportError(
        f"mpgluon was imported from its sources in {_folder}, where the C core is not built; to "
        "use the installed package, start Python in another folder, or build with python "
        "setup.py build_ext --inplace"
    ) from _error
from .libinfo import __version__ as __version__

# The folder legacy holds MXNet modules that new programs do not need. They are imported under their
# MXNet names: legacy/rnn is mpgluon.rnn.
__path__.append(_os.path.join(__path__[0], "legacy"))

_core._set_package_folder(_os.path.dirname(_os.path.abspath(__file__)))


def _library_folders() -> list[str]:
    """Returns the folders where wheels install oneDNN, OpenBLAS and the GPU libraries.

    This package's own folder comes first, then those of the interpreter and of NumPy.
    """
    site = _os.path.dirname(_os.path.dirname(_sys.modules["numpy"].__file__))
    folders = [
        _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "_libraries"),
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

from . import (
    autograd as autograd,
    base as base,
    context as context,
    engine as engine,
    ndarray as nd,
    ndarray as ndarray,
    random as random,
    runtime as runtime,
    util as util,
)
from ._internal.hints import FUNCTIONS as _FUNCTIONS, of_module as _of_module
from .base import MXNetError as MXNetError, bfloat16 as bfloat16
from .context import (
    Context as Context,
    cpu as cpu,
    cpu_pinned as cpu_pinned,
    current_context as current_context,
    gpu as gpu,
    num_gpus as num_gpus,
)
from .ndarray import NDArray as NDArray, waitall as waitall
from .util import (
    is_np_array as is_np_array,
    is_np_shape as is_np_shape,
    np_array as np_array,
    np_shape as np_shape,
    set_np_shape as set_np_shape,
    use_np as use_np,
    use_np_array as use_np_array,
    use_np_shape as use_np_shape,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import (
        attribute as attribute,
        callback as callback,
        contrib as contrib,
        error as error,
        executor as executor,
        gluon as gluon,
        image as image,
        image as img,
        info as info,
        initializer as init,
        initializer as initializer,
        interop as interop,
        io as io,
        kvstore as kv,
        kvstore as kvstore,
        library as library,
        log as log,
        lr_scheduler as lr_scheduler,
        metric as metric,
        model as model,
        module as mod,
        module as module,
        monitor as mon,
        monitor as monitor,
        name as name,
        numpy as np,
        numpy as numpy,
        onnx as onnx,
        operator as operator,
        optimizer as opt,
        optimizer as optimizer,
        parallel as parallel,
        profiler as profiler,
        random as rnd,
        recordio as recordio,
        registry as registry,
        rnn as rnn,
        rtc as rtc,
        symbol as sym,
        symbol as symbol,
        test_utils as test_utils,
        visualization as visualization,
        visualization as viz,
    )
    from .as_mxnet import install as as_mxnet
    from .attribute import AttrScope as AttrScope
    from .symbol import Symbol as Symbol

# Modules loaded on first use, to keep `import mpgluon` fast, and their short names.
_LAZY = {
    name: name
    for name in (
        "as_mxnet attribute callback contrib error executor executor_manager gluon image info "
        "initializer interop io kvstore library log lr_scheduler metric misc model module monitor "
        "name numpy numpy_extension onnx operator optimizer parallel profiler recordio registry "
        "rnn rtc symbol test_utils visualization"
    ).split()
} | {
    "img": "image",
    "init": "initializer",
    "kv": "kvstore",
    "mod": "module",
    "mon": "monitor",
    "np": "numpy",
    "npx": "numpy_extension",
    "opt": "optimizer",
    "rnd": "random",
    "sym": "symbol",
    "viz": "visualization",
}
_LAZY_NAMES = {"AttrScope": "attribute", "Symbol": "symbol"}


if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__

    def __getattr__(name: str) -> object:
        if name in _LAZY_NAMES:
            return getattr(_importlib.import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)
        if name in _LAZY:
            module = globals()[name] = _importlib.import_module(f"{__name__}.{_LAZY[name]}")
            return module
        ways = {name: f"nd.{name}", **_FUNCTIONS} if name in vars(nd) else _FUNCTIONS
        raise _of_module(__name__, name, ways)


# Attributes that `dir` omits, because users have no use for them.
_UNLISTED = {"TYPE_CHECKING", "annotations"}


def __dir__() -> list[str]:
    names = (set(globals()) | set(_LAZY) | set(_LAZY_NAMES)) - _UNLISTED
    return sorted(name for name in names if not name.startswith("_") or name.startswith("__"))
