"""Uses of a symbol that have another meaning for an array: indexing, iteration and `len`.

``x[0]``, ``for row in x`` and ``len(x)`` refer to the outputs of a symbol, but to the rows of an
array. The two agree for several outputs, which functions of arrays return as a list. They differ
for one output. While a block runs on symbols, `recorded` collects these uses.
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
    """Records a use by the caller's code."""
    if _active.uses is not None:
        line = _core._origin_line(_core._origin())
        _active.uses.append(f"{text} at {line}" if line else text)
