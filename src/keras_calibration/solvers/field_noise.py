"""What chance does to field sums: label draws from the predictions, and intervals of rates.

These are NumPy functions, for use outside compiled steps: they read what `field_sums` has added up.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_calibration.solvers.distributions import distributions

# Weights count as varying within a value when they add more than this to the squared mean weight:
# more than the rounding of their sums.
_ROUNDING = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-9}


def drawn_field_sums(sums: Any, num_draws: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Field sums as they would be if the predictions were right: labels drawn from them.

    A value's number of positives K is then a sum of independent draws of different probability (a
    Poisson-binomial variable). Its mean `m = Σ p` and its variance `v = Σ p - Σ p²` are known from
    the sums. It is drawn from a mixture of two binomials of the same mean, with `m² / Σ p²` trials
    rounded down and up, mixed so that the variance is v too. (Where rounding down leaves fewer
    trials than m, m itself rounded down or up by chance stands for that binomial.) This is exact
    where p is the same in all rows of a value, and with one or two rows; it is a whole number,
    never above the number of rows.

    With weights, the weight of the K positives is drawn from a gamma distribution of mean
    `K Σ w p / Σ p`, with the variance that makes that of the whole `Σ w² p (1 - p)`: nothing more
    is known of single weights. One weight for all rows is drawn exactly.

    Args:
        sums: What `field_sums` returns, added up over all batches (z, 7).
        num_draws: Number of draws.
        seed: Seed of the NumPy generator.

    Yields:
        Arrays (z, 3) in float64, one for each draw: `Σ w (y' - p)`, `Σ w y'`, `Σ w`, with y' the
        drawn labels.

    Raises:
        ValueError: If a sum is NaN.

    Example:
        >>> sums = [[0.0, 1.0, 4.0, 4.0, 0.75, 1.0, 0.25]]  # four rows with p = 1/4
        >>> [float(positives) for [[_, positives, _]] in drawn_field_sums(sums, 5)]
        [0.0, 2.0, 1.0, 2.0, 0.0]
    """
    sums = np.asarray(sums)
    rounding = _ROUNDING.get(sums.dtype, _ROUNDING[np.dtype(np.float64)])
    sums = sums.astype(np.float64)
    if np.isnan(sums).any():
        raise ValueError(
            "Labels cannot be drawn from sums with NaN in them. Received: NaN, from a label or "
            "prediction outside [0, 1], a NaN or a negative weight among the rows."
        )
    residual, positives, rows = sums[:, :3].T
    predicted = np.clip(positives - residual, 0.0, rows)
    there = (predicted > 0) & (sums[:, 5] > 0)
    variance, mean, squares = sums[there, 4:].T
    count_variance = np.maximum(mean - squares, 0.0)
    expected = predicted[there]
    weight = expected / mean
    draw_counts = _counts(mean, count_variance, squares)
    # What the weights add to the variance, for each positive. Where the likely rows are the light
    # ones, they can take from it instead: the deviation shrinks.
    added = (variance - weight**2 * count_variance) / mean
    varies, shrinks = added > rounding * weight**2, added < -rounding * weight**2
    spread = np.sqrt(variance[shrinks] / (weight**2 * count_variance)[shrinks])
    generator = np.random.default_rng(seed)
    for _ in range(num_draws):
        counts = draw_counts(generator)
        drawn = weight * counts  # exactly 0 where there is none
        drawn[shrinks] = expected[shrinks] + spread * (drawn - expected)[shrinks]
        scale = added[varies] / weight[varies]
        drawn[varies] = scale * generator.gamma(drawn[varies] / scale)
        result = np.stack([-predicted, np.zeros_like(rows), rows], axis=1)
        result[there, 0] += drawn
        result[there, 1] = drawn
        yield result


def _counts(
    mean: np.ndarray, variance: np.ndarray, squares: np.ndarray
) -> Callable[[np.random.Generator], np.ndarray]:
    """Draws of counts with this mean and variance, as said above; `squares` is Σ p²."""
    # So small a chance is Poisson's limit already; rounding can leave less than one trial, or m.
    trials = np.maximum(mean / np.maximum(squares / mean, 1e-9), np.maximum(mean, 1.0))
    fewer, more = np.floor(trials), np.ceil(trials)
    above = mean - np.floor(mean)
    is_two_points = fewer < mean
    fewer = np.where(is_two_points, more, fewer)
    least = np.where(is_two_points, above * (1 - above), mean * (1 - mean / fewer))
    largest = mean * (1 - mean / more)
    share_of_more = np.zeros_like(mean)
    np.divide(variance - least, largest - least, out=share_of_more, where=largest > least)

    def draw(generator: np.random.Generator) -> np.ndarray:
        takes_more = generator.random(mean.shape) < share_of_more
        num_trials = np.where(takes_more, more, fewer)
        binomial = generator.binomial(num_trials.astype(np.int64), mean / num_trials)
        two_points = np.floor(mean) + (generator.random(mean.shape) < above)
        return np.where(is_two_points & ~takes_more, two_points, binomial)

    return draw


def jeffreys_interval(
    positives: Any, trials: Any, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Jeffreys interval of a rate: quantiles of `Beta(k + ½, n - k + ½)`.

    Its mean coverage is close to `confidence` also at small rates, where the interval of the normal
    approximation fails. As usual, its lower end is 0 where k = 0 and its upper end 1 where k = n.

    Args:
        positives: Numbers of positives k, at least 0, not necessarily whole, any shape.
        trials: Numbers of rows n, at least k, of the same shape.
        confidence: Probability that the interval holds the rate, in (0, 1).

    Returns:
        Lower and upper ends, float64, of that shape. NaN where a number is NaN.

    Raises:
        ValueError: If `confidence` is not between 0 and 1.

    Example:
        >>> lower, upper = jeffreys_interval([0, 5], [10, 10])
        >>> lower.round(3), upper.round(3)
        (array([0.   , 0.224]), array([0.217, 0.776]))

    Reference:
        Brown, Cai, DasGupta, *Interval Estimation for a Binomial Proportion*, Statistical Science
        2001.
    """
    if not 0 < confidence < 1:
        raise ValueError(
            f"Argument `confidence` must be between 0 and 1, 0.95 for example. "
            f"Received: confidence={confidence!r}."
        )
    positives, trials = np.asarray(positives, np.float64), np.asarray(trials, np.float64)
    bad = np.isnan(positives) | np.isnan(trials)
    hits, misses = np.where(bad, 0.0, positives), np.where(bad, 0.0, trials - positives)
    # Rounding can leave a little less than no misses.
    beta = distributions().Beta(hits + 0.5, np.maximum(misses, 0.0) + 0.5)
    tail = np.float64(0.5 * (1 - confidence))
    lower = np.where(hits <= 0, 0.0, np.asarray(beta.quantile(tail)))
    upper = np.where(misses <= 0, 1.0, np.asarray(beta.quantile(1 - tail)))
    return np.where(bad, np.nan, lower), np.where(bad, np.nan, upper)
