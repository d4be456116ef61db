"""Replacement of a child block: ``net.replace_child('layers.0.query', new)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base import MXNetError
from .._tree import children, devices_of_groups, group_of
from ..utils import brief

if TYPE_CHECKING:
    from ._block import Block


def _descendants(block):
    """Returns a block and its descendants, each once."""
    found = {block: None}
    for child in children(block).values():
        found.update(_descendants(child) if child not in found else {})
    return found


def parent_of(net: Block, path: str) -> tuple[Block, str]:
    """Returns (parent, name in the parent) of the child at a dotted path. Raises ValueError if the
    path names no child."""
    if not isinstance(path, str):
        raise TypeError(f"replace_child: expected the path of a child, got {path!r}")
    *outer, name = path.split(".")
    parent, walked = net, []
    for step in (*outer, name):
        if step not in children(parent):
            where = f"'{'.'.join(walked)}' ({type(parent).__name__})" if walked else f"'{net.name}'"
            raise ValueError(
                f"replace_child: {path!r} names no child: {where} has no child {step!r}; its "
                f"children are {brief(children(parent)) if children(parent) else 'none'}"
            )
        if len(walked) < len(outer):
            parent = children(parent)[step]
        walked.append(step)
    return parent, name


def _check(parent, name, new):
    """Raises ValueError if `new` contains `parent`, because the tree would have a cycle."""
    if parent in _descendants(new):
        raise ValueError(
            f"{name}: '{new.name}' contains '{parent.name}', so it cannot become its child"
        )


def _take_over(parent, name, old, new):
    """Moves `new`, which has replaced the child `old`, to the devices of `old` if the network was
    placed."""
    if group_of(old) is None and devices_of_groups(old) is None:
        if all(param.placed is None for param in old.collect_params().values()):
            return
    from ...parallel._placing import move_to

    try:
        move_to(old, new)
    except MXNetError as error:
        raise MXNetError(
            f"'{name}' of '{parent.name}' was replaced, but its parameters cannot move to the "
            f"devices of '{old.name}': {error}"
        ) from error


def replace(parent: Block, name: str, old: Block, new: Block) -> None:
    """Replaces the child `old` of `parent`. If that fails, `old` stays."""
    _check(parent, name, new)
    parent.register_child(new, name)
    try:
        _take_over(parent, name, old, new)
    except BaseException:
        children(parent)[name] = old
        raise


def replace_at(net: Block, path: str, block: Block) -> Block:
    """Replaces the descendant at a path, and the attribute that holds it. Returns the old block."""
    parent, name = parent_of(net, path)
    old = children(parent)[name]
    if old is not block:
        replace(parent, name, old, block)
        if vars(parent).get(name) is old:
            object.__setattr__(parent, name, block)
    return old
