"""SmoothECE against the integral of the smoothed residuals of the rows themselves."""

import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import brentq

from backends import HOSTILE_PREDICTIONS, digits, examples
from keras_calibration._ops import smooth_ece_from_sums
from keras_calibration.metrics import ExpectedCalibrationError, SmoothECE
from metric_references import counted

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-0.5, 1.5, 100)
PREDICTIONS = 1 / (1 + np.exp(-LOGITS))
LABELS = (RNG.random(100) < 1 / (1 + np.exp(-1.7 * LOGITS))).astype(float)
WEIGHTS = RNG.exponential(size=100)


def score(labels, predictions, weights=None, **arguments):
    metric = SmoothECE(**arguments)
    metric.update_state(labels, predictions, weights)
    return float(metric.result())


def smoothed(labels, predictions, weights, bandwidth):
    """The integral of |smoothed residuals|: row by row, with the images of each row in 0 and 1."""
    points = (np.arange(1000) + 0.5) / 1000
    residuals = weights * (labels - predictions) / weights.sum()
    total = np.zeros(1000)
    reach = math.ceil(0.5 + 2.5 * bandwidth)
    for shift in range(-reach, reach + 1):
        for sign in (1, -1):
            distance = points[:, None] - (sign * predictions + 2 * shift)
            total += np.exp(-0.5 * (distance / bandwidth) ** 2) @ residuals
    return np.abs(total).mean() / (bandwidth * math.sqrt(2 * math.pi))


def reference(labels, predictions, weights=None):
    weights = np.ones(len(labels)) if weights is None else weights
    return brentq(lambda s: smoothed(labels, predictions, weights, s) - s, 2e-3, 1.0, xtol=1e-8)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_equals_the_reference(weights):
    for labels in (LABELS, 0.1 + 0.5 * LABELS):
        expected = reference(labels, PREDICTIONS, weights)
        # The grid of 2048 cells moves the residuals by less than a hundredth of the bandwidth.
        tolerance = digits(2e-5, 1e-4)
        assert score(labels, PREDICTIONS, weights) == pytest.approx(expected, rel=tolerance)
        assert score(labels, LOGITS, weights, from_logits=True) == pytest.approx(
            expected, rel=tolerance
        )
    coarse = score(labels, PREDICTIONS, weights, num_cells=200)
    assert coarse == pytest.approx(expected, rel=3e-3)


@pytest.mark.parametrize(
    ("seed", "mean", "slope", "num_rows", "expected"),
    [
        (0, 0, 1.7, 2000, 0.08557703784996902),
        (1, -2, 1.4, 5000, 0.05136635573387226),
        (2, 1, 0.6, 5000, 0.07379576202087859),
        (3, -5, 1.2, 20_000, 0.00545482580242447),
    ],
)
def test_is_close_to_the_package_of_the_authors(seed, mean, slope, num_rows, expected):
    # relplot 1.0.3, `relplot.smECE(predictions, labels)`. It finds the bandwidth to 1/1024 only,
    # always rounds it up, and divides by an estimated density: 2 % at the smallest error here.
    rng = np.random.default_rng(seed)
    logits = rng.normal(mean, 1.2, num_rows)
    labels = (rng.random(num_rows) < 1 / (1 + np.exp(-slope * logits))).astype(float)
    result = score(labels, logits, from_logits=True)
    assert result == pytest.approx(expected, rel=0.02)


def test_a_common_bias_is_the_error():
    for bias in (0.2, -0.05, 1e-4):
        predictions = RNG.uniform(0.25, 0.75, 1000)
        result = score(predictions + bias, predictions)
        assert result == pytest.approx(abs(bias), rel=digits(1e-7, 1e-3))


def test_predictions_at_0_and_1_count_in_full():
    # A kernel without reflection at the ends would lose half of their residuals.
    labels, predictions = np.array([0.3, 0.3, 0.0]), np.array([0.0, 0.0, 0.3])
    assert score(labels, predictions) == pytest.approx(
        reference(labels, predictions), rel=digits(1e-4)
    )
    assert score([0.0, 0.0], [1.0, 1.0]) == pytest.approx(1.0, rel=digits(1e-7))


def test_it_is_continuous_where_bins_are_not():
    labels = np.array([0.0, 1.0])
    moved = [np.array([0.5 + 1e-6, 0.5 + 2e-6]), np.array([0.5 - 1e-6, 0.5 + 2e-6])]
    smooth = [score(labels, predictions) for predictions in moved]
    assert max(smooth) < 1e-3  # two cells of the grid
    binned = []
    for predictions in moved:
        metric = ExpectedCalibrationError(2)
        metric.update_state(labels, predictions)
        binned.append(float(metric.result()))
    assert abs(binned[0] - binned[1]) > 0.4


def test_errors_that_cancel_nearby_count_less():
    result = smooth_ece_from_sums(np.zeros(1025), 1.0)
    assert float(result) == 0
    for distance in (2, 40, 300):
        residuals = np.zeros(1025)
        residuals[[500, 500 + distance]] = 0.1, -0.1
        previous, result = result, smooth_ece_from_sums(residuals, 1.0)
        assert float(previous) < float(result) < 0.2


@settings(max_examples=examples(25))
@given(HOSTILE_PREDICTIONS)
def test_is_between_its_bounds_on_any_rows(rows):
    labels, predictions, weights = np.array(rows).reshape(-1, 3).T
    received = score(labels, predictions, weights)
    labels, predictions, weights = counted(labels, predictions, weights)
    both = np.r_[labels, predictions]
    if not (((both >= 0) & (both <= 1)).all() and (weights >= 0).all() and weights.sum() > 0):
        assert math.isnan(received)
        return
    residuals = weights * (labels - predictions) / weights.sum()
    assert received >= abs(residuals.sum()) * (1 - 1e-6) - digits(1e-9)
    assert received <= np.abs(residuals).sum() * (1 + 1e-6) + digits(1e-9)
    if received > 0.01:
        expected = reference(labels, predictions, weights)
        assert received == pytest.approx(expected, rel=digits(2e-3))


def test_bad_arguments_are_refused():
    for num_cells in (1, 0, 10.5, None):
        with pytest.raises(ValueError, match="num_cells"):
            SmoothECE(num_cells)
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(SmoothECE(64, True, name="smooth"))
    )
    assert (again.num_cells, again.from_logits, again.name) == (64, True, "smooth")
