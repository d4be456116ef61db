"""Base class of optimizers: rates of parameters, update counts and random numbers."""

from __future__ import annotations

import math
import operator
import warnings
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _core, ndarray as nd
from .._core import at_once
from .._internal import domain
from .._internal.domain import Default
from .._internal.hints import constructed, near, of_package, unknown_option
from ..base import MXNetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Never

    from .._internal.types import Class, NDArray, Symbol
    from ..gluon.parameter import Parameter
    from ..lr_scheduler import LRScheduler

# Number of calls of the random number generator that a Trainer reserves for the update of each
# parameter, if any update draws. No update makes this many calls, so no two updates draw the same
# numbers. Calls are counted modulo 2**64.
_CALLS = 1 << 32

HALF = ("float16", "bfloat16")
_LR_MULT, _WD_MULT = operator.attrgetter("lr_mult"), operator.attrgetter("wd_mult")


def dtype_name(array: NDArray) -> str:
    """Returns the name of an array's dtype, such as "float32"."""
    dtype = array.dtype
    return getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)


def zeros_like_state(weight: NDArray) -> NDArray:
    """Returns zeros with the weight's shape and dtype, on its device."""
    return nd.zeros(weight.shape, ctx=weight.context, dtype=weight.dtype)


def as_lists(
    index: Any, weight: Any, grad: Any, state: Any
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Returns the arguments of `update` as lists. They may be single values."""
    if isinstance(index, (list, tuple)):
        return list(index), list(weight), list(grad), list(state)
    return [index], [weight], [grad], [state]


def _rate_with(scheduler: LRScheduler, learning_rate: float | None, given: bool) -> float | None:
    """Sets the rates of a scheduler from the optimizer's, as MXNet does, if the program passed it
    (`given`) or did not pass a base_lr. Returns the optimizer's rate, or None if the scheduler
    keeps its own."""
    if learning_rate is None or (not given and getattr(scheduler, "base_lr_given", True)):
        return None
    base_lr = scheduler.base_lr
    # Schedulers with base_lr_orig compute their rates from it.
    fixed = hasattr(scheduler, "base_lr_orig")
    if not given and not fixed and scheduler.warmup_final_lr == base_lr:
        scheduler.warmup_final_lr = learning_rate
    if given and base_lr != learning_rate:
        text = (
            f"learning_rate {learning_rate} has no effect, because {type(scheduler).__name__} "
            f"computes all rates from its base_lr {base_lr}; pass base_lr={learning_rate}"
            if fixed
            else f"learning_rate {learning_rate} replaces the base_lr {base_lr} of lr_scheduler; "
            "pass both with the same value"
        )
        warnings.warn(text, UserWarning, stacklevel=4)
    scheduler.base_lr = learning_rate
    return learning_rate


class Optimizer:
    """Base class of optimizers.

    Parameters
    ----------
    rescale_grad : float
        Factor for gradients; Trainer sets it to 1 / batch size.
    param_idx2name : dict of int to str
        Names of the parameters, used by `set_lr_mult` and `set_wd_mult`.
    wd : float
        Weight decay.
    clip_gradient : float
        Bound for the absolute value of rescaled gradients; None disables clipping.
    learning_rate : float
        Learning rate; defaults to 0.01, or the scheduler's.
    lr_scheduler : LRScheduler
        Function from the number of updates to the learning rate.
    multi_precision : bool
        Whether to update 16-bit weights through a float32 copy, which is kept with the state.
    begin_num_update : int
        Initial value of the update counts.
    param_dict : dict of int to Parameter
        Parameters by index. Their `lr_mult` and `wd_mult` take precedence.
    sym : Symbol, optional
        A symbol; attributes ``__lr_mult__`` and ``__wd_mult__`` of its variables set multipliers.
    **kwargs
        Rejected with a TypeError that lists the valid options.

    A subclass defines `create_state(index, weight)` and `update(index, weight, grad, state)` for
    single arrays. If it sets `aggregate_num` above 0, it receives lists of at most this length, all
    on one device. Rates that are negative or not finite raise ValueError before any update.

    In a Trainer, the random numbers of `mx.nd.random` in these methods do not depend on the
    parameter's devices, and are the same for all its replicas. Numbers of other generators, such as
    NumPy's, differ between replicas.

    Examples
    --------
    >>> mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9)
    SGD(learning_rate=0.1, momentum=0.9, wd=0.0)
    """

    opt_registry: dict[str, type[Optimizer]] = {}
    # True if updates may draw random numbers. Classes outside of this package get True.
    draws: bool = False
    _draws: dict[Any, tuple[int, int]] | None = None  # index -> random state for its update
    _drew = False  # True if an update has used its random state
    # num_update before the Trainer's current step, even if that step failed. None outside a step.
    number_before: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "draws" not in vars(cls) and not cls.__module__.startswith("mpgluon."):
            cls.draws = True

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: dict[int, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: LRScheduler | None = None,
        sym: Symbol | None = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: dict[int, Parameter] | None = None,
        **kwargs: Never,
    ) -> None:
        if kwargs:
            raise unknown_option(type(self), kwargs)
        self.rescale_grad = rescale_grad
        self.lr_scheduler = lr_scheduler
        given = not isinstance(learning_rate, Default)
        if learning_rate is not None:
            domain.at_least(0, learning_rate=learning_rate)
            learning_rate = learning_rate if given else float(learning_rate)
        if lr_scheduler is not None:
            learning_rate = _rate_with(lr_scheduler, learning_rate, given)
        elif learning_rate is None:
            learning_rate = 0.01
        self.lr = learning_rate
        domain.number(wd=wd, rescale_grad=rescale_grad)
        self.wd = wd
        if clip_gradient is not None:
            domain.not_negative(clip_gradient=clip_gradient)
        domain.size(0, begin_num_update=begin_num_update)
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.allow_np_array: bool = _core.is_np_array()
        self.aggregate_num: int = 0
        self.begin_num_update = begin_num_update
        self.num_update: int = begin_num_update
        self._all_counts = {0: {}}  # per device: number of updates of each parameter
        self._counts = self._all_counts[0]
        # `MultiStep`s that may have unwritten counts.
        self._counting = set()
        if param_idx2name is not None and not isinstance(param_idx2name, dict):
            raise TypeError(
                "param_idx2name must be a dict of index to name, got "
                f"{type(param_idx2name).__name__}"
            )
        self.idx2name: dict[int, str] = dict(param_idx2name or {})
        self.sym_info: tuple[Any, ...] = (
            (sym.attr_dict(), sym.list_arguments()) if sym is not None else ()
        )
        self.param_dict: dict[int, Parameter] = param_dict or {}
        self.lr_mult: dict[Any, float] = {}
        self.wd_mult: dict[Any, float] = {}
        self.set_lr_mult({})
        self.set_wd_mult({})

    @staticmethod
    def register(klass: Class) -> Class:
        """Decorator that registers an optimizer under its lower-case name, for `create`."""
        if not isinstance(klass, type):
            raise TypeError(f"register: an optimizer must be a class, got {klass!r}")
        name = klass.__name__.lower()
        former = Optimizer.opt_registry.get(name)
        if former is not None and former is not klass:
            warnings.warn(
                f"optimizer {name!r}: {klass.__module__}.{klass.__name__} replaces "
                f"{former.__module__}.{former.__name__}",
                stacklevel=2,
            )
        Optimizer.opt_registry[name] = klass
        return klass

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> Optimizer:
        """Creates the optimizer of that name, see `class_of`."""
        return Optimizer.class_of(name)(**kwargs)

    @staticmethod
    def class_of(name: str) -> type[Optimizer]:
        """Returns the optimizer class of that name, in upper or lower case. Raises ValueError if it
        does not exist."""
        if not isinstance(name, str):
            raise TypeError(f"the name of an optimizer must be a str, not a {type(name).__name__}")
        klass = Optimizer.opt_registry.get(name.lower())
        if klass is None:
            known = set(Optimizer.opt_registry)
            raise ValueError(
                f"unknown optimizer {name!r}{near(name, known)}; expected one of "
                f"{', '.join(sorted(known - {'test'}))}"
            )
        return klass

    def __repr__(self) -> str:
        options = constructed(self, ("wd",)).partition("(")[2]
        return f"{type(self).__name__}(learning_rate={self.learning_rate}, {options}"

    @property
    def learning_rate(self) -> float:
        """The current learning rate, before multipliers."""
        return self.rate_at(self.num_update)

    def rate_at(self, num_update: int) -> float:
        """Returns the learning rate, before multipliers, after a number of updates."""
        return self.lr if self.lr_scheduler is None else self.lr_scheduler(num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate. The rates of parameter groups change in proportion. Raises
        UserWarning if a scheduler controls the rate."""
        if self.lr_scheduler is not None:
            raise UserWarning(
                "the learning rate is set by lr_scheduler and cannot be changed; change the "
                "scheduler"
            )
        domain.at_least(0, learning_rate=lr)
        former, self.lr = self.lr, lr
        for member in self.group_optimizers:
            member.follow(former, lr)

    # --- Parameter groups, see `_parameter_groups` ---

    # The optimizer of each group, and the optimizer of each parameter by index. The names must
    # not collide with attributes of user classes.
    group_optimizers: Sequence[Any] = ()
    optimizer_by_index: Mapping[Any, Optimizer] = {}

    @property
    def members(self) -> Sequence[Optimizer]:
        """The optimizers that update parameters: those of the groups or, without groups, this
        one."""
        return self.group_optimizers or (self,)

    def of(self, index: Any) -> Optimizer:
        """Returns the optimizer that updates a parameter, by index."""
        return self.optimizer_by_index.get(index, self)

    def set_lr_scale(self, args_lrscale: Any) -> NoReturn:
        """Raises DeprecationWarning, because `set_lr_mult` replaces this method."""
        raise DeprecationWarning("set_lr_scale was removed; use set_lr_mult")

    def _symbol_multipliers(self, key):
        if not self.sym_info:
            return {}
        attributes, names = self.sym_info
        return {
            name: float(attributes[name][key]) for name in names if key in attributes.get(name, {})
        }

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Sets multipliers of the learning rate: a dict from parameter names (or indices) to
        factors. Replaces previous multipliers."""
        self.lr_mult = {**self._symbol_multipliers("__lr_mult__"), **args_lr_mult}

    def _decays(self, name):
        """True if weight decay applies by default to a parameter with this name."""
        return name.endswith(("_weight", "_gamma"))

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Sets multipliers of the weight decay: a dict from parameter names (or indices) to
        factors. The default is 0 for biases and other parameters that are not weights or gammas."""
        self.wd_mult = {name: 0.0 for name in self.idx2name.values() if not self._decays(name)}
        self.wd_mult.update(self._symbol_multipliers("__wd_mult__"))
        self.wd_mult.update(args_wd_mult)

    @property
    def updates_rows(self) -> bool:
        """True if a row_sparse gradient updates only its own rows."""
        return False

    # --- State ---

    @property
    def keeps_momentum(self) -> bool:
        """True if new states have a momentum. States created while it was 0 lack one."""
        return False

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """Returns the state of a weight: None, an array, a number, a string, or a tuple, list or
        dict of these. Arrays are on the weight's device and may have any shape. An array, list or
        dict must not be shared between parameters or occur twice in a state. Otherwise, each
        occurrence becomes a separate object when the state is moved, saved or loaded.

        States of other types, such as named tuples, cannot be saved. NumPy numbers are saved as
        Python numbers. At most 200 levels of nesting and integers of 14000 bits can be saved.

        If a parameter is split over devices, `mx.parallel.save` requires that each array has one
        element, or the shape of the part with some dimensions replaced by 1. An array of size 1
        along the split axis must be equal for all parts, unless all parts have size 1 along this
        axis. In this case, `mx.parallel.load` calls this method, because the shapes of new states
        show which arrays are split."""
        return None

    def _keeps_master(self, weight):
        """True if the weight is updated through a float32 copy. Warns for a 16-bit weight without
        one."""
        if dtype_name(weight) not in HALF:
            return False
        if not self.multi_precision:
            warnings.warn(
                f"{type(self).__name__}: accumulating in {dtype_name(weight)} loses small "
                "updates; use multi_precision=True, which keeps a float32 copy",
                stacklevel=3,
            )
        return self.multi_precision

    def create_state_multi_precision(self, index: Any, weight: NDArray) -> Any:
        """Returns the state. For a 16-bit weight, it is (float32 copy of the weight, state)."""
        if self._keeps_master(weight):
            master = weight.astype("float32")
            return (master, self.create_state(index, master))
        return self.create_state(index, weight)

    # --- Updates ---

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Updates weight and state in place by the gradient."""
        raise NotImplementedError(
            f"{type(self).__name__} must define update(index, weight, grad, state)"
        )

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Calls `update`. 16-bit weights with a float32 copy are updated through that copy."""
        if not self.multi_precision:
            self.update(index, weight, grad, state)
            return
        indices, weights, grads, states = as_lists(index, weight, grad, state)
        masters, grads, states, casts = self._masters(weights, grads, states)
        if not casts:
            self.update(index, weight, grad, state)
            return
        if isinstance(index, (list, tuple)):
            self.update(indices, masters, grads, states)
        else:
            self.update(index, masters[0], grads[0], states[0])
        at_once(*casts)

    def _masters(self, weights, grads, states):
        """Returns the arguments of `update` with float32 copies in place of the 16-bit weights that
        have one, and the changes (`_core.at_once`) that copy these back."""
        if not self.multi_precision:
            return weights, grads, states, []
        half = [dtype_name(w) in HALF for w in weights]
        masters = [s[0] if h else w for h, w, s in zip(half, weights, states)]
        grads = [g.astype("float32") if h else g for h, g in zip(half, grads)]
        states = [s[1] if h else s for h, s in zip(half, states)]
        casts = [
            (partial(nd.cast, master, dtype=dtype_name(w), out=w),)
            for h, w, master in zip(half, weights, masters)
            if h
        ]
        return masters, grads, states, casts

    def settle_counts(self) -> None:
        """Writes the pending update counts of all fused updates, so that they may be changed."""
        for step in list(self._counting):
            step.write_counts()
            step.counts = None
            self._counting.discard(step)

    @property
    def update_counts(self) -> dict[int, dict[Any, int]]:
        """The number of updates of each parameter: device number -> index -> count."""
        self.settle_counts()
        return self._all_counts

    @property
    def _all_index_update_counts(self):
        return self.update_counts

    @_all_index_update_counts.setter
    def _all_index_update_counts(self, counts):
        self.settle_counts()
        self._all_counts = counts

    @property
    def _index_update_count(self):
        self.settle_counts()
        return self._counts

    @_index_update_count.setter
    def _index_update_count(self, counts):
        self.settle_counts()
        self._counts = counts

    def count_on(self, device_id: int) -> dict[Any, int]:
        """Selects the device, by number, whose update counts are used from now on, and returns
        these counts. A `MultiStep` may still have pending counts."""
        self._counts = self._all_counts.setdefault(device_id, {})
        return self._counts

    _set_current_context = count_on

    def _update_count(self, index):
        counts = self._index_update_count
        indices = index if isinstance(index, (list, tuple)) else (index,)
        try:
            now = [counts[i] + 1 for i in indices]
        except KeyError:  # first update of a parameter
            now = [counts.get(i, self.begin_num_update) + 1 for i in indices]
        counts.update(zip(indices, now))
        self.num_update = max(self.num_update, max(now, default=0))

    def _multiplier(self, index, attribute, table):
        parameter = self.param_dict.get(index)
        if parameter is not None:
            return attribute(parameter)
        if index in table:
            return table[index]
        name = self.idx2name.get(index)
        return 1.0 if name is None else table.get(name, 1.0)

    def _get_lrs(self, indices):
        """Returns the current learning rates of parameters."""
        lr = self.learning_rate
        lrs = [lr * multiplier for multiplier in self._multipliers(indices, _LR_MULT, self.lr_mult)]
        if math.isfinite(sum(lrs)) and min(lrs, default=0) >= 0:
            return lrs
        for i, value in zip(indices, lrs):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"{type(self).__name__}: the learning rate of parameter "
                    f"{self.idx2name.get(i, i)!r} is {value}; it must be finite and not negative"
                )
        return lrs

    def _multipliers(self, indices, attribute, table):
        params = self.param_dict
        if params:
            try:
                return map(attribute, [params[i] for i in indices])
            except KeyError:
                pass  # some parameters are only known by name
        return [self._multiplier(i, attribute, table) for i in indices]

    def _get_lr(self, index):
        return self._get_lrs([index])[0]

    def _get_wds(self, indices):
        """Returns the weight decays of parameters."""
        wd = self.wd
        wds = [wd * multiplier for multiplier in self._multipliers(indices, _WD_MULT, self.wd_mult)]
        if not math.isfinite(sum(wds)):
            for value in wds:
                domain.number(wd=value)
        return wds

    def _get_wd(self, index):
        return self._get_wds([index])[0]

    def check_rates(self, indices: Sequence[Any]) -> None:
        """Raises ValueError if a learning rate or weight decay is invalid."""
        for index in indices:
            self.of(index)._get_lrs([index])
            self.of(index)._get_wds([index])

    def combines(self, axis: int) -> bool:
        """True if an update combines elements along an axis of the parameter, as a norm does. The
        parts of a parameter that is split along this axis must then be updated together."""
        return False

    def refuse_part(self, index: Any) -> None:
        """Raises MXNetError if an update of this parameter alone would be wrong, because it is a
        part of a split parameter."""
        param: Any = self.param_dict.get(index)
        split = getattr(param, "global_shape", None) is not None
        if split and getattr(param, "count", 2) > 1 and self.combines(param.axis):
            raise MXNetError(
                f"{type(self).__name__}: parameter '{param.name}' is a part of a split parameter, "
                "and its update depends on the other parts; update all parts with Trainer.step, "
                "without a kvstore that runs the optimizer and without an update() of a subclass"
            )

    def _drawn_for(self, index):
        """Returns the key of the random numbers for a parameter's update. Parameters with the same
        key use the same numbers."""
        return index

    @contextmanager
    def draws_by(self, indices: Sequence[Any]) -> Iterator[None]:
        """Returns a scope in which the updates of parameters, by index, use random numbers in the
        order of `indices`, regardless of the order of updates. Replicas use the same numbers."""
        members = {index: self.of(index) for index in indices}
        keys = {i: member._drawn_for(i) for i, member in members.items() if member.draws}
        order = {key: call for call, key in enumerate(dict.fromkeys(keys.values()))}
        seed, call = _core.random_state()
        self._draws = {i: (seed, call + order[key] * _CALLS) for i, key in keys.items()}
        self._drew = False
        try:
            yield
        finally:
            self._draws = None
            if self._drew:
                _core.random_restore((seed, call + len(order) * _CALLS))

    @property
    def draws_one_by_one(self) -> bool:
        """True if lists of weights must currently be updated one by one, because each weight has
        its own random numbers."""
        return self._draws is not None

    def numbers_of(self, index: Any, create: bool = False) -> AbstractContextManager[None]:
        """Returns a scope with the random numbers of a parameter for its update or, with `create`,
        for its state."""
        given = self._draws.get(index) if self._draws is not None else None
        if given is None:
            return nullcontext()
        return self._numbers((given[0], given[1] + _CALLS // 2) if create else given)

    @contextmanager
    def _numbers(self, state):
        with _core.Scope((_core.random_restore, state)):
            try:
                yield
            finally:
                self._drew |= _core.random_state() != state

    def saved_numbers(self) -> dict[str, float | None]:
        """Returns the attributes that files of training states store besides update counts."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        self.settle_counts()
        state = self.__dict__.copy()
        for name in ("param_dict", "_counting", "_counts", "_all_counts"):
            del state[name]
        # `_counts` is one of the dicts in `_all_counts`. Store its key, so that a copy's `_counts`
        # is one of the copy's dicts as well.
        state["_all_index_update_counts"] = self._all_counts
        state["_index_update_count"] = next(
            d for d, counts in self._all_counts.items() if counts is self._counts
        )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self._counting, self._all_counts, current = (
            set(),
            state.pop("_all_index_update_counts"),
            state.pop("_index_update_count"),
        )
        self._counts = current if isinstance(current, dict) else self._all_counts[current]
        self.__dict__.update(state)
        self.param_dict = {}


register: Callable[[Class], Class] = Optimizer.register
create: Callable[..., Optimizer] = Optimizer.create_optimizer


@register
class Test(Optimizer):
    """Adds the rescaled gradient to the weight, and copies the weight to the state. For tests."""

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return zeros_like_state(weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        weight += grad * self.rescale_grad
        state[:] = weight


# Functions for other modules of the package.


def counting_steps(optimizer: Optimizer) -> set[Any]:
    """Returns the `MultiStep`s that may have unwritten counts."""
    return optimizer._counting


if not TYPE_CHECKING:  # type checkers would accept any name if they saw __getattr__

    def __getattr__(name: str) -> object:
        return of_package(__name__, name)
