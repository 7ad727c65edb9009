import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from keras_calibration.statistics import bias_share, mean_difference, surviving_share
from run_references import bias_part, surviving_part

# Runs of a pipeline: the plain loss and its calibration gain, on a grid without rounding.
runs = st.lists(
    st.tuples(st.integers(-1000, 1000), st.integers(-1000, 1000)), min_size=4, max_size=9
)


def losses(*pipelines):
    """Plain and calibrated losses from pairs of a loss and a gain."""
    arrays = [np.array(pairs, float) for pairs in pipelines]
    return [pairs[:, 0] for pairs in arrays], [pairs[:, 0] - pairs[:, 1] for pairs in arrays]


def draw(seed, *shape):
    rng = np.random.default_rng(seed)
    calibrated = 0.37 + 2e-4 * rng.normal(size=shape)
    return calibrated + 4e-4 * rng.normal(size=shape), calibrated


def share_of(plain, calibrated):
    """The definition, from covariance matrices weighted by their degrees of freedom."""
    covariance = variance = 0.0
    for losses, corrected in zip(plain, calibrated, strict=True):
        matrix = np.cov(losses, np.subtract(losses, corrected)) * (len(losses) - 1)
        covariance, variance = covariance + matrix[0, 1], variance + matrix[0, 0]
    return covariance / variance


def jackknife(statistic, plain, calibrated):
    """Student's half-width, from the statistic without each run of each pipeline in turn."""
    variance, degrees = 0.0, 0
    for k, losses in enumerate(plain):
        left = []
        for i in range(len(losses)):
            without = [list(plain), list(calibrated)]
            for side in without:
                side[k] = np.delete(side[k], i)
            left.append(statistic(*without))
        variance += (len(left) - 1) * np.var(left)
        degrees += len(left) - 1
    return stats.t.ppf(0.975, degrees) * math.sqrt(variance)


def test_independent_runs_agree_with_the_definition():
    plain, calibrated = zip(draw(0, 8), draw(1, 13), strict=True)
    share = bias_share(plain, calibrated)
    value, half = share_of(plain, calibrated), jackknife(share_of, plain, calibrated)
    np.testing.assert_allclose(share[:3], [value, value - half, value + half], rtol=1e-8)


def test_shared_seeds_are_left_out_together():
    plain, calibrated = draw(2, 2, 9)
    share = bias_share(plain, calibrated, paired=True)
    np.testing.assert_allclose(share[:3], bias_part(plain, calibrated, 0.95), rtol=1e-8)


@settings(max_examples=60, deadline=None)
@given(runs, runs, st.integers(-40, 40), st.integers(-8, 8), st.randoms())
def test_shifts_scales_and_orders_do_not_matter(a, b, exponent, shift, random):
    plain, calibrated = losses(a, b)
    scale = 2.0**exponent
    expected = bias_share(plain, calibrated)
    # The two losses may differ by a constant, and a pipeline by one from the other.
    moved = bias_share(
        [scale * (part + shift * k) for k, part in enumerate(plain)],
        [scale * (part - shift) for part in calibrated],
    )
    np.testing.assert_allclose(moved[:3], expected[:3], rtol=1e-6, atol=1e-9)
    random.shuffle(a)
    random.shuffle(b)
    permuted = bias_share(*losses(b, a))
    np.testing.assert_allclose(permuted[:3], expected[:3], rtol=1e-6, atol=1e-9)


def test_an_interval_that_hangs_on_one_run_is_unknown_wherever_its_losses_lie():
    """Without this run, no loss differs from another, and rounding is no variance."""
    losses = [np.zeros(4), np.array([0.0, 0.0, 0.0, 1.0])]
    for shift in (0.0, 0.1, 2.0, 7.3):
        plain = [part + shift * k for k, part in enumerate(losses)]
        share = bias_share(plain, [0.3 * part for part in plain])
        assert share.value == pytest.approx(0.7)
        assert np.isnan(share[1:3]).all()


def test_without_variance_there_is_no_share():
    # The mean of equal values can be rounded past them.
    equal, other = np.full((2, 3), 0.1), np.array([[0.1, 0.2, 0.4]] * 2)
    assert np.isnan(bias_share(equal, other)[:3]).all()


@pytest.mark.parametrize("paired", [False, True])
def test_the_ends_are_the_shares_that_the_differences_allow(paired):
    """Fieller's interval: C − r L differs between the pipelines beyond the ends, not between."""
    plain, calibrated = draw(4, 2, 20)
    plain[1] += 3e-3
    calibrated[1] += 1e-3
    share = surviving_share(plain, calibrated, paired=paired)
    expected = surviving_part(plain, calibrated, paired, 0.95)
    np.testing.assert_allclose(share[:3], expected, rtol=1e-6)


def test_a_share_of_a_difference_within_the_noise_has_no_bounds():
    plain, calibrated = draw(5, 2, 12)
    assert not mean_difference(*plain).excludes(0.0)
    share = surviving_share(plain, calibrated)
    assert math.isfinite(share.value)
    assert (share.low, share.high) == (-math.inf, math.inf)
    assert math.isnan(surviving_share([plain[0]] * 2, calibrated).value)


def test_what_survives_without_any_noise():
    plain, calibrated = [[5.0] * 4, [3.0] * 4], [[2.0] * 4, [1.5] * 4]
    assert surviving_share(plain, calibrated)[:3] == (0.25, 0.25, 0.25)
    # A calibrated loss that prefers the other pipeline, in any unit.
    tiny = surviving_share(*(1e-200 * np.array(part) for part in (plain, calibrated[::-1])))
    np.testing.assert_allclose(tiny[:3], -0.25)


@pytest.mark.parametrize("function", [bias_share, surviving_share])
def test_refuses_wrong_arguments(function):
    short, long = [1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 5.0]
    for plain, calibrated, options, name in (
        ([short, long], [short, short], {}, "`calibrated`"),
        ([short, long], [short, long], {"paired": True}, "paired"),
        ([[1.0, 2.0]] * 2, [[1.0, 2.0]] * 2, {}, "`plain`"),
        ([short] * 2, [[1.0, 2.0, math.nan]] * 2, {}, "`calibrated`"),
        ([short] * 2, [short] * 2, {"confidence": 95}, "`confidence`"),
    ):
        with pytest.raises(ValueError, match=name):
            function(plain, calibrated, **options)
