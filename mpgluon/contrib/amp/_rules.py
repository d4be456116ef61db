"""The precision in which each op computes: the registry's table, and the user's overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core
from ...base import MXNetAssertionError
from ...symbol._graph import row_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._internal.types import DType

CONDITIONS = [
    ("Activation", "act_type", ["softrelu"]),
    ("LeakyReLU", "act_type", ["elu", "selu"]),
]


def low_dtype(dtype: DType) -> str:
    """Returns 'float16' or 'bfloat16'; raises AssertionError for any other dtype."""
    structured = getattr(dtype, "names", None) == ("bfloat16",)  # MXNet's form of bfloat16
    name = "bfloat16" if structured else _core.dtype_name(dtype)
    if name not in ("float16", "bfloat16"):
        raise MXNetAssertionError(
            f"AMP: the low precision must be 'float16' or 'bfloat16', not {np.dtype(dtype)}"
        )
    return name


def kind_of(name: str, dtype: str) -> str:
    """Returns an op's kind in the table: 'low', 'full', 'widest', 'loss' or 'any'."""
    kind = _core.precision_of(name)[1]
    return kind if kind != "half" else "low" if dtype == "float16" else "full"


def names_of(dtype: DType, *kinds: str) -> list[str]:
    """Returns the ops of these kinds."""
    low = low_dtype(dtype)
    return [name for name in _core.list_ops() if kind_of(name, low) in kinds]


class Rules:
    """The kind of each op, and the parameter values that make it 'full'."""

    def __init__(
        self,
        target_dtype: DType,
        target_ops: Sequence[str] | None,
        fp32_ops: Sequence[str] | None,
        conditional_ops: Sequence[tuple[str, str, Sequence[str]]] | None,
    ) -> None:
        self.low = low_dtype(target_dtype)
        conditions = CONDITIONS if conditional_ops is None else conditional_ops
        lists = {"low": target_ops, "full": fp32_ops, "conditional": [one[0] for one in conditions]}
        for kind, names in lists.items():
            if names is not None and not isinstance(names, (list, tuple)):
                raise MXNetAssertionError(
                    f"AMP: the {kind} ops must be a list of names, not {names!r}"
                )
        chosen: dict[str, str] = {}
        for kind, names in lists.items():
            for name in names or ():
                op = _core.precision_of(name)[0]
                if chosen.setdefault(op, kind) != kind:
                    raise MXNetAssertionError(
                        f"AMP: the op {name} cannot be in two lists, {chosen[op]} and {kind}"
                    )
        self.kinds = {name: kind_of(name, self.low) for name in _core.list_ops()}
        for name, kind in self.kinds.items():
            given = chosen.get(name)
            if given in ("low", "full"):
                self.kinds[name] = given
            elif lists.get(kind) is not None and kind in ("low", "full"):
                self.kinds[name] = "any"  # the user's list replaces the table's
        self.conditions = [
            (_core.precision_of(name)[0], param, value)
            for name, param, values in conditions
            for value in values
        ]

    def turn_on(self) -> None:
        """Activates these rules for all calls."""
        _core.set_precision(self.low, self.kinds, self.conditions)

    def of(self, call: Any) -> str:
        """Returns the kind of a call (`_core.OpCall`)."""
        row = row_name(call)
        for name, param, value in self.conditions:
            if name == row and call.text(param) == value:
                return "full"
        kind = self.kinds.get(row, "any")
        return "full" if kind == "loss" else kind
