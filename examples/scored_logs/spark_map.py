"""Sums of a scored log by Spark: a function for `DataFrame.mapInArrow`."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa

from keras_calibration.logs import Query, ScoredLog, log_sums

SCHEMA = "sums binary"


def sums_in_arrow(
    log: ScoredLog, queries: Mapping[str, Query], num_batches: int = 100
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that gives the sums of the rows of a partition as bytes.

    Each row that it yields holds the sums of `num_batches` batches, of 10,000 rows each by default:
    `rows = frame.mapInArrow(sums_in_arrow(log, queries), SCHEMA).collect()`, and then
    `LogSums.merged([LogSums.from_bytes(row.sums) for row in rows])`.
    """

    def partition_sums(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rest = iter(batches)
        while held := list(itertools.islice(rest, num_batches)):
            sums = log_sums(log.of(pa.Table.from_batches(held)), queries)
            yield pa.RecordBatch.from_pydict({"sums": pa.array([sums.to_bytes()], pa.binary())})

    return partition_sums
