"""Vocabularies, which map tokens to indices."""

from __future__ import annotations

import collections
import operator
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from ...base import MXNetAssertionError

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Vocabulary"]


class Vocabulary:
    """Tokens and their indices.

    Index 0 is the unknown token. The reserved tokens follow, then the tokens of a counter by
    descending frequency, sorted among equal frequencies.

    Parameters
    ----------
    counter : collections.Counter, optional
        The frequency of each token.
    most_freq_count : int, optional
        The maximum number of tokens taken from the counter.
    min_freq : int, default 1
        Tokens with a lower frequency are omitted.
    unknown_token : hashable, default '<unk>'
        Represents all tokens without an index.
    reserved_tokens : list, optional
        Tokens that always have an index, such as padding or the start of a sentence.

    Raises
    ------
    MXNetError, AssertionError
        If min_freq is below 1, a reserved token is repeated or is the unknown one, or `counter` is
        of another type.

    Examples
    --------
    >>> import collections
    >>> counter = collections.Counter("a b b c c c".split())
    >>> vocab = mx.contrib.text.vocab
    >>> vocabulary = vocab.Vocabulary(counter, min_freq=2, reserved_tokens=["_"])
    >>> vocabulary.to_indices(["c", "b", "a", "_"])
    [2, 3, 0, 1]
    """

    def __init__(
        self,
        counter: collections.Counter[Any] | None = None,
        most_freq_count: int | None = None,
        min_freq: int = 1,
        unknown_token: Hashable = "<unk>",
        reserved_tokens: list[Any] | None = None,
    ) -> None:
        if min_freq <= 0:
            raise MXNetAssertionError(f"min_freq must be at least 1, not {min_freq}")
        fixed = [unknown_token, *(reserved_tokens or ())]
        twice = [token for token, n in collections.Counter(fixed).items() if n > 1]
        if twice:
            raise MXNetAssertionError(
                f"reserved_tokens must be unique and must not contain unknown_token: {twice}"
            )
        self._unknown_token: Any = unknown_token
        self._reserved_tokens = None if reserved_tokens is None else list(reserved_tokens)
        self._idx_to_token: list[Any] = fixed
        if counter is not None:
            self._add(counter, most_freq_count, min_freq)
        self._token_to_idx = {token: i for i, token in enumerate(self._idx_to_token)}

    def _add(self, counter, most, least):
        if not isinstance(counter, collections.Counter):
            raise MXNetAssertionError(
                f"counter must be a collections.Counter, not {type(counter).__name__}"
            )
        fixed = set(self._idx_to_token)
        tokens = [t for t in sorted(counter) if counter[t] >= least and t not in fixed]
        tokens.sort(key=lambda token: -counter[token])
        self._idx_to_token += tokens if most is None else tokens[:most]

    def __len__(self) -> int:
        return len(self._idx_to_token)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tokens, unknown={self._unknown_token!r})"

    @property
    def token_to_idx(self) -> dict[Any, int]:
        """The index of each token."""
        return self._token_to_idx

    @property
    def idx_to_token(self) -> list[Any]:
        """The tokens in the order of their indices."""
        return self._idx_to_token

    @property
    def unknown_token(self) -> Any:
        """The token that represents all tokens without an index."""
        return self._unknown_token

    @property
    def reserved_tokens(self) -> list[Any] | None:
        """The tokens that always have an index; None if none were given."""
        return self._reserved_tokens

    @overload
    def to_indices(self, tokens: list[Any]) -> list[int]: ...
    @overload
    def to_indices(self, tokens: Hashable) -> int: ...
    def to_indices(self, tokens: Any) -> int | list[int]:
        """Returns the index of a token, or those of a list of tokens; 0 for unknown ones.

        Parameters
        ----------
        tokens : token, or list of tokens
            The tokens.

        Returns
        -------
        int, or list of int
        """
        if isinstance(tokens, list):
            return [self._token_to_idx.get(token, 0) for token in tokens]
        return self._token_to_idx.get(tokens, 0)

    @overload
    def to_tokens(self, indices: list[int]) -> list[Any]: ...
    @overload
    def to_tokens(self, indices: SupportsIndex) -> Any: ...
    def to_tokens(self, indices: Any) -> Any:
        """Returns the token with an index, or those of a list of indices.

        Parameters
        ----------
        indices : int, or list of int
            Indices of tokens; ValueError if one is out of range.

        Returns
        -------
        token, or list of tokens

        Examples
        --------
        >>> import collections
        >>> vocabulary = mx.contrib.text.vocab.Vocabulary(collections.Counter(["a", "b", "b"]))
        >>> vocabulary.to_tokens([0, 1])
        ['<unk>', 'b']
        """
        if isinstance(indices, list):
            return [self.to_tokens(index) for index in indices]
        try:
            index = operator.index(indices)
        except TypeError:
            raise ValueError(f"a token index must be an int, not {indices!r}") from None
        if not 0 <= index < len(self):
            raise ValueError(
                f"token index {index} is out of range; the vocabulary has {len(self)} tokens"
            )
        return self._idx_to_token[index]
