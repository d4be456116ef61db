"""Text data sets for language models, read from files. Nothing is downloaded: the error for a
missing file names it and its folder."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

import numpy as np

from .... import ndarray as nd
from ...._internal import kinds
from ...._internal.files import check_expansion
from ....base import MXNetError, data_dir
from ..._archives import UNREADABLE
from ...data import Dataset

if TYPE_CHECKING:
    import collections

    from ...._core import NDArray
    from ....contrib.text.vocab import Vocabulary

__all__ = ["WikiText2", "WikiText103"]

EOS_TOKEN = "<eos>"
SEGMENTS = {"train": "train", "validation": "valid", "test": "test"}


class _WikiText(Dataset):
    """Lines of tokens, each terminated by <eos>, cut into pieces of equal length."""

    _folder: str  # relative to $MXNET_HOME/datasets

    def __init__(
        self,
        root: str | None = None,
        segment: str = "train",
        vocab: Vocabulary | None = None,
        seq_len: int = 35,
    ) -> None:
        from ....contrib import text as texts  # at module level, this import would be circular

        name = type(self).__name__
        if segment not in SEGMENTS:
            raise MXNetError(
                f"{name}: segment must be one of {', '.join(SEGMENTS)}, not {segment!r}"
            )
        if seq_len < 1:
            raise MXNetError(f"{name}: seq_len must be at least 1, not {seq_len}")
        if root is None:
            root = os.path.join(data_dir(), "datasets", self._folder)
        self._root = os.path.expanduser(root)
        text, path = self._text(f"wiki.{SEGMENTS[segment]}.tokens")
        self._counter = texts.utils.count_tokens_from_str(text)
        if vocab is None:
            vocab = texts.vocab.Vocabulary(self._counter, reserved_tokens=[EOS_TOKEN])
        self._vocab = vocab
        tokens = []
        for line in text.splitlines():
            words = line.split()
            if words:
                tokens += [*words, EOS_TOKEN]
        indices = np.array(self._vocab.to_indices(tokens), np.int32)
        rows = max(len(indices) - 1, 0) // seq_len
        if rows == 0:
            raise MXNetError(
                f"{name}: {path} has only {len(indices)} tokens, but seq_len is {seq_len}"
            )
        size = rows * seq_len
        self._data, self._label = (
            kinds.of_mode(nd.array(part.reshape((rows, seq_len)), dtype="int32"))
            for part in (indices[:size], indices[1 : size + 1])
        )

    def _text(self, name):
        """Returns the text of a file, which may still be in the archive, and the path it was read
        from."""
        archive = os.path.join(self._root, f"{self._folder}-v1.zip")
        path = os.path.join(self._root, name)
        try:
            if os.path.isfile(path):
                with open(path, encoding="utf-8") as file:
                    return file.read(), path
            if os.path.isfile(archive):
                path = archive
                with zipfile.ZipFile(archive) as file:
                    (member,) = [one for one in file.namelist() if os.path.basename(one) == name]
                    check_expansion(archive, file.getinfo(member).file_size)
                    return file.read(member).decode("utf-8"), archive
        except (ValueError, OSError, RuntimeError, *UNREADABLE) as e:
            raise MXNetError(f"{path} is damaged or does not contain {name}: {e}") from None
        raise FileNotFoundError(
            f"{type(self).__name__} needs the file {name} in {self._root}, or "
            f"{os.path.basename(archive)}, which contains it; put it there, or pass its folder "
            "as `root`"
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of tokens and their indices."""
        return self._vocab

    @property
    def frequencies(self) -> collections.Counter[str]:
        """The number of occurrences of each token in the file."""
        return self._counter

    def __getitem__(self, idx: int) -> tuple[NDArray, NDArray]:
        return self._data[idx], self._label[idx]

    def __len__(self) -> int:
        return len(self._label)


class WikiText2(_WikiText):
    """WikiText-2, two million words of Wikipedia.

    Samples are (data, label), arrays of `seq_len` indices; the label is shifted by one token. Each
    line ends with ``<eos>``. The files are `wiki.train.tokens`, `wiki.valid.tokens` and
    `wiki.test.tokens`, or the archive `wikitext-2-v1.zip` that contains them.

    Parameters
    ----------
    root : str, default $MXNET_HOME/datasets/wikitext-2
        Folder of the files; `$MXNET_HOME` defaults to `~/.mxnet`.
    segment : {'train', 'validation', 'test'}, default 'train'
        Part of the data set to read.
    vocab : contrib.text.vocab.Vocabulary, optional
        Indices of tokens; by default, a vocabulary of all tokens in the file.
    seq_len : int, default 35
        Number of tokens of a sample.

    Raises
    ------
    FileNotFoundError
        If a file is missing; the message names it.
    MXNetError
        If a file is damaged, or shorter than one sample.

    Examples
    --------
    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "wiki.test.tokens"), "w") as file:
    ...     _ = file.write("a b a\\n\\nb a\\n")
    >>> text = gluon.contrib.data.text.WikiText2(folder, "test", seq_len=3)
    >>> [text.vocabulary.to_tokens([int(i) for i in part.asnumpy()]) for part in text[0]]
    [['a', 'b', 'a'], ['b', 'a', '<eos>']]
    """

    _folder = "wikitext-2"


class WikiText103(_WikiText):
    """WikiText-103, a hundred million words of Wikipedia. See `WikiText2`; the archive is
    `wikitext-103-v1.zip`.

    Parameters
    ----------
    root : str, default $MXNET_HOME/datasets/wikitext-103
        Folder of the files.
    segment, vocab, seq_len
        See `WikiText2`.

    Examples
    --------
    >>> gluon.contrib.data.text.WikiText103(root="nowhere")
    Traceback (most recent call last):
    ...
    FileNotFoundError: WikiText103 needs the file wiki.train.tokens in nowhere, ...
    """

    _folder = "wikitext-103"
