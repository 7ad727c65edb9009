"""Shards of a scored log: sums from each machine's own files, merged from files."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from keras_calibration.logs import LogSums, Query, ScoredLog, log_sums


def write_sums(log: ScoredLog, queries: Mapping[str, Query], source: str, path: Path) -> None:
    """Writes the sums of one shard; each machine runs it on rows of its own."""
    log_sums(log.of(source), queries).save(path)


def read_sums(paths: Iterable[Path]) -> LogSums:
    """The sums of the whole log, from the files of all shards."""
    return LogSums.merged([LogSums.load(path) for path in paths])
