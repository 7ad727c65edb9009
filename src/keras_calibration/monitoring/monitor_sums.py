"""The sums of a log that `monitor` checks: by period and by field value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from keras_calibration.logs import LogSums, ScoredLog, log_sums
from keras_calibration.logs.query import field_sums, logit_moments
from keras_calibration.logs.rows import Selection
from keras_calibration.logs.scored_log import field_name
from keras_calibration.ops.logit_moments import NUM_BINS, NUM_COLUMNS
from keras_calibration.scoring.log_metrics import FIELD, field_columns


def class_sums(
    log: ScoredLog,
    length: str,
    ends: tuple[int | None, int | None],
    class_names: Sequence[str] | None,
    verbose: int,
) -> list[LogSums]:
    """The sums of each class against the others; one for a log of labels 0 and 1.

    They take 27 kB a period and class, and 56 bytes a field value and class, whatever the number of
    rows.

    Args:
        log: The log.
        length: "hour", "day", "week" or "month".
        ends: First second since 1970 to include and to exclude, or None.
        class_names: The names of the classes, or None.
        verbose: 1 shows a progress bar, 0 does not.

    Raises:
        ValueError: As `logs.log_sums`; or labels are soft.
    """
    selections = [Selection(length, ends)]
    if class_names is not None:
        selections = [
            Selection(length, ends, number, tuple(class_names))
            for number in range(len(class_names))
        ]
    return [_read(log, each, verbose) for each in selections]


def period_sums(sums: LogSums) -> tuple[list[int], np.ndarray]:
    """Starts of the periods, and their seven sums (periods, 7), of `ops.field_sums`."""
    table = sums.table("rows")
    return table["key_period"].tolist(), field_columns(table)


def period_moments(sums: LogSums) -> Iterator[np.ndarray]:
    """The `ops.logit_moments` of each period (418, 8)."""
    table = sums.table("moments")
    columns = np.stack([table[f"column_{place}"] for place in range(NUM_COLUMNS)], axis=1)
    _, firsts = np.unique(table["key_period"], return_index=True)
    for bins, rows in zip(
        np.split(table["key_bin"], firsts[1:]), np.split(columns, firsts[1:]), strict=True
    ):
        moments = np.zeros((NUM_BINS, NUM_COLUMNS))
        moments[bins] = rows
        yield moments


def value_sums(sums: LogSums, field: str) -> tuple[list[str], np.ndarray]:
    """Names of the values of a field, and their seven sums (values, 7)."""
    table = sums.table(FIELD + field)
    keys = [values.tolist() for name, values in table.items() if name.startswith("key_")]
    names = [" × ".join(map(_text, values)) for values in zip(*keys, strict=True)]
    return names, field_columns(table)


def _read(log: ScoredLog, selection: Selection, verbose: int) -> LogSums:
    """The sums of one class."""
    row_sums = field_sums([], weighted=False)
    counts = {"rows": "1", "soft": "(y != 0 AND y != 1)::INT"}
    row_sums = dataclasses.replace(row_sums, sums={**row_sums.sums, **counts})
    queries = {"rows": row_sums.by_period(), "moments": logit_moments().by_period()}
    columns = {field_name(f): [f] if isinstance(f, str) else [*f] for f in log.fields}
    queries |= {
        FIELD + name: field_sums(columns_of_field, weighted=False)
        for name, columns_of_field in columns.items()
    }
    sums = log_sums(log, queries, selection, verbose)
    table = sums.table("rows")
    if soft := int(table["soft"].sum()):
        raise ValueError(
            f"Labels must be 0 or 1. Received: {soft:,} others in {sums.num_rows:,} rows. Check "
            "the name of the column."
        )
    return LogSums({name: sums.tables[name] for name in queries})


def _text(value: object) -> str:
    return "(missing)" if value is None or value != value else str(value)
