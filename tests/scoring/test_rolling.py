"""Rolling calibration: the bias of each period corrects the next."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.special import expit, logit

from keras_calibration.logs import ScoredLog
from keras_calibration.metrics import CalibratedLogLoss
from keras_calibration.scoring import rolling_quadratic_loss, score_by_period

DAYS = np.array(["2026-03-01", "2026-03-02", "2026-03-04", "2026-03-05"])


def made_log(num_rows=4000, seed=0, weighted=False):
    """Rows of four days, each with a bias of its own; the labels of the third are all 0."""
    rng = np.random.default_rng(seed)
    day = rng.integers(0, 4, num_rows)
    logits = rng.normal(-1, 1, num_rows)
    labels = rng.random(num_rows) < expit(logits + np.array([0.5, -0.3, 0.0, 0.8])[day])
    labels[day == 2] = 0
    frame = pd.DataFrame({"label": labels * 1, "probability": expit(logits), "at": DAYS[day]})
    if weighted:
        frame["w"] = rng.choice([0.0, 1.0, 2.5], num_rows)
    return frame


def rolling(frame):
    """By the definition: a root, and a mean of log losses, for each day."""
    w = frame["w"] if "w" in frame else pd.Series(1.0, frame.index)
    by_day, bias = {}, np.nan
    for day in DAYS:
        rows = frame["at"] == day
        y, weight = frame["label"][rows].to_numpy(), w[rows].to_numpy()
        x = logit(frame["probability"][rows].to_numpy())
        p = expit(x + bias)
        losses = -np.log(np.where(y == 1, p, 1 - p))
        by_day[day] = np.average(losses, weights=weight)
        if 0 < (weight * y).sum() < weight.sum():
            bias = brentq(lambda c: weight @ (expit(x + c) - y), -20, 20, xtol=1e-13)  # noqa: B023
    return by_day


@pytest.mark.parametrize("weighted", [False, True])
def test_log_loss_of_each_period_with_the_bias_of_the_one_before(weighted):
    frame = made_log(weighted=weighted)
    log = ScoredLog(frame, timestamp="at", sample_weight="w" if weighted else None)
    scores = score_by_period(log, [CalibratedLogLoss(num_folds=3)], verbose=0)
    received = {day: values["rolling_calibrated_log_loss"] for day, values in scores.items()}
    expected = rolling(frame)
    assert list(received) == list(expected)
    np.testing.assert_allclose(list(received.values()), list(expected.values()), rtol=1e-6)
    assert np.isnan(received["2026-03-01"])


@pytest.mark.parametrize("seed", range(4))
def test_quadratic_loss(seed):
    rng = np.random.default_rng(seed)
    month = rng.integers(1, 5, 200)
    predictions = rng.normal(100, 3, 200)
    labels = predictions + month + rng.normal(0, 1, 200)
    weights = rng.choice([0.0, 1.0, 3.0], 200)
    labels[weights == 0] = np.nan
    expected = {}
    for number in range(1, 5):
        rows = (month == number) & (weights > 0)
        before = (month == number - 1) & (weights > 0)
        if number > 1:
            bias = np.average((labels - predictions)[before], weights=weights[before])
            squares = (labels - predictions - bias)[rows] ** 2
            expected[number] = np.average(squares, weights=weights[rows])
    first, *others = rolling_quadratic_loss(labels, predictions, month, 1e6 * weights).values()
    np.testing.assert_allclose(others, list(expected.values()), rtol=1e-12)
    assert np.isnan(first)


def test_periods_of_any_kind_in_the_order_of_time():
    labels, predictions = np.arange(4.0), np.zeros(4)
    days = pd.to_datetime(["2026-03-02", "2026-03-01", "2026-03-02", "2026-03-01"])
    expected = {0: np.nan, 1: ((0 - 2) ** 2 + (2 - 2) ** 2) / 2}
    for column in (days, days.strftime("%Y-%m-%d"), days.day.to_numpy().reshape(-1, 1)):
        received = rolling_quadratic_loss(labels, predictions.reshape(-1, 1), column)
        np.testing.assert_equal(list(received.values()), list(expected.values()))


WRONG = {"labels": [1, np.nan], "period": [1, None], "sample_weight": [1, -1]}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(name):
    rows = {"labels": [1, 2], "predictions": [1, 2], "period": [1, 2]}
    with pytest.raises(ValueError, match=f"`{name}`"):
        rolling_quadratic_loss(**{**rows, name: WRONG[name]})
