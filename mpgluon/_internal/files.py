"""Opens regular files for reading, and replaces files atomically.

All readers and writers in Python use these functions. csrc/io/file.c implements the same rules in
the core.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from .._core import MXNetIOError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import BinaryIO

# Protection against decompression bombs: a file may unpack to at most EXPANDS times its packed size
# plus EXPANDS_PLUS bytes. Only artificial data, such as zeros, compresses by a larger factor.
EXPANDS, EXPANDS_PLUS = 64, 64 << 20


def check_expansion(path: str | os.PathLike[str], size: int) -> None:
    """Raises MXNetIOError if `size` bytes are more than a compressed file may expand to."""
    packed = os.path.getsize(path)
    if size > EXPANDS * packed + EXPANDS_PLUS:
        raise MXNetIOError(
            f"{os.fspath(path)} has {packed} bytes and would expand to at least {size}; if it "
            "comes from a trusted source, unpack it with another tool"
        )


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file for reading.

    Raises MXNetIOError for folders, devices and pipes; opening a pipe could block until its other
    end is opened. Raises FileNotFoundError for a missing file.
    """
    return open(os.fspath(path), "rb", opener=_descriptor)


def _descriptor(path, flags):
    """Opens a file for `open`, which closes the descriptor even if it is interrupted.

    The descriptor must have exactly one owner. A second close would raise OSError, or close an
    unrelated file that has reused the number.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a device or pipe"
            raise MXNetIOError(
                f"'{os.fspath(path)}' is not a file that can be loaded: it is {kind}"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Readable:
    """A file that is opened for each read, or once for all reads in a scope."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)
        self._shared: BinaryIO | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Returns a scope in which all reads share one open file."""
        with open_regular(self.path) as file:
            self._shared = file
            try:
                yield
            finally:
                self._shared = None

    def _file(self) -> AbstractContextManager[BinaryIO]:
        """Returns a scope with the open file, whose position is undefined."""
        return open_regular(self.path) if self._shared is None else nullcontext(self._shared)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yields a new file, which replaces `path` when the ``with`` block ends. After an error, the
    new file is removed and `path` is unchanged.

    The file is created in the same folder under a random name, and never opened through a link, so
    no other user of the folder can redirect the writes.
    """
    temporary = f"{os.fspath(path)}.{os.urandom(8).hex()}.new"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(temporary, "w+b", opener=lambda path, _: os.open(path, flags, 0o666)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.remove(temporary)
