"""MomentLosses: log loss, entropy and bias of a summary of logits, in NumPy.

`_ops.logit_moments` has the method, and computes the same on tensors, of many groups at once and as
a part of a training step. A monitor has one group at a time, and runs without Keras.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._logit_bins import (
    CENTRE,
    CENTRES,
    HALF_WIDTHS,
    HAS_BIAS,
    IS_CENTRE,
    IS_LINEAR,
    IS_NODE,
    IS_OPEN,
    LARGEST_LOGIT,
    LOGITS,
    NUM_BINS,
    NUM_COLUMNS,
    REACH,
    TO_TERMS,
)

_LARGEST_BIAS, _LARGEST_NUM_STEPS, _TOLERANCE = 256.0, 100, 1e-13
_RELATIVE_ERROR, _ABSOLUTE_ERROR, _ROUNDING = 1e-6, 1e-12, 1e-15


class MomentLosses:
    """Log loss, entropy and bias of the rows of one summary.

    Args:
        moments: The summary (418, 8), as of `_ops.logit_moments`.

    Attributes:
        weights: The weight of each bin (418,).
        means: The mean logit of each bin.

    Example:
        >>> moments = np.zeros((418, 8))
        >>> moments[209, :2] = 75, 25  # 100 rows with the logit 1/8, of which 25 are positive
        >>> moments[209, 4:] = -100, 0, 100, 0  # their offsets are 0
        >>> losses = MomentLosses(moments)
        >>> round(losses.bias, 3), round(losses.loss(losses.bias) / 100, 4)
        (-1.224, 0.5623)
    """

    def __init__(self, moments: ArrayLike) -> None:
        summary = np.asarray(moments, np.float64).reshape(NUM_BINS, NUM_COLUMNS)
        self._of_0, self._of_1 = ((summary @ table.T).reshape(-1) for table in TO_TERMS)
        self.weights = summary[:, 0] + summary[:, 1]
        offsets = np.divide(
            summary[:, 2] + summary[:, 3],
            self.weights,
            out=np.zeros(NUM_BINS),
            where=self.weights != 0,
        )
        self.means = CENTRES[:, 0] + HALF_WIDTHS[:, 0] * offsets
        self._negatives, self._positives = summary[:, :2].sum(axis=0)

    @cached_property
    def bias(self) -> float:
        """The bias c at which predictions sum to labels; NaN if rows do not determine it."""
        if not (self._negatives > 0 and self._positives > 0):
            return np.nan
        low, high, bias = -_LARGEST_BIAS, _LARGEST_BIAS, 0.0
        for _ in range(_LARGEST_NUM_STEPS):
            slope, curvature = self._derivatives(bias)
            excess = float(slope.sum())
            low, high = (low, bias) if excess > 0 else (bias, high)
            # In logits of the mean, where the equation is nearly linear.
            ones, zeros = self._positives + excess, self._negatives - excess
            if min(ones, zeros) > 0 and curvature > 0:
                value = np.log(ones / zeros) - np.log(self._positives / self._negatives)
                proposed = bias - value / (curvature * (1 / ones + 1 / zeros))
            else:
                proposed = np.nan
            last, bias = bias, proposed if low <= proposed <= high else 0.5 * (low + high)
            if abs(bias - last) <= _TOLERANCE * (1 + abs(bias)):
                break
        if not abs(bias) < _LARGEST_BIAS - 1:
            return np.nan
        slope, curvature = self._derivatives(bias)
        beyond = self.weights[0] * np.exp(min(bias - LARGEST_LOGIT, 0.0))
        beyond += self.weights[-1] * np.exp(min(-bias - LARGEST_LOGIT, 0.0))
        is_known = beyond <= 1e-7 * curvature
        is_known &= 4 * _ROUNDING * np.abs(slope).sum() <= 1e-6 * curvature
        return float(bias) if is_known else np.nan

    def loss(self, bias: float) -> float:
        """`Σ` log loss of `σ(l + c)`; NaN where the bins are too wide for a bias."""
        weight, side, tail = self._terms_at(bias)
        losses = np.where(IS_NODE, np.log1p(tail), self._linear(side * self._x(bias)))
        curvature = np.minimum(tail * np.exp(np.abs(REACH)), 0.25)
        error = np.where(IS_OPEN, tail, curvature * np.abs(REACH) ** 6 / (2**5 * 720))
        rows = np.where(IS_CENTRE, self._of_0 + self._of_1, 0.0)
        loss = float(weight @ losses)
        is_right = rows @ error <= _RELATIVE_ERROR * loss + _ABSOLUTE_ERROR * rows.sum()
        return loss if is_right else np.nan

    def entropy(self, bias: float) -> tuple[float, float, float]:
        """Of `p = σ(x)`, x = l + c: the sum of the entropies; x̄ weighted by p (1 - p); and V.

        V is `Σ p (1 - p) (x - x̄)²`. The entropy of a row is `softplus(-|x|) + |x| σ(-|x|)`.
        """
        weight, side, tail = self._terms_at(bias)
        x = LOGITS + bias  # of nodes
        rarer = tail / (1 + tail)
        entropies = np.where(IS_NODE, np.log1p(tail) + side * x * rarer, 0.0)
        curvature = weight * np.where(IS_NODE, rarer / (1 + tail), 0.0)
        middle = float(curvature @ x / curvature.sum())
        return float(weight @ entropies), middle, float(curvature @ (x - middle) ** 2)

    def _derivatives(self, bias: float) -> tuple[np.ndarray, float]:
        """The terms of `Σ σ - Σ y`, the derivative of the loss by the bias, and its derivative."""
        weight, side, tail = self._terms_at(bias)
        rarer = tail / (1 + tail)
        slope = weight * HAS_BIAS * side * np.where(IS_NODE, -rarer, self._linear(np.ones(1)))
        return slope, float(weight @ np.where(IS_NODE, rarer / (1 + tail), 0.0))

    def _terms_at(self, bias: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights, sides and `exp(-side x)` of the terms, as `_ops.logit_moments.TermsAt`."""
        is_up = np.where(IS_OPEN, CENTRE, CENTRE + bias) > 0
        side = np.where(is_up, 1.0, -1.0)
        return np.where(is_up, self._of_0, self._of_1), side, np.exp(-side * self._x(bias))

    def _x(self, bias: float) -> np.ndarray:
        return LOGITS + HAS_BIAS * bias

    def _linear(self, values: np.ndarray) -> np.ndarray:
        return np.where(IS_LINEAR, values, 0.0)
