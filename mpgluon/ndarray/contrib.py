"""Ops that MXNet keeps under ``contrib``."""

from . import _namespaces, _zipfian
from .. import _core
from . import random as _random
from ._control import allclose, boolean_mask, cond, foreach, while_loop  # noqa: F401

_namespaces.fill(_core.ops(), {"contrib": globals()})


def rand_zipfian(true_classes, num_sampled, range_max, ctx=None):
    """Draws classes in [0, range_max) of which smaller ones are more frequent: P(class) = log((class + 2) / (class + 1)) / log(range_max + 1).

    Parameters
    ----------
    true_classes : NDArray
    num_sampled, range_max : int
    ctx : Context, optional
        Where; that of `true_classes` by default.

    Returns
    -------
    sampled_classes : NDArray, int64
    expected_count_true, expected_count_sampled : NDArray, float64
        How often the true and the sampled classes are expected in so many draws.
    """
    ctx = true_classes.context if ctx is None else ctx
    true_classes = true_classes.as_in_context(ctx)
    return _zipfian.draw(lambda high: _random.uniform(0, high, shape=(num_sampled,), dtype="float64", ctx=ctx), true_classes, num_sampled, range_max)
