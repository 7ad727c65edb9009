"""What is asked of the loss of regression beside its reference (`test_references.py`)."""

import math

import numpy as np
import pytest

from backends import FLOATS, digits, needs_float64
from keras_calibration.metrics import CalibratedQuadraticLoss
from metric_references import Rows, calibrated_quadratic_loss

MODES = [{"num_folds": 1}, {"num_folds": 2}, {"bias_fraction": 0.3}]
CORRECTIONS = ["bias", "linear"]


def reference(labels, predictions, weights, correction="bias"):
    numbers = np.arange(len(labels))
    rows = Rows(labels, predictions, weights, numbers, numbers)
    return calibrated_quadratic_loss(rows, correction)


def score(labels, predictions, weights=None, batch_size=None, **arguments):
    metric = CalibratedQuadraticLoss(**arguments)
    batch_size = batch_size or max(len(labels), 1)
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        part_weights = None if weights is None else weights[part]
        metric.update_state(labels[part], predictions[part], part_weights)
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
    expected = reference(small_labels, small, weights)
    result = score(small_labels + 2.0**30, small + 2.0**30, weights, 97)
    assert result == pytest.approx(expected, rel=digits(1e-11))


@needs_float64
@pytest.mark.parametrize(("shift", "tolerance"), [(1e3, 1e-9), (1e5, 1e-5)])
def test_slope_loses_the_digits_that_are_documented(rows, shift, tolerance):
    labels, predictions, weights = rows
    expected = reference(labels, predictions, weights, "linear")
    # The ratio of mean to spread, R, is a third of the shift.
    result = score(labels + shift, predictions + shift, weights, 97, correction="linear")
    assert result == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_fitted_line_is_readable(rows, correction):
    labels, predictions, weights = rows
    metric = CalibratedQuadraticLoss(num_folds=1, correction=correction)
    metric.update_state(labels, predictions, weights)
    slope, bias = 1.0, np.average(labels - predictions, weights=weights)
    if correction == "linear":
        slope, bias = np.polyfit(predictions, labels, 1, w=np.sqrt(weights))
    np.testing.assert_allclose([metric.bias[0], metric.slope[0]], [bias, slope], rtol=digits(1e-9))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("value", [0.1, -1e6 / 3])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_equal_predictions_have_no_slope(mode, value, dtype):
    rng = np.random.default_rng(0)
    labels, weights = rng.normal(size=1000), rng.exponential(size=1000)
    predictions = np.full(1000, value)
    arguments = {"correction": "linear", "dtype": dtype, **mode}
    assert math.isnan(score(labels, predictions, weights, 10, **arguments))
    assert math.isfinite(score(labels, predictions, weights, 1000, dtype=dtype, **mode))


def test_perfect_predictions_have_no_loss(rows):
    _, predictions, _ = rows
    for correction in CORRECTIONS:
        for factor in (1.0, 1.1, -3.3) if correction == "linear" else (1.0,):
            result = score(5 + factor * predictions, predictions, correction=correction)
            assert 0 <= result < digits(1e-12, 1e-3)
