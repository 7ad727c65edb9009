"""MonitorState: the sums of a log by period and by field value, kept from run to run."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_calibration.logs import LogSums, Periods, ScoredLog, Selection, log_sums
from keras_calibration.logs.query import field_sums, logit_moments
from keras_calibration.logs.scored_log import field_name
from keras_calibration.ops.logit_moments import NUM_BINS, NUM_COLUMNS
from keras_calibration.scoring.log_metrics import FIELD, field_columns

if TYPE_CHECKING:
    import pyarrow

_SETTINGS = "settings"


@dataclass(frozen=True)
class MonitorState:
    """What `monitor` keeps of the rows that it has read: sums by period, and by field value.

    It takes 27 kB a period and class, and 56 bytes a field value and class, whatever the number of
    rows.

    Args:
        settings: What the sums are of: fields, classes and length of a period.
        until: First second since 1970 that has not been read; None if all has.
        of_classes: The sums of each class against the others; one for a log of labels 0 and 1.
    """

    settings: dict[str, Any]
    until: int | None
    of_classes: list[LogSums]

    @classmethod
    def read(
        cls,
        log: ScoredLog,
        periods: Periods,
        class_names: Sequence[str] | None,
        ends: tuple[int | None, int | None],
        verbose: int = 0,
    ) -> MonitorState:
        """Reads the rows of a log between two times.

        Raises:
            ValueError: As `logs.log_sums`; or labels are soft.
        """
        selections = [Selection(periods.length, ends)]
        if class_names is not None:
            selections = [
                Selection(periods.length, ends, number, tuple(class_names))
                for number in range(len(class_names))
            ]
        settings: dict[str, Any] = {
            "fields": [field_name(field) for field in log.fields],
            "classes": None if class_names is None else [*class_names],
            "period": periods.length,
        }
        return cls(settings, ends[1], [_read(log, each, verbose) for each in selections])

    def __add__(self, later: MonitorState) -> MonitorState:
        if self.settings != later.settings:
            raise ValueError(
                f"The state is of a monitor of {self.settings}. Received: {later.settings}. Use "
                "another file, or the same fields, classes and period."
            )
        sums = [a + b for a, b in zip(self.of_classes, later.of_classes, strict=True)]
        return MonitorState(self.settings, later.until, sums)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state to a file, in one step: it is the old one or the new one."""
        import pyarrow

        written = json.dumps({"settings": self.settings, "until": self.until})
        tables = {_SETTINGS: pyarrow.table({"key_settings": [written]})}
        for number, sums in enumerate(self.of_classes):
            tables |= {f"{number}/{name}": table for name, table in sums.tables.items()}
        LogSums(tables).save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MonitorState:
        """Reads the state that `save` wrote.

        Raises:
            ValueError: If the file is none.
        """
        try:
            tables = LogSums.load(path).tables
            written = json.loads(tables.pop(_SETTINGS).column("key_settings")[0].as_py())
            of_classes: dict[int, dict[str, pyarrow.Table]] = {}
            for name, table in tables.items():
                number, _, rest = name.partition("/")
                of_classes.setdefault(int(number), {})[rest] = table
            sums = [LogSums(each) for _, each in sorted(of_classes.items())]
            return cls(written["settings"], written["until"], sums)
        except (ValueError, KeyError, OSError, UnicodeDecodeError) as error:
            raise ValueError(
                "Argument `state` must name a file that `monitor` wrote, or a new one. Received: "
                f"{os.fspath(path)!r}, which cannot be read: {error}. Move it away to read the "
                "whole log again."
            ) from error


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
    of_rows = field_sums([], weighted=False)
    counts = {"rows": "1", "soft": "(y != 0 AND y != 1)::INT"}
    of_rows = dataclasses.replace(of_rows, sums={**of_rows.sums, **counts})
    queries = {"rows": of_rows.by_period(), "moments": logit_moments().by_period()}
    columns = {field_name(f): [f] if isinstance(f, str) else [*f] for f in log.fields}
    queries |= {
        FIELD + name: field_sums(of_field, weighted=False) for name, of_field in columns.items()
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
