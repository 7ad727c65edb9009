"""Input of the metrics: aligned rows of one dtype, with NaN in place of invalid values."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_calibration._columns import field_values, is_symbolic
from keras_calibration._limits import SUM_TOLERANCE
from keras_calibration._typing import Tensor
from keras_calibration.ops.field_sums import id_tensor


def flat_rows(
    labels: Tensor, predictions: Tensor, sample_weight: Tensor | None, dtype: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, predictions and weights as flat tensors of one dtype, with invalid values as NaN.

    A compiled step cannot raise, and NaN is better than a plausible wrong number.
    """
    return rows_or_nan(*aligned_rows(labels, predictions, sample_weight), dtype)


def rows_or_nan(
    labels: Tensor, predictions: Tensor, weights: Tensor, dtype: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Aligned rows cast to one dtype, with NaN for labels outside [0, 1] and negative weights."""
    labels, predictions, weights = (
        ops.cast(rows, dtype) for rows in (labels, predictions, weights)
    )
    return nan_outside_unit_interval(labels), predictions, _nan_where_negative(weights)


def aligned_rows(
    labels: Tensor, predictions: Tensor, sample_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, predictions and weights as flat tensors of equal length, each of its own dtype."""
    predictions = ops.convert_to_tensor(predictions)
    shape = tuple(predictions.shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(
            "Argument `y_pred` must hold one probability per row (in regression, one prediction), "
            f"with shape (n,) or (n, 1). Received: shape {shape}."
        )
    predictions = ops.reshape(predictions, (-1,))
    labels = _aligned(labels, predictions, "y_true")
    return labels, predictions, _weights(sample_weight, predictions)


def real_rows(
    labels: Tensor, predictions: Tensor, sample_weight: Tensor | None, dtype: str
) -> tuple[Tensor, Tensor, Tensor]:
    """As `flat_rows`, for labels that may be any real number."""
    rows = aligned_rows(labels, predictions, sample_weight)
    labels, predictions, weights = (ops.cast(values, dtype) for values in rows)
    return labels, predictions, _nan_where_negative(weights)


def class_rows(
    labels: Tensor, predictions: Tensor, sample_weight: Tensor | None, dtype: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Labels (n, K), predictions (n, K) and weights (n,); invalid labels and weights are NaN."""
    predictions = ops.cast(ops.convert_to_tensor(predictions), dtype)
    shape = tuple(predictions.shape)
    if len(shape) != 2 or shape[1] is None or shape[1] < 2:
        raise ValueError(
            "Argument `y_pred` must have shape (n, K), one prediction for each of K ≥ 2 classes. "
            f"Received: shape {shape}. For one probability per row, use CalibratedLogLoss."
        )
    labels = ops.cast(ops.convert_to_tensor(labels), dtype)
    received = tuple(labels.shape)
    if len(received) != 2 or any(
        None not in sizes and sizes[0] != sizes[1] for sizes in zip(received, shape, strict=True)
    ):
        raise ValueError(
            "Argument `y_true` must hold one-hot or soft labels with the shape of the predictions, "
            f"{shape}. Received: shape {received}. For class numbers as labels, use "
            "SparseCalibratedCategoricalLogLoss."
        )
    # Checks the number of rows at run time where the static shape does not tell it.
    labels = distribution_or_nan(labels) + 0 * predictions
    weights = ops.cast(_weights(sample_weight, predictions[:, 0]), dtype)
    return labels, predictions, _nan_where_negative(weights)


def distribution_or_nan(values: Tensor) -> Tensor:
    """Class probabilities `(n, K)`, with NaN for rows that do not sum to 1 or leave [0, 1]."""
    values = nan_outside_unit_interval(values)
    sums_to_1 = ops.abs(ops.sum(values, axis=-1, keepdims=True) - 1) <= SUM_TOLERANCE
    return ops.where(sums_to_1, values, float("nan"))


def nan_outside_unit_interval(values: Tensor) -> Tensor:
    """Labels or probabilities, with NaN for values outside [0, 1]."""
    return ops.where(ops.logical_and(values >= 0, values <= 1), values, float("nan"))


def flat_ids(ids: Tensor, labels: Tensor, name: str, num_values: int | None = None) -> Tensor:
    """Ids as a flat tensor of their own dtype, one for each row.

    Raises if one is not below `num_values`, where they can be read.
    """
    holds_tensors = isinstance(ids, list | tuple) and any(map(ops.is_tensor, ids))
    ids = ops.stack(ids) if holds_tensors else field_values(ids, repr(name))
    if num_values is not None:
        refuse_ids_outside(ids, num_values, "Argument `field`")
    ids = ops.reshape(id_tensor(ids), (-1,))
    num_ids, num_rows = ids.shape[0], labels.shape[0]
    if num_ids is not None and num_rows is not None and num_ids != num_rows:
        raise ValueError(
            f"Argument `field` must hold one {name} for each row. Received: {num_ids} {name}s and "
            f"{num_rows} rows."
        )
    return ids


def refuse_ids_outside(ids: Tensor, num_values: int, what: str) -> None:
    """Raises if an id that can be read is not below `num_values`; -1 and NaN are "other".

    Example:
        >>> refuse_ids_outside(np.array([0, 500]), 500, "Argument `field`")
        Traceback (most recent call last):
        ...
        ValueError: Argument `field` must hold ids from 0 to 499, or -1 for "other". Received: 500
        in row 1, 1 of 2 rows with such ids. Number the values, for example with
        numpy.unique(values, return_inverse=True) or keras.layers.StringLookup; the errors of
        different values that share one id would cancel. `scoring.field_ece` and
        `scoring.field_rce` take any values.
    """
    if is_symbolic(ids):
        return
    array = ids if isinstance(ids, np.ndarray) else ops.convert_to_numpy(ids)
    flat = array.reshape(-1)
    if flat.dtype.kind not in "biuf":
        return  # strings, which are refused elsewhere
    outside = np.flatnonzero(~(((flat >= -1) & (flat < num_values)) | (flat != flat)))
    if len(outside):
        raise ValueError(
            f'{what} must hold ids from 0 to {num_values - 1}, or -1 for "other". Received: '
            f"{flat[outside[0]]:.0f} in row {outside[0]}, {len(outside):,} of {len(flat):,} rows "
            "with such ids. Number the values, for example with "
            "numpy.unique(values, return_inverse=True) or keras.layers.StringLookup; the errors of "
            "different values that share one id would cancel. `scoring.field_ece` and "
            "`scoring.field_rce` take any values."
        )


def _weights(sample_weight: Tensor | None, predictions: Tensor) -> Tensor:
    """Weights `(n,)`: ones for None, and one number for all rows from a scalar."""
    if sample_weight is None:
        return ops.ones_like(predictions)
    sample_weight = ops.convert_to_tensor(sample_weight)
    if len(sample_weight.shape) == 0:
        return ops.broadcast_to(sample_weight, ops.shape(predictions))
    return _aligned(sample_weight, predictions, "sample_weight")


def _nan_where_negative(weights: Tensor) -> Tensor:
    return ops.where(weights >= 0, weights, float("nan"))


def _aligned(values: Tensor, predictions: Tensor, name: str) -> Tensor:
    """The values as a flat tensor, one for each prediction; `(n,)` and `(n, 1)` would broadcast."""
    values = ops.convert_to_tensor(values)
    shape = tuple(values.shape)
    if len(shape) > 1 and any(size not in (1, None) for size in shape[1:]):
        raise ValueError(
            f"Argument `{name}` must have shape (n,) or (n, 1). Received: shape {shape}."
        )
    values = ops.reshape(values, (-1,))
    received, expected = values.shape[0], predictions.shape[0]
    if received is not None and expected is not None and received != expected:
        raise ValueError(
            f"Argument `{name}` must have one entry for each prediction. Received: {received} "
            f"entries for {expected} predictions."
        )
    if received is not None and expected is not None:
        return values
    # The reshape checks the number of rows at run time where the static shape does not tell it.
    return ops.reshape(values, ops.shape(predictions))
