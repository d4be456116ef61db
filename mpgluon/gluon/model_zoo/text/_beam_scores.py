"""Scores of the continuations of beams, and draws among them, with the rules of transformers.

Beams compare logarithms of probabilities, so penalties and limits apply to these, and not to the
scores of the network as in `F.contrib.sample_tokens`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...._internal.types import Array

__all__ = ["drawn", "limited", "penalized"]

NEVER = -math.inf  # score of continuations that are excluded
LEAST = -1e38  # score of excluded continuations in a draw, which may have to return them
TAKEN = -3e38  # score of continuations that were drawn
LEAST_TEMPERATURE = 1e-30  # smaller ones draw the same, but scores could exceed float32


def penalized(F: Any, scores: Array, history: Array, penalty: float) -> Array:
    """Multiplies the negative scores (beams, vocab) of the tokens in `history` (beams, length) by
    the penalty, and divides the positive ones."""
    row = F.expand_dims(F.contrib.arange_like(history, axis=0), axis=1)
    index = F.stack(F.broadcast_add(row, F.zeros_like(history)), history, axis=0)
    ones = F.ones_like(F.cast(history, "float32"))
    seen = F.scatter_nd(ones, index, shape=scores.shape)
    return F.where(seen, F.where(scores < 0, scores * penalty, scores / penalty), scores)


def limited(
    F: Any, scores: Array, temperature: float, top_k: int, top_p: float, min_p: float, least: int
) -> Array:
    """Divides the scores (beams, vocab) by the temperature, and excludes tokens by `top_k`, `top_p`
    and `min_p` in turn, which all keep the `least` best ones."""
    scores = scores / max(temperature, LEAST_TEMPERATURE)
    least = min(least, scores.shape[1])
    if top_k:
        scores = _above(F, scores, _score_of(F, scores, max(top_k, least)))
    if top_p < 1:
        rising = F.sort(scores, axis=-1, is_ascend=True)
        kept = F.cumsum(F.softmax(rising, axis=-1), axis=-1) > 1 - top_p
        bound = F.min(F.where(kept, rising, F.zeros_like(rising) - NEVER), axis=-1, keepdims=True)
        scores = _above(F, scores, F.broadcast_minimum(bound, _score_of(F, scores, least)))
    if min_p:
        bound = F.max(scores, axis=-1, keepdims=True) + math.log(min_p)
        scores = _above(F, scores, F.broadcast_minimum(bound, _score_of(F, scores, least)))
    return scores


def _score_of(F, scores, count):
    """Returns the lowest of the `count` largest scores of each row."""
    best = F.topk(scores, k=min(count, scores.shape[1]), ret_typ="value", axis=-1)
    return F.min(best, axis=-1, keepdims=True)


def _above(F, scores, bound):
    """Excludes scores below a bound."""
    return F.where(F.broadcast_lesser(scores, bound), F.zeros_like(scores) + NEVER, scores)


def drawn(F: Any, scores: Array, keys: Array, count: int) -> tuple[Array, Array]:
    """Draws `count` continuations of each request from scores (requests, continuations), without
    replacement and with the softmax of the scores as probabilities. `F.contrib.sample_tokens`
    describes `keys` (requests, 2). Returns the drawn continuations' scores and indices."""
    seed, position = F.split(keys, num_outputs=2, axis=1)
    left, values, indices = F.maximum(scores, LEAST), [], []
    for i in range(count):
        one = F.contrib.sample_tokens(left, F.concat(seed, position * count + i, dim=1))
        taken = F.one_hot(one, depth=scores.shape[1])
        left = F.where(taken, F.zeros_like(left) + TAKEN, left)
        values.append(F.pick(scores, one, axis=1))
        indices.append(one)
    return F.stack(*values, axis=1), F.stack(*indices, axis=1)
