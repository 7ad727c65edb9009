"""Numbers at the edges: far logits, extreme weights, half precision, merging, empty batches."""

import pickle
import warnings

import keras
import numpy as np
import pytest

from backends import digits
from keras_calibration import scoring
from keras_calibration.metrics import (
    CalibratedCategoricalLogLoss,
    CalibratedLogLoss,
    FieldECE,
    FieldRCE,
    LogLoss,
)


def log_loss(labels, logits):
    return np.mean(np.logaddexp(0, logits) - labels * logits)


def best_bias(labels, logits):
    low, high = -200.0, 200.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        excess = np.sum(0.5 * (1 + np.tanh(0.5 * (logits + middle))) - labels)
        low, high = (low, middle) if excess > 0 else (middle, high)
    return 0.5 * (low + high)


@pytest.fixture(scope="module")
def shifted():
    rng = np.random.default_rng(0)
    z = rng.normal(size=5000)
    return (rng.random(5000) < 1 / (1 + np.exp(0.8 - 1.2 * z))).astype(float), z


@pytest.mark.parametrize(("mean", "spread"), [(25, 3), (25, 8), (-50, 8), (0, 20), (30, 0.01)])
def test_a_shifted_pipeline_is_right(shifted, mean, spread):
    labels, z = shifted
    logits = (mean + spread * z).astype("float32")
    metric = CalibratedLogLoss(num_folds=1, from_logits=True)
    metric.update_state(labels, logits)
    logits = logits.astype(float)
    expected = log_loss(labels, logits + best_bias(labels, logits))
    assert float(metric.result()) == pytest.approx(expected, rel=digits(1e-6))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("num_folds", [1, 2])
def test_where_the_loss_cannot_be_told_neither_can_scale_and_bias(shifted, num_folds):
    labels, z = shifted
    metric = CalibratedLogLoss(num_folds=num_folds, correction="temperature", from_logits=True)
    metric.update_state(labels, (40 * z).astype("float32"))
    with pytest.warns(RuntimeWarning, match="NaN"):
        assert np.isnan(float(metric.result()))
    assert np.isnan(metric.scale).all()
    assert np.isnan(metric.bias).all()


def test_a_temperature_that_is_far_from_1_is_found(shifted):
    labels, z = shifted
    metric = CalibratedLogLoss(1, correction="temperature", from_logits=True)
    metric.update_state(labels, (25 + 3 * z).astype("float32"))
    assert metric.scale[0] == pytest.approx(-0.02, abs=0.005)
    assert float(metric.result()) == pytest.approx(0.66, abs=0.02)


def test_logits_beyond_the_bins_near_0_give_nan_with_its_reason(shifted):
    labels, z = shifted
    metric = CalibratedLogLoss(num_folds=1, from_logits=True)
    metric.update_state(labels, 100 + 3 * z)
    with pytest.warns(RuntimeWarning, match="beyond ±88"):
        assert np.isnan(float(metric.result()))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("weight", [1e-30, 1e30])
@pytest.mark.parametrize("metric_class", [FieldECE, FieldRCE])
def test_tiny_and_huge_weights_change_no_field_error(metric_class, weight):
    labels, predictions = np.array([1.0, 0, 1, 1]), np.array([0.5, 0.25, 0.5, 0.75])
    plain, weighted = metric_class(2), metric_class(2)
    plain.update_state(labels, predictions, field=[0, 0, 1, 1])
    weighted.update_state(labels, predictions, np.full(4, weight), field=[0, 0, 1, 1])
    assert float(weighted.result()) == pytest.approx(float(plain.result()), rel=1e-5)
    table = weighted.per_field()
    # In float32 the squares of such weights are past all numbers: no interval, and no verdict.
    known = np.isfinite(table["lower"])
    np.testing.assert_allclose(table["lower"][known], plain.per_field()["lower"][known], rtol=1e-5)
    assert not table["is_off"][~known].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_sums_are_refused(dtype):
    for metric_class in (LogLoss, CalibratedLogLoss):
        with pytest.raises(ValueError, match="'float32' or 'float64'"):
            metric_class(dtype=dtype)


def test_merged_sums_keep_what_rounding_leaves_out():
    shards = [LogLoss(dtype="float32") for _ in range(5)]
    for shard, weight in zip(shards, (2.0**24, 1, 1, 1, 1), strict=True):
        shard.update_state([1.0], [0.5], weight)
    shards[0].merge_state(shards[1:])
    total, rest = (np.asarray(part, np.float64)[1] for part in shards[0]._sums.variables)
    assert total + rest == 2**24 + 4


@pytest.mark.slow
def test_an_empty_batch_adds_nothing():
    metric = CalibratedCategoricalLogLoss(num_folds=1)
    rows = np.eye(3), np.full((3, 3), 1 / 3) + 0.1 * np.eye(3) - 0.1 / 3
    metric.update_state(*rows)
    before = float(metric.result())
    metric.update_state(np.zeros((0, 3)), np.zeros((0, 3)))
    assert float(metric.result()) == before


@pytest.mark.parametrize("shape", [(2, 3), (1, 6), (3, 2, 1)])
def test_labels_and_weights_of_several_columns_are_refused(shape):
    for labels, weights in ((np.zeros(shape), None), (np.zeros(6), np.ones(shape))):
        with pytest.raises(ValueError, match=r"shape \(n,\) or \(n, 1\)"):
            LogLoss().update_state(labels, np.full(6, 0.5), weights)


def test_right_results_come_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scoring.field_ece([1, 0, 1, 1], [0.5] * 4, ["a", "a", "b", "b"]) == 0.25


def test_a_copy_by_pickle_starts_anew_as_keras_own_do():
    for metric in (LogLoss(), keras.metrics.Mean()):
        copy = pickle.loads(pickle.dumps(metric))
        assert all(not np.any(np.asarray(variable)) for variable in copy.variables)


@pytest.mark.parametrize("correction", ["temperature", "platt"])
def test_a_scale_that_logits_beyond_the_bins_hide_is_nan(correction):
    """Their curvature is 0 at scale 1, where the loss was 300 instead of log 2."""
    metric = CalibratedLogLoss(1, correction=correction, from_logits=True)
    logits = np.array([-1000.0, -100.0, 100.0, 1000.0] * 20)
    metric.update_state(np.full(80, 0.5), logits)
    with pytest.warns(RuntimeWarning, match="beyond ±88"):
        assert np.isnan(float(metric.result()))


def test_the_bias_of_separated_labels_is_the_root():
    """The search ended where sum of predictions and sum of labels agreed to 15 digits."""
    labels, logits = np.repeat([0.0, 1.0], [3, 11]), np.repeat([-80.0, 16.0], [3, 11])
    metric = CalibratedLogLoss(1, from_logits=True)
    metric.update_state(labels, logits)
    root = 0.5 * (80 - 16 + np.log(11 / 3))  # 3 σ(c - 80) = 11 σ(-16 - c)
    assert metric.bias[0] == pytest.approx(root, rel=digits(1e-9))
