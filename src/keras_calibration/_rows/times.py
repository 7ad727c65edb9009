"""The times of rows: a column, an array, or the order of the rows."""

from __future__ import annotations

import datetime
import time as now
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import not_negative, refused, same_rows
from calibration_records._columns import refuse_rows
from calibration_records._times import DAY, times_of
from calibration_records._warn import warn
from keras_calibration._rows.columns import named_column
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import ALL, Counted

ORDER = "order"
# Times in a smaller range, as a share of their size, are nearly equal in float64; and the range of
# float32.
_SMALLEST_SHARE, _SHORTEST, _LONGEST = 1e-13, 1e-30, 1e30
# Times are far if at most a tenth of the rows come after a gap several times as long as the span of
# the other rows. The first twentieth does not count for the span: it may be old placeholders. Dates
# are also far if they lie more days than this ahead.
_FEW, _FIRST, _FAR, _YEARS_AHEAD = 0.1, 0.05, 5, 730


def with_times(
    rows: Rows, time: ArrayLike | str | None, columns: Any = None, counted: Counted = ALL
) -> Rows:
    """The rows with their times; dates become days since 1970 in UTC.

    Args:
        rows: The rows that count.
        time: The time of each passed row (n,) or (n, 1), numbers or dates; the name of the column
            with the times; `"order"` if the rows are in order of time; or None.
        columns: A mapping of names to columns with all passed rows, or a data frame.
        counted: Which of the passed rows count.

    Example:
        >>> rows = Rows(np.zeros(2), np.array([0, 1]), None)
        >>> with_times(rows, "order").times, with_times(rows, "day", {"day": [3, 1]}).times
        (array([0., 1.]), array([3., 1.]))
    """
    if time is None:
        return rows
    # A name means a column, unless it is the word for the order of the rows.
    if isinstance(time, str):
        time = (
            # Numbers of all passed rows, from which `counted` then selects.
            np.arange(float(counted.num_given or len(rows)))
            if time == ORDER
            else named_column("time", time, columns, 'an array or "order"')
        )
    times = times_of(counted.of(time, "time"), "time")
    same_rows("time", len(times), len(rows), "row")
    are_dates = times.dtype.kind == "M"
    refuse_rows(
        ~np.isfinite(times),  # NaT is not finite either
        times,
        "Argument `time` must have the time of each row.",
        "Drop rows without a time.",
        counted.numbers,
    )
    _warn_of_numbers_of_dates(times)
    numbers = (times - np.datetime64(0, "us")) / DAY if are_dates else times
    # Times that float64 hardly tells apart would put rows of different times into one block.
    least = max(_SHORTEST, _SMALLEST_SHARE * float(np.abs(numbers).max()))
    if not are_dates and np.ptp(times) and not least < np.ptp(times) < _LONGEST:
        raise refused("time", "distinct as floats, for example times since the first", times)
    _warn_of_far_times(numbers, rows.row_weights, times)
    return replace(rows, times=numbers, time_unit="day" if are_dates else "")


def _warn_of_far_times(times: np.ndarray, weights: np.ndarray, given: np.ndarray) -> None:
    """Warns of a few rows long after all others, and of dates years ahead.

    The latest rows decide the level of a fit. Times long before the others do not change it.
    """
    if given.dtype.kind == "f" and _are_digits_of_dates(given):
        return  # another warning names the cause: as digits, years are too far apart
    first, last = np.quantile(times, (_FIRST, 1 - _FEW), method="inverted_cdf", weights=weights)
    # Look for a gap among the latest tenth of the rows, longer than five spans of the rest.
    late = np.unique(times[times >= last])
    ends = late[:-1][np.diff(late) > _FAR * (last - first)]
    limit = ends[0] if len(ends) and last > first else np.inf
    if given.dtype.kind == "M":
        limit = min(limit, now.time() / 86400 + _YEARS_AHEAD)
    far = times > limit
    if far.any():
        warn(
            f"{np.count_nonzero(far):,} of {len(times):,} rows have times far after the others, "
            f"such as {given[far].max()}, where {1 - _FEW:.0%} of the rows are at most at "
            f"{given[times == last][0]}. They decide the level of the fit. If the times are "
            "placeholders, such as 2099-12-31 for an unknown date, drop these rows."
        )


def _warn_of_numbers_of_dates(times: np.ndarray) -> None:
    """Warns of dates read from numbers in another unit, and of dates as digits."""
    if times.dtype.kind == "M":
        if (abs(times - np.datetime64(0, "us")) < 365 * DAY).all():
            warn(
                f"All times are in 1970, from {times.min()} to {times.max()}: they seem to be "
                "numbers that were read in another unit. Pass the numbers, or name the unit: "
                "pandas.to_datetime(days, unit='D'), or format='%Y%m%d' for 20260307."
            )
    elif _are_digits_of_dates(times):
        warn(
            f"The times seem to be dates as digits, such as {times[0]:.0f}, and are read as "
            "numbers, which makes months and years too long. Convert them, for example with "
            "pandas.to_datetime(times, format='%Y%m%d')."
        )


def _are_digits_of_dates(times: np.ndarray) -> bool:
    """Whether all numbers are like 202603, 2026066, 20260307 or 2026030712.

    False if all lie within one month, or within one year for months: there, the numbers are as far
    apart as the dates.
    """
    # The number of digits tells the format: year with month or week, with day of the year, or with
    # month and day, and perhaps hours to seconds.
    digits = len(f"{times.max(initial=0):.0f}")
    places, most = {6: (2, 53), 7: (3, 366)}.get(digits, (2, 12))
    years, parts = np.divmod(times // 10 ** max(digits - 4 - places, 0), 10**places)
    are_dates = (years >= 1950) & (years <= 2100) & (parts >= 1) & (parts <= most)
    return bool(are_dates.all() and digits in (6, 7, 8, 10, 12, 14) and np.ptp(times // 100))


def duration(gap: Any, unit: str) -> float:
    """The gap of `time=(time, gap)`, in the unit of the times: days for dates.

    Example:
        >>> duration(datetime.timedelta(hours=12), "day"), duration(3, "")
        (0.5, 3.0)
    """
    if isinstance(gap, datetime.timedelta | np.timedelta64):
        if unit != "day":
            raise refused("gap", "a number, in the unit of the times, which are not dates", gap)
        # Dates are days since 1970 by now, so the gap has to be days too.
        gap = float(np.timedelta64(gap, "us") / DAY)
    not_negative("gap", gap, also=" in time=(time, gap), in days for dates, or a timedelta")
    return float(gap)
