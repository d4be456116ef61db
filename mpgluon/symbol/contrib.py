"""The ops in MXNet's ``contrib``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from .._internal import domain
from .._internal.hints import of_contrib as _of_contrib
from ..context import current_context  # noqa: F401 - MXNet has it here as well
from ..ndarray import _zipfian
from . import random as _random
from ._control import cond, foreach, while_loop  # noqa: F401
from ._functions import Function as _Function
from ._graph import entries_of as _entries_of
from ._namespaces import fill
from .creation import full
from .symbol import Group as _Group, Symbol as _Symbol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..symbol import Symbol
    from ._contrib_ops import *  # noqa: F403

fill("contrib", globals())


uniform: Callable[..., Symbol] = _random.uniform


def BatchNormWithReLU(
    data: Symbol,
    gamma: Symbol | None = None,
    beta: Symbol | None = None,
    moving_mean: Symbol | None = None,
    moving_var: Symbol | None = None,
    eps: float = 0.001,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    output_mean_var: bool = False,
    axis: int = 1,
    cudnn_off: bool = False,
    min_calib_range: float | None = None,
    max_calib_range: float | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> Symbol:
    """Computes ``relu(sym.BatchNorm(...))``, with BatchNorm's parameters.

    Missing arrays become variables.

    Examples
    --------
    >>> y = mx.sym.contrib.BatchNormWithReLU(mx.sym.var("x"), name="norm")
    >>> y.list_arguments()
    ['x', 'norm_gamma', 'norm_beta']
    """
    arrays = {"gamma": gamma, "beta": beta, "moving_mean": moving_mean, "moving_var": moving_var}
    given = {key: value for key, value in arrays.items() if value is not None}
    options = {
        "eps": eps,
        "momentum": momentum,
        "fix_gamma": fix_gamma,
        "use_global_stats": use_global_stats,
        "output_mean_var": output_mean_var,
        "axis": axis,
        "cudnn_off": cudnn_off,
        "min_calib_range": min_calib_range,
        "max_calib_range": max_calib_range,
    }
    result = _function("BatchNorm")(data, **given, **options, name=name, **kwargs)
    parts = [_Symbol([entry]) for entry in _entries_of(result)]
    parts[0] = _function("relu")(parts[0])
    return parts[0] if len(parts) == 1 else _Group(parts)


def _function(op):
    return _Function(_core.get_op(op), op)


def _rescale(value):
    return value if isinstance(value, _Symbol) else full((1,), value)


def adamw_update(
    weight: Symbol,
    grad: Symbol,
    mean: Symbol,
    var: Symbol,
    rescale_grad: Symbol | float,
    lr: float,
    eta: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0,
    clip_gradient: float = -1,
    **options: Any,
) -> Symbol:
    """Runs one step of AdamW, like `mx.nd.contrib.adamw_update`.

    `mean` and `var` are auxiliary states.

    Parameters
    ----------
    weight, grad, mean, var : Symbol
        The weight, its gradient, and the moving averages of gradients and of their squares.
    rescale_grad : Symbol or float
        Factor of the gradients; if it is 0, inf or nan, nothing is updated.
    lr, eta : float
        The learning rate, and the factor of the whole step.
    beta1, beta2 : float
        The decay rates of the moving averages.
    epsilon : float
        Added to the square root of `var`.
    wd : float
        The weight decay.
    clip_gradient : float
        Gradients are clipped to [-clip_gradient, clip_gradient], unless it is negative.
    **options
        name.

    Examples
    --------
    >>> w, g, m, v = (mx.sym.var(name) for name in "wgmv")
    >>> step = mx.sym.contrib.adamw_update(w, g, m, v, 1.0, lr=0.1, eta=1)
    >>> step.list_auxiliary_states()
    ['m', 'v']
    """
    return _function("_adamw_update")(
        weight,
        grad,
        mean,
        var,
        _rescale(rescale_grad),
        lr=lr,
        eta=eta,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        wd=wd,
        clip_gradient=clip_gradient,
        **options,
    )


def mp_adamw_update(
    weight: Symbol,
    grad: Symbol,
    mean: Symbol,
    var: Symbol,
    weight32: Symbol,
    rescale_grad: Symbol | float,
    lr: float,
    eta: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0,
    clip_gradient: float = -1,
    **options: Any,
) -> Symbol:
    """Runs `adamw_update` on `weight32`, a float32 copy of the weight, which is an auxiliary state.

    Examples
    --------
    >>> w, g, m, v, copy = (mx.sym.var(name) for name in ["w", "g", "m", "v", "copy"])
    >>> step = mx.sym.contrib.mp_adamw_update(w, g, m, v, copy, 1.0, lr=0.1, eta=1)
    >>> step.list_auxiliary_states()
    ['m', 'v', 'copy']
    """
    return _function("_mp_adamw_update")(
        weight,
        grad,
        mean,
        var,
        weight32,
        _rescale(rescale_grad),
        lr=lr,
        eta=eta,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        wd=wd,
        clip_gradient=clip_gradient,
        **options,
    )


def _bounds_of(options):
    """Splits the options of LAMB. Returns the options of its second phase (the bounds), then the
    options of its first phase."""
    bounds = {name: options[name] for name in ("lower_bound", "upper_bound") if name in options}
    return bounds, {name: value for name, value in options.items() if name not in bounds}


def _each(update, **lists):
    """Calls `update` with the i-th items of all lists, for each i. Returns a group of the
    results."""
    domain.as_many(**lists)
    return _Group([update(*some) for some in zip(*lists.values())])


def multi_adamw_update(
    weights: Sequence[Symbol],
    grads: Sequence[Symbol],
    mean: Sequence[Symbol],
    var: Sequence[Symbol],
    rescale_grad: Symbol | float,
    lrs: Sequence[float],
    wds: Sequence[float],
    etas: Sequence[float],
    size: int = 0,
    **options: Any,
) -> Symbol:
    """Runs `adamw_update` on each of a list of weights, with separate rates; returns a group.

    Examples
    --------
    >>> w, g, m, v = ([mx.sym.var(name)] for name in "wgmv")
    >>> mx.sym.contrib.multi_adamw_update(
    ...     w, g, m, v, 1.0, lrs=[0.1], wds=[0], etas=[1]
    ... ).list_auxiliary_states()
    ['m', 'v']
    """

    def update(weight, grad, mean, var, lr, wd, eta):
        return adamw_update(weight, grad, mean, var, rescale_grad, lr, eta, wd=wd, **options)

    return _each(
        update, weights=weights, grads=grads, mean=mean, var=var, lrs=lrs, wds=wds, etas=etas
    )


def multi_mp_adamw_update(
    weights: Sequence[Symbol],
    grads: Sequence[Symbol],
    mean: Sequence[Symbol],
    var: Sequence[Symbol],
    weights32: Sequence[Symbol],
    rescale_grad: Symbol | float,
    lrs: Sequence[float],
    wds: Sequence[float],
    etas: Sequence[float],
    size: int = 0,
    **options: Any,
) -> Symbol:
    """Runs `mp_adamw_update` on each of a list of weights, with separate rates; returns a group.

    Examples
    --------
    >>> w, g, m, v, copy = ([mx.sym.var(name)] for name in ["w", "g", "m", "v", "copy"])
    >>> mx.sym.contrib.multi_mp_adamw_update(
    ...     w, g, m, v, copy, 1.0, lrs=[0.1], wds=[0], etas=[1]
    ... ).list_auxiliary_states()
    ['m', 'v', 'copy']
    """

    def update(weight, grad, mean, var, weight32, lr, wd, eta):
        return mp_adamw_update(
            weight, grad, mean, var, weight32, rescale_grad, lr, eta, wd=wd, **options
        )

    return _each(
        update,
        weights=weights,
        grads=grads,
        mean=mean,
        var=var,
        weights32=weights32,
        lrs=lrs,
        wds=wds,
        etas=etas,
    )


def multi_lamb_update(
    weights: Sequence[Symbol],
    grads: Sequence[Symbol],
    mean: Sequence[Symbol],
    var: Sequence[Symbol],
    step_count: Sequence[int],
    lrs: Sequence[float],
    wds: Sequence[float],
    num_tensors: int = 0,
    **options: Any,
) -> Symbol:
    """Runs one step of LAMB on each of a list of weights, like `mx.nd.contrib.multi_lamb_update`.

    Returns a group of the new weights; `mean` and `var` are auxiliary states.

    Examples
    --------
    >>> w, g, m, v = ([mx.sym.var(name)] for name in "wgmv")
    >>> mx.sym.contrib.multi_lamb_update(
    ...     w, g, m, v, step_count=[1], lrs=[0.1], wds=[0]
    ... ).list_auxiliary_states()
    ['m', 'v']
    """
    bounds, options = _bounds_of(options)

    def update(weight, grad, mean, var, t, lr, wd):
        step = _function("lamb_update_phase1")(weight, grad, mean, var, t=t, wd=wd, **options)
        norms = [_function("norm")(one) for one in (weight, step)]
        return _function("lamb_update_phase2")(weight, step, *norms, lr=lr, **bounds)

    return _each(
        update,
        weights=weights,
        grads=grads,
        mean=mean,
        var=var,
        step_count=step_count,
        lrs=lrs,
        wds=wds,
    )


def multi_mp_lamb_update(
    weights: Sequence[Symbol],
    grads: Sequence[Symbol],
    mean: Sequence[Symbol],
    var: Sequence[Symbol],
    weights32: Sequence[Symbol],
    step_count: Sequence[int],
    lrs: Sequence[float],
    wds: Sequence[float],
    num_tensors: int = 0,
    **options: Any,
) -> Symbol:
    """Runs `multi_lamb_update` on `weights32`, float32 copies of the weights, which are auxiliary
    states.

    Examples
    --------
    >>> w, g, m, v, copy = ([mx.sym.var(name)] for name in ["w", "g", "m", "v", "copy"])
    >>> mx.sym.contrib.multi_mp_lamb_update(
    ...     w, g, m, v, copy, step_count=[1], lrs=[0.1], wds=[0]
    ... ).list_auxiliary_states()
    ['m', 'v', 'copy']
    """
    bounds, options = _bounds_of(options)

    def update(weight, grad, mean, var, weight32, t, lr, wd):
        step = _function("mp_lamb_update_phase1")(
            weight, grad, mean, var, weight32, t=t, wd=wd, **options
        )
        norms = [_function("norm")(one) for one in (weight32, step)]
        return _function("mp_lamb_update_phase2")(weight, step, *norms, weight32, lr=lr, **bounds)

    return _each(
        update,
        weights=weights,
        grads=grads,
        mean=mean,
        var=var,
        weights32=weights32,
        step_count=step_count,
        lrs=lrs,
        wds=wds,
    )


def rand_zipfian(
    true_classes: Symbol, num_sampled: int, range_max: int
) -> tuple[Symbol, Symbol, Symbol]:
    """Samples classes in [0, range_max) from an approximately Zipfian distribution.

    Smaller classes are more frequent: P(class) = log((class + 2) / (class + 1)) /
    log(range_max + 1).

    Parameters
    ----------
    true_classes : Symbol
        The classes whose expected counts are returned.
    num_sampled, range_max : int
        The number of samples, and the exclusive upper bound of the classes.

    Returns
    -------
    sampled_classes : Symbol, int64
    expected_count_true, expected_count_sampled : Symbol, float64
        The expected number of occurrences of the true and of the sampled classes.

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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _of_contrib(__name__, name)
