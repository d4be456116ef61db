"""Downloads files that are published in zip archives."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
import zlib

from .._internal.files import check_expansion
from ..base import MXNetError
from .utils import check_sha1, download

# Errors that zipfile raises for damaged archives, in addition to OSError and ValueError.
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)


def fetch_unpacked(url: str, path: str, sha1: str | None) -> None:
    """Extracts the member named like `path` from the zip archive at `url` and writes it to `path`.

    The file appears at `path` atomically. Raises ValueError if its SHA-1 differs from `sha1`, and
    MXNetError if the archive does not contain it."""
    folder, file = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unpacked = os.path.join(scratch, file)
        packed = download(url, os.path.join(scratch, os.path.basename(url)))
        try:
            with zipfile.ZipFile(packed) as files:
                check_expansion(packed, files.getinfo(file).file_size)
                with files.open(file) as source, open(unpacked, "wb") as target:
                    shutil.copyfileobj(source, target)
        except (KeyError, RuntimeError, *UNREADABLE) as error:
            raise MXNetError(f"{url} is not a zip file with {file}: {error}") from error
        if sha1 and not check_sha1(unpacked, sha1):
            raise ValueError(f"{url} does not hold the {file} that MXNet published (SHA-1 {sha1})")
        os.replace(unpacked, path)
