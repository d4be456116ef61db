"""RecordIO: files of consecutive binary records, optional indexes, and records with labeled
images."""

from __future__ import annotations

import numbers
import os
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._internal.files import open_regular
from .base import MXNetAssertionError, MXNetError, MXNetValueError, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._core import NDArray

__all__ = [
    "IRHeader",
    "MXIndexedRecordIO",
    "MXRecordIO",
    "pack",
    "pack_img",
    "unpack",
    "unpack_img",
]

# Part of a record: magic number, then its kind in 3 bits and its length in 29, then its bytes,
# zero-padded to a multiple of 4. A record that contains the magic number at a multiple of 4 is
# split there without the number itself, so that readers can find the next part from any offset.
_MAGIC = struct.pack("<I", 0xCED7230A)
_PART = struct.Struct("<4sI")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_LENGTH_BITS = 29


def _parts(data):
    """Yields the parts of a record between the magic numbers in it."""
    begin = at = 0
    while (at := data.find(_MAGIC, at)) >= 0:
        if at % 4:
            at += 1
            continue
        yield data[begin:at]
        begin = at = at + len(_MAGIC)
    yield data[begin:]


def _encode(data):
    """Returns a record in the file format."""
    parts = list(_parts(data))
    kinds = [_FIRST, *[_MIDDLE] * (len(parts) - 2), _LAST] if len(parts) > 1 else [_WHOLE]
    pieces = []
    for kind, part in zip(kinds, parts):
        pieces += [_PART.pack(_MAGIC, kind << _LENGTH_BITS | len(part)), part]
    # Only the last part needs padding, because the record is split at multiples of 4.
    pieces.append(b"\0" * (-len(parts[-1]) % 4))
    return b"".join(pieces)


class MXRecordIO:
    """A file of records, which is read or written sequentially.

    A reader that a forked process inherits raises RuntimeError there until it is `reset`, because
    both processes would move the same file position. A pickled reader reopens the file. Threads may
    share a reader or writer: each record is read or written as a whole.

    Parameters
    ----------
    uri : str
        Path of the file.
    flag : {'r', 'w'}
        Read the file, or overwrite it.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "some.rec")
    >>> record = mx.recordio.MXRecordIO(path, "w")
    >>> for i in range(2):
    ...     record.write(b"record %d" % i)
    >>> record.close()
    >>> record = mx.recordio.MXRecordIO(path, "r")
    >>> record.read(), record.read(), record.read()
    (b'record 0', b'record 1', None)
    """

    def __init__(self, uri: str | os.PathLike[str], flag: str) -> None:
        self.is_open: bool = False
        self.uri: str = os.fspath(uri)
        self.flag = flag
        self.writable: bool = flag == "w"
        self.pid: int | None = None
        self._file = None
        self._locks: dict[int, Any] = {}
        self.open()

    def _lock(self):
        """Returns this process's lock of the file position.

        After a fork, the parent's lock may be held by a thread that does not exist in the child.
        """
        process = os.getpid()
        return self._locks.get(process) or self._locks.setdefault(process, threading.RLock())

    def open(self) -> None:
        """Opens the file; `reset` and unpickling call it."""
        if self.flag not in ("r", "w"):
            raise ValueError(f"flag must be 'r' or 'w', got {self.flag!r}")
        # Writes are unbuffered, so a forked process has no buffer to write a second time.
        self._file = open(self.uri, "wb", buffering=0) if self.writable else open_regular(self.uri)
        self.pid = os.getpid()
        self.is_open = True

    def close(self) -> None:
        """Closes the file; does nothing if it is closed."""
        with self._lock():
            if self.is_open:
                # Close the raw file: the lock of its buffer may be held forever after a fork.
                getattr(self._file, "raw", self._file).close()
                self.is_open = False
                self.pid = None

    def __del__(self) -> None:
        if getattr(self, "is_open", False):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self.is_open and self.writable:
            raise MXNetError(
                f"{self.uri} is open for writing: a copy of its MXRecordIO would empty the "
                "file; close it first"
            )
        return {**self.__dict__, "_file": None, "pid": None, "_locks": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_locks": {}})
        was_open, self.is_open = self.is_open, False
        if was_open:
            self.open()

    def _check(self, writable, allow_reset=False):
        """Raises an error if this process cannot use the file that way."""
        if self.writable != writable:
            way = ("read", "written") if writable else ("written", "read")
            raise MXNetAssertionError(f"{self.uri} is open to be {way[0]}, and cannot be {way[1]}")
        if not self.is_open:
            raise MXNetError(f"{self.uri} is closed; open it with reset()")
        if self.pid != os.getpid():
            if not allow_reset:
                raise RuntimeError(
                    f"{self.uri} was opened by another process; call reset(), or open it in "
                    "this process"
                )
            self.reset()

    def reset(self) -> None:
        """Returns to the beginning. A file opened for writing is truncated.

        Examples
        --------
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "some.rec")
        >>> record = mx.recordio.MXRecordIO(path, "w")
        >>> record.write(b"first")
        >>> record.close()
        >>> record = mx.recordio.MXRecordIO(path, "r")
        >>> record.read()
        b'first'
        >>> record.reset()
        >>> record.read()
        b'first'
        """
        with self._lock():
            self.close()
            self.open()

    def write(self, buf: bytes) -> None:
        """Adds a record.

        Parameters
        ----------
        buf : bytes
            The record to write, less than 512 MiB.
        """
        if isinstance(buf, str):
            raise TypeError("a record must be bytes, got str; encode it")
        data = bytes(buf)
        if len(data) >> _LENGTH_BITS:
            raise MXNetError(f"a record must be smaller than 512 MiB, got {len(data)} bytes")
        view = memoryview(_encode(data))
        with self._lock():
            self._check(writable=True)
            while view:
                view = view[self._file.write(view) :]

    def _damaged(self, begin, what):
        return MXNetError(f"{self.uri} is damaged: the record at byte {begin} {what}")

    def read(self) -> bytes | None:
        """Returns the next record, or None at the end of the file.

        Raises
        ------
        MXNetError
            If the file ends within the record, or the position is not the start of a record.
        """
        with self._lock():
            self._check(writable=False)
            return self._read_parts()

    def _read_parts(self):
        begin, parts = self._file.tell(), []
        while True:
            head = self._file.read(_PART.size)
            if not head and not parts:
                return None
            if len(head) < _PART.size:
                raise self._damaged(begin, "is truncated")
            magic, word = _PART.unpack(head)
            kind, size = word >> _LENGTH_BITS, word & ((1 << _LENGTH_BITS) - 1)
            if magic != _MAGIC:
                raise self._damaged(begin, "does not begin with the magic number")
            if kind not in ((_MIDDLE, _LAST) if parts else (_WHOLE, _FIRST)):
                raise self._damaged(begin, f"has a part of kind {kind} at the wrong position")
            padded = size + -size % 4
            part = self._file.read(padded)
            if len(part) < padded:
                raise self._damaged(begin, f"has {size} bytes, but the file ends before them")
            parts.append(part[:size])
            if kind in (_WHOLE, _LAST):
                return _MAGIC.join(parts)


class MXIndexedRecordIO(MXRecordIO):
    """A file of records with an index, a text file of keys and offsets, for random access.

    A reader that a forked process inherits reopens the file there. Threads may share a reader,
    except for `seek` followed by `read`; `read_idx` does both atomically.

    Parameters
    ----------
    idx_path : str
        Path of the index.
    uri : str
        Path of the file of records.
    flag : {'r', 'w'}
        Read the files, or overwrite them.
    key_type : callable, default int
        Converts the text of a key in the index.

    Attributes
    ----------
    keys : list
        The keys in the order of the index.
    idx : dict
        The offset of each key's record.

    Examples
    --------
    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> paths = os.path.join(folder, "some.idx"), os.path.join(folder, "some.rec")
    >>> record = mx.recordio.MXIndexedRecordIO(*paths, "w")
    >>> for i in range(3):
    ...     record.write_idx(i, b"record %d" % i)
    >>> record.close()
    >>> record = mx.recordio.MXIndexedRecordIO(*paths, "r")
    >>> record.keys, record.read_idx(1)
    ([0, 1, 2], b'record 1')
    """

    def __init__(
        self,
        idx_path: str | os.PathLike[str],
        uri: str | os.PathLike[str],
        flag: str,
        key_type: Callable[[Any], Any] = int,
    ) -> None:
        self.idx_path: str = os.fspath(idx_path)
        self.idx: dict[Any, int] = {}
        self.keys: list[Any] = []
        self.key_type = key_type
        self.fidx: Any = None
        super().__init__(uri, flag)

    def open(self) -> None:
        super().open()
        try:
            if self.writable:
                self.idx, self.keys = {}, []
                self.fidx = open(self.idx_path, "w", buffering=1)
            else:
                # Assign both in one statement, because other threads may read them.
                self.idx, self.keys = self._read_index()
        except BaseException:
            super().close()
            raise

    def _read_index(self):
        index, keys = {}, []
        for number, line in lines_of(self.idx_path):
            try:
                key, place = line.strip().split("\t")
                key, place = self.key_type(key), int(place)
            except ValueError:
                place = -1
            if place < 0:
                raise MXNetError(
                    f"{self.idx_path} is damaged: line {number} is not a key, a tab and the "
                    "offset of a record"
                )
            index[key] = place
            keys.append(key)
        return index, keys

    def close(self) -> None:
        with self._lock():
            if self.is_open and self.fidx is not None:
                self.fidx.close()
                self.fidx = None
            super().close()

    def seek(self, idx: Any) -> None:
        """Moves to the record with the key `idx`, which the next `read` returns."""
        with self._lock():
            self._check(writable=False, allow_reset=True)
            if idx not in self.idx:
                raise KeyError(idx)
            self._file.seek(self.idx[idx])

    def tell(self) -> int:
        """Returns the offset at which the next record will be written.

        Examples
        --------
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "some")
        >>> record = mx.recordio.MXIndexedRecordIO(path + ".idx", path + ".rec", "w")
        >>> record.write_idx(0, b"record 0")
        >>> record.tell()
        16
        """
        with self._lock():
            self._check(writable=True)
            return self._file.tell()

    def read_idx(self, idx: Any) -> bytes:
        """Returns the record with the key `idx`.

        Raises
        ------
        KeyError
            If the index does not have the key.
        MXNetError
            If there is no record at its offset.
        """
        with self._lock():
            self.seek(idx)
            try:
                record = self.read()
            except MXNetError as error:
                raise MXNetError(f"{error}; or the offset in {self.idx_path} is wrong") from None
        if record is None:
            raise MXNetError(
                f"{self.uri} ends before record {idx!r} at byte {self.idx[idx]}: it is "
                f"truncated, or {self.idx_path} is the index of another file"
            )
        return record

    def write_idx(self, idx: Any, buf: bytes) -> None:
        """Adds a record with the key `idx`.

        Parameters
        ----------
        idx : int
            The key; `key_type` determines its type.
        buf : bytes
            The record to write.
        """
        key = self.key_type(idx)
        with self._lock():
            place = self.tell()
            self.write(buf)
            self.fidx.write(f"{key}\t{place}\n")
            self.idx[key] = place
            self.keys.append(key)


class ScannedRecordIO(MXIndexedRecordIO):
    """A file of records for random access without an index: the constructor scans the file.

    The keys are 0, 1, 2, ...

    Parameters
    ----------
    uri : str
        Path of the file of records.

    Raises
    ------
    MXNetError
        If the file is damaged.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "some.rec")
    >>> record = mx.recordio.MXRecordIO(path, "w")
    >>> for i in range(3):
    ...     record.write(b"record %d" % i)
    >>> record.close()
    >>> record = mx.recordio.ScannedRecordIO(path)
    >>> record.keys, record.read_idx(1)
    ([0, 1, 2], b'record 1')
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        super().__init__("", uri, "r")

    def open(self) -> None:
        MXRecordIO.open(self)
        try:
            self.idx: dict[Any, int] = dict(enumerate(self._places()))
            self.keys: list[Any] = list(self.idx)
        except BaseException:
            MXRecordIO.close(self)
            raise

    def _places(self):
        """Returns the offset of each record."""
        file, places = self._file, []
        size, begin = os.fstat(file.fileno()).st_size, 0
        while begin < size:
            file.seek(begin)
            head = file.read(_PART.size)
            magic, word = _PART.unpack(head) if len(head) == _PART.size else (b"", 0)
            if magic != _MAGIC:
                raise self._damaged(begin, "does not begin with the magic number")
            if word >> _LENGTH_BITS in (_WHOLE, _FIRST):
                places.append(begin)
            length = word & ((1 << _LENGTH_BITS) - 1)
            begin += _PART.size + length + -length % 4
        if begin > size:
            raise self._damaged(places[-1] if places else 0, "is truncated")
        file.seek(0)
        return places


class IRHeader(NamedTuple):
    """The header of a record that contains an image.

    Parameters
    ----------
    flag : int
        The number of labels if `label` is an array; `pack` sets it.
    label : float or array of float
        The label or labels.
    id : int
        The id of the image.
    id2 : int
        Higher bits of the id, usually 0.

    Examples
    --------
    >>> mx.recordio.IRHeader(0, 4.0, 2574, 0)
    HEADER(flag=0, label=4.0, id=2574, id2=0)
    """

    flag: int
    label: Any
    id: int
    id2: int

    def __repr__(self) -> str:
        flag, label, number, high = self
        return f"HEADER(flag={flag!r}, label={label!r}, id={number!r}, id2={high!r})"


_HEADER = struct.Struct("<IfQQ")


def pack(header: IRHeader | tuple[int, Any, int, int], s: bytes) -> bytes:
    """Packs a header and bytes, such as those of a JPEG file, into a record.

    Parameters
    ----------
    header : IRHeader
        Its `label` is a number or an array, which determines `flag`.
    s : bytes
        The bytes after the header.

    Returns
    -------
    bytes

    Examples
    --------
    >>> record = mx.recordio.pack(mx.recordio.IRHeader(0, [1, 2], 7, 0), b"image")
    >>> mx.recordio.unpack(record)
    (HEADER(flag=2, label=array([1., 2.], dtype=float32), id=7, id2=0), b'image')
    """
    _, label, number, high = header
    if isinstance(label, numbers.Number):
        flag, labels = 0, b""
    else:
        label = label.asnumpy() if hasattr(label, "asnumpy") else label
        array = np.asarray(label, np.float32)
        flag, label, labels = array.size, 0, array.tobytes()
    try:
        head = _HEADER.pack(flag, label, number, high)
    except (struct.error, OverflowError) as error:
        raise MXNetValueError(f"{header} cannot be packed: {error}") from None
    return head + labels + bytes(s)


def unpack(s: bytes) -> tuple[IRHeader, bytes]:
    """Unpacks a record made by `pack` into its header and bytes.

    Parameters
    ----------
    s : bytes
        The record, as returned by `MXRecordIO.read`.

    Returns
    -------
    header : IRHeader
        Its `label` is a float, or a float32 array of `flag` labels if `flag` is not 0.
    s : bytes

    Raises
    ------
    MXNetValueError
        If the record is shorter than its header says.
    """
    if len(s) < _HEADER.size:
        raise MXNetValueError(
            f"a packed record must have a header of {_HEADER.size} bytes, got {len(s)} bytes"
        )
    header, s = IRHeader(*_HEADER.unpack_from(s)), s[_HEADER.size :]
    if header.flag > 0:
        if header.flag > len(s) // 4:
            raise MXNetValueError(
                f"the header of a packed record gives {header.flag} labels, but {len(s)} bytes "
                "follow"
            )
        header = header._replace(label=np.frombuffer(s, "<f4", header.flag))
        s = s[4 * header.flag :]
    return header, s


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[IRHeader, np.ndarray[Any, Any]]:
    """Unpacks a record made by `pack_img` into its header and image. It needs Pillow.

    Parameters
    ----------
    s : bytes
        The record.
    iscolor : {-1, 0, 1}, default -1
        -1 keeps the stored channels, 0 converts to gray, and 1 converts to color.

    Returns
    -------
    header : IRHeader
    image : numpy.ndarray
        uint8 of shape (height, width, 3) with channels in the order blue, green, red as in OpenCV,
        or (height, width) for a gray image.
    """
    from .image._files import decode

    header, s = unpack(s)
    image = decode(s, {-1: None}.get(iscolor, int(iscolor > 0)))
    if image.shape[2] == 1:
        return header, image[:, :, 0]
    # Reverse the colors, but keep an alpha channel last.
    return header, np.ascontiguousarray(image[:, :, [2, 1, 0, 3][: image.shape[2]]])


def pack_img(
    header: IRHeader | tuple[int, Any, int, int],
    img: np.ndarray[Any, Any] | NDArray,
    quality: int = 95,
    img_fmt: str = ".jpg",
) -> bytes:
    """Packs a header and an image, which is compressed, into a record. It needs Pillow.

    Parameters
    ----------
    header : IRHeader
        Its `label` is a number or an array.
    img : numpy.ndarray
        uint8 of shape (height, width, 3) with channels in the order blue, green, red as in OpenCV,
        or (height, width) for a gray image.
    quality : int, default 95
        The quality of JPEG, from 1 to 100, or the compression level of PNG, from 0 to 9.
    img_fmt : {'.jpg', '.jpeg', '.png'}
        The image format.

    Returns
    -------
    bytes

    Examples
    --------
    >>> image = np.zeros((4, 6, 3), np.uint8)
    >>> record = mx.recordio.pack_img((0, 1.0, 0, 0), image, quality=9, img_fmt=".png")
    >>> header, same = mx.recordio.unpack_img(record)
    >>> header.label, same.shape
    (1.0, (4, 6, 3))
    """
    from .image._files import encode

    img = img.asnumpy() if hasattr(img, "asnumpy") else np.asarray(img)
    if img.ndim == 3 and img.shape[2] in (3, 4):
        img = img[:, :, [2, 1, 0, 3][: img.shape[2]]]
    return pack(header, encode(img, img_fmt, quality))
