"""What is asked of metrics beside their references (`test_references.py`)."""

import math

import keras
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from backends import FLOATS, digits, needs_float64
from keras_calibration.metrics import ExpectedCalibrationError, LogitAUC, NormalizedEntropy

RNG = np.random.default_rng(0)
PREDICTIONS = 1 / (1 + np.exp(2 - 1.5 * RNG.normal(size=2000)))
LABELS = (RNG.random(2000) < PREDICTIONS**1.3).astype(float)
WEIGHTS = RNG.exponential(size=2000)


def rows_by_bin(metric):
    return keras.ops.convert_to_numpy(metric._sums.value())[:, 0]


@pytest.mark.parametrize("dtype", [*FLOATS, "float16", "bfloat16"])
def test_edges_belong_to_the_bin_below_in_every_dtype(dtype):
    edges = np.arange(11) / 10
    predictions = keras.ops.cast(keras.ops.convert_to_tensor(edges), dtype)
    metric = ExpectedCalibrationError(10)
    metric.update_state(np.zeros(11), predictions)
    np.testing.assert_array_equal(rows_by_bin(metric), [2] + [1] * 9)  # 0 and 0.1 in the first
    metric.reset_state()
    above = np.nextafter(edges[1:-1].astype("float32"), np.float32(1))
    metric.update_state(np.zeros(9), above)
    np.testing.assert_array_equal(rows_by_bin(metric), [0] + [1] * 9)


@needs_float64  # a batch of a million is summed in it
def test_the_entropy_of_a_rare_positive_among_millions():
    metric = NormalizedEntropy()
    for positives in (1, 0):
        metric.update_state(np.arange(10**6) < positives, np.full(10**6, 5e-7))
    assert float(metric.result()) == pytest.approx(1, rel=1e-9)


def test_the_entropy_of_one_negative_among_a_million():
    """In float32 too, where the mean label is rounded to 1."""
    metric = NormalizedEntropy(from_logits=True)
    metric.update_state([0.0, 1.0], [0.0, 0.0], [1.0, 1e6])
    entropy = math.log1p(1e6) - 1e6 / (1e6 + 1) * math.log(1e6)
    assert float(metric.result()) == pytest.approx(math.log(2) / entropy, rel=digits(1e-9))


def auc_of(labels, logits):
    metric = LogitAUC(from_logits=True)
    metric.update_state(labels, logits)
    return float(metric.result())


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_the_auc_is_right_where_positives_are_rare(spread):
    rng = np.random.default_rng(1)
    logits = rng.normal(-7, spread, 500_000).astype("float32")
    labels = rng.random(500_000) < 1 / (1 + np.exp(-logits.astype(float)))
    exact = roc_auc_score(labels, logits)
    assert auc_of(labels.astype(float), logits) == pytest.approx(exact, abs=3e-4)


@pytest.mark.parametrize(("mean", "spread"), [(25, 3), (-40, 5), (0, 20)])
def test_the_auc_of_a_shifted_or_steep_pipeline_is_right(mean, spread):
    rng = np.random.default_rng(0)
    z = rng.normal(size=5000)
    labels = (rng.random(5000) < 1 / (1 + np.exp(-z))).astype("float32")
    logits = (mean + spread * z).astype("float32")
    assert auc_of(labels, logits) == pytest.approx(roc_auc_score(labels, z), abs=1e-4)
