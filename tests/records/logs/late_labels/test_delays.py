"""The product-limit estimator of truncated delays, beside slow loops and another package."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration_records.logs.late_labels.delays import (
    delay_grid,
    delay_trend,
    log_share_variance,
    pooling_strength,
    product_limit,
    reverse_counts,
)

# Ages, delays, and shares of the delays ≤ each, by lifelines 0.30: its KaplanMeierFitter with late
# entry, in reverse time, `fit(100 - delays, entry=100 - ages)`.
AGES = [
    *(5.499, 16.224, 12.061, 2.788, 9.229, 10.102, 14.957, 8.433, 10.818, 9.182, 15.019, 19.169),
    *(6.4, 13.322, 14.228, 6.562, 19.496, 6.67, 6.966, 17.943, 12.118, 9.955, 15.692, 1.577),
    *(14.432, 8.111, 13.55, 18.698, 12.972, 6.665, 15.093, 14.721, 5.156, 13.495, 13.973, 16.581),
    *(9.143, 15.415, 17.691, 2.944),
]
DELAYS = [
    *(4.986, 2.444, 8.231, 2.217, 2.953, 4.674, 6.561, 3.726, 5.762, 8.898, 5.507, 2.524),
    *(5.663, 2.125, 6.717, 3.595, 1.285, 3.665, 2.036, 4.741, 1.985, 5.861, 4.949, 1.006),
    *(2.39, 2.312, 6.866, 2.257, 7.883, 2.945, 2.415, 5.575, 3.123, 3.082, 3.315, 5.801),
    *(2.809, 1.037, 6.869, 0.86),
]
LIFELINES = [
    *(0.016150849389, 0.032301698778, 0.048452548167, 0.064603397556, 0.086137863408),
    *(0.10767232926, 0.129206795112, 0.150741260963, 0.172275726815, 0.193810192667),
    *(0.215344658519, 0.236879124371, 0.258413590223, 0.279948056075, 0.303277060748),
    *(0.328550149143, 0.353823237539, 0.379096325935, 0.40436941433, 0.429642502726),
    *(0.454915591122, 0.480188679517, 0.505461767913, 0.530734856309, 0.556007944704),
    *(0.5812810331, 0.606554121496, 0.634124763382, 0.661695405268, 0.689266047154),
    *(0.71683668904, 0.744407330927, 0.771977972813, 0.800569749584, 0.832592539567),
    *(0.86461532955, 0.896638119534, 0.929846938776, 0.964285714286, 1.0),
]


def slow_curve(delays, ages, weights, grid):
    """Shares and variances of their logarithms, row by row from the definition."""
    shares, variances = [], []
    for t in grid:
        share, variance = 1.0, 0.0
        for before, s in zip([-np.inf, *grid], grid, strict=False):
            if s <= t:
                continue
            at_risk = sum(
                w for d, a, w in zip(delays, ages, weights, strict=True) if d <= s and a >= s
            )
            events = sum(
                w
                for d, a, w in zip(delays, ages, weights, strict=True)
                if before < d <= s and a >= s
            )
            if events == 0:
                continue
            share *= 1 - events / at_risk
            variance += np.inf if events == at_risk else events / (at_risk * (at_risk - events))
        shares.append(share)
        variances.append(variance)
    return np.array(shares), np.array(variances)


def curve(delays, ages, weights, grid):
    return [each[0] for each in product_limit(*reverse_counts(delays, ages, weights, grid))]


def truncated(generator, num_rows, scale=3.0, window=10.0, slope=0.0):
    """Delays and ages of the rows that are seen, whose labels come within the window."""
    ages = generator.uniform(0, 30, num_rows)
    delays = generator.exponential(scale * np.exp(slope * ages))
    seen = delays <= np.minimum(ages, window)
    return delays[seen], ages[seen]


def test_shares_are_those_of_lifelines():
    delays, ages = np.array(DELAYS), np.array(AGES)
    shares, _ = curve(delays, ages, np.ones(len(ages)), delay_grid(delays, 500))
    np.testing.assert_allclose(shares, LIFELINES, rtol=1e-10)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8), st.sampled_from([0.5, 1.0, 3.0])),
        min_size=1,
        max_size=25,
    ),
    every=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_curves_are_those_of_slow_loops(rows, every):
    """With ties, weights, grids that leave out delays, and steps where all at risk are events."""
    delays, late, weights = map(np.array, zip(*rows, strict=True))
    delays, ages = delays.astype(float), (delays + late).astype(float)
    grid = np.unique(delays)[::-1][::every][::-1]
    shares, variances = curve(delays, ages, weights, grid)
    slow_shares, slow_variances = slow_curve(delays, ages, weights, grid)
    np.testing.assert_allclose(shares, slow_shares, atol=1e-12)
    np.testing.assert_allclose(variances, slow_variances, rtol=1e-9, atol=1e-12)
    assert shares[-1] == 1.0
    assert (np.diff(shares) >= 0).all()
    assert (shares >= 0).all()


def test_shares_are_right_for_truncated_delays():
    delays, ages = truncated(np.random.default_rng(0), 60_000)
    grid = delay_grid(delays, 500)
    shares, variances = curve(delays, ages, np.ones(len(ages)), grid)
    true = -np.expm1(-grid / 3.0) / -np.expm1(-10.0 / 3.0)
    at = np.searchsorted(grid, [0.5, 2.0, 5.0])
    np.testing.assert_allclose(shares[at], true[at], rtol=0.04)
    assert (np.abs(np.log(shares[at] / true[at])) < 4 * np.sqrt(variances[at])).all()
    # Those of the labels seen so far are too short.
    assert (delays <= 5.0).mean() > true[at[2]] + 0.02


def test_the_variance_of_the_logarithm_is_right():
    generator, logs, variances = np.random.default_rng(1), [], []
    for _ in range(300):
        delays, ages = truncated(generator, 400)
        grid = np.arange(0.5, 10.1, 0.5)
        shares, variance = curve(delays, ages, np.ones(len(ages)), grid)
        logs.append(np.log(shares[5]))
        variances.append(variance[5])
    assert np.mean(variances) / np.var(logs) == pytest.approx(1.0, abs=0.25)


def test_sums_of_groups_are_those_of_each_group():
    delays, ages = truncated(np.random.default_rng(2), 500)
    groups = np.arange(len(ages)) % 3
    grid = delay_grid(delays, 20)
    weights = np.random.default_rng(3).random(len(ages))
    events, at_risk = reverse_counts(delays, ages, weights, grid, groups, 3)
    for group in range(3):
        of = groups == group
        alone = reverse_counts(delays[of], ages[of], weights[of], grid)
        np.testing.assert_allclose(events[group], alone[0][0])
        np.testing.assert_allclose(at_risk[group], alone[1][0], atol=1e-12)


def test_the_grid_is_finer_where_delays_are_short():
    delays = np.random.default_rng(4).exponential(1.0, 20_000)
    grid = delay_grid(delays, 200)
    assert len(grid) <= 200
    assert grid[-1] == delays.max()
    shares = np.searchsorted(np.sort(delays), grid, side="right") / len(delays)
    steps = np.diff(shares, prepend=0.0)
    # The error of a share by one step: small beside it, and small for the longest delays.
    assert (steps <= 0.02 * np.sqrt(shares) + 1 / len(delays)).all()
    assert (grid[np.searchsorted(grid, delays)] - delays).max() <= grid[-1] / 100 + 1e-9


def test_equal_values_are_pooled_more_than_different_ones():
    generator = np.random.default_rng(5)
    parts = [truncated(generator, 500) for _ in range(20)]
    different = [truncated(generator, 500, scale) for scale in np.geomspace(0.5, 20, 20)]
    strengths = []
    for world in (parts, different):
        delays, ages = (np.concatenate(each) for each in zip(*world, strict=True))
        groups = np.repeat(np.arange(20), [len(each) for each, _ in world])
        strengths.append(pooling_strength(delays, ages, np.ones(len(ages)), groups, 20))
    assert strengths[0] > 500
    assert strengths[1] < 50


def test_the_variance_of_a_sum_is_that_of_all_pairs():
    generator = np.random.default_rng(6)
    sums, log_variances = generator.random(6), np.sort(generator.random(6))[::-1]
    pairs = sum(sums[j] * sums[k] * log_variances[max(j, k)] for j in range(6) for k in range(6))
    found = log_share_variance(sums[None], log_variances[None])
    np.testing.assert_allclose(found, [pairs])


def test_a_trend_of_the_delays_is_found_with_its_sign():
    generator = np.random.default_rng(7)
    zs = []
    for slope in (0.0, 0.03, -0.03):
        delays, ages = truncated(generator, 20_000, slope=slope)
        groups = np.zeros(len(ages), np.int64)
        zs.append(
            delay_trend(delays, ages, np.ones(len(ages)), delay_grid(delays, 500), groups, 1)[1]
        )
    assert abs(zs[0]) < 3
    assert zs[1] > 5
    assert zs[2] < -5


def test_no_trend_is_known_of_one_long_delay():
    """One young row with a longer delay than all others is not a trend, though its z is 7."""
    delays, ages = np.array([1.0] * 50 + [2.0]), np.array([11.0] * 50 + [8.0])
    assert delay_trend(
        delays, ages, np.ones(len(ages)), np.array([1.0, 2.0]), np.zeros(51, int), 1
    ) == (0.0, 0.0)


def test_no_trend_is_known_of_one_delay():
    ages = np.array([3.0, 4.0])
    assert delay_trend(np.ones(2), ages, np.ones(2), np.ones(1), np.zeros(2, int), 1)[1] == 0.0
