"""Sums of a scored log by Apache Beam: a `CombineFn` over Arrow tables."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from keras_calibration.logs import LogSums, Query, ScoredLog, log_sums

try:
    from apache_beam import CombineFn
except ImportError:  # so that tests can run the methods without Beam
    CombineFn = object


class CombineSums(CombineFn):
    """Combines batches of rows, Arrow tables, into the bytes of their sums.

    `ReadFromParquetBatched(pattern) | CombineGlobally(CombineSums(log, queries))`, and then
    `LogSums.from_bytes(combined)`.
    """

    def __init__(self, log: ScoredLog, queries: Mapping[str, Query]) -> None:
        self.log, self.queries = log, queries

    def create_accumulator(self) -> bytes:
        """No rows."""
        return LogSums().to_bytes()

    def add_input(self, accumulator: bytes, batch: pa.Table) -> bytes:
        """Adds a batch."""
        sums = log_sums(self.log.of(batch), self.queries).to_bytes()
        return self.merge_accumulators([accumulator, sums])

    def merge_accumulators(self, accumulators: Iterable[bytes]) -> bytes:
        """Adds accumulators of several workers."""
        return LogSums.merged([LogSums.from_bytes(each) for each in accumulators]).to_bytes()

    def extract_output(self, accumulator: bytes) -> bytes:
        """The bytes of the sums."""
        return accumulator
