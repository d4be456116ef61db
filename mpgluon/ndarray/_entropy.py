"""Computes the clipping threshold for quantization that minimizes the relative entropy (KL
divergence) of a histogram to its quantized form."""

from __future__ import annotations

import numpy as np

SMALLEST = 1e-4  # count assigned to empty bins, to keep logarithms finite


def _smoothed(counts):
    """Normalizes counts to a distribution without zeros: empty bins get SMALLEST, which is taken
    from the other bins. Returns None if these are too small."""
    empty = counts == 0
    full = counts.size - empty.sum()
    if not full or (taken := SMALLEST * empty.sum() / full) >= 1:
        return None
    counts = counts + np.where(empty, SMALLEST, -taken)
    return counts / counts.sum() if (counts > 0).all() else None


def _divergence(counts, bins):
    """Returns the relative entropy of clipped counts to their quantization to `bins` levels."""
    clipped, inner = counts
    merged = inner.size // bins
    starts = np.arange(bins) * merged
    sums = np.add.reduceat(inner, starts)
    filled = np.add.reduceat((inner != 0).astype(np.int64), starts)
    sizes = np.full(bins, merged)
    sizes[-1] = inner.size - starts[-1]
    means = np.divide(sums, filled, out=np.zeros(bins), where=filled > 0)
    expanded = np.where(clipped != 0, np.repeat(means, sizes), 0.0)
    p, q = _smoothed(clipped), _smoothed(expanded)
    return np.inf if p is None or q is None else float((p * np.log(p / q)).sum())


def best_threshold(hist, edges, bins=255):
    """Returns (threshold, loss) for the threshold at which clipping and quantizing to `bins` levels
    loses the least information. The loss is the relative entropy. The histogram is symmetric.

    Parameters
    ----------
    hist : array of shape (n,)
        Counts; n is odd, and the middle bin is around 0.
    edges : array of shape (n + 1,)
        The edges of the bins.
    bins : int, default 255
        The number of quantization steps.

    Returns
    -------
    (float, float)
    """
    hist, edges = np.asarray(hist, np.float64), np.asarray(edges)
    if hist.ndim != 1 or edges.shape != (hist.size + 1,):
        raise ValueError(
            f"hist_edges must have one more element than hist of shape {hist.shape}, not "
            f"{edges.shape}"
        )
    zero = hist.size // 2
    if not 0 < bins <= 2 * zero + 1:
        raise ValueError(f"{bins} steps cannot be told apart by a histogram of {hist.size} bins")
    best = (float(edges[-1]), np.inf)
    for reach in range(bins // 2, zero + 1):
        start, stop = zero - reach, min(zero + reach + 1, hist.size)
        clipped = hist[start:stop].copy()
        inner = clipped.copy()
        inner[0] = 0
        clipped[0] += hist[:start].sum()
        if stop < hist.size:
            inner[-1] = hist[stop - 1]
            clipped[-1] += hist[stop:].sum()
        if inner.size < bins:
            continue
        loss = _divergence((clipped, inner), bins)
        if loss < best[1]:
            best = (float(edges[stop]), loss)
    return best
