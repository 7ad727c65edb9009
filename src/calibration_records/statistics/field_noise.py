"""The effect of chance on field sums: labels drawn from the predictions, and intervals of rates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from calibration_records._check import confidence_level


def drawn_field_sums(sums: ArrayLike, num_draws: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Residuals, positives and rows (z, 3) of each draw, with labels drawn from the predictions.

    The number of positives K of a field value is a sum of independent draws with different
    probabilities (a Poisson-binomial variable). Its mean `m = Σ p` and variance `v = Σ p - Σ p²`
    follow from the sums. The function draws K from a mixture of two binomials with this mean, whose
    numbers of trials are `m² / Σ p²` rounded down and up, mixed such that the variance is v. (If
    rounding down leaves fewer trials than m, m rounded down or up at random replaces that
    binomial.) This is exact if p is equal in all rows of the value, and for one or two rows. K is a
    whole number, at most the number of rows.

    With weights, the function draws the weight of the K positives from a gamma distribution with
    mean `K Σ w p / Σ p`, and with the variance that gives the total the variance `Σ w² p (1 - p)`,
    because the sums contain nothing more about single weights. If all rows have the same weight,
    the draws are exact.

    Example:
        >>> sums = [[0.0, 1.0, 4.0, 4.0, 0.75, 1.0, 0.25]]  # four rows with p = 1/4
        >>> [float(positives) for [[_, positives, _]] in drawn_field_sums(sums, 5)]
        [0.0, 2.0, 1.0, 2.0, 0.0]
    """
    sums = np.asarray(sums)
    # Weights count as varying within a value if they add more than this share to the squared mean
    # weight: more than the rounding of their sums.
    rounding = 1e-4 if sums.dtype == np.float32 else 1e-9
    sums = sums.astype(np.float64)
    if np.isnan(sums).any():
        raise ValueError("Argument `sums` must not contain NaN. Received: NaN in some values.")
    residual, positives, rows, _, variance, mean, squares = sums.T
    # Values without predicted positives have none in any draw.
    predicted = np.clip(positives - residual, 0.0, rows)
    there = (predicted > 0) & (mean > 0)
    variance, mean, squares = (column[there] for column in (variance, mean, squares))
    count_variance = np.maximum(mean - squares, 0.0)
    expected = predicted[there]
    # The mean weight of a positive, if labels are drawn.
    weight = expected / mean
    # The law of total variance: the variance of the weighted total, minus the part that the counts
    # give, is what the weights add, per positive. It is negative where rows with high probabilities
    # have small weights; then the deviation from the mean has to shrink instead.
    added = (variance - weight**2 * count_variance) / mean
    varies = added > rounding * weight**2
    shrinks = added < -rounding * weight**2
    spread = np.sqrt(variance[shrinks] / (weight**2 * count_variance)[shrinks])
    generator = np.random.default_rng(seed)
    for count in _draw_counts(generator, num_draws, mean, count_variance, squares):
        drawn = weight * count  # exactly 0 without positives
        drawn[shrinks] = expected[shrinks] + spread * (drawn - expected)[shrinks]
        # A gamma variable with shape `w K / s` and scale s has the mean w K and the variance w K s.
        scale = added[varies] / weight[varies]
        drawn[varies] = scale * generator.gamma(drawn[varies] / scale)
        positives = np.zeros_like(rows)
        positives[there] = drawn
        yield np.stack([positives - predicted, positives, rows], axis=1)


def _draw_counts(
    generator: np.random.Generator,
    num_draws: int,
    mean: np.ndarray,
    variance: np.ndarray,
    squares: np.ndarray,
) -> Iterator[np.ndarray]:
    """Counts with a given mean and variance; `squares` is Σ p². See `drawn_field_sums`."""
    # Probabilities below 1e-9 are at the Poisson limit. Rounding could leave too few trials.
    trials = np.maximum(mean / np.maximum(squares / mean, 1e-9), np.maximum(mean, 1.0))
    # `Binomial(n, m / n)` has the variance `m (1 - m / n)`, so that v lies between the variances
    # for the two whole numbers next to n.
    more = np.ceil(trials)
    # A binomial of mean m needs m trials at least; with fewer, K is one of the two whole numbers
    # next to m.
    is_two_points = np.floor(trials) < mean
    fewer = np.where(is_two_points, more, np.floor(trials))
    above = mean - np.floor(mean)
    least = np.where(is_two_points, above * (1 - above), mean * (1 - mean / fewer))
    largest = mean * (1 - mean / more)
    share_of_more = np.divide(
        variance - least, largest - least, out=np.zeros_like(mean), where=largest > least
    ).clip(0.0, 1.0)
    for _ in range(num_draws):
        takes_more = generator.random(mean.shape) < share_of_more
        num_trials = np.where(takes_more, more, fewer)
        binomial = generator.binomial(num_trials.astype(np.int64), mean / num_trials)
        two_points = np.floor(mean) + (generator.random(mean.shape) < above)
        yield np.where(is_two_points & ~takes_more, two_points, binomial)


def jeffreys_interval(
    positives: ArrayLike, trials: ArrayLike, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Jeffreys interval of a rate: quantiles of `Beta(k + ½, n - k + ½)`; NaN where k or n is.

    Its mean coverage is close to `confidence` also at small rates, where the normal approximation
    fails. As usual, the lower end is 0 where k = 0, and the upper end is 1 where k = n.

    Reference:
        Brown, Cai, DasGupta, *Interval Estimation for a Binomial Proportion*, Statistical Science
        2001.
    """
    confidence_level("confidence", confidence)
    hits = np.asarray(positives, np.float64)
    # Rounding of sums can make the number of misses slightly negative, where Beta is undefined.
    misses = np.maximum(np.asarray(trials, np.float64) - hits, 0.0)
    # Either number being NaN makes the misses NaN, and any quantile.
    lower, upper = (
        betaincinv(hits + 0.5, misses + 0.5, (1 + sign * confidence) / 2) for sign in (-1, 1)
    )
    is_known = ~np.isnan(misses)
    return np.where(is_known & (hits <= 0), 0.0, lower), np.where(misses <= 0, 1.0, upper)
