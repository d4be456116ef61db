"""Token counts of a text."""

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
    """Counts the tokens of a text.

    Parameters
    ----------
    source_str : str
        The text.
    token_delim : str, default ' '
        A regular expression for the separator of tokens.
    seq_delim : str, default '\\\\n'
        A regular expression for the separator of token sequences.
    to_lower : bool, default False
        True to convert tokens to lower case.
    counter_to_update : collections.Counter, optional
        A counter to add the tokens to; it is also the result.

    Returns
    -------
    collections.Counter
        The counts of tokens, without empty ones.

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
