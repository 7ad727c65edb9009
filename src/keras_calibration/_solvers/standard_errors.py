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
        *clusters: The cluster of each row, whole numbers (n,), such as blocks of time, or groups
            (`repeated_rows.clusters_of`); None for independent rows. One standard error takes the
            rows as independent, and one more for each argument takes its clusters as independent;
            the function returns the largest. With many clusters, an error is right if its
            assumption holds. With a few, it varies, so that a test needs Student's t distribution.

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
    # A count of c stands for c independent rows, each with the square d²: c d². An importance
    # scales one row: (w d)².
    squares = away * (values - mean) if are_counts(weights) else away**2
    error = float(np.sqrt(np.sum(squares)) / total)
    for cluster in clusters:
        if cluster is not None:
            # The cluster-robust (sandwich) variance: deviations are added up within clusters first,
            # so that rows that err together count as one. With the usual correction for few
            # clusters.
            sums = np.bincount(np.unique(cluster, return_inverse=True)[1], away)
            correction = len(sums) / max(len(sums) - 1, 1)
            error = max(error, float(np.sqrt(correction * np.sum(sums**2)) / total))
    return mean, error
