"""Paths of running blocks, for errors, traces and queued work."""

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
_call_code = None  # code object of `Block.__call__`


def is_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Registers the function whose frames are block calls; its ``self`` is the block."""
    global _call_code
    _call_code = function.__code__
    return function


def _calls():
    """Yields the block of each running call, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _call_code:
            yield frame.f_locals["self"]
        frame = frame.f_back


def _name_in(parent, child):
    """Returns the last part of a child's path."""
    return next((name for name, block in children(parent).items() if block is child), child.name)


def block_path():
    """Returns the path of the block in the innermost running call, such as
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


_paths: dict[int, str] = {}  # scope id of a block -> its path


def scope_of(block, outer):
    """Returns the scope id for the path of a block that was just called in scope `outer`."""
    above = _paths.get(outer)
    parent = None
    if above is not None:  # the caller's path is known, so only two frames are read
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


def add_path(hybridized):
    """Adds the path of the running block to the text of the error that is being handled, unless the
    text already has one.

    If the block is traced or hybridized, adds the user's source line as well. The caller must not
    keep the error in a local variable. `_calls` makes frames keep copies of their locals, and the
    error's traceback refers to the frames, so this would be a reference cycle. The error and the
    network would only be freed by the garbage collector."""
    error = sys.exc_info()[1]
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
    """Returns the innermost source line outside this package. Searches the error's traceback or,
    with `around`, the frames of the callers."""
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
