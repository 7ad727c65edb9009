"""What is asked of log loss, entropy and ratio beside their references (`test_references.py`)."""

import math

import keras
import numpy as np
import pytest

from backends import digits, needs_float64
from keras_calibration.metrics import CalibrationRatio, LogLoss, NormalizedEntropy

RNG = np.random.default_rng(0)
PREDICTIONS = 1 / (1 + np.exp(3 - 2 * RNG.normal(size=1001)))
LABELS = (RNG.random(1001) < PREDICTIONS).astype(float)


def score(metric, labels, predictions, weights=None):
    metric.update_state(labels, predictions, weights)
    return float(metric.result())


def test_log_loss_beyond_what_keras_clips():
    assert score(LogLoss(from_logits=True), [1.0, 0.0], [-50.0, 50.0]) == 50


def test_the_mean_label_itself_scores_1_and_better_predictions_less():
    rate = np.full(1001, LABELS.mean())
    assert score(NormalizedEntropy(), LABELS, rate) == pytest.approx(1, rel=digits(1e-12))
    assert score(NormalizedEntropy(), LABELS, PREDICTIONS) < 0.9
    assert score(NormalizedEntropy(), LABELS, 1 - PREDICTIONS) > 2


@needs_float64  # a batch of a million is summed in it
def test_a_rare_positive_among_millions():
    metric = NormalizedEntropy()
    for positives in (1, 0):
        metric.update_state(np.arange(10**6) < positives, np.full(10**6, 5e-7))
    assert float(metric.result()) == pytest.approx(1, rel=1e-9)


def test_one_negative_among_a_million():
    """In float32 too, where the mean label is rounded to 1."""
    received = score(NormalizedEntropy(from_logits=True), [0.0, 1.0], [0.0, 0.0], [1.0, 1e6])
    entropy = math.log1p(1e6) - 1e6 / (1e6 + 1) * math.log(1e6)
    assert received == pytest.approx(math.log(2) / entropy, rel=digits(1e-9))


def test_saturated_probabilities_have_a_finite_loss():
    result = score(NormalizedEntropy(), np.array([1.0, 0.0]), np.float32([1.0, 1.0]))
    assert result == score(NormalizedEntropy(), np.array([1.0, 0.0]), np.float32([0.0, 0.0]))
    assert result == pytest.approx(math.log(2.0**53) / 2 / math.log(2), rel=digits(1e-6))


def test_early_stopping_is_not_told_a_direction_of_the_ratio():
    assert not hasattr(CalibrationRatio(), "_direction")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", weighted_metrics=[CalibrationRatio()])
    stop = keras.callbacks.EarlyStopping("val_calibration_ratio")
    x = PREDICTIONS[:, None]
    with pytest.raises(ValueError, match="maximized or minimized"):
        model.fit(x, LABELS, validation_data=(x, LABELS), callbacks=[stop], verbose=0)
