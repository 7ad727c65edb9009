"""A log that is a data set of Ray: the numbers of the embedded engine."""

import itertools
import os
import signal
import sys
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
from keras_calibration.calibration import LabelDelay, calibrate_scores, fit_calibrator
from keras_calibration.layers import FieldBias
from keras_calibration.logs import Periods, ScoredLog, log_sums
from keras_calibration.metrics import CalibratedLogLoss, LogLoss
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
    return [LogLoss(), CalibratedLogLoss()]


def replaced(**columns):
    return pa.table({name: columns.get(name, TABLE[name]) for name in TABLE.column_names})


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
        "shuffled": lambda: blocks(shuffled),
        "dictionary": lambda: blocks(encoded),
        "pandas": lambda: ray.data.from_pandas([FRAME.iloc[1500:], FRAME.iloc[:1500]]),
        "parquet": lambda: ray.data.read_parquet(str(folder)),
        "mapped": lambda: blocks().map_batches(lambda rows: rows, batch_size=300),
    }


def test_workers_do_not_load_the_packages():
    @ray.remote
    def modules():
        names = ("keras_calibration", "calibration_records", "keras", "duckdb")
        return [name for name in names if name in sys.modules]

    score(LOG.of(blocks()), metrics(), verbose=0)
    found = ray.get([modules.remote() for _ in range(4)])
    assert ["duckdb"] in found
    assert {name for names in found for name in names} == {"duckdb"}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", ["arrow", "dictionary", "shuffled", "pandas", "parquet", "mapped"])
def test_the_numbers_of_the_embedded_engine(tmp_path, kind):
    log = LOG.of(data_sets(tmp_path)[kind]())
    expected = score(LOG.of(TABLE), metrics(), verbose=0)
    found = score(log, metrics(), verbose=0)
    assert found == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}


def assert_same_sums(found, expected):
    assert found.names == expected.names
    for name in expected.names:
        ours, theirs = found.table(name), expected.table(name)
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
    found = log_sums(log.of(blocks()), queries, selection)
    assert_same_sums(found, log_sums(log.of(TABLE), queries, selection))
    by_day = score_by_period(LOG_AT.of(blocks()), metrics(), verbose=0)
    expected = score_by_period(LOG_AT.of(TABLE), metrics(), verbose=0)
    assert len(by_day) == 4
    assert by_day == {
        day: {name: pytest.approx(value, rel=1e-11, nan_ok=True) for name, value in scores.items()}
        for day, scores in expected.items()
    }


def test_classes_whose_probabilities_are_arrays():
    classes = RNG.integers(0, 3, N)
    probabilities = RNG.dirichlet(np.ones(3), N).astype("float32")
    data = blocks().map_batches(
        lambda rows: {"label": classes[rows["id"]], "probability": probabilities[rows["id"]]},
        batch_format="numpy",
    )
    listed = pa.table({"label": classes, "probability": list(probabilities)})
    selection = Selection(class_number=1, class_names=("0", "1", "2"))
    queries = {"bins": logit_bins(4)}
    found = log_sums(ScoredLog(data), queries, selection)
    assert_same_sums(found, log_sums(ScoredLog(listed), queries, selection))


def test_a_block_in_which_a_field_is_missing_everywhere():
    site = pa.array([None] * 700 + TABLE["site"].to_pylist()[700:], pa.string())
    rows = replaced(site=site)
    parts = [rows.slice(0, 700).set_column(3, "site", pa.nulls(700)), rows.slice(700)]
    queries = log_queries(LOG, metrics())
    found = log_sums(LOG.of(ray.data.from_arrow(parts)), queries)
    assert_same_sums(found, log_sums(LOG.of(rows), queries))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", ["nothing", "filtered", "arrow"])
def test_no_rows(kind):
    data = {
        "arrow": lambda: ray.data.from_arrow(TABLE.slice(0, 0)),
        "filtered": lambda: blocks().map_batches(
            lambda rows: rows.slice(0, 0), batch_format="pyarrow"
        ),
        "nothing": lambda: ray.data.from_items([]),
    }[kind]()
    queries = log_queries(LOG, metrics())
    sums = log_sums(LOG.of(data), queries)
    assert_same_sums(sums, log_sums(LOG.of(TABLE.slice(0, 0)), queries))
    assert_same_sums(sums + log_sums(LOG.of(TABLE), queries), log_sums(LOG.of(TABLE), queries))
    with pytest.raises(ValueError, match="no rows to score"):
        score(LOG.of(data), metrics(), verbose=0)


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        (
            {"probability": np.where(np.arange(N) % 500 == 17, np.nan, FRAME.probability)},
            {},
            r"Received: 4 invalid predictions in 2,000 rows\. Check",
        ),
        ({"label": FRAME.label + 1}, {}, "invalid labels in 2,000 rows"),
        ({"weight": -FRAME.weight}, {"sample_weight": "weight"}, "2,000 invalid weights"),
        (
            {"probability": FRAME.probability.astype(str)},
            {},
            "^The column 'probability' must hold numbers. Received: VARCHAR",
        ),
        ({}, {"label": "click", "fields": ["country"]}, "^The log has no columns .'click', 'cou"),
        ({}, {"where": "no_column > 1"}, "cannot be read. Argument `where` is 'no_column > 1'"),
    ],
)
def test_invalid_logs_are_refused(columns, arguments, message):
    columns = {name: pa.array(values) for name, values in columns.items()}
    with pytest.raises(ValueError, match=message) as raised:
        score(ScoredLog(blocks(replaced(**columns)), **arguments), LogLoss(), verbose=0)
    assert type(raised.value) is ValueError


def test_columns_that_are_missing_though_the_columns_are_not_known_before():
    data = blocks().map_batches(lambda rows: rows)
    with pytest.raises(ValueError, match=r"^The log has no columns .'click'") as raised:
        score(ScoredLog(data, label="click"), LogLoss(), verbose=0)
    assert type(raised.value) is ValueError


def test_folds_require_a_row_key():
    log = ScoredLog(blocks())
    with pytest.raises(ValueError, match=r"Argument `row_key` .* keeps no order"):
        score(log, CalibratedLogLoss(), verbose=0)
    found = score(log, CalibratedLogLoss(num_folds=1), verbose=0)
    expected = score(ScoredLog(TABLE), CalibratedLogLoss(num_folds=1), verbose=0)
    assert found == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}


def test_metrics_without_sums_are_refused():
    with pytest.raises(ValueError, match=r"functions of sums .* Received: AUC"):
        score(LOG.of(blocks()), keras.metrics.AUC(), verbose=0)


def test_progress_counts_the_rows_without_the_bars_of_ray(capfd):
    data = blocks()
    before = data.context.enable_progress_bars
    score(LOG.of(data), metrics(), verbose=1)
    told = capfd.readouterr()
    assert "2,000/2,000" in told.out
    assert "Dataset" not in told.err
    assert data.context.enable_progress_bars == before


def kill_once(folder):
    """Kills the worker that first computes a batch, and leaves a file in the folder."""

    def same_rows(rows):
        try:
            (Path(folder) / "killed").touch(exist_ok=False)
        except FileExistsError:
            return rows
        os.kill(os.getpid(), signal.SIGKILL)

    return same_rows


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
        return {"loss": summary.log_loss_after, "logits": keras.ops.convert_to_numpy(logits)}

    found, expected = results(LOG.of(data)), results(LOG.of(TABLE))
    assert (tmp_path / "killed").exists()
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, 1e-6 if name == "logits" else 1e-12)


def late_log(**arguments):
    """Rows of 60 days whose labels come within 20 days; delays differ by site."""
    rng = np.random.default_rng(3)
    site = rng.integers(0, 2, N)
    at = np.datetime64("2026-03-02") + (rng.uniform(0, 60, N) * 86400).astype("timedelta64[s]")
    waiting = (rng.uniform(0, 20, N) * (0.3 + 0.7 * site) * 86400).astype("timedelta64[s]")
    bought_at = np.where(rng.random(N) < 0.4, at + waiting, np.datetime64("NaT", "s"))
    columns = {"at": at, "bought_at": bought_at, "probability": rng.random(N), "site": site}
    table = pa.table({**columns, "id": np.arange(N)})
    arguments = {"fields": ["site"], "timestamp": "at", "row_key": "id", **arguments}
    log = ScoredLog(
        table, label_time="bought_at", observed_until="2026-05-01", delay_field="site", **arguments
    )
    return log, log.of(blocks(table))


def test_labels_that_come_late_are_those_of_the_embedded_engine():
    here, there = late_log()
    delays = [LabelDelay(window=20).fit_log(log, verbose=0) for log in (here, there)]
    ages = np.linspace(0, 21, 50)
    shares = [delay.observed_share(ages, np.ones(50, int)) for delay in delays]
    np.testing.assert_allclose(shares[1], shares[0], rtol=1e-12)
    here, there = (log.with_delay(delays[0]) for log in (here, there))
    expected = score(here, metrics(), verbose=0)
    found = score(there, metrics(), verbose=0)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    heads = [FieldBias({"site": 2}) for _ in range(2)]
    for log, head in zip((here, there), heads, strict=True):
        fit_calibrator(head, log, verbose=0)
    offsets = [np.concatenate([np.ravel(each) for each in head.get_weights()]) for head in heads]
    np.testing.assert_allclose(offsets[1], offsets[0], atol=1e-5)
    reports = [monitor(log) for log in (here, there)]
    assert str(reports[1]) == str(reports[0])


def test_rows_are_fitted_in_passes(monkeypatch):
    monkeypatch.setitem(fit_calibrator.__globals__, "_MOST_CELLS", 0)
    heads = []
    for source in (blocks(), TABLE):
        lookup = keras.layers.StringLookup(vocabulary=["a", 'b"', "c'"])
        heads.append(FieldBias({"site": lookup, "device": 3}, numeric=["weight"]))
        log = ScoredLog(source, row_key="id")
        assert fit_calibrator(heads[-1], log, verbose=0).num_rows == N
    for found, expected in zip(*(head.get_weights()[:4] for head in heads), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_scores_are_calibrated():
    # The labels are of chance alone, on which a slope would warn.
    options = {"fields": ["device"], "methods": ["bias", "field_bias"], "verbose": 0}
    models = [
        calibrate_scores(ScoredLog(source, row_key="id"), **options) for source in (blocks(), TABLE)
    ]
    for found, expected in zip(*(model.report.scores for model in models), strict=True):
        assert found.log_loss == pytest.approx(expected.log_loss, abs=1e-6)
