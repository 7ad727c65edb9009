"""The rows of a source as relations of DuckDB, each row with its number."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from calibration_records.logs.query import quoted, text
from calibration_records.logs.rows import FILE_NAME, ROW_NUMBER, check_columns, used_columns
from calibration_records.logs.scored_log import ScoredLog

if TYPE_CHECKING:
    import duckdb
    import pyarrow

# DuckDB reads all rows before it decides on types, and guesses neither comments nor lines to skip.
# Times stay texts, which `columns.time_of` reads as ISO 8601: DuckDB would take 03/01/2026 for
# January.
_CSV_OPTIONS = (
    "header = true, quote = '\"', escape = '\"', comment = '', skip = 0, sample_size = -1, "
    "auto_type_candidates = ['NULL', 'BOOLEAN', 'BIGINT', 'HUGEINT', 'DOUBLE', 'VARCHAR']"
)


def open_source(
    connection: duckdb.DuckDBPyConnection, log: ScoredLog
) -> Callable[[], duckdb.DuckDBPyRelation]:
    """A function that returns the rows of a log, to be called before each pass.

    All rows have the column `ROW_NUMBER`; rows of files also have `FILE_NAME`.
    """
    import duckdb
    import pyarrow

    source, kind = log.source, type(log.source).__module__.partition(".")[0]
    parts = source if isinstance(source, list | tuple) else [source]
    if all(isinstance(part, str | os.PathLike) for part in parts):
        rows = _read_files(connection, source)
        check_columns(log, [name for name in rows.columns if name not in (ROW_NUMBER, FILE_NAME)])
        return lambda: rows
    if isinstance(source, duckdb.DuckDBPyRelation):
        # The user's connection reads the rows, and ours sums them, so that the user's settings,
        # such as the time zone, do not change the sums.
        part = source.project(", ".join(map(quoted, _find_used_columns(log, source.columns))))
        return lambda: _number_rows(connection.from_arrow(part.to_arrow_reader(1 << 16)))
    if kind == "pandas" and hasattr(source, "columns"):
        needed = _find_used_columns(log, [*map(str, source.columns)])
        frame = source.loc[:, [str(name) in needed for name in source.columns]]
        table = _convert_to_arrow(partial(pyarrow.Table.from_pandas, frame, preserve_index=False))
    elif kind == "polars" and hasattr(source, "collect_schema"):
        used = _find_used_columns(log, source.collect_schema().names())
        table = _convert_to_arrow(source.lazy().select(used).collect().to_arrow)
    elif isinstance(source, pyarrow.Table | pyarrow.RecordBatch):
        table = source.select(_find_used_columns(log, source.schema.names))
    elif kind == "pyarrow" and hasattr(source, "to_table"):  # a data set, read as it is summed
        table = source
    else:
        raise ValueError(
            "Argument `source` must be a path or glob of Parquet or CSV files, or a list of them, "
            "an Arrow table or data set, a pandas or Polars data frame, a DuckDB relation or a Ray "
            f"data set. Received: {type(source).__name__}."
        )
    used = _find_used_columns(log, table.schema.names)
    # DuckDB would read the number of a period, such as the days since 1970, as seconds. It cannot
    # read the other types.
    if wrong := [
        name
        for name in used
        if re.search("pandas.period|halffloat|decimal256", str(table.schema.field(name).type))
    ]:
        raise ValueError(
            "Columns of a log must hold numbers, times or texts. Received: periods of pandas, "
            f"float16, or decimals of more than 128 bits in {wrong}. Convert periods with "
            "to_timestamp or astype(str), float16 to float32, and decimals to texts."
        )
    rows = _number_rows(connection.from_arrow(table))
    return lambda: rows


def _convert_to_arrow(convert: Callable[[], pyarrow.Table]) -> pyarrow.Table:
    """A data frame as an Arrow table; raises if a column has a type that Arrow lacks."""
    import pyarrow

    try:
        return convert()
    except (TypeError, OverflowError, pyarrow.ArrowInvalid) as error:
        raise ValueError(
            "Columns of a log must hold numbers, times or texts. Convert others, sparse columns to "
            f"dense ones, and numbers beyond 64 bits to texts. Received: {error}"
        ) from error


def _find_used_columns(log: ScoredLog, columns: Sequence[str]) -> list[str]:
    """The columns that the log names, also in `where`; others may have types that DuckDB lacks."""
    check_columns(log, columns)
    # A name anywhere in `where` keeps its column: better one too many than a parser of SQL.
    used = set(used_columns(log))
    where = (log.where or "").casefold()
    return [
        name
        for name in columns
        if name in used or "*" in where or name.replace('"', '""').casefold() in where
    ]


def _number_rows(rows: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The rows with their numbers."""
    return rows.query(
        "source",
        f"SELECT *, (row_number() OVER () - 1)::UBIGINT AS {quoted(ROW_NUMBER)} FROM source",
    )


def _read_files(connection: duckdb.DuckDBPyConnection, source: Any) -> duckdb.DuckDBPyRelation:
    """The rows of files of one kind."""
    names = [source] if isinstance(source, str | os.PathLike) else source
    paths = list(
        dict.fromkeys(path for name in names for path in _find_paths(connection, os.fspath(name)))
    )
    csv = [path for path in paths if re.search(r"\.csv(\.gz|\.zst)?$", path, re.IGNORECASE)]
    if not paths or 0 < len(csv) < len(paths):
        raise ValueError(
            "Argument `source` must name existing files, Parquet or CSV and not both. Received: "
            f"{source!r}, which names {len(paths) - len(csv)} Parquet and {len(csv)} CSV files."
        )
    # DuckDB reads a path as a pattern, and an address as it is.
    literal = [path if "://" in path else glob.escape(path) for path in paths]
    files = f"[{', '.join(map(text, literal))}]"
    options = f"union_by_name = true, hive_partitioning = false, filename = {text(FILE_NAME)}"
    if csv:
        return _number_rows(connection.sql(f"FROM read_csv({files}, {options}, {_CSV_OPTIONS})"))
    read = f"FROM read_parquet({files}, {options})"
    rows = connection.sql(read)
    if {"file_index", "file_row_number"} & set(map(str.casefold, rows.columns)):
        return _number_rows(rows)
    # The number of a row is the first number of its file plus its place there, which each thread
    # knows; counting rows (`_number_rows`) would bind all threads to one order.
    counts = connection.sql(f"SELECT num_rows FROM parquet_file_metadata({files})").fetchall()
    starts = [*itertools.accumulate((count for (count,) in counts), initial=0)]
    return connection.sql(
        f"SELECT *, ({starts}[(file_index + 1)::BIGINT] + file_row_number)::UBIGINT AS "
        f"{quoted(ROW_NUMBER)} {read}"
    )


def _find_paths(connection: duckdb.DuckDBPyConnection, name: str) -> list[str]:
    """The files of a path, folder, glob or address."""
    is_folder = os.path.isdir(name)
    name = name.rstrip("/")
    # An existing path is meant literally, even if it holds *.
    pattern = glob.escape(name) if os.path.exists(name) else name
    if is_folder:
        # DuckDB leaves out folders that are links. A link to a folder above repeats no file.
        every = sorted(glob.glob(f"{pattern}/**", recursive=True), reverse=True)
        paths = sorted({os.path.realpath(path): path for path in every}.values())
    else:
        found = connection.execute("SELECT file FROM glob(?) ORDER BY file", [pattern])
        paths = [path for (path,) in found.fetchall()]
    if not paths:
        raise ValueError(
            f"Argument `source` must name existing files. Received: {name!r}, which names none."
        )
    if not is_folder:
        return paths
    # Names that begin with . or _ belong to unfinished files or to metadata.
    is_data = re.compile(r"(/[^._][^/]*)*\.(parquet|csv|csv\.gz|csv\.zst)", re.IGNORECASE)
    return [path for path in paths if is_data.fullmatch(path, len(name)) and os.path.isfile(path)]
