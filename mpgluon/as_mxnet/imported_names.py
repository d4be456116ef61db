"""Names that MXNet's modules have only through imports, but that packages import from there.

An example is `from mxnet.metric import ndarray`. Under the name mxnet, mpgluon's modules have these
names as well.
"""

from __future__ import annotations

import importlib
from typing import Any

# MXNet module -> {mpgluon module that defines the names: the names}. The key "" is mpgluon itself,
# whose names include its modules, such as ndarray.
NAMES = {
    "gluon.block": {
        "": "MXNetError initializer ndarray symbol",
        "gluon": "HybridBlock Parameter ParameterDict",
        "gluon.parameter": "DeferredInitializationError",
        "ndarray": "NDArray",
        "symbol": "Symbol",
    },
    "gluon.loss": {"": "ndarray"},
    "gluon.parameter": {"": "Context autograd context cpu initializer ndarray symbol"},
    "gluon.rnn.rnn_cell": {
        "": "ndarray symbol",
        "base": "numeric_types string_types",
        "gluon": "Block HybridBlock",
        "gluon.nn": "LeakyReLU",
    },
    "gluon.utils": {"": "ndarray"},
    "image": {"": "io nd recordio"},
    "image.detection": {
        "": "io",
        "image": "ColorJitterAug ColorNormalizeAug HueJitterAug ImageDetIter ImageIter LightingAug "
        "RandomGrayAug RandomOrderAug",
    },
    "image.image": {"": "io recordio"},
    "initializer": {"ndarray": "NDArray"},
    "io.io": {
        "io": "CSVIter ImageDetRecordIter ImageRecordInt8Iter ImageRecordIter "
        "ImageRecordUInt8Iter LibSVMIter MNISTIter",
        "ndarray": "NDArray array",
    },
    "metric": {"": "ndarray registry", "base": "numeric_types string_types"},
    "model": {"": "Context cpu io metric"},
    "monitor": {"": "ndarray", "ndarray": "NDArray"},
    "ndarray.random": {"ndarray": "NDArray"},
    "optimizer.optimizer": {
        "ndarray": "NDArray adam_update array cast clip ftml_update ftrl_update maximum multiply "
        "nag_mom_update rmsprop_update rmspropalex_update sgd_mom_update sgd_update "
        "signsgd_update signum_update sparse sqrt square zeros",
    },
    "rnn.rnn_cell": {
        "": "ndarray symbol",
        "rnn": "BaseConvRNNCell ConvGRUCell ConvLSTMCell ConvRNNCell FusedRNNCell",
    },
    "test_utils": {"": "Context current_context", "ndarray": "array", "symbol": "Symbol"},
}


def give(package: str, modules: dict[str, str]) -> None:
    """Adds these names to the modules of a package that lack them.

    `modules` maps MXNet's module names to mpgluon's, which become attributes of their parents.
    """

    def module(name: str) -> Any:
        return importlib.import_module(f"{package}.{name}".rstrip("."))

    for name, sources in NAMES.items():
        ours = module(name)
        for source, names in sources.items():
            for wanted in names.split():
                if wanted not in vars(ours):
                    setattr(ours, wanted, getattr(module(source), wanted))
    for name, ours in modules.items():
        parent, _, last = name.rpartition(".")
        holder = module(modules.get(parent, parent))
        if last not in vars(holder):
            setattr(holder, last, module(ours))
    arrays = (module("symbol").Symbol, module("ndarray").NDArray)
    module("gluon").tensor_types = module("gluon.rnn.rnn_cell").tensor_types = arrays
