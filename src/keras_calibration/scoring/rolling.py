"""Rolling calibration: the bias of each period corrects the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._columns import is_missing, refuse_rows
from keras_calibration._rows.scored_rows import scored_rows

_DROP = "Leave these rows out."


def rolling_quadratic_loss(
    labels: ArrayLike,
    predictions: ArrayLike,
    period: ArrayLike,
    sample_weight: ArrayLike | None = None,
) -> dict[Any, float]:
    """Mean of `(y - p - c)²` by period, where c is the mean residual of the period before.

    It is the loss of a model whose bias is corrected once a period, from the past alone. Unlike
    `CalibratedQuadraticLoss`, it counts a bias that cannot be foreseen. For probabilities, see
    `score_by_period`.

    Args:
        labels: Real numbers, shape `(n,)` or `(n, 1)`.
        predictions: Predictions, shape `(n,)` or `(n, 1)`.
        period: The period of each row, for example its month: numbers, strings or dates that sort
            in the order of time, shape `(n,)` or `(n, 1)`.
        sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None. A common factor
            changes nothing, and rows of weight 0 are ignored.

    Returns:
        Period → loss in squared units of the label, in ascending order; NaN for the first.

    Raises:
        ValueError: If arrays differ in length, a label or prediction is not finite, a weight is
            negative, or a period is missing.

    Example:
        >>> labels, predictions = [3.0, 4.0, 5.0, 7.0], [2.0, 3.0, 3.0, 5.0]
        >>> months = ["2026-05", "2026-05", "2026-06", "2026-06"]
        >>> rolling_quadratic_loss(labels, predictions, months)
        {'2026-05': nan, '2026-06': 1.0}

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, the version with regression, section
        5.5: the bias of a month corrects the next. (Their bias is -c.)
    """
    rows = scored_rows(labels, predictions, sample_weight, {"period": period})
    numbers, periods = rows.counted.numbers, rows.columns["period"]
    y, p = (part.astype(np.float64) for part in (rows.labels, *rows.predictions.values()))
    for name, column in (("labels", y), ("predictions", p)):
        expected = f"Argument `{name}` must hold finite numbers."
        refuse_rows(~np.isfinite(column), column, expected, _DROP, numbers)
    # NaN and NaT differ from themselves.
    is_object = periods.dtype == object
    missing = np.array([*map(is_missing, periods)], bool) if is_object else periods != periods
    refuse_rows(missing, periods, "Argument `period` must have no missing value.", _DROP, numbers)
    names, number = np.unique(periods, return_inverse=True)
    # Shift the biases by one period: the first has none, and each other one gets that of the period
    # before.
    residual, w = y - p, rows.weights
    weight = np.bincount(number, w)
    bias = np.concatenate([[np.nan], np.bincount(number, w * residual) / weight])
    losses = np.bincount(number, w * (residual - bias[number]) ** 2) / weight
    names = names.astype(str) if names.dtype.kind == "M" else names
    return dict(zip(names.tolist(), losses.tolist(), strict=True))
