"""V1, A1, D1 and E1 on simulated runs: under no effect and under one, and against loops."""

import math
from pathlib import Path

import numpy as np
import primary_verdicts as primary
import pytest
import share_page
from pairs import Pair
from primary_clicks import PLANS
from primary_verdicts import Fold, decide
from share_page import Point, by_tables, slope

from verdicts import LEVEL

pytestmark = pytest.mark.slow

NAMES = ["a", "b", "c", "d"]
PAIRS = [Pair("k", first, second) for k, first in enumerate(NAMES) for second in NAMES[k + 1 :]]
SEEDS, BLOCKS, FOLDS = 12, 10, 5
DEGREES = FOLDS * (SEEDS - 1)


def world(generator, *, bias=1.0, means=(0.0, 0.3, 0.6, 1.2), rows=0.2):
    """Folds of four pipelines. The plain loss has `bias` in addition, or else noise of its own."""
    folds = []
    for _ in range(FOLDS):
        base = np.array(means)[:, None, None] + generator.normal(size=(4, SEEDS, BLOCKS))
        base = base + rows * generator.normal(size=(4, 1, BLOCKS))
        first, second, of_bias = generator.normal(size=(3, 4, SEEDS, 1))
        # Without bias, the two losses have the same law, and noise of their own in part.
        plain = base + (first + bias * of_bias if bias else 0.8 * first + 0.6 * second)
        folds.append(Fold(plain, base + first))
    return folds


def effects(folds):
    """The mean log ratio of the standard deviations and the mean gain, if a pair counts."""
    drawn = primary.draw(folds, num_draws=150)
    ratios = -primary.log_std_ratios(drawn).mean(axis=1)
    gains = [pair.gains for pair in primary.pair_gains(NAMES, folds, drawn, PAIRS)]
    ratio = primary.effect_of(ratios, DEGREES)
    return ratio, primary.effect_of(np.mean(gains, axis=0), DEGREES) if gains else None


def test_the_ratio_is_that_of_numpy():
    folds = world(np.random.default_rng(0))
    drawn = primary.draw(folds, num_draws=3)
    variances = [
        np.mean([fold[k].mean(axis=-1).var(axis=1, ddof=1) for fold in folds], axis=0)
        for k in (0, 1)
    ]
    expected = 0.5 * np.log(variances[1] / variances[0])
    np.testing.assert_allclose(primary.log_std_ratios(drawn)[0], expected)
    means = [np.mean([fold[k].mean(axis=(1, 2)) for fold in folds], axis=0) for k in (0, 1)]
    np.testing.assert_allclose(primary.mean_shifts(drawn)[0], means[1] / means[0] - 1)


def wins(better, worse):
    """The share of pairs of runs of different seeds that are won."""
    return np.mean([x < y for i, x in enumerate(better) for j, y in enumerate(worse) if i != j])


def test_a_fold_is_judged_as_the_others_decide():
    generator = np.random.default_rng(3)
    folds = world(generator, means=(0.0, 0.5, 0.0, 0.0), rows=0.0)
    # In one fold the other pipeline is better: the others decide against it.
    turned = folds[2]
    turned.plain[0] += 1.0
    turned.calibrated[0] += 1.0
    drawn = primary.draw(folds, num_draws=3)
    pair = Pair("k", "a", "b")
    (pair_gain,) = primary.pair_gains(NAMES, folds, drawn, [pair])
    counted = [
        k
        for k in range(FOLDS)
        if primary.decide([fold for i, fold in enumerate(folds) if i != k], 0, 1) == (0, 1)
    ]
    assert 2 in counted
    assert pair_gain.num_counted == len(counted)
    for k, value in ((0, pair_gain.plain), (1, pair_gain.calibrated)):
        losses = [folds[number][k].mean(axis=-1) for number in counted]
        assert value == pytest.approx(np.mean([wins(a, b) for a, b, *_ in losses]))
    assert pair_gain.gains[0] == pytest.approx(pair_gain.calibrated - pair_gain.plain)
    # The order of a pair does not matter.
    (turned_pair,) = primary.pair_gains(NAMES, folds, drawn, [Pair("k", "b", "a")])
    assert turned_pair.better == pair_gain.better == "a"
    np.testing.assert_allclose(turned_pair.gains, pair_gain.gains)


@pytest.mark.parametrize("bias", [0.0, 1.5])
def test_on_simulated_runs(bias):
    """Without bias, one test in twenty is passed; with it, both effects are found."""
    generator = np.random.default_rng(6)
    drawn = [effects(world(generator, bias=bias)) for _ in range(60)]
    ratios, gains = ([test for test in tests if test] for tests in zip(*drawn, strict=True))
    assert min(len(ratios), len(gains)) > 50
    passed = [np.mean([test.p_value <= LEVEL for test in tests]) for tests in (ratios, gains)]
    means = [np.mean([test.value for test in tests]) for tests in (ratios, gains)]
    if not bias:
        # Both ends of the interval are tests.
        far = [np.mean([test.p_value >= 1 - LEVEL for test in t]) for t in (ratios, gains)]
        assert max(*passed, *far) < 0.15
        assert max(map(abs, means)) < 0.015
        return
    assert passed[0] > 0.95
    assert passed[1] > 0.5
    # Of variances 1 + 1/10 and 3.25 + 1/10.
    assert means[0] == pytest.approx(0.5 * np.log(3.35 / 1.1), abs=0.03)
    covered = np.mean([gain.low <= means[1] <= gain.high for gain in gains])
    assert 0.8 < covered < 0.99


# The page of shares.

PLAN = PLANS["share"]


def points(generator, slope_of=0.0, offset=0.0):
    """Two points for each table and batch size; tables differ in gain."""
    drawn = []
    for table in PLAN.tables:
        of_table = 2 * generator.normal()
        for batch_size, share in zip(PLAN.batch_sizes, (0.8, 0.4, 0.05), strict=True):
            for _ in range(2):
                x = share + 0.03 * generator.normal()
                y = offset + slope_of * x + of_table + 3 * generator.normal()
                drawn.append(Point(table, batch_size, x, y, 5))
    return drawn


def test_the_error_is_that_of_a_jackknife_over_tables():
    drawn = points(np.random.default_rng(0), slope_of=8.0)
    result = by_tables(drawn, slope)
    x, y = np.array([point.share for point in drawn]), np.array([point.gain for point in drawn])
    assert result.value == pytest.approx(np.cov(x, y)[0, 1] / x.var(ddof=1))
    without = []
    for table in PLAN.tables:
        keep = np.array([point.table != table for point in drawn])
        without.append(np.cov(x[keep], y[keep])[0, 1] / x[keep].var(ddof=1))
    variance = 8 / 9 * sum((estimate - np.mean(without)) ** 2 for estimate in without)
    # The 95 % quantile of Student's t with eight degrees of freedom.
    assert (result.high - result.low) / 2 == pytest.approx(1.859548 * math.sqrt(variance))
    # A point without pairs has no part in it.
    assert by_tables([*drawn, Point("adult_49k", 32, 0.5, math.nan, 0)], slope) == result
    assert by_tables(drawn[:12], slope) is None


def test_a_fold_is_a_point_as_the_other_decides():
    generator = np.random.default_rng(3)
    shape = (len(PLAN.pipelines), 15, 10)
    means = 0.8 * np.arange(len(PLAN.pipelines))[:, None, None]
    folds = []
    for _ in range(2):
        calibrated = means + generator.normal(size=(*shape[:2], 1)) + np.zeros(shape)
        folds.append(Fold(calibrated + 2 * generator.normal(size=(*shape[:2], 1)), calibrated))
    first, _ = share_page.points_of("adult_49k", 32, folds)
    plain, calibrated = (losses.mean(axis=-1) for losses in folds[1])
    shares = [
        np.cov(a, a - b)[0, 1] / a.var(ddof=1) for a, b in zip(plain, calibrated, strict=True)
    ]
    assert first.share == pytest.approx(np.mean(shares))
    gains, names = [], list(PLAN.pipelines)
    for pair in share_page.all_pairs(PLAN):
        decided = decide([folds[1]], names.index(pair.first), names.index(pair.second))
        if decided:
            means = [losses[list(decided)].mean(axis=-1) for losses in folds[0]]
            won = [wins(*mean_losses) for mean_losses in means]
            gains.append(100 * (won[1] - won[0]))
    assert first.num_pairs == len(gains) > 3
    assert first.gain == pytest.approx(np.mean(gains))


def test_pairs_that_are_too_near_do_not_count():
    folds = world(np.random.default_rng(3), means=(0.0, 0.5, 0.0, 0.0))
    assert decide(folds, 0, 1) == decide(folds, 0, 1, 0.55) == (0, 1)
    assert decide(folds, 0, 1, 0.9) is None


def test_the_second_plan_has_folds_and_seeds_of_its_own():
    plan = PLANS["second"]
    assert list(plan.folds) == [2, 3, 4]
    assert not set(plan.folds) & set(PLANS["share"].folds)
    assert plan.first_seed > PLANS["share"].first_seed + 60


def test_three_folds_are_points_as_the_two_others_decide():
    plan, generator = PLANS["third"], np.random.default_rng(5)
    names = list(plan.pipelines)
    shape = (len(names), 12, 10)
    means = 0.5 * np.arange(len(names))[:, None, None]
    folds = []
    for _ in range(3):
        calibrated = means + generator.normal(size=(*shape[:2], 1)) + np.zeros(shape)
        folds.append(Fold(calibrated + 2 * generator.normal(size=(*shape[:2], 1)), calibrated))
    others = [pair for pair in share_page.all_pairs(plan) if share_page.NORMALIZED not in pair]
    assert len(others) == 9
    *_, last = share_page.points_of("adult_49k", 128, folds, plan, others)
    shares, gains = [], []
    for plain, calibrated in (fold_losses(fold) for fold in folds[:2]):
        for k in set(range(len(names))) - {names.index(share_page.NORMALIZED)}:
            a, b = plain[k], calibrated[k]
            shares.append(np.cov(a, a - b)[0, 1] / a.var(ddof=1))
    assert last.share == pytest.approx(np.mean(shares))
    for pair in others:
        decided = decide(folds[:2], names.index(pair.first), names.index(pair.second))
        if decided:
            won = [wins(*losses[list(decided)]) for losses in fold_losses(folds[2])]
            gains.append(100 * (won[1] - won[0]))
    assert last.num_pairs == len(gains) > 3
    assert last.gain == pytest.approx(np.mean(gains))


def fold_losses(fold):
    """Both losses of a fold, means over its blocks."""
    return [losses.mean(axis=-1) for losses in fold]


def test_the_third_plan_is_not_run_before_it_has_all_points(monkeypatch):
    def read(folder, plan, pairs):
        drawn = points(np.random.default_rng(1), slope_of=12.0)
        return [point for point in drawn if point.batch_size in plan.batch_sizes]

    monkeypatch.setattr(share_page, "read_points", read)
    # Two points a condition: a fold of each is missing.
    lines = share_page.hypotheses_d2_e2(Path())
    assert [line["verdict"] for line in lines[:2]] == ["not run yet"] * 2
    assert {line["verdict"] for line in lines[2:]} == {"estimate"}
    monkeypatch.setitem(PLANS, "third", PLANS["third"]._replace(num_folds=2))
    assert share_page.hypotheses_d2_e2(Path())[0]["verdict"] == "reproduced"
