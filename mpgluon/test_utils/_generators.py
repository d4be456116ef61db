"""Statistical tests of random number generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeAlias

    Generator: TypeAlias = Callable[[int], Any]
    Buckets: TypeAlias = list[Any]


__all__ = [
    "gen_buckets_probs_with_ppf",
    "verify_generator",
]


def gen_buckets_probs_with_ppf(
    ppf: Callable[[float], float], nbuckets: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """Returns ``(buckets, probs)`` of `nbuckets` ranges with equal probabilities.

    ppf: the inverse of the distribution function, such as ``scipy.stats.norm.ppf``.
    """
    if nbuckets < 1:
        raise ValueError(f"gen_buckets_probs_with_ppf: nbuckets must be positive, got {nbuckets}")
    borders = [ppf(i / float(nbuckets)) for i in range(nbuckets + 1)]
    return list(zip(borders, borders[1:])), [1.0 / nbuckets] * nbuckets


def _samples(generator, count):
    samples = generator(count)
    return samples.asnumpy() if hasattr(samples, "asnumpy") else np.asarray(samples)


def _chi_square_check(generator, buckets, probs, nsamples):
    """Returns the p-value of a chi-square test, the counts per bucket, and the expected counts."""
    from scipy import stats

    if not isinstance(buckets, list) or len(buckets) != len(probs):
        raise ValueError(
            "verify_generator: buckets must be a list with one entry for each of probs"
        )
    samples = _samples(generator, nsamples)
    expected = (nsamples * np.array(probs, np.float32)).astype(np.int32)
    if isinstance(buckets[0], (list, tuple)):
        borders = np.array(buckets, np.float32).ravel()
        if np.any(borders[1:] < borders[:-1]):
            raise ValueError("verify_generator: buckets must ascend and be disjoint")
        places = np.searchsorted(borders, samples, side="right") // 2
        counts = np.array([(places == i).sum() for i in range(len(buckets))])
    else:
        counts = np.array([(samples == value).sum() for value in buckets])
    # Compute the statistic here, because SciPy's function requires that the sums of actual and
    # expected counts are equal, which rounding of the probabilities prevents.
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, len(buckets) - 1)), counts, expected


def verify_generator(
    generator: Generator,
    buckets: Buckets,
    probs: Sequence[float],
    nsamples: int = 1000000,
    nrepeat: int = 5,
    success_rate: float = 0.2,
    alpha: float = 0.05,
) -> list[float]:
    """Runs a chi-square test of ``generator(nsamples)`` `nrepeat` times.

    Raises AssertionError if too few p-values exceed `alpha`. Requires SciPy; ImportError otherwise.

    Parameters
    ----------
    generator : callable
        Returns the requested number of random numbers.
    buckets : list
        Ascending, disjoint ranges ``(from, to)`` of a continuous distribution, or the values of a
        discrete one.
    probs : sequence of float
        The probability of each bucket.
    nsamples, nrepeat : int
        The number of samples in a test, and the number of tests.
    success_rate, alpha : float
        The fraction of p-values that must exceed `alpha`.

    Returns
    -------
    list of float, the p-values.
    """
    results = [_chi_square_check(generator, buckets, probs, nsamples) for _ in range(nrepeat)]
    found = [p for p, _, _ in results]
    if sum(p > alpha for p in found) < nrepeat * success_rate:
        raise AssertionError(
            f"the distribution differs from the expected one: chi-square tests give p={found}; "
            f"counts {[counts.tolist() for _, counts, _ in results]}, expected "
            f"{results[0][2].tolist()} in {buckets}"
        )
    return found
