"""Counts of a binary classification, and the statistics derived from them.

The names are MXNet's, because programs read them.
"""

from __future__ import annotations

import math


class BinaryCounts:
    """Counts of a binary classification: true and false positives and negatives."""

    true_positives: int
    false_positives: int
    true_negatives: int
    false_negatives: int

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.true_positives = self.false_positives = self.true_negatives = self.false_negatives = 0

    def add(self, other: BinaryCounts) -> None:
        self.true_positives += other.true_positives
        self.false_positives += other.false_positives
        self.true_negatives += other.true_negatives
        self.false_negatives += other.false_negatives

    @property
    def total_examples(self) -> int:
        return (
            self.true_positives + self.false_positives + self.true_negatives + self.false_negatives
        )

    @property
    def precision(self) -> float:
        positives = self.true_positives + self.false_positives
        return self.true_positives / positives if positives else 0.0

    @property
    def recall(self) -> float:
        positives = self.true_positives + self.false_negatives
        return self.true_positives / positives if positives else 0.0

    @property
    def fscore(self) -> float:
        precision, recall = self.precision, self.recall
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    def matthewscc(self) -> float:
        if not self.total_examples:
            return 0.0
        tp, fp, tn, fn = (
            float(n)
            for n in (
                self.true_positives,
                self.false_positives,
                self.true_negatives,
                self.false_negatives,
            )
        )
        product = 1.0
        for margin in (tp + fp, tp + fn, tn + fp, tn + fn):
            product *= margin or 1.0
        return (tp * tn - fp * fn) / math.sqrt(product)


class BinaryStatistics(BinaryCounts):
    """The counts since the last `reset_local`.

    Attributes with the prefix ``global_``, such as `global_precision`, are since the last `reset`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.overall: BinaryCounts = BinaryCounts()

    def __getattr__(self, name: str) -> float:
        if not name.startswith("global_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.overall, name.removeprefix("global_"))
