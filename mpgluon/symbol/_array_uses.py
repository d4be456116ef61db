"""Detects uses of a symbol that mean something else for an array: indexing, iteration and `len`.

``x[0]``, ``for row in x`` and ``len(x)`` refer to the outputs of a symbol, but to the rows of an
array. If a symbol has several outputs, there is no difference, because functions of arrays return
these as a list. If it has one output, the results differ. While a block runs on symbols, `recorded`
collects these uses.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from .. import _core

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Active(threading.local):
    uses: list[str] | None = None


_active = _Active()


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
    """Collects the uses in a ``with`` block, as texts that name the source line."""
    outer, _active.uses = _active.uses, []
    try:
        yield _active.uses
    finally:
        _active.uses = outer


def is_recording() -> bool:
    return _active.uses is not None


def note(text: str) -> None:
    """Records a use, with the user's source line, if `recorded` is active."""
    if _active.uses is not None:
        line = _core._origin_line(_core._origin())
        _active.uses.append(f"{text} at {line}" if line else text)
