import math

import keras
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from backends import digits, update_step
from keras_calibration.metrics import LogitAUC

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-3, 2, 2001)
PREDICTIONS = 1 / (1 + np.exp(-LOGITS))
LABELS = (RNG.random(2001) < PREDICTIONS).astype(float)
WEIGHTS = RNG.exponential(size=2001)


def filled(metric, labels=LABELS, predictions=LOGITS, weights=None, batch_size=2001):
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        metric.update_state(
            labels[part], predictions[part], None if weights is None else weights[part]
        )
    return metric


def score(*arguments, from_logits=True, **options):
    return float(filled(LogitAUC(from_logits), *arguments, **options).result())


def reference(labels, logits, weights=None):
    """scikit-learn's, of the logits rounded to their bins."""
    bins = np.clip(np.floor(logits * 64), -1024, 1023)
    return roc_auc_score(labels, bins, sample_weight=weights)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("batch_size", [2001, 7])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_equals_the_reference(weights, batch_size):
    expected = reference(LABELS, LOGITS.astype("float32"), weights)
    single = LOGITS.astype("float32")[:, None]
    received = score(LABELS, single, weights, batch_size=batch_size)
    assert received == pytest.approx(expected, rel=digits(1e-12))
    exact = roc_auc_score(LABELS, LOGITS, sample_weight=weights)
    assert received == pytest.approx(exact, abs=1e-3)
    assert score(LABELS, PREDICTIONS, weights, from_logits=False) == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_is_right_where_positives_are_rare_and_the_one_of_keras_is_not(spread):
    rng = np.random.default_rng(1)
    logits = rng.normal(-7, spread, 500_000).astype("float32")
    labels = rng.random(500_000) < 1 / (1 + np.exp(-logits.astype(float)))
    exact = roc_auc_score(labels, logits)
    assert score(labels.astype(float), logits, batch_size=500_000) == pytest.approx(exact, abs=3e-4)
    keras_auc = keras.metrics.AUC(from_logits=True)
    keras_auc.update_state(labels, logits)
    assert abs(float(keras_auc.result()) - exact) > 0.1


def test_a_soft_label_counts_as_both():
    soft = score(np.array([0.25, 1.0, 0.0]), np.array([1.0, 2.0, 0.0]))
    hard = score(
        np.array([1.0, 0.0, 1.0, 0.0]),
        np.array([1.0, 1.0, 2.0, 0.0]),
        np.array([0.25, 0.75, 1.0, 1.0]),
    )
    assert soft == pytest.approx(hard, rel=digits(1e-12))


def test_order_is_all_that_counts():
    assert score(LABELS, LOGITS + 1) == pytest.approx(score(LABELS, LOGITS), abs=digits(1e-12))
    assert score(LABELS, -LOGITS) == pytest.approx(1 - score(LABELS, LOGITS), abs=1e-3)
    assert score(LABELS, np.zeros(2001)) == pytest.approx(0.5, abs=digits(0, 1e-6))
    assert score(LABELS, LABELS) == pytest.approx(1, abs=digits(0, 1e-6))
    assert score(LABELS, 1 - LABELS, from_logits=False) == pytest.approx(0, abs=digits(0, 1e-6))


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize(
    ("labels", "logits", "weights"),
    [
        ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], None),
        ([0.0, 1.0, math.nan], [0.0, 1.0, 2.0], None),
        ([0.0, 1.0, 1.0], [0.0, 1.0, math.nan], None),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0], [1.0, 1.0, -1.0]),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0], [1.0, 1.0, math.inf]),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0], [0.0, 1.0, 1.0]),
        ([1.0, 1.0, 1.0], [0.0, 1.0, 2.0], None),
        ([0.0, 0.0, 0.0], [0.0, 1.0, 2.0], None),
        ([], [], None),
    ],
)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_what_cannot_be_told_is_nan(labels, logits, weights, jit_compile):
    metric = LogitAUC(from_logits=True)
    if labels:
        weights = np.ones(3) if weights is None else np.array(weights)
        update_step(metric, jit_compile)(np.array(labels), np.array(logits), weights)
    assert math.isnan(float(metric.result()))
    if not np.isfinite([*labels, *logits]).all():
        filled(metric)  # good rows afterwards do not hide it
        assert math.isnan(float(metric.result()))


def test_counts_past_the_digits_of_float32():
    metric = LogitAUC(from_logits=True, dtype="float32")
    metric.update_state([1.0, 0.0], [0.0, 0.0], [2.0**25, 2.0**25])
    for _ in range(8):
        metric.update_state([1.0, 0.0], [0.0, 1.0])
    positives = float(metric._histogram.value()[2177, 0])
    assert positives == 2.0**25 + 8


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
