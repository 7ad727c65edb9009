"""The rows of a source as a relation of DuckDB, each row with its number."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from calibration_records.logs.columns import CSV_TEXT
from calibration_records.logs.files import LogFile, log_files, names_files
from calibration_records.logs.query import quoted, text
from calibration_records.logs.rows import check_columns, used_columns
from calibration_records.logs.scored_log import ScoredLog

if TYPE_CHECKING:
    import duckdb

# What DuckDB calls the place of a row in Parquet files; a column of the file hides it.
_FILE, _ROW = "file_index", "file_row_number"
_COUNTED = "row_number() OVER () - 1"
_DELIMITERS = (",", ";", "\t", "|")


@dataclass(frozen=True)
class Source:
    """The rows of a log.

    Args:
        relation: Returns the rows, with a column `row_number` after those of the source. It is
            called before each pass: some sources can be read once a call.
        types: Column → its type in DuckDB; `rows.CSV_TEXT` for the columns of CSV files.
        row_number: The column of the numbers of the rows, from 0.
        file_name: The column of the paths of the files; none for rows in memory.
        files: The files, in the order of their rows; none for rows in memory.
        num_rows: Returns the number of rows of each file.
    """

    relation: Callable[[], duckdb.DuckDBPyRelation]
    types: dict[str, str]
    row_number: str
    file_name: str | None = None
    files: Sequence[LogFile] = ()
    num_rows: Callable[[], list[int]] = field(default=list)

    def place(self, number: int) -> str:
        """The place of a row in words, for example "row 7 of log.csv"."""
        starts = [0, *itertools.accumulate(self.num_rows())]
        before = [start for start in starts[: len(self.files)] if start <= number]
        if not before:
            return f"row {number}"
        return f"row {number - before[-1]} of {self.files[len(before) - 1].path}"


def open_source(connection: duckdb.DuckDBPyConnection, log: ScoredLog) -> Source:
    """The rows of a log on this connection, whatever its source is.

    Raises:
        ValueError: If the source is of another kind, columns are missing, or two have one name.
    """
    import duckdb

    source = log.source
    if names_files(source):
        files = log_files(source, connection)
        opened = _csv(connection, files) if files[0].is_csv else _parquet(connection, files)
        check_columns(log, opened.types, [file.path for file in files])
        return opened
    if isinstance(source, duckdb.DuckDBPyRelation):
        return _relation(connection, log)
    kind = type(source).__module__.partition(".")[0]
    if kind == "polars":
        is_lazy = hasattr(source, "collect")
        names = _needed(log, source.collect_schema().names() if is_lazy else source.columns)
        part = source.select(names)
        return _counted(connection.from_arrow((part.collect() if is_lazy else part).to_arrow()))
    if kind == "pandas" and hasattr(source, "columns"):
        return _counted(connection.from_df(_plain_frame(log)))
    if kind == "pyarrow":
        return _arrow(connection, log)
    raise ValueError(
        "Argument `source` must be a path, glob or list of Parquet or CSV files, an Arrow table or "
        "data set, a pandas or Polars data frame, a DuckDB relation or a Ray data set. "
        f"Received: {type(source).__name__}."
    )


def _needed(log: ScoredLog, columns: Iterable[str], place: str = "") -> list[str]:
    """The columns that the log names, also in `where`; others may be of types that no one reads."""
    columns = list(columns)
    refuse_twice(columns, place)
    check_columns(log, dict.fromkeys(columns, ""))
    used = set(used_columns(log))
    return [name for name in columns if name in used or may_be_named(log.where, name)]


def may_be_named(where: str | None, column: str) -> bool:
    """Whether a condition of SQL may name a column."""
    if where is None:
        return False
    return "*" in where or column.replace('"', '""').casefold() in where.casefold()


def refuse_twice(columns: Sequence[str], place: str = "") -> None:
    """Raises if two columns have one name for DuckDB, which would rename the second."""
    folded = [name.casefold() for name in columns]
    if twice := sorted({name for name in columns if folded.count(name.casefold()) > 1}):
        raise ValueError(
            "Columns must have different names, whether in upper or lower case. Received twice: "
            f"{twice}{place}."
        )


def _counted(rows: duckdb.DuckDBPyRelation) -> Source:
    name = _unused("row number", rows.columns)
    sql = f"SELECT *, ({_COUNTED})::UBIGINT AS {quoted(name)} FROM source"
    numbered = rows.query("source", sql)
    return Source(lambda: numbered, _types(rows), name)


def _relation(connection: duckdb.DuckDBPyConnection, log: ScoredLog) -> Source:
    """A relation of the user's connection: its rows are read there, and summed on ours.

    So the user's settings, of the time zone for example, do not change the sums, and
    `memory_limit` and `num_threads` hold.
    """
    source = log.source
    part = source.project(", ".join(map(quoted, _needed(log, source.columns))))

    def rows(relation: duckdb.DuckDBPyRelation) -> Source:
        name = "to_arrow_reader" if hasattr(relation, "to_arrow_reader") else "fetch_arrow_reader"
        return _counted(connection.from_arrow(getattr(relation, name)(1 << 16)))

    first = rows(part.limit(0))
    return Source(lambda: rows(part).relation(), first.types, first.row_number)


def _arrow(connection: duckdb.DuckDBPyConnection, log: ScoredLog) -> Source:
    import pyarrow

    source = log.source
    if isinstance(source, pyarrow.RecordBatchReader):
        raise ValueError(
            "Argument `source` must be rows that can be read several times. Received: a "
            "RecordBatchReader. Pass its table, reader.read_all(), or the files."
        )
    if isinstance(source, pyarrow.Table | pyarrow.RecordBatch):
        source = source.select(_needed(log, source.schema.names))
    elif hasattr(source, "schema"):
        _needed(log, source.schema.names)
    return _counted(connection.from_arrow(source))


def _plain_frame(log: ScoredLog) -> Any:
    """A pandas frame of the needed columns, without a copy of them."""
    import pandas as pd

    frame = log.source
    columns = {}
    for name in _needed(log, map(str, frame.columns)):
        column = frame.iloc[:, list(map(str, frame.columns)).index(name)]
        categories = getattr(column.dtype, "categories", None)
        if categories is not None and categories.dtype.kind in "iu":
            # DuckDB would read these as floats if one is missing.
            column = column.astype("Int64" if categories.dtype.kind == "i" else "UInt64")
        columns[name] = column
    return pd.DataFrame(columns, copy=False)


def _parquet(connection: duckdb.DuckDBPyConnection, files: Sequence[LogFile]) -> Source:
    listed = f"[{', '.join(text(file.literal) for file in files)}]"
    read = f"read_parquet({listed}, hive_partitioning = false, union_by_name = true)"
    rows = connection.sql(f"SELECT * FROM {read}")
    counts = f"SELECT num_rows FROM parquet_file_metadata({listed})"
    # In the order of the list.
    num_rows = [count for (count,) in connection.sql(counts).fetchall()]
    number = _COUNTED
    if not {_FILE, _ROW} & {name.casefold() for name in rows.columns}:
        # Unlike a count of the rows, this is known in each thread.
        starts = [0, *itertools.accumulate(num_rows)]
        first = f"{starts}[({_FILE} + 1)::BIGINT] + " if len(files) > 1 else ""
        number = f"{first}{_ROW}"
    name, file_name = (_unused(each, rows.columns) for each in ("row number", "file name"))
    read = f"{read[:-1]}, filename = {text(file_name)})"
    numbered = connection.sql(f"SELECT *, ({number})::UBIGINT AS {quoted(name)} FROM {read}")
    return Source(lambda: numbered, _types(rows), name, file_name, files, lambda: num_rows)


def _csv(connection: duckdb.DuckDBPyConnection, files: Sequence[LogFile]) -> Source:
    """CSV files, each column as text: where a number or time is used, all of its rows are cast."""
    headers = [_header(connection, file) for file in files]
    columns = list(dict.fromkeys(name for _, names in headers for name in names))
    refuse_twice(columns, f" in the first lines of {files[0].path!r} and others")
    number, file_name = (_unused(each, columns) for each in ("row number", "file name"))
    if len(set(headers)) == 1:
        read = _csv_sql(files, *headers[0], file_name)
    else:
        parts = [
            _csv_sql([file], *each, file_name) for file, each in zip(files, headers, strict=True)
        ]
        read = " UNION ALL BY NAME ".join(parts)
    numbered = connection.sql(f"SELECT *, ({_COUNTED})::UBIGINT AS {quoted(number)} FROM ({read})")

    def num_rows() -> list[int]:
        selects = [
            _csv_sql([file], *each, file_name) for file, each in zip(files, headers, strict=True)
        ]
        counts = [connection.sql(f"SELECT count(*) FROM ({one})").fetchall() for one in selects]
        return [count for ((count,),) in counts]

    types = dict.fromkeys(columns, CSV_TEXT)
    return Source(lambda: numbered, types, number, file_name, files, num_rows)


def _csv_sql(
    files: Sequence[LogFile], delimiter: str, names: tuple[str, ...], file_name: str
) -> str:
    listed = f"[{', '.join(text(file.literal) for file in files)}]"
    columns = ", ".join(f"{text(name)}: 'VARCHAR'" for name in names)
    # Nothing is guessed from the first rows: no type, no comment, no lines to skip.
    return (
        f"SELECT * FROM read_csv({listed}, auto_detect = false, header = true, "
        f"columns = {{{columns}}}, delim = {text(delimiter)}, quote = '\"', escape = '\"', "
        f"nullstr = '', hive_partitioning = false, filename = {text(file_name)})"
    )


def _header(connection: duckdb.DuckDBPyConnection, file: LogFile) -> tuple[str, tuple[str, ...]]:
    """The delimiter of a CSV file, and the names of its columns, from its first line."""
    lines = connection.sql(
        f"SELECT * FROM read_csv({text(file.literal)}, auto_detect = false, header = false, "
        "columns = {'line': 'VARCHAR'}, delim = '\x01', quote = '', escape = '') LIMIT 1"
    ).fetchall()
    if not lines or lines[0][0] is None:
        raise ValueError(
            "CSV files must have the names of their columns in the first line. Received: "
            f"{file.path!r}, which is empty."
        )
    by_delimiter = {
        delimiter: next(csv.reader([lines[0][0]], delimiter=delimiter)) for delimiter in _DELIMITERS
    }
    delimiter = max(_DELIMITERS, key=lambda each: len(by_delimiter[each]))
    # The name that DuckDB gives, for example to an index that pandas wrote.
    names = [name or f"column{place}" for place, name in enumerate(by_delimiter[delimiter])]
    refuse_twice(names, f", in the first line of {file.path!r}")
    return delimiter, tuple(names)


def _types(rows: duckdb.DuckDBPyRelation) -> dict[str, str]:
    return dict(zip(rows.columns, map(str, rows.types), strict=True))


def _unused(name: str, columns: Sequence[str]) -> str:
    folded = {column.casefold() for column in columns}
    while name in folded:
        name += " "
    return name


def csv_errors(message: str) -> str:
    """What DuckDB says of a line of a CSV file, in one line and without its options."""
    if "CSV" not in message:
        return message.split("\n\n")[0]
    lines = re.split(r"\n\s*Possible", message)[0].splitlines()
    file = re.search(r"^\s*file\s*=\s*(.*)$", message, re.MULTILINE)
    place = f" In {file.group(1)}." if file else ""
    return ", ".join(line.strip() for line in lines if line.strip()) + "." + place
