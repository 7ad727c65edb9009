"""The metrics as functions of labels and predictions that return a number.

Each function creates its metric and scores the arrays with it, chunk by chunk. For several metrics
in one pass, or data that are not arrays, see `score`.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from keras_calibration._rows.scored_rows import scored_rows
from keras_calibration._solvers.segments import distinct_values
from keras_calibration.metrics.calibrated_log_loss import CalibratedLogLoss
from keras_calibration.metrics.field_ece import FieldECE
from keras_calibration.metrics.field_rce import FieldRCE
from keras_calibration.scoring.score import score


def calibrated_log_loss(
    labels: ArrayLike,
    predictions: ArrayLike,
    sample_weight: ArrayLike | None = None,
    **arguments: Any,
) -> float:
    """Log loss after the bias of the predictions is corrected on other rows.

    Args:
        labels: Labels in [0, 1], shape `(n,)` or `(n, 1)`.
        predictions: Probabilities, or logits with `from_logits=True`, shape `(n,)` or `(n, 1)`.
        sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None.
        **arguments: Arguments of `metrics.CalibratedLogLoss`: `num_folds`, `bias_fraction`, ….

    Returns:
        The Calibrated Log Loss in nats, or NaN where it is undefined; see
        `metrics.CalibratedLogLoss`.

    Raises:
        ValueError: If there are no rows, arrays differ in length, or an argument is invalid.

    Example:
        >>> import numpy as np
        >>> labels = np.array([0, 1, 0, 1, 0, 0])
        >>> round(calibrated_log_loss(labels, np.full(6, 0.9), num_folds=1), 4)  # the entropy
        0.6365
    """
    metric = CalibratedLogLoss(**arguments)
    return score((labels, predictions, sample_weight), metric, verbose=0)[metric.name]


def field_ece(
    labels: ArrayLike,
    predictions: ArrayLike,
    field: ArrayLike,
    sample_weight: ArrayLike | None = None,
    from_logits: bool = False,
) -> float:
    """Field-level expected calibration error: `(1/n) Σ_z |Σ_{i: z_i = z} (y_i - p_i)|`.

    Args:
        labels: Labels in [0, 1], shape `(n,)` or `(n, 1)`.
        predictions: Probabilities, or logits with `from_logits=True`, shape `(n,)` or `(n, 1)`.
        field: Field value of each row, numbers or strings, shape `(n,)` or `(n, 1)`.
        sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None.
        from_logits: Whether the predictions are logits.

    Returns:
        Field-ECE in units of probability; see `metrics.FieldECE`.

    Raises:
        ValueError: If there are no rows, or arrays differ in length.

    Example:
        >>> field_ece([1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], field=["de", "de", "fr", "fr"])
        0.25
    """
    return _measure_field_error(
        FieldECE, labels, predictions, field, sample_weight, from_logits=from_logits
    )


def field_rce(
    labels: ArrayLike,
    predictions: ArrayLike,
    field: ArrayLike,
    sample_weight: ArrayLike | None = None,
    epsilon: float = 0.01,
    from_logits: bool = False,
) -> float:
    """Field-level relative calibration error: `(1/n) Σ_z N_z |Σ (y - p)| / Σ (y + ε)`.

    Args:
        labels: Labels in [0, 1], shape `(n,)` or `(n, 1)`.
        predictions: Probabilities, or logits with `from_logits=True`, shape `(n,)` or `(n, 1)`.
        field: Field value of each row, numbers or strings, shape `(n,)` or `(n, 1)`.
        sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None.
        epsilon: ε > 0; 0.01 in the paper.
        from_logits: Whether the predictions are logits.

    Returns:
        Field-RCE, a relative error; see `metrics.FieldRCE`.

    Raises:
        ValueError: If there are no rows, arrays differ in length, or `epsilon` is not above 0.

    Example:
        >>> round(field_rce([1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], field=["a", "a", "b", "b"]), 4)
        0.2475
    """
    return _measure_field_error(
        FieldRCE,
        labels,
        predictions,
        field,
        sample_weight,
        epsilon=epsilon,
        from_logits=from_logits,
    )


def _measure_field_error(
    metric_class: type[FieldECE | FieldRCE],
    labels: ArrayLike,
    predictions: ArrayLike,
    field: ArrayLike,
    weights: ArrayLike | None,
    **arguments: Any,
) -> float:
    """The field error of these rows."""
    read = scored_rows(labels, predictions, weights, {"field": field})
    # Number the distinct field values, because field metrics take ids from 0.
    values, ids = distinct_values(read.columns["field"])
    metric = metric_class(len(values), **arguments)
    batch = (read.labels, *read.predictions.values(), read.counted.weights, {"field": ids})
    return score(batch, field_metrics={"field": metric}, verbose=0)[f"field_{metric.name}"]
