"""Lanes: requests whose steps are computed together, with their cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .... import ndarray as nd
from ...._internal import make
from ._cache import Cache, device_of_tokens
from ._sources import Sources
from ._steps import Prompt, Step, Verify, programs_of
from ._t5 import T5

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...._internal.types import NDArray
    from ._decoder import Decoder
    from ._requests import Request

__all__ = ["DraftLane", "Lane", "Prompts", "read_prompts"]

CHUNKS = (512, 128, 32, 8, 1)  # lengths in which prompts are processed; each is compiled once
LAG = 4  # steps that are queued before the tokens of the first one are read
GRAM = 3  # largest number of tokens that are looked up in earlier ones


class Prompts:
    """The cache of a network for some requests, and the scores after their prompts.

    Prompts are read one by one, so the bits of a request don't depend on the others.
    """

    def __init__(
        self, net: Decoder, prompts: Sequence[np.ndarray], more: int, copies: int = 1
    ) -> None:
        """`more` is the number of tokens that may follow. Each prompt is read into the first of
        `copies` sequences."""
        self.net, self.tokens = net, prompts
        longest = max(len(prompt) for prompt in prompts)
        chunk = next(size for size in CHUNKS if size <= longest)
        self.cache = Cache.create(net, copies * len(prompts), longest + more, max(chunk, 8))
        self.ctx = device_of_tokens(net, self.cache.arrays)
        self.scores = [
            self._read(prompt, self.cache.rows(i * copies, i * copies + 1))
            for i, prompt in enumerate(prompts)
        ]

    def _read(self, prompt, cache):
        """Adds a prompt to a cache of one sequence. Returns the scores (1, 1, vocab) after it."""
        program, at, scores = programs_of(self.net, Prompt), 0, None
        while at < len(prompt):
            size = next(size for size in CHUNKS if size <= len(prompt) - at)
            cache.make_room(np.array([at]), size)
            scores = program(
                make.array(prompt[None, at : at + size], ctx=self.ctx, dtype="int32"),
                make.array([at], ctx=self.ctx, dtype="int32"),
                make.array([size - 1], ctx=self.ctx, dtype="int32"),
                cache.arrays,
            )
            at += size
        return scores


def read_prompts(
    net: Decoder | T5, prompts: Sequence[np.ndarray], more: int, copies: int = 1
) -> Prompts | Sources:
    """Returns the cache after the prompts, and the scores. For T5, the prompts are the tokens of
    the encoder."""
    if isinstance(net, T5):
        return Sources(net, prompts, more, copies)
    return Prompts(net, prompts, more, copies)


def keys_of(seeds: Sequence[int], positions: np.ndarray, ctx: Any) -> NDArray:
    """Returns the keys (rows, 2) of the draws with seeds at positions."""
    return make.array(np.stack([np.array(seeds, "int64"), positions], 1), ctx=ctx, dtype="int64")


class Lane:
    """Requests that advance by one token in each step.

    If `ahead`, steps are queued before the host has read the tokens of earlier ones. With several
    lanes, the host passes the tokens on instead. A device that copied them itself would wait for
    them, while it could compute a step of another lane.
    """

    def __init__(
        self,
        net: Decoder | T5,
        requests: list[Request],
        seeds: list[int],
        most: int,
        options: dict[str, float],
        ahead: bool,
    ) -> None:
        self.requests, self.left, self.lag = requests, most - 1, LAG if ahead else 0
        self.step = programs_of(net, Step, **options)
        read = read_prompts(net, [request.prompt for request in requests], most)
        scores = nd.concat(*read.scores, dim=0)
        self.cache, ctx = read.cache, scores.context
        self.lengths = np.array([len(tokens) for tokens in read.tokens])
        self.rows = make.array(self.lengths, ctx=read.ctx, dtype="int32")
        zeros = np.zeros(len(requests), "int64")
        history = None
        if self.step.penalizes:
            width = 64
            while width < self.lengths.max() + most:
                width *= 2
            history = make.array(tails(read.tokens, width), ctx=ctx, dtype="int32")
        self.drawn = self.step.draw(nd, scores, keys_of(seeds, zeros, ctx), history)
        self.keys = keys_of(seeds, zeros + 1, ctx)
        if history is not None:
            history = nd.concat(history[:, 1:], nd.expand_dims(self.drawn, axis=1), dim=1)
        self.history = history
        self.queue = [self.drawn]

    def advance(self) -> None:
        """Queues the next step."""
        if not self.left:
            return
        self.left -= 1
        self.cache.make_room(self.lengths, 1)
        tokens = self.drawn.as_in_context(self.rows.context)
        self.drawn, self.rows, self.keys, *rest = self.step(
            tokens, self.rows, self.keys, self.history, self.cache.arrays
        )
        self.history = rest[0] if rest else None
        self.lengths += 1
        self.queue.append(self.drawn)

    def take(self) -> list[list[int]]:
        """Returns the new tokens of each request: none as long as few steps are queued."""
        if not self.queue or (self.left and len(self.queue) <= self.lag):
            return [[] for _ in self.requests]
        tokens = self.queue.pop(0).asnumpy()
        if not self.lag:
            self.drawn = make.array(tokens, ctx=self.rows.context, dtype="int32")
        return [[int(token)] for token in tokens]


class DraftLane:
    """Requests that advance by the tokens of a draft that the network would have drawn as well.

    The draws depend on the seed, the position and the scores alone, so a `Lane` would draw the same
    tokens. `draft` is a network, or None to look up the last tokens among the earlier ones.
    """

    def __init__(
        self,
        net: Decoder,
        requests: list[Request],
        seeds: list[int],
        most: int,
        options: dict[str, float],
        draft: Decoder | None,
        count: int,
    ) -> None:
        self.requests, self.seeds, self.count = requests, seeds, count
        prompts = [request.prompt for request in requests]
        self.verify = programs_of(net, Verify, **options)
        read = Prompts(net, prompts, min(most + count + 1, room(net, prompts)))
        self.cache, self.ctx = read.cache, read.ctx
        self.lengths = np.array([len(prompt) for prompt in prompts])
        self.tokens = [list(map(int, prompt)) for prompt in prompts]
        self.drafter = None
        self.lookups: list[Lookup] = []
        if draft is None:
            self.lookups = [Lookup(tokens) for tokens in self.tokens]
        else:
            more = min(most + count + 1, room(draft, prompts))
            self.drafter = programs_of(draft, Step, **options), Prompts(draft, prompts, more)
        self.width = 64
        while self.width < self.lengths.max() + most + count:
            self.width *= 2
        self.positions = np.zeros(len(requests), "int64")
        scores = nd.concat(*read.scores, dim=0)
        keys = keys_of(seeds, self.positions, self.ctx)
        drawn = self.verify.draw(nd, scores, keys, self._history([[]] * len(requests), 1))
        self.pending = (drawn, np.zeros((len(requests), 0), "int32"))

    def _history(self, drafts, rows):
        """Returns the earlier tokens of the row of each token of the drafts, for the penalty."""
        if not self.verify.penalizes:
            return None
        tails_of = [
            [*tokens, *draft[:i]] for tokens, draft in zip(self.tokens, drafts) for i in range(rows)
        ]
        return make.array(tails(tails_of, self.width), ctx=self.ctx, dtype="int32")

    def advance(self) -> None:
        """Queues a draft, and its check."""
        if self.pending is not None:
            return
        last = np.array([tokens[-1] for tokens in self.tokens], "int32")
        if self.drafter is None:
            drafts = self._looked_up()
        else:
            drafts = self._drafted(last)
        rows = drafts.shape[1] + 1
        self.cache.make_room(self.lengths, rows)
        if isinstance(drafts, np.ndarray):
            known, drafts = drafts, make.array(drafts, ctx=self.ctx, dtype="int32")
        else:
            known = drafts.asnumpy() if self.verify.penalizes else None
        first = make.array(last[:, None], ctx=self.ctx, dtype="int32")
        seeds = np.repeat(self.seeds, rows)
        positions = (self.positions[:, None] + np.arange(rows)).reshape(-1)
        drawn = self.verify(
            nd.concat(first, drafts, dim=1) if rows > 1 else first,
            make.array(self.lengths, ctx=self.ctx, dtype="int32"),
            keys_of(seeds, positions, self.ctx),
            self._history(known if known is None else known.tolist(), rows),
            self.cache.arrays,
        )
        self.pending = (drawn, drafts if known is None else known)

    def _drafted(self, last):
        """Draws `count` tokens of each request with the smaller network."""
        step, read = self.drafter
        read.cache.make_room(self.lengths, self.count + 1)
        token = make.array(last, ctx=read.ctx, dtype="int32")
        rows = make.array(self.lengths, ctx=read.ctx, dtype="int32")
        keys = keys_of(self.seeds, self.positions, read.ctx)
        history, found = None, []
        if step.penalizes:
            history = make.array(tails(self.tokens, self.width), ctx=read.ctx, dtype="int32")
        # The last step adds the last token of the draft to the cache.
        for _ in range(self.count + 1):
            token, rows, keys, *rest = step(token, rows, keys, history, read.cache.arrays)
            token = token.as_in_context(read.ctx)
            history = rest[0] if rest else None
            found.append(token.as_in_context(self.ctx))
        return nd.stack(*found[: self.count], axis=1)

    def _looked_up(self):
        """Returns the tokens that followed the last tokens earlier, or no tokens if they are new
        for any request."""
        found = [
            one.find(self.count) if request.open else []
            for one, request in zip(self.lookups, self.requests)
        ]
        if not any(found):
            return np.zeros((len(found), 0), "int32")
        return np.array([draft + [0] * (self.count - len(draft)) for draft in found], "int32")

    def take(self) -> list[list[int]]:
        """Returns the new tokens of each request."""
        if self.pending is None:
            return [[] for _ in self.requests]
        drawn, drafts = self.pending
        self.pending = None
        if not isinstance(drafts, np.ndarray):
            drafts = drafts.asnumpy()
        found: list[list[int]] = []
        drawn = drawn.asnumpy().reshape(len(self.requests), -1)
        for i, request in enumerate(self.requests):
            right = drawn[i, :-1] == drafts[i]
            new = drawn[i, : 1 + int(right.argmin() if not right.all() else len(right))].tolist()
            found.append(new)
            # The cache has the keys of all tokens except the last one.
            if request.open and len(new) < request.most - request.drawn:
                self.lengths[i] = len(self.tokens[i]) + len(new) - 1
                self.positions[i] += len(new)
                self.tokens[i] += new
        return found


def room(net: Decoder, prompts: Sequence[np.ndarray]) -> int:
    """Returns the number of tokens for which a network has positions after the longest prompt."""
    longest = max(len(prompt) for prompt in prompts)
    return net.max_length - longest if net.max_length else 1 << 62


class Lookup:
    """Index of the latest occurrence of each one to three adjacent tokens in a growing list. A
    search of the list for each draft would take time in proportion to its length."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._ends: dict[tuple[int, ...], int] = {}  # sequence -> index of the token after it
        self._known = 1  # number of tokens whose preceding sequences are in the index

    def find(self, count: int) -> list[int]:
        """Returns up to `count` tokens that followed the latest earlier occurrence of the last
        tokens, of three if possible, or else of fewer."""
        tokens = self._tokens
        for end in range(self._known, len(tokens)):
            for size in range(1, min(GRAM, end) + 1):
                self._ends[tuple(tokens[end - size : end])] = end
        self._known = len(tokens)
        for size in range(min(GRAM, len(tokens) - 1), 0, -1):
            end = self._ends.get(tuple(tokens[-size:]))
            if end is not None:
                return tokens[end : end + count]
        return []


def tails(sequences: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """Returns the sequences (rows, width), with -1 before them."""
    rows = np.full((len(sequences), width), -1, "int32")
    for row, given in zip(rows, sequences):
        if len(given):
            row[width - len(given) :] = given
    return rows
