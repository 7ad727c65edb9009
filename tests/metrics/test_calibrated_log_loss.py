"""What is asked of the Calibrated Log Loss beside its reference (`test_references.py`)."""

import math

import numpy as np
import pytest
from scipy.special import expit as sigmoid

from backends import digits
from keras_calibration.metrics import CalibratedLogLoss
from metric_cases import MODES
from metric_references import Rows, best_bias, calibrated_log_loss, hashed


def score(labels, logits, weights=None, **arguments):
    metric = CalibratedLogLoss(from_logits=True, **arguments)
    metric.update_state(labels, logits, weights)
    return float(metric.result())


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    logits = rng.normal(-1.5, 1.5, 501)
    labels = (rng.random(501) < sigmoid(0.8 * logits - 0.4)).astype(np.float64)
    return labels, logits, rng.exponential(size=501)


def test_bias_is_that_of_the_other_rows(rows):
    labels, logits, _ = rows
    metric = CalibratedLogLoss(num_folds=2, from_logits=True)
    metric.update_state(labels, logits)
    ones, numbers = np.ones(501), np.arange(501)
    fold, of_metric = np.floor(2 * hashed(numbers)), Rows(labels, logits, ones, numbers, ones, True)
    expected = [best_bias(of_metric[fold != held_out]) for held_out in (0, 1)]
    np.testing.assert_allclose(metric.bias, expected, atol=digits(1e-6))
    assert metric.fitted_bias == pytest.approx(np.mean(expected), abs=digits(1e-6))


def test_row_numbers_may_wrap_around(rows):
    labels, logits, _ = rows
    metric = CalibratedLogLoss(from_logits=True)
    metric._num_rows.assign(2**31 - 1000)
    for _ in range(2):
        metric.update_state(labels, logits)
    numbers, ones = 2**31 - 1000 + np.arange(1002), np.ones(1002)
    of_both = Rows(np.tile(labels, 2), np.tile(logits, 2), ones, numbers, ones, from_logits=True)
    expected = calibrated_log_loss(of_both)
    assert float(metric.result()) == pytest.approx(expected, abs=digits(1e-6))


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize(("label", "weight"), [(0.0, 0.1), (1.0, 0.3), (1.0, 1.0)])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_one_class_gives_nan(mode, label, weight):
    # 0.1 and 0.3 add up to other totals row by row than bin by bin.
    logits = np.random.default_rng(0).normal(size=500)
    assert math.isnan(score(np.full(500, label), logits, np.full(500, weight), **mode))


@pytest.mark.parametrize("heavy", [1.0, 1e6, 3e9])
def test_one_class_beside_a_heavy_fold_gives_nan(heavy):
    # The other fold's sums, as total less own, are then right to few digits only.
    logits = np.random.default_rng(0).normal(size=500)
    first = hashed(np.arange(500)) < 0.5
    labels = np.where(first, np.arange(500) % 3 == 0, 1.0)
    assert math.isnan(score(labels, logits, np.where(first, 0.7 * heavy, 0.1)))


def test_logits_beyond_the_bins_near_0_give_nan_with_its_reason(rows):
    metric = CalibratedLogLoss(num_folds=1, from_logits=True)
    metric.update_state(rows[0], 100 + 3 * rows[1])
    with pytest.warns(UserWarning, match="beyond ±88"):
        assert np.isnan(float(metric.result()))


def test_where_the_loss_cannot_be_told_neither_can_the_bias():
    fold = np.floor(2 * hashed(np.arange(400)))
    metric = CalibratedLogLoss(from_logits=True)
    # The bias of the rows at 86, -86, moves those at 90, beyond the bins, close to 0.
    metric.update_state(np.arange(400) % 2, np.where(fold == 0, 90.0, 86.0))
    assert math.isnan(float(metric.result()))
    assert math.isnan(metric.bias[0])


def test_the_bias_of_separated_labels_is_the_root():
    """The search ended where sum of predictions and sum of labels agreed to 15 digits."""
    labels, logits = np.repeat([0.0, 1.0], [3, 11]), np.repeat([-80.0, 16.0], [3, 11])
    metric = CalibratedLogLoss(1, from_logits=True)
    metric.update_state(labels, logits)
    root = 0.5 * (80 - 16 + np.log(11 / 3))  # 3 σ(c - 80) = 11 σ(-16 - c)
    assert metric.bias[0] == pytest.approx(root, rel=digits(1e-9))
