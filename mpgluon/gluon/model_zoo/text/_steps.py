"""The compiled programs of generation: prompts, steps, checks of drafts, and steps of beams."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from ...block import HybridBlock
from ._beam_scores import drawn, limited, penalized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...._internal.types import Array
    from ._decoder import Decoder
    from ._t5 import T5

__all__ = ["BeamStep", "Encode", "Prompt", "Step", "Verify", "programs_of"]


class _Around(HybridBlock):
    """A compiled block that calls a network, which keeps its own settings of `hybridize`.

    The network owns its programs. Their reference to the network is weak, because a reference cycle
    would delay the release of its memory until the garbage collector runs.
    """

    def __init__(self, net: Decoder | T5, prefix: str) -> None:
        super().__init__(prefix=prefix)
        self._net_reference = weakref.ref(net)
        self.hybridize()

    @property
    def net(self) -> Any:
        """The network, which the caller of a program must keep alive."""
        net = self._net_reference()
        assert net is not None
        return net

    @property
    def step(self) -> Any:
        """The function with the arguments of a `Decoder`. T5 itself takes the encoder's tokens."""
        return getattr(self.net, "step", self.net)


class Encode(_Around):
    """Computes the keys and values of a T5's decoder for the result of its encoder."""

    def __init__(self, net: T5) -> None:
        super().__init__(net, "encode_")

    def hybrid_forward(self, F: Any, tokens: Array, mask: Array) -> list[Array]:
        """Returns the keys and values of all layers in turn."""
        memory = self.net.encoder(self.net.embed(tokens), None, mask)
        return [
            array
            for layer in self.net.decoder.layers
            for array in layer.memory.keys_and_values(F, memory)
        ]


class Prompt(_Around):
    """Adds a part of a prompt to the cache, and computes the scores after it."""

    def __init__(self, net: Decoder | T5) -> None:
        super().__init__(net, "prompt_")

    def hybrid_forward(
        self, F: Any, tokens: Array, lengths: Array, last: Array, cache: Sequence[Any]
    ) -> Array:
        return self.step(tokens, lengths, last, cache)


class _Draws(_Around):
    """A program that draws tokens, with the options of `F.contrib.sample_tokens`."""

    def __init__(
        self,
        net: Decoder | T5,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
    ) -> None:
        super().__init__(net, f"{type(self).__name__.lower()}_")
        self.penalizes: bool = repetition_penalty != 1
        self._options = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
        }

    def draw(self, F: Any, scores: Array, keys: Array, history: Array | None) -> Array:
        """Draws the next tokens (rows,) from scores (batch, time, vocab)."""
        scores = F.reshape(scores, (-3, 0))
        given = [keys] if history is None else [keys, history]
        given = [array.as_in_context(scores.context) for array in given]
        return F.contrib.sample_tokens(scores, *given, **self._options)


class Step(_Draws):
    """One step of generation: computes the scores of the next tokens and draws them.

    Everything stays on the devices, so the host can queue further steps at once.
    """

    def hybrid_forward(
        self,
        F: Any,
        tokens: Array,
        lengths: Array,
        keys: Array,
        history: Array | None,
        cache: Sequence[Any],
    ) -> tuple[Array, ...]:
        """Returns the next tokens (batch,), and the lengths, keys and history after them.

        The tokens stay on the device of the head. If this program copied them to the device of the
        embedding, that device would wait for them before it computes steps of other requests.
        """
        last = F.zeros_like(lengths)
        scores = self.step(F.expand_dims(tokens, axis=1), lengths, last, cache)
        drawn = self.draw(F, scores, keys, history)
        seed, position = F.split(keys, num_outputs=2, axis=1)
        keys = F.concat(seed, position + 1, dim=1)
        if history is not None:
            added = F.expand_dims(drawn.as_in_context(history.context), axis=1)
            history = F.concat(F.slice_axis(history, axis=1, begin=1, end=None), added, dim=1)
        return (drawn, lengths + 1, keys) + (() if history is None else (history,))


class Verify(_Draws):
    """Draws the token after each of several tokens. The first one is known, the others are a draft.

    At each position, it draws the same token as `Step`, so equal tokens of a draft are correct.
    """

    def hybrid_forward(
        self,
        F: Any,
        tokens: Array,
        lengths: Array,
        keys: Array,
        history: Array | None,
        cache: Sequence[Any],
    ) -> Array:
        """Returns the drawn tokens (batch * time,) after `tokens` (batch, time). `keys` and
        `history` have a row for each."""
        return self.draw(F, self.step(tokens, lengths, None, cache), keys, history)


class BeamStep(_Around):
    """One step of a beam search. The cache is put in the order of the beams first.

    With a temperature, the continuations are drawn. `generate` describes the other
    options.
    """

    def __init__(
        self,
        net: Decoder | T5,
        beams: int,
        kept: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
    ) -> None:
        super().__init__(net, "beams_")
        self._beams, self._kept, self._penalty = beams, kept, repetition_penalty
        self._limits = (temperature, top_k, top_p, min_p, kept // beams)
        self.draws: bool = temperature > 0
        self.penalizes: bool = repetition_penalty != 1

    def best(
        self,
        F: Any,
        scores: Array,
        totals: Array,
        history: Array | None,
        keys: Array | None,
        beams: int,
    ) -> tuple[Array, Array]:
        """Returns the logarithms of probabilities, and the indices, of the most probable
        continuations of each request, or of the drawn ones. `totals` (beams, 1) are the logarithms
        for the beams, `history` (beams, length) holds their tokens, and `keys` (requests, 2) seeds
        the draws."""
        scores = F.log_softmax(F.cast(F.reshape(scores, (-3, 0)), "float32"), axis=-1)
        if history is not None:
            history = history.as_in_context(scores.context)
            scores = penalized(F, scores, history, self._penalty)
        if self.draws:
            scores = limited(F, scores, *self._limits)
        scores = F.broadcast_add(scores, totals.as_in_context(scores.context))
        scores = F.reshape(F.reshape(scores, (-4, -1, beams, 0)), (0, -3))
        if keys is not None:
            return drawn(F, scores, keys.as_in_context(scores.context), self._kept)
        values, indices = F.topk(scores, k=self._kept, ret_typ="both", dtype="int32")
        return values, indices

    def hybrid_forward(
        self,
        F: Any,
        tokens: Array,
        lengths: Array,
        totals: Array,
        order: Array,
        history: Array | None,
        keys: Array | None,
        cache: Sequence[Any],
    ) -> tuple[Any, ...]:
        """Returns `best`, and the keys and values of the cache in their new order."""
        moved = []

        def reorder(given):
            if isinstance(given[0], (list, tuple)):
                return [reorder(one) for one in given]
            at = order.as_in_context(given[0].context)
            both = [F.take(array, at) for array in given[:2]]
            moved.extend(both)
            return [*both, *given[2:]]

        cache = [reorder(given) for given in cache]
        last = F.zeros_like(lengths)
        scores = self.step(F.expand_dims(tokens, axis=1), lengths, last, cache)
        return (*self.best(F, scores, totals, history, keys, self._beams), *moved)


class _Programs:
    """The compiled programs of a network. A copy of the network starts without."""

    def __init__(self) -> None:
        self.by_options: dict[Any, HybridBlock] = {}

    def __reduce__(self):
        return _Programs, ()


def programs_of(net: Decoder | T5, kind: type[_Around], **options: Any) -> Any:
    """Returns the program of a kind with some options."""
    with _creating:
        programs = vars(net).get("_generation")
        if programs is None:
            programs = _Programs()
            object.__setattr__(net, "_generation", programs)
        key = (kind, *sorted(options.items()))
        if key not in programs.by_options:
            programs.by_options[key] = kind(net, **options)
        return programs.by_options[key]


_creating = threading.Lock()
