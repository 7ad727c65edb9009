"""LogSums: the sums of a scored log, which add up over shards."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration_records._files import write_atomically
from calibration_records.logs.embedded import array_of, merged

if TYPE_CHECKING:
    import pyarrow

# The table of the sums of all rows.
TOTALS = "totals"
_CHECKSUM = hashlib.sha256().digest_size


class LogSums:
    """The tables of sums, by name, that `score`, calibrators and `monitor` need from a log.

    Add the sums of the parts of a log to get the sums of the log: compute them where the rows are,
    on any engine. `score(sums, metrics)` gives the results. Their size depends on the number of
    field values, not on the number of rows.

    Args:
        tables: Name → Arrow table of the columns `key_…` (the group) and sums (float64).

    Example:
        >>> import pandas as pd
        >>> from keras_calibration.logs import ScoredLog, log_sums
        >>> from keras_calibration.scoring import log_queries
        >>> log = ScoredLog(label="y", probability="p", fields=["site"])
        >>> queries = log_queries(log, [])
        >>> monday = pd.DataFrame({"y": [1, 0], "p": [0.5, 0.5], "site": ["a", "b"]})
        >>> tuesday = pd.DataFrame({"y": [1], "p": [0.25], "site": ["b"]})
        >>> both = sum((log_sums(log.of(day), queries) for day in (monday, tuesday)), LogSums())
        >>> both.num_rows, both.table("field/site")["residual"].tolist()
        (3, [0.5, 0.25])
    """

    def __init__(self, tables: Mapping[str, pyarrow.Table] | None = None) -> None:
        self._tables = dict(tables or {})

    @property
    def names(self) -> list[str]:
        """The names of the tables."""
        return list(self._tables)

    @property
    def num_rows(self) -> int:
        """Number of rows of the log."""
        return int(self.table(TOTALS)["rows"].sum()) if TOTALS in self._tables else 0

    def table(self, name: str) -> dict[str, np.ndarray]:
        """A table as column → array, in the order of its keys; columns of strings are objects."""
        table = _sort_by_keys(self._find(name))
        return {column: array_of(table.column(column)) for column in table.column_names}

    def columns(self, name: str, columns: Sequence[str]) -> np.ndarray:
        """Some columns of a table, shape `(rows, columns)`, in any order of the rows."""
        table = self._find(name, columns)
        return np.stack([array_of(table.column(column)) for column in columns], axis=1)

    def _find(self, name: str, columns: Sequence[str] = ()) -> pyarrow.Table:
        """A table; raises if the sums are of other queries."""
        table = self._tables.get(name)
        if table is None or not {*columns} <= {*table.column_names}:
            raise ValueError(
                f"The sums must hold {[name, *columns]}. Received: {self.names}. Compute them by "
                "`log_sums` with the queries of these metrics, fields or heads."
            )
        return table

    def by_period(self) -> dict[int, LogSums]:
        """Splits the sums by period: start of the period → its sums.

        Requires that `Query.by_period` made every query, and that one is called "rows".
        """
        starts = self.table("rows")["key_period"]
        parts: dict[int, dict[str, pyarrow.Table]] = {int(start): {} for start in starts}
        # Each table is in order of its periods, so a binary search finds where each one ends;
        # slices copy nothing.
        # The sums of all rows cannot be split; "rows" takes their place in each part.
        split = {name: table for name, table in self._tables.items() if name != TOTALS}
        for name, table in split.items():
            table = _sort_by_keys(table)
            periods = array_of(table.column("key_period"))
            table = table.drop_columns(["key_period"])
            ends = np.searchsorted(periods, starts, side="right").tolist()
            for start, first, end in zip(parts, [0, *ends[:-1]], ends, strict=True):
                parts[start][TOTALS if name == "rows" else name] = table.slice(first, end - first)
        return {start: LogSums(tables) for start, tables in parts.items()}

    def __add__(self, other: LogSums) -> LogSums:
        return LogSums.merged([self, other])

    @classmethod
    def merged(cls, parts: Sequence[LogSums]) -> LogSums:
        """The sum of many parts at once."""
        parts = [part for part in parts if part.names]
        if not parts:
            return cls()
        # Sums of other queries have other meanings, even with the same columns.
        if others := [part.names for part in parts if part.names != parts[0].names]:
            raise ValueError(
                f"Sums must come from the same queries. Received: {parts[0].names} and {others[0]}."
            )
        return cls({n: merged([part._tables[n] for part in parts]) for n in parts[0].names})

    def to_bytes(self) -> bytes:
        """The sums as bytes, to send to another process, after their checksum."""
        import pyarrow

        stream = io.BytesIO()
        stream.write((json.dumps(self.names) + "\n").encode())
        for table in self._tables.values():
            with pyarrow.ipc.new_stream(stream, table.schema) as writer:
                writer.write_table(table)
        data = stream.getvalue()
        # A checksum first: Arrow does not notice every damage.
        return hashlib.sha256(data).digest() + data

    @classmethod
    def from_bytes(cls, data: bytes) -> LogSums:
        """The sums from `to_bytes`.

        Raises:
            ValueError: If the bytes are not from `to_bytes`, or are damaged.
        """
        import pyarrow

        content = data[_CHECKSUM:]
        if hashlib.sha256(content).digest() != data[:_CHECKSUM]:
            raise ValueError(
                "Argument `data` must be what `LogSums.to_bytes` returned. Received: "
                f"{len(data):,} bytes that are damaged, or something else."
            )
        stream = io.BytesIO(content)
        names = json.loads(stream.readline())
        return cls({name: pyarrow.ipc.open_stream(stream).read_all() for name in names})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the sums to a file atomically: readers see the old file or the new one.

        If two processes write at once, the file of one of them stays.
        """
        write_atomically(Path(os.path.realpath(path)), self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LogSums:
        """Reads the sums that `save` wrote.

        Raises:
            ValueError: If the file is damaged, or not from `save`.
        """
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(
                "Argument `path` must name a file that `LogSums.save` wrote. Received: "
                f"{os.fspath(path)!r}, which is damaged, or another file."
            ) from error


def _sort_by_keys(table: pyarrow.Table) -> pyarrow.Table:
    """A table in the order of its keys. Arrow sorts several times as fast as DuckDB."""
    keys = [name for name in table.column_names if name.startswith("key_")]
    return table.sort_by([(name, "ascending") for name in keys]) if keys else table


def whole_numbers(values: np.ndarray) -> np.ndarray | None:
    """Field values as whole numbers, -1 or NaN where missing; None if a value is no whole number.

    Texts of whole numbers, as in a CSV file, count as numbers.

    Example:
        >>> whole_numbers(np.array(["5", None, "7.0"], object))
        array([ 5, -1,  7])
    """
    if values.dtype != object:
        return None if values.dtype.kind == "f" and (np.floor(values) < values).any() else values
    try:
        return np.array(
            [-1 if value is None else _parse_whole_number(value) for value in values], np.int64
        )
    except (TypeError, ValueError, OverflowError):
        return None


def _parse_whole_number(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.0*)?", value):
        return int(value.partition(".")[0])
    if isinstance(value, int):
        return int(value)
    raise ValueError(f"{value!r} is no whole number.")
