"""Positions of the knots of a piecewise-linear curve, computed before training."""

from __future__ import annotations

import numpy as np

# Between closer knots, the data would not determine the slope.
SMALLEST_GAP = 0.01


def sigmoid_knots(num_knots: int) -> np.ndarray:
    """K knots evenly spaced in probability: `σ(a_k) = k / (K + 1)`, k = 1 … K.

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, section 4.1.
    """
    probabilities = np.arange(1, num_knots + 1) / (num_knots + 1)
    return np.log(probabilities) - np.log1p(-probabilities)


def quantile_knots(
    values: np.ndarray, num_knots: int, weights: np.ndarray | None = None, smallest_gap: float = 0.0
) -> np.ndarray:
    """K knots at the weighted quantiles `(k - ½) / K`, at least `smallest_gap` apart."""
    values = np.asarray(values, np.float64)
    # Quantiles by the inverse of the cumulative weight.
    order = np.argsort(values, kind="stable")
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    cumulative = np.cumsum(weights[order])
    levels = (np.arange(num_knots) + 0.5) / num_knots * cumulative[-1]
    return _spread(values[order[np.searchsorted(cumulative, levels)]], smallest_gap)


def balanced_knots(
    logits: np.ndarray, labels: np.ndarray, num_knots: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """K knots at class-balanced quantiles: positives and negatives have half the mass each.

    With few positives, plain quantiles put nearly every knot where there are no positives, and the
    curve is coarse exactly where the loss depends on it.
    """
    labels = np.asarray(labels, np.float64)
    weights = np.ones_like(labels) if weights is None else np.asarray(weights, np.float64)
    positives = weights * labels
    negatives = weights * (1 - labels)
    # The mean of both class distributions.
    balanced = positives / positives.sum() + negatives / negatives.sum()
    return quantile_knots(logits, num_knots, balanced, SMALLEST_GAP)


def numeric_knots(values: np.ndarray, num_knots: int) -> np.ndarray:
    """K knots for a numeric column: half at quantiles of the rows, half of the distinct values.

    Quantiles of the rows follow the bulk of a skewed column, quantiles of the distinct values its
    long tail. Missing values (NaN) are left out. If there are fewer distinct values than knots, the
    last knot is repeated, which has no effect.
    """
    present = np.asarray(values, np.float64)
    # Layers keep knots in float32, where larger values are infinite. NaN fails the comparison too.
    present = present[np.abs(present) <= np.finfo(np.float32).max]
    if not present.size:
        return np.zeros(num_knots)
    distinct = np.unique(present)
    if len(distinct) > num_knots:
        num_distinct = num_knots // 2
        # The smallest and the largest value are always knots: outside them the encoding is
        # constant.
        places = np.linspace(0, len(distinct) - 1, num_distinct).round().astype(int)
        row_knots = quantile_knots(present, num_knots - num_distinct)
        distinct = np.unique(np.concatenate([distinct[places], row_knots]))
    return np.concatenate([distinct, np.full(num_knots - len(distinct), distinct[-1])])


def separate_quantile_knots(
    values: np.ndarray, num_knots: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """At most K distinct knots at quantiles: a value with more rows than its share takes one knot.

    With ties, several quantiles can be one value. There are K knots nevertheless, unless there are
    fewer distinct values: then each value is a knot. Missing values (NaN), infinite values and
    those without weight are left out.

    Example:
        >>> separate_quantile_knots(np.array([0.0] * 90 + [1, 2, 3, 4, 5, 6, 7, 8]), 4)
        array([0., 2., 5., 8.])
    """
    weights = np.ones(len(values)) if weights is None else weights
    used = np.isfinite(values) & (weights > 0)
    distinct, value_of_row = np.unique(values[used], return_inverse=True)
    if len(distinct) <= num_knots:
        return distinct
    masses = np.bincount(value_of_row, weights[used])
    heaviest = np.sort(masses)[::-1][:num_knots]
    # Heavy values take one knot each, and the others share the remaining knots equally. The first
    # value that is not heavier than such a share ends the heavy ones; their mass is cut to the
    # share.
    shares = (masses.sum() - np.cumsum(heaviest) + heaviest) / np.arange(num_knots, 0, -1)
    masses = np.minimum(masses, shares[np.argmax(heaviest <= shares)])
    ends = np.cumsum(masses)
    levels = np.linspace(0.5 * masses[0], ends[-1] - 0.5 * masses[-1], num_knots)
    places = np.searchsorted(ends, levels, side="right")
    order = np.arange(num_knots)
    # Places must differ, even if rounding lets two levels meet: `place - order` must not fall.
    places = np.maximum.accumulate(places - order) + order
    return distinct[np.minimum(places, len(distinct) - num_knots + order)]


def _spread(knots: np.ndarray, smallest_gap: float) -> np.ndarray:
    """Moves knots up so that each is at least `smallest_gap` above the one before."""
    # Layers keep knots in float32, where large knots need wider gaps.
    gap = max(smallest_gap, 1e-5 * np.abs(knots).max()) if smallest_gap else 0.0
    offsets = gap * np.arange(len(knots))
    # Knots at least a gap apart do not fall when k gaps are subtracted from the k-th; a running
    # maximum mends the others.
    return np.maximum.accumulate(knots - offsets) + offsets
