"""What every metric of the package does first: flat, aligned rows of one dtype."""

from typing import Any

from keras import ops

# How far from 1 a distribution over classes may sum: bfloat16 keeps three digits.
_SUM_TOLERANCE = 0.01


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
    return rows_or_nan(*aligned_rows(labels, predictions, sample_weight), dtype)


def rows_or_nan(labels: Any, predictions: Any, weights: Any, dtype: str) -> tuple[Any, Any, Any]:
    """Aligned rows in one dtype, with NaN in place of bad labels and weights: see `flat_rows`.

    Args:
        labels: Labels (n,), any real or boolean dtype.
        predictions: Predictions (n,), any float dtype.
        weights: Weights (n,), any real dtype.
        dtype: Dtype of the result.

    Returns:
        Labels (n,), predictions (n,), weights (n,).
    """
    labels, predictions, weights = (
        ops.cast(rows, dtype) for rows in (labels, predictions, weights)
    )
    return nan_outside_unit_interval(labels), predictions, _nan_where_negative(weights)


def aligned_rows(labels: Any, predictions: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Labels, predictions and weights as flat tensors, each of its own dtype.

    Args:
        labels: Labels (n,) or (n, 1), any real or boolean dtype.
        predictions: Probabilities or logits (n,) or (n, 1), any float dtype.
        sample_weight: Weights (n,) or (n, 1), one number for all rows, or None for ones.

    Returns:
        Labels (n,), predictions (n,), weights (n,).

    Raises:
        ValueError: As for `flat_rows`.
    """
    predictions = ops.convert_to_tensor(predictions)
    shape = tuple(predictions.shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(
            f"Expected predictions of shape (n,) or (n, 1). Received: shape {shape}. A binary "
            "metric takes one probability a row, a regression metric one prediction."
        )
    predictions = ops.reshape(predictions, (-1,))
    labels = _aligned(labels, predictions, "labels")
    return labels, predictions, _weights(sample_weight, predictions)


def real_rows(labels: Any, predictions: Any, sample_weight: Any, dtype: str) -> tuple[Any, ...]:
    """As `flat_rows`, for labels that may be any real numbers.

    Args:
        labels: Labels (n,) or (n, 1), any real dtype.
        predictions: Predictions (n,) or (n, 1), any float dtype.
        sample_weight: Weights (n,) or (n, 1), one number for all rows, or None for ones.
        dtype: Dtype of the result.

    Returns:
        Labels (n,), predictions (n,), weights (n,).

    Raises:
        ValueError: As for `flat_rows`.

    Example:
        >>> labels, _, _ = real_rows([-7, 1000], [0.5, 0.25], None, "float32")
        >>> print(labels.numpy())
        [  -7. 1000.]
    """
    rows = aligned_rows(labels, predictions, sample_weight)
    labels, predictions, weights = (ops.cast(values, dtype) for values in rows)
    return labels, predictions, _nan_where_negative(weights)


def class_rows(labels: Any, predictions: Any, sample_weight: Any, dtype: str) -> tuple[Any, ...]:
    """Labels and predictions of several classes, and weights, as aligned tensors of one dtype.

    Labels that are no distribution over the classes become NaN (each must be in [0, 1] and their
    sum 1, give or take 0.01 for low-precision dtypes), and negative weights too.

    Args:
        labels: One-hot or soft labels (n, K).
        predictions: Probabilities or logits (n, K), K ≥ 2, any float dtype.
        sample_weight: Weights (n,) or (n, 1), one number for all rows, or None for ones.
        dtype: Dtype of the result.

    Returns:
        Labels (n, K), predictions (n, K), weights (n,).

    Raises:
        ValueError: If the predictions are not (n, K), labels have another shape, or there is
            another number of weights than of rows.

    Example:
        >>> labels, _, weights = class_rows([[0, 1]], [[0.5, 0.5]], 2, "float32")
        >>> print(labels.numpy(), weights.numpy())
        [[0. 1.]] [2.]
    """
    predictions = ops.cast(ops.convert_to_tensor(predictions), dtype)
    shape = tuple(predictions.shape)
    if len(shape) != 2 or shape[1] is None or shape[1] < 2:
        raise ValueError(
            "Expected predictions of shape (n, K), one for each of K ≥ 2 classes. Received: shape "
            f"{shape}. For one probability a row, use CalibratedLogLoss."
        )
    labels = ops.cast(ops.convert_to_tensor(labels), dtype)
    received = tuple(labels.shape)
    if len(received) != 2 or any(
        None not in sizes and sizes[0] != sizes[1] for sizes in zip(received, shape, strict=True)
    ):
        raise ValueError(
            f"Expected labels of the shape of the predictions, {shape}, one-hot or soft. Received: "
            f"shape {received}. For whole numbers as labels, use "
            "SparseCalibratedCategoricalLogLoss."
        )
    # Where the number of rows is not known yet, adding checks it.
    labels = distribution_or_nan(labels) + 0 * predictions
    weights = ops.cast(_weights(sample_weight, predictions[:, 0]), dtype)
    return labels, predictions, _nan_where_negative(weights)


def distribution_or_nan(values: Any) -> Any:
    """Rows of class shares, with NaN in place of every row that does not sum to 1.

    Args:
        values: Labels or probabilities (n, K).

    Returns:
        A tensor of the same shape and dtype; NaN also where a share is outside [0, 1].

    Example:
        >>> print(distribution_or_nan(ops.array([[0.5, 0.5], [0.5, 0.9]])).numpy())
        [[0.5 0.5]
         [nan nan]]
    """
    values = nan_outside_unit_interval(values)
    sums_to_1 = ops.abs(ops.sum(values, axis=-1, keepdims=True) - 1) <= _SUM_TOLERANCE
    return ops.where(sums_to_1, values, float("nan"))


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


def flat_ids(ids: Any, labels: Any, name: str) -> Any:
    """Ids as a flat tensor, one a row.

    Args:
        ids: Whole numbers (n,) or (n, 1).
        labels: Flat labels of the same rows (n,).
        name: What an id is, for the message.

    Returns:
        Ids (n,), of their own dtype.

    Raises:
        ValueError: If there is another number of ids than of rows.

    Example:
        >>> print(flat_ids([[3], [1]], ops.zeros(2), "period").numpy())
        [3 1]
    """
    ids = ops.reshape(ops.convert_to_tensor(ids), (-1,))
    num_ids, num_rows = ids.shape[0], labels.shape[0]
    if num_ids is not None and num_rows is not None and num_ids != num_rows:
        raise ValueError(
            f"Expected one {name} a row. Received: {num_ids} {name}s and {num_rows} rows."
        )
    return ids


def _weights(sample_weight: Any, predictions: Any) -> Any:
    """Weights (n,)."""
    if sample_weight is None:
        return ops.ones_like(predictions)
    sample_weight = ops.convert_to_tensor(sample_weight)
    if len(sample_weight.shape) == 0:
        return ops.broadcast_to(sample_weight, ops.shape(predictions))
    return _aligned(sample_weight, predictions, "sample weights")


def _nan_where_negative(weights: Any) -> Any:
    return ops.where(weights >= 0, weights, float("nan"))


def _aligned(values: Any, predictions: Any, name: str) -> Any:
    """`values` flat; (n,) against (n, 1) would otherwise broadcast to (n, n) without a word."""
    values = ops.convert_to_tensor(values)
    shape = tuple(values.shape)
    if len(shape) > 1 and any(size not in (1, None) for size in shape[1:]):
        raise ValueError(
            f"Expected {name} of shape (n,) or (n, 1), one a row. Received: shape {shape}."
        )
    values = ops.reshape(values, (-1,))
    received, expected = values.shape[0], predictions.shape[0]
    if received is not None and expected is not None and received != expected:
        raise ValueError(
            f"Expected as many {name} as predictions. Received: {received} {name} and {expected} "
            "predictions."
        )
    if received is not None and expected is not None:
        return values
    # Where the numbers are not known yet (a batch of any size), the reshape checks them.
    return ops.reshape(values, ops.shape(predictions))
