"""Softplus that never falls, not even by rounding."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from keras_calibration._ops.custom_gradients import with_gradient
from keras_calibration._typing import Tensor

# Below, softplus is 0 or at most 1e-56; above, it is l. In LiteRT, it overflows from 88 on.
_START, _END = -128.0, 64.0
# Grid points per unit of the logit. A line between points h apart is off by at most h²/8 times
# the largest second derivative, ¼: with h² ≤ 2 ε, by ε/16.
_POINTS_PER_UNIT = {"float32": 2.0**11, "float64": 2.0**26}


def increasing_softplus(logits: Tensor) -> Tensor:
    """Softplus, `log(1 + exp(l))`; of two logits, the higher one never has the lower softplus.

    The softplus of a library is exact except for a few bits, so that neighbouring logits may change
    order. This function computes it only at points of a grid, between which it rises by far more
    than its rounding errors. Between two points, it is a straight line, whose three operations
    preserve the order when they round: the difference of the two points is exact, because they are
    less than a factor of 2 apart. The line is above softplus by less than ε/16.

    Args:
        logits: Logits l, float32 or float64, any shape.

    Returns:
        A tensor of the shape and dtype of `logits`. Its gradient is the sigmoid.

    Example:
        >>> print(increasing_softplus(ops.array([-200.0, 0.0, 200.0])).numpy().round(4))
        [  0.       0.6931 200.    ]
    """
    return with_gradient(_interpolate_softplus)(ops.convert_to_tensor(logits))


def _interpolate_softplus(logits: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
    per_unit = _POINTS_PER_UNIT[keras.backend.standardize_dtype(logits.dtype)]
    # The logit in steps of the grid. A power of 2 of them makes a unit, so that nothing rounds.
    position = ops.clip(logits, _START, _END) * per_unit
    below = ops.floor(position)
    left, right = (ops.softplus(point * (1 / per_unit)) for point in (below, below + 1))
    between = left + (position - below) * (right - left)

    def gradient(*upstream: Tensor, **by_keyword: Tensor) -> Tensor:
        (by_softplus,) = upstream or by_keyword.values()
        # The derivative of softplus itself: autodiff would take the slope of the line.
        return by_softplus * ops.sigmoid(logits)

    # The comparison keeps NaN.
    return ops.where(logits <= _END, between, logits), gradient
