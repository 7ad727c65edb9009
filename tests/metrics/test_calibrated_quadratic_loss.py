"""What is asked of the loss of regression beside its reference (`test_references.py`)."""

import math

import numpy as np
import pytest

from backends import FLOATS, digits, needs_float64
from keras_calibration.metrics import CalibratedQuadraticLoss
from metric_references import Rows, calibrated_quadratic_loss

MODES = [{"num_folds": 1}, {"num_folds": 2}, {"bias_fraction": 0.3}]


def reference(labels, predictions, weights):
    numbers = np.arange(len(labels))
    return calibrated_quadratic_loss(Rows(labels, predictions, weights, numbers, numbers))


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
    assert math.isfinite(score(labels, predictions, weights, 1000, dtype=dtype, **mode))


def test_perfect_predictions_have_no_loss(rows):
    _, predictions, _ = rows
    assert 0 <= score(5 + predictions, predictions) < digits(1e-12, 1e-3)
