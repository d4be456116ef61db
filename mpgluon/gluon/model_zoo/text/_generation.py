"""`generate`: continues sequences of tokens, or texts, with a language model."""

from __future__ import annotations

import inspect
import math
import operator
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import autograd, ndarray as nd
from ...._core import Scope
from ...._internal import domain, kinds
from ...._internal.hints import unknown_option_of
from ....base import MXNetTypeError, MXNetValueError
from ._beams import beam_search
from ._decoder import Decoder, home_of
from ._lanes import DraftLane, Lane
from ._requests import Request, Stops
from ._t5 import T5
from ._tokenizer import Tokenizer, decoder_of, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Never

__all__ = ["generate"]

# Least requests of a group by default. Each group reads all weights, which takes most of the time
# of a step with fewer requests.
GROUP = 4
SAME_ROWS = 8  # rows up to which the bits of a product's row don't depend on their number
MOST_PENALTY = 1e30  # largest divisor of the score of a beam, which is float32


def generate(
    net: Decoder | T5,
    tokens: Any,
    max_new: int = 32,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    stop: Any = None,
    seed: int | Sequence[int] | None = None,
    stream: Callable[[int, Any], object] | bool | None = None,
    num_beams: int = 1,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    return_scores: bool = False,
    draft: Decoder | int | None = None,
    draft_tokens: int = 3,
    groups: int | None = None,
    tokenizer: Any = None,
    **kwargs: Never,
) -> Any:
    """Continues sequences of tokens, or texts, with a language model.

    Keys and values of earlier tokens are kept in a cache, on the device of each layer, and one
    compiled program per device computes a step. Works for every placement, also of split layers.

    Parameters
    ----------
    net : Decoder or T5
        The network. A T5's encoder reads the prompts, and its decoder writes the new tokens.
    tokens : list of list of int, array (requests, time), str, chat, or list of str or of chats
        The prompts, which may have different lengths. Tokens must be less than `net.vocab`. Strings
        and chats need a `tokenizer`. A chat is a list of messages, which are dicts (see
        `Tokenizer.chat`).
    max_new : int, default 32
        Largest number of new tokens of each request.
    temperature : float, default 0
        Divides the scores before tokens are drawn. With 0, the token with the largest score is
        taken.
    top_k : int, default 0
        Draws among the `top_k` most probable tokens; 0 for all. Like `top_p` and `min_p`, it has an
        effect only with a `temperature`; otherwise a warning is issued.
    top_p : float, default 1
        Draws among the most probable tokens whose probabilities add up to `top_p`.
    min_p : float, default 0
        Excludes tokens less probable than `min_p` times the most probable one.
    repetition_penalty : float, default 1
        Divides the positive scores of tokens that the sequence contains already, and multiplies
        the negative ones.
    stop : int, str, or list of int, list of int or str, optional
        Tokens, sequences of tokens and strings that end a request. They are not part of the
        result. By default, the `stop` of the tokenizer, or the `end_tokens` of T5.
    seed : int or list of int, optional
        Seed of each request; an integer means ``seed, seed + 1, ...``. By default, the seeds
        are drawn. A request's tokens depend on its seed and prompt, not on the other requests.
    stream : callable or True, optional
        Called with (index of the request, token) for each new token, in order, a few steps after
        it was queued, or with (index, part of the text) if the prompts are strings or chats. With
        True, the result is a generator of these pairs, which may be closed early.
    num_beams : int, default 1
        Number of beams of a beam search, which takes the most probable sequence that it finds. With
        a `temperature`, continuations of the beams are drawn. Penalties and limits apply to
        logarithms of probabilities, and the limits keep as many tokens as a beam may need.
    length_penalty : float, default 1
        The score of a sequence is the logarithm of its probability, divided by its number of new
        tokens to this power.
    early_stopping : bool or 'never', default False
        A beam search ends if there are `num_beams` finished sequences (True), if the running beams
        are not better than these at their present length (False), or at any length ('never').
    return_scores : bool, default False
        Whether a beam search also returns the scores of the sequences.
    draft : Decoder or int, optional
        A smaller network with the same vocabulary that proposes `draft_tokens` tokens, which `net`
        checks in one step. The result is the same as without a draft. An integer is the number of
        tokens to copy from an earlier place with the same last tokens. T5 takes no draft.
    draft_tokens : int, default 3
        Number of tokens that the network `draft` proposes, up to 7.
    groups : int, optional
        Number of groups of requests that take turns, so that several devices compute at once. By
        default one for each device of the layers, if each group has at least 4 requests. With a
        draft, the sizes of groups are fixed, because a check has at most 8 rows.
    tokenizer : Tokenizer, optional
        Result of `model_zoo.text.tokenizer`, or a tokenizer of the packages tokenizers or
        transformers.

    Returns
    -------
    list of list of int, or str, or list of str
        The new tokens of each request, or its text if the prompts are strings or chats. With
        `return_scores`, also the list of scores. With ``stream=True``, a generator.

    Raises
    ------
    TypeError, ValueError
        If the network is no `Decoder` or `T5`, if prompts are empty or too long for its positions,
        if tokens are outside its vocabulary, or if options are unknown, out of range or in
        conflict.

    Examples
    --------
    >>> net = gluon.model_zoo.text.Decoder(
    ...     32, units=16, layers=2, heads=4, hidden=24, rotary={})
    >>> net.initialize()
    >>> new = gluon.model_zoo.text.generate(net, [[1, 5, 3], [7, 2]], max_new=4)
    >>> [len(one) for one in new]
    [4, 4]
    """
    if kwargs:
        known = [*inspect.signature(generate).parameters][1:-1]
        raise unknown_option_of("generate", kwargs, known)
    _check_network("net", net, (Decoder, T5))
    domain.size(0, max_new=max_new, top_k=top_k)
    domain.size(1, num_beams=num_beams)
    domain.not_negative(temperature=temperature, repetition_penalty=repetition_penalty)
    domain.fraction(top_p=top_p, min_p=min_p)
    if not repetition_penalty:
        raise MXNetValueError("generate: repetition_penalty must be above 0; omit it, or pass 1")
    domain.number(length_penalty=length_penalty)
    if not (stream is None or isinstance(stream, bool) or callable(stream)):
        raise MXNetTypeError(
            "generate: stream must be True or a function of the request and the token, got "
            f"{stream!r:.40}"
        )
    _warn_of_unused(
        {"top_k": top_k != 0, "top_p": top_p != 1, "min_p": min_p != 0} if not temperature else {},
        "with temperature=0, which takes the most probable token; pass temperature=1 to draw "
        "tokens",
    )
    _warn_of_unused(
        {"length_penalty": length_penalty != 1} if num_beams == 1 else {},
        "without a beam search; pass num_beams=4",
    )
    _warn_of_unused(
        {"draft_tokens": draft_tokens != 3} if draft is None else {},
        "without a draft; pass draft=network, or draft=3 to copy 3 earlier tokens",
    )
    if tokenizer is not None and not hasattr(tokenizer, "decode"):
        raise MXNetTypeError(
            f"generate: tokenizer must be a tokenizer, got {tokenizer!r:.80}; pass "
            "tokenizer=text.tokenizer(folder)"
        )
    prompts, is_text = _prompts(tokens, tokenizer, net.vocab)
    decode = None if tokenizer is None else decoder_of(tokenizer)
    given = stop is not None
    if not given:
        stop = tokenizer.stop if isinstance(tokenizer, Tokenizer) else ()
        if not stop and isinstance(net, T5):
            stop = net.end_tokens
    stops = Stops(stop, decode)
    if given:
        stops.check_tokens(net.vocab)
    most = max(map(len, prompts)) + max_new
    if 0 < net.max_length < most:
        raise MXNetValueError(
            f"generate: a prompt and max_new have {most} tokens together, but the network has only "
            f"{net.max_length} positions"
        )
    options = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    finish = _Finish(is_text, _is_text(tokens), decode)
    if num_beams > 1:
        _check_beams(stops, stream, draft, groups, early_stopping)
        _check_length_penalty(length_penalty, max_new)
        drawn_from = _seeds(seed, len(prompts)) if temperature else None
        scores = [0.0] * len(prompts)
        found: list[list[int]] = [[] for _ in prompts]
        if max_new:
            with _inference(net):
                found, scores = beam_search(
                    net,
                    prompts,
                    max_new,
                    num_beams,
                    stops.tokens,
                    length_penalty,
                    early_stopping,
                    options,
                    drawn_from,
                )
        result = finish.tokens(found)
        return (result, scores) if return_scores else result
    if return_scores:
        raise MXNetValueError("generate: return_scores needs num_beams above 1")
    requests = [Request(prompt, max_new, stops, decode, is_text) for prompt in prompts]
    if draft is not None:
        _check_draft(net, draft, draft_tokens, most)
    seeds = _seeds(seed, len(prompts))
    run = _run(net, requests, seeds, options, draft, draft_tokens, groups)
    if stream is True:
        return run
    for index, new in run:
        if stream:
            stream(index, new)
    return finish.requests(requests)


def _inference(net):
    """Returns a scope for inference with new arrays of the kind of the network's parameters."""
    numpy = any(param.is_numpy for param in net.collect_params().values())
    return Scope(autograd.pause(train_mode=False), kinds.scope(numpy))


class _Finish:
    """Converts the results to the kind of the prompts."""

    def __init__(self, is_text: bool, single: bool, decode: Any) -> None:
        self.is_text, self.single, self.decode = is_text, single, decode

    def tokens(self, found: list[list[int]]) -> Any:
        return self._result([self.decode(one) if self.is_text else one for one in found])

    def requests(self, requests: list[Request]) -> Any:
        return self._result([one.text if self.is_text else one.tokens for one in requests])

    def _result(self, found):
        return found[0] if self.single else found


def _warn_of_unused(given, reason):
    """Warns of options (name -> whether it was given) that have no effect."""
    names = " and ".join(name for name, is_given in given.items() if is_given)
    if names:
        warnings.warn(f"generate: {names} has no effect {reason}", stacklevel=3)


def _check_network(name, net, kinds):
    if isinstance(net, kinds):
        return
    names = " or ".join(kind.__name__ for kind in kinds)
    raise MXNetTypeError(
        f"generate: {name} must be a {names} of model_zoo.text, got a {type(net).__name__}"
    )


def _check_beams(stops, stream, draft, groups, early_stopping):
    if early_stopping not in (True, False, "never"):
        raise MXNetValueError(
            f"generate: early_stopping must be True, False or 'never', got {early_stopping!r}"
        )
    if stops.sequences or stops.strings:
        raise MXNetValueError("generate: stop of a beam search must be single tokens")
    for name, value in (("stream", stream or None), ("draft", draft), ("groups", groups)):
        if value is not None:
            raise MXNetValueError(f"generate: {name} cannot be combined with num_beams")


def _check_length_penalty(penalty, max_new):
    if abs(penalty) * math.log(max(max_new, 1)) > math.log(MOST_PENALTY):
        raise MXNetValueError(
            f"generate: length_penalty is {penalty}, but {max_new} to this power must be between "
            f"{1 / MOST_PENALTY:g} and {MOST_PENALTY:g}"
        )


def _check_draft(net, draft, count, most):
    if isinstance(net, T5):
        raise MXNetTypeError("generate: draft needs a Decoder, but net is a T5; omit draft")
    if isinstance(draft, (int, np.integer)) and not isinstance(draft, bool):
        count = int(draft)
    else:
        _check_network("draft", draft, (Decoder,))
        if net.vocab != draft.vocab:
            raise MXNetValueError(
                f"generate: draft has {draft.vocab} tokens and net {net.vocab}; they must have "
                "the same vocabulary"
            )
        if 0 < draft.max_length < most:
            raise MXNetValueError(
                f"generate: a prompt and max_new have {most} tokens together, but draft has only "
                f"{draft.max_length} positions"
            )
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
        raise MXNetTypeError(f"generate: draft_tokens must be an integer, got {count!r}")
    if not 1 <= count < SAME_ROWS:
        raise MXNetValueError(
            f"generate: a draft must have 1 to {SAME_ROWS - 1} tokens, not {count}"
        )


def _is_chat(tokens):
    return isinstance(tokens, (list, tuple)) and bool(tokens) and isinstance(tokens[0], dict)


def _is_text(prompt):
    return isinstance(prompt, str) or _is_chat(prompt)


def _prompts(tokens, tokenizer, vocab):
    """Returns the tokens of the prompts, and whether they were given as text."""
    texts = [tokens] if _is_text(tokens) else tokens
    is_text = isinstance(texts, (list, tuple)) and any(map(_is_text, texts))
    if is_text:
        if tokenizer is None:
            raise MXNetValueError(
                "generate: prompts are strings or chats; pass tokenizer=text.tokenizer(folder)"
            )
        tokens = [_encoded(i, one, tokenizer) for i, one in enumerate(texts)]
    if isinstance(tokens, nd.NDArray):
        tokens = tokens.asnumpy()
    if not hasattr(tokens, "__iter__"):
        raise MXNetTypeError(
            f"generate: tokens must be a list of lists of tokens, got {type(tokens).__name__}; "
            "an array, strings and the messages of a chat are also valid"
        )
    prompts = [_checked(i, one, vocab) for i, one in enumerate(tokens)]
    if not prompts:
        raise MXNetValueError("generate: no prompt was given; pass a list of lists of tokens")
    return prompts, is_text


def _encoded(i, prompt, tokenizer):
    """Returns the tokens of prompt `i`, a string or a chat."""
    if isinstance(prompt, str):
        return encoded(tokenizer, prompt)
    if not _is_chat(prompt):
        raise MXNetTypeError(
            f"generate: prompt {i} must be a string or a chat like the others, got {prompt!r:.40}"
        )
    if not isinstance(tokenizer, Tokenizer):
        raise MXNetTypeError("generate: a chat needs the tokenizer of text.tokenizer")
    return tokenizer.encode(tokenizer.chat(list(prompt)), special=False)


def _checked(i, tokens, vocab):
    """Returns the tokens of prompt `i` as int32, after checking them. An embedding would clip
    other values."""
    try:
        prompt = np.asarray(tokens.asnumpy() if isinstance(tokens, nd.NDArray) else tokens)
    except ValueError:  # rows of different lengths
        prompt = np.asarray("")
    if prompt.ndim != 1 or (prompt.size and prompt.dtype.kind not in "iuf"):
        raise MXNetTypeError(
            f"generate: prompt {i} must be a list of integers, got {tokens!r:.40}; pass a list of "
            "lists, even for one prompt"
        )
    if not prompt.size:
        raise MXNetValueError(f"generate: prompt {i} is empty; start it with a token")
    wrong = prompt[~((prompt >= 0) & (prompt < vocab) & (prompt == np.floor(prompt)))]
    if wrong.size:
        raise MXNetValueError(
            f"generate: prompt {i} contains {wrong[0]}; the tokens of the network are the integers "
            f"0 to {vocab - 1}"
        )
    return prompt.astype("int32")


def _seeds(seed, count):
    if seed is None:
        seed = int(nd.random.randint(0, 2**31 - 1, shape=(1,)).asnumpy()[0])
    try:
        if hasattr(seed, "__len__"):
            seeds = [operator.index(one) for one in seed]
        else:
            seeds = [operator.index(seed) + i for i in range(count)]
    except TypeError:
        raise MXNetTypeError(
            f"generate: seed must be an integer or a list of integers, got {seed!r:.40}"
        ) from None
    if len(seeds) != count:
        raise MXNetValueError(
            f"generate: {len(seeds)} seeds for {count} prompts; pass one for each"
        )
    for one in seeds:
        if not -(2**63) <= one < 2**63:
            raise MXNetValueError(f"generate: seeds must be 64-bit integers, got {one}")
    return seeds


def _sizes(net, count, groups, draft, draft_tokens):
    """Returns the numbers of requests of the lanes."""
    if draft is not None:
        rows = 1 + (draft_tokens if isinstance(draft, Decoder) else int(draft))
        size = SAME_ROWS // rows
        return [min(size, count - at) for at in range(0, count, size)]
    if groups is None:
        layers = net.make_cache(1, 1, *([1] if isinstance(net, T5) else []))
        devices = len({home_of(layer) for layer in layers})
        groups = max(1, min(devices, count // GROUP))
    else:
        domain.size(1, groups=groups)
    groups = min(groups, count)
    return [count // groups + (i < count % groups) for i in range(groups)]


def _run(net, requests, seeds, options, draft, draft_tokens, groups):
    """Returns a generator of (index of the request, new token or text)."""
    sizes = _sizes(net, len(requests), groups, draft, draft_tokens)
    most = requests[0].most
    lanes: list[tuple[int, Any]] = []

    def start():
        begin = 0
        for size in sizes if most else ():
            part = slice(begin, begin + size)
            given = (net, requests[part], seeds[part], most, options)
            if draft is None:
                lanes.append((begin, Lane(*given, len(sizes) == 1)))
            elif isinstance(draft, Decoder):
                lanes.append((begin, DraftLane(*given, draft, draft_tokens)))
            else:
                lanes.append((begin, DraftLane(*given, None, int(draft))))
            begin += size

    inference = _inference(net)

    def steps():
        # While the generator is suspended, the caller's modes of autograd apply.
        with inference:
            start()
        while lanes:
            for begin, lane in list(lanes):
                with inference:
                    found = lane.take()
                for i, (request, new) in enumerate(zip(lane.requests, found)):
                    for token in new:
                        if request.open:
                            for one in request.add(token):
                                yield begin + i, one
                if any(request.open for request in lane.requests):
                    with inference:
                        lane.advance()
                else:
                    lanes.remove((begin, lane))

    return steps()
