"""The period whose bias corrects each period."""

from __future__ import annotations

from keras import ops

from keras_calibration._typing import Tensor


def earlier_period(weights: Tensor) -> Tensor:
    """For each period, the nearest earlier one with a positive weight, or -1 if there is none."""
    weights = ops.convert_to_tensor(weights)
    periods = ops.arange(weights.shape[0], dtype="int32")
    candidate = ops.logical_and(periods[None, :] < periods[:, None], weights[None, :] > 0)
    return ops.max(ops.where(candidate, periods[None, :], -1), axis=1)
