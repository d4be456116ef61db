"""The cache of keys and values during generation: views of requests, and windows that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .... import ndarray as nd
from ...._internal import make
from ....base import MXNetValueError
from ._decoder import home_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....context import Context
    from ._decoder import Decoder

__all__ = ["Cache", "device_of_tokens", "rounded_length"]

BLOCK = 384  # multiple by which rows may move, see `MultiHeadAttention.make_cache`
UNIT = 64  # smallest length of a cache


class Cache:
    """The arrays of `Decoder.make_cache`. The rows of layers with a window move as it advances.

    Attributes
    ----------
    arrays : list
        The argument `cache` of the network.
    windows : dict of int to (list, array)
        For each window, the [keys, values, first] of its layers, and the position of the first row
        of each sequence.
    """

    def __init__(self, arrays: list[Any], windows: dict[int, tuple[list[Any], np.ndarray]]) -> None:
        self.arrays, self.windows = arrays, windows

    @classmethod
    def create(cls, net: Decoder, batch: int, length: int, chunk: int) -> Cache:
        """Returns an empty cache for sequences of up to `length` tokens. A call may add up to
        `chunk` tokens."""
        rounded = rounded_length(length)
        if 0 < net.max_length < length:
            raise MXNetValueError(
                f"generate: a prompt and max_new have {length} tokens together, but the network "
                f"has only {net.max_length} positions"
            )
        arrays = net.make_cache(batch, min(rounded, net.max_length or rounded), chunk)
        windows: dict[int, tuple[list[Any], np.ndarray]] = {}
        for layer, given in zip(net.layers, arrays):
            for part in parts_of(given):
                if len(part) == 3:
                    new = ([], np.zeros(batch, "int64"))
                    windows.setdefault(layer.attention.cached_window, new)[0].append(part)
        return cls(arrays, windows)

    def rows(self, begin: int, end: int) -> Cache:
        """Returns a view of some sequences, which shares their memory."""

        def view(given):
            if isinstance(given, list):
                return [view(one) for one in given]
            return given[begin:end]

        arrays = view(self.arrays)
        found = [part for given in arrays for part in parts_of(given)]
        place = {id(part): i for i, part in enumerate(self.parts())}
        windows = {
            window: ([found[place[id(part)]] for part in parts], first[begin:end])
            for window, (parts, first) in self.windows.items()
        }
        return Cache(arrays, windows)

    def parts(self) -> Iterator[list[Any]]:
        """Iterates over the arrays of each layer and device."""
        for given in self.arrays:
            yield from parts_of(given)

    def make_room(self, lengths: np.ndarray, rows: int) -> None:
        """Moves windows, if there is no room for `rows` further tokens after the first `lengths`
        tokens of the sequences."""
        for window, (parts, first) in self.windows.items():
            size = parts[0][0].shape[1]
            if (lengths + rows - first <= size).all():
                continue
            now = np.maximum(first, np.maximum(lengths - window + 1, 0) // BLOCK * BLOCK)
            places = np.minimum(np.arange(size) + (now - first)[:, None], size - 1)
            places += np.arange(len(first))[:, None] * size
            for keys, values, starts in parts:
                index = make.array(places.reshape(-1), ctx=keys.context, dtype="int32")
                for array in (keys, values):
                    flat = array.reshape((-1, array.shape[2] * array.shape[3]))
                    array[:] = nd.take(flat, index).reshape(array.shape)
                starts[:] = make.array(now, ctx=starts.context, dtype="int32")
            first[:] = now


def rounded_length(length: int) -> int:
    """Returns a number of rows for sequences of up to `length` tokens: a power of 2, so that few
    programs are compiled."""
    rounded = UNIT
    while rounded < length:
        rounded *= 2
    return rounded


def device_of_tokens(net: Any, arrays: list[Any]) -> Context:
    """Returns the device of the embedding, or of the first layer's cache if the embedding is
    split."""
    weight = getattr(net.embed, "weight", None)
    return weight.list_ctx()[0] if weight else home_of(arrays[0])


def parts_of(given: list[Any]) -> list[list[Any]]:
    """Returns the arrays of each device of a layer."""
    return given if isinstance(given[0], list) else [given]
