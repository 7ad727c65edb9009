import numpy as np
import pytest

from keras_calibration.statistics import always_valid_difference


def test_the_always_valid_form_holds_at_every_look():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 600, 60))
    missed = 0
    for x, y in zip(a, b, strict=True):
        missed += any(
            always_valid_difference(x[:m], 0.5 + y[:m]).excludes(0.5) for m in range(2, 61)
        )
    assert missed / 600 <= 0.05


def test_p_value_interval_and_e_value_agree():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=12), rng.normal(1.0, 1.0, 12)
    estimate = always_valid_difference(a, b)
    d, growth = b - a, 13.0
    share = d.sum() ** 2 / (12 * np.sum(d**2))
    log_e = -0.5 * np.log(growth) - 6 * np.log1p(-12 / growth * share)
    assert estimate.p_value == pytest.approx(min(1.0, np.exp(-log_e)))
    # At an end of the interval the e-value of the shift is exactly 1/α.
    shifted = always_valid_difference(a + estimate.low, b)
    assert shifted.p_value == pytest.approx(0.05)


def test_two_runs_say_nothing():
    estimate = always_valid_difference([1.0, 2.0], [5.0, 6.5])
    assert (estimate.low, estimate.high) == (-np.inf, np.inf)
