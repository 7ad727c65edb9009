"""Scores of the mean prediction: calibration ratio and normalized entropy."""

from __future__ import annotations

from keras import ops

from keras_calibration._typing import Tensor


def calibration_ratio(predicted: Tensor, observed: Tensor) -> Tensor:
    """Sum of the predictions over sum of the labels: `Σ w p / Σ w y`.

    Args:
        predicted: `Σ w p`, any shape.
        observed: `Σ w y`, of the same shape.

    Returns:
        The ratio, of that shape. NaN if there is no positive label.

    Example:
        >>> float(calibration_ratio(6.0, 4.0))
        1.5
    """
    return ops.where(observed > 0, ops.divide_no_nan(predicted, observed), float("nan"))


def normalized_entropy(loss_sum: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Mean log loss over the entropy of the mean label, the log loss of the best constant.

    With n = Σ w y + Σ w (1 - y) and the rate r = Σ w y / n, it is
    `(Σ w loss / n) / -(r log r + (1 - r) log(1 - r))`.

    Args:
        loss_sum: `Σ w loss`, log losses in nats, any shape.
        positives: `Σ w y`, of the same shape.
        negatives: `Σ w (1 - y)`, of the same shape.

    Returns:
        The ratio, of that shape. NaN if all labels are 0 or all are 1.

    Example:
        >>> import math
        >>> round(float(normalized_entropy(2 * math.log(2), 1.0, 1.0)), 6)
        1.0

    Reference:
        He et al., *Practical Lessons from Predicting Clicks on Ads at Facebook*, ADKDD 2014, eq. 3.
    """
    both = ops.logical_and(ops.greater(positives, 0), ops.greater(negatives, 0))
    # -log r and -log(1 - r) from both counts: r and 1 - r would be rounded where one is close to 1.
    entropy_sum = positives * ops.log1p(ops.where(both, negatives / positives, 1.0)) + (
        negatives * ops.log1p(ops.where(both, positives / negatives, 1.0))
    )
    return ops.where(both, loss_sum / entropy_sum, float("nan"))
