"""Sums of a data set of Ray, computed where its blocks are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from calibration_records.logs.embedded import open_log
from calibration_records.logs.query import Query
from calibration_records.logs.rows import Selection, check_columns, used_columns
from calibration_records.logs.scored_log import ScoredLog
from calibration_records.logs.sums import LogSums

if TYPE_CHECKING:
    import pyarrow
    import ray

# The largest number of sums in memory at once.
_MERGED_AT_ONCE = 8


def ray_sums(log: ScoredLog, queries: Mapping[str, Query], selection: Selection) -> LogSums:
    """The sums of a log whose source is a `ray.data.Dataset`; none if it has no rows.

    Ray tasks compute the sums of each block by DuckDB, with one thread (or the `num_threads` of the
    log). Ray repeats the work of a lost worker. The workers need this package. They count invalid
    rows; the caller refuses them.

    Raises:
        ImportError: If DuckDB or pyarrow is not installed.
        ValueError: If columns are missing or of a wrong type, or queries divide the rows into
            folds and the log names no `row_key`.
    """
    if log.row_key is None and any(query.uses_row_key for query in queries.values()):
        raise ValueError(
            "Argument `row_key` of the ScoredLog must name a column that identifies a row: a Ray "
            "data set keeps no order, so that rows are divided into folds by this key. Received: "
            "row_key=None. Name a column, or use metrics without folds, such as "
            "CalibratedLogLoss(num_folds=1)."
        )
    blocks = _select_used_columns(log).map_batches(
        partial(_sum_block, log=log.of(None), queries=dict(queries), selection=selection),
        batch_format="pyarrow",
        batch_size=None,
        num_cpus=log.num_threads or 1,
    )
    merged, parts = LogSums(), []
    for row in blocks.iter_rows():
        if row["refusal"]:
            raise ValueError(row["refusal"])
        parts.append(LogSums.from_bytes(row["sums"]))
        # Merge while parts arrive, so that memory does not grow with the number of blocks.
        if len(parts) == _MERGED_AT_ONCE:
            merged, parts = LogSums.merged([merged, *parts]), []
    return LogSums.merged([merged, *parts])


def _sum_block(
    block: pyarrow.Table, log: ScoredLog, queries: Mapping[str, Query], selection: Selection
) -> pyarrow.Table:
    """The sums of a block as a table of one row, or the reason why it was refused."""
    import pyarrow

    log = dataclasses.replace(log, source=block, num_threads=log.num_threads or 1)
    sums, refusal = LogSums(), ""
    if block.num_rows:
        try:
            with open_log(log) as opened:
                sums = LogSums({n: opened.sums(query, selection) for n, query in queries.items()})
        except ValueError as error:
            # A raised error would reach the caller as an error of Ray, with its traceback.
            refusal = str(error)
    return pyarrow.table({"sums": [sums.to_bytes()], "refusal": [refusal]})


def _select_used_columns(log: ScoredLog) -> ray.data.Dataset:
    """The data set with only the columns in use, if its schema is known before it is read."""
    schema = log.source.schema(fetch_if_missing=False)
    if schema is None:
        return log.source
    check_columns(log, schema.names)
    # A condition may name any column, so with one, all columns stay.
    return log.source if log.where else log.source.select_columns(used_columns(log))
