"""Bounds on the sums of a period or segment if the predictions are right.

Right predictions mean that each label is 1 with its row's predicted probability p.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from calibration_records.monitoring.moment_losses import MomentLosses

# Accuracy of the logit summary, in nats a row.
_ROUNDING = 1e-8


def rate_factors(
    positives: ArrayLike, predicted: ArrayLike, squares: ArrayLike, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Confidence intervals of observed / predicted rates; the lower end is 0 without positives.

    If the true probabilities are `r p`, the number of positives has the mean `r m`, m = Σ p. It is
    treated as binomial with `m² / Σ p²` trials, which gives the right mean and variance and is
    exact if all p are equal. The interval for r is that of Clopper and Pearson.

    Example:
        >>> low, high = rate_factors([30], [20.0], [0.4], 0.95)  # 1000 rows of p = 0.02
        >>> low.round(2), high.round(2)
        (array([1.02]), array([2.13]))

    Reference:
        Clopper and Pearson, *The use of confidence or fiducial limits illustrated in the case of
        the binomial*, Biometrika 1934.
    """
    positives, predicted, squares = (
        np.asarray(sums, np.float64) for sums in (positives, predicted, squares)
    )
    tail = (1 - confidence) / 2
    share = squares / predicted  # the probability of a trial
    trials = predicted / share
    # Trials are fewer than rows where p varies: there may be more positives than trials.
    misses = np.maximum(trials - positives, 0.0)
    low = betaincinv(np.maximum(positives, 1e-9), misses + 1, tail)
    high = betaincinv(positives + 1, np.maximum(misses, 1e-9), 1 - tail)
    return np.where(positives > 0, low / share, 0.0), high / share


def loss_bounds(losses: MomentLosses, confidence: float) -> tuple[float, float, float, float]:
    """The Calibrated Log Loss of some rows, its expectation and its bounds if `σ(l + c)` is right.

    All four in nats a row; NaN if all labels are equal or there are no rows. The bias c makes the
    sum of the predictions equal the sum of the labels. The expected loss is the mean entropy of
    `p = σ(l + c)`. The loss differs from it by `Σ (p - y) (x - x̄) / n` with x = l + c and any
    constant x̄, since the residuals sum to 0. This has the mean 0 and a variance
    `V = Σ p (1 - p) (x - x̄)²` that is least at the mean of x weighted by p (1 - p). Bernstein's
    inequality bounds it at any rate of positives: with `L = log(2 / (1 - confidence))` and b the
    largest `|x - x̄|`, `|Σ (p - y) (x - x̄)| ≤ sqrt(2 V L + (b L / 3)²) + b L / 3`.

    A loss above its bounds: the predictions are over-confident, for example because a feature
    broke. A loss below: they are under-confident.

    Reference:
        Boucheron, Lugosi, Massart, *Concentration Inequalities*, 2013, theorem 2.10.
    """
    bias = losses.bias
    loss = losses.loss(bias)
    num_rows = float(losses.weights.sum())
    if not np.isfinite(loss):
        return (np.nan,) * 4
    entropy, middle, variance = losses.entropy(bias)
    means = losses.means[losses.weights > 0] + bias
    largest = float(np.max(np.abs(means - middle)))
    level = np.log(2 / (1 - confidence))
    third = largest * level / 3
    # Rounding can make it slightly negative if all predictions are equal.
    variance = max(variance, 0.0)
    half_width = (np.sqrt(2 * variance * level + third**2) + third) / num_rows + _ROUNDING
    mean = entropy / num_rows
    return loss / num_rows, mean, float(mean - half_width), float(mean + half_width)
