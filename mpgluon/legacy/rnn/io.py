"""Sentences as integers, and batches of sentences bucketed by length."""

from __future__ import annotations

import bisect
import logging
import random
from typing import TYPE_CHECKING

import numpy as np

from mpgluon import ndarray as nd
from mpgluon.io import DataBatch, DataDesc, DataIter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from mpgluon._core import NDArray
    from mpgluon._internal.types import DType


__all__ = ["BucketSentenceIter", "encode_sentences"]


def encode_sentences(
    sentences: Sequence[Sequence[Any]],
    vocab: dict[Any, int] | None = None,
    invalid_label: int = -1,
    invalid_key: Any = "\n",
    start_label: int = 0,
    unknown_token: Any = None,
) -> tuple[list[list[int]], dict[Any, int]]:
    """Encodes words as integers.

    Parameters
    ----------
    sentences : list of list of str
        Sentences as lists of words.
    vocab : dict of str to int, optional
        The codes of words; without it they are numbered in order of appearance.
    invalid_label : int, default -1
        A code that no word gets; in a new vocabulary it is that of `invalid_key`.
    start_label : int, default 0
        The first code.
    unknown_token : str, optional
        Replaces words that are not in `vocab`; without it they are an error.
    invalid_key : object, default newline
        The word with the code `invalid_label` in a new vocabulary.

    Returns
    -------
    (list of list of int, dict of str to int)

    Examples
    --------
    >>> codes, vocabulary = mx.rnn.encode_sentences([["a", "b"], ["b"]], start_label=1)
    >>> codes, vocabulary["b"]
    ([[1, 2], [2]], 2)
    """
    grows = vocab is None
    if grows:
        vocab = {invalid_key: invalid_label}
    number = start_label

    def code(word):
        nonlocal number
        if word not in vocab:
            if not grows and not unknown_token:
                raise AssertionError(
                    f"Unknown token {word}; set unknown_token for words that are not in vocab"
                )
            if unknown_token:
                word = unknown_token
            if word not in vocab:
                number += number == invalid_label
                vocab[word] = number
                number += 1
        return vocab[word]

    return [[code(word) for word in sentence] for sentence in sentences], vocab


class BucketSentenceIter(DataIter):
    """Batches of sentences, each from one length bucket; the labels are the next words.

    A sentence is in the smallest bucket that it fits, padded with `invalid_label`. Sentences longer
    than the largest bucket are dropped. The order is drawn from NumPy's and Python's generators.

    Parameters
    ----------
    sentences : list of list of int
        Sentences as lists of integers, as in `encode_sentences`.
    batch_size : int
        Samples in a batch.
    buckets : list of int, optional
        Lengths; by default each length with at least one batch of sentences.
    invalid_label : int, default -1
        The padding of short sentences, and of their labels.
    data_name, label_name : str
        Names of the data and of the labels in a batch.
    dtype : str, default 'float32'
        The dtype of the batches.
    layout : {'NT', 'TN'}
        The layout of the batches: N samples, T words.

    Examples
    --------
    >>> data = mx.rnn.BucketSentenceIter([[1, 2], [3, 4], [5, 6, 7]], 1, buckets=[2, 3])
    >>> data.default_bucket_key
    3
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        batch_size: int,
        buckets: Sequence[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: DType = "float32",
        layout: str = "NT",
    ) -> None:
        super().__init__(batch_size)
        self.major_axis: int = layout.find("N")
        if self.major_axis not in (0, 1):
            raise ValueError(f"BucketSentenceIter: the layout must be NT or TN, not {layout!r}")
        if not buckets:
            buckets = [
                length
                for length, count in enumerate(
                    np.bincount([len(sentence) for sentence in sentences])
                )
                if count >= batch_size
            ]
        if not buckets:
            raise ValueError(
                f"BucketSentenceIter: no length has a batch of {batch_size} sentences; pass buckets"
            )
        buckets = sorted(buckets)
        rows = [[] for _ in buckets]
        dropped = 0
        for sentence in sentences:
            place = bisect.bisect_left(buckets, len(sentence))
            if place == len(buckets):
                dropped += 1
                continue
            row = np.full((buckets[place],), invalid_label, dtype=dtype)
            row[: len(sentence)] = sentence
            rows[place].append(row)
        if dropped:
            logging.warning(
                "BucketSentenceIter: %d sentences are longer than the largest bucket and are left "
                "out",
                dropped,
            )
        self.buckets: list[int] = [length for length, kept in zip(buckets, rows) if kept]
        if not self.buckets:
            raise ValueError(
                "BucketSentenceIter: all sentences are longer than the largest bucket, "
                f"{buckets[-1]}"
            )
        self.data: list[np.ndarray[Any, Any]] = [
            np.asarray(kept, dtype=dtype) for kept in rows if kept
        ]
        self.data_name = data_name
        self.label_name = label_name
        self.dtype = dtype
        self.layout = layout
        self.invalid_label = invalid_label
        self.default_bucket_key: int = max(self.buckets)
        self.provide_data: list[DataDesc] = [self._desc(data_name, self.default_bucket_key)]
        self.provide_label: list[DataDesc] = [self._desc(label_name, self.default_bucket_key)]
        self.idx: list[tuple[int, int]] = [
            (i, j)
            for i, kept in enumerate(self.data)
            for j in range(0, len(kept) - batch_size + 1, batch_size)
        ]
        self.curr_idx: int = 0
        self.reset()

    def _desc(self, name, length):
        shape = (self.batch_size, length) if self.major_axis == 0 else (length, self.batch_size)
        return DataDesc(name, shape, self.dtype, self.layout)

    def reset(self) -> None:
        """Restarts in a new order."""
        self.curr_idx = 0
        random.shuffle(self.idx)
        self.nddata: list[NDArray] = []
        self.ndlabel: list[NDArray] = []
        for kept in self.data:
            np.random.shuffle(kept)
            label = np.full_like(kept, self.invalid_label)
            label[:, :-1] = kept[:, 1:]
            self.nddata.append(nd.array(kept, dtype=self.dtype))
            self.ndlabel.append(nd.array(label, dtype=self.dtype))

    def next(self) -> DataBatch:
        if self.curr_idx == len(self.idx):
            raise StopIteration
        bucket, begin = self.idx[self.curr_idx]
        self.curr_idx += 1
        arrays = [
            kept[bucket][begin : begin + self.batch_size] for kept in (self.nddata, self.ndlabel)
        ]
        data, label = arrays if self.major_axis == 0 else [array.T for array in arrays]
        length = self.buckets[bucket]
        return DataBatch(
            [data],
            [label],
            pad=0,
            bucket_key=length,
            provide_data=[self._desc(self.data_name, length)],
            provide_label=[self._desc(self.label_name, length)],
        )
