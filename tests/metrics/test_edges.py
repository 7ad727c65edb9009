"""Numbers at the edges: extreme weights, half precision, merging, wrong shapes."""

import pickle

import keras
import numpy as np
import pytest

from keras_calibration.metrics import CalibratedLogLoss, FieldECE, FieldRCE, LogLoss


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


@pytest.mark.parametrize("shape", [(2, 3), (1, 6), (3, 2, 1)])
def test_labels_and_weights_of_several_columns_are_refused(shape):
    for labels, weights in ((np.zeros(shape), None), (np.zeros(6), np.ones(shape))):
        with pytest.raises(ValueError, match=r"shape \(n,\) or \(n, 1\)"):
            LogLoss().update_state(labels, np.full(6, 0.5), weights)


def test_a_copy_by_pickle_starts_anew_as_keras_own_do():
    for metric in (LogLoss(), keras.metrics.Mean()):
        copy = pickle.loads(pickle.dumps(metric))
        assert all(not np.any(np.asarray(variable)) for variable in copy.variables)
