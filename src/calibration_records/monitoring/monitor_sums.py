"""monitor_sums: the sums of a log that `monitor` checks, by period and by field value."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from typing import NamedTuple

import numpy as np

from calibration_records._check import refused
from calibration_records._columns import names_of
from calibration_records.logs import LogSums, Periods, ScoredLog, log_sums
from calibration_records.logs.query import FIELD, Query, field_keys, logit_moments, moments_of
from calibration_records.logs.rows import Selection
from calibration_records.logs.scored_log import field_name
from calibration_records.monitoring.sums import Sums

# Prefix of the name of the periods' table, before their length.
ROWS = "rows/"
# The first Monday of 1970, and a week, in seconds.
_MONDAY = 4 * 86400
_WEEK = 7 * 86400


def monitor_sums(log: ScoredLog, period: str | Periods = "day", verbose: int = 0) -> LogSums:
    """The sums of a log that `monitor` needs: they add up, and can be saved.

    A daily job reads only new rows and adds their sums to the sums of the earlier days. The sums
    take 27 kB for each period, and 48 bytes for each field value and week, whatever the number of
    rows. DuckDB reads the log three times, and once more for each field.

    Args:
        log: The log, with its `timestamp`. Its weights must be None, because the bounds of
            `monitor` count rows.
        period: `"hour"`, `"day"`, `"week"`, `"month"` or `"year"`, or `logs.Periods`.
        verbose: 1 shows a progress bar, 0 does not.

    Raises:
        ValueError: As `logs.log_sums`; or rows have weights, or labels are soft.

    Example:
        >>> import pandas as pd
        >>> from calibration_records.monitoring import monitor
        >>> log = ScoredLog(timestamp="day")
        >>> days = [
        ...     pd.DataFrame({"day": [day] * 9, "probability": [1 / 3] * 9, "label": [1, 0, 0] * 3})
        ...     for day in ("2026-03-01", "2026-03-02")
        ... ]
        >>> yesterday, today = (monitor_sums(log.of(rows)) for rows in days)
        >>> [day.num_rows for day in monitor(yesterday + today).periods]
        [9, 9]
    """
    periods = period if isinstance(period, Periods) else Periods(period)
    if log.sample_weight is not None:
        raise refused("sample_weight", "None: `monitor` counts rows", log.sample_weight)
    # Four sums suffice for rates and shifts; `soft` counts labels that are neither 0 nor 1.
    sums = {"rows": "1", "positives": "y", "predicted": "p", "squares": "p * p"}
    queries = {
        ROWS + periods.length: Query({}, {**sums, "soft": "(y != 0 AND y != 1)::INT"}).by_period(),
        "moments": logit_moments().by_period(),
    }
    for field in log.fields:
        keys = {**field_keys(names_of(field)), "block": _write_block_start(periods.length)}
        queries[FIELD + field_name(field)] = Query(keys, sums)
    totals = log_sums(log, queries, Selection(periods.length, periods.ends), verbose)
    if num_soft := int(totals.table(ROWS + periods.length)["soft"].sum()):
        raise ValueError(f"Labels must be 0 or 1. Received: {num_soft:,} others.")
    return totals


def period_sums(sums: LogSums, length: str) -> tuple[list[int], Sums]:
    """Starts of the periods, and their sums."""
    table = sums.table(ROWS + length)
    return table["key_period"].tolist(), Sums(*(table[name] for name in Sums._fields))


def period_moments(sums: LogSums) -> Iterator[np.ndarray]:
    """The moments of the logits of each period (418, 8)."""
    table = sums.table("moments")
    # The table is in order of its keys, so each period is one range of rows.
    _, firsts = np.unique(table["key_period"], return_index=True)
    for rows in np.split(np.arange(len(table["key_period"])), firsts[1:]):
        yield from moments_of({name: values[rows] for name, values in table.items()}, 0, 1)


class ValueSums(NamedTuple):
    """The sums of the values of a field, by time block.

    Args:
        names: The names of the values.
        sums: The sums of each value and block.
        value: Number of each group's value, in ascending order.
        block: Start of each group's block.
    """

    names: list[str]
    sums: Sums
    value: np.ndarray
    block: np.ndarray

    @property
    def totals(self) -> Sums:
        """The sums of each value over all blocks."""
        return self.sums.added(np.flatnonzero(np.diff(self.value, prepend=-1)))

    def select(self, chosen: np.ndarray) -> ValueSums:
        """The sums of the values that a mask chooses."""
        # Keep the groups of the chosen values, and number these from 0 again.
        groups = chosen[self.value]
        return ValueSums(
            list(compress(self.names, chosen)),
            self.sums.select(groups),
            (np.cumsum(chosen) - 1)[self.value[groups]],
            self.block[groups],
        )


def value_sums(sums: LogSums, name: str) -> ValueSums:
    """The sums of the values of a field, from the table of this name."""
    table = sums.table(name)
    keys = [values for key, values in table.items() if key.startswith("key_value_")]
    # Groups of a value follow each other, one for each block; a value starts where a key changes.
    is_first = np.any([_differs(values) for values in keys], axis=0)
    firsts = [values[is_first].tolist() for values in keys]
    names = [" × ".join(map(_format_value, values)) for values in zip(*firsts, strict=True)]
    return ValueSums(
        names,
        Sums(*(table[name] for name in Sums._fields)),
        np.cumsum(is_first) - 1,
        table["key_block"].astype(np.int64),
    )


def block_length(length: str) -> str:
    """The length of the time blocks in which field values may shift: at least a week."""
    return length if length in ("month", "year") else "week"


def _write_block_start(length: str) -> str:
    """The start of a row's time block, from the start of its period, in SQL."""
    # 1970 began on a Thursday; SQL's % keeps the sign, hence the second % for times before 1970.
    since_monday = f"((t - {_MONDAY}) % {_WEEK} + {_WEEK}) % {_WEEK}"
    return f"t - {since_monday}" if block_length(length) == "week" else "t"


def _differs(values: np.ndarray) -> np.ndarray:
    """Whether each value differs from the one before; missing values are equal."""
    before = values[:-1]
    after = values[1:]
    # NaN differs from itself, so both values being NaN is no difference.
    return np.r_[True, (before != after) & ((before == before) | (after == after))]


def _format_value(value: object) -> str:
    if value is None or value != value:
        return "(missing)"
    # Pandas turns whole numbers into floats on a day with a missing one; the name must not change.
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)
