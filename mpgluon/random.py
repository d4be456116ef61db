"""Random numbers: the seed, and the samplers of ``mx.nd.random``.

A random number is a function of the seed, the count of random calls since it was set, and the
position in the array. It never depends on the device.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

from . import _core
from ._internal import graph_breaks
from ._internal.hints import near_names as _near_names
from .ndarray.random import *  # noqa: F403
from .ndarray.random import __all__ as _samplers

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._core import Context, Scope


__all__ = ["seed", "get_state", "set_state", *_samplers]

_near_names(__name__, manual_seed="mx.random.seed")


def seed(seed_state: int, ctx: Context | str = "all") -> None:
    """Sets the seed and resets the count of random calls.

    ``ctx`` is accepted for compatibility with MXNet and ignored, as all devices share one sequence.
    Raises ValueError if the seed is not an integer.

    In a hybridized block it acts in every call, between two compiled parts.

    Examples
    --------
    >>> mx.random.seed(7)
    >>> first = nd.random.uniform(shape=3).asnumpy()
    >>> mx.random.seed(7)
    >>> bool((nd.random.uniform(shape=3).asnumpy() == first).all())
    True
    """
    try:
        number = index(seed_state)
    except TypeError:
        raise ValueError(f"random.seed: the seed must be an integer, got {seed_state!r}") from None
    _act("random.seed", _core.random_seed, number)


def _act(name: str, function: Callable[[Any], Any], value: Any) -> None:
    """Changes the random state. In a hybridized block, each call of the block changes it."""
    tracer = graph_breaks.current()

    def run(_arrays: Any) -> list[Any]:
        function(value)
        return []

    if tracer is None:
        run([])
    else:
        tracer.host(name, run, [], [])


def get_state() -> tuple[int, int]:
    """Returns the seed and the count of random calls, for `set_state`.

    Raises MXNetError inside a hybridized block, where it would not run in every call.

    Examples
    --------
    >>> state = mx.random.get_state()
    >>> mx.random.set_state(state)
    """
    graph_breaks.refuse_in_trace("random.get_state")
    return _core.random_state()


def calls_at(state: tuple[int, int]) -> Scope:
    """Returns a scope whose random calls start at `state`.

    Calls after the scope are as if it had made none.
    """
    return _core.Scope((_core.random_restore, state))


def position() -> Any:
    """Returns the number of the next random call: in the active trace, or else the random state."""
    traced = _core.traced_draws()
    return _core.random_state() if traced is None else traced


def calls_from(number: Any) -> Scope:
    """Returns a scope whose random calls repeat those from `number`, a result of `position`, on.

    Calls after the scope are as if it had made none.
    """
    return _core.Scope((_setter(number), number))


def move_to(number: Any) -> None:
    """Makes the next random calls repeat those from `number`, a result of `position`, on."""
    _setter(number)(number)


def _setter(number):
    return _core.random_restore if isinstance(number, tuple) else _core.set_traced_draws


def set_state(state: tuple[int, int]) -> None:
    """Restores a state returned by `get_state`. In a hybridized block it acts in every call.

    Examples
    --------
    >>> state = mx.random.get_state()
    >>> first = nd.random.uniform(shape=3).asnumpy()
    >>> mx.random.set_state(state)
    >>> bool((nd.random.uniform(shape=3).asnumpy() == first).all())
    True
    """
    _act("random.set_state", _core.random_restore, state)
