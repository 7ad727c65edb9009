"""What chance alone does to the sums of a period or a segment: exact bounds, for many at once.

NumPy functions of sums; where the predictions are right, a label is 1 with its row's probability p.
"""

from typing import Any

import numpy as np
from keras import ops
from scipy.special import betaincinv

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

# What the summary of the logits is right to, in nats a row.
_ROUNDING = 1e-8


def rate_factors(
    positives: Any, predicted: Any, squares: Any, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the factor by which observed rates are above the predicted ones.

    The number of positives K of rows with the probabilities `r p` has the mean `r m`, m = Σ p. It
    is taken for a binomial variable of `m² / Σ p²` trials: of the right mean and variance, exact
    where p is the same in all rows. The ends are Clopper's and Pearson's: the factors r at which so
    many or so few positives have the probability `(1 - confidence) / 2`.

    Args:
        positives: Numbers of positives k (cells,).
        predicted: Σ p (cells,), above 0.
        squares: Σ p² (cells,).
        confidence: Probability that an interval holds the factor, at least, in (0, 1).

    Returns:
        Lower and upper ends (cells,); the lower is 0 where there is no positive.

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


def loss_bounds(moments: Any, confidence: float) -> tuple[float, float, float, float]:
    """The Calibrated Log Loss of some rows, and what it would be if `σ(l + c)` were right.

    c is the bias that makes the predictions add up to the labels. The loss less its expectation,
    the mean entropy of `σ(l + c)`, is `Σ (p - y) (x - x̄) / n` with x = l + c, x̄ any constant (the
    residuals add up to 0): of mean 0 and variance `V = Σ p (1 - p) (x - x̄)²`, least at the mean of
    x with the weights p (1 - p). Bernstein's inequality bounds it at any click rate: with
    `L = log(2 / (1 - confidence))` and b the largest `|x - x̄|`,
    `|Σ (p - y) (x - x̄)| ≤ sqrt(2 V L + (b L / 3)²) + b L / 3`.

    A loss above its bounds means that the predictions no longer tell rows apart as they claim to:
    a feature that broke, though the mean is right. A loss below says that they are too timid.

    Args:
        moments: What `ops.logit_moments` returns for one group of rows (418, 8).
        confidence: Probability that the bounds hold, at least, in (0, 1).

    Returns:
        The loss (in-sample, `CalibratedLogLoss(num_folds=1)`), its expectation, and the lower and
        upper bounds, in nats a row. NaN where the rows are of one class or there is none.

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
    # Rounding leaves it just below 0 where all predictions are equal.
    variance = np.maximum(variance, 0.0)
    half_width = (np.sqrt(2 * variance * level + third**2) + third) / num_rows + _ROUNDING
    mean = float(expected) / num_rows
    return float(loss) / num_rows, mean, mean - half_width, mean + half_width


def _sums(moments: Any) -> tuple[Any, ...]:
    """Sums of loss and entropy, x̄ and V; by bin: the mean of x, and the weight."""
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
