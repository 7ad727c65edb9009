import numpy as np
import pytest

from keras_calibration.statistics import always_valid_difference, mean_difference, pocock_confidence


@pytest.mark.parametrize(
    ("num_looks", "level"), [(1, 0.05), (2, 0.0294), (3, 0.0221), (4, 0.0182), (5, 0.0158)]
)
def test_pococks_own_table(num_looks, level):
    assert 1 - pocock_confidence(num_looks) == pytest.approx(level, abs=5e-5)


def test_the_walk_stays_within_the_bound_as_often_as_said():
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(200_000, 6)).cumsum(axis=1) / np.sqrt(np.arange(1, 7))
    from scipy import special

    bound = special.ndtri((1 + pocock_confidence(6, 0.9)) / 2)
    assert np.mean((np.abs(steps) <= bound).all(axis=1)) == pytest.approx(0.9, abs=0.003)


def test_pocock_keeps_the_type_1_error_of_a_plan():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 1500, 20))
    level = pocock_confidence(4)
    refused = naive = 0
    for x, y in zip(a, b, strict=True):
        looks = [(x[:m], y[:m]) for m in (5, 10, 15, 20)]
        refused += any(mean_difference(*look, confidence=level).excludes(0) for look in looks)
        naive += any(mean_difference(*look).excludes(0) for look in looks)
    assert refused / 1500 <= 0.06
    assert naive / 1500 > 0.09


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


@pytest.mark.parametrize("num_looks", [0, 51])
def test_refuses_a_plan_without_looks_or_with_too_many(num_looks):
    with pytest.raises(ValueError, match="between 1 and 50"):
        pocock_confidence(num_looks)
