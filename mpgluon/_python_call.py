"""Ops that run as Python code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    from typing import Any

    from ._core import Context


class PythonCall:
    """A call of such an op: a node of a symbol asks it what it asks a `_core.OpCall`."""

    creates = copies = dynamic = loss = amp_cast = False
    differentiable = True
    gradient_missing = False
    splits = True  # compiled programs may be cut where it runs

    def initial_values(self, count: int) -> tuple[Any, ...]:
        return (None,) * count

    def place(self, inputs: list[Context | None], group: Context | None) -> Context | None:
        return _core.OpCall("_copy", {}).place(inputs, group)
