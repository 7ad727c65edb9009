"""The times of rows: a column, an array, or the order of the rows."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._columns import as_array, by_name, refuse_rows, suggestion
from calibration_records._times import DAY, times_of
from keras_calibration._rows.rows import Rows

ORDER = "order"
_SHORTEST, _LONGEST = 1e-30, 1e30
_FEWEST_STEPS = 1000


def with_times(
    rows: Rows, time: ArrayLike | str | None, columns: Any = None, first: float = 0.0
) -> Rows:
    """The rows with their times; days since 1970 in UTC, if they are dates.

    Args:
        rows: The rows that count, of all that were given.
        time: The time of each row that was given (n,) or (n, 1), numbers or dates; the name of the
            column that has them; `"order"` if the rows are in order of time; or None.
        columns: A mapping of names to columns with all rows that were given, or a data frame.
        first: The time of the first row, if they are in order of time.

    Example:
        >>> rows = Rows(np.zeros(2), np.array([0, 1]), None)
        >>> with_times(rows, "order").times, with_times(rows, "day", {"day": [3, 1]}).times
        (array([0., 1.]), array([3., 1.]))
    """
    if time is None:
        return rows
    num_given = len(rows) if rows.num_given is None else rows.num_given
    given = time_given(time, columns)
    if isinstance(given, str):
        given = first + np.arange(num_given)
    times = times_of(given, "time")
    if len(times) != num_given:
        raise ValueError(
            f"Argument `time` must have the time of each of the {num_given:,} rows, be the name of "
            f'a column, or "order". Received: {len(times):,} times.'
        )
    times = times if rows.numbers is None else times[rows.numbers]
    are_dates = times.dtype.kind == "M"
    missing = np.isnat(times) if are_dates else ~np.isfinite(times)
    refuse_rows(missing, times, "Times must be known.", "Drop rows without a time.")
    if are_dates:
        times = (times - np.datetime64(0, "us")) / DAY
    elif np.ptp(times) < _FEWEST_STEPS * np.spacing(np.abs(times).max()) and _are_lost(given):
        raise ValueError(
            "Argument `time` must hold times that float64 tells apart. Received: times near "
            f"{times.max():g}. Give the time since the first of them."
        )
    elif not _SHORTEST < np.ptp(times) < _LONGEST and np.ptp(times) > 0:
        raise ValueError(
            f"Argument `time` must hold times from {_SHORTEST:g} to {_LONGEST:g} apart, the range "
            f"of float32. Received: times from {times.min():g} to {times.max():g}. Give them in "
            "another unit."
        )
    return replace(rows, times=times, time_unit="day" if are_dates else "")


def time_given(time: ArrayLike | str | None, columns: Any) -> Any:
    """The column that `time` names, which need not be a feature or an input; else `time` itself.

    Example:
        >>> time_given("day", {"day": [3, 1]}), time_given("order", {})
        ([3, 1], 'order')
    """
    if not isinstance(time, str) or time == ORDER:
        return time
    found = by_name(columns)
    names = found if isinstance(found, Mapping) else {}
    if time not in names:
        raise ValueError(
            'Argument `time` must name a column of the rows, be "order", or an array with the time '
            f"of each row. Received: time={time!r}; the columns are {sorted(map(str, names))}."
            f"{suggestion([time], names)}"
        )
    return names[time]


def _are_lost(times: Any) -> bool:
    """Whether whole numbers differ that are the same in float64."""
    array = as_array(times, "time")
    distinct = np.unique(array) if array.dtype.kind in "iu" else array[:0]
    return len(np.unique(distinct.astype("float64"))) < len(distinct)


def duration(gap: Any, unit: str) -> float:
    """The argument `gap`, in the unit of the times: days, if these are dates.

    Example:
        >>> duration(datetime.timedelta(hours=12), "day"), duration(3, "")
        (0.5, 3.0)
    """
    if isinstance(gap, datetime.timedelta | np.timedelta64):
        if unit != "day":
            raise ValueError(
                "Argument `gap` must be a number, in the unit of the times, because these are not "
                f"dates. Received: gap={gap!r}."
            )
        gap = np.timedelta64(gap, "us") / DAY
    is_number = isinstance(gap, int | float | np.number) and not isinstance(gap, bool)
    if not is_number or not 0 <= gap < np.inf:
        raise ValueError(
            "Argument `gap` must be a duration of at least 0, in days where times are dates, or a "
            f"timedelta. Received: gap={gap!r}."
        )
    return float(gap)
