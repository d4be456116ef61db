"""Adaptive optimizers, which scale each element's step by its previous gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import ndarray as nd
from .._internal import domain
from .._internal.domain import Default
from .grouped import CountedOptimizer, DecayedMeans, GroupedOptimizer, replace, update_group
from .optimizer import register, zeros_like_state

if TYPE_CHECKING:
    from .._internal.types import NDArray


@register
class Adam(DecayedMeans):
    """Adam optimizer::

        grad = clip(grad * rescale_grad) + wd * weight
        mean = beta1 * mean + (1 - beta1) * grad
        var = beta2 * var + (1 - beta2) * grad ** 2
        weight -= lr * sqrt(1 - beta2 ** t) / (1 - beta1 ** t) * mean / (sqrt(var) + epsilon)

    Parameters
    ----------
    learning_rate : float, default 0.001
        The learning rate.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay rates of the running means of gradients and of squared gradients.
    epsilon : float, default 1e-08
        Added to the divisor.
    lazy_update : bool, default True
        Whether a row_sparse gradient updates only its own rows. The other rows are not decayed, and
        their states do not change.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> weight = nd.ones(2)
    >>> adam = mx.optimizer.Adam(learning_rate=0.5)
    >>> adam.update(0, weight, nd.ones(2), adam.create_state(0, weight))
    >>> weight.asnumpy().astype(float).round(3).tolist()
    [0.5, 0.5]
    """

    def __init__(
        self,
        learning_rate: float = Default(0.001),
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, beta1=beta1, beta2=beta2, **kwargs)
        domain.at_least(0, epsilon=epsilon)
        self.epsilon = epsilon
        self.lazy_update = lazy_update

    @property
    def updates_rows(self) -> bool:
        return self.lazy_update

    def _step(self, indices, weights, grads, states, lrs, wds):
        counts = [self._index_update_count[index] for index in indices]
        corrections = {
            t: math.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t) for t in set(counts)
        }
        corrected = [lr * corrections[t] for lr, t in zip(lrs, counts)]
        options = self._options(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon)
        update_group(
            nd._internal._multi_adam_update,
            weights,
            (grads, *zip(*states)),
            corrected,
            wds,
            **options,
        )

    def _multi(self, weights, states):
        return None if self.multi_precision else ("_multi_adam_update", list(zip(*states)))

    def _multi_numbers(self, count):
        correction = math.sqrt(1.0 - self.beta2**count) / (1.0 - self.beta1**count)
        return correction, self._options(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon)


@register
class AdaGrad(GroupedOptimizer):
    """AdaGrad: `history += grad ** 2; weight -= lr * (grad / sqrt(history + eps) + wd *
    weight)`.

    Parameters
    ----------
    eps : float, default 1e-07
        Added to the sum of squares.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.AdaGrad(learning_rate=0.1)
    AdaGrad(learning_rate=0.1, wd=0.0)
    """

    def __init__(self, eps: float = 1e-7, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        domain.at_least(0, eps=eps)
        self.float_stable_eps = eps

    @property
    def updates_rows(self) -> bool:
        return True

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return zeros_like_state(weight)

    def _step(self, indices, weights, grads, states, lrs, wds):
        update_group(
            nd._internal._multi_adagrad_update,
            weights,
            (grads, states),
            lrs,
            wds,
            **self._options(epsilon=self.float_stable_eps),
        )

    def _multi(self, weights, states):
        return None if self.multi_precision else ("_multi_adagrad_update", [states])

    def _multi_numbers(self, count):
        return 1.0, self._options(epsilon=self.float_stable_eps)


@register
class RMSProp(GroupedOptimizer):
    """RMSProp: divides the step by a running root mean square of the gradient (`gamma1`).

    With `centered`, divides by the running standard deviation and uses a momentum `gamma2`.
    `clip_weights` clips the weights afterwards.

    Parameters
    ----------
    learning_rate : float, default 0.001
        The learning rate.
    gamma1 : float, default 0.9
        Decay rate of the running mean square.
    gamma2 : float, default 0.9
        Momentum, used if `centered`.
    epsilon : float, default 1e-08
        Added to the divisor.
    centered : bool, default False
        Whether to subtract the running mean and use a momentum.
    clip_weights : float, optional
        Largest absolute value of weights; None disables clipping.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.RMSProp(centered=True)
    RMSProp(learning_rate=0.001, centered=True, wd=0.0)
    """

    def __init__(
        self,
        learning_rate: float = Default(0.001),
        gamma1: float = 0.9,
        gamma2: float = 0.9,
        epsilon: float = 1e-8,
        centered: bool = False,
        clip_weights: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        domain.fraction(gamma1=gamma1)
        self.gamma1 = gamma1
        domain.number(gamma2=gamma2)
        self.gamma2 = gamma2
        self.centered = centered
        domain.at_least(0, epsilon=epsilon)
        self.epsilon = epsilon
        if clip_weights is not None:
            domain.not_negative(clip_weights=clip_weights)
        self.clip_weights = clip_weights

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return tuple(zeros_like_state(weight) for _ in range(3 if self.centered else 1))

    def _step(self, indices, weights, grads, states, lrs, wds):
        options = self._own_options()
        if not self.centered:
            update_group(
                nd._internal._multi_rmsprop_update,
                weights,
                (grads, *zip(*states)),
                lrs,
                wds,
                **options,
            )
            return
        for weight, grad, state, lr, wd in zip(weights, grads, states, lrs, wds):
            nd.rmspropalex_update(
                weight, grad, *state, out=weight, lr=lr, wd=wd, gamma2=self.gamma2, **options
            )

    def _own_options(self):
        options = self._options(gamma1=self.gamma1, epsilon=self.epsilon)
        if self.clip_weights:
            options["clip_weights"] = self.clip_weights
        return options

    def _multi(self, weights, states):
        return (
            None
            if self.multi_precision or self.centered
            else ("_multi_rmsprop_update", list(zip(*states)))
        )

    def _multi_numbers(self, count):
        return 1.0, self._own_options()


@register
class AdaDelta(GroupedOptimizer):
    """AdaDelta: scales steps by running means (`rho`) of squared gradients and squared steps,
    without a learning rate.

    Parameters
    ----------
    rho : float, default 0.9
        Decay rate of the running means.
    epsilon : float, default 1e-05
        Added to the running means.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.AdaDelta(rho=0.95)
    AdaDelta(learning_rate=0.01, rho=0.95, wd=0.0)
    """

    def __init__(self, rho: float = 0.9, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        domain.fraction(rho=rho)
        self.rho = rho
        domain.at_least(0, epsilon=epsilon)
        self.epsilon = epsilon

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return (zeros_like_state(weight), zeros_like_state(weight))

    def _step_one(self, index, weight, grad, state, lr, wd):
        squares, step_squares = state
        grad = self._gradient(grad)
        new_squares = squares * self.rho + (1.0 - self.rho) * grad * grad
        step = nd.sqrt(step_squares + self.epsilon) / nd.sqrt(new_squares + self.epsilon) * grad
        new_step_squares = step_squares * self.rho + (1.0 - self.rho) * step * step
        replace(
            (squares, new_squares),
            (step_squares, new_step_squares),
            (weight, weight - (step + wd * weight)),
        )


@register
class Adamax(DecayedMeans, CountedOptimizer):
    """Adamax: Adam with the largest absolute gradient (decayed by `beta2`) instead of the root mean
    square.

    Parameters
    ----------
    learning_rate : float, default 0.002
        The learning rate.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay rates of the mean of gradients and of their largest absolute value.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.Adamax(beta1=0.8)
    Adamax(learning_rate=0.002, beta1=0.8, wd=0.0)
    """

    _op, _clips_to_zero = "_multi_adamax_update", True

    def __init__(
        self,
        learning_rate: float = Default(0.002),
        beta1: float = 0.9,
        beta2: float = 0.999,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, beta1=beta1, beta2=beta2, **kwargs)

    def _multi_numbers(self, count):
        return 1.0 / (1.0 - self.beta1**count), self._options(beta1=self.beta1, beta2=self.beta2)


@register
class Nadam(Adamax):
    """Nadam: Adam with Nesterov momentum that follows a schedule (`schedule_decay`).

    The schedule depends on the number of updates of each parameter, not on other parameters.

    Parameters
    ----------
    learning_rate : float, default 0.001
        The learning rate.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay rates of the running means of gradients and of squared gradients.
    epsilon : float, default 1e-08
        Added to the divisor.
    schedule_decay : float, default 0.004
        Rate at which the momentum schedule approaches `beta1`.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.Nadam(schedule_decay=0.01)
    Nadam(learning_rate=0.001, schedule_decay=0.01, wd=0.0)
    """

    _op = "_multi_nadam_update"

    def __init__(
        self,
        learning_rate: float = Default(0.001),
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        schedule_decay: float = 0.004,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, beta1=beta1, beta2=beta2, **kwargs)
        domain.at_least(0, epsilon=epsilon)
        self.epsilon = epsilon
        domain.number(schedule_decay=schedule_decay)
        self.schedule_decay = schedule_decay
        self._schedule = [1.0]  # product of the momenta of updates 1..t, at index t

    def _momentum(self, t):
        return self.beta1 * (1.0 - 0.5 * 0.96 ** (t * self.schedule_decay))

    def _multi_numbers(self, count):
        # Only 1 - product is used, which rounds to 1 for smaller products.
        while len(self._schedule) <= count and self._schedule[-1] > 1e-17:
            self._schedule.append(self._schedule[-1] * self._momentum(len(self._schedule)))
        momentum, next_momentum = self._momentum(count), self._momentum(count + 1)
        product = self._schedule[min(count, len(self._schedule) - 1)]
        return 1.0, self._options(
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            gradient_factor=1.0 - momentum,
            gradient_divisor=1.0 - product,
            mean_factor=next_momentum,
            mean_divisor=1.0 - product * next_momentum,
            variance_divisor=1.0 - self.beta2**count,
        )


@register
class FTML(DecayedMeans):
    """FTML: follow the moving leader.

    Parameters
    ----------
    beta1, beta2 : float, default 0.6 and 0.999
        Decay rates of the running means of gradients and of squared gradients.
    epsilon : float, default 1e-08
        Added to the divisor.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.FTML(learning_rate=0.1)
    FTML(learning_rate=0.1, wd=0.0)
    """

    def __init__(
        self, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8, **kwargs: Any
    ) -> None:
        super().__init__(beta1=beta1, beta2=beta2, **kwargs)
        domain.at_least(0, epsilon=epsilon)
        self.epsilon = epsilon

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return tuple(zeros_like_state(weight) for _ in range(3))

    def _step_one(self, index, weight, grad, state, lr, wd):
        options = {"clip_grad": self.clip_gradient} if self.clip_gradient else {}
        nd.ftml_update(
            weight,
            grad,
            *state,
            out=weight,
            lr=lr,
            wd=wd,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            t=self._index_update_count[index],
            rescale_grad=self.rescale_grad,
            **options,
        )


@register
class Ftrl(GroupedOptimizer):
    """FTRL: follow the regularized leader. `lamda1` makes weights sparse.

    Parameters
    ----------
    lamda1 : float, default 0.01
        L1 regularization coefficient.
    learning_rate : float, default 0.1
        The learning rate.
    beta : float, default 1
        Added to the root of the sum of squares, which divides the learning rate.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.Ftrl(lamda1=0.1)
    Ftrl(learning_rate=0.1, lamda1=0.1, wd=0.0)
    """

    def __init__(
        self,
        lamda1: float = 0.01,
        learning_rate: float = Default(0.1),
        beta: float = 1,
        **kwargs: Any,
    ) -> None:
        # As in MXNet, `learning_rate` is not passed to the base, so a scheduler keeps its own rate.
        super().__init__(**kwargs)
        domain.at_least(0, learning_rate=learning_rate)
        domain.number(lamda1=lamda1, beta=beta)
        self.lr = learning_rate
        self.lamda1 = lamda1
        self.beta = beta

    @property
    def updates_rows(self) -> bool:
        return True

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return (zeros_like_state(weight), zeros_like_state(weight))

    def _step_one(self, index, weight, grad, state, lr, wd):
        nd.ftrl_update(
            weight,
            grad,
            *state,
            out=weight,
            lamda1=self.lamda1,
            beta=self.beta,
            **self._options(lr=lr, wd=wd),
        )


@register
class LAMB(DecayedMeans):
    """LAMB: Adam whose step is scaled, for each layer, to the norm of the weight, which is clipped
    to `lower_bound` and `upper_bound`.

    Parameters
    ----------
    learning_rate : float, default 0.001
        The learning rate.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay rates of the running means of gradients and of squared gradients.
    epsilon : float, default 1e-06
        Added to the divisor.
    lower_bound, upper_bound : float, optional
        Bounds of the norm of the weight; None disables a bound.
    bias_correction : bool, default True
        Whether to correct the bias of the running means, which start at 0.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.LAMB(upper_bound=10.0)
    LAMB(learning_rate=0.001, upper_bound=10.0, wd=0.0)
    """

    _passes_lists = True

    def __init__(
        self,
        learning_rate: float = Default(0.001),
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
        bias_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, beta1=beta1, beta2=beta2, **kwargs)
        domain.at_least(0, epsilon=epsilon)
        self.epsilon = epsilon
        for name, bound in (("lower_bound", lower_bound), ("upper_bound", upper_bound)):
            if bound is not None:
                domain.number(**{name: bound})
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound
        self.bias_correction = bias_correction

    def combines(self, axis: int) -> bool:
        return True

    # The norm of a split weight is the norm of its parts' norms.
    _total = staticmethod(nd.norm)

    def _phases(self, indices, weights, grads, states, lrs, wds):
        bounds = {"lower_bound": self.lower_bound, "upper_bound": self.upper_bound}
        bounds = {name: value for name, value in bounds.items() if value}
        firsts, norms, lasts = [], [], []
        for index, weight, grad, state, lr, wd in zip(indices, weights, grads, states, lrs, wds):
            norm = nd.norm(weight)
            step, norm_of_step = (
                nd.empty(grad.shape, ctx=weight.context, dtype=grad.dtype),
                nd.empty(norm.shape, ctx=weight.context, dtype=norm.dtype),
            )
            direction = partial(
                nd.lamb_update_phase1,
                weight,
                grad,
                *state,
                out=step,
                beta1=self.beta1,
                beta2=self.beta2,
                epsilon=self.epsilon,
                t=self._index_update_count[index],
                bias_correction=self.bias_correction,
                **self._options(wd=wd),
            )
            firsts += [(direction,), (partial(nd.norm, step, out=norm_of_step),)]
            norms += [norm, norm_of_step]
            last = partial(
                nd.lamb_update_phase2, weight, step, norm, norm_of_step, out=weight, lr=lr, **bounds
            )
            lasts.append((last,))
        yield firsts, norms
        yield lasts
