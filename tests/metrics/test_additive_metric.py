"""The running sums of the metrics: how far they count, and how they merge."""

import keras
import numpy as np
import pytest

from backends import FLOATS, JIT_COMPILE, update_step
from keras_calibration._ops.compensated import two_sum
from keras_calibration.metrics import CalibratedLogLoss, LogLoss


def weight_of(metric):
    """Σ w of a `LogLoss`, with what rounding left out."""
    return sum(float(np.asarray(part, np.float64)[1]) for part in metric._sums.variables)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("jit_compile", JIT_COMPILE)
def test_a_count_goes_on_past_what_one_float32_holds(dtype, jit_compile):
    metric = LogLoss(dtype=dtype)
    metric._sums._total.assign([0.0, 2.0**24])
    update = update_step(metric, jit_compile)
    for _ in range(1000):
        update(keras.ops.ones(1), 0.5 * keras.ops.ones(1))
    # A plain float32 would have stayed where it was.
    assert weight_of(metric) == 2**24 + 1000
    metric.reset_state()
    assert weight_of(metric) == 0


def test_two_sum_loses_nothing():
    generator = np.random.default_rng(0)
    total, term = (
        (generator.normal(size=1000) * 10.0 ** generator.integers(-6, 7, 1000)).astype("float32")
        for _ in range(2)
    )
    rounded, error = (keras.ops.convert_to_numpy(part) for part in two_sum(total, term))
    exact = total.astype("float64") + term.astype("float64")
    np.testing.assert_array_equal(rounded.astype("float64") + error.astype("float64"), exact)
    assert (error != 0).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_infinite_sum_stays_infinite(dtype):
    metric = LogLoss(from_logits=True, dtype=dtype)
    for _ in range(2):
        metric.update_state([0.5, 1.0], [np.inf, 1.0])
    assert float(metric.result()) == np.inf


def test_merged_sums_keep_what_rounding_leaves_out():
    shards = [LogLoss(dtype="float32") for _ in range(5)]
    for shard, weight in zip(shards, (2.0**24, 1, 1, 1, 1), strict=True):
        shard.update_state([1.0], [0.5], weight)
    shards[0].merge_state(iter(shards[1:]))
    assert weight_of(shards[0]) == 2**24 + 4
    assert weight_of(shards[1]) == 1


def test_merging_refuses_others_and_adds_nothing_then():
    metric = LogLoss()
    other = LogLoss()
    other.update_state([1.0], [0.5])
    for others in ([other, keras.metrics.AUC()], [LogLoss(from_logits=True)]):
        with pytest.raises(ValueError, match=r"`metrics`.*same class"):
            metric.merge_state(others)
    assert weight_of(metric) == 0
    with pytest.raises(ValueError, match=r"`metrics`.*same class"):
        CalibratedLogLoss().merge_state([CalibratedLogLoss(seed=1)])
    CalibratedLogLoss().merge_state([CalibratedLogLoss(name="another name")])


def test_a_value_comes_without_a_warning(recwarn):
    metric = LogLoss()
    metric.update_state([0, 1], [0.25, 0.5])
    assert float(metric.result()) > 0
    assert not [warning for warning in recwarn if "is NaN" in str(warning.message)]
