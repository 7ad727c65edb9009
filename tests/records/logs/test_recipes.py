"""The recipes of `examples/scored_logs`: the sums of one engine are those of the whole log."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keras_calibration.logs import LogSums, ScoredLog, log_sums
from keras_calibration.metrics import CalibratedLogLoss, LogLoss
from keras_calibration.scoring import log_queries, score
from scored_logs.beam_combine import CombineSums
from scored_logs.shards import read_sums, write_sums
from scored_logs.spark_map import SCHEMA, sums_in_arrow

RNG = np.random.default_rng(5)
N = 1200
SITES = np.array(["a", "b'", 'c"', "d\0e"], object)
ROWS = pa.table(
    {
        "label": RNG.integers(0, 2, N),
        "probability": RNG.random(N),
        "weight": RNG.exponential(size=N),
        "site": SITES[RNG.integers(0, 4, N)],
        "id": np.arange(N),
    }
)
LOG = ScoredLog(sample_weight="weight", fields=["site"], row_key="id", num_threads=1)
INVALID = ROWS.set_column(1, "probability", pa.array(np.full(N, 2.0)))


def metrics():
    return [LogLoss(), CalibratedLogLoss()]


QUERIES = log_queries(LOG, metrics())


def assert_whole(sums):
    expected = score(LOG.of(ROWS), metrics(), verbose=0)
    found = score(sums, metrics(), verbose=0)
    assert found == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}


def parts():
    """The rows without their order, in parts of which one is empty."""
    shuffled = ROWS.take(RNG.permutation(N))
    return [shuffled.slice(0, 500), shuffled.slice(500, 0), shuffled.slice(500)]


def test_shards_merged_from_files(tmp_path):
    for number, part in enumerate(parts()):
        pq.write_table(part, tmp_path / f"{number}.parquet")
        source, sums = str(tmp_path / f"{number}.parquet"), tmp_path / f"{number}.sums"
        write_sums(LOG, QUERIES, source, sums)
    assert_whole(read_sums(tmp_path.glob("*.sums")))


def test_shards_of_different_types_are_refused():
    other = ROWS.set_column(3, "site", pa.array(np.arange(N)))
    with pytest.raises(ValueError, match="one type in all parts"):
        log_sums(LOG.of(ROWS), QUERIES) + log_sums(LOG.of(other), QUERIES)


def test_spark_batches():
    partitions = [[b for part in parts() for b in part.to_batches(100)], []]
    mapped = [list(sums_in_arrow(LOG, QUERIES, 5)(iter(each))) for each in partitions]
    assert [len(rows) for rows in mapped] == [3, 0]
    assert all(each.schema == pa.schema({"sums": pa.binary()}) for each in mapped[0])
    assert_whole(LogSums.merged([LogSums.from_bytes(b["sums"][0].as_py()) for b in mapped[0]]))
    with pytest.raises(ValueError, match="1,200 invalid predictions"):
        list(sums_in_arrow(LOG, QUERIES)(INVALID.to_batches()))


def test_spark(tmp_path):
    sql = pytest.importorskip("pyspark.sql")
    for number, part in enumerate(parts()):
        pq.write_table(part, tmp_path / f"{number}.parquet")
    with sql.SparkSession.builder.master("local[1]").getOrCreate() as spark:
        frame = spark.read.parquet(str(tmp_path))
        rows = frame.mapInArrow(sums_in_arrow(LOG, QUERIES), SCHEMA).collect()
    assert_whole(LogSums.merged([LogSums.from_bytes(bytes(row.sums)) for row in rows]))


def test_the_methods_of_the_combine_function():
    combine = CombineSums(LOG, QUERIES)
    accumulators = []
    for part in parts():
        accumulator = combine.create_accumulator()
        for start in range(0, part.num_rows, 300):
            accumulator = combine.add_input(accumulator, part.slice(start, 300))
        accumulators.append(accumulator)
    combined = combine.extract_output(combine.merge_accumulators(accumulators))
    assert_whole(LogSums.from_bytes(combined))
    with pytest.raises(ValueError, match="1,200 invalid predictions"):
        combine.add_input(combine.create_accumulator(), INVALID)


def test_beam(tmp_path):
    beam = pytest.importorskip("apache_beam")
    path = tmp_path / "sums"
    with beam.Pipeline("DirectRunner") as pipeline:
        combined = pipeline | beam.Create(parts()) | beam.CombineGlobally(CombineSums(LOG, QUERIES))
        combined | beam.Map(path.write_bytes)
    assert_whole(LogSums.load(path))
