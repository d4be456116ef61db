"""Random numbers: the seed, and the samplers of ``mx.nd.random``.

A random number is a function of the seed, the count of random calls since it was set, and the
position in the array. It never depends on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core
from ._hints import near_names as _near_names
from .ndarray.random import *  # noqa: F403
from .ndarray.random import __all__ as _samplers

if TYPE_CHECKING:
    from ._core import Context, Scope


__all__ = ["seed", "get_state", "set_state", *_samplers]

_near_names(__name__, manual_seed="mx.random.seed")


def seed(seed_state: int, ctx: Context | str = "all") -> None:
    """Sets the seed and resets the count of random calls.

    ``ctx`` is accepted for compatibility with MXNet and ignored, as all devices share one sequence.
    Raises ValueError if the seed is not an integer.

    Examples
    --------
    >>> mx.random.seed(7)
    >>> first = nd.random.uniform(shape=3).asnumpy()
    >>> mx.random.seed(7)
    >>> bool((nd.random.uniform(shape=3).asnumpy() == first).all())
    True
    """
    try:
        _core.random_seed(seed_state)
    except TypeError:
        raise ValueError(f"random.seed: the seed must be an integer, got {seed_state!r}") from None


def get_state() -> tuple[int, int]:
    """Returns the seed and the count of random calls, for `set_state`.

    Examples
    --------
    >>> state = mx.random.get_state()
    >>> mx.random.set_state(state)
    """
    return _core.random_state()


def calls_at(state: tuple[int, int]) -> Scope:
    """Returns a scope whose random calls start at `state`.

    Calls after the scope are as if it had made none.
    """
    return _core.Scope((_core.random_restore, state))


def set_state(state: tuple[int, int]) -> None:
    """Restores a state returned by `get_state`.

    Examples
    --------
    >>> state = mx.random.get_state()
    >>> first = nd.random.uniform(shape=3).asnumpy()
    >>> mx.random.set_state(state)
    >>> bool((nd.random.uniform(shape=3).asnumpy() == first).all())
    True
    """
    _core.random_restore(state)
