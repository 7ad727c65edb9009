"""The rolling quadratic loss; `tests/reports/test_score_results.py` has the rolling log loss."""

import numpy as np
import pandas as pd
import pytest

from keras_calibration.scoring import rolling_quadratic_loss


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
