"""Counts of the tokens of a text."""

from __future__ import annotations

import collections
import re

__all__ = ["count_tokens_from_str"]


def count_tokens_from_str(
    source_str: str,
    token_delim: str = " ",
    seq_delim: str = "\n",
    to_lower: bool = False,
    counter_to_update: collections.Counter[str] | None = None,
) -> collections.Counter[str]:
    """The tokens of a text, counted.

    Parameters
    ----------
    source_str : str
        The text.
    token_delim : str, default ' '
        The regular expression of what is between tokens.
    seq_delim : str, default '\\\\n'
        The regular expression of what is between sequences of tokens.
    to_lower : bool, default False
        Whether tokens are counted in small letters.
    counter_to_update : collections.Counter, optional
        A counter that the tokens are added to; it is the result.

    Returns
    -------
    collections.Counter
        The tokens; empty ones are left out.

    Examples
    --------
    >>> count = mx.contrib.text.utils.count_tokens_from_str
    >>> sorted(count("Life is great!\\nlife is good.", to_lower=True).items())
    [('good.', 1), ('great!', 1), ('is', 2), ('life', 2)]
    """
    tokens = filter(None, re.split(f"{token_delim}|{seq_delim}", source_str))
    counter = collections.Counter() if counter_to_update is None else counter_to_update
    counter.update(token.lower() if to_lower else token for token in tokens)
    return counter
