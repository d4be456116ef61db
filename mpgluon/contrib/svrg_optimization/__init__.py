"""Stochastic variance-reduced gradients (SVRG): ``mx.contrib.svrg_optimization``."""

from . import svrg_module as svrg_module, svrg_optimizer as svrg_optimizer
from .svrg_module import SVRGModule as SVRGModule

__all__ = ["SVRGModule", "svrg_module", "svrg_optimizer"]
