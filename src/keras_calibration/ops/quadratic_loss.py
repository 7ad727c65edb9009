"""Sums of residuals that give the mean squared error after a correction of the predictions.

With the residual `r = y - p`, the squared error of `c + s p` is `(r - c - (s - 1) p)²`: second
moments of r and p are all that it takes, and they add up over batches, replicas and shards. They
are moments of the residuals, not of the labels, so that no digit is lost however large y and p are
beside r. Digits are lost where the mean residual is large beside the spread of the residuals, and
for the slope where the mean prediction is large beside the spread of the predictions: the relative
error grows with the square of that ratio (from 1e-16 in float64).
"""

from typing import Any

import keras
from keras import ops

# A share of the mean square of the predictions; with less variance than this, rounding errors in
# the sums would make up a slope.
_SMALLEST_VARIANCE = 1e-11
_SMALLEST_VARIANCE_FLOAT32 = 1e-5


def residual_sums(labels: Any, predictions: Any, weights: Any, group: Any, num_groups: int) -> Any:
    """Of each group: `Σ w`, `Σ w r`, `Σ w r²`, `Σ w p`, `Σ w p r`, `Σ w p²`, with `r = y - p`.

    Args:
        labels: Labels y (n,), real.
        predictions: Predictions p (n,), of the same dtype. A row that is not finite makes its
            group NaN.
        weights: Weights w (n,), of the same dtype, not negative.
        group: The group of each row (n,), int32 in [0, num_groups).
        num_groups: Number of groups.

    Returns:
        A tensor (num_groups, 6).

    Example:
        >>> sums = residual_sums(ops.array([3.0, 1.0]), ops.ones(2), ops.ones(2), [0, 0], 1)
        >>> print(sums.numpy())
        [[2. 2. 4. 2. 2. 2.]]
    """
    residual = labels - predictions
    residual = ops.where(ops.isfinite(residual), residual, float("nan"))
    group = ops.convert_to_tensor(group, "int32")

    def sums_of(*products: Any) -> Any:
        rows = ops.stack([weights * product for product in products], axis=1)
        return ops.segment_sum(rows, group, num_segments=num_groups)

    # About the batch's mean, so that the errors of adding up rows are those of the spread. Each
    # group has its own: rows of another group, far away, would take its last digits.
    weight_and_first = sums_of(ops.ones_like(predictions), predictions)
    centre = ops.divide_no_nan(weight_and_first[:, 1], weight_and_first[:, 0])
    offset = predictions - ops.take(centre, group)
    sums = sums_of(1, residual, residual * residual, offset, offset * residual, offset * offset)
    weight, first, second, shift, mixed, square = (sums[:, column] for column in range(6))
    prediction = shift + centre * weight
    columns = [weight, first, second, prediction, mixed + centre * first]
    return ops.stack([*columns, square + centre * (shift + prediction)], axis=1)


def mean_residual(sums: Any) -> Any:
    """The bias that makes the mean squared error of `p + c` least: `c = Σ w r / Σ w`.

    Args:
        sums: What `residual_sums` returns, added up over all batches (g, 6).

    Returns:
        Biases (g,); NaN where there is no row.

    Example:
        >>> sums = residual_sums(ops.array([3.0, 1.0]), ops.ones(2), ops.ones(2), [0, 0], 1)
        >>> float(mean_residual(sums)[0])
        1.0
    """
    return sums[:, 1] / sums[:, 0]


def least_squares_line(sums: Any) -> tuple[Any, Any]:
    """The line that makes the mean squared error of `c + s p` least.

    Args:
        sums: What `residual_sums` returns, added up over all batches (g, 6).

    Returns:
        Biases c (g,) and slopes s (g,). NaN where no slope is determined: no row, or predictions
        that are all equal as far as the sums tell (their standard deviation is below 3e-6 of their
        root mean square in float64, 3e-3 in float32).

    Example:
        >>> labels, predictions = ops.array([1.0, 3.0, 5.0]), ops.array([0.0, 1.0, 2.0])
        >>> sums = residual_sums(labels, predictions, ops.ones(3), [0, 0, 0], 1)
        >>> bias, slope = least_squares_line(sums)
        >>> round(float(bias[0]), 6), round(float(slope[0]), 6)
        (1.0, 2.0)
    """
    weight, first, _, prediction, mixed, square = (sums[:, column] for column in range(6))
    mean = prediction / weight
    variance = square - mean * prediction
    in_float64 = keras.backend.standardize_dtype(sums.dtype) == "float64"
    smallest = _SMALLEST_VARIANCE if in_float64 else _SMALLEST_VARIANCE_FLOAT32
    determined = variance > smallest * square
    excess = (mixed - mean * first) / ops.where(determined, variance, float("nan"))
    return first / weight - excess * mean, 1 + excess


def squared_error_sum(sums: Any, bias: Any, slope: Any) -> Any:
    """`Σ w (y - c - s p)²` of each group at its own bias c and slope s.

    Args:
        sums: What `residual_sums` returns, added up over all batches (g, 6).
        bias: Biases c (g,).
        slope: Slopes s (g,), 1 for a bias alone.

    Returns:
        Sums (g,), not negative; NaN where the bias or the slope is.
    """
    weight, first, second, prediction, mixed, square = (sums[:, column] for column in range(6))
    excess = slope - 1
    mean = ops.divide_no_nan(prediction, weight)
    # About the mean prediction: there the two corrections do not mix.
    at_mean = bias + excess * mean
    total = second - at_mean * (2 * first - at_mean * weight)
    total = total - 2 * excess * (mixed - mean * first)
    total = total + ops.square(excess) * (square - mean * prediction)
    # Rounding may leave a perfect fit just below 0; the comparison keeps NaN.
    return ops.where(total < 0, 0.0, total)
