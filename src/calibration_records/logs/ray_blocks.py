"""Sums of a data set of Ray: computed where its blocks are, and merged in a tree."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from calibration_records._check import refused
from calibration_records._files import write_atomically
from calibration_records.logs.columns import column_of
from calibration_records.logs.embedded import Embedded
from calibration_records.logs.files import log_files
from calibration_records.logs.late_labels.delay_curves import DelayCurves
from calibration_records.logs.late_labels.late_sql import label_columns
from calibration_records.logs.periods import microseconds_since_1970
from calibration_records.logs.progress import Progress
from calibration_records.logs.query import Query
from calibration_records.logs.rows import Selection, check_columns, used_columns
from calibration_records.logs.scored_log import ScoredLog
from calibration_records.logs.sources import open_source
from calibration_records.logs.sums import LogSums

if TYPE_CHECKING:
    import pyarrow
    import ray

# The most sums that a task merges, and holds at once.
_MERGED_AT_ONCE = 8


def ray_sums(
    log: ScoredLog, queries: Mapping[str, Query], selection: Selection, verbose: int
) -> LogSums:
    """The sums of a log whose source is a `ray.data.Dataset`.

    Tasks of Ray compute the sums of each block by DuckDB, with one thread (or the `num_threads` of
    the log), and merge them. Only the sums of the whole log come to this process. Ray repeats what
    a lost worker had computed. The workers need DuckDB, and not this package.

    Invalid rows are counted, and not refused. The arguments are those of `log_sums`.

    Raises:
        ImportError: If DuckDB or pyarrow is not installed.
        ValueError: If columns are missing or of a wrong type, or queries divide the rows into
            folds and the log names no `row_key`.
    """
    import ray
    from ray.data.dataset import MaterializedDataset

    if log.row_key is None and any(each.uses_row_key for each in queries.values()):
        raise ValueError(
            "Argument `row_key` of the ScoredLog must name a column that identifies a row: a Ray "
            "data set keeps no order, so that rows are divided into folds by this key. Received: "
            "row_key=None. Name a column, or use metrics without folds, such as "
            "CalibratedLogLoss(num_folds=1)."
        )
    data, described = _narrowed(log), log.of(None)
    with _sent_to_workers(), _quiet(data.context):
        blocks = data.map_batches(
            partial(_sums_of_block, log=described, queries=dict(queries), selection=selection),
            batch_format="pyarrow",
            batch_size=None,
            num_cpus=log.num_threads or 1,
        )
        merge = ray.remote(num_cpus=1, num_returns=2)(_merged_blocks)
        # Others are counted by reading them.
        is_counted = isinstance(log.source, MaterializedDataset)
        tree = _Tree(merge, log.source.count() if is_counted else 0, verbose)
        for bundle in blocks.iter_internal_ref_bundles():
            for block in bundle.block_refs:
                tree.add(block)
        found = tree.merged()
    if found is not None:
        return found
    with Embedded(dataclasses.replace(log, source=_no_rows(log, selection), where=None)) as opened:
        return LogSums({name: opened.sums(each, selection) for name, each in queries.items()})


class _Tree:
    """Merges sums by tasks, of which each takes a few sums or the results of others.

    Args:
        merge: `_merged_blocks` as a function of Ray with two results.
        num_rows: Number of all rows, or 0 if it is not known.
        verbose: 1 shows a progress bar.
    """

    def __init__(self, merge: Any, num_rows: int, verbose: int) -> None:
        self._merge = merge
        self._levels: list[list[ray.ObjectRef]] = [[]]
        self._outcomes: list[ray.ObjectRef] = []
        self._progress = Progress(num_rows, 1, verbose)
        self._num_rows = 0

    def add(self, block: ray.ObjectRef, level: int = 0) -> None:
        """Adds a block of sums, and merges as many as a task takes."""
        if level == len(self._levels):
            self._levels.append([])
        parts = self._levels[level]
        parts.append(block)
        if len(parts) == _MERGED_AT_ONCE:
            self._levels[level] = []
            self.add(self._task(parts, level), level + 1)
        self._look(timeout=0)

    def merged(self) -> LogSums | None:
        """The sums of all blocks; None if no block held rows."""
        import ray

        rest: list[ray.ObjectRef] = []
        for level, parts in enumerate(self._levels):
            if parts or rest:
                rest = [self._task([*rest, *parts], level)]
        if not rest:
            return None
        while self._outcomes:
            self._look(timeout=None)
        self._progress.count(self._num_rows, is_end=True)
        sums = ray.get(rest[0])["sums"][0].as_py()
        return LogSums.from_bytes(sums) if sums else None

    def _task(self, parts: Sequence[ray.ObjectRef], level: int) -> ray.ObjectRef:
        block, outcome = self._merge.remote(level == 0, *parts)
        self._outcomes.append(outcome)
        return block

    def _look(self, timeout: float | None) -> None:
        """Reads the outcomes of ended tasks: their number of rows, or why there are no sums."""
        import ray

        if not self._outcomes:
            return
        ended, self._outcomes = ray.wait(self._outcomes, timeout=timeout)
        for num_rows, refusal in ray.get(ended):
            if refusal is not None:
                raise ValueError(refusal)
            self._num_rows += num_rows
            self._progress.count(self._num_rows)


def _sums_of_block(
    block: pyarrow.Table, log: ScoredLog, queries: Mapping[str, Query], selection: Selection
) -> pyarrow.Table:
    """The sums of a block as a table of one row, or why there are none."""
    log = dataclasses.replace(log, source=_plain(block), num_threads=log.num_threads or 1)
    try:
        with Embedded(log) as opened:
            sums = {name: opened.sums(each, selection) for name, each in queries.items()}
    except ValueError as error:
        # A raised error would reach the caller as an error of Ray, with its traceback.
        return _block(b"", block.num_rows, str(error))
    return _block(LogSums(sums).to_bytes(), block.num_rows)


def _merged_blocks(
    is_first: bool, *blocks: pyarrow.Table
) -> tuple[pyarrow.Table, tuple[int, str | None]]:
    """The merged sums of blocks; and, to be read at once, the number of rows and the refusal."""
    parts = [row for block in blocks for row in block.to_pylist()]
    num_rows = sum(part["rows"] for part in parts)
    counted = num_rows if is_first else 0
    refusal = next((part["refusal"] for part in parts if part["refusal"] is not None), None)
    if refusal is not None or not parts:
        return _block(b"", num_rows, refusal), (counted, refusal)
    try:
        together = LogSums.merged([LogSums.from_bytes(part["sums"]) for part in parts], 1)
    except ValueError as error:
        return _block(b"", num_rows, str(error)), (counted, str(error))
    return _block(together.to_bytes(), num_rows), (counted, None)


def _block(sums: bytes, num_rows: int, refusal: str | None = None) -> pyarrow.Table:
    import pyarrow

    columns = {
        "sums": pyarrow.array([sums], pyarrow.large_binary()),
        "rows": pyarrow.array([num_rows], pyarrow.int64()),
        "refusal": pyarrow.array([refusal], pyarrow.string()),
    }
    return pyarrow.table(columns)


def _narrowed(log: ScoredLog) -> ray.data.Dataset:
    """The data set with the columns in use only, as far as they are known before it is read."""
    schema = log.source.schema(fetch_if_missing=False)
    if schema is None:
        return log.source
    check_columns(log, dict.fromkeys(schema.names, ""))
    return log.source if log.where else log.source.select_columns(used_columns(log))


def _plain(block: pyarrow.Table) -> pyarrow.Table:
    """The block without Ray's own types: lists of equal length, for example, are lists again."""
    import pyarrow

    for place, field in enumerate(block.schema):
        if isinstance(field.type, pyarrow.ExtensionType):
            column = block.column(place).cast(field.type.storage_type)
            block = block.set_column(place, field.name, column)
    return block


def _no_rows(log: ScoredLog, selection: Selection) -> pyarrow.Table:
    """An empty table of the columns that a log names: Ray does not know the types of no rows."""
    import pyarrow

    number = pyarrow.float64()
    types = dict.fromkeys(used_columns(log), pyarrow.null())
    types |= {name: number for name in (log.label, log.sample_weight, log.logit) if name in types}
    if log.logit is None:
        is_list = isinstance(log.probability, str) and selection.class_number is not None
        names = [log.probability] if isinstance(log.probability, str) else log.probability
        types |= dict.fromkeys(names, pyarrow.list_(number) if is_list else number)
    types |= {name: pyarrow.timestamp("us") for name in (log.timestamp, log.label_time) if name}
    return pyarrow.schema(types).empty_table()


@contextlib.contextmanager
def _sent_to_workers() -> Iterator[None]:
    """Sends the code of the tasks to the workers.

    So the workers need DuckDB alone: neither this package, nor its version.
    """
    from ray import cloudpickle

    registered = cloudpickle.list_registry_pickle_by_value()
    with contextlib.ExitStack() as stack:
        used = (_sums_of_block, DelayCurves, Embedded, LogSums, Query, ScoredLog)
        functions = (check_columns, column_of, label_columns, log_files, open_source)
        others = (microseconds_since_1970, refused, write_atomically)
        for code in (*used, *functions, *others):
            module = sys.modules[code.__module__]
            if module.__name__ not in registered:
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


@contextlib.contextmanager
def _quiet(context: ray.data.DataContext) -> Iterator[None]:
    """Hides the messages and bars of Ray: the bar of this package counts the rows."""
    logger = logging.getLogger("ray.data")
    names = ["print_on_execution_start", "enable_progress_bars"]
    level, before = logger.level, {name: getattr(context, name) for name in names}
    logger.setLevel(logging.ERROR)
    try:
        for name in names:
            setattr(context, name, False)
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)
