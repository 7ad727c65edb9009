"""What is asked of the loss of regression beside its reference (`test_references.py`)."""

import math

import numpy as np
import pytest

from backends import FLOATS, digits, needs_float64
from keras_calibration.metrics import CalibratedQuadraticLoss
from metric_references import Rows, calibrated_quadratic_loss

MODES = [{"num_folds": 1}, {"num_folds": 2}, {"bias_fraction": 0.3}]


def score(*rows, **arguments):
    metric = CalibratedQuadraticLoss(**arguments)
    metric.update_state(*rows)
    return float(metric.result())


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    predictions = rng.normal(7, 3, 2001)
    labels = 2 + 0.8 * predictions + rng.normal(size=2001)
    return labels, predictions, rng.exponential(size=2001)


@needs_float64
def test_large_means_cost_no_digits(rows):
    labels, predictions, weights = rows
    # Exact in float64, so that the reference on the small numbers holds.
    small_labels, small = np.round(labels * 1024) / 1024, np.round(predictions * 1024) / 1024
    numbers, metric = np.arange(2001), CalibratedQuadraticLoss()
    for part in np.array_split(numbers, 21):
        metric.update_state(small_labels[part] + 2.0**30, small[part] + 2.0**30, weights[part])
    expected = calibrated_quadratic_loss(Rows(small_labels, small, weights, numbers, numbers))
    assert float(metric.result()) == pytest.approx(expected, rel=digits(1e-11))


def test_the_fitted_bias_is_readable(rows):
    labels, predictions, weights = rows
    metric = CalibratedQuadraticLoss(num_folds=1)
    metric.update_state(labels, predictions, weights)
    bias = np.average(labels - predictions, weights=weights)
    np.testing.assert_allclose(metric.bias, [bias], rtol=digits(1e-9))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("value", [0.1, -1e6 / 3])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_equal_predictions_have_a_loss(mode, value, dtype):
    rng = np.random.default_rng(0)
    labels, weights = rng.normal(size=1000), rng.exponential(size=1000)
    predictions = np.full(1000, value)
    assert math.isfinite(score(labels, predictions, weights, dtype=dtype, **mode))


def test_perfect_predictions_have_no_loss(rows):
    _, predictions, _ = rows
    assert 0 <= score(5 + predictions, predictions) < digits(1e-12, 1e-3)
