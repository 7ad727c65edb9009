"""The sums of a log that `monitor` checks: by period and by field value."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calibration_records.logs import LogSums, ScoredLog, log_sums
from calibration_records.logs.late_labels.late_sql import hazard_sums
from calibration_records.logs.query import (
    FIELD,
    Query,
    field_keys,
    logit_moments,
    moments_of,
)
from calibration_records.logs.rows import Selection
from calibration_records.logs.scored_log import field_name
from calibration_records.monitoring.sums import Sums

# The first Monday of 1970, and a week, in seconds.
_MONDAY, _WEEK = 4 * 86400, 7 * 86400


def class_sums(
    log: ScoredLog,
    length: str,
    ends: tuple[int | None, int | None],
    class_names: Sequence[str] | None,
    tolerance: float,
    verbose: int,
) -> list[LogSums]:
    """The sums of each class against the others; one for a log of labels 0 and 1.

    They take 27 kB a period and class, and 48 bytes a week, field value and class, whatever the
    number of rows.

    Args:
        log: The log.
        length: "hour", "day", "week", "month" or "year".
        ends: First second since 1970 to include and to exclude, or None.
        class_names: The names of the classes, or None.
        tolerance: Relative error that does not matter, for labels that come late.
        verbose: 1 shows a progress bar, 0 does not.

    Raises:
        ValueError: As `logs.log_sums`; or labels are soft.
    """
    selections = [Selection(length, ends, purpose="observed")]
    if class_names is not None:
        selections = [
            Selection(length, ends, number, tuple(class_names), "observed")
            for number in range(len(class_names))
        ]
    row_sums = {"rows": "1", "positives": "y", "predicted": "p", "predicted_squares": "p * p"}
    if log.label_time is not None:
        row_sums |= hazard_sums(tolerance)
    return [_read(log, each, row_sums, verbose) for each in selections]


def period_sums(sums: LogSums) -> tuple[list[int], Sums]:
    """Starts of the periods, and their sums."""
    table = sums.table("rows")
    return table["key_period"].tolist(), _sums(table)


def period_moments(sums: LogSums) -> Iterator[np.ndarray]:
    """The moments of the logits of each period (418, 8)."""
    table = sums.table("moments")
    _, firsts = np.unique(table["key_period"], return_index=True)
    for first, end in itertools.pairwise([*firsts, len(table["key_period"])]):
        (moments,) = moments_of({name: each[first:end] for name, each in table.items()}, 0, 1)
        yield moments


class ValueSums(NamedTuple):
    """The sums of the values of a field, by block of time.

    Args:
        names: The names of the values.
        sums: The sums of each value and block.
        value: Number of each group's value, in ascending order.
        block: Start of each group's block, see `block_of`.
    """

    names: list[str]
    sums: Sums
    value: np.ndarray
    block: np.ndarray

    @property
    def totals(self) -> Sums:
        """The sums of each value over all blocks."""
        return self.sums.added(self._firsts)

    @property
    def _firsts(self) -> np.ndarray:
        return np.flatnonzero(np.diff(self.value, prepend=-1))

    def groups_of(self, values: np.ndarray) -> tuple[Sums, np.ndarray, np.ndarray]:
        """Sums, value and block of the groups of some values, which are numbered anew from 0."""
        firsts, counts = self._firsts, np.bincount(self.value)[values]
        moved = firsts[values] - np.concatenate([[0], np.cumsum(counts)[:-1]])
        groups = np.arange(counts.sum()) + np.repeat(moved, counts)
        return self.sums.of(groups), np.repeat(np.arange(len(values)), counts), self.block[groups]


def value_sums(sums: LogSums, field: str) -> ValueSums:
    """The sums of the values of a field."""
    table = sums.table(FIELD + field)
    keys = [values for name, values in table.items() if name.startswith("key_value_")]
    is_first = np.any([_differs(values) for values in keys], axis=0)
    firsts = [values[is_first].tolist() for values in keys]
    names = [" × ".join(map(_text, values)) for values in zip(*firsts, strict=True)]
    value = np.cumsum(is_first) - 1
    return ValueSums(names, _sums(table), value, table["key_block"].astype(np.int64))


def _sums(table: Mapping[str, np.ndarray]) -> Sums:
    """The sums of each group, without what tells the group."""
    return Sums({name: sums for name, sums in table.items() if not name.startswith("key_")})


def block_length(length: str) -> str:
    """The length of the blocks in which the values of a field may shift: weeks, or more."""
    return length if length in ("month", "year") else "week"


def _block_of(length: str) -> str:
    """Expression of the start of a row's block, from that of its period."""
    since_monday = f"((t - {_MONDAY}) % {_WEEK} + {_WEEK}) % {_WEEK}"
    return f"t - {since_monday}" if block_length(length) == "week" else "t"


def _read(
    log: ScoredLog, selection: Selection, row_sums: Mapping[str, str], verbose: int
) -> LogSums:
    """The sums of one class."""
    soft = {"soft": "(y != 0 AND y != 1)::INT"}
    queries = {
        "rows": Query({}, {**row_sums, **soft}).by_period(),
        "moments": logit_moments().by_period(),
    }
    block = {"block": _block_of(str(selection.period))}
    for field in log.fields:
        keys = field_keys([field] if isinstance(field, str) else field)
        queries[FIELD + field_name(field)] = Query({**keys, **block}, row_sums)
    sums = log_sums(log, queries, selection, verbose)
    table = sums.table("rows")
    if num_soft := int(table["soft"].sum()):
        raise ValueError(
            f"Labels must be 0 or 1. Received: {num_soft:,} others in {sums.num_rows:,} rows. "
            "Check the name of the column."
        )
    return LogSums({name: sums.tables[name] for name in queries})


def _differs(values: np.ndarray) -> np.ndarray:
    """Whether each value differs from the one before; missing values are equal."""
    differs = np.ones(len(values), bool)
    differs[1:] = values[1:] != values[:-1]
    if values.dtype.kind == "f":
        differs[1:] &= ~(np.isnan(values[1:]) & np.isnan(values[:-1]))
    return differs


def _text(value: object) -> str:
    return "(missing)" if value is None or value != value else str(value)
