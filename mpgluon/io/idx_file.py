"""Reader of the IDX file format, which MNIST uses."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from .._internal.files import check_expansion, open_regular
from ..base import MXNetError

if TYPE_CHECKING:
    import os
    from typing import Any

__all__ = ["read_idx"]


def read_idx(path: str | os.PathLike[str], dimensions: int) -> np.ndarray[Any, Any]:
    """Returns the uint8 array in an IDX file, which may be compressed (`.gz`).

    Parameters
    ----------
    path : str
        Path of the file.
    dimensions : int
        Expected number of dimensions.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    MXNetError
        If it is not an IDX file, or is shorter or longer than its header says.
    """
    begin = 4 + 4 * dimensions
    try:
        with open_regular(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                head = file.read(begin)
                if head[:4] != bytes([0, 0, 8, dimensions]) or len(head) < begin:
                    raise MXNetError(
                        f"{path} is not an IDX file of bytes with {dimensions} dimensions"
                    )
                shape = struct.unpack_from(f">{dimensions}I", head, 4)
                size = math.prod(shape)
                check_expansion(path, size)
                data = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, (FileNotFoundError, MXNetError)):
            raise
        raise MXNetError(f"{path} is damaged: {error}") from None
    if size != len(data):
        found = len(data) if len(data) < size else "more"
        raise MXNetError(
            f"{path} is damaged: its header gives {size} bytes of shape {shape}, but it has {found}"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)
