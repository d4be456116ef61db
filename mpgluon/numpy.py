"""Placeholder for MXNet's NumPy-like interface, which is not part of this package.

Programs may test whether an array is an ``mx.np.ndarray``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core
from ._internal.hints import of_numpy as _of_numpy

if TYPE_CHECKING:
    from typing import Any, NoReturn


__all__ = ["ndarray"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _of_numpy(__name__, name)


class ndarray(_core.NDArray):
    """The array type of ``mx.np``, which has no instances. Use ``mx.nd``."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise _core.NotSupportedError("mx.np.ndarray: mpgluon does not have mx.np; use mx.nd")
