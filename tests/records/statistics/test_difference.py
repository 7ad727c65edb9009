import numpy as np
import pytest
from scipy import special

from calibration_records.statistics.estimate import fewest_runs
from keras_calibration import statistics
from run_references import Looked


@pytest.mark.parametrize("paired", [False, True])
def test_agrees_with_scipy(paired):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=9), rng.normal(0.5, 2.0, 9 if paired else 14)
    expected, estimate = Looked(a, b, paired), statistics.mean_difference(a, b, paired=paired)
    np.testing.assert_allclose(estimate[:3], [expected.value, *expected.ends], rtol=1e-9)
    assert estimate.p_value == pytest.approx(expected.p, rel=1e-9)


# Of all signs of the pairs, and all divisions of the ranks, two are the most extreme.
@pytest.mark.parametrize(
    ("paired", "extremes"),
    [(False, lambda n: 2 / special.comb(2 * n, n)), (True, lambda n: 2 / 2**n)],
)
def test_no_p_value_with_too_few_runs_for_an_exact_test(paired, extremes):
    fewest = fewest_runs(paired=paired)
    assert extremes(fewest) < 0.05 < extremes(fewest - 1)
    a, b = np.arange(fewest) ** 2.0, np.arange(fewest) ** 1.5
    assert statistics.mean_difference(a[:-1], b[:-1], paired=paired).p_value is None
    assert statistics.mean_difference(a, b, paired=paired).p_value is not None


def test_signs_units_and_ends():
    a, b = np.arange(5.0), np.arange(5.0) ** 2
    forward, back = statistics.mean_difference(a, b), statistics.mean_difference(b, a)
    np.testing.assert_allclose(forward[:3], [-back.value, -back.high, -back.low])
    small = statistics.mean_difference(1e-100 * a, 1e-100 * b)
    np.testing.assert_allclose(small[:3], 1e-100 * np.array(forward[:3]))
    assert statistics.mean_difference([1.0, 1.0], [2.0, 2.0])[:3] == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"`a`.*a\.shape=\(1,\)"):
        statistics.mean_difference([1.0], [1.0, 2.0])
    nothing = statistics.always_valid_difference([1.0, 2.0], [5.0, 6.5])
    assert (nothing.low, nothing.high) == (-np.inf, np.inf)


def test_seeds_needed_is_the_least_that_detects():
    needed = statistics.seeds_needed(0.4, 1.0, paired=True)
    assert statistics.smallest_detectable_effect(1.0, needed, needed - 1) <= 0.4
    assert statistics.smallest_detectable_effect(1.0, needed - 1, needed - 2) > 0.4
    # Where there is nothing to find, and where nothing hides it.
    assert (statistics.seeds_needed(0.0, 1.0), statistics.seeds_needed(1.0, 0.0)) == (100_000, 2)


def test_the_always_valid_form_holds_at_every_look():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 600, 60))
    missed = 0
    for x, y in zip(a, b, strict=True):
        missed += any(
            statistics.always_valid_difference(x[:m], 0.5 + y[:m]).excludes(0.5)
            for m in range(2, 61)
        )
    assert missed / 600 <= 0.05


def test_p_value_interval_and_e_value_agree():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=12), rng.normal(1.0, 1.0, 12)
    estimate = statistics.always_valid_difference(a, b)
    d, growth = b - a, 13.0
    share = d.sum() ** 2 / (12 * np.sum(d**2))
    log_e = -0.5 * np.log(growth) - 6 * np.log1p(-12 / growth * share)
    assert estimate.p_value == pytest.approx(min(1.0, np.exp(-log_e)))
    # At an end of the interval the e-value of the shift is exactly 1/α.
    shifted = statistics.always_valid_difference(a + estimate.low, b)
    assert shifted.p_value == pytest.approx(0.05)


def test_an_always_valid_p_value_needs_four_pairs_and_a_spread():
    a, b = np.arange(4.0) ** 2, np.array([1.0, 2.5, 5.0, 9.5])
    assert statistics.always_valid_difference(a[:3], b[:3]).p_value is None
    assert 0 < statistics.always_valid_difference(a, b).p_value < 1
    assert statistics.always_valid_difference(a, a + 1).p_value is None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("variance", {"variance": -1.0}),
        ("variance", {"variance": np.nan}),
        ("num_runs", {"num_runs": 0}),
        ("degrees", {"degrees": 0}),
    ],
)
def test_a_detectable_effect_refuses_what_has_none(name, change):
    with pytest.raises(ValueError, match=f"`{name}`"):
        statistics.smallest_detectable_effect(
            **{"variance": 1.0, "num_runs": 9, "degrees": 8} | change
        )


def test_seeds_and_looks_refuse_what_is_no_effect_and_no_variance():
    for name, arguments in (("effect", (np.nan, 1.0)), ("variance", (1.0, -1.0))):
        with pytest.raises(ValueError, match=f"`{name}`"):
            statistics.seeds_needed(*arguments)
    for variance in (0, -1, np.nan):
        with pytest.raises(ValueError, match="`effect_variance`"):
            statistics.always_valid_difference([1, 2], [2, 4], effect_variance=variance)
