"""Sums of a log by DuckDB, inside this process."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibration_records._check import installed
from calibration_records.logs.query import Query, quoted
from calibration_records.logs.rows import Selection, rows_sql
from calibration_records.logs.scored_log import ScoredLog
from calibration_records.logs.sources import open_source

if TYPE_CHECKING:
    import duckdb
    import pyarrow

# Several copies of a batch are in memory.
_ROWS_OF_BATCH = 1 << 18


class Embedded(NamedTuple):
    """An open log: the rows as DuckDB's table `log`, with the types of its columns."""

    log: ScoredLog
    relation: Callable[[], duckdb.DuckDBPyRelation]
    types: Mapping[str, str]

    def sums(self, query: Query, selection: Selection) -> pyarrow.Table:
        """The sums of a query, in any order."""
        return self._run(query.sql(rows_sql(self.log, self.types, selection)))

    def first_row(self, condition: str, selection: Selection) -> dict[str, Any]:
        """The columns of the first row that fulfils a condition."""
        rows = rows_sql(self.log, self.types, selection)
        sql = f"SELECT * FROM ({rows}) WHERE {condition} ORDER BY given_row LIMIT 1"
        return dict(self._run(sql).to_pylist()[0])

    def _run(self, sql: str) -> pyarrow.Table:
        return self.relation().query("log", sql).to_arrow_table()


@contextlib.contextmanager
def open_log(log: ScoredLog) -> Iterator[Embedded]:
    """Opens a log, on a source that DuckDB reads, for a block that computes sums.

    Raises:
        ImportError: If DuckDB is not installed.
        ValueError: If DuckDB does not read this kind of source, or columns are missing.
    """
    duckdb = _import_duckdb()
    threads = {} if log.num_threads is None else {"threads": str(log.num_threads)}
    with (
        _translate_errors(log),
        # Sums beyond the memory limit go to a folder of their own, removed with the connection.
        tempfile.TemporaryDirectory(
            prefix="keras-calibration-", ignore_cleanup_errors=True
        ) as folder,
        duckdb.connect(
            config={"memory_limit": log.memory_limit, "temp_directory": folder, **threads}
        ) as connection,
    ):
        # Times without a zone are UTC, whatever the machine's zone.
        connection.execute("SET TimeZone = 'UTC'")
        relation = open_source(connection, log)
        # The rows of a relation are those of one pass: no name may keep them open.
        yield Embedded(log, relation, _find_types(relation()))


def _find_types(rows: duckdb.DuckDBPyRelation) -> dict[str, str]:
    return dict(zip(rows.columns, map(str, rows.types), strict=True))


def log_batches(
    log: ScoredLog, columns: Sequence[str], selection: Selection
) -> Iterator[dict[str, np.ndarray]]:
    """The rows of a log that `log_sums` has checked, in batches and in their order.

    Args:
        log: The log, on a source that DuckDB reads.
        columns: Columns that `logs.rows` defines.
        selection: Which rows.

    Yields:
        Column → its values, shape `(n,)`: numbers with NaN where missing, or objects with None.

    Example:
        >>> import pandas as pd
        >>> log = ScoredLog(pd.DataFrame({"label": [1, 0], "probability": [0.5, 0.25]}))
        >>> [batch["p"].tolist() for batch in log_batches(log, ["y", "p"], Selection())]
        [[0.5, 0.25]]
    """
    with open_log(log) as opened:
        import pyarrow

        sql = f"SELECT {', '.join(columns)} FROM ({rows_sql(log, opened.types, selection)})"
        for batch in opened.relation().query("log", sql).to_arrow_reader(_ROWS_OF_BATCH):
            arrays = (array_of(pyarrow.chunked_array([part])) for part in batch.columns)
            yield dict(zip(columns, arrays, strict=True))


def merged(tables: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """The sums of tables of sums, by their keys."""
    duckdb = _import_duckdb()
    import pyarrow

    try:
        together = pyarrow.concat_tables(
            map(_drop_guessed_types, tables), promote_options="permissive"
        )
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise ValueError(
            "Sums can be added if each column of a field has one type in all parts. Received: "
            f"{error}."
        ) from error
    names = together.column_names
    keys = [quoted(name) for name in names if name.startswith("key_")]
    # Columns are either keys or sums, so adding parts is one GROUP BY over all of them.
    sums = [f"sum({name})::DOUBLE AS {name}" for name in map(quoted, names) if name not in keys]
    with duckdb.connect() as connection:
        sql = f"SELECT {', '.join(keys + sums)} FROM parts {'GROUP BY ALL' if keys else ''}"
        return connection.from_arrow(together).query("parts", sql).to_arrow_table()


def _drop_guessed_types(table: pyarrow.Table) -> pyarrow.Table:
    """The table, with no type where a column of keys holds no value.

    Sources guess the type of such a column: pandas reads it as numbers, even among texts.
    """
    import pyarrow

    columns = [
        pyarrow.nulls(len(column))
        if name.startswith("key_") and column.null_count == len(column)
        else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pyarrow.table(columns, table.column_names)


def array_of(column: pyarrow.ChunkedArray) -> np.ndarray:
    """A column as an array, without Arrow's `to_numpy`, which takes most of a second for pandas."""
    import pyarrow

    is_float = pyarrow.types.is_floating(column.type)
    if column.null_count or not (is_float or pyarrow.types.is_integer(column.type)):
        # NumPy's whole numbers have no missing value; as floats, those beyond 2**53 would change.
        return np.array(column.to_pylist(), np.float64 if is_float else object)
    # Without missing values, NumPy shares the memory of a chunk.
    chunks = [np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate([np.zeros(0, column.type.to_pandas_dtype()), *chunks])


@contextlib.contextmanager
def _translate_errors(log: ScoredLog) -> Iterator[None]:
    """Errors of DuckDB and Arrow that the user's data or arguments cause, as a `ValueError`."""
    duckdb = _import_duckdb()
    import pyarrow

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
    except (duckdb.Error, pyarrow.ArrowException) as error:
        about = f" Argument `where` is {log.where!r}." if log.where else ""
        raise ValueError(f"The log cannot be read.{about} Received: {error}") from error


def _import_duckdb() -> Any:
    with installed("duckdb", "Scored logs are read by DuckDB and pyarrow."):
        import duckdb
        import pyarrow  # noqa: F401
    return duckdb
