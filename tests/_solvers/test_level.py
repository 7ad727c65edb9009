"""The level over time: its fit beside a reference, and what it finds in worlds that are known."""

import numpy as np
import pytest
from scipy import optimize
from scipy.special import expit

from keras_calibration._rows.line import Line
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.field_offsets import OffsetRows, fit_field_offsets
from keras_calibration._solvers.field_spreads import half_cauchy
from keras_calibration._solvers.level import NUM_KNOTS, level_column, line_of_means
from keras_calibration._solvers.numeric_column import random_walk_basis


def rows_of(levels, seed=0, noise=0.0, num_rows=4000):
    """Rows in order of time, whose level is given at equally distant times."""
    generator = np.random.default_rng(seed)
    times = np.arange(num_rows, dtype=float)
    level = np.interp(times, np.linspace(0, num_rows - 1, len(levels)), levels)
    days = generator.normal(0, noise, 40)[(times * 40 // num_rows).astype(int)]
    logits = generator.normal(-1.0, 1.0, num_rows)
    labels = (generator.random(num_rows) < expit(logits + level + days)).astype(float)
    return Rows(logits, labels, None), times


def fit_level(rows, times):
    level = level_column(times, rows.weights)
    block = OffsetRows(rows.logits, rows.labels, rows.weights, columns=[level[1]])
    return level, fit_field_offsets(block, [], half_cauchy(1.0))


def test_the_fit_is_the_optimum_of_its_penalised_loss():
    rows, times = rows_of([0.0, 0.8, 0.2], noise=0.3, num_rows=600)
    weights = np.random.default_rng(1).integers(1, 4, len(rows)).astype(float)
    rows = Rows(rows.logits, rows.labels, weights)
    level, fit = fit_level(rows, times)
    knots, spreads = level[0], fit.spreads.deviations
    hats = np.stack([np.interp(times, knots, unit) for unit in np.eye(len(knots))], axis=1)
    walk = 0.1 * spreads[0] * random_walk_basis(knots)
    columns = np.hstack([np.c_[rows.logits, np.ones(len(rows))], hats @ walk, spreads[1] * hats])

    def objective(coefficients):
        eta = columns @ coefficients
        loss = weights @ (np.logaddexp(0, eta) - rows.labels * eta)
        prior = 0.5 * np.sum(coefficients[2:] ** 2) + 0.5e-3 * (coefficients[0] - 1) ** 2
        gradient = columns.T @ (weights * (expit(eta) - rows.labels))
        gradient[2:] += coefficients[2:]
        gradient[0] += 1e-3 * (coefficients[0] - 1)
        return loss + prior, gradient

    start = np.zeros(columns.shape[1])
    best = optimize.minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x
    assert fit.slope == pytest.approx(best[0], abs=1e-5)
    assert fit.bias == pytest.approx(best[1], abs=1e-5)
    values = walk @ best[2 : 1 + len(knots)]
    np.testing.assert_allclose(fit.curves[0][-1], values[-1], atol=1e-5)
    values = values + spreads[1] * best[1 + len(knots) :]
    np.testing.assert_allclose(fit.curves[0][:-1], values, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_what_does_not_last_is_not_carried_on(seed):
    rows, times = rows_of([0.0], seed, noise=0.6, num_rows=8000)
    _, fit = fit_level(rows, times)
    walk, noise = fit.spreads.deviations
    assert abs(fit.curves[0][-1]) < 0.2
    assert 0.1 * walk < 0.2
    assert 0.3 < noise < 0.9


def test_a_drift_is_followed_to_its_end():
    for seed in range(3):
        rows, times = rows_of([0.0, 1.0, 1.0], seed, num_rows=10_000)
        _, fit = fit_level(rows, times)
        mean = 0.75
        assert fit.curves[0][-1] == pytest.approx(1.0 - mean, abs=0.12)


def test_few_times_are_all_knots_and_one_time_has_no_level():
    _, times = rows_of([0.0, 0.5], num_rows=500)
    knots, _ = level_column(np.floor(times / 100), None)
    np.testing.assert_array_equal(knots, np.arange(5))
    assert level_column(np.full(500, 3.0), None) is None
    assert len(level_column(times, None)[0]) == NUM_KNOTS


@pytest.mark.parametrize("mean", [-8.0, -3.0, 0.0, 2.0])
@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
def test_the_line_of_means_has_the_mean_probability(mean, noise):
    logits = np.random.default_rng(0).normal(mean, 1.0, 4000)
    line = line_of_means(logits, np.ones(4000), noise)
    # An independent integral, by equally probable values of the noise.
    from scipy.stats import norm

    epsilon = noise * norm.ppf((np.arange(2001) + 0.5) / 2001)
    shown = logits[::40]
    true = expit(shown[:, None] + epsilon).mean(axis=1)
    received = expit(line(shown))
    assert received.mean() == pytest.approx(true.mean(), rel=0.01)
    cost = true * np.log(true / received) + (1 - true) * np.log((1 - true) / (1 - received))
    nothing = expit(shown)
    alone = true * np.log(true / nothing) + (1 - true) * np.log((1 - true) / (1 - nothing))
    assert cost.mean() < 0.05 * alone.mean()
    mirrored = line_of_means(-logits, np.ones(4000), noise)
    assert mirrored.scale == pytest.approx(line.scale, abs=1e-9)
    assert mirrored.shift == pytest.approx(-line.shift, abs=1e-9)


def test_a_mapped_fit_is_that_of_mapped_logits_with_all_its_spreads():
    rows, times = rows_of([0.0, 0.8, 0.2], noise=0.3, num_rows=600)
    fit = fit_level(rows, times)[1]
    mapped = fit.mapped(Line(2.5, 0.25))
    data = OffsetRows(rows.logits, rows.labels, None, columns=[level_column(times, None)[1]])
    np.testing.assert_allclose(mapped.logits(data), 2.5 * fit.logits(data) + 0.25, rtol=1e-12)
    for one, other in ((mapped.deviations, fit.deviations), (mapped.spreads[0], fit.spreads[0])):
        np.testing.assert_allclose(one, 2.5 * other, rtol=1e-12)
