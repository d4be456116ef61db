"""Reads the weights of a folder, an index or a file in the safetensors format."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from ..._internal.files import open_regular
from ...base import MXNetError
from ...ndarray._safetensors import File
from .values import FileArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    import numpy as np

    from .values import LazyArray

__all__ = ["INDEX", "SINGLE", "Weights", "read_json"]

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_LARGEST_JSON = 256 << 20


def read_json(path: str, kind: str) -> dict[str, Any]:
    """Reads a file that holds a JSON object. `kind` names it in errors."""
    try:
        with open_regular(path) as file:
            # `read` allocates the number of bytes that it may return.
            size = os.fstat(file.fileno()).st_size
            text = file.read(min(size, _LARGEST_JSON) + 1)
        if len(text) > _LARGEST_JSON:
            raise ValueError("it is too large")
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
    except OSError as error:
        raise MXNetError(f"{kind} '{path}' cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise MXNetError(f"{kind} '{path}' is damaged: {error}") from error
    return found


class Weights:
    """The arrays of a folder, of a ``model.safetensors.index.json`` or of a ``.safetensors`` file.

    Only the headers are read at first. Arrays, or parts of them, are read on demand. Files are
    read instead of memory-mapped, so that a file that another process truncates raises an error.

    Parameters
    ----------
    path : str
        A folder with ``model.safetensors.index.json`` or ``model.safetensors``, or one of these
        files, or another file in the safetensors format.

    Raises
    ------
    MXNetError
        If a file is missing or damaged. The message names it.

    Examples
    --------
    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> nd.save(os.path.join(folder, "model.safetensors"), {"weight": nd.ones((4, 3))})
    >>> weights = mx.contrib.huggingface.Weights(folder)
    >>> weights.shapes()
    {'weight': (4, 3)}
    >>> weights.read("weight", rows=(1, 3)).shape
    (2, 3)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)
        index, single = _located(self.path)
        if index is None:
            self.files: list[File] = [File(single)]
            names = dict.fromkeys(self.files[0].entries, self.files[0])
        else:
            self.files, names = _indexed(index)
        self._arrays: dict[str, LazyArray] = {
            name: FileArray(file, name) for name, file in names.items()
        }

    @property
    def arrays(self) -> Mapping[str, LazyArray]:
        """The arrays by name, which are read on demand."""
        return self._arrays

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each array."""
        return {name: array.shape for name, array in self._arrays.items()}

    def read(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Reads an array, or its rows [begin, end). bfloat16 values are returned as float32.

        Raises KeyError if the name is unknown, and ValueError if the rows are out of range.
        """
        array = self._arrays[name]
        if rows is None:
            return array.whole()
        begin, end = rows
        if not array.shape or not 0 <= begin <= end <= array.shape[0]:
            raise ValueError(f"rows {rows} of '{name}', whose shape is {array.shape}")
        return array.read([(begin, end), *((0, size) for size in array.shape[1:])])

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Returns a scope in which the files remain open."""
        with contextlib.ExitStack() as stack:
            for file in self.files:
                stack.enter_context(file.opened())
            yield


def _located(path):
    """Returns (path of the index, None) or (None, path of the file)."""
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise MXNetError(f"'{path}' does not exist; give a local folder or file")
        return (path, None) if path.endswith(".json") else (None, path)
    for name in (SINGLE, INDEX):
        found = os.path.join(path, name)
        if os.path.exists(found):
            return (found, None) if name == INDEX else (None, found)
    there = sorted(os.listdir(path))
    if any(name.startswith("pytorch_model") for name in there):
        advice = (
            "it holds a pickle of PyTorch; convert it with transformers: "
            "AutoModel.from_pretrained(folder).save_pretrained(new_folder)"
        )
    else:
        advice = f"it holds {', '.join(there[:8]) or 'no files'}"
    raise MXNetError(f"folder '{path}' has neither {SINGLE} nor {INDEX}: {advice}")


def _indexed(path):
    """Returns the files of an index, and the file of each array."""
    what = f"index '{path}'"
    places = read_json(path, "index").get("weight_map")
    if not isinstance(places, dict) or not places:
        raise MXNetError(f"{what} is damaged: it has no weight_map")
    for name in places.values():
        # A name with a folder could refer to any file of the machine.
        if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", ".."):
            raise MXNetError(f"{what} is damaged: {name!r} is not the name of a file")
    folder = os.path.dirname(path)
    files = {}
    for name in sorted(set(places.values())):
        file = os.path.join(folder, name)
        if not os.path.exists(file):
            raise MXNetError(f"{what} names {name!r}, which is missing; download it again")
        files[name] = File(file)
    for array, name in places.items():
        if array not in files[name].entries:
            raise MXNetError(f"{what} expects '{array}' in '{name}', which does not hold it")
    extra = [array for name, file in files.items() for array in file.entries if array not in places]
    if extra:
        raise MXNetError(f"{what} does not list {extra[:5]}, which its files hold")
    return list(files.values()), {array: files[name] for array, name in places.items()}
