"""Ops that MXNet keeps under ``contrib``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ndarray import _zipfian
from . import random as _random
from ._control import cond, foreach, while_loop  # noqa: F401
from ._namespaces import fill

if TYPE_CHECKING:
    from ..symbol import Symbol
    from ._contrib_ops import *  # noqa: F403

fill("contrib", globals())


def rand_zipfian(
    true_classes: Symbol, num_sampled: int, range_max: int
) -> tuple[Symbol, Symbol, Symbol]:
    """Draws classes in [0, range_max) of which smaller ones are more frequent: P(class) =
    log((class + 2) / (class + 1)) / log(range_max + 1).

    Parameters
    ----------
    true_classes : Symbol
        The classes that are there, whose expected counts are returned.
    num_sampled, range_max : int
        How many numbers are drawn, and the number that they are below.

    Returns
    -------
    sampled_classes : Symbol, int64
    expected_count_true, expected_count_sampled : Symbol, float64
        How often the true and the sampled classes are expected in so many draws.

    Examples
    --------
    >>> samples, true, sampled = mx.sym.contrib.rand_zipfian(mx.sym.var("x"), 4, 5)
    >>> samples.eval(x=nd.array([3]))[0].shape
    (4,)
    """
    return _zipfian.draw(
        lambda high: _random.uniform(0, high, shape=(num_sampled,), dtype="float64"),
        true_classes,
        num_sampled,
        range_max,
    )
