"""The numbers of tokens."""

from __future__ import annotations

import collections
import operator
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from ...base import MXNetAssertionError

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Vocabulary"]


class Vocabulary:
    """Tokens and their numbers: 0 is that of the unknown token, then come the reserved ones, then
    the tokens of a counter, most frequent first, and those of one frequency in their own order.

    Parameters
    ----------
    counter : collections.Counter, optional
        How often each token is there.
    most_freq_count : int, optional
        At most so many tokens of the counter have numbers.
    min_freq : int, default 1
        Tokens that are there less often have none.
    unknown_token : hashable, default '<unk>'
        It stands for all tokens without a number.
    reserved_tokens : list, optional
        Tokens that have numbers in any case: of padding, of the begin of a sentence, ...

    Raises
    ------
    MXNetError, AssertionError
        min_freq is below 1, a reserved token is there twice or is the unknown one, or the counter
        is none.

    Examples
    --------
    >>> import collections
    >>> counter = collections.Counter("a b b c c c".split())
    >>> vocabulary = mx.contrib.text.vocab.Vocabulary(counter, min_freq=2, reserved_tokens=["_"])
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
            raise MXNetAssertionError(f"min_freq must be 1 at least, not {min_freq}")
        fixed = [unknown_token, *(reserved_tokens or ())]
        twice = [token for token, n in collections.Counter(fixed).items() if n > 1]
        if twice:
            raise MXNetAssertionError(
                f"reserved_tokens must be different, and none of them unknown_token: {twice}"
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
        """The number of each token."""
        return self._token_to_idx

    @property
    def idx_to_token(self) -> list[Any]:
        """The tokens in the order of their numbers."""
        return self._idx_to_token

    @property
    def unknown_token(self) -> Any:
        """The token that stands for all without a number."""
        return self._unknown_token

    @property
    def reserved_tokens(self) -> list[Any] | None:
        """The tokens that have numbers in any case; None where none were given."""
        return self._reserved_tokens

    @overload
    def to_indices(self, tokens: list[Any]) -> list[int]: ...
    @overload
    def to_indices(self, tokens: Hashable) -> int: ...
    def to_indices(self, tokens: Any) -> int | list[int]:
        """The number of a token, or those of a list of tokens; 0 for unknown ones.

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
        """The token of a number, or those of a list of numbers.

        Parameters
        ----------
        indices : int, or list of int
            Numbers of tokens; ValueError where there is no such token.

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
            raise ValueError(f"the number of a token is an int, not {indices!r}") from None
        if not 0 <= index < len(self):
            raise ValueError(f"there is no token {index}; the vocabulary has {len(self)}")
        return self._idx_to_token[index]
