"""Ages of rows and delays of their labels, from times as numbers, datetimes or pandas columns."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from calibration_records._columns import (
    as_array,
    check_same_rows,
    is_missing,
    numbers_of,
    refuse_rows,
)

_DAY = np.timedelta64(86_400_000_000, "us")
# With its unit: NumPy 2.5 deprecates times and durations that have none.
_MISSING = np.datetime64("NaT", "us")


def ages_and_delays(
    prediction_time: Any, label_time: Any, observed_until: Any
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Ages at `observed_until`, delays (NaN: no label by then), and whether both are in days.

    Example:
        >>> ages_and_delays([0, 0, 5], [2, 9, None], 7)
        (array([7., 7., 2.]), array([ 2., nan, nan]), False)
    """
    predicted = _times(prediction_time, "prediction_time")
    labelled = _times(label_time, "label_time")
    until = _times([_moment(observed_until)], "observed_until")
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
        nothing = _MISSING if predicted.dtype.kind == "M" else np.nan
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
        ages, delays = ages / _DAY, delays / _DAY
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


def _times(values: Any, name: str) -> np.ndarray:
    """A column of times (n,), datetime64 in UTC or float64; missing ones are NaT or NaN."""
    if getattr(getattr(values, "dtype", None), "tz", None) is not None:
        values = getattr(values, "dt", values).tz_convert(None)
    array = as_array(values, name)
    if array.dtype.kind == "O" and any(isinstance(each, datetime.date) for each in array.flat):
        array = np.array([_moment(each) for each in array.flat], dtype="datetime64[us]")
    if array.dtype.kind == "M":
        return array.astype("datetime64[us]").reshape(-1)
    if array.dtype.kind in "SUT" or any(isinstance(each, str) for each in array.flat[:10]):
        raise ValueError(
            f"Argument `{name}` must hold numbers or dates. Received: strings, such as "
            f"{array.flat[0]!r}. Convert them, for example with pandas.to_datetime."
        )
    return numbers_of(array, "Times").astype(np.float64).reshape(-1)


def _moment(value: Any) -> Any:
    """A time in UTC as a datetime64; a number as it is; a missing one as NaT."""
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(
                "Times must be numbers, dates or ISO 8601 strings, for example 2026-03-07. "
                f"Received: {value!r}."
            ) from None
    if isinstance(value, datetime.datetime) and not is_missing(value):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        return np.datetime64(value.replace(fold=0), "us")
    if isinstance(value, datetime.date) and not is_missing(value):
        return np.datetime64(value, "us")
    if isinstance(value, np.datetime64):
        return value
    return _MISSING if value is None or is_missing(value) else value
