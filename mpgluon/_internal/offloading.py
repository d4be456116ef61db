"""The argument `offload`, which several functions have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def target(who: str, what: str, given: Any) -> Any:
    """Returns where an argument ``{kind: context}`` offloads values to. Raises ValueError for other
    arguments."""
    if isinstance(given, Mapping) and set(given) == {what}:
        return given[what]
    raise ValueError(
        f"{who}: offload must be a dict such as {{'{what}': mx.cpu(1)}}, not {given!r}; offload "
        "optimizer states by gluon.Trainer, parameters by Mesh.partition, and activations by "
        "HybridBlock.hybridize"
    )
