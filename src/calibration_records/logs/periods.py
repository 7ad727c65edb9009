"""The periods of a log: hours, days, weeks, months or years, in UTC."""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import dataclass

import numpy as np

from calibration_records._check import one_of, refused
from calibration_records._columns import is_missing
from calibration_records._times import times_of

# Length → unit of NumPy.
_UNITS = {"hour": "h", "day": "D", "week": "D", "month": "M", "year": "Y"}


@dataclass(frozen=True)
class Periods:
    """Cuts a log into periods of one length.

    Args:
        length: `"hour"`, `"day"`, `"week"` (from Monday), `"month"` or `"year"`, in UTC.
        since: First time to include, ISO 8601, rounded down to a period; `None` for all.
        until: First time to exclude, rounded down to a period; `None` for none.

    Raises:
        ValueError: `length` is unknown, or `since` or `until` is not a time.

    Example:
        >>> week = Periods("week", since="2026-03-04")
        >>> start = week.start("2026-03-07T12:30")
        >>> week.name(start), week.ends == (start, None)
        ('2026-03-02', True)
    """

    length: str = "day"
    since: str | datetime.date | None = None
    until: str | datetime.date | None = None

    def __post_init__(self) -> None:
        """Refuses an unknown length, or ends that are not times."""
        one_of("period", self.length, tuple(_UNITS))
        _ = self.ends

    def start(self, time: str | datetime.date, name: str = "time") -> int:
        """The start of a time's period, in seconds since 1970; without a zone, times are in UTC.

        Errors call the argument by its `name`.
        """
        with contextlib.suppress(ValueError):
            time = datetime.datetime.fromisoformat(time) if isinstance(time, str) else time
        if is_missing(time) or not isinstance(time, datetime.date):
            raise refused(
                name,
                "a date, a time or a string in ISO 8601",
                time,
                "Pass, for example, '2026-03-07' or '2026-03-07T12:30:00Z'.",
            )
        # Converting to a coarser unit rounds down to the start of the period.
        at = times_of([time], name)[0].astype(f"datetime64[{_UNITS[self.length]}]")
        if self.length == "week":
            # Back to Monday: 1970 began on a Thursday, three days after one.
            at -= (at.astype(int) + 3) % 7
        return int(at.astype("datetime64[s]").astype(int))

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """First second since 1970 to include and to exclude, or None.

        Example:
            >>> Periods("day", since="1970-01-02T03:00").ends
            (86400, None)
        """
        since, until = (
            None if time is None else self.start(time, name)
            for name, time in (("since", self.since), ("until", self.until))
        )
        return since, until

    def name(self, start: int) -> str:
        """The start of a period as text.

        Example:
            >>> Periods("hour").name(3600), Periods("year").name(0)
            ('1970-01-01T01:00', '1970')
        """
        unit = "m" if self.length == "hour" else _UNITS[self.length]
        return str(np.datetime64(int(start), "s").astype(f"datetime64[{unit}]"))
