"""A log that is a data set of Ray: the numbers of the embedded engine."""

import itertools
import os
import signal
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibration_records.logs.query import field_sums, logit_bins
from calibration_records.logs.rows import Selection
from calibration_records.monitoring import monitor
from keras_calibration.calibration import fit_calibrator
from keras_calibration.layers import FieldBias
from keras_calibration.logs import Periods, ScoredLog, log_sums
from keras_calibration.metrics import CalibratedLogLoss, LogLoss, NormalizedEntropy
from keras_calibration.scoring import log_queries, score, score_by_period

ray = pytest.importorskip("ray")
# Ray warns of settings of its own.
pytestmark = [pytest.mark.filterwarnings("ignore:::ray.*"), pytest.mark.slow]
RNG = np.random.default_rng(7)
N = 2000
NAMES = np.array(["a", 'b"', "c'", "", "d\0e", "'; DROP TABLE log; --", "ümlaut"], object)
FRAME = pd.DataFrame(
    {
        "label": RNG.integers(0, 2, N),
        "probability": RNG.random(N),
        "weight": RNG.exponential(size=N),
        "site": NAMES[RNG.integers(0, len(NAMES), N)],
        "device": RNG.integers(0, 3, N),
        "at": np.datetime64("2026-03-01", "s") + RNG.integers(0, 4 * 86400, N),
        "id": np.arange(N),
    }
)
TABLE = pa.Table.from_pandas(FRAME, preserve_index=False)
LOG = ScoredLog(sample_weight="weight", fields=["site", ("site", "device")], row_key="id")
LOG_AT = ScoredLog(fields=["site"], timestamp="at", row_key="id")


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    import ray.data

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def metrics():
    return [LogLoss(), CalibratedLogLoss(), NormalizedEntropy()]


def blocks(table=TABLE, ends=(700, 700, 1500)):
    """A data set of four blocks, of which one is empty."""
    starts = [0, *ends, N]
    return ray.data.from_arrow(
        [table.slice(first, end - first) for first, end in itertools.pairwise(starts)]
    )


def data_sets(folder):
    shuffled = TABLE.take(RNG.permutation(N))
    site = shuffled["site"].dictionary_encode()
    encoded = shuffled.set_column(TABLE.schema.get_field_index("site"), "site", site)
    for number in range(3):
        pq.write_table(TABLE.slice(700 * number, 700), folder / f"{number}.parquet")
    return {
        "arrow": lambda: blocks(),
        "dictionary": lambda: blocks(encoded),
        "pandas": lambda: ray.data.from_pandas([FRAME.iloc[1500:], FRAME.iloc[:1500]]),
        "parquet": lambda: ray.data.read_parquet(str(folder)),
        "mapped": lambda: blocks().map_batches(lambda rows: rows, batch_size=300),
    }


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", ["arrow", "dictionary", "pandas", "parquet", "mapped"])
def test_the_numbers_of_the_embedded_engine(tmp_path, kind):
    log = LOG.of(data_sets(tmp_path)[kind]())
    expected = score(LOG.of(TABLE), metrics(), verbose=0)
    scores = score(log, metrics(), verbose=0)
    assert scores == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}


def assert_same_sums(sums, expected):
    assert sums.names == expected.names
    for name in expected.names:
        ours, theirs = sums.table(name), expected.table(name)
        assert list(ours) == list(theirs)
        for column, values in theirs.items():
            if object in (values.dtype, ours[column].dtype):
                assert ours[column].tolist() == values.tolist()
            else:
                np.testing.assert_allclose(ours[column], values, 1e-11, 1e-11)


def test_any_queries_of_a_selection():
    log = ScoredLog(fields=["site"], timestamp="at", where="device > 0")
    queries = {"rows": field_sums([]), "bins": logit_bins(4, ["site"])}
    queries = {name: query.by_period() for name, query in queries.items()}
    selection = Selection("day", ends=Periods(since="2026-03-02").ends)
    sums = log_sums(log.of(blocks()), queries, selection)
    assert_same_sums(sums, log_sums(log.of(TABLE), queries, selection))
    by_day = score_by_period(LOG_AT.of(blocks()), metrics(), verbose=0)
    expected = score_by_period(LOG_AT.of(TABLE), metrics(), verbose=0)
    assert len(by_day) == 4
    assert by_day == {
        day: {name: pytest.approx(value, rel=1e-11, nan_ok=True) for name, value in scores.items()}
        for day, scores in expected.items()
    }


def test_a_block_in_which_a_field_is_missing_everywhere():
    site = pa.array([None] * 700 + TABLE["site"].to_pylist()[700:], pa.string())
    rows = TABLE.set_column(3, "site", site)
    parts = [rows.slice(0, 700).set_column(3, "site", pa.nulls(700)), rows.slice(700)]
    queries = log_queries(LOG, metrics())
    sums = log_sums(LOG.of(ray.data.from_arrow(parts)), queries)
    assert_same_sums(sums, log_sums(LOG.of(rows), queries))


@pytest.mark.parametrize("kind", ["nothing", "arrow"])
def test_no_rows(kind):
    data = ray.data.from_items([]) if kind == "nothing" else ray.data.from_arrow(TABLE.slice(0, 0))
    sums, expected = (log_sums(LOG.of(rows), log_queries(LOG, metrics())) for rows in (data, TABLE))
    assert sums.num_rows == 0
    assert_same_sums(sums + expected, expected)
    with pytest.raises(ValueError, match="no rows to score"):
        score(LOG.of(data), metrics(), verbose=0)


def kill_once(folder):
    """Kills the worker that first computes a batch, and leaves a file in the folder."""

    def same_rows(rows):
        try:
            (Path(folder) / "killed").touch(exist_ok=False)
        except FileExistsError:
            return rows
        os.kill(os.getpid(), signal.SIGKILL)

    return same_rows


def test_what_a_data_set_cannot_say_is_refused():
    bad = TABLE.set_column(0, "label", pa.array(FRAME.label + 2))
    with pytest.raises(ValueError, match=r"invalid labels in 2,000 rows\. Check") as raised:
        score(ScoredLog(blocks(bad)), LogLoss(), verbose=0)
    assert type(raised.value) is ValueError
    with pytest.raises(ValueError, match="`where`"):
        score(ScoredLog(blocks(), where="no_column > 1"), LogLoss(), verbose=0)
    with pytest.raises(ValueError, match="SQL can compute from sums"):
        score(LOG.of(blocks()), keras.metrics.AUC(), verbose=0)
    log = ScoredLog(blocks())
    with pytest.raises(ValueError, match="`row_key`"):
        score(log, CalibratedLogLoss(), verbose=0)
    scores = score(log, CalibratedLogLoss(num_folds=1), verbose=0)
    expected = score(ScoredLog(TABLE), CalibratedLogLoss(num_folds=1), verbose=0)
    assert scores == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("call", ["score", "fit_calibrator"])
def test_a_killed_worker_changes_nothing(tmp_path, call):
    data = blocks().map_batches(kill_once(tmp_path), batch_format="pyarrow")

    def results(log):
        if call == "score":
            return score(log, metrics(), verbose=0)
        head = FieldBias({"device": 3})
        summary = fit_calibrator(head, log, verbose=0)
        logits = head(np.zeros(3, "float32"), {"device": np.arange(3)})
        return {"loss": summary.log_loss_in_sample, "logits": keras.ops.convert_to_numpy(logits)}

    by_ray, expected = results(LOG.of(data)), results(LOG.of(TABLE))
    assert (tmp_path / "killed").exists()
    assert list(by_ray) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(by_ray[name], value, 1e-6 if name == "logits" else 1e-12)


def test_the_monitor_of_a_data_set():
    log = ScoredLog(fields=["site"], timestamp="at")
    assert str(monitor(log.of(blocks()))) == str(monitor(log.of(TABLE)))
