"""Rows of which a share r of the negatives was kept: the metrics, as the guide on sampling says."""

import numpy as np
import pytest

from backends import digits
from keras_calibration.metrics import (
    CalibratedLogLoss,
    CalibrationRatio,
    ExpectedCalibrationError,
    FieldECE,
    FieldRCE,
    LogitAUC,
    LogLoss,
    NormalizedEntropy,
)

RATE = 0.1
METRICS = [
    LogLoss(),
    CalibratedLogLoss(num_folds=1),
    NormalizedEntropy(),
    CalibrationRatio(),
    ExpectedCalibrationError(),
    LogitAUC(),
    FieldECE(4),
    FieldRCE(4),
]


def make_rows(num_rows=600, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-2, 1, num_rows)
    probabilities = 1 / (1 + np.exp(-logits))
    labels = (generator.random(num_rows) < probabilities).astype(float)
    return labels, probabilities, generator.integers(0, 4, num_rows)


def value_of(metric, labels, probabilities, sites, weights=None):
    metric.reset_state()
    field = {"field": sites} if isinstance(metric, FieldECE | FieldRCE) else {}
    metric.update_state(labels, probabilities, weights, **field)
    return float(metric.result())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_weights_of_negatives_give_the_metric_of_all_rows(metric):
    """All rows hold each negative ten times, the sample once."""
    sample = make_rows()
    copies = np.where(sample[0] == 1, 1, 10)
    everything = value_of(metric, *(np.repeat(column, copies) for column in sample))
    weighted = value_of(metric, *sample, np.where(sample[0] == 1, 1.0, 1 / RATE))
    assert weighted == pytest.approx(everything, rel=digits(1e-7))
    assert value_of(metric, *sample) != pytest.approx(everything, rel=1e-3) or isinstance(
        metric, LogitAUC
    )


@pytest.mark.parametrize("metric", [CalibratedLogLoss(), LogitAUC()], ids=lambda m: m.name)
def test_a_constant_shift_leaves_the_metrics_to_watch_in_training(metric):
    labels, probabilities, sites = make_rows(5000)
    odds = probabilities / (1 - probabilities) / RATE
    sampled = odds / (1 + odds)
    corrected = value_of(metric, labels, probabilities, sites)
    assert value_of(metric, labels, sampled, sites) == pytest.approx(corrected, abs=2e-4)


def errors_and_floor(weigh):
    """Mean Field-ECE of many samples of a right model, and the noise floor of one of them."""
    metric = FieldECE(1)
    errors, floors = [], []
    for seed in range(150):
        labels, probabilities, _ = make_rows(4000, seed)
        kept = (labels == 1) | (np.random.default_rng(seed + 1000).random(4000) < RATE)
        y, p = labels[kept], probabilities[kept]
        if weigh:
            weights = np.where(y == 1, 1.0, 1 / RATE)
        else:
            weights, p = np.ones(len(y)), p / (p + RATE * (1 - p))
        errors.append(abs(weights @ (y - p)) / weights.sum())
        if seed < 3:
            value = value_of(metric, y, p, np.zeros(len(y), int), weights)
            assert value == pytest.approx(errors[-1], rel=digits(1e-9))
            floors.append(metric.noise_floor()[0])
    return np.mean(errors), np.mean(floors)


def test_chance_is_told_in_the_sample():
    error, floor = errors_and_floor(weigh=False)
    assert floor == pytest.approx(error, rel=0.2)
    error, floor = errors_and_floor(weigh=True)
    assert floor > 1.5 * error
