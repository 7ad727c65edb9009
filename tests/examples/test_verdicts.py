"""Tests and verdicts of claims, against values worked out by hand and by loops."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

import verdicts
from verdicts import Comparison, bootstrap_gain, verdict


@pytest.mark.parametrize(
    ("wins", "losses", "expected"),
    [(8, 0, 2 / 2**8), (0, 8, 2 / 2**8), (7, 1, 2 * 9 / 2**8), (4, 4, 1.0), (0, 0, 1.0)],
)
def test_the_sign_test_is_exact(wins, losses, expected):
    assert verdicts.sign_test(wins, losses) == pytest.approx(expected)


def test_wilcoxon_is_exact_and_leaves_zeros_out():
    gains = [0.1, 0.2, -0.05, 0.4, 0.3, 0.6]
    # Of the 64 signs of the ranks 1 to 6, those of a negative sum of at most 1: two, on each side.
    assert verdicts.wilcoxon(gains) == pytest.approx(4 / 64)
    assert verdicts.wilcoxon([*gains, 0.0]) == pytest.approx(4 / 64)
    assert verdicts.wilcoxon([0.0, 0.0]) == 1.0
    assert verdicts.wilcoxon([]) == 1.0
    others = np.random.default_rng(0).normal(0.3, 1.0, 13)
    assert verdicts.wilcoxon(others) == pytest.approx(scipy.stats.wilcoxon(others).pvalue)


def test_wilcoxon_of_equal_gains_is_that_of_all_signs():
    gains = np.array([0.1, 0.1, -0.1, 0.3, 0.3, 0.2, 0.2])
    ranks = scipy.stats.rankdata(np.abs(gains))
    sums = [ranks @ signs for signs in itertools.product((0, 1), repeat=len(gains))]
    found = ranks @ (gains > 0)
    tail = min(np.mean(np.array(sums) >= found), np.mean(np.array(sums) <= found))
    assert verdicts.wilcoxon(gains) == pytest.approx(2 * tail)


def test_holm_by_hand():
    assert verdicts.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert verdicts.holm([0.5, 0.9]) == [1.0, 1.0]
    assert verdicts.holm([]) == []
    first, missing, last = verdicts.holm([0.02, math.nan, 0.03])
    assert (first, last) == pytest.approx((0.04, 0.04))
    assert math.isnan(missing)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.01, 1.0), "reproduced"),
        ((0.01, -1.0), "not reproduced"),
        ((0.2, 1.0), "undecided"),
        ((math.nan, 1.0), "undecided"),
        ((0.2, 0.01, True, 0.02, 0.03), "not reproduced"),
        ((0.2, 0.01, True, 0.04, 0.03), "undecided"),
        # A small effect that is certain is one in the claimed direction.
        ((0.01, 0.01, True, 0.02, 0.03), "reproduced"),
        ((0.01, 1.0, False), "not tested"),
    ],
)
def test_verdicts(arguments, expected):
    names = ("p_value", "direction", "is_tested", "high", "relevant")
    named = dict(zip(names, arguments, strict=False))
    assert verdict(named.pop("p_value"), named.pop("direction"), **named) == expected


def test_the_relevant_gain_is_half_of_the_mean_published_one():
    texts = ["69.6 → 73.6, 80.1 → 86.1", "", "78.3 → illegible", "60 → 68"]
    assert verdicts.relevant_gain(texts) == pytest.approx(0.03)
    assert verdicts.relevant_gain(["", "not run"]) == 0.0


def world(generator, num_seeds=20, num_blocks=10, rows=0.5):
    """Losses of three pipelines, each better than the next; seeds differ in bias."""
    shape = (3, num_seeds, num_blocks)
    means = np.array([0.0, 0.6, 1.2])[:, None, None]
    own = 0.8 * generator.normal(size=(3, num_seeds, 1))
    bias = generator.normal(size=(3, num_seeds, 1)) ** 2 / math.sqrt(2)
    of_rows = rows * generator.normal(size=(3, 1, num_blocks)) + 0.5 * generator.normal(size=shape)
    calibrated = means + own + of_rows
    return calibrated + bias, calibrated


COMPARISONS = [Comparison(0, worse, range(part, 20, 2)) for worse in (1, 2) for part in (0, 1)]


def test_the_gain_is_that_of_a_loop_over_runs():
    plain, calibrated = world(np.random.default_rng(0))
    shares = []
    for better, worse, seeds in COMPARISONS:
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


def test_ties_count_half_and_equal_losses_gain_nothing():
    plain = np.zeros((2, 6, 4))
    better = plain - np.array([1.0, 0.0])[:, None, None]
    gain = bootstrap_gain(plain, better, [Comparison(0, 1, range(6))])
    assert (gain.value, gain.p_value) == (0.5, 1.0)
    gain = bootstrap_gain(plain, plain, [Comparison(0, 1, range(6))])
    assert gain[:3] == (0.0, 0.0, 0.0)


def test_rows_alone_make_an_interval():
    # All runs of a pipeline are the same, so all draws of seeds are.
    by_block = np.array([5.0, -1.0, -1.0, -1.0, -1.0])
    plain = np.stack([np.zeros((6, 5)), np.broadcast_to(by_block, (6, 5))])
    calibrated = np.stack([np.zeros((6, 5)), np.ones((6, 5))])
    gain = bootstrap_gain(plain, calibrated, [Comparison(0, 1, range(6))], num_draws=4000)
    # Of four draws, the plain loss is right with one of the first block at least: else it is not.
    share = 1 - 0.8**4
    error = math.sqrt(share * (1 - share))
    assert gain.value == 0.0
    np.testing.assert_allclose(gain.high, scipy.stats.t.ppf(0.975, 5) * error, rtol=0.03)
    np.testing.assert_allclose(gain.low, -gain.high)


def test_intervals_cover_the_mean_gain():
    generator = np.random.default_rng(2)
    gains = [bootstrap_gain(*world(generator), COMPARISONS, num_draws=100) for _ in range(300)]
    mean = np.mean([gain.value for gain in gains])
    covered = np.mean([gain.low <= mean <= gain.high for gain in gains])
    assert 0.9 < covered < 0.99
