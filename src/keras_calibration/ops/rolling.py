"""Which period corrects which."""

from typing import Any

from keras import ops


def earlier_period(weights: Any) -> Any:
    """The nearest earlier period that has rows, for each period.

    Args:
        weights: Sum of the weights of each period (p,).

    Returns:
        Indices (p,), int32, each below its own; -1 where no earlier period has rows.

    Example:
        >>> print(earlier_period(ops.array([0.0, 2.0, 0.0, 0.0, 1.0, 3.0])).numpy())
        [-1 -1  1  1  1  4]
    """
    weights = ops.convert_to_tensor(weights)
    periods = ops.arange(weights.shape[0], dtype="int32")
    candidate = ops.logical_and(periods[None, :] < periods[:, None], weights[None, :] > 0)
    return ops.max(ops.where(candidate, periods[None, :], -1), axis=1)
