"""D1 and E1 on simulated points and runs: under no effect and under one, and against loops."""

import math

import numpy as np
import pytest
import share_page
from primary_clicks import PLANS
from primary_verdicts import Fold, decide
from share_page import Point, by_tables, slope

pytestmark = pytest.mark.slow

PLAN = PLANS["share"]


def points(generator, slope_of=0.0, offset=0.0):
    """Two points for each table and batch size; tables differ in gain."""
    found = []
    for table in PLAN.tables:
        of_table = 2 * generator.normal()
        for batch_size, share in zip(PLAN.batch_sizes, (0.8, 0.4, 0.05), strict=True):
            for _ in range(2):
                x = share + 0.03 * generator.normal()
                y = offset + slope_of * x + of_table + 3 * generator.normal()
                found.append(Point(table, batch_size, x, y, 5))
    return found


def test_the_error_is_that_of_a_jackknife_over_tables():
    found = points(np.random.default_rng(0), slope_of=8.0)
    result = by_tables(found, slope)
    x, y = np.array([each.share for each in found]), np.array([each.gain for each in found])
    assert result.value == pytest.approx(np.cov(x, y)[0, 1] / x.var(ddof=1))
    without = []
    for table in PLAN.tables:
        keep = np.array([each.table != table for each in found])
        without.append(np.cov(x[keep], y[keep])[0, 1] / x[keep].var(ddof=1))
    variance = 8 / 9 * sum((each - np.mean(without)) ** 2 for each in without)
    # The 95 % quantile of Student's t with eight degrees of freedom.
    assert (result.high - result.low) / 2 == pytest.approx(1.859548 * math.sqrt(variance))
    # A point without pairs has no part in it.
    assert by_tables([*found, Point("adult_49k", 32, 0.5, math.nan, 0)], slope) == result
    assert by_tables(found[:12], slope) is None


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
            won = [
                np.mean([low[i] < high[j] for i in range(15) for j in range(15) if i != j])
                for low, high in means
            ]
            gains.append(100 * (won[1] - won[0]))
    assert first.num_pairs == len(gains) > 3
    assert first.gain == pytest.approx(np.mean(gains))
