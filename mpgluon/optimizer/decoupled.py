"""Optimizers with decoupled weight decay: the decay is not part of the gradient.

Each update multiplies a weight by ``1 - learning_rate * wd``.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ndarray as nd
from .._internal import domain
from .._internal.domain import Default
from .grouped import CountedOptimizer, DecayedMeans, GroupedOptimizer
from .optimizer import HALF, dtype_name, register, zeros_like_state

if TYPE_CHECKING:
    from .._internal.types import NDArray


@register
class AdamW(DecayedMeans, CountedOptimizer):
    """AdamW, with the formulas and defaults of ``torch.optim.AdamW``::

        grad = clip(grad * rescale_grad)
        mean = beta1 * mean + (1 - beta1) * grad
        var = beta2 * var + (1 - beta2) * grad ** 2
        step = mean / (1 - beta1 ** t) / (sqrt(var / (1 - beta2 ** t)) + epsilon)
        weight -= lr * (step + wd * weight)

    Parameters
    ----------
    learning_rate : float, default 0.001
        The learning rate.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay rates of the running means of gradients and of squared gradients.
    epsilon : float, default 1e-08
        Added to the divisor.
    wd : float, default 0.01
        Decoupled weight decay. It applies to all parameters; parameter groups or `wd_mult` exclude
        some, such as biases and the parameters of normalization layers.
    amsgrad : bool, default False
        Whether to divide by the largest `var` so far.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> weight = nd.ones(2)
    >>> adamw = mx.optimizer.AdamW(learning_rate=0.5, wd=0.1)
    >>> adamw.update(0, weight, nd.ones(2), adamw.create_state(0, weight))
    >>> weight.asnumpy().astype(float).round(3).tolist()
    [0.45, 0.45]
    """

    def __init__(
        self,
        learning_rate: float = Default(0.001),
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        wd: float = 0.01,
        amsgrad: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, beta1=beta1, beta2=beta2, wd=wd, **kwargs)
        domain.at_least(0, epsilon=epsilon)
        self.epsilon = epsilon
        self.amsgrad = amsgrad

    @property
    def _op(self) -> str:  # type: ignore[override]
        return "_multi_amsgradw_update" if self.amsgrad else "_multi_adamw_update"

    @property
    def _mixed_op(self) -> str:  # type: ignore[override]
        return "_multi_mp_amsgradw_update" if self.amsgrad else "_multi_mp_adamw_update"

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return tuple(zeros_like_state(weight) for _ in range(3 if self.amsgrad else 2))

    def _multi_numbers(self, count):
        root = math.sqrt(1.0 - self.beta2**count)
        return 1.0, self._options(
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon * root,
            mean_factor=root / (1.0 - self.beta1**count),
        )


@register
class Lion(CountedOptimizer):
    """Lion (Chen et al. 2023): steps by the sign of an interpolation of gradient and running mean::

        grad = clip(grad * rescale_grad)
        step = sign(beta1 * mean + (1 - beta1) * grad)
        mean = beta2 * mean + (1 - beta2) * grad
        weight -= lr * (step + wd * weight)

    All elements change by the same amount, so learning rates should be 3 to 10 times smaller than
    for AdamW, and weight decays as many times larger.

    Parameters
    ----------
    learning_rate : float, default 0.0001
        Size of a step.
    beta1 : float, default 0.9
        Weight of the running mean in the step.
    beta2 : float, default 0.99
        Decay rate of the running mean.
    **kwargs
        See `Optimizer`; `wd` is a decoupled weight decay.

    Examples
    --------
    >>> weight = nd.ones(2)
    >>> lion = mx.optimizer.Lion(learning_rate=0.1, wd=0.5)
    >>> lion.update(0, weight, nd.array([3, -4]), lion.create_state(0, weight))
    >>> weight.asnumpy().astype(float).round(3).tolist()
    [0.85, 1.05]
    """

    _op, _mixed_op = "_multi_lion_update", "_multi_mp_lion_update"

    def __init__(
        self,
        learning_rate: float = Default(0.0001),
        beta1: float = 0.9,
        beta2: float = 0.99,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        domain.fraction(beta1=beta1, beta2=beta2)
        self.beta1 = beta1
        self.beta2 = beta2

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return (zeros_like_state(weight),)

    def _multi_numbers(self, count):
        return 1.0, self._options(beta1=self.beta1, beta2=self.beta2)


class _InSinglePrecision(GroupedOptimizer):
    """Base class of optimizers whose updates consist of several ops. Weights and gradients of 16
    bits are computed in float32, and rounded once, when the new weight is stored."""

    def _computed(self, array):
        return array.astype("float32") if dtype_name(array) in HALF else array


def _stores(*pairs):
    """Returns the changes (`_core.at_once`) that store values in (array, value) pairs."""
    return [(value.astype(array.dtype, copy=False).copyto, array) for array, value in pairs]


@register
class Adafactor(_InSinglePrecision):
    """Adafactor (Shazeer and Stern 2018), with the formulas and defaults of
    ``torch.optim.Adafactor``.

    The running mean of squared gradients of a matrix is the product of a column and a row, so the
    state is much smaller than the weight. The learning rate is relative to the weight's size::

        rate = max(epsilon2, rms(weight)) * min(lr, 1 / sqrt(t))
        decay = t ** beta2_decay
        row = (1 - decay) * row + decay * mean(grad ** 2, axis=-1)
        col = (1 - decay) * col + decay * mean(grad ** 2, axis=-2)
        var = row * col / max(mean(row), epsilon1)
        step = grad / sqrt(max(var, epsilon1 ** 2))
        weight -= lr * wd * weight + rate * step / max(1, rms(step) / threshold)

    Arrays with more than two dimensions are stacks of matrices, and arrays with fewer have an
    unfactored `var`. The statistics of a parameter that is split over devices are those of the
    whole.

    Parameters
    ----------
    learning_rate : float, default 0.01
        Upper bound of the relative step size.
    beta2_decay : float, default -0.8
        Exponent of the decay, at most 0.
    epsilon1 : float, optional
        Lower bound of the root of `var`; None selects the machine epsilon of the weight's dtype, or
        of float32 for 16-bit weights.
    epsilon2 : float, default 0.001
        Lower bound of the weight's size.
    threshold : float, default 1.0
        Upper bound of the root mean square of a step.
    **kwargs
        See `Optimizer`; `wd` is a decoupled weight decay.

    Examples
    --------
    >>> weight = nd.ones((4, 3))
    >>> adafactor = mx.optimizer.Adafactor()
    >>> [array.shape for array in adafactor.create_state(0, weight)]
    [(4, 1), (1, 3)]
    """

    def __init__(
        self,
        learning_rate: float = Default(0.01),
        beta2_decay: float = -0.8,
        epsilon1: float | None = None,
        epsilon2: float = 1e-3,
        threshold: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        domain.number(beta2_decay=beta2_decay)
        if beta2_decay > 0:
            raise ValueError(f"beta2_decay must be at most 0, got {beta2_decay}")
        self.beta2_decay = beta2_decay
        if epsilon1 is not None:
            domain.at_least(0, epsilon1=epsilon1)
        self.epsilon1 = epsilon1
        domain.at_least(0, epsilon2=epsilon2)
        self.epsilon2 = epsilon2
        domain.positive(threshold=threshold)
        self.threshold = threshold

    def create_state(self, index: Any, weight: NDArray) -> Any:
        dtype = "float32" if dtype_name(weight) in HALF else weight.dtype
        shape = tuple(weight.shape)
        shapes = [shape]
        if len(shape) > 1:
            shapes = [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])]
        return tuple(nd.zeros(one, ctx=weight.context, dtype=dtype) for one in shapes)

    def combines(self, axis: int) -> bool:
        return True

    def _phases(self, indices, weights, grads, states, lrs, wds):
        updates = [self._update_one(*one) for one in zip(indices, weights, grads, states, lrs, wds)]
        for _ in range(3):
            yield [], list(chain(*map(next, updates)))
        yield list(chain(*map(next, updates)))

    def _update_one(self, index, weight, grad, state, lr, wd):
        """Yields three lists of arrays to sum over the parts of the weight, then the changes."""
        param, family = self.param_dict.get(index), self._family(index)
        axis = None if family is None else param.axis - weight.ndim  # split axis, counted from -1
        shape = weight.shape if family is None else family.shape
        size, t = math.prod(shape), self._index_update_count[index]
        decay = float(t) ** self.beta2_decay
        old, grad = self._computed(weight), self._gradient(self._computed(grad))
        state_values = [self._computed(array) for array in state]
        epsilon = self.epsilon1
        if epsilon is None:
            epsilon = float(np.finfo(dtype_name(old)).eps)

        squares, weight_square = nd.square(grad), nd.sum(nd.square(old))
        sums, means = [weight_square], []
        if len(shape) > 1:
            means = [nd.sum(squares, axis=k, keepdims=True) for k in (-1, -2)]
            sums += [total for k, total in zip((-1, -2), means) if k == axis]
        yield sums

        new = [squares]
        if len(shape) > 1:
            new = [total / shape[k] for k, total in zip((-1, -2), means)]
        new = [value + decay * (mean - value) for value, mean in zip(state_values, new)]
        row_sum = nd.sum(new[0], axis=-2, keepdims=True) if len(shape) > 1 else None
        yield [row_sum] if axis == -2 else []

        var = new[0]
        if row_sum is not None:
            row_mean = nd.maximum(row_sum / shape[-2], epsilon)
            var = nd.broadcast_div(nd.broadcast_mul(*new), row_mean)
        step = nd.rsqrt(nd.maximum(var, epsilon * epsilon)) * grad
        step_square = nd.sum(nd.square(step))
        yield [step_square]

        rate = nd.maximum(nd.sqrt(weight_square / size), self.epsilon2) * min(lr, 1 / math.sqrt(t))
        rate = rate / nd.maximum(nd.sqrt(step_square / size) / self.threshold, 1.0)
        moved = nd.broadcast_mul(step, rate.reshape((1,) * step.ndim))
        if wd != 0:
            old = old * (1 - lr * wd)
        yield _stores(*zip(state, new), (weight, old - moved))


_COEFFICIENTS = (3.4445, -4.775, 2.0315)
_ADJUSTMENTS = ("original", "match_rms_adamw")


@register
class Muon(_InSinglePrecision):
    """Muon (Jordan 2024), with the formulas and defaults of ``torch.optim.Muon``: momentum whose
    matrix is replaced by the nearest orthogonal one, approximately::

        momentum_mean = momentum * momentum_mean + (1 - momentum) * grad
        step = momentum * momentum_mean + (1 - momentum) * grad if nesterov else momentum_mean
        step = newton_schulz(step / max(norm(step), epsilon))
        weight -= lr * (adjustment * step + wd * weight)

    It is for the matrices of hidden layers. Other parameters, such as biases, embeddings and the
    output layer, need another optimizer, in another group::

        groups = [
            {"params": hidden, "lr": 0.02},
            {"params": others, "optimizer": "adamw", "lr": 3e-4},
        ]
        trainer = gluon.Trainer(groups, "muon", {"momentum": 0.95})

    Parameters
    ----------
    learning_rate : float, default 0.001
        The learning rate.
    momentum : float, default 0.95
        Decay rate of the running mean of gradients.
    nesterov : bool, default True
        Whether to use Nesterov momentum.
    ns_coefficients : tuple of three floats, default (3.4445, -4.775, 2.0315)
        Coefficients a, b, c of an iteration, ``a * x + (b * s + c * s @ s) @ x`` with
        ``s = x @ x.T``.
    ns_steps : int, default 5
        Number of Newton-Schulz iterations, below 100.
    ns_dtype : str, default 'float32'
        The dtype of the iterations. 'bfloat16', which PyTorch uses, is faster on GPUs.
    epsilon : float, default 1e-07
        Lower bound of the norm.
    adjust_lr : str, default 'original'
        The adjustment is ``max(1, rows / columns) ** 0.5`` for 'original' and
        ``0.2 * max(rows, columns) ** 0.5`` for 'match_rms_adamw', with which AdamW's learning rate
        can be kept.
    wd : float, default 0.1
        Decoupled weight decay.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> weight = nd.zeros((2, 2))
    >>> muon = mx.optimizer.Muon(learning_rate=1.0)
    >>> muon.update(0, weight, nd.array([[0, 3], [1, 0]]), muon.create_state(0, weight))
    >>> (abs(weight.asnumpy()) > 0.5).tolist()
    [[False, True], [True, False]]
    """

    def __init__(
        self,
        learning_rate: float = Default(0.001),
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = _COEFFICIENTS,
        ns_steps: int = 5,
        ns_dtype: str = "float32",
        epsilon: float = 1e-7,
        adjust_lr: str = "original",
        wd: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, wd=wd, **kwargs)
        domain.fraction(momentum=momentum)
        self.momentum = momentum
        self.nesterov = nesterov
        if not isinstance(ns_coefficients, (tuple, list)) or len(ns_coefficients) != 3:
            raise ValueError(f"ns_coefficients must be three numbers, got {ns_coefficients!r}")
        for coefficient in ns_coefficients:
            domain.number(ns_coefficients=coefficient)
        self.ns_coefficients = ns_coefficients
        domain.size(0, ns_steps=ns_steps)
        if ns_steps >= 100:
            raise ValueError(f"ns_steps must be below 100, got {ns_steps}")
        self.ns_steps = ns_steps
        if ns_dtype not in ("float32", "float64", "bfloat16"):
            raise ValueError(
                f"ns_dtype must be 'float32', 'float64' or 'bfloat16', got {ns_dtype!r}"
            )
        self.ns_dtype = ns_dtype
        domain.positive(epsilon=epsilon)
        self.epsilon = epsilon
        if adjust_lr not in _ADJUSTMENTS:
            raise ValueError(f"adjust_lr must be one of {_ADJUSTMENTS}, got {adjust_lr!r}")
        self.adjust_lr = adjust_lr

    def create_state(self, index: Any, weight: NDArray) -> Any:
        if weight.ndim != 2:
            raise ValueError(
                "Muon supports only matrices, but parameter "
                f"{self.idx2name.get(index, index)!r} has shape {tuple(weight.shape)}; put it into "
                "a parameter group with 'optimizer': 'adamw'"
            )
        return (zeros_like_state(weight),)

    def combines(self, axis: int) -> bool:
        return True

    def _phases(self, indices, weights, grads, states, lrs, wds):
        means, wholes = [], []
        for index, grad, (mean,) in zip(indices, grads, states):
            grad, value = self._gradient(self._computed(grad)), self._computed(mean)
            value = value + (1 - self.momentum) * (grad - value)
            step = grad + self.momentum * (value - grad) if self.nesterov else value
            family = self._family(index)
            means.append(value)
            wholes.append(
                step if family is None else family.spread(step, self.param_dict[index].index)
            )
        # The parts of a matrix have disjoint elements, so the sum is exact.
        yield [], wholes
        changes = []
        for index, weight, (state,), mean, whole, lr, wd in zip(
            indices, weights, states, means, wholes, lrs, wds
        ):
            step, family = self._orthogonal(whole), self._family(index)
            if family is not None:
                step = family.take(step, self.param_dict[index].index)
            rows, columns = whole.shape
            old, adjusted = self._computed(weight), lr * self._adjustment(rows, columns)
            new = old * (1 - lr * wd) - adjusted * step.astype(old.dtype, copy=False)
            changes += _stores((state, mean), (weight, new))
        yield changes

    def _adjustment(self, rows, columns):
        if self.adjust_lr == "original":
            return math.sqrt(max(1, rows / columns))
        return 0.2 * math.sqrt(max(rows, columns))

    def _orthogonal(self, matrix):
        """Returns the nearest orthogonal matrix, by Newton-Schulz iterations."""
        x = matrix.astype(self.ns_dtype, copy=False)
        tall = x.shape[0] > x.shape[1]
        if tall:
            x = x.T
        a, b, c = self.ns_coefficients
        x = nd.broadcast_div(x, nd.maximum(nd.norm(x), self.epsilon).reshape((1, 1)))
        for _ in range(self.ns_steps):
            gram = nd.dot(x, x, transpose_b=True)
            x = a * x + nd.dot(b * gram + c * nd.dot(gram, gram), x)
        return x.T if tall else x
