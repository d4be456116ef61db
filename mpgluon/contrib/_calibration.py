"""Calibration: collects the ranges of values for quantization from data."""

from __future__ import annotations

import numpy as np

from ..ndarray._entropy import best_threshold

__all__ = ["HistogramCollector", "MinMaxCollector"]


class MinMaxCollector:
    """Collects the minimum and maximum of each tensor."""

    def __init__(self, include_layer=None):
        self.include_layer = include_layer
        self.min_max_dict = {}

    def collect(self, name, arr):
        """Updates the statistics with the values of a tensor."""
        if self.include_layer is not None and name not in self.include_layer:
            return
        values = np.asarray(arr)
        low, high = float(values.min()), float(values.max())
        old = self.min_max_dict.get(name, (low, high))
        self.min_max_dict[name] = (min(low, old[0]), max(high, old[1]))

    def ranges(self, dtype):
        """Returns {name: (low, high)}."""
        return dict(self.min_max_dict)


class HistogramCollector:
    """Collects a symmetric histogram of each tensor, which grows with its range."""

    def __init__(self, num_bins=2001, include_layer=None):
        self.num_bins = num_bins
        self.include_layer = include_layer
        self.hist_dict = {}

    def collect(self, name, arr):
        """Updates the statistics with the values of a tensor."""
        if self.include_layer is not None and name not in self.include_layer:
            return
        values = np.asarray(arr).ravel()
        low, high = float(values.min()), float(values.max())
        reach = max(abs(low), abs(high)) or 1e-8
        if name not in self.hist_dict:
            hist, edges = np.histogram(values, self.num_bins, (-reach, reach))
            self.hist_dict[name] = (hist, edges, low, high, reach)
            return
        hist, edges, old_low, old_high, old_reach = self.hist_dict[name]
        if reach > old_reach:  # extend the histogram by whole bins on both sides
            step = 2 * old_reach / hist.size
            more = int(np.ceil((reach - old_reach) / step))
            hist = np.pad(hist, more)
            old_reach += more * step
        new, edges = np.histogram(values, hist.size, (-old_reach, old_reach))
        self.hist_dict[name] = (
            hist + new,
            edges,
            min(low, old_low),
            max(high, old_high),
            old_reach,
        )

    def ranges(self, dtype):
        """Returns {name: (low, high)}, each clipped with the least loss of information."""
        found = {}
        for name, (hist, edges, low, high, _) in self.hist_dict.items():
            positive = low >= 0 and dtype in ("auto", "uint8")
            threshold, _ = best_threshold(hist, edges, 511 if positive else 255)
            found[name] = (0.0 if positive else -threshold, threshold)
        return found
