"""The standard error of a weighted mean of rows."""

import numpy as np

from keras_calibration._rows.weights import are_counts


def mean_and_error(
    values: np.ndarray, weights: np.ndarray | None, clusters: np.ndarray | None = None
) -> tuple[float, float]:
    """Weighted mean of values of rows, and its standard error.

    Args:
        values: Values of rows (n,).
        weights: Weights of the rows (n,), or None. Counts stand for as many independent rows.
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
    squares = away * (values - mean) if are_counts(weights) else away**2
    error = float(np.sqrt(np.sum(squares)) / total)
    if clusters is None:
        return mean, error
    _, cluster = np.unique(clusters, return_inverse=True)
    sums = np.bincount(cluster, away)
    correction = len(sums) / max(len(sums) - 1, 1)
    return mean, max(error, float(np.sqrt(correction * np.sum(sums**2)) / total))
