"""Times as numbers, datetimes or columns of data frames: in UTC, exactly, or with an error."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from calibration_records._columns import NUMBERS, as_array, is_missing, numbers_of

DAY = np.timedelta64(86_400_000_000, "us")


def times_of(values: Any, name: str) -> np.ndarray:
    """A column of times (n,), datetime64 in UTC or float64; NaT or NaN where missing.

    Example:
        >>> times_of([datetime.date(2026, 3, 7)], "time")
        array(['2026-03-07T00:00:00.000000'], dtype='datetime64[us]')
    """
    if getattr(getattr(values, "dtype", None), "tz", None) is not None:
        values = getattr(values, "dt", values).tz_convert(None)
    array = as_array(values, name)
    if array.dtype.kind == "O" and any(isinstance(time, datetime.date) for time in array.flat):
        if len({getattr(t, "tzinfo", None) is None for t in array.flat if not is_missing(t)}) > 1:
            raise ValueError(
                f"Argument `{name}` must have a time zone in all times, or in none. Received: "
                "times with and without. Give each its zone, as by time.replace(tzinfo=…)."
            )
        array = np.array([_convert_to_utc(time) for time in array.flat], dtype="datetime64[us]")
    if array.dtype.kind == "M":
        return array.astype("datetime64[us]").reshape(-1)
    is_no_time = array.dtype.kind in "SUm"
    for time in array.flat if is_no_time or array.dtype.kind == "O" else ():
        if is_no_time or not (is_missing(time) or isinstance(time, NUMBERS)):
            raise ValueError(
                f"Argument `{name}` must hold numbers or dates. Received: {type(time).__name__} "
                f"values, such as {time!r}. Convert them, for example strings with "
                "pandas.to_datetime, and periods of pandas with to_timestamp. Times with a gap "
                "between them are a tuple, (times, gap)."
            )
    return numbers_of(array, name).astype(np.float64).reshape(-1)


def _convert_to_utc(value: Any) -> np.datetime64:
    """A date or time, or a missing one, in UTC."""
    if is_missing(value):
        return np.datetime64("NaT", "us")
    if isinstance(value, datetime.datetime):
        value = value if value.tzinfo is None else value.astimezone(datetime.UTC)
        value = value.replace(tzinfo=None, fold=0)
    return np.datetime64(value, "us")
