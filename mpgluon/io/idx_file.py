"""Files of the IDX format, in which MNIST comes."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from ..base import MXNetError

if TYPE_CHECKING:
    import os
    from typing import Any

__all__ = ["read_idx"]


def read_idx(path: str | os.PathLike[str], dimensions: int) -> np.ndarray[Any, Any]:
    """The uint8 array in a file of the IDX format, which may be compressed (`.gz`).

    Parameters
    ----------
    path : str
        The file.
    dimensions : int
        How many the array has.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    MXNetError
        When it is no such file, or shorter or longer than it says.
    """
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else open(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise MXNetError(f"{path} is damaged: {error}") from None
    begin = 4 + 4 * dimensions
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) < begin:
        raise MXNetError(f"{path} is no file of {dimensions} dimensions of bytes in the IDX format")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    size = 1
    for length in shape:
        size *= length
    if size != len(data) - begin:
        raise MXNetError(
            f"{path} is damaged: it says {size} bytes of shape {shape}, and has {len(data) - begin}"
        )
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)
