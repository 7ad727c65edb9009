"""Rolling calibration: the bias of each period corrects the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import same_rows
from calibration_records._columns import is_missing, refuse_rows, warn_of_other_order
from keras_calibration._rows.columns import as_array
from keras_calibration.scoring.rows_to_score import checked_rows


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
    warn_of_other_order(labels=labels, predictions=predictions, period=period)
    rows = checked_rows((labels, predictions, sample_weight), ())
    y, p = (np.asarray(part, np.float64).reshape(-1) for part in (rows.labels, rows.predictions))
    w = np.ones(len(y)) if rows.sample_weight is None else rows.sample_weight.reshape(-1)
    times = as_array(period, "period").reshape(-1)
    same_rows("period", len(times), len(y), "label")
    counted, drop = w > 0, "Leave these rows out."
    refuse_rows(~(w >= 0), w, "Argument `sample_weight` must not be negative.", drop)
    for name, column in (("labels", y), ("predictions", p)):
        refuse_rows(
            ~np.isfinite(column),
            column,
            f"Argument `{name}` must hold finite numbers.",
            drop,
            counted,
        )
    # NaN and NaT differ from themselves.
    missing = np.array(
        [is_missing(time) for time in times] if times.dtype == object else times != times, bool
    )
    refuse_rows(missing, times, "Argument `period` must have no missing value.", drop, counted)
    names, number = np.unique(times[counted], return_inverse=True)
    residual, w = (y - p)[counted], w[counted].astype(np.float64)
    weight = np.bincount(number, w)
    bias = np.concatenate([[np.nan], np.bincount(number, w * residual) / weight])
    losses = np.bincount(number, w * (residual - bias[number]) ** 2) / weight
    names = names.astype(str) if names.dtype.kind == "M" else names
    return dict(zip(names.tolist(), losses.tolist(), strict=True))
