"""Numeric columns as ids, so that a model can embed them like any other column."""

import numpy as np
from numpy.typing import NDArray

NUM_BUCKETS = 24


def quantile_buckets(
    values: NDArray[np.float64], is_training: NDArray[np.bool_] | slice
) -> tuple[NDArray[np.int32], int]:
    """Cuts a numeric column at quantiles of its training rows.

    Args:
        values: The column, NaN where a value is missing, shape (n,).
        is_training: The training rows, as a mask or a slice: no bucket is empty among them.

    Returns:
        Ids in ascending order of the values, the last one for missing values, and their number.
    """
    training = values[is_training]
    present = training[~np.isnan(training)]
    inner = np.linspace(0, 1, NUM_BUCKETS + 1)[1:-1]
    borders = np.unique(np.quantile(present, inner)) if len(present) else np.empty(0)
    ids = np.searchsorted(borders, values, "right").astype(np.int32)
    ids[np.isnan(values)] = len(borders) + 1
    return ids, len(borders) + 2
