"""`calibrate` with the times of the rows: what is tried, what is chosen, and what it says."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import keras_calibration as kc
from calibration.test_calibrate import base_model
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.times import with_times
from keras_calibration.calibration.splits import splits_of

NUM_ROWS = 6000


def make_rows(level, seed=0, num_rows=NUM_ROWS):
    """Rows in order of time, whose level is a function of the share of the time that has passed."""
    generator = np.random.default_rng(seed)
    x = {
        "score": generator.normal(-1, 1, (num_rows, 1)).astype("float32"),
        "site": generator.integers(0, 6, num_rows),
        "price": generator.exponential(size=num_rows).astype("float32"),
    }
    passed = np.arange(num_rows) / num_rows
    eta = x["score"][:, 0] + 0.4 * (x["site"] % 3 - 1) + np.vectorize(level)(passed)
    return x, (generator.random(num_rows) < expit(eta)).astype("float32"), eta


def calibrated(x, y, **kwargs):
    kwargs = {"methods": "quick", "fields": ["site"], "verbose": 0, **kwargs}
    return kc.calibrate(base_model(), x, y, **kwargs)


def share_of_levels(report):
    return sum(weight for name, weight in report.weights.items() if name.endswith("+level"))


def test_a_step_is_followed_and_reported():
    x, y, eta = make_rows(lambda passed: 0.8 * (passed > 0.6))
    days = pd.date_range("2026-03-01", periods=NUM_ROWS, freq="10min", tz="UTC")
    model = calibrated({**x, "at": days}, y, time="at")
    report = model.report
    assert share_of_levels(report) > 0.5
    assert report.time_unit == "day"
    assert report.level.last > 0.3
    last = slice(-1500, None)
    received = model.predict({name: column[last] for name, column in x.items()}, verbose=0)
    assert abs(received.mean() - expit(eta[last]).mean()) < 0.03
    text = str(report)
    assert "The level drifted by +0.0" in text
    assert "logits a day" in text
    told = json.loads(json.dumps(report.to_dict()))
    assert told["level"]["times"][-1] == 0.0
    # Other folds do not know of it.
    other = calibrated({name: column[:1000] for name, column in x.items()}, y[:1000])
    assert other.report.level is None
    assert not [score for score in other.report.scores if "+level" in score.name]


def test_all_forms_of_the_times_are_the_same():
    methods = ["platt", "ilps+level", "field_bias+level"]
    x, y, _ = make_rows(lambda passed: passed, num_rows=1500)
    first = calibrated(x, y, time="order", methods=methods)
    order = np.random.default_rng(0).permutation(1500)
    shuffled = {name: column[order] for name, column in x.items()}
    other = calibrated(shuffled, y[order], time=np.arange(1500)[order] * 60.0, methods=methods)
    for name, weight in first.report.weights.items():
        assert other.report.weights[name] == pytest.approx(weight, abs=1e-3)
    expected = first.predict(x, batch_size=1500, verbose=0)
    np.testing.assert_allclose(other.predict(x, batch_size=1500, verbose=0), expected, atol=1e-5)
    scores = kc.calibrate_scores(
        x["score"][:, 0], y, {**x, "at": np.arange(1500)}, from_logits=True, fields=["site"],
        methods=methods, time="at", verbose=0,
    )  # fmt: skip
    assert set(scores.report.weights) == set(first.report.weights)


def test_a_gap_is_kept():
    times = np.arange(800.0)
    rows = Rows(np.zeros(800), np.arange(800) % 2.0, None, times=times)
    for (fitted, scored), number in zip(
        splits_of(None, rows, 150.0).parts, range(2, 8), strict=True
    ):
        assert scored.min() == 100 * number
        assert fitted.max() == 100 * number - 150
    with pytest.raises(ValueError, match=r"`time`.*gap of 700"):
        splits_of(None, rows, 700.0)


def test_rows_of_one_time_are_in_one_block():
    times = np.floor(np.arange(800.0) / 90)
    splits = splits_of(None, Rows(np.zeros(800), np.arange(800) % 2.0, None, times=times))
    assert all(len(set(splits.fold[times == time])) == 1 for time in set(times))
    with pytest.raises(ValueError, match=r"`time`.*gap of 0"):
        splits_of(None, Rows(np.zeros(800), np.arange(800) % 2.0, None, times=times // 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time": "order", "folds": 5}, "`folds`"),
        ({"time": ("order", -1)}, "`gap`"),
        ({"time": ("order", np.timedelta64(1, "D"))}, "`gap`"),
        ({"time": "when"}, "`time`"),
        ({"time": np.zeros(5)}, "800"),
        ({"time": np.zeros(800)}, "`time`.*gap of 0"),
    ],
    ids=["folds", "negative gap", "timedelta", "no column", "few times", "one time"],
)
def test_bad_times_are_refused(arguments, message):
    x, y, _ = make_rows(lambda passed: 0.0, num_rows=800)
    with pytest.raises(ValueError, match=message):
        calibrated(x, y, **arguments)


def test_times_tell_apart_rows_that_are_else_the_same():
    x, y, _ = make_rows(lambda passed: 0.0, num_rows=800)
    twice = {name: np.concatenate([column, column]) for name, column in x.items()}
    methods = ["bias", "platt"]
    # A warning is an error here.
    calibrated(twice, np.r_[y, y], time=np.arange(1600), methods=methods)
    with pytest.warns(UserWarning, match="1,600 rows.* 800 different"):
        calibrated(twice, np.r_[y, y], time=np.tile(np.arange(800), 2), methods=methods)


def test_a_few_rows_far_in_the_future_are_noticed_at_every_door(tmp_path):
    """One per cent of open dates would decide the level of all rows."""
    x, y, _ = make_rows(lambda passed: passed, num_rows=1500)
    dates = np.datetime64("2026-03-01", "s") + np.arange(1500) * np.timedelta64(1800, "s")
    far = np.where(np.arange(1500) % 100 == 7, np.datetime64("9999-12-31", "s"), dates)
    logits, fields = x["score"][:, 0], {"site": x["site"]}
    head = kc.layers.FieldBias({"site": 6}, follows_time=True)
    model = calibrated(x, y, time=dates, methods="field_bias+level")
    path = kc.export_savedmodel(model, tmp_path / "ctr" / "1")
    of_scores = {"from_logits": True, "methods": "bias", "verbose": 0}
    doors = {
        "calibrate": lambda: calibrated(x, y, time=far, methods="bias"),
        "calibrate_scores": lambda: kc.calibrate_scores(logits, y, time=far, **of_scores),
        "fit_head": lambda: kc.fit_head(model, x, y, time=far, verbose=0),
        "fit": lambda: head.fit(logits, y, fields, time=far),
        "refresh": lambda: kc.refresh_savedmodel(
            path, logits, y, fields, from_logits=True, time=far
        ),
    }
    message = r"^15 of 1,500 rows have times far after.*9999-12-31"
    for name, door in doors.items():
        with pytest.warns(UserWarning, match=message) as caught:
            door()
        assert sum("far after" in str(item.message) for item in caught) == 1, name


@pytest.mark.parametrize(
    ("times", "counts", "num_far"),
    [
        (np.arange(1000) % 30, None, 0),  # days
        (np.arange(1000) % 3, None, 0),
        (np.r_[np.arange(900) / 900, 180 + np.arange(100) / 100], None, 100),  # a late campaign
        (np.r_[np.arange(800) / 800, 180 + np.arange(200) / 200], None, 0),  # of many rows
        (np.r_[-1e9, np.arange(999)], None, 0),  # what is long ago decides nothing
        (np.r_[-1e9 * np.ones(40), np.arange(950), 1e5 * np.ones(10)], None, 10),
        (np.random.default_rng(0).exponential(size=1000), None, 0),  # fewer and fewer rows
        (-np.random.default_rng(0).lognormal(0, 2, 1000), None, 0),  # more and more
        (np.r_[np.arange(20), 1e4], np.r_[np.full(20, 50), 10], 1),
        (np.r_[np.arange(20), 1e4], None, 1),
        (np.r_[np.arange(20), 1e4], np.r_[np.ones(20), 10], 0),
        (np.array(["2026-03-01", "2026-03-05", "2099-12-31"] * 9, "M8[s]"), None, 9),
        (np.array(["2016-03-01", "2021-03-05", "2025-12-31"] * 9, "M8[s]"), None, 0),
    ],
)
def test_times_are_far_if_few_rows_come_long_after_all_others(times, counts, num_far):
    rows = Rows(np.zeros(len(times)), np.zeros(len(times)), counts)
    if not num_far:
        with_times(rows, times)  # a warning is an error here
        return
    with pytest.warns(UserWarning, match=f"^{num_far} of {len(times):,} rows.* far after"):
        with_times(rows, times)


def test_what_was_calibrated_with_times_is_refreshed_with_times(tmp_path):
    x, y, _ = make_rows(lambda passed: passed, num_rows=2000)
    model = calibrated(x, y, time="order", methods="field_bias+level")
    path = kc.export_savedmodel(model, tmp_path / "ctr" / "1")
    logits, rows = x["score"][:, 0], {"site": x["site"], "at": np.arange(2000)}
    with pytest.raises(ValueError, match="follows time"):
        kc.refresh_savedmodel(path, logits, y, rows, from_logits=True)
    new = kc.refresh_savedmodel(path, logits, y, rows, from_logits=True, time="at")
    assert new.path.name == "2"
