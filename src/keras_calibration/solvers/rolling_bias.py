"""The bias that was known before each period."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def bias_before(biases: ArrayLike) -> NDArray[np.float64]:
    """For each period, in order, the bias of the last period before it that determined one.

    Args:
        biases: The bias of each period (periods,), NaN where its rows do not determine it.

    Returns:
        The biases (periods,), NaN where no earlier period has one: always for the first.

    Example:
        >>> bias_before([0.1, np.nan, 0.3])
        array([nan, 0.1, 0.1])
    """
    known = np.asarray(biases, np.float64)
    place = np.where(np.isnan(known), -1, np.arange(len(known)))
    last = np.concatenate([[-1], np.maximum.accumulate(place)[:-1]]) if len(known) else place
    return np.where(last >= 0, known[last], np.nan)
