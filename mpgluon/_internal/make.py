"""Functions of ``mx.nd`` that create arrays, here as the kind that the switch selects."""

from __future__ import annotations

from typing import Any

from .. import ndarray as nd
from .kinds import of_mode


def array(*args: Any, **kwargs: Any) -> nd.NDArray:
    return of_mode(nd.array(*args, **kwargs))


def zeros(*args: Any, **kwargs: Any) -> nd.NDArray:
    return of_mode(nd.zeros(*args, **kwargs))


def full(*args: Any, **kwargs: Any) -> nd.NDArray:
    return of_mode(nd.full(*args, **kwargs))


def arange(*args: Any, **kwargs: Any) -> nd.NDArray:
    return of_mode(nd.arange(*args, **kwargs))
