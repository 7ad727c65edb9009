"""The periods of a log: hours, days, weeks or months, in UTC."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

LENGTHS = ("hour", "day", "week", "month")
_DAY = 24 * 60 * 60


@dataclass(frozen=True)
class Periods:
    """Cuts a log into periods of one length.

    Args:
        length: `"hour"`, `"day"`, `"week"` (from Monday) or `"month"`, in UTC.
        since: First time to include, ISO 8601, rounded down to a period; `None` for all.
        until: First time to exclude, rounded down to a period; `None` for none.

    Raises:
        ValueError: `length` is unknown, or `since` or `until` is not a time.

    Example:
        >>> week = Periods("week", since="2026-03-04")
        >>> starts = week.starts(["2026-03-01", "2026-03-07T12:30"])
        >>> [week.name(start) for start in starts], week.includes(starts).tolist()
        (['2026-02-23', '2026-03-02'], [False, True])
    """

    length: str = "day"
    since: str | None = None
    until: str | None = None

    def __post_init__(self) -> None:
        """Refuses an unknown length, or ends that are not times."""
        if self.length not in LENGTHS:
            raise ValueError(
                f"Argument `period` must be one of {LENGTHS}. Received: period={self.length!r}."
            )
        self.includes(np.zeros(1))

    def starts(self, times: ArrayLike | Sequence[datetime.date]) -> np.ndarray:
        """The start of each time's period, in seconds since 1970 (int64).

        Times are `datetime` or `date` objects (converted to UTC if they have a time zone), ISO 8601
        texts, or seconds since 1970.
        """
        seconds = _seconds(np.asarray(times))
        if self.length in ("hour", "day"):
            length = 3600 if self.length == "hour" else _DAY
            return seconds // length * length
        if self.length == "week":
            # 1970 began on a Thursday.
            days = seconds // _DAY
            return (days - (days + 3) % 7) * _DAY
        months = seconds.astype("datetime64[s]").astype("datetime64[M]")
        return months.astype("datetime64[s]").astype(np.int64)

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """First second since 1970 to include and to exclude, or None.

        Example:
            >>> Periods("day", since="1970-01-02T03:00").ends
            (86400, None)
        """
        since, until = (
            None if time is None else int(self.starts([time])[0])
            for time in (self.since, self.until)
        )
        return since, until

    def name(self, start: int) -> str:
        """The start of a period as text.

        Example:
            >>> Periods("hour").name(3600), Periods("month").name(0)
            ('1970-01-01T01:00', '1970-01')
        """
        unit = {"hour": "m", "month": "M"}.get(self.length, "D")
        return str(np.datetime64(int(start), "s").astype(f"datetime64[{unit}]"))

    def includes(self, starts: np.ndarray) -> np.ndarray:
        """Which of these starts lie between `since` and `until`."""
        included = np.ones(len(starts), bool)
        if self.since is not None:
            included &= starts >= self.starts([self.since])[0]
        if self.until is not None:
            included &= starts < self.starts([self.until])[0]
        return included


def _seconds(times: np.ndarray) -> np.ndarray:
    if times.dtype.kind in "iuf":
        if not np.isfinite(times).all() or (np.abs(times) > 1e11).any():
            raise ValueError(
                "Numbers in the timestamp column must be seconds since 1970. Received: values from "
                f"{times.min()} to {times.max()}. Divide milliseconds by 1000."
            )
        return np.floor(times).astype(np.int64)
    if times.dtype.kind in "UOS":
        times = np.array([_without_zone(value) for value in times.tolist()], "datetime64[s]")
    if times.dtype.kind != "M":
        raise ValueError(
            "The timestamp column must hold times, dates, ISO 8601 strings or seconds since 1970. "
            f"Received: dtype {times.dtype}."
        )
    return times.astype("datetime64[s]").astype(np.int64)


def _without_zone(value: object) -> datetime.date:
    """A time in UTC without a time zone, which NumPy does not support."""
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError(
                "Times must be ISO 8601 strings, for example 2026-03-07 or 2026-03-07T12:30:00Z. "
                f"Received: {value!r}."
            ) from error
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    if not isinstance(value, datetime.date):
        raise ValueError(f"The timestamp column must hold times or dates. Received: {value!r}.")
    return value
