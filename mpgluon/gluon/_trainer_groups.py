"""Reads the parameters of a trainer, possibly in parameter groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..optimizer._parameter_groups import ParameterGroup, add_group, full_names
from ._tree import parameters_by_path
from .block import Block
from .parameter import Parameter, ParameterDict
from .parameter._parameter_dict import name_of_whole

if TYPE_CHECKING:
    from ..optimizer.optimizer import Optimizer


class Given:
    """The parameters that a trainer was given.

    `params` lists them, `paths` has their paths in blocks by id, and `groups` the parameters and
    options of each parameter group.
    """

    def __init__(self, params: Any) -> None:
        self.paths: dict[int, str] = {}
        self.groups: list[tuple[list[Parameter], dict[str, Any]]] = []
        if isinstance(params, (list, tuple)) and any(isinstance(one, Mapping) for one in params):
            self.params = self._grouped(params)
        else:
            self.params = self._listed(params)

    def _listed(self, params, argument="First argument"):
        """Returns the list of the parameters of a block, dict or list, which errors call
        `argument`."""
        if isinstance(params, Block):
            by_path = parameters_by_path(params)
            self.paths.update((id(param), path) for path, param in by_path.items())
            params = sorted(dict.fromkeys(by_path.values()), key=lambda p: _sorting_name(p.name, p))
        if isinstance(params, (dict, ParameterDict)):
            names = sorted(params.keys(), key=lambda name: _sorting_name(name, params[name]))
            params = [params[name] for name in names]
        if not isinstance(params, (list, tuple)):
            raise ValueError(
                f"{argument} must be a list or dict of Parameters, or a Block, got {type(params)}."
            )
        for param in params:
            if not isinstance(param, Parameter):
                raise ValueError(
                    f"{argument} must be a list or dict of Parameters, got list of {type(param)}."
                )
            if param.replaced:
                raise param.replaced_error()
        return list(params)

    def _grouped(self, groups):
        """Reads parameter groups. Returns all their parameters, sorted as if they were one dict, so
        that results do not depend on the division into groups."""
        owners: dict[int, int] = {}
        for number, group in enumerate(groups):
            if not isinstance(group, Mapping) or "params" not in group:
                raise ValueError(
                    "Trainer: each parameter group must be a dict with the key 'params', but group "
                    f"{number} is {_described(group)}"
                )
            given = group["params"]
            if isinstance(given, Parameter):
                given = [given]
            elif isinstance(given, Iterable) and not isinstance(
                given, (Block, dict, ParameterDict, str)
            ):
                given = list(given)
            params = self._listed(given, f"Trainer: 'params' of group {number}")
            for param in params:
                former = owners.setdefault(id(param), number)
                if former != number:
                    raise ValueError(
                        f"Trainer: parameter '{param.name}' is in groups {former} and {number}; "
                        "each parameter must be in one group"
                    )
            options = {key: value for key, value in group.items() if key != "params"}
            self.groups.append((params, options))
        self._check_families(owners)
        every = [param for params, _ in self.groups for param in params]
        return sorted(every, key=lambda param: _sorting_name(param.name, param))

    def _check_families(self, owners):
        """Raises ValueError if the parts of a split parameter are in several groups."""
        families: dict[int, int] = {}
        for params, _ in self.groups:
            for param in params:
                number = owners[id(param)]
                if families.setdefault(id(param.family or param), number) != number:
                    raise ValueError(
                        f"Trainer: parameter '{param.name}' is a part of a split parameter whose "
                        "other parts are in another group; put all parts into one group"
                    )

    def add_groups(self, optimizer: Optimizer, own: Mapping[str, Any] | None) -> None:
        """Adds the groups to the optimizer. `own` has the options with which it was created, or is
        None if they are unknown."""
        optimizer.group_optimizers, optimizer.optimizer_by_index = (), {}
        indices = {id(param): index for index, param in enumerate(self.params)}
        for number, (params, options) in enumerate(self.groups):
            try:
                add_group(
                    optimizer, own, full_names(options), [indices[id(param)] for param in params]
                )
            except (TypeError, ValueError) as error:
                raise type(error)(f"Trainer: group {number}: {error}") from error

    def as_dicts(self, optimizer: Optimizer) -> list[ParameterGroup]:
        """Returns the groups as dicts. Without groups, there is one with all parameters."""
        lists = [params for params, _ in self.groups] or [self.params]
        return [ParameterGroup(*one) for one in zip(optimizer.members, lists)]


def _described(group):
    return f"{list(group)!r}" if isinstance(group, Mapping) else f"a {type(group).__name__}"


def _sorting_name(name, param):
    """Returns the sort key of a parameter. The parts of a split parameter are sorted like the
    whole, so they are adjacent."""
    return name if param.family is None else name_of_whole(name)
