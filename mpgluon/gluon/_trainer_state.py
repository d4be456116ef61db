"""The state of a trainer. It can be moved with the parameters, saved and loaded.

docs/internals/training-state.md lists the owner of each piece of training state. Changes are
atomic: an error or an interrupt leaves the state as it was.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

from .. import _core, autograd, ndarray as nd, optimizer as opt
from .._internal import domain
from .._internal.files import open_regular
from ..base import MXNetError, counted
from ..optimizer._nested_states import (
    cast_state,
    check_state,
    continues,
    copy_state,
    put_together,
    take_apart,
)
from ..optimizer._state_files import is_pickle, read_trainer_states
from ..optimizer.optimizer import HALF
from . import _whole_states as whole_states
from .parameter import _gradient_contents as gradients
from .parameter._parameter_dict import split_advice
from .utils import brief

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._internal.types import NDArray
    from ..context import Context
    from ..optimizer import Updater
    from ._offload import Offload
    from .parameter import Parameter

_FORMAT = "mpgluon trainer states 2"
_FORMATS = (_FORMAT, "mpgluon trainer states 1")  # version 1 lacks gradients, phase and scale
_HEADER = "trainer_states"
_NO_STATE = object()


class TrainerState:
    """The state of a trainer's parameters between steps: the optimizer's states and counts, calls
    of `step` that wait for an update, and the scale of gradients.

    Each parameter's state is in the updater of each device on which the parameter is updated.
    States that were read from a file are in `loaded` until the next update moves them to these
    devices.
    """

    def __init__(self, params: list[Parameter], names: list[str], accumulate: int) -> None:
        self.params = params
        self.names = names
        self.indices: dict[str, int] = {name: i for i, name in enumerate(names)}
        self.optimizer: Any = None  # set by Trainer._init_optimizer
        self.offload: Offload | None = None  # set by Trainer
        self.accumulate = accumulate
        # (number of calls of `step` since the last update, total number of samples in these calls);
        # used with `accumulate`.
        self.waiting: tuple[int, float] = 0, 0
        # True while a step runs and after an interrupted step. Replicas may then differ.
        self.unequal = False
        self.by_device: dict[Context, Updater] = {}
        self.loaded: dict[int, Any] = {}
        self.plan: Any = None  # the update plan, discarded when the states are replaced
        self.scale = 1.0  # factor for gradients, in addition to 1 / batch size
        self.loss_scaler: Any = None  # contrib.amp's LossScaler
        self.original_scale = 1.0  # `scale` without the loss scaler

    def updater(self, ctx: Context) -> Updater:
        """Returns the updater of the copies on a device, with their states."""
        updater = self.by_device.get(ctx)
        if updater is None:
            updater = self.by_device[ctx] = opt.get_updater(self.optimizer)
        return updater

    def home(self, ctx: Context) -> Context:
        """Returns the device of the states of weights on a device."""
        return ctx if self.offload is None else self.offload.target(ctx)

    # Moving

    def check_sums(self, plan: Any) -> None:
        """Raises MXNetError if the trainer accumulates and some gradients would not add up."""
        if self.accumulate == 1:
            return
        for index in plan.dtypes:
            if self.params[index].grad_req != "add":
                raise MXNetError(
                    f"Trainer(accumulate={self.accumulate}): Parameter "
                    f"'{self.params[index].name}' has grad_req "
                    f"'{self.params[index].grad_req}', so its gradients do not accumulate; set "
                    "it to 'add'"
                )

    def moves(self, plan: Any) -> list[Any]:
        """Returns the changes (`_core.at_once`) that move each parameter's state and update count
        to exactly the devices on which the plan updates it. The state may be on other devices, or
        in the loaded states. Parameters without a state are skipped."""
        changes: list[Any] = []
        counts = self.optimizer.update_counts
        for index, devices in plan.devices.items():
            have = [ctx for ctx, updater in self.by_device.items() if index in updater.states]
            missing = [ctx for ctx in devices if ctx not in have]
            loaded = index in self.loaded
            if not have and not loaded:
                continue
            if missing:
                home = next((ctx for ctx in devices if ctx in have), have[0] if have else None)
                state = self.by_device[home].states[index] if have else self.loaded[index]
                keys = counts if home is None else [home.count_key]
                count = next((counts[k][index] for k in keys if index in counts.get(k, ())), None)
                for ctx in missing:
                    updater = self.updater(ctx)
                    changes += [
                        (updater.states.__setitem__, index, copy_state(state, ctx)),
                        (updater.states_synced.__setitem__, index, True),
                    ]
                    if count is not None:
                        its = counts.setdefault(ctx.count_key, {})
                        changes.append((its.__setitem__, index, count))
            for ctx in have:
                if ctx not in devices:
                    changes += [
                        (self.by_device[ctx].states.pop, index, None),
                        (self.by_device[ctx].states_synced.pop, index, None),
                    ]
            keys = {ctx.count_key for ctx in devices}
            for key, its in counts.items():
                if key not in keys and index in its:
                    changes.append((its.pop, index, None))
            if loaded:
                changes.append((self.loaded.pop, index, None))
        return changes

    def casts(self, former: dict[int, str], dtypes: dict[int, str]) -> list[Any]:
        """Returns the changes that cast the states of parameters whose dtype changed. `former` and
        `dtypes` are dtypes by parameter index."""
        changes = []
        for index, dtype in dtypes.items():
            old = former.get(index, dtype)
            if old == dtype:
                continue
            if self.optimizer.of(index).multi_precision and (old in HALF) != (dtype in HALF):
                raise MXNetError(
                    f"Parameter '{self.params[index].name}' was cast from {old} to {dtype} "
                    "during training, but with multi_precision its state in the "
                    f"{type(self.optimizer).__name__} optimizer depends on the dtype; cast "
                    "before the first step, or create a new Trainer"
                )
            for updater in self.by_device.values():
                if index in updater.states:
                    state = cast_state(updater.states[index], old, dtype)
                    changes.append((updater.states.__setitem__, index, state))
            if index in self.loaded:
                state = cast_state(self.loaded[index], old, dtype)
                changes.append((self.loaded.__setitem__, index, state))
        return changes

    def complete_updater(self, ctx: Context) -> Updater:
        """Returns the updater of a device, after adding the loaded states for that device."""
        for index, param in enumerate(self.params):
            if index in self.loaded and ctx in map(self.home, param.arrays or ()):
                updater = self.updater(ctx)
                if index not in updater.states:
                    updater.states[index] = copy_state(self.loaded[index], ctx)
                    updater.states_synced[index] = True
        return self.updater(ctx)

    def all_states(self) -> dict[int, Any]:
        """Returns the states of all parameters that have one, by parameter index."""
        states = {i: self.state_of(i, param) for i, param in enumerate(self.params)}
        return {index: state for index, state in states.items() if state is not _NO_STATE}

    def replace_states(self, states: dict[int, Any]) -> None:
        """Replaces all states, by parameter index."""
        vars(self).update({"by_device": {}, "loaded": dict(states), "plan": None})

    def state_of(self, index: int, param: Parameter) -> Any:
        """Returns the state of a parameter, or _NO_STATE."""
        for ctx in map(self.home, param.arrays or ()):
            updater = self.by_device.get(ctx)
            if updater is not None and index in updater.states:
                return updater.states[index]
        if index in self.loaded:
            return self.loaded[index]
        # No device of the parameter holds its state: the parameter has been moved since the last
        # step.
        return next(
            (
                updater.states[index]
                for updater in self.by_device.values()
                if index in updater.states
            ),
            _NO_STATE,
        )

    # Saving

    def save(self, fname: str | os.PathLike[str]) -> None:
        """See `Trainer.save_states`."""
        import json

        arrays = {}
        header = self.describe(arrays, dict(enumerate(self.names)))
        whole_states.join(header, arrays, self.params, self.names)
        text = json.dumps(header, sort_keys=True).encode()
        arrays[_HEADER] = nd.array(list(text), dtype="uint8")
        nd.save(fname, arrays)

    def describe(self, arrays: dict[str, NDArray], names: dict[int, str]) -> dict[str, Any]:
        """Returns the JSON header of the saved states and adds their arrays to `arrays`. `names`
        has the parameters' names by index."""
        states, shapes, counts = {}, {}, {}
        its_counts = self.optimizer.update_counts.values()
        for i, param in enumerate(self.params):
            state = self.state_of(i, param)
            if state is not _NO_STATE:
                states[names[i]] = take_apart(state, names[i], arrays)
                shapes[names[i]] = None if param.shape is None else list(param.shape)
            for per_device in its_counts:
                if i in per_device:
                    counts[names[i]] = max(counts.get(names[i], 0), per_device[i])
        with autograd.pause():
            adding = self.accumulate > 1
            chosen = set(gradients.to_save(self.params, adding, self.waiting[0]))
            grads = {
                names[i]: gradients.describe(param, names[i], arrays)
                for i, param in enumerate(self.params)
                if param in chosen
            }
        scaler = self.loss_scaler
        return {
            "format": _FORMAT,
            "optimizer": type(self.optimizer).__name__,
            "num_update": self.optimizer.num_update,
            "learning_rate": self.optimizer.lr,
            "numbers": self.optimizer.saved_numbers(),
            "groups": [
                {
                    "optimizer": type(member).__name__,
                    "learning_rate": member.lr,
                    "numbers": member.saved_numbers(),
                }
                for member in self.optimizer.group_optimizers
            ],
            "counts": counts,
            "states": states,
            "shapes": shapes,
            "waiting": list(self.waiting),
            "gradients": grads,
            "loss_scaler": None if scaler is None else list(scaler.state),
            "divided_by": None if scaler is None else self.original_scale / self.scale,
        }

    # Loading

    def load(self, fname: str | os.PathLike[str]) -> None:
        """See `Trainer.load_states`."""
        if not os.path.exists(fname):
            raise FileNotFoundError(f"Trainer.load_states: file '{fname}' does not exist")
        if is_pickle(fname):
            self._load_pickle(fname)
            return
        try:
            arrays = nd.load(fname)
        except MemoryError:
            raise
        except MXNetError as error:
            raise MXNetError(f"'{fname}' is not a file of trainer states ({error})") from error
        header = _read_header(arrays, fname)
        source = f"'{fname}'"
        self.check_header(header, source)
        states = header["states"]
        own = whole_states.entries_of(self.params, self.names)
        own = whole_states.as_in_file(own, self.names, header.get("names") or states)
        numbers = self._numbers(header, own)
        whole_states.check_divisions(header, numbers, self.params, source)
        unknown = [name for name in states if name not in numbers]
        if unknown:
            raise MXNetError(
                f"'{fname}' holds states of parameters that this trainer does not have: "
                f"{brief(unknown)}; it has {brief(own)}. "
                f"{split_advice(*unknown, *own)}".rstrip(". ")
            )
        # Parameters that were never updated have no state, and older files do not name them.
        named = header.get("names") or states
        given = {index for name in named if name in numbers for index in numbers[name].indices}
        missing = (
            [
                name
                for index, (name, param) in enumerate(zip(self.names, self.params))
                if param.grad_req != "null" and index not in given
            ]
            if states
            else []
        )
        if missing:
            raise MXNetError(f"'{fname}' has no states of the parameters {brief(missing)}")

        def array_of(key, stype=None):
            if key not in arrays:
                raise MXNetError(f"'{fname}' is damaged: the array '{key}' is missing")
            return arrays[key]

        loaded, grads = {}, {}
        for name, (indices, family) in numbers.items():
            shape = header["shapes"].get(name)
            if family is not None:
                whole_states.check_shape(name, shape, family, source)
                shape = None
            for index in indices:
                param = self.params[index]
                reads = whole_states.reader(
                    header, array_of, self.optimizer, index, param, name, family, source
                )
                if name in states:
                    loaded[index] = put_together(states[name], name, reads, source)
                    check_state(loaded[index], shape, param, source)
                if name in header["gradients"]:
                    grads.update(self.read_gradients(header, {index: name}, reads, source))
        self.check_states(loaded, source)
        counts = {
            index: count
            for name, count in header["counts"].items()
            if name in numbers
            for index in numbers[name].indices
        }
        self.take_over(header, loaded, counts, grads)

    def _numbers(self, header, own):
        """Returns the entry (`_whole_states.Entry`) for each name in a file. `own` has the
        trainer's entries by name.

        Names are matched if they are equal. If all names differ, but only in their numbers, the
        network was created a second time. In this case, both lists are sorted by these numbers,
        which is the order of creation. (A plain sort would put dense10 before dense2.)"""
        saved = header.get("names")
        if saved is None or all(name in own for name in header["states"]):
            return own
        saved, names = sorted(saved, key=_by_numbers), sorted(own, key=_by_numbers)
        if len(saved) != len(names) or any(map(_other_name, saved, names)):
            return own
        return {name: own[mine] for name, mine in zip(saved, names)}

    def _load_pickle(self, fname):
        """Reads a file of MXNet, a pickle of states by parameter index."""
        try:
            with open_regular(fname) as file:
                states, name, saved = read_trainer_states(file.read())
            if name != type(self.optimizer).__name__:
                raise MXNetError(f"it belongs to the optimizer {name}")
            if sorted(states) != list(range(len(self.params))):
                raise MXNetError(f"it has states of {len(states)} parameters")
            for index, state in states.items():
                check_state(state, None, self.params[index], f"'{fname}'")
            self.check_states(states, f"'{fname}'")
            rate = float(saved["lr"])
            domain.at_least(0, learning_rate=rate)
            self.take_over(
                {"num_update": int(saved["num_update"]), "learning_rate": rate},
                states,
                {index: int(count) for index, count in saved["_index_update_count"].items()},
                {},
            )
        except (KeyError, TypeError, ValueError, AttributeError, MXNetError) as error:
            raise MXNetError(
                f"'{fname}' is a pickle that this trainer, with "
                f"{type(self.optimizer).__name__} and "
                f"{counted(len(self.params), 'parameter')}, cannot load: {error}"
            ) from error

    def check_header(self, header: dict[str, Any], source: str) -> None:
        """Raises MXNetError if this trainer cannot continue from a saved state. `source` describes
        the origin of the state in error messages."""
        kind = type(self.optimizer).__name__
        if header["optimizer"] != kind:
            raise MXNetError(
                f"{source} holds states of optimizer {header['optimizer']}, but this trainer "
                f"has {kind}; nothing was changed"
            )
        groups, members = header.get("groups", []), self.optimizer.group_optimizers
        for number, (member, saved) in enumerate(zip(members, groups)):
            kind = type(member).__name__
            if saved["optimizer"] != kind and len(groups) == len(members):
                raise MXNetError(
                    f"{source} holds states of parameter group {number} of optimizer "
                    f"{saved['optimizer']}, but this trainer's group has {kind}; nothing was "
                    "changed"
                )
        calls = header["waiting"][0]
        if calls and self.accumulate == 1:
            raise MXNetError(
                f"{source} was saved after {counted(calls, 'call')} of step without an update; "
                "create the trainer with the same accumulate= as the saved one"
            )
        scaler = self.loss_scaler
        if header["gradients"] and (scaler is None) != (header["loss_scaler"] is None):
            has, lacks = ("the saved trainer", "this one") if scaler is None else ("this one", "it")
            raise MXNetError(
                f"{source} holds gradients that no update has used, and {has} scales losses "
                f"(amp.init_trainer), but {lacks} does not"
            )

    def check_states(self, states: dict[int, Any], source: str) -> None:
        """Raises MXNetError if a state by parameter index does not have the arrays that this
        trainer's optimizer needs. Optimizers of user classes are not checked, because the structure
        of their states may vary."""
        for index, state in states.items():
            param, optimizer = self.params[index], self.optimizer.of(index)
            creates = optimizer.create_state, optimizer.create_state_multi_precision
            if not all(method.__module__.startswith("mpgluon.") for method in creates):
                continue
            shape = (1,) * len(param.shape or (1, 1))
            with warnings.catch_warnings(), autograd.pause():
                # This state is only used for the check, so suppress warnings. They are given when
                # the real state is created.
                warnings.simplefilter("ignore")
                weight = nd.zeros(shape, ctx=param.list_ctx()[0], dtype=param.dtype)
                new = optimizer.create_state_multi_precision(index, weight)
            if not continues(state, new):
                raise MXNetError(
                    f"{source}: the state of parameter '{param.name}' does not have the arrays "
                    f"that {optimizer!r} needs; create the optimizer with the options of the "
                    "saved one, such as momentum and multi_precision"
                )

    def read_gradients(
        self,
        header: dict[str, Any],
        names: dict[int, str],
        array_of: Callable[[str], NDArray],
        source: str,
    ) -> dict[int, Any]:
        """Returns the saved gradients by parameter index. `names` has the parameters' names in the
        header, by index."""
        found = {}
        for index, name in names.items():
            param, entry = self.params[index], header["gradients"].get(name)
            if entry is None:
                continue
            gradients.check(param, entry, source)
            if param.grad_req == "null":
                continue
            if param.arrays is None:
                raise MXNetError(
                    f"{source} holds a gradient of parameter '{param.name}', whose shape is not "
                    "known yet; load the parameters, or run a forward pass, before the states"
                )
            found[index] = gradients.read(param, entry, name, array_of)
        return found

    def take_over(
        self,
        header: dict[str, Any],
        loaded: dict[int, Any],
        counts: dict[int, int],
        grads: dict[int, Any],
    ) -> None:
        """Replaces this trainer's state by a saved one: states, update counts and gradients by
        parameter index. Missing gradients are reset as after an update. The change is atomic."""
        optimizer = self.optimizer
        optimizer.settle_counts()
        every = {
            self.home(ctx).count_key: dict(counts)
            for param in self.params
            for ctx in param.list_ctx()
        } or {0: {}}
        numbers = {
            "num_update": header["num_update"],
            "number_before": None,
            "_all_counts": every,
            "_counts": next(iter(every.values())),
            **{name: header.get("numbers", {}).get(name) for name in optimizer.saved_numbers()},
        }
        # Rates of another division into groups are not loaded.
        groups, of_groups, members = header.get("groups", []), [], optimizer.group_optimizers
        same, base = len(groups) == len(members), header["learning_rate"]
        if optimizer.lr_scheduler is None and base is not None and (same or not members):
            numbers["lr"] = base
        for member, saved in zip(members, groups if same else ()):
            its = {name: saved["numbers"].get(name) for name in member.saved_numbers()}
            rate = saved["learning_rate"]
            if optimizer.lr_scheduler is None and rate is not None:
                its["lr"] = rate
                if base:
                    its["rate_factor"] = rate / base
            of_groups.append((vars(member).update, its))
        own = {
            "by_device": {},
            "loaded": loaded,
            "plan": None,
            "waiting": tuple(header.get("waiting", (0, 0))),
            "unequal": False,
        }
        scaler, scale = self.loss_scaler, header.get("loss_scaler")
        if scaler is not None and scale is not None:
            scaler.state = tuple(scale)
            if header.get("divided_by") is not None:
                own["scale"] = self.original_scale / header["divided_by"]
        with autograd.pause():
            changes = [
                change
                for index, param in enumerate(self.params)
                for change in gradients.changes_to(param, grads.get(index))
            ]
            _core.at_once(
                (vars(self).update, own),
                (vars(optimizer).update, numbers),
                *of_groups,
                *changes,
            )


def _by_numbers(name):
    """Returns a sort key that compares the numbers inside names by value."""
    parts = re.split(r"([0-9]{1,15})", name)  # the parts at odd indices are numbers
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]


def _other_name(one, other):
    """True if two names differ in more than their numbers."""
    return re.sub(r"\d+", "0", one) != re.sub(r"\d+", "0", other)


def _read_header(arrays, fname):
    import json

    if not isinstance(arrays, dict) or _HEADER not in arrays:
        raise MXNetError(f"'{fname}' is not a file of trainer states")
    if any(array is None for array in arrays.values()):
        raise MXNetError(f"'{fname}' is damaged: arrays are missing")
    try:
        header = json.loads(bytes(arrays[_HEADER].asnumpy().astype("uint8").tolist()))
    except (ValueError, RecursionError) as error:
        raise MXNetError(f"'{fname}' is damaged: {error}") from error
    if not isinstance(header, dict) or header.get("format") not in _FORMATS:
        raise MXNetError(f"'{fname}' is not a file of trainer states that this version can read")
    wrong = header_fault(header)
    if wrong is not None:
        raise MXNetError(f"'{fname}' is damaged: its header is invalid ({wrong})")
    return header


def header_fault(header: Any) -> str | None:
    """Returns the name of the first invalid entry in a header of saved states, or None. Adds the
    entries that older files lack."""

    def number(value):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and abs(value) <= sys.float_info.max  # false for NaN and infinity

    def numbers(value, count):
        return isinstance(value, list) and len(value) == count and all(map(number, value))

    def sizes(value):
        return isinstance(value, list) and all(type(size) is int for size in value)

    def optional_numbers(value):
        return isinstance(value, dict) and all(v is None or number(v) for v in value.values())

    def is_rate(value):
        return value is None or (number(value) and value >= 0)

    def group(value):
        return (
            isinstance(value, dict)
            and isinstance(value.get("optimizer"), str)
            and optional_numbers(value.get("numbers"))
            and "learning_rate" in value
            and is_rate(value["learning_rate"])
        )

    def is_ambiguous(value):
        return (
            isinstance(value, list)
            and len(value) == 2
            and type(value[0]) is int
            and isinstance(value[1], bool)
        )

    def is_division(value):
        return (
            isinstance(value, dict)
            and isinstance(value.get("name"), str)
            and sizes(value.get("shape"))
            and type(value.get("axis")) is int
            and isinstance(value.get("ranges"), list)
            and all(sizes(span) and len(span) == 2 for span in value["ranges"])
        )

    if not isinstance(header, dict):
        return "it is not a dict"
    header.setdefault("waiting", [0, 0])
    header.setdefault("gradients", {})
    header.setdefault("shapes", {})
    header.setdefault("numbers", {})
    header.setdefault("groups", [])
    header.setdefault("loss_scaler", None)
    header.setdefault("divided_by", None)
    header.setdefault("ambiguous", {})
    header.setdefault("divisions", {})
    rate, scaler, by = (header.get(k) for k in ("learning_rate", "loss_scaler", "divided_by"))
    names = header.get("names")
    checks = {
        "optimizer": isinstance(header.get("optimizer"), str),
        "num_update": isinstance(header.get("num_update"), int) and header["num_update"] >= 0,
        "learning_rate": "learning_rate" in header and is_rate(rate),
        "numbers": optional_numbers(header["numbers"]),
        "groups": isinstance(header["groups"], list) and all(map(group, header["groups"])),
        "states": isinstance(header.get("states"), dict),
        "shapes": isinstance(header["shapes"], dict)
        and all(shape is None or sizes(shape) for shape in header["shapes"].values()),
        "counts": isinstance(header.get("counts"), dict)
        and all(isinstance(count, int) for count in header["counts"].values()),
        "waiting": numbers(header["waiting"], 2) and header["waiting"][0] >= 0,
        "gradients": isinstance(header["gradients"], dict)
        and all(map(gradients.is_description, header["gradients"].values())),
        "loss_scaler": scaler is None or (numbers(scaler, 2) and scaler[0] > 0),
        "divided_by": by is None or (number(by) and by > 0),
        "ambiguous": isinstance(header["ambiguous"], dict)
        and all(map(is_ambiguous, header["ambiguous"].values())),
        "divisions": isinstance(header["divisions"], dict)
        and all(map(is_division, header["divisions"].values())),
        "names": names is None
        or (isinstance(names, list) and all(isinstance(name, str) for name in names)),
    }
    return next((key for key, good in checks.items() if not good), None)


def unique_names(params: list[Parameter], paths: dict[int, str]) -> list[str]:
    """Returns a unique name for each parameter. If several parameters have the same name, their
    paths in the block or numbers distinguish them. `paths` maps a parameter's id to its path."""
    if len(set(map(id, params))) < len(params):
        twice = next(p for i, p in enumerate(params) if any(p is other for other in params[:i]))
        raise ValueError(f"Trainer: the parameter '{twice.name}' is given twice")
    seen: dict[str, int] = {}
    for param in params:
        seen[param.name] = seen.get(param.name, 0) + 1
    names, number = [], {}
    for param in params:
        if seen[param.name] == 1:
            names.append(param.name)
            continue
        number[param.name] = number.get(param.name, -1) + 1
        names.append(paths.get(id(param), f"{param.name}#{number[param.name]}"))
    if len(set(names)) < len(names):
        name = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"Trainer: two parameters are called '{name}'")
    return names
