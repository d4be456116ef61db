"""The encoder's side of generation with a `T5`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...._internal import make
from ._cache import Cache, device_of_tokens, rounded_length
from ._steps import Encode, Prompt, programs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._t5 import T5

__all__ = ["Sources"]

SHORTEST = 8  # tokens to which short prompts are padded


class Sources:
    """The cache of a T5 for some requests, whose prompts are the tokens of its encoder, and the
    scores after the first token of the decoder. It has the attributes of `Prompts`.

    Prompts are encoded one by one, so the bits of a request don't depend on the others.
    """

    def __init__(self, net: T5, prompts: Sequence[np.ndarray], more: int, copies: int = 1) -> None:
        """`more` is the number of tokens that may follow in each of `copies` sequences."""
        count, lengths = len(prompts), [len(prompt) for prompt in prompts]
        arrays = net.make_cache(
            copies * count, rounded_length(1 + more), rounded_length(max(lengths)), copies
        )
        self.net, self.cache = net, Cache(arrays, {})
        self.ctx = device_of_tokens(net, arrays)
        self.tokens = [np.array([net.start_token], "int32")] * count
        for layer in arrays:
            layer[4][:] = make.array(lengths, ctx=layer[4].context, dtype="int32")
        for i, prompt in enumerate(prompts):
            self._encode(i, prompt, arrays)
        zeros = make.zeros((copies * count,), ctx=self.ctx, dtype="int32")
        first = make.full((copies * count, 1), net.start_token, ctx=self.ctx, dtype="int32")
        scores = programs_of(net, Prompt)(first, zeros, zeros, arrays)
        self.scores = [scores[i : i + 1] for i in range(0, copies * count, copies)]

    def _encode(self, i, prompt, arrays):
        """Stores the keys and values of prompt `i`."""
        size = padded_length(len(prompt))
        tokens, mask = np.zeros((1, size), "int32"), np.zeros((1, size), "float32")
        tokens[0, : len(prompt)], mask[0, : len(prompt)] = prompt, 1
        found = programs_of(self.net, Encode)(
            make.array(tokens, ctx=self.ctx, dtype="int32"), make.array(mask, ctx=self.ctx)
        )
        for layer, keys, values in zip(arrays, found[::2], found[1::2]):
            layer[2][i : i + 1, :size] = keys
            layer[3][i : i + 1, :size] = values


def padded_length(length: int) -> int:
    """Returns the number of tokens to which a prompt is padded: 2 or 3 times a power of 2, so that
    few programs are compiled."""
    size = SHORTEST
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size
