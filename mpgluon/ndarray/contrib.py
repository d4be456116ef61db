"""The ops in MXNet's ``contrib``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core, autograd as _autograd
from .._internal import domain
from .._internal.hints import of_contrib as _of_contrib
from ..context import current_context  # noqa: F401 - MXNet has it here as well
from . import _entropy, _namespaces, _zipfian, random as _random
from ._control import boolean_mask, cond, foreach, while_loop  # noqa: F401
from ._sparse.ops import getnnz  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._core import Context, NDArray
    from .._internal.types import Arrays
    from ._contrib_ops import *  # noqa: F403

_namespaces.fill(_core.ops(), {"contrib": globals()})


uniform: Callable[..., NDArray] = _random.uniform


def BatchNormWithReLU(
    data: NDArray,
    gamma: NDArray,
    beta: NDArray,
    moving_mean: NDArray,
    moving_var: NDArray,
    eps: float = 0.001,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    output_mean_var: bool = False,
    axis: int = 1,
    cudnn_off: bool = False,
    min_calib_range: float | None = None,
    max_calib_range: float | None = None,
    **kwargs: Any,
) -> NDArray | Any:
    """Computes ``relu(nd.BatchNorm(...))``, with BatchNorm's parameters.

    A hybridized block computes both in one op.

    Examples
    --------
    >>> x, one, zero = nd.array([[1], [3]]), nd.ones(1), nd.zeros(1)
    >>> with mx.autograd.train_mode():
    ...     y = nd.contrib.BatchNormWithReLU(x, one, zero, zero.copy(), one.copy())
    >>> y.asnumpy().round(2).tolist()
    [[0.0], [1.0]]
    """
    result = _core.get_op("BatchNorm")(
        data,
        gamma,
        beta,
        moving_mean,
        moving_var,
        eps=eps,
        momentum=momentum,
        fix_gamma=fix_gamma,
        use_global_stats=use_global_stats,
        output_mean_var=output_mean_var,
        axis=axis,
        cudnn_off=cudnn_off,
        min_calib_range=min_calib_range,
        max_calib_range=max_calib_range,
        **kwargs,
    )
    relu = _core.get_op("relu")
    return [relu(result[0]), *result[1:]] if isinstance(result, list) else relu(result)


def _rescale(value, like):
    return (
        value.as_in_context(like.context)
        if isinstance(value, _core.NDArray)
        else _core.array([value], ctx=like.context)
    )


def adamw_update(
    weight: NDArray,
    grad: NDArray,
    mean: NDArray,
    var: NDArray,
    rescale_grad: NDArray | float,
    lr: float,
    eta: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0,
    clip_gradient: float = -1,
    out: NDArray | None = None,
    **options: Any,
) -> NDArray:
    """Runs one step of AdamW: ``w -= eta * (lr * m / (sqrt(v) + epsilon) + wd * w)``.

    `mean` and `var` are updated in place.

    Parameters
    ----------
    weight, grad, mean, var : NDArray
        The weight, its gradient, and the moving averages of gradients and of their squares, all of
        the same shape.
    rescale_grad : NDArray or float
        Factor of the gradients; if it is 0, inf or nan, nothing is updated.
    lr, eta : float
        The learning rate, and the factor of the whole step (the schedule's multiplier).
    beta1, beta2 : float
        The decay rates of the moving averages.
    epsilon : float
        Added to the square root of `var`.
    wd : float
        The weight decay.
    clip_gradient : float
        Gradients are clipped to [-clip_gradient, clip_gradient], unless it is negative.
    out : NDArray, optional
        Receives the new weight; usually `weight` itself.
    **options
        name, which is ignored.

    Examples
    --------
    >>> weight, grad, mean, var = nd.array([1]), nd.array([10]), nd.zeros(1), nd.zeros(1)
    >>> _ = nd.contrib.adamw_update(weight, grad, mean, var, 1.0, lr=0.1, eta=1, out=weight)
    >>> weight.asnumpy().round(3)
    array([0.684], dtype=float32)
    """
    return _core.get_op("_adamw_update")(
        weight,
        grad,
        mean,
        var,
        _rescale(rescale_grad, weight),
        lr=lr,
        eta=eta,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        wd=wd,
        clip_gradient=clip_gradient,
        out=out,
        **options,
    )


def mp_adamw_update(
    weight: NDArray,
    grad: NDArray,
    mean: NDArray,
    var: NDArray,
    weight32: NDArray,
    rescale_grad: NDArray | float,
    lr: float,
    eta: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    wd: float = 0,
    clip_gradient: float = -1,
    out: NDArray | None = None,
    **options: Any,
) -> NDArray:
    """Runs `adamw_update` on `weight32`, a float32 copy of the weight, which is updated in place.

    Examples
    --------
    >>> weight32, mean, var = nd.array([1]), nd.zeros(1), nd.zeros(1)
    >>> weight, grad = weight32.astype("float16"), nd.array([10], dtype="float16")
    >>> arrays = [weight, grad, mean, var, weight32, 1.0]
    >>> _ = nd.contrib.mp_adamw_update(*arrays, lr=0.1, eta=1, out=weight)
    >>> weight32.asnumpy().round(3)
    array([0.684], dtype=float32)
    """
    return _core.get_op("_mp_adamw_update")(
        weight,
        grad,
        mean,
        var,
        weight32,
        _rescale(rescale_grad, weight),
        lr=lr,
        eta=eta,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        wd=wd,
        clip_gradient=clip_gradient,
        out=out,
        **options,
    )


def _each(update, out, **lists):
    """Calls `update` with the i-th items of all lists, for each i. Returns the list of results."""
    outs = out if out is None or isinstance(out, (list, tuple)) else [out]
    domain.as_many(**lists, out=outs)
    outs = outs or [None] * len(lists["weights"])
    return [update(*some, out=target) for some, target in zip(zip(*lists.values()), outs)]


def multi_adamw_update(
    weights: Sequence[NDArray],
    grads: Sequence[NDArray],
    mean: Sequence[NDArray],
    var: Sequence[NDArray],
    rescale_grad: NDArray | float,
    lrs: Sequence[float],
    wds: Sequence[float],
    etas: Sequence[float],
    out: Arrays | None = None,
    size: int = 0,
    **options: Any,
) -> list[NDArray]:
    """Runs `adamw_update` on each of a list of weights, with separate rates.

    Examples
    --------
    >>> weights, grads = [nd.array([1]), nd.array([2])], [nd.array([10]), nd.array([10])]
    >>> states = [nd.zeros(1), nd.zeros(1)], [nd.zeros(1), nd.zeros(1)]
    >>> rates = {"lrs": [0.1, 0.2], "wds": [0, 0], "etas": [1, 1]}
    >>> update = nd.contrib.multi_adamw_update
    >>> _ = update(weights, grads, *states, 1.0, **rates, out=weights)
    >>> [weight.asnumpy().round(3) for weight in weights]
    [array([0.684], dtype=float32), array([1.368], dtype=float32)]
    """

    def update(weight, grad, mean, var, lr, wd, eta, out):
        return adamw_update(
            weight, grad, mean, var, rescale_grad, lr, eta, out=out, wd=wd, **options
        )

    return _each(
        update, out, weights=weights, grads=grads, mean=mean, var=var, lrs=lrs, wds=wds, etas=etas
    )


def multi_mp_adamw_update(
    weights: Sequence[NDArray],
    grads: Sequence[NDArray],
    mean: Sequence[NDArray],
    var: Sequence[NDArray],
    weights32: Sequence[NDArray],
    rescale_grad: NDArray | float,
    lrs: Sequence[float],
    wds: Sequence[float],
    etas: Sequence[float],
    out: Arrays | None = None,
    size: int = 0,
    **options: Any,
) -> list[NDArray]:
    """Runs `mp_adamw_update` on each of a list of weights, with separate rates.

    Examples
    --------
    >>> copies, grads = [nd.array([1])], [nd.array([10], dtype="float16")]
    >>> weights = [copy.astype("float16") for copy in copies]
    >>> arrays = [weights, grads, [nd.zeros(1)], [nd.zeros(1)], copies]
    >>> _ = nd.contrib.multi_mp_adamw_update(
    ...     *arrays, 1.0, lrs=[0.1], wds=[0], etas=[1], out=weights
    ... )
    >>> copies[0].asnumpy().round(3)
    array([0.684], dtype=float32)
    """

    def update(weight, grad, mean, var, weight32, lr, wd, eta, out):
        return mp_adamw_update(
            weight, grad, mean, var, weight32, rescale_grad, lr, eta, out=out, wd=wd, **options
        )

    return _each(
        update,
        out,
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
    weights: Sequence[NDArray],
    grads: Sequence[NDArray],
    mean: Sequence[NDArray],
    var: Sequence[NDArray],
    step_count: Sequence[int],
    lrs: Sequence[float],
    wds: Sequence[float],
    out: Arrays | None = None,
    num_tensors: int = 0,
    **options: Any,
) -> list[NDArray]:
    """Runs one step of LAMB on each of a list of weights; `mean` and `var` are updated in place.

    Parameters
    ----------
    weights, grads, mean, var : sequence of NDArray
        The weights, their gradients, and the moving averages of gradients and of their squares.
    step_count, lrs, wds : sequence of number
        For each weight: the number of updates including this one, learning rate, weight decay.
    out : list of NDArray, optional
        Receives the new weights; usually `weights` itself.
    num_tensors : int, default 0
        Ignored.
    **options
        beta1, beta2, epsilon, rescale_grad, clip_gradient, bias_correction, lower_bound,
        upper_bound.

    Examples
    --------
    >>> weights, grads = [nd.array([3, 4])], [nd.array([1, 1])]
    >>> states = [nd.zeros(2)], [nd.zeros(2)]
    >>> _ = nd.contrib.multi_lamb_update(
    ...     weights, grads, *states, step_count=[1], lrs=[0.1], wds=[0], out=weights
    ... )
    >>> weights[0].asnumpy().round(3)
    array([2.646, 3.646], dtype=float32)
    """
    bounds, options = _bounds_of(options)

    def update(weight, grad, mean, var, t, lr, wd, out):
        step = _core.get_op("lamb_update_phase1")(weight, grad, mean, var, t=t, wd=wd, **options)
        return _core.get_op("lamb_update_phase2")(
            weight, step, weight.norm(), step.norm(), lr=lr, out=out, **bounds
        )

    return _each(
        update,
        out,
        weights=weights,
        grads=grads,
        mean=mean,
        var=var,
        step_count=step_count,
        lrs=lrs,
        wds=wds,
    )


def multi_mp_lamb_update(
    weights: Sequence[NDArray],
    grads: Sequence[NDArray],
    mean: Sequence[NDArray],
    var: Sequence[NDArray],
    weights32: Sequence[NDArray],
    step_count: Sequence[int],
    lrs: Sequence[float],
    wds: Sequence[float],
    out: Arrays | None = None,
    num_tensors: int = 0,
    **options: Any,
) -> list[NDArray]:
    """Runs `multi_lamb_update` on `weights32`, float32 copies of the weights, which are updated in
    place.

    Examples
    --------
    >>> copies, grads = [nd.array([3, 4])], [nd.array([1, 1], dtype="float16")]
    >>> weights = [copy.astype("float16") for copy in copies]
    >>> arrays = [weights, grads, [nd.zeros(2)], [nd.zeros(2)], copies]
    >>> _ = nd.contrib.multi_mp_lamb_update(
    ...     *arrays, step_count=[1], lrs=[0.1], wds=[0], out=weights
    ... )
    >>> copies[0].asnumpy().round(3)
    array([2.646, 3.646], dtype=float32)
    """
    bounds, options = _bounds_of(options)

    def update(weight, grad, mean, var, weight32, t, lr, wd, out):
        step = _core.get_op("mp_lamb_update_phase1")(
            weight, grad, mean, var, weight32, t=t, wd=wd, **options
        )
        return _core.get_op("mp_lamb_update_phase2")(
            weight, step, weight32.norm(), step.norm(), weight32, lr=lr, out=out, **bounds
        )

    return _each(
        update,
        out,
        weights=weights,
        grads=grads,
        mean=mean,
        var=var,
        weights32=weights32,
        step_count=step_count,
        lrs=lrs,
        wds=wds,
    )


def _bounds_of(options):
    """Splits the options of LAMB. Returns the options of its second phase (the bounds), then the
    options of its first phase."""
    bounds = {name: options[name] for name in ("lower_bound", "upper_bound") if name in options}
    return bounds, {name: value for name, value in options.items() if name not in bounds}


def group_adagrad_update(
    weight: NDArray,
    grad: NDArray,
    history: NDArray,
    lr: float,
    rescale_grad: float = 1.0,
    clip_gradient: float = -1.0,
    epsilon: float = 1e-5,
    out: NDArray | None = None,
    name: str | None = None,
) -> NDArray:
    """Runs one step of AdaGrad with one learning rate per row of a matrix.

    `history`, of shape (rows, 1), is updated in place.

    Examples
    --------
    >>> weight, history = nd.array([[1, 2]]), nd.zeros((1, 1))
    >>> nd.contrib.group_adagrad_update(
    ...     weight, nd.array([[1, 1]]), history, lr=0.5, out=weight
    ... ).asnumpy().round(3)
    array([[0.5, 1.5]], dtype=float32)
    >>> history.asscalar().item()
    1.0
    """
    if weight.ndim != 2 or history.shape != (weight.shape[0], 1):
        raise _core.MXNetValueError(
            "group_adagrad_update: the weight must be a matrix and its history must have shape "
            f"(rows, 1), not {weight.shape} and {history.shape}"
        )
    domain.number(lr=lr, rescale_grad=rescale_grad, clip_gradient=clip_gradient, epsilon=epsilon)
    get = _core.get_op
    with _autograd.pause():
        grad = grad * rescale_grad
        if clip_gradient > 0:
            grad = get("clip")(grad, -clip_gradient, clip_gradient)
        sums = history + get("mean")(get("square")(grad), axis=1, keepdims=True)
        new = weight - get("broadcast_div")(lr * grad, get("sqrt")(sums + epsilon))
        sums.copyto(history)
        return new if out is None else new.copyto(out)


def rand_zipfian(
    true_classes: NDArray, num_sampled: int, range_max: int, ctx: Context | None = None
) -> tuple[NDArray, NDArray, NDArray]:
    """Samples classes in [0, range_max) from an approximately Zipfian distribution.

    Smaller classes are more frequent: P(class) = log((class + 2) / (class + 1)) /
    log(range_max + 1).

    Parameters
    ----------
    true_classes : NDArray
        Classes whose expected count is computed, of any shape.
    num_sampled, range_max : int
        The number of samples, and the exclusive upper bound of the classes.
    ctx : Context, optional
        The device; by default, the device of `true_classes`.

    Returns
    -------
    sampled_classes : NDArray, int64
    expected_count_true, expected_count_sampled : NDArray, float64
        The expected number of occurrences of the true and of the sampled classes.

    Examples
    --------
    >>> classes = nd.array([3])
    >>> samples, true, sampled = nd.contrib.rand_zipfian(classes, 4, range_max=5)
    >>> samples.shape, true.asnumpy().round(3)
    ((4,), array([0.498]))
    """
    ctx = true_classes.context if ctx is None else ctx
    true_classes = true_classes.as_in_context(ctx)
    return _zipfian.draw(
        lambda high: _random.uniform(0, high, shape=(num_sampled,), dtype="float64", ctx=ctx),
        true_classes,
        num_sampled,
        range_max,
    )


def calibrate_entropy(
    hist: NDArray, hist_edges: NDArray, num_quantized_bins: int = 255
) -> tuple[NDArray, NDArray]:
    """Returns the clipping threshold for which quantizing a histogram loses the least information.

    The host computes it.

    Parameters
    ----------
    hist : NDArray of shape (n,)
        Counts of values; n is odd, and the middle bin is around 0.
    hist_edges : NDArray of shape (n + 1,)
        The edges of the bins.
    num_quantized_bins : int, default 255
        The number of quantization steps.

    Returns
    -------
    threshold, divergence : NDArray of shape (1,), float32
        Values are clipped to [-threshold, threshold]; the divergence is the relative entropy.

    Examples
    --------
    >>> values = nd.concat(nd.random.normal(shape=10000), nd.array([100]), dim=0)
    >>> histogram = nd.histogram(values, 2001, (-100, 100))
    >>> threshold, loss = nd.contrib.calibrate_entropy(*histogram)
    >>> bool((threshold < 50).asscalar())
    True
    """
    threshold, loss = _entropy.best_threshold(
        hist.asnumpy(), hist_edges.asnumpy(), num_quantized_bins
    )
    ctx = hist.context
    return _core.array([threshold], ctx=ctx), _core.array([loss], ctx=ctx)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _of_contrib(__name__, name)
