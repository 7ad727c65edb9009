"""Ages of rows and delays of their labels, from times as numbers, datetimes or pandas columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibration_records._columns import check_same_rows, refuse_rows
from calibration_records._times import DAY, MISSING, moment_of, times_of


def ages_and_delays(
    prediction_time: Any, label_time: Any, observed_until: Any
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Ages at `observed_until`, delays (NaN: no label by then), and whether both are in days.

    Example:
        >>> ages_and_delays([0, 0, 5], [2, 9, None], 7)
        (array([7., 7., 2.]), array([ 2., nan, nan]), False)
    """
    predicted = times_of(prediction_time, "prediction_time")
    labelled = times_of(label_time, "label_time")
    until = times_of([moment_of(observed_until)], "observed_until")
    check_same_rows(
        "Prediction times and label times",
        {"prediction_time": len(predicted), "label_time": len(labelled)},
    )
    if not len(predicted):
        raise ValueError("Argument `prediction_time` must hold rows. Received: none.")
    if np.isnan(until[0]) or np.isinf(until[0]):
        raise ValueError(
            f"Argument `observed_until` must be a time. Received: observed_until={observed_until}."
        )
    if np.isnan(labelled).all():
        # A column of missing values only has a type by chance.
        nothing = MISSING if predicted.dtype.kind == "M" else np.nan
        labelled = np.full(len(labelled), nothing)
    kinds = {each.dtype.kind for each in (predicted, labelled, until)}
    if len(kinds) > 1:
        raise ValueError(
            "Arguments `prediction_time`, `label_time` and `observed_until` must all be numbers or "
            f"all be dates. Received: {predicted.dtype}, {labelled.dtype} and {until.dtype}."
        )
    in_days = kinds == {"M"}
    ages, delays = (until - predicted), (labelled - predicted)
    if in_days:
        ages, delays = ages / DAY, delays / DAY
    _check(ages, delays, predicted, labelled)
    return ages, np.where(delays <= ages, delays, np.nan), in_days


def _check(
    ages: np.ndarray, delays: np.ndarray, predicted: np.ndarray, labelled: np.ndarray
) -> None:
    refuse_rows(
        ~np.isfinite(ages),
        predicted,
        "Prediction times must be known.",
        "Drop rows without a time.",
    )
    refuse_rows(
        ages < 0,
        predicted,
        "Prediction times must not be after `observed_until`.",
        "Drop the later rows.",
    )
    refuse_rows(
        (delays < 0) | np.isinf(delays),
        labelled,
        "Label times must not be before the prediction, nor infinite.",
        "Leave the label time of a row without a label missing (NaN, NaT or None).",
    )
