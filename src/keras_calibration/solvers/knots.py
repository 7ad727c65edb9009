"""Where the knots of a piecewise-linear curve go: NumPy, on the host, once before training."""

from typing import Any

import numpy as np

# Knots closer than this make slopes that nothing in the data determines.
SMALLEST_GAP = 0.01


def sigmoid_knots(num_knots: int) -> np.ndarray:
    """Knots evenly spaced in probability: `σ(a_k) = k / (K + 1)`, k = 1 … K.

    Args:
        num_knots: K, at least 2.

    Returns:
        K increasing logits, float64.

    Example:
        >>> sigmoid_knots(3).round(4)
        array([-1.0986,  0.    ,  1.0986])

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, section 4.2.
    """
    probabilities = np.arange(1, num_knots + 1) / (num_knots + 1)
    return np.log(probabilities) - np.log1p(-probabilities)


def quantile_knots(
    values: np.ndarray, num_knots: int, weights: np.ndarray | None = None, smallest_gap: float = 0.0
) -> np.ndarray:
    """Knots at the weighted quantiles `(k - ½) / K`, k = 1 … K.

    Args:
        values: Real values (n,); NaN is not allowed.
        num_knots: K.
        weights: Weights of the rows (n,), not negative; ones by default.
        smallest_gap: Knots that ties bring closer than this are moved up to this distance.

    Returns:
        K knots, float64, increasing by at least `smallest_gap`.

    Example:
        >>> quantile_knots(np.arange(100.0), 4)
        array([12., 37., 62., 87.])
    """
    values = np.asarray(values, np.float64)
    order = np.argsort(values, kind="stable")
    sorted_values = values[order]
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    cumulative = np.cumsum(weights[order])
    levels = (np.arange(num_knots) + 0.5) / num_knots * cumulative[-1]
    positions = np.minimum(np.searchsorted(cumulative, levels), len(values) - 1)
    return _spread(sorted_values[positions], smallest_gap)


def balanced_knots(
    logits: np.ndarray, labels: np.ndarray, num_knots: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """Knots at class-balanced quantiles: positives and negatives hold half the mass each.

    With few positives, plain quantiles put nearly every knot where no positive is; the curve is
    then blind in just the region that the loss depends on.

    Args:
        logits: Uncalibrated logits (n,), finite.
        labels: Labels in [0, 1] (n,), not all 0 and not all 1.
        num_knots: K.
        weights: Weights of the rows (n,), not negative; ones by default.

    Returns:
        K increasing logits, float64, at least `SMALLEST_GAP` apart.

    Example:
        >>> logits = np.r_[np.linspace(-6, -4, 98), 0.0, 1.0]
        >>> balanced_knots(logits, np.r_[np.zeros(98), 1, 1], 4).round(1)
        array([-5.5, -4.5,  0. ,  1. ])
    """
    labels = np.asarray(labels, np.float64)
    weights = np.ones_like(labels) if weights is None else np.asarray(weights, np.float64)
    positives, negatives = weights * labels, weights * (1 - labels)
    balanced = positives / positives.sum() + negatives / negatives.sum()
    return quantile_knots(logits, num_knots, balanced, SMALLEST_GAP)


def numeric_knots(values: np.ndarray, num_knots: int) -> np.ndarray:
    """Knots for a numeric column: half at quantiles of the rows, half of the distinct values.

    Quantiles of the rows see where the rows are; quantiles of the distinct values see the long tail
    of a skewed column. Missing values (NaN) are left out; where there are fewer distinct values
    than knots, the last knot is repeated (a repeated knot has no effect).

    Args:
        values: Real values (n,), NaN for missing.
        num_knots: K.

    Returns:
        K knots, float64, not decreasing; zeros where every value is missing.

    Example:
        >>> numeric_knots(np.array([0.0, 0.0, 0.0, 0.0, 1.0, 5.0, np.nan]), 4)
        array([0., 1., 5., 5.])
    """
    present = np.asarray(values, np.float64)
    # Also without what is infinite in float32, in which the layers keep the knots.
    present = present[np.abs(present) <= np.finfo(np.float32).max]
    if not present.size:
        return np.zeros(num_knots)
    distinct = np.unique(present)
    if len(distinct) > num_knots:
        num_distinct = num_knots // 2
        # The ends are always knots: outside them the encoding is constant.
        of_distinct = distinct[np.linspace(0, len(distinct) - 1, num_distinct).round().astype(int)]
        of_rows = quantile_knots(present, num_knots - num_distinct)
        distinct = np.unique(np.concatenate([of_distinct, of_rows]))
    return np.concatenate([distinct, np.full(num_knots - len(distinct), distinct[-1])])


def _spread(knots: np.ndarray, smallest_gap: float) -> np.ndarray:
    """Moves knots up so that each is at least `smallest_gap` above the one before."""
    # In float32, in which the layers keep them, knots of large logits need wider gaps.
    gap = max(smallest_gap, 1e-5 * np.abs(knots).max()) if smallest_gap else 0.0
    offsets = gap * np.arange(len(knots))
    return np.maximum.accumulate(knots - offsets) + offsets


def isotonic_projection(values: Any) -> np.ndarray:
    """The closest non-decreasing sequence in the maximum norm.

    It is the mean of the running maximum from the left and the running minimum from the right.

    Args:
        values: Values at the knots (K,).

    Returns:
        A non-decreasing sequence (K,) of the same dtype, equal to `values` where these never fall.

    Example:
        >>> isotonic_projection(np.array([0.0, 2.0, 1.0, 3.0]))
        array([0. , 1.5, 1.5, 3. ])
    """
    values = np.asarray(values)
    from_left = np.maximum.accumulate(values)
    from_right = np.minimum.accumulate(values[::-1])[::-1]
    return (from_left + from_right) / 2
