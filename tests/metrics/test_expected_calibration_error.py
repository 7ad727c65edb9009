"""What is asked of the error of bins beside its reference (`test_references.py`)."""

import keras
import numpy as np
import pytest

from backends import FLOATS, digits
from keras_calibration.metrics import ExpectedCalibrationError

RNG = np.random.default_rng(0)
PREDICTIONS = 1 / (1 + np.exp(2 - 1.5 * RNG.normal(size=2000)))
LABELS = (RNG.random(2000) < PREDICTIONS**1.3).astype(float)
WEIGHTS = RNG.exponential(size=2000)


@pytest.mark.parametrize("dtype", [*FLOATS, "float16", "bfloat16"])
def test_edges_belong_to_the_bin_below_in_every_dtype(dtype):
    edges = np.arange(11) / 10
    predictions = keras.ops.cast(keras.ops.convert_to_tensor(edges), dtype)
    metric = ExpectedCalibrationError(10)
    metric.update_state(np.zeros(11), predictions)
    table = metric.per_bin()
    np.testing.assert_array_equal(table["rows"], [2] + [1] * 9)  # 0 and 0.1 in the first
    np.testing.assert_array_equal(table["lower"], edges[:-1])
    np.testing.assert_array_equal(table["upper"], edges[1:])
    metric.reset_state()
    above = np.nextafter(edges[1:-1].astype("float32"), np.float32(1))
    metric.update_state(np.zeros(9), above)
    np.testing.assert_array_equal(metric.per_bin()["lower"], edges[1:-1])


def test_the_table_adds_up():
    metric = ExpectedCalibrationError(15)
    assert len(metric.per_bin()["rows"]) == 0
    metric.update_state(LABELS, PREDICTIONS, WEIGHTS)
    table = metric.per_bin()
    assert table["rows"].sum() == pytest.approx(WEIGHTS.sum(), rel=digits(1e-9))
    result = np.abs(table["residual"]).sum() / WEIGHTS.sum()
    assert result == pytest.approx(float(metric.result()), rel=digits(1e-9))
    gap = table["rows"] * (table["observed_rate"] - table["mean_prediction"])
    np.testing.assert_allclose(gap, table["residual"], rtol=digits(1e-9), atol=digits(1e-9))
    np.testing.assert_allclose(table["upper"][:-1], table["lower"][1:])
    assert (table["lower"] <= table["mean_prediction"]).all()
    assert (table["mean_prediction"] <= table["upper"]).all()
