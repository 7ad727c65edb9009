import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_calibration.statistics import summarize

hostile = st.lists(st.floats(width=64), max_size=12)


def test_float32_values_are_summed_in_float64():
    values = np.full(10_000, 0.1, np.float32)
    summary = summarize(values)
    assert summary["mean"] == float(np.float32(0.1))
    assert summary["std"] == 0.0


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e307])
def test_extreme_magnitudes_neither_overflow_nor_vanish(scale):
    summary = summarize([1.0 * scale, 2.0 * scale, 3.0 * scale])
    np.testing.assert_allclose([summary["mean"], summary["std"]], [2.0 * scale, scale], rtol=1e-9)


def test_refuses_anything_but_one_value_a_run():
    with pytest.raises(ValueError, match="`values`"):
        summarize([[0.5, 0.25]])


@settings(max_examples=300)
@given(hostile)
def test_hostile_values(values):
    summary = summarize(values)
    finite = [value for value in values if math.isfinite(value)]
    assert summary["count"] == len(finite)
    assert summary["num_diverged"] == len(values) - len(finite)
    if not finite:
        assert all(math.isnan(summary[name]) for name in ("mean", "std", "min", "max"))
    if finite:
        assert (summary["min"], summary["max"]) == (min(finite), max(finite))
        assert summary["min"] <= summary["mean"] <= summary["max"]
        mean = sum(map(Fraction, finite)) / len(finite)
        scale = max(map(abs, finite))
        assert abs(Fraction(summary["mean"]) - mean) <= Fraction(scale) / 2**48 + Fraction(5e-324)
    if len(finite) == 1:
        assert math.isnan(summary["std"])
    if len(finite) > 1 and max(map(abs, finite)) < 1e150:
        expected = statistics.stdev(map(Fraction, finite))
        np.testing.assert_allclose(summary["std"], float(expected), rtol=1e-6, atol=scale * 1e-14)
