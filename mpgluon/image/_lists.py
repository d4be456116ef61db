"""Image lists: files of lines `number<TAB>label...<TAB>path`, and Python lists."""

from numbers import Number

import numpy as np

from ..base import MXNetError, MXNetValueError, lines_of


def read_list(path, dtype="float32"):
    """Reads [(number, array of labels, path)] from a file."""
    found = []
    for number, line in lines_of(path):
        if not line.strip():
            continue
        parts = line.strip().split("\t")
        try:
            key, labels = int(parts[0]), np.array(parts[1:-1], np.float64).astype(dtype)
        except ValueError:
            labels = ()
        if not len(labels) or "\0" in parts[-1]:
            raise MXNetError(
                f"{path}: line {number} must be a number, labels and a path, separated by tabs"
            )
        found.append((key, labels, parts[-1]))
    return found


def entry_of(entry, dtype="float32"):
    """Splits a list entry, [label..., path] or [labels, path], into (array of labels, path)."""
    if len(entry) < 2:
        raise MXNetValueError(
            f"an entry of a list of images must be [label..., path], got {entry!r}"
        )
    if len(entry) > 2:
        labels = entry[:-1]
    else:
        labels = [entry[0]] if isinstance(entry[0], Number) else entry[0]
    labels = labels.asnumpy() if hasattr(labels, "asnumpy") else labels
    return np.array(labels, dtype), entry[-1]
