"""What every metric of the package does first: flat, aligned rows of one dtype."""

from typing import Any

from keras import ops


def flat_rows(labels: Any, predictions: Any, sample_weight: Any, dtype: str) -> tuple[Any, ...]:
    """Labels, predictions and weights as flat tensors of one dtype.

    A label outside [0, 1] becomes NaN, a negative weight too, and so does what is computed from it:
    inside a compiled step nothing can be raised, and a plausible number would be worse.

    Args:
        labels: Labels (n,) or (n, 1), any real or boolean dtype.
        predictions: Probabilities or logits (n,) or (n, 1), any float dtype.
        sample_weight: Weights (n,) or (n, 1), one number for all rows, or None for ones.
        dtype: Dtype of the result.

    Returns:
        Labels (n,), predictions (n,), weights (n,).

    Raises:
        ValueError: If labels or weights have another number of rows than the predictions, or the
            predictions have more than one column.

    Example:
        >>> labels, predictions, weights = flat_rows([1, 0], [[0.5], [0.25]], None, "float32")
        >>> print(labels.numpy(), predictions.numpy(), weights.numpy())
        [1. 0.] [0.5  0.25] [1. 1.]
    """
    predictions = ops.convert_to_tensor(predictions)
    shape = tuple(predictions.shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(
            f"Expected predictions of shape (n,) or (n, 1). Received: shape {shape}. A binary "
            "metric takes one probability a row."
        )
    predictions = ops.reshape(ops.cast(predictions, dtype), (-1,))
    labels = nan_outside_unit_interval(_aligned(labels, predictions, "labels", dtype))
    if sample_weight is None:
        return labels, predictions, ops.ones_like(predictions)
    sample_weight = ops.convert_to_tensor(sample_weight)
    if len(sample_weight.shape) == 0:
        weights = ops.cast(sample_weight, dtype) * ops.ones_like(predictions)
    else:
        weights = _aligned(sample_weight, predictions, "sample weights", dtype)
    return labels, predictions, ops.where(weights >= 0, weights, float("nan"))


def nan_outside_unit_interval(values: Any) -> Any:
    """Labels or probabilities, with NaN in place of what is neither.

    Args:
        values: Labels or probabilities, any shape.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> print(nan_outside_unit_interval(ops.array([0.0, 1.0, -0.5, 2.0])).numpy())
        [ 0.  1. nan nan]
    """
    return ops.where(ops.logical_and(values >= 0, values <= 1), values, float("nan"))


def _aligned(values: Any, predictions: Any, name: str, dtype: str) -> Any:
    """`values` flat; (n,) against (n, 1) would otherwise broadcast to (n, n) without a word."""
    values = ops.reshape(ops.cast(ops.convert_to_tensor(values), dtype), (-1,))
    received, expected = values.shape[0], predictions.shape[0]
    if received is not None and expected is not None and received != expected:
        raise ValueError(
            f"Expected as many {name} as predictions. Received: {received} {name} and {expected} "
            "predictions."
        )
    # Where the numbers are not known yet (a batch of any size), adding them checks them.
    return values + 0 * predictions if received is None or expected is None else values
