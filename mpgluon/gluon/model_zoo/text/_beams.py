"""Beam search, with the rules of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .... import ndarray as nd
from ...._internal import make
from ....base import MXNetValueError
from ._cache import rounded_length
from ._lanes import keys_of, read_prompts, tails
from ._steps import BeamStep, programs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._decoder import Decoder
    from ._t5 import T5

__all__ = ["beam_search"]

NEVER = np.float32(-np.inf)  # score of beams that cannot be chosen


def beam_search(
    net: Decoder | T5,
    prompts: Sequence[np.ndarray],
    most: int,
    beams: int,
    ends: set[int],
    penalty: float,
    early: bool | str,
    options: dict[str, float],
    seeds: Sequence[int] | None,
) -> tuple[list[list[int]], list[float]]:
    """Returns the best sequence of each request without its end, and its score. `options` go to
    `BeamStep`. If it draws, `seeds` has a seed for each request."""
    batch, kept = len(prompts), max(2, 1 + len(ends)) * beams
    step = programs_of(net, BeamStep, beams=beams, kept=kept, **options)
    read = read_prompts(net, prompts, most, beams)
    lengths = np.repeat([len(tokens) for tokens in read.tokens], beams)
    scores = nd.concat(*read.scores, dim=0)
    vocab = scores.shape[-1]
    if kept > vocab:
        raise MXNetValueError(
            f"generate: num_beams is {beams}, but a network with {vocab} tokens and {len(ends)} "
            f"stops has only {vocab // (kept // beams)} beams at most"
        )
    searches = [_Search(vocab, beams, most, ends, penalty, early) for _ in prompts]
    history = _history(read.tokens, most) if step.penalizes else None

    def given(position):
        """Returns the history and the keys of the draws on the device of the tokens."""
        known = None if history is None else make.array(history, ctx=read.ctx, dtype="int32")
        at = np.full(batch, position, "int64")
        return known, None if seeds is None else keys_of(seeds, at, read.ctx)

    found = step.best(nd, scores, make.zeros((batch, 1), ctx=scores.context), *given(0), 1)
    if history is not None:
        history = np.repeat(history, beams, 0)
    base = np.arange(batch)[:, None] * beams
    order = np.repeat(base, beams, 1)  # all beams of a request start from its prompt
    for length in range(1, most + 1):
        values, indices = (array.asnumpy() for array in found)
        if step.draws:
            best = np.argsort(-values, axis=1, kind="stable")
            values, indices = (np.take_along_axis(one, best, 1) for one in (values, indices))
        chosen = [s.advance(*row) for s, row in zip(searches, zip(values, indices))]
        if all(search.done for search in searches):
            break
        parents, tokens, totals = (np.array(part) for part in zip(*chosen))
        if history is not None:
            parents_of = (parents + base).reshape(-1)
            history = np.concatenate([history[parents_of, 1:], tokens.reshape(-1, 1)], 1)
        order = np.take_along_axis(order, parents, 1)
        read.cache.make_room(lengths, 1)
        found, moved = _run(step, read, tokens, lengths, totals, order, *given(length))
        for part in read.cache.parts():
            part[:2] = moved[:2]
            del moved[:2]
        order = np.arange(beams) + base
        lengths = lengths + 1
    return [s.best()[0] for s in searches], [s.best()[1] for s in searches]


def _history(sequences, more):
    """Returns the tokens of sequences (rows, length), with room for `more`. Repetitions of the
    first token, which do not change the penalty, precede them."""
    found = tails(sequences, rounded_length(max(map(len, sequences)) + more))
    first = np.array([one[0] for one in sequences])
    return np.where(found < 0, first[:, None], found)


def _run(step, read, tokens, lengths, totals, order, history, keys):
    ctx = read.ctx
    values, indices, *moved = step(
        make.array(tokens.reshape(-1), ctx=ctx, dtype="int32"),
        make.array(lengths, ctx=ctx, dtype="int32"),
        make.array(totals.reshape(-1, 1), ctx=ctx, dtype="float32"),
        make.array(order.reshape(-1), ctx=ctx, dtype="int32"),
        history,
        keys,
        read.cache.arrays,
    )
    return (values, indices), moved


class _Search:
    """The running and the finished beams of a request."""

    def __init__(
        self,
        vocab: int,
        beams: int,
        most: int,
        ends: set[int],
        penalty: float,
        early: bool | str,
    ) -> None:
        self.vocab, self.beams, self.most, self.ends = vocab, beams, most, ends
        self.penalty, self.early = penalty, early
        self.running: list[list[int]] = [[]]
        self.finished: list[tuple[np.float32, list[int], bool]] = [(NEVER, [], False)] * beams
        self.length = 0
        self.done = False
        self.may_improve = True

    def advance(
        self, values: np.ndarray, indices: np.ndarray
    ) -> tuple[list[int], list[int], list[np.float32]]:
        """Extends the beams by the most probable continuations. Returns the parent, the last token
        and the logarithm of the probability of each running beam."""
        self.length += 1
        parents, tokens = indices // self.vocab, indices % self.vocab
        last = self.length == self.most
        ended = np.array([last or int(token) in self.ends for token in tokens])
        sequences = [[*self.running[p], int(t)] for p, t in zip(parents, tokens)]
        if not self.done:
            self._finish(values, sequences, ended)
        # A stable sort, since equal scores keep their order.
        scores = np.where(ended, NEVER, values).astype("float32")
        best = np.argsort(-scores, kind="stable")[: self.beams]
        self.running = [sequences[i] for i in best]
        self._update(scores[best[0]], last)
        return [int(parents[i]) for i in best], [int(tokens[i]) for i in best], scores[best]

    def _finish(self, values, sequences, ended):
        full = self.early is True and all(done for _, _, done in self.finished)
        divided = values / np.float32(float(self.length) ** self.penalty)
        merged = list(self.finished)
        for i, (score, sequence) in enumerate(zip(divided, sequences)):
            counts = bool(ended[i]) and i < self.beams
            chosen = counts and self.may_improve and not full
            merged.append((np.float32(score if chosen else NEVER), sequence, counts))
        self.finished = sorted(merged, key=lambda one: -one[0])[: self.beams]

    def _update(self, best, last):
        length = self.most if self.early == "never" and self.penalty > 0 else self.length
        possible = best / np.float32(float(length) ** self.penalty)
        worst = min(score for score, _, _ in self.finished)
        limits = [worst if done else NEVER for _, _, done in self.finished]
        self.may_improve = self.may_improve and any(possible > limit for limit in limits)
        full = self.early is True and all(done for _, _, done in self.finished)
        self.done = self.done or last or full or not self.may_improve

    def best(self) -> tuple[list[int], float]:
        """Returns the best finished sequence without its end, and its score."""
        score, sequence, _ = self.finished[0]
        if sequence and sequence[-1] in self.ends:
            sequence = sequence[:-1]
        return sequence, float(score)
