"""Heads that follow time: the same facts in any form, what is refused, and what is kept."""

import datetime
import warnings

import keras
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from keras_calibration.layers import ILPS, FieldBias
from keras_calibration.testing import check_head

NUM_ROWS = 3000


def make_rows(seed=0, num_rows=NUM_ROWS, drift=0.8, effect=0.5):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1.0, 1.0, num_rows)
    site = generator.integers(0, 5, num_rows)
    time = np.sort(generator.uniform(0, 30, num_rows))
    truth = logits + effect * (site - 2) / 2 + drift * time / 30
    return logits, (generator.random(num_rows) < expit(truth)).astype(float), {"site": site}, time


def fitted(*rows, **arguments):
    """A head that follows time, fitted."""
    head = FieldBias({"site": 5}, follows_time=True)
    head.fit(*rows, **arguments)
    return head


def predictions(head, logits, features):
    return np.asarray(head(logits[:200], {"site": features["site"][:200]})).reshape(-1)


def forms_of_time(time):
    start = np.datetime64("2026-03-01", "us")
    dates = start + (time * 86_400e6).astype("timedelta64[us]")
    aware, zone = pd.DatetimeIndex(dates, tz="UTC"), datetime.timezone(datetime.timedelta(hours=5))
    return {
        "column": time[:, None],
        "list": time.tolist(),
        "seconds": 86_400 * time + 1.7e9,
        "nanoseconds": (86_400e9 * time).astype("uint64") + np.uint64(2**63),
        "float32": time.astype("float32"),
        "dates": dates,
        "pandas": pd.Series(aware.tz_convert("Asia/Tokyo")),
        "datetimes": [*aware.tz_convert(zone).to_pydatetime()],
    }


def test_any_form_of_the_times_gives_the_same_fit():
    logits, labels, features, time = make_rows()
    first = fitted(logits, labels, features, time=time)
    expected = predictions(first, logits, features)
    assert first.level().last > 0.2
    for form, times in forms_of_time(time).items():
        received = predictions(fitted(logits, labels, features, time=times), logits, features)
        np.testing.assert_allclose(received, expected, atol=1e-4, err_msg=form)
    other = fitted(logits, labels, pd.DataFrame({**features, "day": time}), time="day")
    np.testing.assert_array_equal(predictions(other, logits, features), expected)
    hours = np.round(time * 4)
    heads = [fitted(logits, labels, features, time=form) for form in (hours, hours.astype("int8"))]
    np.testing.assert_allclose(*(predictions(head, logits, features) for head in heads), atol=1e-4)


def test_it_keeps_what_is_asked_of_every_head():
    """Among it: the order of rows, counts, a common factor of weights, rows of weight 0."""
    check_head(lambda: FieldBias({"site": 5}, follows_time=True), {"site": range(5)}, export=False)


def test_order_is_the_number_of_the_row_and_labels_may_be_turned_round():
    logits, labels, features, _ = make_rows(num_rows=1500)
    heads = [fitted(logits, labels, features, time=form) for form in (np.arange(1500), "order")]
    expected, received = (predictions(head, logits, features) for head in heads)
    np.testing.assert_array_equal(received, expected)
    mirrored = fitted(-logits, 1 - labels, features, time="order")
    np.testing.assert_allclose(predictions(mirrored, -logits, features), -expected, atol=1e-4)


DATES = pd.date_range("2026-01-01", periods=400).repeat(NUM_ROWS // 400 + 1)[:NUM_ROWS]


@pytest.mark.parametrize(
    ("time", "message"),
    [
        *((DATES.strftime(f).astype(int), "as digits") for f in ("%Y%m%d", "%Y%m%d%H", "%Y%j")),
        (DATES.strftime("%Y%m").astype(float), "as digits, such as 202601"),
        (pd.to_datetime(np.arange(NUM_ROWS)), "in 1970.*unit='D'"),
        (pd.date_range("1970-01-01", "1970-12-31", NUM_ROWS), "in 1970"),
        (pd.date_range("1970-01-01", "1971-01-01", NUM_ROWS), None),
        (20260301 + np.arange(NUM_ROWS) % 31, None),  # of one month, as far apart as days
        (200_000 + np.arange(NUM_ROWS), None),
        (DATES, None),
    ],
)
def test_dates_as_numbers_are_warned_about(time, message):
    logits, labels, features, _ = make_rows()
    with warnings.catch_warnings() if message is None else pytest.warns(UserWarning, match=message):
        fitted(logits, labels, features, time=time)


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (None, '`time`.*FieldBias.*"order"'),
        (np.arange(10.0), "`time`.*for 3000 rows"),
        ("day", "`time`.*'day'"),
        (np.full(NUM_ROWS, np.nan), "`time`.*nan in row 0"),
        (np.full(NUM_ROWS, np.inf), "`time`.*inf in row 0"),
        (["2026-03-01"] * NUM_ROWS, "`time`.*str values"),
        (np.full(NUM_ROWS, "2026-03-01", np.dtypes.StringDType()), "Received: str values"),
        (pd.Series(pd.period_range("2026-03-01", periods=NUM_ROWS)), "Period values.*to_timestamp"),
        (np.arange(NUM_ROWS) * np.timedelta64(1, "D"), "Received: timedelta64 values"),
        (1e-300 * np.arange(NUM_ROWS), "`time`.*distinct"),
        (1e300 * np.arange(NUM_ROWS), "`time`.*distinct"),
        (np.uint64(2**63) + np.arange(NUM_ROWS, dtype="uint64"), "`time`.*distinct"),
    ],
)
def test_bad_times_are_refused_and_change_nothing(time, message):
    logits, labels, features, _ = make_rows()
    head = fitted(logits, labels, features, time="order")
    before = head.get_weights()
    with pytest.raises(ValueError, match=message):
        head.fit(logits, labels, features, time=time)
    for one, other in zip(before, head.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_of_one_time_have_no_level():
    logits, labels, features, _ = make_rows()
    head = fitted(logits, labels, features, time=np.full(NUM_ROWS, 5))
    plain = FieldBias({"site": 5})
    plain.fit(logits, labels, features)
    both = (predictions(layer, logits, features) for layer in (head, plain))
    np.testing.assert_array_equal(*both)
    assert head.level() is None


def test_a_level_alone_needs_no_features_and_is_kept_in_a_file(tmp_path):
    logits, labels, _, time = make_rows()
    head = FieldBias({}, ILPS(), follows_time=True)
    head.fit(logits, labels, time=time)
    inputs = keras.Input((1,), name="score")
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(head(inputs)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict(logits[:50, None], verbose=0), model.predict(logits[:50, None], verbose=0)
    )
    level, kept = head.level(), loaded.layers[1].level()
    np.testing.assert_array_equal(kept.values, level.values)
    assert kept.to_dict() == level.to_dict()
    assert level.times[0] == pytest.approx(time[0] - time[-1], rel=1e-5)
    slope, error = level.drift
    assert slope == pytest.approx(0.8 / 30, abs=4 * error)
    deviations = np.sqrt(level.errors**2 + level.noise**2)
    (line, _), covariance = np.polyfit(
        level.times, level.values, 1, w=1 / deviations, cov="unscaled"
    )
    assert (slope, error) == pytest.approx((line, covariance[0, 0] ** 0.5), rel=1e-4)
    # The mean of the last rows is right, that of all rows is not.
    last = np.arange(NUM_ROWS - 600, NUM_ROWS)
    calibrated = expit(np.asarray(head(logits))).reshape(-1)
    assert abs(calibrated[last].mean() - labels[last].mean()) < 0.04
    assert calibrated.mean() - labels.mean() > 0.03


def test_what_does_not_last_is_not_served():
    """Days that alternate: the last one is high, and says nothing of the next."""
    generator = np.random.default_rng(0)
    day = np.repeat(np.arange(20), 200)
    logits = generator.normal(-1.0, 1.0, len(day))
    labels = generator.random(len(day)) < expit(logits + np.where(day % 2, 0.7, -0.7))
    head = FieldBias({}, ILPS(), follows_time=True)
    head.fit(logits, labels, time=day)
    level = head.level()
    assert level.values[-1] > 0.4
    assert abs(level.last) < 0.2
    calibrated = expit(np.asarray(head(logits)))
    assert abs(calibrated.mean() - labels.mean()) < 0.03
