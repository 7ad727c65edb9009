"""MomentLosses: log loss, entropy and bias of moments of logits, in NumPy."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._logit_moments import (
    CENTRES,
    HALF_WIDTHS,
    IS_NODE,
    LARGEST_BIAS,
    LARGEST_NUM_STEPS,
    LOGITS,
    NUM_BINS,
    NUM_COLUMNS,
    TO_TERMS,
    TOLERANCE,
    BiasSearch,
    TermsAt,
    log_loss_and_weight,
)


def _total(parts: list[np.ndarray]) -> list[np.ndarray]:
    return [np.sum(part, axis=-1) for part in parts]


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
        summary = np.asarray(moments, np.float64).reshape(1, NUM_BINS, NUM_COLUMNS)
        # As `_logit_moments.terms`; for one summary, a product of matrices takes a tenth as long.
        of_0, of_1 = ((summary @ table.T).reshape(1, -1) for table in TO_TERMS)
        self._terms = of_0, of_1
        negatives, positives, negative_offsets, positive_offsets, *_ = summary[0].T
        self._negatives, self._positives = negatives.sum(), positives.sum()
        self.weights = negatives + positives
        offsets = np.zeros(NUM_BINS)
        np.divide(
            negative_offsets + positive_offsets, self.weights, out=offsets, where=self.weights != 0
        )
        self.means = CENTRES[:, 0] + HALF_WIDTHS[:, 0] * offsets

    @cached_property
    def bias(self) -> float:
        """The bias c at which predictions sum to labels; NaN if rows do not determine it."""
        if not (self._negatives > 0 and self._positives > 0):
            return np.nan
        start = (0.0, -LARGEST_BIAS, LARGEST_BIAS, LARGEST_BIAS, 0.0)
        sums = (self._negatives, self._positives, self.weights[0], self.weights[-1])
        search = BiasSearch(*(np.array([value]) for value in (*start, *sums)))
        with np.errstate(divide="ignore", invalid="ignore"):
            for _ in range(LARGEST_NUM_STEPS):
                search = search.improved(np, _total, self._terms, "float64")
                if not search.moved > TOLERANCE:
                    break
        return float(search.found(np)[0])

    def loss(self, bias: float) -> float:
        """`Σ` log loss of `σ(l + c)`; NaN where the bins are too wide for a bias."""
        losses, _ = log_loss_and_weight(np, _total, self._terms, np.array([bias]))
        return float(losses[0])

    def entropy(self, bias: float) -> tuple[float, float, float]:
        """Of `p = σ(x)`, x = l + c: the sum of the entropies; x̄ weighted by p (1 - p); and V.

        V is `Σ p (1 - p) (x - x̄)²`. The entropy of a row is `softplus(-|x|) + |x| σ(-|x|)`.
        """
        at, x = TermsAt(np, self._terms, np.array([bias])), LOGITS + bias  # of nodes
        entropies = np.where(IS_NODE, np.log1p(at.tail) + at.side * x * at.rarer, 0.0)
        curvature = (at.weight * at.curvature)[0]
        middle = float(curvature @ x / curvature.sum())
        (entropy,) = _total([at.weight * entropies])
        return float(entropy[0]), middle, float(curvature @ (x - middle) ** 2)
