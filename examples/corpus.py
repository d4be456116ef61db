"""Text for the examples: a file, or the source code of Python's standard library, as numbers."""

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator

import numpy as np

TOKEN = re.compile(r"\n[ \t]*|[A-Za-z_]\w*|\d+|[ \t]+|.")


class Corpus:
    """Text as numbers: the `size` - 1 most frequent tokens, and 0 for all others."""

    def __init__(self, train_text: str, valid_text: str, size: int) -> None:
        train, valid = TOKEN.findall(train_text), TOKEN.findall(valid_text)
        self.words = ["<unk>"] + [word for word, _ in Counter(train).most_common(size - 1)]
        self.number = {word: i for i, word in enumerate(self.words)}
        self.train = np.array([self.number.get(t, 0) for t in train], dtype=np.float32)
        self.valid = np.array([self.number.get(t, 0) for t in valid], dtype=np.float32)

    def unigram_perplexity(self) -> float:
        """Perplexity of the validation text under the token frequencies of the training text (with
        add-one smoothing)."""
        counts = np.bincount(self.train.astype(int), minlength=len(self.words)) + 1.0
        return float(np.exp(-np.log(counts / counts.sum())[self.valid.astype(int)].mean()))


def read_text(path: str | None, limit: int) -> tuple[str, str]:
    """Returns (training text, validation text). The validation text is the last tenth of a file, or
    every tenth file of the standard library."""
    if path:
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read(limit)
        cut = len(text) * 9 // 10
        return text[:cut], text[cut:]
    folder = sysconfig.get_paths()["stdlib"]
    train: list[str] = []
    valid: list[str] = []
    size = 0
    names = sorted(n for n in os.listdir(folder) if n.endswith(".py"))
    for i, name in enumerate(names):
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as f:
            text = f.read()
        (valid if i % 10 == 5 else train).append(text)
        size += len(text)
        if size > limit:
            break
    return "\n".join(train), "\n".join(valid)


def batches(tokens: np.ndarray, batch: int, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (inputs, targets) of shape (steps, batch) each, from `batch` parallel streams through
    the text."""
    length = (len(tokens) - 1) // batch
    streams = tokens[: length * batch].reshape(batch, length).T
    following = tokens[1 : length * batch + 1].reshape(batch, length).T
    for start in range(0, length - steps + 1, steps):
        yield streams[start : start + steps], following[start : start + steps]
