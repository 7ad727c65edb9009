"""What is asked of the AUC beside its reference (`test_references.py`)."""

import math

import keras
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from backends import digits, update_step
from keras_calibration.metrics import LogitAUC

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-3, 2, 2001)
LABELS = (RNG.random(2001) < 1 / (1 + np.exp(-LOGITS))).astype(float)
WEIGHTS = RNG.exponential(size=2001)


def score(labels, predictions, weights=None, from_logits=True):
    metric = LogitAUC(from_logits)
    metric.update_state(labels, predictions, weights)
    return float(metric.result())


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_equals_that_of_scikit_learn_of_the_bins(weights):
    single = LOGITS.astype("float32")
    bins = np.clip(np.floor(single * 64), -1024, 1023)
    expected = roc_auc_score(LABELS, bins, sample_weight=weights)
    assert score(LABELS, single, weights) == pytest.approx(expected, rel=digits(1e-12))


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_is_right_where_positives_are_rare_and_the_one_of_keras_is_not(spread):
    rng = np.random.default_rng(1)
    logits = rng.normal(-7, spread, 500_000).astype("float32")
    labels = rng.random(500_000) < 1 / (1 + np.exp(-logits.astype(float)))
    exact = roc_auc_score(labels, logits)
    assert score(labels.astype(float), logits) == pytest.approx(exact, abs=3e-4)
    keras_auc = keras.metrics.AUC(from_logits=True)
    keras_auc.update_state(labels, logits)
    assert abs(float(keras_auc.result()) - exact) > 0.1


def test_order_is_all_that_counts():
    assert score(LABELS, LOGITS + 1) == pytest.approx(score(LABELS, LOGITS), abs=digits(1e-12))
    assert score(LABELS, -LOGITS) == pytest.approx(1 - score(LABELS, LOGITS), abs=1e-3)
    assert score(LABELS, np.zeros(2001)) == pytest.approx(0.5, abs=digits(0, 1e-6))
    assert score(LABELS, LABELS) == pytest.approx(1, abs=digits(0, 1e-6))
    assert score(LABELS, 1 - LABELS, from_logits=False) == pytest.approx(0, abs=digits(0, 1e-6))


@pytest.mark.parametrize(
    ("labels", "logits", "weights"),
    [
        ([0.0, 1.0, 1.0], [0.0, 1.0, math.nan], None),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0], [1.0, 1.0, -1.0]),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0], [1.0, 1.0, math.inf]),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0], [0.0, 1.0, 1.0]),
        ([1.0, 1.0, 1.0], [0.0, 1.0, 2.0], None),
    ],
)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_what_cannot_be_told_is_nan(labels, logits, weights, jit_compile):
    metric = LogitAUC(from_logits=True)
    weights = np.ones(3) if weights is None else np.array(weights)
    update_step(metric, jit_compile)(np.array(labels), np.array(logits), weights)
    assert math.isnan(float(metric.result()))


@pytest.mark.parametrize(("mean", "spread"), [(25, 3), (-40, 5), (0, 20)])
def test_a_shifted_or_steep_pipeline_is_right(mean, spread):
    rng = np.random.default_rng(0)
    z = rng.normal(size=5000)
    labels = (rng.random(5000) < 1 / (1 + np.exp(-z))).astype("float32")
    metric = LogitAUC(from_logits=True)
    metric.update_state(labels, (mean + spread * z).astype("float32"))
    assert float(metric.result()) == pytest.approx(roc_auc_score(labels, z), abs=1e-4)


def test_a_pipeline_beyond_the_bins_is_nan():
    metric = LogitAUC(from_logits=True)
    metric.update_state([0, 1, 0, 1], [100.0, 101.0, 102.0, 103.0])
    with pytest.warns(RuntimeWarning, match="NaN"):
        assert np.isnan(float(metric.result()))
