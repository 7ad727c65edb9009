"""`calibrate_scores` of a log: as of its rows in memory, or by a sample and fits in passes."""

import warnings

import numpy as np
import pandas as pd
import pytest

from keras_calibration import calibrate_scores
from keras_calibration.calibration import long_logs
from keras_calibration.logs import ScoredLog

N = 12_000


def table(seed=0, num_rows=N):
    generator = np.random.default_rng(seed)
    site, user = generator.integers(0, 12, num_rows), generator.integers(0, 400, num_rows)
    effects = np.random.default_rng(9)
    age = generator.normal(40, 12, num_rows).astype("float32")
    logits = generator.normal(-1, 1.2, num_rows)
    true = 0.7 * logits + 0.3 + effects.normal(0, 0.5, 12)[site]
    true += effects.normal(0, 0.8, 400)[user] + 0.4 * np.sin(age / 8)
    probability = 1 / (1 + np.exp(-logits))
    label = (generator.random(num_rows) < 1 / (1 + np.exp(-true))).astype(int)
    names = np.array([f"site {number}" for number in range(12)])[site]
    day = np.datetime64("2026-03-01") + np.sort(generator.integers(0, 24, num_rows))
    columns = {"label": label, "probability": probability, "site": names, "user": user}
    return pd.DataFrame({**columns, "age": age, "day": day, "true": true})


def served(rows):
    columns = {"score": "probability", "site": "site", "user": "user", "age": "age"}
    return {name: rows[column].to_numpy() for name, column in columns.items()}


def log_loss(labels, probabilities):
    chances = np.clip(probabilities.astype(float), 1e-12, 1 - 1e-12)
    return -np.mean(labels * np.log(chances) + (1 - labels) * np.log1p(-chances))


@pytest.fixture
def short_memory(monkeypatch):
    """A log of more than 2,000 rows is sampled."""
    monkeypatch.setattr(long_logs, "MOST_ROWS", 2_000)
    monkeypatch.setattr(long_logs, "_LEAST_OF_CLASS", 100)


COLUMNS = {"fields": ["site", "user"], "numeric": ["age"], "methods": "quick", "verbose": 0}


def test_a_short_log_is_read_into_memory():
    rows = table(num_rows=3_000)
    found = calibrate_scores(ScoredLog(rows), **COLUMNS)
    expected = calibrate_scores(rows["probability"], rows["label"], rows, **COLUMNS)
    assert found.report.num_rows == 3_000
    assert found.report.weights == pytest.approx(expected.report.weights, abs=1e-4)
    assert found.report.fitted_elsewhere == ()
    both = (each.predict(served(rows), verbose=0) for each in (found, expected))
    np.testing.assert_allclose(*both, atol=1e-4)


def test_a_long_log_is_fitted_in_passes_and_scored_on_a_sample(short_memory, tmp_path):
    rows = table()
    for number, part in enumerate(np.array_split(np.arange(N), 3)):
        rows.iloc[part].to_parquet(tmp_path / f"{number}.parquet")
    model = calibrate_scores(ScoredLog(tmp_path), **COLUMNS)
    report, new = model.report, table(1)
    assert report.num_rows + report.num_rows_elsewhere == N
    assert 1_800 < report.num_rows < 2_200
    assert "additive" in report.fitted_elsewhere
    assert "Fitted to the other" in " ".join(str(report).split())
    # The figures are those of rows to come, and nearer the truth than those of the sample alone.
    after = log_loss(new["label"], model.predict(served(new), verbose=0)[:, 0])
    assert report.after.log_loss == pytest.approx(after, abs=0.03)
    keys = np.arange(N) % 6 == 0
    few = calibrate_scores(rows["probability"][keys], rows["label"][keys], rows[keys], **COLUMNS)
    assert after < log_loss(new["label"], few.predict(served(new), verbose=0)[:, 0]) - 0.005


def test_trees_stand_on_the_fit_to_all_other_rows(short_memory):
    rows = table()
    rows["label"] = (rows["label"] & (rows["age"] > 35)) | ((rows["user"] % 2) & (rows["age"] < 30))
    options = {**COLUMNS, "methods": ["additive", "trees"]}
    model = calibrate_scores(ScoredLog(rows), **options)
    scores = {score.name: score.log_loss for score in model.report.scores}
    assert scores["trees"] < scores["additive"] < scores["identity"]
    new = table(1)
    new["label"] = (new["label"] & (new["age"] > 35)) | ((new["user"] % 2) & (new["age"] < 30))
    after = log_loss(new["label"], model.predict(served(new), verbose=0)[:, 0])
    assert model.report.after.log_loss == pytest.approx(after, abs=0.03)


@pytest.mark.parametrize("columns", [{}, {"fields": ["site"]}, {"numeric": ["age"]}])
def test_other_columns(short_memory, columns):
    rows = table()
    model = calibrate_scores(ScoredLog(rows), methods="quick", verbose=0, **columns)
    named = {"score", *(name for names in columns.values() for name in names)}
    used = {name: column for name, column in served(rows).items() if name in named}
    after = log_loss(rows["label"], model.predict(used, verbose=0)[:, 0])
    assert after < log_loss(rows["label"], rows["probability"]) - 0.01


def test_counts_and_logits(short_memory):
    rows = table()
    rows["logit"] = np.log(rows["probability"] / (1 - rows["probability"]))
    rows["count"] = np.random.default_rng(5).integers(0, 4, N)
    log = ScoredLog(rows, logit="logit", sample_weight="count")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = calibrate_scores(log, weights_are="counts", **COLUMNS)
    assert model.report.num_rows + model.report.num_rows_elsewhere == (rows["count"] > 0).sum()
    low, high = model.head.interval(rows["logit"][:5], rows[:5])
    assert (low < high).all()


def test_days_of_a_short_log():
    rows = table(num_rows=3_000)
    log = ScoredLog(rows, timestamp="day")
    found = calibrate_scores(log, time="day", **COLUMNS)
    expected = calibrate_scores(
        rows["probability"], rows["label"], rows, time=rows["day"], **COLUMNS
    )
    assert found.report.is_forward
    assert found.report.time_unit == "day"
    assert found.report.weights == pytest.approx(expected.report.weights, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0, 1]}, "must be None with a ScoredLog"),
        ({"from_logits": True}, "Pass ScoredLog.source, logit="),
        ({"time": "day"}, "must be the name of the log's column of times"),
        ({"fields": ["absent"]}, "no columns .'absent'."),
        ({"methods": "magic"}, "must be one of"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrate_scores(ScoredLog(table(num_rows=300)), verbose=0, **arguments)


def test_a_long_log_in_time_is_chosen_on_a_sample_and_fitted_to_all_rows(short_memory):
    rows = table()
    # The level rises: the served one is that of the last days.
    chance = np.random.default_rng(7).random(N)
    rows["label"] = (chance < 1 / (1 + np.exp(-rows["true"] - np.arange(N) / N * 2))).astype(int)
    model = calibrate_scores(ScoredLog(rows, timestamp="day"), time="day", **COLUMNS)
    report = model.report
    assert report.is_forward
    assert report.num_rows_elsewhere == N
    assert "in the end all 12,000" in " ".join(str(report).split())
    assert any("level" in name for name in report.fitted_elsewhere)
    assert report.level is not None
    last = rows[-1_000:]
    predicted = model.predict(served(last), verbose=0).mean()
    assert predicted == pytest.approx(last["label"].mean(), abs=0.05)


def test_rows_that_are_there_several_times_are_refused(short_memory):
    rows = pd.concat([table(num_rows=4_000)] * 3, ignore_index=True)
    with pytest.raises(ValueError, match="must be there once"):
        calibrate_scores(ScoredLog(rows), **COLUMNS)
    # Few different rows are equal by chance.
    rows = table()
    rows["probability"], rows["user"] = rows["probability"].round(1).clip(0.1, 0.9), 0
    rows["age"] = rows["age"].round(-1)
    assert calibrate_scores(ScoredLog(rows), **COLUMNS).report.num_rows_elsewhere > 9_000


def test_a_key_that_tells_no_rows_apart_and_other_folds_are_refused(short_memory):
    rows = table().assign(key=3, day=table()["day"])
    with pytest.raises(ValueError, match="`row_key` of the ScoredLog must tell the rows apart"):
        calibrate_scores(ScoredLog(rows, row_key="key"), **COLUMNS)
    with pytest.raises(ValueError, match="must be None or a number for a log of more than 2,000"):
        calibrate_scores(ScoredLog(rows), folds="blocks", **COLUMNS)
    with pytest.raises(ValueError, match="`folds` must be None with `time`"):
        calibrate_scores(ScoredLog(rows, timestamp="day"), time="day", folds=3, **COLUMNS)


def test_scores_need_labels():
    with pytest.raises(ValueError, match="Argument `labels` must be given"):
        calibrate_scores([0.5, 0.25])
