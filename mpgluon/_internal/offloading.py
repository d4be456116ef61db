"""The argument `offload`, which several functions have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..base import MXNetError
from ..context import Context, directory_of, file_device


def target(who: str, what: str, given: Any) -> Any:
    """Returns where an argument ``{kind: target}`` offloads values to. Raises ValueError for other
    arguments."""
    if isinstance(given, Mapping) and set(given) == {what}:
        return given[what]
    raise ValueError(
        f"{who}: offload must be a dict from '{what}' to a device or the path of a directory, such "
        f"as {{'{what}': mx.cpu(1)}}, not {given!r}; offload "
        "optimizer states by gluon.Trainer, parameters by Mesh.partition, and activations by "
        "HybridBlock.hybridize"
    )


def device_of(who: str, what: str, where: Any) -> Any:
    """Returns the device that a target of values names: itself, or the `file_device` of a
    directory. Returns other objects unchanged. Raises MXNetError if files cannot be created in the
    directory."""
    if not isinstance(where, (str, os.PathLike)):
        return where
    try:
        return file_device(where)
    except OSError as error:
        raise MXNetError(
            f"{who}: {what} cannot be offloaded to {os.fspath(where)!r}: {error}; expected a "
            "device or an existing, writable directory"
        ) from error


def text_of(ctx: Context) -> str:
    """Returns the text of a device, with the directory of its files if it has one."""
    directory = directory_of(ctx)
    return str(ctx) if directory is None else f"{ctx} (files in {directory!r})"
