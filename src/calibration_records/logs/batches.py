"""log_batches: the rows of a log, a batch after the other, from the engine of its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibration_records.logs.compute import is_ray
from calibration_records.logs.embedded import Embedded
from calibration_records.logs.progress import Progress
from calibration_records.logs.rows import Selection
from calibration_records.logs.scored_log import ScoredLog

if TYPE_CHECKING:
    import pyarrow

# Of a batch, in memory several times.
_ROWS_OF_BATCH = 1 << 18


class Coded(NamedTuple):
    """Values of rows, each distinct one as an object once.

    Args:
        values: The distinct values: texts, or numbers of which some are missing, None (k,).
        codes: The place of each row's value (n,).
    """

    values: np.ndarray
    codes: np.ndarray


def log_batches(
    log: ScoredLog,
    columns: Sequence[str],
    selection: Selection,
    num_rows: int = 0,
    verbose: int = 0,
) -> Iterator[dict[str, np.ndarray | Coded]]:
    """The rows of a log, a batch after the other, of which one is in memory.

    Rows of files come in the order of the files; those of Ray in the order of its blocks.

    Args:
        log: The log.
        columns: Columns that `logs.rows` defines.
        selection: Which rows.
        num_rows: Number of rows, for the progress bar; 0 if it is not known.
        verbose: 1 shows the bar.

    Yields:
        Name of each of the columns → its values (n,): numbers, with NaN for a missing one, or
        `Coded` objects.

    Example:
        >>> import pandas as pd
        >>> log = ScoredLog(pd.DataFrame({"label": [1, 0], "probability": [0.5, 0.25]}))
        >>> [batch["p"].tolist() for batch in log_batches(log, ["y", "p"], Selection())]
        [[0.5, 0.25]]
    """
    progress, done = Progress(num_rows, 1, verbose), 0
    batches = _ray_batches if is_ray(log.source) else _batches
    for batch in batches(log, columns, selection):
        if batch.num_rows:
            names = zip(columns, batch.columns, strict=True)
            yield {name: _array(column) for name, column in names}
        done += batch.num_rows
        progress.count(done)


def _batches(
    log: ScoredLog, columns: Sequence[str], selection: Selection
) -> Iterator[pyarrow.RecordBatch]:
    with Embedded(log) as opened:
        yield from opened.batches(columns, selection, _ROWS_OF_BATCH)


def _ray_batches(
    log: ScoredLog, columns: Sequence[str], selection: Selection
) -> Iterator[pyarrow.RecordBatch]:
    for block in log.source.iter_batches(batch_format="pyarrow", batch_size=_ROWS_OF_BATCH):
        yield from _batches(dataclasses.replace(log, source=block), columns, selection)


def _array(column: pyarrow.Array) -> np.ndarray | Coded:
    import pyarrow
    import pyarrow.compute

    kind = column.type
    if pyarrow.types.is_floating(kind):
        return np.from_dlpack(pyarrow.compute.fill_null(column, float("nan")))
    if pyarrow.types.is_integer(kind) and not column.null_count:
        return np.from_dlpack(column)
    encoded = pyarrow.compute.dictionary_encode(column, null_encoding="encode")
    # With one more, NumPy makes no numbers of them.
    values = np.array([*encoded.dictionary.to_pylist(), None], object)[:-1]
    return Coded(values, np.from_dlpack(encoded.indices))
