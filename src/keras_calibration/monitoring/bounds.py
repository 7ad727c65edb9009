"""Bounds on the sums of a period or segment if the predictions are right.

Right predictions mean that each label is 1 with its row's predicted probability p.
"""

from __future__ import annotations

import numpy as np
from keras import ops
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from keras_calibration._typing import Tensor
from keras_calibration.ops.compiled import compiled
from keras_calibration.ops.logit_moments import (
    LOGITS,
    bias_root,
    bin_means,
    by_group,
    log_loss_and_weight,
    sums,
    terms,
    terms_at,
)

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


def loss_bounds(moments: Tensor, confidence: float) -> tuple[float, float, float, float]:
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
    parts = _compiled_sums(ops.convert_to_tensor(moments))
    loss, expected, middle, variance, values, weights = (
        np.asarray(part, np.float64) for part in parts
    )
    num_rows = float(weights.sum())
    if not np.isfinite(loss):
        return (np.nan,) * 4
    largest = float(np.max(np.abs(values[weights > 0] - middle)))
    level = np.log(2 / (1 - confidence))
    third = largest * level / 3
    # Rounding can make it slightly negative if all predictions are equal.
    variance = np.maximum(variance, 0.0)
    half_width = (np.sqrt(2 * variance * level + third**2) + third) / num_rows + _ROUNDING
    mean = float(expected) / num_rows
    return float(loss) / num_rows, mean, mean - half_width, mean + half_width


def _sums(moments: Tensor) -> tuple[Tensor, ...]:
    """Sums of loss and entropy, x̄ and V; for each bin the mean of x and the weight."""
    summary = by_group(moments)
    bias = bias_root(summary)
    at = terms_at(*terms(summary), bias)
    curvature = at.weight * at.curvature
    x = ops.cast(LOGITS, summary.dtype) + bias[:, None]
    # The entropy of a row is `softplus(-|x|) + |x| σ(-|x|)`, of nodes alone.
    is_node = at.curvature > 0
    entropy = at.weight * ops.where(is_node, at.loss - x * at.slope, 0.0)
    entropy, total, first = sums([entropy, curvature, curvature * x])
    middle = first / total
    variance = ops.sum(curvature * ops.square(x - middle[:, None]))
    weights, means = bin_means(summary)
    loss, _ = log_loss_and_weight(summary, bias)
    return loss[0], entropy[0], middle[0], variance, means[0] + bias, weights[0]


_compiled_sums = compiled(_sums)
