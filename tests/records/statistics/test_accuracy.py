import numpy as np
import pytest
from scipy import special, stats

from keras_calibration.seeds import metric_accuracy
from keras_calibration.statistics import (
    accuracy_interval,
    independent_seed_accuracy,
    same_seed_accuracy,
)


def brute_force(a, b):
    return np.mean([(x < y) + 0.5 * (x == y) for x in a for y in b])


def test_agrees_with_all_pairs_one_by_one_and_with_mann_whitney():
    rng = np.random.default_rng(0)
    for num_a, num_b in ((1, 1), (3, 7), (12, 12)):
        # Rounded, so that there are ties.
        a, b = rng.normal(size=num_a).round(1), rng.normal(0.3, 1.0, num_b).round(1)
        assert metric_accuracy(a, b) == pytest.approx(brute_force(a, b), abs=1e-15)
        expected = stats.mannwhitneyu(b, a).statistic / (num_a * num_b)
        assert metric_accuracy(a, b) == pytest.approx(expected, abs=1e-15)


def test_newcombe_solves_its_equation():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=9), rng.normal(1.0, 1.0, 14)
    estimate = accuracy_interval(a, b)
    quantile = stats.t.ppf(0.975, 9 * 14)
    for t in (estimate.low, estimate.high):
        runs = 1 + (23 / 2 - 1) * ((1 - t) / (2 - t) + t / (1 + t))
        variance = t * (1 - t) * runs / (9 * 14)
        assert abs(estimate.value - t) == pytest.approx(quantile * np.sqrt(variance), rel=1e-5)


def test_independent_runs_are_all_pairs_of_different_seeds():
    rng = np.random.default_rng(8)
    # Rounded, so that some are equal.
    a, b = (rng.normal(size=(2, 7)).round(1) + 0.3 * rng.normal(size=7).round()).round(1)
    pairs = [(a[i], b[j]) for i in range(7) for j in range(7) if i != j]
    expected = np.mean([(x < y) + 0.5 * (x == y) for x, y in pairs])
    assert independent_seed_accuracy(a, b).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.95])
def test_coverage_with_shared_seeds(correlation):
    rng = np.random.default_rng(3)
    common = np.sqrt(correlation) * rng.normal(size=(500, 15))
    noise = np.sqrt(1 - correlation)
    a = common + noise * rng.normal(size=(500, 15))
    b = 1.0 + common + noise * rng.normal(size=(500, 15))
    independent = special.ndtri(0.5) + special.ndtr(1 / np.sqrt(2))
    same = special.ndtr(1 / (noise * np.sqrt(2)))
    pairs = list(zip(a, b, strict=True))
    covered = [not independent_seed_accuracy(*pair).excludes(independent) for pair in pairs]
    assert 0.915 <= np.mean(covered) <= 0.98
    few = [(x[:5], y[:5]) for x, y in pairs]
    # Too wide there, and not too narrow.
    covered = [not independent_seed_accuracy(*pair).excludes(independent) for pair in few]
    assert np.mean(covered) >= 0.93
    covered = [not same_seed_accuracy(*pair).excludes(same) for pair in pairs]
    assert np.mean(covered) >= 0.92


@pytest.mark.parametrize("num_runs", [5, 10, 20])
def test_the_same_seed_interval_covers_at_every_accuracy(num_runs):
    ends = []
    for wins in range(num_runs + 1):
        a = np.arange(float(num_runs))
        estimate = same_seed_accuracy(a, a + np.where(np.arange(num_runs) < wins, 1, -1))
        ends.append(estimate[1:3])
        # The tails beyond the ends, by SciPy's binomial distribution.
        for end, beyond in (
            (estimate.low, stats.binom.sf(wins, num_runs, estimate.low)),
            (estimate.high, stats.binom.cdf(wins - 1, num_runs, estimate.high)),
        ):
            if 0 < end < 1:
                at = stats.binom.pmf(wins, num_runs, end)
                assert beyond + at / 2 == pytest.approx(0.025, abs=1e-9)
    low, high = np.transpose(ends)
    assert (low[0], high[-1]) == (0, 1)
    np.testing.assert_allclose(low + high[::-1], 1)
    for truth in np.linspace(0.01, 0.99, 99):
        chances = stats.binom.pmf(np.arange(num_runs + 1), num_runs, truth)
        assert 0.924 <= chances[(low <= truth) & (truth <= high)].sum() <= 0.9999


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (metric_accuracy, ([], [1.0]), "`a`"),
        (metric_accuracy, ([1.0], [[1.0]]), "`b`"),
        (metric_accuracy, ([1.0, np.nan], [1.0]), "`a`"),
        (same_seed_accuracy, ([1.0, 2.0], [2.0, 3.0, 4.0]), "equal lengths"),
    ],
)
def test_refuses_wrong_values(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_of_runs_with_the_same_seed_a_tie_is_half_a_win():
    a = np.arange(6.0)
    b = a + np.array([1, 1, 1, 0, 0, -1])
    assert same_seed_accuracy(a, b).value == pytest.approx((3 + 0.5 * 2) / 6)
