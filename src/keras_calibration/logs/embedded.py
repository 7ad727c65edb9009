"""Sums of a log by DuckDB, inside this process."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_calibration.logs.files import LogFile, log_files, names_files
from keras_calibration.logs.query import Query, quoted, text
from keras_calibration.logs.rows import check_columns, rows_sql
from keras_calibration.logs.scored_log import ScoredLog

if TYPE_CHECKING:
    import duckdb
    import pyarrow

# Columns that DuckDB adds to the rows of Parquet files.
_FILE, _ROW = "file_index", "file_row_number"
_SECONDS_BETWEEN_LOOKS = 0.1


@dataclass(frozen=True)
class Selection:
    """Which rows of a log are summed, and as what.

    Args:
        period: "hour", "day", "week" or "month" where queries ask for the period of a row.
        ends: First second since 1970 to include and to exclude, or None.
        class_number: For K classes, the class whose rows have the label 1.
        class_names: The names of the classes.

    Example:
        >>> Selection("day", ends=(86400, None)).period  # from the second day of 1970 on
        'day'
    """

    period: str | None = None
    ends: tuple[int | None, int | None] = (None, None)
    class_number: int | None = None
    class_names: tuple[str, ...] = ()


class Embedded:
    """An open log: DuckDB, and the rows as its table `log`. Used as a context manager.

    Args:
        log: The log, on a source that DuckDB reads.

    Raises:
        ImportError: If DuckDB is not installed.
        ValueError: If the source is of another kind, or columns are missing.
    """

    def __init__(self, log: ScoredLog) -> None:
        self.log = log

    def __enter__(self) -> Embedded:
        duckdb = _duckdb()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_refusals(self.log))
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="keras-calibration-", ignore_cleanup_errors=True)
            )
            config = {"memory_limit": self.log.memory_limit, "temp_directory": folder}
            if self.log.num_threads is not None:
                config["threads"] = str(self.log.num_threads)
            self._connection = stack.enter_context(duckdb.connect(config=config))
            self._connection.execute("SET TimeZone = 'UTC'")
            # DuckDB knows how far it is only with its own bar, which it refuses in a notebook
            # without `ipywidgets`. The progress then moves once a pass.
            with contextlib.suppress(duckdb.Error):
                self._connection.execute("SET enable_progress_bar = true")
                self._connection.execute("SET enable_progress_bar_print = false")
            self.relation, self.row_number, self.files = _relation(
                self._connection, self.log.source
            )
            types = zip(self.relation.columns, map(str, self.relation.types), strict=True)
            self.types = dict(types)
            check_columns(self.log, self.types)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sums(self, query: Query, selection: Selection) -> pyarrow.Table:
        """The sums of a query, in any order."""
        return self.run(query.sql(self.rows(selection)))

    def rows(self, selection: Selection, log: ScoredLog | None = None) -> str:
        """A SELECT of the columns that a query uses, of the log or of another description of it."""
        return rows_sql(
            log or self.log,
            self.types,
            self.row_number,
            selection.period,
            selection.ends,
            selection.class_number,
            selection.class_names,
        )

    def first_row(self, condition: str, selection: Selection) -> tuple[str, dict[str, Any]] | None:
        """Where the first row is that fulfils a condition, in words, and what it holds."""
        # Without a key, k is the number of the row.
        rows = self.rows(selection, replace(self.log, row_key=None))
        sql = f"SELECT * FROM ({rows}) WHERE {condition} ORDER BY k LIMIT 1"
        found = self.run(sql).to_pylist()
        if not found:
            return None
        number = found[0]["k"]
        start, path = max((each for each in self.files if each[0] <= number), default=(0, ""))
        return f"row {number - start}" + (f" of {path}" if path else ""), found[0]

    def run(self, sql: str) -> pyarrow.Table:
        """The result of a query over the table `log`."""
        with _refusals(self.log):
            return self.relation.query("log", sql).to_arrow_table()

    def batches(self, columns: Sequence[str], size: int) -> Iterator[dict[str, np.ndarray]]:
        """The rows, in their order, as batches of columns that a query uses."""
        sql = f"SELECT {', '.join(columns)} FROM ({self.rows(Selection())})"
        with _refusals(self.log):
            for batch in self.relation.query("log", sql).to_arrow_reader(size):
                yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in columns}

    def num_rows(self) -> int:
        """Number of rows of the source, before `where`."""
        return int(self.run("SELECT count(*) AS n FROM log").column("n")[0].as_py())

    @contextlib.contextmanager
    def told(self, tell: Callable[[float], None] | None) -> Iterator[None]:
        """Calls `tell` with the share of the running query that is done, ten times a second."""
        if tell is None:
            yield
            return
        done = threading.Event()

        def look() -> None:
            while not done.wait(_SECONDS_BETWEEN_LOOKS):
                tell(max(0.0, self._connection.query_progress()) / 100)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            done.set()
            looking.join()


def merged(tables: Sequence[pyarrow.Table], num_threads: int | None = None) -> pyarrow.Table:
    """The sums of tables of sums, by their keys."""
    duckdb = _duckdb()
    import pyarrow

    try:
        together = pyarrow.concat_tables(tables, promote_options="permissive")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise ValueError(
            "Sums can be added if each column of a field has one type in all parts. Received: "
            f"{error}."
        ) from error
    names = together.column_names
    keys = [quoted(name) for name in names if name.startswith("key_")]
    sums = [
        f"sum({quoted(name)})::DOUBLE AS {quoted(name)}"
        for name in names
        if not name.startswith("key_")
    ]
    config = {} if num_threads is None else {"threads": str(num_threads)}
    with duckdb.connect(config=config) as connection:
        relation = connection.from_arrow(together)
        group = "GROUP BY ALL" if keys else ""
        sql = f"SELECT {', '.join(keys + sums)} FROM parts {group}"
        return relation.query("parts", sql).to_arrow_table()


# The number of each row before each file of a log, and the file.
_Starts = list[tuple[int, str]]
_COUNTED = "(row_number() OVER () - 1)::UBIGINT"


def _relation(
    connection: duckdb.DuckDBPyConnection, source: Any
) -> tuple[duckdb.DuckDBPyRelation, str, _Starts]:
    """The rows of a source, the SQL of the number of a row in it, and its files."""
    duckdb = _duckdb()
    if isinstance(source, duckdb.DuckDBPyRelation):
        return source, _COUNTED, []
    if names_files(source):
        return _files(connection, log_files(source, connection))
    kind = type(source).__module__.partition(".")[0]
    if kind == "polars":
        source = source.collect() if hasattr(source, "collect") else source
        return connection.from_arrow(source.to_arrow()), _COUNTED, []
    if kind == "pandas" and hasattr(source, "columns"):
        return connection.from_df(source), _COUNTED, []
    if kind == "pyarrow":
        return connection.from_arrow(source), _COUNTED, []
    raise ValueError(
        "Argument `source` must be a path, glob or list of Parquet or CSV files, an Arrow table or "
        "data set, a pandas or Polars data frame, a DuckDB relation or a Ray data set. "
        f"Received: {type(source).__name__}."
    )


def _files(
    connection: duckdb.DuckDBPyConnection, found: Sequence[LogFile]
) -> tuple[duckdb.DuckDBPyRelation, str, _Starts]:
    paths = [file.path for file in found]
    files = f"[{', '.join(text(file.literal) for file in found)}]"
    if found[0].is_csv:
        for file in found:
            _check_header(connection, file)
        rows = connection.sql(
            f"SELECT * FROM read_csv({files}, union_by_name = true, hive_partitioning = false)"
        )
        return rows, _COUNTED, [(0, paths[0])] if len(paths) == 1 else []
    rows = connection.sql(
        f"SELECT *, {_FILE}, {_ROW} FROM read_parquet({files}, {_ROW} = true, "
        "hive_partitioning = false, union_by_name = true)"
    )
    counts = f"SELECT file_name, num_rows FROM parquet_file_metadata({files})"
    of_file = dict(connection.sql(counts).fetchall())
    ends = np.cumsum([of_file[path] for path in paths]).tolist()
    starts = [0, *ends[:-1]]
    # Unlike a count of the rows, this is known in each thread.
    first = f"{starts}[({_FILE} + 1)::BIGINT] + " if len(paths) > 1 else ""
    return rows, f"({first}{_ROW})::UBIGINT", list(zip(starts, paths, strict=True))


def _check_header(connection: duckdb.DuckDBPyConnection, file: LogFile) -> None:
    """Raises if a CSV file has two columns of one name: DuckDB would rename the second."""
    options = f"{text(file.literal)}, header = false, all_varchar = true"
    rows = connection.sql(f"SELECT * FROM read_csv({options}) LIMIT 1").fetchall()
    names = [name for row in rows for name in row]
    if twice := sorted({name for name in names if name is not None and names.count(name) > 1}):
        raise ValueError(
            f"Columns must have different names. Received twice: {twice}, in the first line of "
            f"{file.path!r}."
        )


@contextlib.contextmanager
def _refusals(log: ScoredLog) -> Iterator[None]:
    """Errors of DuckDB that the user's data or arguments cause, as a `ValueError`."""
    duckdb = _duckdb()
    try:
        yield
    except (duckdb.IOException, duckdb.ProgrammingError, duckdb.DataError) as error:
        reason = str(error).split("\n\n")[0]
        about = f" Argument `where` is {log.where!r}." if log.where else ""
        raise ValueError(f"The log cannot be read.{about} Received: {reason}") from error


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Scored logs are read by DuckDB and pyarrow. Install them with "
            '`pip install "keras-calibration[duckdb]"`.'
        ) from error
    return duckdb
