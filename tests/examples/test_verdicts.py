"""Tests and verdicts of claims, against values worked out by hand and by loops."""

import math

import numpy as np
import pytest
import scipy.stats

import verdicts
from verdicts import Comparison, bootstrap_gain, verdict

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("wins", "losses", "expected"),
    [(8, 0, 2 / 2**8), (0, 8, 2 / 2**8), (7, 1, 2 * 9 / 2**8), (4, 4, 1.0), (0, 0, 1.0)],
)
def test_the_sign_test_is_exact(wins, losses, expected):
    assert verdicts.sign_test(wins, losses) == pytest.approx(expected)


def test_random_effects_by_hand():
    # Equal errors: the mean, with the variance of the values whatever the errors are.
    values = np.array([0.1, 0.4, -0.2, 0.3, 0.9])
    for error in (0.01, 0.2, 3.0):
        found = verdicts.hartung_knapp(values, np.full(5, error))
        expected = scipy.stats.ttest_1samp(values, 0.0, alternative="greater")
        assert found.value == pytest.approx(values.mean())
        assert found.p_value == pytest.approx(expected.pvalue)
        low, high = scipy.stats.t.interval(0.9, 4, values.mean(), values.std(ddof=1) / 5**0.5)
        assert (found.low, found.high) == pytest.approx((low, high))


def test_random_effects_solve_the_equation_of_paule_and_mandel():
    values, errors = np.array([0.1, 0.5, 0.9, -0.3]), np.array([0.1, 0.2, 0.3, 0.15])
    found = verdicts.hartung_knapp(values, errors)
    between = np.linspace(0, 1, 200_001)
    weights = 1 / (errors**2 + between[:, None])
    means = (weights * values).sum(axis=1) / weights.sum(axis=1)
    squares = (weights * (values - means[:, None]) ** 2).sum(axis=1)
    assert found.value == pytest.approx(means[np.argmin(np.abs(squares - 3))], abs=1e-4)
    # Values that differ less than their errors: those of a common effect.
    found = verdicts.hartung_knapp([0.1, 0.11, 0.12], [0.5, 1.0, 1.0])
    assert found.value == pytest.approx(np.average([0.1, 0.11, 0.12], weights=[4, 1, 1]))
    for values, errors in (([0.1], [0.1]), ([0.1, 0.2], [0.1, 0.0]), ([0.1, 0.2], [0.1])):
        with pytest.raises(ValueError, match="at least two, and errors"):
            verdicts.hartung_knapp(values, errors)


def test_random_effects_reject_a_true_zero_in_one_of_twenty():
    generator = np.random.default_rng(7)
    errors = np.geomspace(0.1, 0.4, 13)
    p_values = []
    for _ in range(600):
        effects = 0.3 * generator.normal(size=13) + errors * generator.normal(size=13)
        p_values.append(verdicts.hartung_knapp(effects, errors).p_value)
    for share in (np.mean(np.array(p_values) <= 0.05), np.mean(np.array(p_values) >= 0.95)):
        assert 0.03 < share < 0.075


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
    assert verdict(verdicts.effect(value, error, 50), relevant) == expected


def test_both_errors_of_a_verdict_are_one_in_twenty():
    generator = np.random.default_rng(8)
    found = {
        true: [
            verdict(verdicts.effect(true + 0.3 * generator.normal(), 0.3, 1e6), 0.5)
            for _ in range(4000)
        ]
        for true in (0.0, 0.5)
    }
    assert abs(found[0.0].count("reproduced") / 4000 - 0.05) < 0.01
    assert abs(found[0.5].count("not reproduced") / 4000 - 0.05) < 0.01


def test_a_part_of_a_claim_and_an_earlier_claim_bind():
    yes, no, open_ = "reproduced", "not reproduced", "undecided"
    assert verdicts.in_order([yes, yes, no, yes, no]) == [yes, yes, no, open_, no]
    assert verdicts.in_order([open_, yes]) == [open_, open_]
    assert verdicts.joint_verdict([yes, yes]) == yes
    assert verdicts.joint_verdict([open_, no]) == no
    assert verdicts.joint_verdict([yes, open_]) == open_
    assert verdict(None) == "not tested"


def test_equivalence_needs_the_whole_interval():
    for value, error, expected in (
        (0.0, 0.1, "reproduced"),
        (0.9, 0.1, "undecided"),
        (2.0, 0.1, "not reproduced"),
        (-2.0, 0.1, "not reproduced"),
        (0.0, 2.0, "undecided"),
    ):
        assert verdicts.equivalence_verdict(verdicts.effect(value, error, 50), 1.0) == expected


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


def test_pairs_have_equal_weights():
    plain, calibrated = world(np.random.default_rng(0))
    one, two = Comparison(0, 1, range(0, 20, 2)), Comparison(0, 1, range(1, 20, 2))
    other = Comparison(1, 2, range(0, 20, 2))
    alone = [bootstrap_gain(plain, calibrated, [each]).value for each in (one, two, other)]
    halves = [one._replace(weight=0.5), two._replace(weight=0.5), other]
    found = bootstrap_gain(plain, calibrated, halves).value
    assert found == pytest.approx((alone[0] / 2 + alone[1] / 2 + alone[2]) / 2)


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
