"""Parameter groups: parameters with options of their own in one optimizer.

Each group has an optimizer of its own, a member of the whole optimizer, which holds the group's
options. The members share the update counts, the scheduler, the scale of gradients and the random
numbers of the whole.
"""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from .._internal import domain
from .._internal.hints import options_of, unknown_option
from .optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..gluon.parameter import Parameter

_SHARED = (
    "rescale_grad",
    "lr_scheduler",
    "param_dict",
    "idx2name",
    "sym_info",
    "lr_mult",
    "wd_mult",
    "begin_num_update",
    "num_update",
    "number_before",
    "_all_counts",
    "_counts",
    "_counting",
    "_draws",
    "_drew",
)
# Options that all groups share.
_OF_WHOLE = ("rescale_grad", "lr_scheduler", "begin_num_update", "param_dict", "param_idx2name")
_WHOLE_ONLY = (*_OF_WHOLE, "sym")
# Options that a group of another class inherits from the whole.
_INHERITED = ("clip_gradient", "multi_precision")
# Options that determine the arrays of states.
_OF_STATES = ("multi_precision", "amsgrad", "centered", "batch_scale")
# PyTorch's names of options.
_NAMES = {"lr": "learning_rate", "weight_decay": "wd"}


def _of_whole(name):
    def get(self):
        return getattr(self._whole, name)

    def set(self, value):
        setattr(self._whole, name, value)

    return property(get, set)


class Member(Optimizer):
    """Mixin of the optimizers of groups. `member_class` combines it with an optimizer's class."""

    _whole: Optimizer
    # The group's learning rate divided by the whole's `base_rate`, also while both are 0.
    rate_factor: float = 1.0
    draws = False

    def rate_at(self, num_update: int) -> float:
        scheduler = self.lr_scheduler
        return self.lr if scheduler is None else scheduler(num_update) * self.rate_factor

    def follow(self, former: float, lr: float) -> None:
        """Scales the rate after the rate of the whole has changed from `former` to `lr`."""
        if former != 0:
            self.rate_factor = self.lr / former
        self.lr = lr * self.rate_factor

    def set_learning_rate(self, lr: float) -> None:
        if self.lr_scheduler is not None:
            raise UserWarning(
                "the learning rate is set by lr_scheduler, in proportion to the group's "
                "'initial_lr'; assign 'initial_lr'"
            )
        set_rate(self, lr)

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _blank, (type(self).__mro__[2],), self.__getstate__()


for _name in _SHARED:
    setattr(Member, _name, _of_whole(_name))


@functools.cache
def member_class(kind: type[Optimizer]) -> type[Any]:
    """Returns the class of the members of an optimizer's class."""
    body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "draws": kind.draws}
    return type(kind.__name__, (Member, kind), body)


def _blank(kind):
    made = member_class(kind)
    return made.__new__(made)


def full_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a group with PyTorch's names replaced. Raises ValueError if an option
    is given under both names."""
    full: dict[str, Any] = {}
    for name, value in options.items():
        own = _NAMES.get(name, name)
        if own in full:
            other = next(key for key, value in _NAMES.items() if value == own)
            raise ValueError(f"{own!r} and {other!r} are the same option; pass one of them")
        full[own] = value
    return full


def add_group(
    whole: Optimizer,
    own: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    indices: Sequence[Any],
) -> None:
    """Adds a group to an optimizer.

    Parameters
    ----------
    whole : Optimizer
        The optimizer.
    own : dict, optional
        The options with which the whole was created. None if they are unknown; the group can then
        only set the learning rate and the weight decay.
    options : dict
        The group's options, which take precedence. 'optimizer' may name another class.
    indices : list
        The indices of the group's parameters.
    """
    options = dict(options)
    if options.get("learning_rate") is None:  # the default
        options.pop("learning_rate", None)
    kind, name = type(whole), options.pop("optimizer", None)
    if name is not None:
        kind = Optimizer.class_of(name)
    refused = next((key for key in options if key in _WHOLE_ONLY), None)
    if refused is not None:
        raise ValueError(f"{refused!r} applies to all groups; pass it in optimizer_params")
    rate = options.get("learning_rate", base_rate(whole))
    if kind is not type(whole):
        inherited = {key: value for key in _INHERITED if (value := getattr(whole, key))}
        member = kind(**{**inherited, **options})
        rate = member.lr
    elif own is not None:
        kept = {key: value for key, value in own.items() if key not in _OF_WHOLE}
        member = kind(**{**kept, **options})
    else:
        member = _copied(whole, options)
    for shared in (*_SHARED, "optimizer_by_index", "group_optimizers"):
        vars(member).pop(shared, None)
    member.__class__ = member_class(kind)
    member._whole = whole
    set_rate(member, rate)
    whole.group_optimizers = (*whole.group_optimizers, member)
    whole.optimizer_by_index = {**whole.optimizer_by_index, **dict.fromkeys(indices, member)}


def _copied(whole, options):
    """Returns a copy of an optimizer with another learning rate or weight decay."""
    kind = type(whole)
    for name in options:
        if name not in options_of(kind):
            raise unknown_option(kind, options)
        if name not in ("learning_rate", "wd"):
            raise ValueError(
                f"a group can set {name!r} only if the Trainer creates the optimizer; pass its "
                "name and optimizer_params instead of an Optimizer"
            )
    member = kind.__new__(kind)
    vars(member).update(vars(whole))
    if "wd" in options:
        domain.number(wd=options["wd"])
        member.wd = options["wd"]
    return member


def base_rate(whole: Optimizer) -> float | None:
    """Returns the rate to which the rates of groups relate: the scheduler's initial rate, or the
    optimizer's rate. Returns None for a scheduler without base_lr, such as a function."""
    scheduler: Any = whole.lr_scheduler
    if scheduler is None:
        return whole.lr
    known, base = vars(whole).get("_base_rate", (None, None))
    if known is not scheduler:
        base = getattr(scheduler, "base_lr_orig", getattr(scheduler, "base_lr", None))
        whole._base_rate = scheduler, base  # kept, because some schedulers change their base_lr
    return base


def set_rate(member: Any, rate: float | None) -> None:
    """Sets a group's learning rate, in proportion to which a scheduler changes it."""
    whole = member._whole
    base = base_rate(whole)
    if rate is not None or whole.lr_scheduler is None:
        domain.at_least(0, learning_rate=rate)
    if whole.lr_scheduler is not None and rate != base and not base:
        raise ValueError(
            "a group can have a learning rate of its own only if lr_scheduler is an "
            f"LRScheduler with a positive base_lr, but its base_lr is {base}"
        )
    member.rate_factor = rate / base if base else 1.0
    member.lr = rate


class ParameterGroup(MutableMapping):
    """A parameter group of a Trainer, as a dict of its parameters and options.

    The keys are ``'params'``, ``'lr'``, ``'weight_decay'`` and the options of the optimizer, under
    its own names. Assigning an option changes the next update. With an `lr_scheduler`, ``'lr'`` is
    the current rate, and ``'initial_lr'`` the rate to which it applies.

    Examples
    --------
    >>> net = nn.Dense(1, in_units=2)
    >>> net.initialize()
    >>> trainer = gluon.Trainer([{"params": net.collect_params(), "lr": 0.1}], "adamw")
    >>> trainer.param_groups[0]["lr"] = 0.05
    >>> trainer.param_groups[0]["lr"], trainer.param_groups[0]["weight_decay"]
    (0.05, 0.01)
    """

    def __init__(self, optimizer: Any, params: Sequence[Parameter]) -> None:
        self._optimizer, self._params = optimizer, list(params)

    def _keys(self):
        own = self._optimizer
        keys = ["params", "lr", "weight_decay"]
        if own.lr_scheduler is not None and isinstance(own, Member):
            keys.insert(2, "initial_lr")
        hidden = ("learning_rate", "wd", *_WHOLE_ONLY)
        options = (name for name in options_of(type(own)) if name not in hidden)
        return [*keys, *(name for name in options if name in vars(own))]

    def __getitem__(self, key: str) -> Any:
        own = self._optimizer
        if key == "params":
            return list(self._params)
        if key in ("lr", "learning_rate"):
            return own.learning_rate
        if key in ("weight_decay", "wd"):
            return own.wd
        if key not in self._keys():
            raise KeyError(key)
        if key == "initial_lr":
            return own.lr
        return getattr(own, key)

    def __setitem__(self, key: str, value: Any) -> None:
        own = self._optimizer
        if key == "params":
            raise TypeError("the parameters of a group cannot be replaced; create a new Trainer")
        if key in ("lr", "learning_rate"):
            own.set_learning_rate(value)
        elif key in ("weight_decay", "wd"):
            domain.number(weight_decay=value)
            own.wd = value
        elif key == "initial_lr" and key in self._keys():
            set_rate(own, value)
        elif key not in self._keys():
            raise KeyError(f"{key!r}; the group has {', '.join(self._keys())}")
        elif key in _OF_STATES:
            raise ValueError(f"{key} determines the arrays of the states; create a new Trainer")
        else:
            kind = type(own).__mro__[2] if isinstance(own, Member) else type(own)
            if kind.__module__.startswith("mpgluon."):
                value = getattr(kind(**{key: value}), key)  # raises for invalid values
            setattr(own, key, value)

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"a group's option {key!r} cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def __repr__(self) -> str:
        items = ", ".join(f"{k!r}: {self[k]!r}" for k in self._keys() if k != "params")
        names = ", ".join(param.name for param in self._params[:3])
        more = f", and {len(self._params) - 3} more" if len(self._params) > 3 else ""
        return f"{{'params': [{names}{more}], {items}}}"
