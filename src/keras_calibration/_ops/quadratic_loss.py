"""Sums of residuals that give the mean squared error after a correction of the predictions.

With the residual `r = y - p`, the squared error of `c + s p` is `(r - c - (s - 1) p)²`. Second
moments of r and p are therefore enough, and they add up over batches, replicas and shards. They are
moments of the residuals, not of the labels, so no digits are lost however large y and p are
compared to r. Digits are lost where the mean residual is large compared to the standard deviation
of the residuals, and for the slope where the mean prediction is large compared to the standard
deviation of the predictions: the relative error is about 1e-16 times the square of that ratio in
float64.
"""

from __future__ import annotations

import keras
from keras import ops

from keras_calibration._typing import Tensor

# As a share of the mean square of the predictions: with less variance than this, the slope would
# consist of rounding errors.
_SMALLEST_VARIANCE = 1e-11
_SMALLEST_VARIANCE_FLOAT32 = 1e-5


def residual_sums(
    labels: Tensor, predictions: Tensor, weights: Tensor, group: Tensor, num_groups: int
) -> Tensor:
    """`Σ w`, `Σ w r`, `Σ w r²`, `Σ w p`, `Σ w p r`, `Σ w p²` of each group, with `r = y - p`."""
    residual = labels - predictions
    residual = ops.where(ops.isfinite(residual), residual, float("nan"))
    group = ops.convert_to_tensor(group, "int32")

    def sums_of(*products: Tensor) -> Tensor:
        rows = ops.stack([weights * product for product in products], axis=1)
        return ops.segment_sum(rows, group, num_segments=num_groups)

    # About the mean of each group in the batch, so that rounding errors are relative to the spread
    # of its predictions, not to their size.
    weight_and_first = sums_of(ops.ones_like(predictions), predictions)
    centre = ops.divide_no_nan(weight_and_first[:, 1], weight_and_first[:, 0])
    offset = predictions - ops.take(centre, group)
    sums = sums_of(1, residual, residual * residual, offset, offset * residual, offset * offset)
    weight, first, second, shift, mixed, square = (sums[:, column] for column in range(6))
    prediction = shift + centre * weight
    columns = [weight, first, second, prediction, mixed + centre * first]
    return ops.stack([*columns, square + centre * (shift + prediction)], axis=1)


def mean_residual(sums: Tensor) -> Tensor:
    """The bias (g,) that minimises the mean squared error of `p + c`: `c = Σ w r / Σ w`."""
    return sums[:, 1] / sums[:, 0]


def least_squares_line(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Bias c and slope s, each (g,), that minimise the mean squared error of `c + s p`.

    NaN where the slope is undetermined: no rows, or predictions that are all equal as far as the
    sums show (a standard deviation below 3e-6 of their root mean square in float64, 3e-3 in
    float32).
    """
    weight, first, _, prediction, mixed, square = (sums[:, column] for column in range(6))
    mean = prediction / weight
    variance = square - mean * prediction
    in_float64 = keras.backend.standardize_dtype(sums.dtype) == "float64"
    smallest = _SMALLEST_VARIANCE if in_float64 else _SMALLEST_VARIANCE_FLOAT32
    determined = variance > smallest * square
    excess = (mixed - mean * first) / ops.where(determined, variance, float("nan"))
    return first / weight - excess * mean, 1 + excess


def squared_error_sum(sums: Tensor, bias: Tensor, slope: Tensor) -> Tensor:
    """`Σ w (y - c - s p)²` of each group at its own bias c and slope s, shape (g,)."""
    weight, first, second, prediction, mixed, square = (sums[:, column] for column in range(6))
    excess = slope - 1
    mean = ops.divide_no_nan(prediction, weight)
    # About the mean prediction, where bias and slope do not interact.
    at_mean = bias + excess * mean
    total = second - at_mean * (2 * first - at_mean * weight)
    total = total - 2 * excess * (mixed - mean * first)
    total = total + ops.square(excess) * (square - mean * prediction)
    # Rounding can make the error of a perfect fit slightly negative. The comparison keeps NaN.
    return ops.where(total < 0, 0.0, total)
