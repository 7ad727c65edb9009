"""The standard error of a weighted mean of rows."""

from collections.abc import Iterable

import numpy as np


def mean_and_error(
    values: np.ndarray, weights: np.ndarray | None, clusters: np.ndarray | None = None
) -> tuple[float, float]:
    """Weighted mean of values of rows, and its standard error.

    Args:
        values: Values of rows (n,).
        weights: Weights of the rows (n,), or None.
        clusters: Which rows belong together, whole numbers (n,): the error is then that of
            independent clusters where this is larger. None takes the rows as independent.

    Returns:
        Mean and standard error.

    Example:
        >>> mean_and_error(np.array([1.0, 1.0, 3.0, 3.0]), None, np.array([0, 0, 1, 1]))
        (2.0, 1.0)
    """
    weights = np.ones(len(values)) if weights is None else weights
    total = weights.sum()
    mean = float(weights @ values / total)
    away = weights * (values - mean)
    error = float(np.sqrt(np.sum(away**2)) / total)
    if clusters is None:
        return mean, error
    _, cluster = np.unique(clusters, return_inverse=True)
    sums = np.bincount(cluster, away)
    correction = len(sums) / max(len(sums) - 1, 1)
    return mean, max(error, float(np.sqrt(correction * np.sum(sums**2)) / total))


def mean_and_error_of_parts(
    parts: Iterable[tuple[np.ndarray, np.ndarray]],
) -> tuple[float, float]:
    """`mean_and_error` of independent rows, given as parts: values (n,) and weights (n,) of each.

    Example:
        >>> one, other = np.array([1.0, 2.0]), np.array([3.0])
        >>> parts = [(one, np.ones(2)), (other, np.ones(1))]
        >>> mean_and_error_of_parts(parts) == mean_and_error(np.append(one, other), None)
        True
    """
    sums = np.zeros(5)
    for values, weights in parts:
        weighted = weights * values
        squares = weighted @ weighted, weighted @ weights, weights @ weights
        sums += [weights.sum(), weighted.sum(), *squares]
    total, weighted_sum, squares_of_both, both, squares_of_weights = sums
    mean = weighted_sum / total
    square = squares_of_both - 2 * mean * both + mean**2 * squares_of_weights
    return float(mean), float(np.sqrt(max(square, 0.0)) / total)
