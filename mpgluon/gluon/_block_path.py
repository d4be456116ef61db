"""The running block: the paths of blocks in errors, in traces and in queued work."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .. import _core
from ._compiled import tracing
from ._tree import children

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_call_code = None  # of `Block.__call__`


def is_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks the function whose frames are calls of blocks: its ``self`` is one."""
    global _call_code
    _call_code = function.__code__
    return function


def _calls():
    """Yields the block of each running call, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _call_code:
            yield frame.f_locals["self"]
        frame = frame.f_back


def _name_in(parent, child):
    """Returns the last part of a child's path."""
    return next((name for name, block in children(parent).items() if block is child), child.name)


def block_path():
    """Returns the path of the block whose call is the innermost one running, such as
    ``ModelParallelLM.lstm2``."""
    blocks = []
    for block in _calls():
        if not blocks or blocks[-1] is not block:
            blocks.append(block)
    if not blocks:
        return ""
    blocks.reverse()
    names = [_name_in(parent, child) for parent, child in zip(blocks, blocks[1:])]
    return ".".join([type(blocks[0]).__name__, *names])


_paths: dict[int, str] = {}  # scope of a block -> its path


def scope_of(block, outer):
    """Returns the number of the path of a block that has just been called, in scope `outer`."""
    above = _paths.get(outer)
    parent = None
    if above is not None:  # the path of the caller is known: no more frames are read than needed
        calls = _calls()
        next(calls)
        parent = next(calls, None)
    if parent is None:
        path = block_path()
    else:
        path = above if parent is block else f"{above}.{_name_in(parent, block)}"
    scope = _core.intern_scope(path)
    if scope:
        _paths[scope] = path
    return scope


def add_path(error, hybridized):
    """Adds the path of the running block to the text of an error that passes through it, once; and
    where it is traced, the user's line."""
    if getattr(error, "block_path", None) is None:
        path = block_path()
        text = str(error)
        error.block_path = path
        trace = tracing.current() is not None
        line = _line_of(error, trace) if trace or hybridized else ""
        where = [] if path in text else [f"in block {path}"]
        if line and line.rpartition(" in ")[0] not in text:
            where.append(f"at {line}")
        if where:
            error.args = (f"{text}\n  {', '.join(where)}", *error.args[1:])


def _line_of(error, around):
    """Returns the innermost line outside of this package on the way to an error, from the block on,
    or (`around`) further out."""
    found, step = None, error.__traceback__
    while step is not None:
        if not step.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            found = step.tb_frame.f_code, step.tb_lineno
        step = step.tb_next
    frame = sys._getframe(1)
    while around and found is None and frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            found = frame.f_code, frame.f_lineno
        frame = frame.f_back
    return f"{found[0].co_filename}:{found[1]} in {found[0].co_name}" if found else ""
