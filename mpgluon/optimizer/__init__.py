"""Optimizers, which update weights by their gradients.

`create(name, **options)` creates an optimizer by name. Gluon's Trainer calls optimizers;
`get_updater` returns a function that also holds the states.
"""

from .._internal.hints import OPTIMIZERS as _OPTIMIZERS, near_names as _near_names
from . import contrib
from .adaptive import FTML, LAMB, AdaDelta, AdaGrad, Adam, Adamax, Ftrl, Nadam, RMSProp
from .decoupled import Adafactor, AdamW, Lion, Muon
from .optimizer import Optimizer, Test, create, register
from .sgd import DCASGD, LARS, LBSGD, NAG, SGD, SGLD, Signum, ccSGD
from .updater import Updater, get_updater

__all__ = [
    "AdaDelta",
    "AdaGrad",
    "Adafactor",
    "Adam",
    "AdamW",
    "Adamax",
    "DCASGD",
    "FTML",
    "Ftrl",
    "LAMB",
    "LARS",
    "LBSGD",
    "Lion",
    "Muon",
    "NAG",
    "Nadam",
    "Optimizer",
    "RMSProp",
    "SGD",
    "SGLD",
    "Signum",
    "Test",
    "Updater",
    "ccSGD",
    "contrib",
    "create",
    "get_updater",
    "register",
]

_near_names(__name__, **_OPTIMIZERS)
