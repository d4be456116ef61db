"""The new tokens and the text of requests, and where they end."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ....base import MXNetTypeError, MXNetValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Request", "Stops"]


class Stops:
    """Tokens, sequences of tokens and strings that end a request.

    Parameters
    ----------
    stop : int, str, or list of int, str or list of int
    decode : callable, optional
        Converts tokens to text. Strings need it.
    """

    def __init__(self, stop: Any, decode: Callable[[list[int]], str] | None) -> None:
        self.tokens: set[int] = set()
        self.sequences: list[tuple[int, ...]] = []
        self.strings: list[str] = []
        if isinstance(stop, (int, np.integer, str)) or not hasattr(stop, "__iter__"):
            stop = [stop]
        for one in stop:
            if isinstance(one, str):
                self.strings.append(one)
            elif isinstance(one, (int, np.integer)):
                self.tokens.add(int(one))
            else:
                self._add_sequence(one)
        if self.strings and decode is None:
            raise MXNetValueError("generate: stop has strings, which need a tokenizer; pass one")
        if "" in self.strings:
            raise MXNetValueError("generate: a string of stop is empty")

    def check_tokens(self, vocab: int) -> None:
        """Raises ValueError if a token is outside the vocabulary, because it would never stop a
        request."""
        for token in itertools.chain(self.tokens, *self.sequences):
            if not 0 <= token < vocab:
                raise MXNetValueError(
                    f"generate: stop contains {token}, but the tokens of the network are the "
                    f"integers 0 to {vocab - 1}"
                )

    def _add_sequence(self, given):
        try:
            sequence = tuple(int(token) for token in given)
        except (TypeError, ValueError):
            raise MXNetTypeError(
                f"generate: stop must hold tokens, lists of tokens, or strings, got {given!r}"
            ) from None
        if not sequence:
            raise MXNetValueError("generate: a sequence of stop is empty")
        if len(sequence) == 1:
            self.tokens.add(sequence[0])
        else:
            self.sequences.append(sequence)


class Request:
    """The new tokens of a request, and their text if there is a decoder.

    Tokens and text are held back as long as they may become the beginning of a stop, or of a
    character.

    Attributes
    ----------
    tokens : list of int
        The new tokens, without the stop.
    text : str
        Their text.
    open : bool
        Whether the request continues.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        most: int,
        stops: Stops,
        decode: Callable[[list[int]], str] | None,
        streams_text: bool,
    ) -> None:
        self.prompt, self.most, self.stops = prompt, most, stops
        self.streams_text = streams_text
        # Tokens are decoded only if text is the result or may end the request.
        self.decode = decode if streams_text or stops.strings else None
        self.tokens: list[int] = []
        self.text = ""
        self.open = most > 0
        self.drawn = 0  # tokens that were drawn, with the stop
        self._shown = 0  # tokens, or characters, that were streamed
        self._first = self._read = 0  # tokens whose text is context, and whose text is known

    def add(self, token: int) -> Iterator[Any]:
        """Adds a token, and yields the tokens, or parts of the text, that are now certain."""
        self.drawn += 1
        if token in self.stops.tokens:
            self.open = False
        else:
            self.tokens.append(token)
            self._end_at_sequence()
        if self.decode is not None:
            self._extend_text()
            self._end_at_string()
        if self.drawn >= self.most:
            self.open = False
        yield from self._certain()

    def _end_at_sequence(self):
        for sequence in self.stops.sequences:
            if tuple(self.tokens[-len(sequence) :]) == sequence:
                del self.tokens[-len(sequence) :]
                self.open = False
                return

    def _extend_text(self):
        """Appends the text of tokens that end with a whole character. The text of tokens may
        depend on the tokens before them, so these are decoded as well."""
        ends = not self.open or self.drawn >= self.most
        if self._read > len(self.tokens):  # the beginning of a stop, whose text was held back
            self.text, self._first, self._read = "", 0, 0
        known = self.decode(self.tokens[self._first : self._read])
        now = self.decode(self.tokens[self._first :])
        if len(now) > len(known) and (ends or not now.endswith("\ufffd")):
            self.text += now[len(known) :]
            self._first, self._read = self._read, len(self.tokens)

    def _end_at_string(self):
        found = [at for at in map(self.text.find, self.stops.strings) if at >= 0]
        if not found:
            return
        self.open, self.text = False, self.text[: min(found)]
        while self.tokens and len(self.decode(self.tokens)) > len(self.text):
            self.tokens.pop()

    def _certain(self):
        given: Sequence[Any] = self.text if self.streams_text else self.tokens
        end = max(self._certain_count() if self.open else len(given), self._shown)
        new, self._shown = given[self._shown : end], end
        if self.streams_text:
            yield from [new] if new else []
        else:
            yield from new

    def _certain_count(self):
        """Returns the number of tokens, or of characters if text is streamed, that cannot become a
        part of a stop."""
        held = max([0, *(_overlap(self.tokens, list(s)) for s in self.stops.sequences)])
        tokens = len(self.tokens) - held
        begun = max([0, *(_overlap(self.text, stop) for stop in self.stops.strings)])
        characters = len(self.text)
        if self.streams_text:
            if held:
                # A stop may begin inside a character, whose first bytes are decoded differently.
                rest = self.decode(self.tokens[:tokens])
                characters = len(os.path.commonprefix((self.text, rest)))
            return characters - begun
        # The text of all tokens is decoded only if the text of the last ones is not certain.
        if self.stops.strings and (begun or self._read < tokens):
            while tokens and len(self.decode(self.tokens[:tokens])) > characters - begun:
                tokens -= 1
        return tokens


def _overlap(given, stop):
    """Returns the length of the longest proper beginning of `stop` that `given` ends with."""
    for count in range(min(len(stop) - 1, len(given)), 0, -1):
        if given[-count:] == stop[:count]:
            return count
    return 0
