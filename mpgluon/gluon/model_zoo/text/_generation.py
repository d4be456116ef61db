"""`generate`: continues sequences of tokens with a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .... import autograd, ndarray as nd
from ...._internal import domain
from ....base import MXNetTypeError, MXNetValueError
from ...block import HybridBlock
from ._decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...._internal.types import Array, NDArray

__all__ = ["generate"]

CHUNKS = (512, 128, 32, 8, 1)  # lengths in which prompts are processed; each is compiled once
LAG = 4  # steps that are queued before the tokens of the first one are read
UNIT = 64  # smallest length of a cache


class _Around(HybridBlock):
    """A compiled block that calls a network, which keeps its own settings of `hybridize`."""

    def __init__(self, net: Decoder, prefix: str) -> None:
        super().__init__(prefix=prefix)
        object.__setattr__(self, "net", net)  # no child, so `hybridize` does not reach it
        self.hybridize()


class Prompt(_Around):
    """Adds a part of the prompts to the cache, and computes the scores after it."""

    def hybrid_forward(
        self,
        F: Any,
        tokens: Array,
        lengths: Array,
        last: Array,
        cache: Sequence[Sequence[Array]],
    ) -> Array:
        return self.net(tokens, lengths, last, cache)


class Step(_Around):
    """One step of generation: computes the scores of the next tokens and draws them.

    Everything stays on the devices, so the host can queue further steps at once.
    """

    def __init__(self, net: Decoder, options: dict[str, float]) -> None:
        super().__init__(net, "generate_")
        self._options = options
        self.penalizes: bool = options["repetition_penalty"] != 1

    def draw(self, F: Any, scores: Array, keys: Array, history: Array | None) -> Array:
        """Draws the next tokens (batch,) from scores (batch, 1, vocab)."""
        scores = F.reshape(scores, (-3, 0))
        given = [keys] if history is None else [keys, history]
        given = [array.as_in_context(scores.context) for array in given]
        return F.contrib.sample_tokens(scores, *given, **self._options)

    def hybrid_forward(
        self,
        F: Any,
        tokens: Array,
        lengths: Array,
        keys: Array,
        history: Array | None,
        cache: Sequence[Sequence[Array]],
    ) -> tuple[Array, ...]:
        """Returns the next tokens (batch,), and the lengths, keys and history after them."""
        last = F.zeros_like(lengths)
        scores = self.net(F.expand_dims(tokens, axis=1), lengths, last, cache)
        drawn = self.draw(F, scores, keys, history)
        seed, position = F.split(keys, num_outputs=2, axis=1)
        keys = F.concat(seed, position + 1, dim=1)
        if history is not None:
            added = F.expand_dims(drawn.as_in_context(history.context), axis=1)
            history = F.concat(F.slice_axis(history, axis=1, begin=1, end=None), added, dim=1)
        drawn = drawn.as_in_context(tokens.context)
        return (drawn, lengths + 1, keys) + (() if history is None else (history,))


class _Steps:
    """The compiled steps of a network, by their options. A copy of the network starts without."""

    def __init__(self, net=None):
        self.by_options = {}
        self.prompt = net and Prompt(net, "prompt_")

    def __reduce__(self):
        return _Steps, ()


def _steps_of(net, options):
    """Returns the blocks for the prompts and for a step."""
    steps = vars(net).get("_generation")
    if steps is None or steps.prompt is None:
        steps = _Steps(net)
        object.__setattr__(net, "_generation", steps)
    key = tuple(sorted(options.items()))
    if key not in steps.by_options:
        steps.by_options[key] = Step(net, options)
    return steps.prompt, steps.by_options[key]


def generate(
    net: Decoder,
    tokens: Sequence[Sequence[int]] | NDArray | np.ndarray,
    max_new: int = 32,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    stop: int | Sequence[int] = (),
    seed: int | Sequence[int] | None = None,
    stream: Callable[[int, int], object] | None = None,
) -> list[list[int]]:
    """Continues sequences of tokens with a language model.

    Keys and values of earlier tokens are kept in a cache, on the device of each layer, and one
    compiled program per device computes a step. Works for every placement of whole layers.

    Parameters
    ----------
    net : Decoder
        The network.
    tokens : list of list of int, or array (requests, time)
        The prompts, which may have different lengths.
    max_new : int, default 32
        Largest number of new tokens of each request.
    temperature : float, default 0
        Divides the scores before tokens are drawn. With 0, the token with the largest score is
        taken.
    top_k : int, default 0
        Draws among the `top_k` most probable tokens; 0 for all.
    top_p : float, default 1
        Draws among the most probable tokens whose probabilities add up to `top_p`.
    min_p : float, default 0
        Excludes tokens less probable than `min_p` times the most probable one.
    repetition_penalty : float, default 1
        Divides the positive scores of tokens that the sequence contains already, and multiplies
        the negative ones.
    stop : int or list of int
        Tokens that end a request. They are not part of the result.
    seed : int or list of int, optional
        Seed of each request; an integer means ``seed, seed + 1, ...``. By default, the seeds
        are drawn. A request's tokens depend on its seed and prompt, not on the other requests.
    stream : callable, optional
        Called with (index of the request, token) for each new token, in order, a few steps after
        it was queued.

    Returns
    -------
    list of list of int
        The new tokens of each request.

    Raises
    ------
    TypeError, ValueError
        If the network is no `Decoder`, or if prompts are empty or too long for its positions.

    Examples
    --------
    >>> net = gluon.model_zoo.text.Decoder(
    ...     32, units=16, layers=2, heads=4, hidden=24, rotary={})
    >>> net.initialize()
    >>> new = gluon.model_zoo.text.generate(net, [[1, 5, 3], [7, 2]], max_new=4)
    >>> [len(one) for one in new]
    [4, 4]
    """
    if not isinstance(net, Decoder):
        raise MXNetTypeError(
            f"generate: expected a Decoder of model_zoo.text, got a {type(net).__name__}"
        )
    domain.size(0, max_new=max_new)
    prompts = _prompts(tokens)
    ends = {stop} if isinstance(stop, (int, np.integer)) else set(stop)
    seeds = _seeds(seed, len(prompts))
    if not max_new:
        return [[] for _ in prompts]
    options = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    with autograd.pause(train_mode=False):
        return _run(*_steps_of(net, options), prompts, max_new, seeds, ends, stream)


def _prompts(tokens):
    if isinstance(tokens, nd.NDArray):
        tokens = tokens.asnumpy()
    prompts = [np.asarray(one).astype("int32").reshape(-1) for one in tokens]
    for i, prompt in enumerate(prompts):
        if not prompt.size:
            raise MXNetValueError(f"generate: prompt {i} is empty; start it with a token")
    if not prompts:
        raise MXNetValueError("generate: no prompt was given; pass a list of lists of tokens")
    return prompts


def _seeds(seed, count):
    if seed is None:
        seed = int(nd.random.randint(0, 2**31 - 1, shape=(1,)).asnumpy()[0])
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(count)]
    if len(seed) != count:
        raise MXNetValueError(f"generate: {len(seed)} seeds for {count} prompts; pass one for each")
    return [int(one) for one in seed]


def _run(prompt, step, prompts, max_new, seeds, ends, stream):
    net, batch = step.net, len(prompts)
    ctx = net.embed.weight.list_ctx()[0]
    lengths = np.array([len(prompt) for prompt in prompts], "int32")
    longest = int(lengths.max())
    size = longest + max_new
    rounded = UNIT
    while rounded < size:
        rounded *= 2
    if 0 < net.max_length < rounded:
        rounded = max(size, net.max_length)
    cache = net.make_cache(batch, rounded)
    padded = np.zeros((batch, longest), "int32")
    for row, given in zip(padded, prompts):
        row[: len(given)] = given
    scores = _read_prompts(prompt, padded, lengths, cache, ctx)
    keys = nd.array(np.array([[seed, 0] for seed in seeds]), ctx=ctx, dtype="int64")
    history = None
    if step.penalizes:
        recent = np.full((batch, rounded), -1, "int32")
        for row, given in zip(recent, prompts):
            row[rounded - len(given) :] = given
        history = nd.array(recent, ctx=ctx, dtype="int32")
    drawn = step.draw(nd, scores, keys, history).as_in_context(ctx)
    state = _State(prompts, ends, stream)
    rows = nd.array(lengths, ctx=ctx, dtype="int32")
    queue = [drawn]
    keys = keys + nd.array([[0, 1]], ctx=ctx, dtype="int64")
    if history is not None:
        history = nd.concat(history[:, 1:], drawn.expand_dims(1), dim=1)
    for _ in range(max_new - 1):
        drawn, rows, keys, *rest = step(drawn, rows, keys, history, cache)
        history = rest[0] if rest else None
        queue.append(drawn)
        if len(queue) > LAG and not state.take(queue.pop(0).asnumpy()):
            return state.new
    for drawn in queue:
        if not state.take(drawn.asnumpy()):
            break
    return state.new


class _State:
    """The new tokens of each request, and whether it continues."""

    def __init__(self, prompts, ends, stream):
        self.new = [[] for _ in prompts]
        self.open = [True] * len(prompts)
        self.ends, self.stream = ends, stream

    def take(self, tokens):
        """Adds a token for each open request. Returns whether any request continues."""
        for i, token in enumerate(map(int, tokens)):
            if not self.open[i]:
                continue
            if token in self.ends:
                self.open[i] = False
                continue
            self.new[i].append(token)
            if self.stream is not None:
                self.stream(i, token)
        return any(self.open)


def _read_prompts(block, padded, lengths, cache, ctx):
    """Adds the prompts to the cache, and returns the scores (batch, 1, vocab) after them."""
    batch, longest = padded.shape
    scores, at = None, 0
    while at < longest:
        size = next(size for size in CHUNKS if size <= longest - at)
        last = np.clip(lengths - 1 - at, 0, size - 1)
        found = block(
            nd.array(padded[:, at : at + size], ctx=ctx, dtype="int32"),
            nd.full((batch,), at, ctx=ctx, dtype="int32"),
            nd.array(last, ctx=ctx, dtype="int32"),
            cache,
        )
        if scores is None:
            scores = found
        else:
            here = (lengths - 1 >= at).astype("float32")
            scores = nd.where(nd.array(here, ctx=found.context), found, scores)
        at += size
    return scores
