"""The standard error of a weighted mean of rows."""

import numpy as np

from keras_calibration._rows.weights import are_counts


def mean_and_error(
    values: np.ndarray, weights: np.ndarray | None, *clusters: np.ndarray | None
) -> tuple[float, float]:
    """Weighted mean of values of rows, and its standard error.

    Args:
        values: Values of rows (n,).
        weights: Weights of the rows (n,), or None. Counts stand for as many independent rows.
        *clusters: Which rows are dependent, whole numbers (n,), such as blocks of time, or groups
            (`repeated_rows.clusters_of`); None for independent rows. The error is the largest of
            those that take rows, or the clusters of one kind, as independent. With many clusters,
            each is right if its assumption holds. With a few, it varies, so that a test needs
            Student's t distribution.

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
    for cluster in clusters:
        if cluster is not None:
            sums = np.bincount(np.unique(cluster, return_inverse=True)[1], away)
            correction = len(sums) / max(len(sums) - 1, 1)
            error = max(error, float(np.sqrt(correction * np.sum(sums**2)) / total))
    return mean, error
