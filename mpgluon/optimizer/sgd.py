"""Gradient descent optimizers, with at most one momentum."""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import ndarray as nd, random
from .._core import at_once
from .._internal import domain
from .._internal.domain import Default
from ..base import MXNetTypeError
from .grouped import GroupedOptimizer, group_change, replace, update_group
from .optimizer import HALF, dtype_name, register, zeros_like_state

if TYPE_CHECKING:
    from .._internal.types import NDArray


class _OptionalMomentum(GroupedOptimizer):
    """Base class of optimizers whose states have a momentum only if it is not 0."""

    momentum: float

    @property
    def keeps_momentum(self) -> bool:
        return self.momentum != 0.0


class _Momentum(_OptionalMomentum):
    """Base class of SGD, NAG, LARS and LBSGD: an optional momentum, and the state (momentum,
    float32 copy) of 16-bit weights."""

    def __init__(self, momentum: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        domain.number(momentum=momentum)
        self.momentum = momentum

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return zeros_like_state(weight) if self.momentum != 0.0 else None

    def create_state_multi_precision(self, index: Any, weight: NDArray) -> Any:
        if self._keeps_master(weight):
            master = weight.astype("float32")
            return (self.create_state(index, master), master)
        return self.create_state(index, weight)

    def _masters(self, weights, grads, states):
        return weights, grads, states, []  # updates of these classes use the float32 copies

    def _step(self, indices, weights, grads, states, lrs, wds):
        if not self.multi_precision:
            self._step_alike(indices, weights, grads, states, lrs, wds, False)
            return
        for master in (False, True):
            chosen = [
                i for i, w in enumerate(weights) if self._through_master(w, states[i]) is master
            ]
            if chosen:
                pick = lambda items: [items[i] for i in chosen]
                self._step_alike(
                    pick(indices),
                    pick(weights),
                    pick(grads),
                    pick(states),
                    pick(lrs),
                    pick(wds),
                    master,
                )

    def _through_master(self, weight, state):
        return (
            self.multi_precision and isinstance(state, (tuple, list)) and dtype_name(weight) in HALF
        )

    def _step_alike(self, indices, weights, grads, states, lrs, wds, master):
        """Updates weights that either all have a float32 copy (`master` is true) or all lack
        one."""
        raise NotImplementedError(f"{type(self).__name__} does not define _step_alike")

    def _sgd(self, weights, grads, states, lrs, wds, master, plain=False):
        """Returns the change (`_core.at_once`) that runs plain or momentum SGD. With `plain`,
        gradients are neither rescaled nor clipped."""
        options = {} if plain else self._options()
        masters = [[state[1] for state in states]] if master else []
        momenta = [state[0] for state in states] if master else states
        if momenta[0] is None:
            op = nd.multi_mp_sgd_update if master else nd.multi_sgd_update
            return group_change(op, weights, (grads, *masters), lrs, wds, **options)
        op = nd.multi_mp_sgd_mom_update if master else nd.multi_sgd_mom_update
        options.update(self._momentum_option())
        return group_change(op, weights, (grads, momenta, *masters), lrs, wds, **options)

    def _momentum_option(self):
        return {"momentum": self.momentum} if self.momentum > 0 else {}


@register
class SGD(_Momentum):
    """Stochastic gradient descent::

        grad = clip(grad * rescale_grad) + wd * weight
        state = momentum * state - lr * grad
        weight += state

    Parameters
    ----------
    momentum : float, default 0.0
        Momentum; 0 keeps no state.
    lazy_update : bool, default True
        Whether a row_sparse gradient updates only its own rows. The other rows are not decayed, and
        their states do not change.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.SGD(momentum=0.9, wd=1e-4)
    SGD(learning_rate=0.01, momentum=0.9, wd=0.0001)
    """

    _passes_lists = True

    def __init__(self, momentum: float = 0.0, lazy_update: bool = True, **kwargs: Any) -> None:
        super().__init__(momentum=momentum, **kwargs)
        self.lazy_update = lazy_update

    @property
    def updates_rows(self) -> bool:
        return self.lazy_update

    def _step_alike(self, indices, weights, grads, states, lrs, wds, master):
        at_once(self._sgd(weights, grads, states, lrs, wds, master))

    def _multi(self, weights, states):
        if any(self._through_master(w, s) for w, s in zip(weights, states)):
            momenta, others = [state[0] for state in states], [[state[1] for state in states]]
        else:
            momenta, others = states, []
        if self.momentum == 0.0 and all(momentum is None for momentum in momenta):
            return f"multi_{'mp_' * len(others)}sgd_update", others
        if any(momentum is None for momentum in momenta):
            return None
        return f"multi_{'mp_' * len(others)}sgd_mom_update", [momenta, *others]

    def _multi_numbers(self, count):
        return 1.0, self._options(**self._momentum_option())


@register
class ccSGD(SGD):
    """Old name of SGD."""


@register
class NAG(_Momentum):
    """Nesterov's accelerated gradient.

    The momentum is applied twice::

        grad = clip(grad * rescale_grad) + wd * weight
        state = momentum * state - lr * grad
        weight += momentum * state - lr * grad

    Examples
    --------
    >>> mx.optimizer.NAG(momentum=0.9)
    NAG(learning_rate=0.01, momentum=0.9, wd=0.0)
    """

    def _step_alike(self, indices, weights, grads, states, lrs, wds, master):
        if (states[0][0] if master else states[0]) is None:
            at_once(self._sgd(weights, grads, states, lrs, wds, master))
            return
        if not master:
            update_group(
                nd._internal._multi_nag_mom_update,
                weights,
                (grads, states),
                lrs,
                wds,
                **self._options(**self._momentum_option()),
            )
            return
        for weight, grad, state, lr, wd in zip(weights, grads, states, lrs, wds):
            nd.mp_nag_mom_update(
                weight,
                grad,
                state[0],
                state[1],
                out=weight,
                **self._options(lr=lr, wd=wd, **self._momentum_option()),
            )

    def _multi(self, weights, states):
        if self.multi_precision or any(state is None for state in states):
            return None
        return "_multi_nag_mom_update", [states]

    def _multi_numbers(self, count):
        return 1.0, self._options(**self._momentum_option())


@register
class Signum(_OptionalMomentum):
    """Signum: steps by the sign of the gradient, or of its momentum. `wd_lh` is a decoupled weight
    decay.

    Parameters
    ----------
    learning_rate : float, default 0.01
        Size of a step.
    momentum : float, default 0.9
        Decay rate of the running mean of gradients, whose sign is used; 0 uses the gradient itself.
    wd_lh : float, default 0.0
        Decoupled weight decay: each step subtracts ``learning_rate * wd_lh * weight``.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.Signum(wd_lh=0.1)
    Signum(learning_rate=0.01, wd_lh=0.1, wd=0.0)
    """

    def __init__(
        self,
        learning_rate: float = Default(0.01),
        momentum: float = 0.9,
        wd_lh: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        domain.number(momentum=momentum)
        self.momentum = momentum
        domain.number(wd_lh=wd_lh)
        self.wd_lh = wd_lh

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return zeros_like_state(weight) if self.momentum != 0.0 else None

    def _step_one(self, index, weight, grad, state, lr, wd):
        options = self._options(lr=lr, wd=wd)
        if state is None:
            nd.signsgd_update(weight, grad, out=weight, **options)
        else:
            nd.signum_update(
                weight, grad, state, out=weight, momentum=self.momentum, wd_lh=self.wd_lh, **options
            )


@register
class SGLD(GroupedOptimizer):
    """Stochastic gradient Langevin dynamics: half a gradient step plus normal noise with variance
    lr.

    Parameters
    ----------
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.SGLD(learning_rate=0.1)
    SGLD(learning_rate=0.1, wd=0.0)
    """

    draws = True

    def _drawn_for(self, index):
        """Returns the same key for all parts of a split parameter, so that they use the numbers of
        the whole."""
        return self._family(index) or index

    def _step_one(self, index, weight, grad, state, lr, wd):
        grad = self._gradient(grad)
        moved = weight + -lr / 2 * (grad + wd * weight)
        family = self._family(index)
        noise = random.normal(
            0,
            math.sqrt(lr),
            shape=weight.shape if family is None else family.shape,
            dtype=dtype_name(weight),
            ctx=weight.context,
        )
        if family is not None:
            noise = family.take(noise, self.param_dict[index].index)
        weight[:] = moved + noise


@register
class DCASGD(_OptionalMomentum):
    """Delay-compensated SGD. Corrects a delayed gradient with the weight's change since the
    gradient was computed, times `lamda`.

    Parameters
    ----------
    momentum : float, default 0.0
        Momentum.
    lamda : float, default 0.04
        Strength of the delay compensation.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.DCASGD(lamda=0.1)
    DCASGD(learning_rate=0.01, lamda=0.1, wd=0.0)
    """

    def __init__(self, momentum: float = 0.0, lamda: float = 0.04, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        domain.number(momentum=momentum)
        self.momentum = momentum
        domain.number(lamda=lamda)
        self.lamda = lamda

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return (zeros_like_state(weight) if self.momentum != 0.0 else None, weight.copy())

    def _step_one(self, index, weight, grad, state, lr, wd):
        momentum, previous = state
        grad = self._gradient(grad)
        change = -lr * (grad + wd * weight + self.lamda * grad * grad * (weight - previous))
        pairs = []
        if momentum is not None:
            change = momentum * self.momentum + change
            pairs = [(momentum, change)]
        replace(*pairs, (previous, weight), (weight, weight + change))


@register
class LARS(_Momentum):
    """LARS: SGD with a layer-wise rate, lr * eta * |weight| / (|grad| + wd * |weight| + eps).

    Biases, gammas and betas use the plain rate. With `momentum_correction`, the momentum is scaled
    when the scheduler changes the rate between steps. Norms and rates are float32, even for float64
    weights.

    Parameters
    ----------
    momentum : float, default 0.0
        Momentum.
    lazy_update : bool, default True
        Accepted for compatibility; norms are always those of whole arrays.
    eta : float, default 0.001
        Factor for the ratio of the norms.
    eps : float, default 0
        Added to the divisor.
    momentum_correction : bool, default True
        Whether to scale the momentum when the scheduler changes the rate.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.LARS(momentum=0.9, eta=0.01)
    LARS(learning_rate=0.01, momentum=0.9, eta=0.01, wd=0.0)
    """

    _passes_lists = True

    def __init__(
        self,
        momentum: float = 0.0,
        lazy_update: bool = True,
        eta: float = 0.001,
        eps: float = 0,
        momentum_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(momentum=momentum, **kwargs)
        self.momentum_correction = momentum_correction
        self.lazy_update = lazy_update
        domain.number(eta=eta)
        self.eta = eta
        domain.at_least(0, eps=eps)
        self.eps = eps
        self.last_lr: float | None = None
        self.cur_lr: float | None = None
        # Number of the update that cur_lr belongs to. All weights of a step use the same cur_lr and
        # last_lr.
        self._rate_update: int | None = None

    def saved_numbers(self) -> dict[str, float | None]:
        """See `Optimizer.saved_numbers`."""
        return {name: getattr(self, name) for name in ("last_lr", "cur_lr", "_rate_update")}

    def _decays(self, name):
        return name.endswith("_weight")

    def _get_lrs(self, indices):
        lr = self.learning_rate
        if self.cur_lr is None:
            self.last_lr = lr
        elif self._rate_update != self.num_update:
            self.last_lr = self.cur_lr
        self.cur_lr = lr
        self._rate_update = self.num_update
        return super()._get_lrs(indices)

    def _is_layer(self, index):
        return not self.idx2name.get(index, str(index)).endswith(("gamma", "beta", "bias"))

    def combines(self, axis: int) -> bool:
        return True

    def _step_alike(self, indices, weights, grads, states, lrs, wds, master):
        self._run_phases([self._begin_phases(indices, weights, grads, states, lrs, wds)])

    def _phases(self, indices, weights, grads, states, lrs, wds):
        """See `GroupedOptimizer`. Either all weights, or none, have a float32 copy."""
        master = self._through_master(weights[0], states[0])
        momentum = self.momentum
        if momentum > 0 and self.momentum_correction and self.last_lr:
            momentum = momentum * (self.cur_lr / self.last_lr)
        layers = [i for i, index in enumerate(indices) if self._is_layer(index)]
        order = layers + [i for i, index in enumerate(indices) if not self._is_layer(index)]
        context, count = weights[0].context, len(layers)
        rates = nd.array([lrs[i] for i in order], ctx=context, dtype="float32")
        decays = nd.array([wds[i] for i in order], ctx=context, dtype="float32")
        sums = [
            nd.multi_sum_sq(*[arrays[i] for i in layers], num_arrays=count)
            for arrays in ((weights, grads) if layers else ())
        ]
        yield [], sums
        if layers:
            scaled = rates[:count]
            nd.multi_lars(
                scaled,
                *sums,
                decays[:count],
                eta=self.eta,
                eps=self.eps,
                rescale_grad=self.rescale_grad,
                out=scaled,
            )
        arrays = []
        for i in order:
            arrays += [weights[i], grads[i]]
            if master:
                arrays += [part for part in states[i] if part is not None]
            elif states[i] is not None:
                arrays.append(states[i])
        has_momentum = (states[0][0] if master else states[0]) is not None
        more = {"momentum": momentum} if self.momentum > 0 and has_momentum else {}
        op = {
            (False, False): nd.preloaded_multi_sgd_update,
            (False, True): nd.preloaded_multi_sgd_mom_update,
            (True, False): nd.preloaded_multi_mp_sgd_update,
            (True, True): nd.preloaded_multi_mp_sgd_mom_update,
        }[master, has_momentum]
        yield [
            (
                partial(
                    op,
                    *arrays,
                    rates,
                    decays,
                    out=[weights[i] for i in order],
                    num_weights=len(order),
                    **self._options(**more),
                ),
            )
        ]


@register
class LBSGD(_Momentum):
    """SGD for large batches: averages the gradients of `batch_scale` updates, and increases the
    rate during a warm-up.

    With the `warmup_strategy` "linear", "power2" or "sqrt", the rate rises to `batch_scale` times
    the learning rate over `warmup_epochs` epochs of `updates_per_epoch` updates. With "lars", it is
    multiplied by the ratio of the norms of weight and gradient, clipped to [0.01, 100].

    Parameters
    ----------
    momentum : float, default 0.0
        Momentum.
    multi_precision : bool, default False
        Whether to update 16-bit weights through a float32 copy.
    warmup_strategy : str, default 'linear'
        'linear', 'power2', 'sqrt' or 'lars'.
    warmup_epochs : int, default 5
        Number of epochs of the warm-up.
    batch_scale : float, default 1
        Number of updates whose gradients are averaged for one step.
    updates_per_epoch : int, default 32
        Number of updates in an epoch.
    begin_epoch : int, default 0
        Epoch at the start of training.
    num_epochs : int, default 60
        Number of epochs of the whole training.
    **kwargs
        See `Optimizer`.

    Examples
    --------
    >>> mx.optimizer.LBSGD(momentum=0.9, batch_scale=4)
    LBSGD(learning_rate=0.01, momentum=0.9, batch_scale=4, wd=0.0)
    """

    def __init__(
        self,
        momentum: float = 0.0,
        multi_precision: bool = False,
        warmup_strategy: str = "linear",
        warmup_epochs: int = 5,
        batch_scale: float = 1,
        updates_per_epoch: int = 32,
        begin_epoch: int = 0,
        num_epochs: int = 60,
        **kwargs: Any,
    ) -> None:
        super().__init__(momentum=momentum, multi_precision=multi_precision, **kwargs)
        if not isinstance(warmup_strategy, str):
            raise MXNetTypeError(f"warmup_strategy must be a name, got {warmup_strategy!r}")
        domain.number(warmup_epochs=warmup_epochs, num_epochs=num_epochs)
        domain.positive(batch_scale=batch_scale)
        domain.size(0, updates_per_epoch=updates_per_epoch, begin_epoch=begin_epoch)
        logging.info(
            "LBSGD: batch_scale=%f, warmup_epochs=%d, warmup_strategy=%s, updates_per_epoch=%d",
            batch_scale,
            warmup_epochs,
            warmup_strategy,
            updates_per_epoch,
        )
        self.warmup_strategy = warmup_strategy
        self.warmup_epochs = warmup_epochs
        self.batch_scale = batch_scale
        self.updates_per_epoch = updates_per_epoch
        self.init_updates: int = begin_epoch * updates_per_epoch
        self.num_epochs = num_epochs

    def create_state(self, index: Any, weight: NDArray) -> Any:
        momentum = super().create_state(index, weight)
        return momentum if self.batch_scale == 1 else (momentum, zeros_like_state(weight))

    def _parts(self, weight, state):
        """Returns the state without the sum of gradients, and the sum or None."""
        if self.batch_scale == 1:
            return state, None
        master = self._through_master(weight, state)
        own = state[0] if master else state
        if not isinstance(own, (tuple, list)):
            raise ValueError(
                f"LBSGD: a state has no sum of gradients, which batch_scale={self.batch_scale} "
                "needs; create a new state"
            )
        return ((own[0], state[1]) if master else own[0]), own[1]

    def _written(self, weights, states):
        if self.batch_scale == 1:
            return weights
        return [self._parts(weight, state)[1] for weight, state in zip(weights, states)]

    def _warmup_factor(self, updates):
        total = self.warmup_epochs * self.updates_per_epoch
        rise = float(self.batch_scale) - 1
        if updates >= total:
            return 1.0 + rise
        if total <= 1:
            return 1.0
        part = float(updates) / total
        curve = {"linear": part, "power2": part * part, "sqrt": math.sqrt(part)}
        return 1.0 + rise * curve.get(self.warmup_strategy, 0.0)

    def combines(self, axis: int) -> bool:
        return self.warmup_strategy == "lars"

    def _begin(self, indices):
        # The rate depends on the number of previous updates. `num_update` may already include this
        # step, so use the number that the Trainer has stored. Outside a Trainer, derive it from the
        # counts of these parameters.
        counts, counted, number = self._index_update_count, self.num_update, self.number_before
        if number is None:
            number = max(counts.get(i, self.begin_num_update) for i in indices)
        self.num_update = number
        try:
            lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        finally:
            self.num_update = counted
        self._update_count(indices)
        return lrs, wds

    def _step_alike(self, indices, weights, grads, states, lrs, wds, master):
        for one in zip(indices, weights, grads, states, lrs, wds):
            self._step_one(*one)

    def _phases(self, indices, weights, grads, states, lrs, wds):
        lars, sums, due, added = self.warmup_strategy == "lars", [], [], []
        first = self.init_updates - self.begin_num_update
        for index, weight, grad, state, *rates in zip(indices, weights, grads, states, lrs, wds):
            state, total = self._parts(weight, state)
            seen, mean = first + self._index_update_count[index], grad
            last = seen % self.batch_scale == 0
            if total is not None:
                new = total + grad.astype(total.dtype, copy=False)
                mean = (new / self.batch_scale).astype(grad.dtype, copy=False) if last else None
                added.append(((nd.zeros_like(new) if last else new).copyto, total))
            if last:
                due.append((weight, mean, state, *rates, seen))
                sums += [nd.sum(array * array) for array in (weight, mean)] if lars else []
        yield [], sums
        norms, changes = iter(sums), []
        for weight, mean, state, lr, wd, seen in due:
            if lars:
                mean, wd = self._lars(weight, mean, wd, next(norms), next(norms)), 0.0
            else:
                lr *= self._warmup_factor(seen)
            master = self._through_master(weight, state)
            changes.append(self._sgd([weight], [mean], [state], [lr], [wd], master, plain=lars))
        yield [*changes, *added]

    def _lars(self, weight, grad, wd, weight_norm, grad_norm):
        """Returns the gradient, rescaled, clipped and with weight decay, times the layer's factor.
        The norms are squared. Computed on the device."""
        factor = nd.clip(nd.sqrt(weight_norm / (grad_norm + wd * weight_norm + 1e-18)), 0.01, 100.0)
        step = self._gradient(grad) + wd * weight
        return nd.broadcast_mul(step, factor.reshape((1,) * len(weight.shape)))
