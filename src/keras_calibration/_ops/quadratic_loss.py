"""Sums of residuals that give the mean squared error after a bias of the predictions is corrected.

With the residual `r = y - p`, the squared error of `p + c` is `(r - c)²`. So the moments of r are
enough, and they add up over batches, replicas and shards. They are moments of the residuals, not of
the labels: no digits are lost, however large y and p are. If the mean residual is large compared
with the standard deviation of the residuals, digits are lost: in float64, the relative error is
about 1e-16 times the square of that ratio.
"""

from __future__ import annotations

from keras import ops

from keras_calibration._typing import Tensor


def residual_sums(
    labels: Tensor, predictions: Tensor, weights: Tensor, group: Tensor, num_groups: int
) -> Tensor:
    """`Σ w`, `Σ w r` and `Σ w r²` of each group, with `r = y - p`, shape (num_groups, 3)."""
    residual = labels - predictions
    residual = ops.where(ops.isfinite(residual), residual, float("nan"))
    first = weights * residual
    rows = ops.stack([weights, first, first * residual], axis=1)
    return ops.segment_sum(rows, ops.convert_to_tensor(group, "int32"), num_segments=num_groups)


def mean_residual(sums: Tensor) -> Tensor:
    """The bias (g,) that minimises the mean squared error of `p + c`: `c = Σ w r / Σ w`."""
    return sums[:, 1] / sums[:, 0]


def squared_error_sum(sums: Tensor, bias: Tensor) -> Tensor:
    """`Σ w (y - p - c)²` of each group at its bias c, shape (g,)."""
    weight, first, second = (sums[:, column] for column in range(3))
    # Σ w (r - c)² = Σ w r² - 2 c Σ w r + c² Σ w.
    total = second - bias * (2 * first - bias * weight)
    # Rounding can make the error of a perfect fit slightly negative. The comparison keeps NaN.
    return ops.where(total < 0, 0.0, total)
