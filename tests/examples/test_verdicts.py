"""Tests and verdicts of claims, against values worked out by hand and by loops."""

import math

import numpy as np
import pytest
import scipy.stats

import two_way_bootstrap
import verdicts
from two_way_bootstrap import pseudo_values, two_way_interval
from verdicts import Comparison, bootstrap_gain, verdict

pytestmark = pytest.mark.slow


def test_the_sign_test_is_exact():
    for wins, losses in ((8, 0), (0, 8), (7, 1), (4, 4)):
        expected = scipy.stats.binomtest(wins, wins + losses).pvalue
        assert verdicts.sign_test(wins, losses) == pytest.approx(expected)
    assert verdicts.sign_test(0, 0) == 1


def test_random_effects_by_hand():
    # Equal errors: the mean, with the variance of the values whatever the errors are.
    values = np.array([0.1, 0.4, -0.2, 0.3, 0.9])
    for error in (0.01, 0.2, 3.0):
        effect = verdicts.hartung_knapp(values, np.full(5, error))
        expected = scipy.stats.ttest_1samp(values, 0.0, alternative="greater")
        assert effect.value == pytest.approx(values.mean())
        assert effect.p_value == pytest.approx(expected.pvalue)
        low, high = scipy.stats.t.interval(0.9, 4, values.mean(), values.std(ddof=1) / 5**0.5)
        assert (effect.low, effect.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("value", "error", "relevant", "expected"),
    [
        (1.0, 0.5, 0.5, "reproduced"),
        (-1.0, 0.5, 0.5, "not reproduced"),
        (0.1, 0.1, 0.5, "not reproduced"),
        (0.1, 0.4, 0.5, "undecided"),
        (-0.1, 0.4, 0.0, "undecided"),
        # A small effect that is certain is one in the claimed direction.
        (0.1, 0.01, 0.5, "reproduced"),
        (0.1, 0.0, 0.5, "reproduced"),
        (0.0, 0.0, 0.5, "not reproduced"),
    ],
)
def test_verdicts(value, error, relevant, expected):
    assert verdict(verdicts.student_effect(value, error, 50), relevant) == expected


def world(generator, num_seeds=20, num_blocks=10, rows=0.5):
    """Losses of three pipelines, each better than the next; seeds differ in bias."""
    shape = (3, num_seeds, num_blocks)
    means = np.array([0.0, 0.6, 1.2])[:, None, None]
    seed_effects = 0.8 * generator.normal(size=(3, num_seeds, 1))
    bias = generator.normal(size=(3, num_seeds, 1)) ** 2 / math.sqrt(2)
    of_rows = rows * generator.normal(size=(3, 1, num_blocks)) + 0.5 * generator.normal(size=shape)
    calibrated = means + seed_effects + of_rows
    return calibrated + bias, calibrated


COMPARISONS = [Comparison(0, worse, range(part, 20, 2)) for worse in (1, 2) for part in (0, 1)]


def test_the_gain_is_that_of_a_loop_over_runs():
    plain, calibrated = world(np.random.default_rng(0))
    shares = []
    for better, worse, seeds, _ in COMPARISONS:
        won = [
            [loss[better, i].mean() < loss[worse, j].mean() for i in seeds for j in seeds if i != j]
            for loss in (plain, calibrated)
        ]
        shares.append(np.mean(won[1]) - np.mean(won[0]))
    gain = bootstrap_gain(plain, calibrated, COMPARISONS)
    assert gain.value == pytest.approx(np.mean(shares))
    assert gain.low < gain.value < gain.high
    error = (gain.high - gain.low) / 2 / scipy.stats.t.ppf(0.975, 18)
    expected = 2 * scipy.stats.t.sf(abs(gain.value) / error, 18)
    assert gain.p_value == pytest.approx(expected)


def test_intervals_cover_the_mean_gain():
    generator = np.random.default_rng(2)
    gains = [bootstrap_gain(*world(generator), COMPARISONS, num_draws=100) for _ in range(200)]
    mean = np.mean([gain.value for gain in gains])
    covered = np.mean([gain.low <= mean <= gain.high for gain in gains])
    assert 0.9 < covered < 0.99


def test_the_mean_of_the_pseudo_values_is_the_metric():
    rng = np.random.default_rng(3)
    values, without = rng.normal(size=4), rng.normal(size=(4, 7))
    np.testing.assert_allclose(pseudo_values(values, without).mean(axis=1), values, atol=1e-12)


@pytest.mark.parametrize(
    ("of_seed", "of_block", "of_rest"), [(1, 0.1, 0.5), (0.1, 1, 0.5), (0, 0, 1)]
)
def test_the_interval_covers_the_difference(of_seed, of_block, of_rest, monkeypatch):
    monkeypatch.setattr(two_way_bootstrap, "NUM_DRAWS", 1_000)
    rng = np.random.default_rng(1)
    num_covered = num_refused = 0
    for _ in range(300):
        first = rng.normal(size=(10, 1)) + rng.normal(size=20)
        effects = of_seed * rng.normal(size=(10, 1)) + of_block * rng.normal(size=20)
        second = first + 0.3 + effects + of_rest * rng.normal(size=(10, 20))
        num_covered += not two_way_interval(first, second).excludes(0.3)
        num_refused += two_way_interval(first + 0.3, second).p_value < 0.05
    # Where seeds and blocks have no effects of their own, the interval is a little too wide.
    assert 0.92 <= num_covered / 300 <= (0.97 if of_seed or of_block else 0.99)
    assert 0.01 <= num_refused / 300 <= 0.08
