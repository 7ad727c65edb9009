"""The area under the ROC curve of whole arrays, from the ranks of the scores."""

from __future__ import annotations

import numpy as np


def rank_auc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Probability that a positive has a higher score than a negative; ties count one half.

    `Σ w⁺ w⁻ [s⁺ > s⁻] + ½ [s⁺ = s⁻]` over `Σ w⁺ w⁻`, with weights w y and w (1 - y), for scores of
    any unit. NaN if one class has no weight, or a score is NaN.

    Example:
        >>> rank_auc(np.array([0, 1, 0, 1]), np.array([600.0, 700.0, 650.0, 650.0]))
        0.875
    """
    if np.isnan(scores).any():
        return float("nan")
    weights = np.ones(len(labels)) if weights is None else weights
    # Sum both classes by distinct score. Each positive then beats all negatives below, and half of
    # the negatives at its score: the Mann-Whitney statistic by one sort, without pairs.
    distinct, place = np.unique(scores, return_inverse=True)
    positive, negative = (
        np.bincount(place, weights * share, minlength=len(distinct))
        for share in (labels, 1 - labels)
    )
    below = np.cumsum(negative) - negative
    total = positive.sum() * negative.sum()
    return float(positive @ (below + 0.5 * negative) / total) if total > 0 else float("nan")
