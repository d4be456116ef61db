"""Progress bars for reading and writing files."""

from __future__ import annotations

from typing import Any


def bar(total: int, progress: bool | None, text: str) -> Any:
    """Returns a bar that counts bytes: a context manager with ``update(count)``.

    `progress` is True to show it, False to hide it, or None to show it after two seconds.
    """
    from tqdm import tqdm

    return tqdm(
        total=total,
        unit="B",
        unit_scale=True,
        desc=text,
        delay=0 if progress else 2,
        disable=None if progress is None else not progress,
    )
