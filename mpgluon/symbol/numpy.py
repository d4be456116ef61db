"""MXNet's NumPy-like symbols are not part of this package. What is here lets programs ask whether a
symbol is one of them."""

from .. import _core
from .symbol import Symbol

__all__ = ["_Symbol"]


class _Symbol(Symbol):
    """The symbol type of ``mx.sym.np``: no symbol is one, so ``isinstance`` says no."""

    __slots__ = ()

    def __init__(self, *args):
        raise _core.NotSupportedError("mx.sym.np: there is no mx.np in mpgluon; use mx.sym")
