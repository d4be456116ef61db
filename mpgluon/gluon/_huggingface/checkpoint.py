"""The arrays of a model in a folder of Hugging Face or in a GGUF file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ...base import MXNetError
from .files import Weights, read_json
from .gguf import GGUF
from .gguf_models import arrays_of, config_of
from .methods import unpacked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from .values import LazyArray

__all__ = ["Checkpoint", "config_and_source", "has_few_bits", "is_gguf"]

_CONFIG, _OLD_CONFIG = "config.json", "quantize_config.json"  # the latter of AutoGPTQ


def is_gguf(path: str) -> bool:
    """True if a path names a GGUF file."""
    return path.endswith(".gguf") and not os.path.isdir(path)


def config_and_source(path: str) -> tuple[dict[str, Any], str]:
    """Returns the config of a folder or a ``config.json``, and its name in errors."""
    if os.path.isdir(path):
        path = os.path.join(path, _CONFIG)
    return read_json(path, "config"), f"config '{path}'"


def has_few_bits(path: str) -> bool:
    """True if the model of a folder may have weights in few bits, according to its config."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if os.path.exists(os.path.join(folder, _OLD_CONFIG)):
        return True
    return config_and_source(path)[0].get("quantization_config") is not None


class Checkpoint:
    """The arrays of a model, by the names of Hugging Face. Those in few bits are
    `quantized.QuantizedArray`.

    Parameters
    ----------
    path : str
        A GGUF file, or see `Weights`. Weights in few bits need the ``config.json`` in their folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)
        self._file: GGUF | Weights
        self.arrays: Mapping[str, LazyArray]
        if is_gguf(self.path):
            self._file = GGUF(self.path)
            self.arrays = arrays_of(self._file)
            return
        self._file = Weights(self.path)
        self.arrays = self._file.arrays
        found = _quantization(self.path, self.arrays)
        if found is not None:
            self.arrays = unpacked(self.arrays, *found)

    def config_and_source(self) -> tuple[dict[str, Any], str]:
        """Returns the config of the model, and its name in errors."""
        if isinstance(self._file, GGUF):
            return config_of(self._file), f"GGUF file '{self.path}'"
        return config_and_source(self.path)

    def opened(self) -> AbstractContextManager[None]:
        """Returns a scope in which the files remain open."""
        return self._file.opened()


def _quantization(path, arrays):
    """Returns (``quantization_config``, its name in errors) of a folder, or None."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    config = os.path.join(folder, _CONFIG)
    if os.path.exists(config):
        found = read_json(config, "config").get("quantization_config")
        if found is not None:
            if not isinstance(found, dict):
                raise MXNetError(f"config '{config}': quantization_config must be an object")
            return found, f"config '{config}': quantization_config"
    old = os.path.join(folder, _OLD_CONFIG)
    if os.path.exists(old) and any(name.endswith(".qweight") for name in arrays):
        return {"quant_method": "gptq", **read_json(old, "config")}, f"config '{old}'"
    return None
