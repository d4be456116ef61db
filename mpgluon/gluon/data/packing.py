"""Packing of token sequences of different lengths into rows of one length."""

from __future__ import annotations

import bisect
import collections
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ndarray import NDArray
from .dataset import Dataset
from .iterable import IterableDataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["PackedTokenStream", "PackedTokens"]


class _Layout:
    """Options of rows, and their construction from pieces of documents."""

    def __init__(self, length, eos, pad, ignore_index, last_row):
        if not length >= 1:
            raise ValueError(f"length must be at least 1, got {length}")
        if last_row not in ("keep", "discard"):
            raise ValueError(f"last_row must be 'keep' or 'discard', got {last_row!r}")
        for name, token in (("eos", eos), ("pad", pad), ("ignore_index", ignore_index)):
            if name == "eos" and token is None:
                continue
            if not isinstance(token, Integral) or not -(2**31) <= token < 2**31:
                raise ValueError(f"{name} must be an integer below 2 ** 31, got {token!r}")
        self.length, self.pad, self.ignore_index = length, pad, ignore_index
        self.discard = last_row == "discard"
        self._end = [] if eos is None else [eos]

    def tokens(self, document):
        """Returns a document as int32, with the end-of-document token."""
        values = document.asnumpy() if isinstance(document, NDArray) else np.asarray(document)
        if values.ndim != 1:
            raise ValueError(
                f"a document must be a sequence of token ids, but has the shape {values.shape}"
            )
        if not values.size:
            return values.astype("int32")
        with np.errstate(invalid="ignore"):  # NaN
            tokens = values.astype("int32")
        if not (values == tokens).all():
            raise ValueError("token ids must be integers below 2 ** 31")
        return np.append(tokens, np.array(self._end, "int32"))

    def row(self, pieces):
        """Returns (tokens, labels, segments, positions) of pieces (document, begin, end)."""
        tokens = np.full(self.length, self.pad, "int32")
        labels = np.full(self.length, self.ignore_index, "int32")
        segments, positions = np.zeros((2, self.length), "int32")
        at = 0
        for number, (document, begin, end) in enumerate(pieces, 1):
            to = at + end - begin
            tokens[at:to] = document[begin:end]
            following = document[begin + 1 : end + 1]
            labels[at : at + len(following)] = following
            segments[at:to] = number
            positions[at:to] = np.arange(end - begin)
            at = to
        return tokens, labels, segments, positions


def _concatenated(sizes, length):
    """Cuts all documents, one after the other, into rows: lists of (document, begin, end)."""
    rows, free = [], 0
    for document, size in enumerate(sizes):
        begin = 0
        while begin < size:
            if free == 0:
                rows.append([])
                free = length
            end = min(size, begin + free)
            rows[-1].append((document, begin, end))
            free -= end - begin
            begin = end
    return rows


def _best_fit(sizes, length):
    """Best-fit decreasing bin packing: puts each document, longest first, into the fullest row that
    has room for it. Longer documents than a row are cut into rows first."""
    pieces = [
        (document, begin, min(size, begin + length))
        for document, size in enumerate(sizes)
        for begin in range(0, size, length)
    ]
    pieces.sort(key=lambda piece: piece[1] - piece[2])  # stable, so documents keep their order
    rows, spaces, by_space = [], [], {}  # `spaces`: the sorted keys of `by_space`
    for piece in pieces:
        size = piece[2] - piece[1]
        at = bisect.bisect_left(spaces, size)
        if at == len(spaces):
            row, space = len(rows), length
            rows.append([])
        else:
            space = spaces[at]
            row = by_space[space].popleft()
            if not by_space[space]:
                del by_space[space]
                spaces.pop(at)
        rows[row].append(piece)
        space -= size
        if space:
            if space not in by_space:
                bisect.insort(spaces, space)
            by_space.setdefault(space, collections.deque()).append(row)
    return rows


class PackedTokens(Dataset):
    """Documents of tokens as rows of `length` tokens, without or with little padding.

    A sample is ``(tokens, labels, segments, positions)``, four arrays of int32 and length `length`:

    - `labels` are the next tokens of the same document, and `ignore_index` at its end and in
      padding, so that no document predicts the next one.
    - `segments` number the documents of a row from 1; padding is 0. Attention with segments is
      restricted to tokens of the same document.
    - `positions` count from 0 in each document of a row, for embeddings of positions.

    Parameters
    ----------
    documents : Dataset or list
        Sequences of token ids. Empty ones are skipped.
    length : int
        Tokens of a row.
    how : {'best_fit', 'concat'}, default 'best_fit'
        'best_fit' keeps documents whole if they fit into a row, and pads rows. 'concat' cuts the
        concatenated documents into rows; only the last one is padded.
    eos : int, optional
        Token to append to each document.
    pad : int, default 0
        Token of padding.
    ignore_index : int, default -100
        Label of positions without a next token, as in `LinearCrossEntropyLoss`.
    last_row : {'keep', 'discard'}, default 'keep'
        Treatment of an incomplete last row, for 'concat'.

    Raises
    ------
    ValueError
        If a document is not a sequence of integers, or an option is invalid.

    Examples
    --------
    >>> rows = gluon.data.PackedTokens([[5, 6, 7], [8, 9], [4]], length=4)
    >>> tokens, labels, segments, positions = rows[0]
    >>> tokens.tolist(), labels.tolist()
    ([5, 6, 7, 4], [6, 7, -100, -100])
    >>> segments.tolist(), positions.tolist()
    ([1, 1, 1, 2], [0, 1, 2, 0])
    >>> rows
    PackedTokens(rows: 2, length: 4, padding: 25.0%)
    """

    def __init__(
        self,
        documents: Any,
        length: int,
        how: str = "best_fit",
        eos: int | None = None,
        pad: int = 0,
        ignore_index: int = -100,
        last_row: str = "keep",
    ) -> None:
        self._layout = _Layout(length, eos, pad, ignore_index, last_row)
        if how not in ("best_fit", "concat"):
            raise ValueError(f"how must be 'best_fit' or 'concat', got {how!r}")
        if isinstance(documents, IterableDataset):
            raise TypeError("PackedTokens needs all documents; use PackedTokenStream for a stream")
        self._documents = documents
        sizes = [len(self._document(i)) for i in range(len(documents))]
        self._rows = (_best_fit if how == "best_fit" else _concatenated)(sizes, length)
        if how == "concat" and self._layout.discard and sum(sizes) % length:
            self._rows.pop()
        self._used = sum(end - begin for row in self._rows for _, begin, end in row)

    def _document(self, index):
        return self._layout.tokens(self._documents[index])

    def __repr__(self) -> str:
        length = self._layout.length
        padding = 1 - self._used / max(1, length * len(self))
        return f"PackedTokens(rows: {len(self)}, length: {length}, padding: {padding:.1%})"

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, idx: int) -> tuple[np.ndarray[Any, Any], ...]:
        return self._layout.row(
            [(self._document(i), begin, end) for i, begin, end in self._rows[idx]]
        )


class PackedTokenStream(IterableDataset):
    """A stream of documents as rows of `length` tokens, cut as by ``PackedTokens(how='concat')``.

    Parameters
    ----------
    documents : iterable
        Sequences of token ids, such as an IterableDataset, which is iterated over in each round.
    length, eos, pad, ignore_index, last_row
        As in `PackedTokens`.

    Examples
    --------
    >>> rows = gluon.data.PackedTokenStream([[5, 6, 7], [8, 9]], length=4, eos=1)
    >>> [row[0].tolist() for row in rows]
    [[5, 6, 7, 1], [8, 9, 1, 0]]
    """

    def __init__(
        self,
        documents: Iterable[Any],
        length: int,
        eos: int | None = None,
        pad: int = 0,
        ignore_index: int = -100,
        last_row: str = "keep",
    ) -> None:
        self._layout = _Layout(length, eos, pad, ignore_index, last_row)
        self._documents = documents

    def __iter__(self) -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
        pieces: list[Any] = []
        free = self._layout.length
        for document in self._documents:
            tokens, begin = self._layout.tokens(document), 0
            while begin < len(tokens):
                end = min(len(tokens), begin + free)
                pieces.append((tokens, begin, end))
                free -= end - begin
                begin = end
                if free == 0:
                    yield self._layout.row(pieces)
                    pieces, free = [], self._layout.length
        if pieces and not self._layout.discard:
            yield self._layout.row(pieces)
