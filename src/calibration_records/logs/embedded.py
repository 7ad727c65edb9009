"""Sums of a log by DuckDB, inside this process."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calibration_records._check import installed
from calibration_records.logs.columns import CSV_TEXT, csv_casts
from calibration_records.logs.query import Query, quoted
from calibration_records.logs.rows import Selection, check_columns, rows_sql
from calibration_records.logs.scored_log import ScoredLog
from calibration_records.logs.sources import csv_errors, may_be_named, open_source

if TYPE_CHECKING:
    import pyarrow

_SECONDS_BETWEEN_LOOKS = 0.1


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
            if self.log.label_delay is not None:
                for name, table in self.log.label_delay.tables().items():
                    self._connection.register(name, table)
            self.source = open_source(self._connection, self.log)
            self.types = self.source.types
            check_columns(self.log, self.types)
            self._where_columns = self._csv_columns_of_where()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sums(self, query: Query, selection: Selection) -> pyarrow.Table:
        """The sums of a query, in any order."""
        for lookup in query.lookups:
            self._connection.register(lookup.name, lookup.table())
        return self.run(query.sql(self.rows(selection)))

    def rows(self, selection: Selection, log: ScoredLog | None = None) -> str:
        """A SELECT of the columns that a query uses, of the log or of another description of it."""
        return rows_sql(
            log or self.log,
            self.types,
            selection,
            self.source.row_number,
            self.source.file_name,
            self._where_columns,
        )

    def first_row(self, condition: str, selection: Selection) -> tuple[str, dict[str, Any]] | None:
        """The place, in words, and the columns of the first row that fulfils a condition."""
        # Without a key, k is the number of the row.
        rows = self.rows(selection, replace(self.log, row_key=None))
        sql = f"SELECT * FROM ({rows}) WHERE {condition} ORDER BY k LIMIT 1"
        found = self.run(sql).to_pylist()
        if not found:
            return None
        with _refusals(self.log):
            return self.source.place(found[0]["k"]), found[0]

    def run(self, sql: str) -> pyarrow.Table:
        """The result of a query over the table `log`."""
        with _refusals(self.log):
            return self.source.relation().query("log", sql).to_arrow_table()

    def batches(
        self, columns: Sequence[str], selection: Selection, size: int
    ) -> Iterator[pyarrow.RecordBatch]:
        """The rows, in their order, as batches of columns that a query uses."""
        sql = f"SELECT {', '.join(columns)} FROM ({self.rows(selection)})"
        with _refusals(self.log):
            yield from self.source.relation().query("log", sql).to_arrow_reader(size)

    def num_rows(self) -> int:
        """Number of rows of the source, before `where`."""
        return int(self.run("SELECT count(*) AS n FROM log").column("n")[0].as_py())

    def _csv_columns_of_where(self) -> dict[str, str]:
        """Column of CSV files that `where` may name → its values in the type that all of them have.

        As texts, 9 would be more than 10.
        """
        names = [
            name
            for name, kind in self.types.items()
            if kind == CSV_TEXT and may_be_named(self.log.where, name)
        ]
        casts = {name: csv_casts(quoted(name)) for name in names}
        counts = [
            f"count({expression}) = count({quoted(name)})"
            for name, expressions in casts.items()
            for expression in expressions
        ]
        if not counts:
            return {}
        selected = ", ".join(f"{count} AS c{place}" for place, count in enumerate(counts))
        (holds,) = self.run(f"SELECT {selected} FROM log").to_pylist()
        fits = iter(holds.values())
        fitting = {name: [each for each in casts[name] if next(fits)] for name in casts}
        return {name: expressions[0] for name, expressions in fitting.items() if expressions}

    @contextlib.contextmanager
    def progress_shown(self, tell: Callable[[float], None] | None) -> Iterator[None]:
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


@contextlib.contextmanager
def _refusals(log: ScoredLog) -> Iterator[None]:
    """Errors of DuckDB that the user's data or arguments cause, as a `ValueError`."""
    duckdb = _duckdb()
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise ValueError(
            "Argument `memory_limit` of the ScoredLog must allow for the sums of all field values "
            f"in memory or in the temporary folder. Received: memory_limit={log.memory_limit!r}, "
            "which is too little. Pass more, or fewer threads, for example num_threads=1."
        ) from error
    except (duckdb.InternalException, duckdb.FatalException):
        raise  # a defect of DuckDB
    except duckdb.Error as error:
        about = f" Argument `where` is {log.where!r}." if log.where else ""
        reason = csv_errors(str(error))
        raise ValueError(f"The log cannot be read.{about} Received: {reason}") from error


def _duckdb() -> Any:
    with installed("duckdb", "Scored logs are read by DuckDB and pyarrow."):
        import duckdb
        import pyarrow  # noqa: F401
    return duckdb
