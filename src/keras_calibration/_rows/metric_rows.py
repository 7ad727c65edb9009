"""Input of the metrics: aligned rows of one dtype, with NaN in place of invalid values."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from calibration_records._check import one_column, same_rows
from calibration_records._columns import as_array, numbers_of, warn_of_other_order
from calibration_records._limits import SUM_TOLERANCE
from keras_calibration._ops.field_sums import id_tensor, refuse_strings
from keras_calibration._ops.losses import logits_from_probabilities
from keras_calibration._rows.checks import are_0_or_1, logits_of_probabilities, warn_if_swapped
from keras_calibration._rows.columns import field_values, is_symbolic
from keras_calibration._typing import Tensor

# This many rows of a batch are enough to see whether predictions are logits.
_FIRST_ROWS = 4096
# Labels, predictions and weights of a batch.
Rows = tuple[Tensor, Tensor, Tensor]


def probability_rows(
    y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None, from_logits: bool, dtype: str
) -> Rows:
    """Labels, probabilities and weights as flat tensors of one dtype, with NaN for invalid values.

    A compiled step cannot raise, and NaN is better than a plausible wrong number.
    """
    labels, predictions, weights = rows_or_nan(*aligned_rows(y_true, y_pred, sample_weight), dtype)
    if from_logits:
        return labels, ops.sigmoid(predictions), weights
    return labels, nan_outside_unit_interval(predictions), weights


def logit_rows(
    y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None, from_logits: bool, dtype: str
) -> Rows:
    """As `probability_rows`, with logits, converted with all digits of the probabilities."""
    # Convert before the cast: in float32, a probability near 1 has lost its logit.
    (labels, logits, weights), are_logits = rows_with_all_digits(
        y_true, y_pred, sample_weight, from_logits
    )
    if not are_logits:
        wider = keras.backend.result_type(logits.dtype, "float32", dtype)
        logits = logits_from_probabilities(ops.cast(logits, wider))
    return rows_or_nan(labels, logits, weights, dtype)


def real_rows(y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None, dtype: str) -> Rows:
    """As `probability_rows`, for labels and predictions that may be any real numbers."""
    return _replace_weightless(*aligned_rows(y_true, y_pred, sample_weight), dtype)


def rows_or_nan(labels: Tensor, predictions: Tensor, weights: Tensor, dtype: str) -> Rows:
    """Aligned rows cast to one dtype, with NaN for labels outside [0, 1] and negative weights."""
    labels, predictions, weights = _replace_weightless(labels, predictions, weights, dtype)
    return nan_outside_unit_interval(labels), predictions, weights


def scale_sums(y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None, dtype: str) -> Tensor:
    """Sums over the first rows of a batch that tell logits from probabilities, shape (4,).

    In order: the number of rows; the number of rows with a prediction outside [0, 1], or with class
    predictions that do not add up to 1; the squared errors if the predictions are probabilities;
    and the squared errors if they are logits.
    """
    given: list[Any] = [y_true, y_pred, 1.0 if sample_weight is None else sample_weight]
    labels, values, weights = [p[:_FIRST_ROWS] if np.ndim(p) else p for p in given]
    if not is_symbolic(y_pred) and not is_symbolic(sample_weight):
        # If the predictions are logits, the first 100 rows mostly show it, and no others are read.
        p = as_array(values[:100])
        counts = as_array(weights).reshape(-1)[:100] != 0
        are_outside = ~((p >= 0) & (p <= 1)).all(axis=tuple(range(1, p.ndim)))
        if (are_outside & counts).any():
            return ops.convert_to_tensor([0, 1, 0, 0], dtype)
    values = as_tensor(values, "y_pred")
    if len(values.shape) == 2 and values.shape[1] not in (1, None):
        labels, values, weights = class_rows(labels, values, weights, dtype)
        # Both readings of the predictions get a squared error; the caller compares them.
        outside = ops.any(ops.isnan(distribution_or_nan(values)), axis=1)
        factor, sigmoid = ops.expand_dims(weights, 1), ops.softmax
    else:
        labels, values, weights = rows_or_nan(*aligned_rows(labels, values, weights), dtype)
        outside = ops.isnan(nan_outside_unit_interval(values))
        factor, sigmoid = weights, ops.sigmoid
    counts = [weights != 0, ops.logical_and(weights != 0, outside)]
    errors = [factor * ops.square(labels - value) for value in (values, sigmoid(values))]
    return ops.stack([ops.sum(ops.cast(column, dtype)) for column in [*counts, *errors]])


def rows_with_all_digits(
    y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None, from_logits: bool
) -> tuple[Rows, bool]:
    """Aligned rows, and whether their predictions are logits.

    Probabilities become logits where tensors are float32, in which a probability above 1 - 3e-8
    would be 1 and lose its logit.
    """
    rows = aligned_rows(y_true, y_pred, sample_weight)
    if from_logits or ops.is_tensor(y_pred) or accumulator_dtype() == "float64":
        return rows, from_logits
    # Where tensors are float32, convert in float64 first. Invalid values pass as ½ and become NaN
    # after the logarithm, which would warn of them.
    values = numbers_of(y_pred, "y_pred")
    valid = (values >= 0) & (values <= 1)
    logits = logits_of_probabilities(np.where(valid, values, 0.5), one_column=True)
    logits = ops.convert_to_tensor(np.where(valid, logits, np.nan).reshape(-1))
    return (rows[0], logits, rows[2]), True


def aligned_rows(y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> Rows:
    """Labels, predictions and weights as flat tensors of equal length, in their dtypes."""
    warn_of_other_order(y_true=y_true, y_pred=y_pred, sample_weight=sample_weight)
    predictions = as_tensor(y_pred, "y_pred")
    one_column("y_pred", tuple(predictions.shape))
    predictions = ops.reshape(predictions, (-1,))
    labels = _align(as_tensor(y_true, "y_true"), predictions, "y_true")
    # If the two are not swapped, the first 100 rows mostly show it, and no others are read.
    can_be_read = not is_symbolic(predictions) and not is_symbolic(labels)
    if can_be_read and are_0_or_1(as_array(predictions[:100])):
        warn_if_swapped(as_array(labels), as_array(predictions))
    return labels, predictions, _read_weights(sample_weight, predictions)


def as_tensor(values: Any, name: str) -> Tensor:
    """Labels, predictions or weights in any form as a tensor; raises for strings."""
    # A list of tensors, as of single rows, is no tensor yet.
    if isinstance(values, list | tuple) and any(map(ops.is_tensor, values)):
        values = ops.stack(values)
    if not ops.is_tensor(values):
        values = ops.convert_to_tensor(numbers_of(values, name))
    if keras.backend.standardize_dtype(values.dtype) == "string":
        numbers_of(values, name)  # raises where the strings can be read
        raise ValueError(f"Argument `{name}` must be numbers. Received: strings. Recode them.")
    # TensorFlow does not compare bool with 0, so bool becomes uint8; other dtypes stay.
    return ops.cast(values, keras.backend.result_type(values.dtype, "uint8"))


def _replace_weightless(labels: Tensor, predictions: Tensor, weights: Tensor, dtype: str) -> Rows:
    """Rows cast to one dtype, with valid labels and predictions where the weight is 0.

    Rows of weight 0 may hold NaN, and 0 · NaN would be NaN. Negative weights become NaN.
    """
    labels, predictions, weights = (ops.cast(v, dtype) for v in (labels, predictions, weights))
    # Replace labels and predictions before any product, since 0 · NaN is NaN.
    counts = weights != 0
    labels = ops.where(counts, labels, 0.0)
    predictions = ops.where(counts, predictions, 0.5)
    return labels, predictions, _mask_negative(weights)


def class_rows(
    labels: Tensor, predictions: Tensor, sample_weight: Tensor | None, dtype: str
) -> Rows:
    """Shares (n, K), predictions (n, K) and weights (n,); invalid labels and weights are NaN.

    Labels are shares (n, K), or class numbers (n,) or (n, 1).
    """
    warn_of_other_order(y_true=labels, y_pred=predictions, sample_weight=sample_weight)
    predictions = ops.cast(as_tensor(predictions, "y_pred"), dtype)
    shape = tuple(predictions.shape)
    if len(shape) != 2 or shape[1] is None or shape[1] < 2:
        raise ValueError(
            "Argument `y_pred` must have shape (n, K), one prediction for each of K ≥ 2 classes. "
            f"Received: shape {shape}. For one probability per row, use CalibratedLogLoss."
        )
    labels = ops.cast(as_tensor(labels, "y_true"), dtype)
    received = tuple(labels.shape)
    if len(received) == 1 or (len(received) == 2 and received[1] == 1):
        # One-hot rows. An invalid number gives a row of zeros, which `distribution_or_nan` turns
        # into NaN.
        labels = ops.reshape(labels, (-1, 1)) == ops.arange(shape[1], dtype=dtype)
        labels = ops.cast(labels, dtype)
    sizes = list(zip(labels.shape, shape, strict=False))
    if len(labels.shape) != 2 or any(None not in pair and pair[0] != pair[1] for pair in sizes):
        raise ValueError(
            "Argument `y_true` must hold class numbers, with shape (n,) or (n, 1), or shares of "
            f"the classes with the shape of the predictions, {shape}. Received: shape {received}."
        )
    # Checks the number of rows at run time if the static shape is unknown.
    labels = distribution_or_nan(labels) + ops.zeros_like(predictions)
    weights = ops.cast(_read_weights(sample_weight, predictions[:, 0]), dtype)
    # As in `_replace_weightless`, for class probabilities.
    counts = ops.expand_dims(weights != 0, 1)
    labels = ops.where(counts, labels, 1 / shape[1])
    predictions = ops.where(counts, predictions, 1 / shape[1])
    return labels, predictions, _mask_negative(weights)


def distribution_or_nan(values: Tensor) -> Tensor:
    """Class probabilities `(n, K)`, with NaN for rows that do not sum to 1 or leave [0, 1]."""
    values = nan_outside_unit_interval(values)
    # A softmax adds up to 1 only within the digits of its dtype.
    sums_to_1 = ops.abs(ops.sum(values, axis=-1, keepdims=True) - 1) <= SUM_TOLERANCE
    return ops.where(sums_to_1, values, float("nan"))


def nan_outside_unit_interval(values: Tensor) -> Tensor:
    """Labels or probabilities, with NaN for values outside [0, 1]."""
    return ops.where(ops.logical_and(values >= 0, values <= 1), values, float("nan"))


def flat_ids(ids: Any, weights: Tensor, num_values: int) -> Tensor:
    """Ids as a flat tensor of their dtype, one for each row; 0 where the weight is 0.

    Raises if an id that can be read is not below `num_values`.
    """
    if isinstance(ids, list | tuple) and any(map(ops.is_tensor, ids)):
        ids = ops.stack(ids)
    # Rows of weight 0 may hold any id, so give them a valid one.
    weightless = None if is_symbolic(weights) else as_array(weights) == 0
    if weightless is not None and weightless.any() and not is_symbolic(ids):
        ids = as_array(ids, "'field'").reshape(-1)
        if len(ids) == len(weightless) and ids.dtype.kind not in "SUT":
            ids = np.where(weightless, 0, ids)
    ids = field_values(ids, "'field'")
    refuse_ids_outside(ids, num_values, "Argument `field`")
    ids = refuse_strings(ops.reshape(id_tensor(ids), (-1,)))
    num_ids = ids.shape[0]
    num_rows = weights.shape[0]
    if None not in (num_ids, num_rows) and num_ids != num_rows:
        raise ValueError(
            "Argument `field` must hold one field value for each row. Received: "
            f"{num_ids} field values and {num_rows} rows."
        )
    return ids


def refuse_ids_outside(ids: Tensor, num_values: int, what: str) -> None:
    """Raises if an id that can be read is not below `num_values`; -1 and NaN are "other".

    Example:
        >>> refuse_ids_outside(np.array([0, 500]), 500, "Argument `field`")
        Traceback (most recent call last):
        ...
        ValueError: Argument `field` must hold ids from 0 to 499, or -1 for "other". Received: 500
        in row 1, 1 of 2 rows with other ids. Number the values, for example with
        numpy.unique(values, return_inverse=True) or keras.layers.StringLookup; the errors of
        different values that share one id would cancel. `scoring.field_ece` and
        `scoring.field_rce` take any values.
    """
    # A graph cannot raise; there, ids out of range count as "other".
    if is_symbolic(ids):
        return
    flat = np.asarray(ids).reshape(-1)
    if flat.dtype.kind not in "biuf":
        return  # `refuse_strings` reports strings
    outside = np.flatnonzero(~(((flat >= -1) & (flat < num_values)) | (flat != flat)))
    if len(outside):
        raise ValueError(
            f'{what} must hold ids from 0 to {num_values - 1}, or -1 for "other". Received: '
            f"{flat[outside[0]]:.0f} in row {outside[0]}, {len(outside):,} of {len(flat):,} rows "
            "with other ids. Number the values, for example with "
            "numpy.unique(values, return_inverse=True) or keras.layers.StringLookup; the errors of "
            "different values that share one id would cancel. `scoring.field_ece` and "
            "`scoring.field_rce` take any values."
        )


def _read_weights(sample_weight: Tensor | None, predictions: Tensor) -> Tensor:
    """Weights `(n,)`: ones for None; a scalar is the weight of all rows."""
    if sample_weight is None:
        return ops.ones_like(predictions)
    sample_weight = as_tensor(sample_weight, "sample_weight")
    if len(sample_weight.shape) == 0:
        return ops.broadcast_to(sample_weight, ops.shape(predictions))
    return _align(sample_weight, predictions, "sample_weight")


def _mask_negative(weights: Tensor) -> Tensor:
    return ops.where(weights >= 0, weights, float("nan"))


def _align(values: Tensor, predictions: Tensor, name: str) -> Tensor:
    """The values as a flat tensor, one for each prediction; `(n,)` and `(n, 1)` would broadcast."""
    one_column(name, tuple(values.shape))
    values = ops.reshape(values, (-1,))
    same_rows(name, values.shape[0], predictions.shape[0], "prediction")
    if None not in (values.shape[0], predictions.shape[0]):
        return values
    # The reshape checks the number of rows at run time if the static shape is unknown.
    return ops.reshape(values, ops.shape(predictions))


def accumulator_dtype() -> str:
    """The dtype of metric state: float64 where the backend supports it, else float32."""
    if keras.backend.backend() != "jax":
        return "float64"
    import jax

    return "float64" if jax.config.read("jax_enable_x64") else "float32"
