"""The bound of a Field-RCE against enumeration and simulation written apart from the code."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from calibration_records.monitoring import field_error_bound
from calibration_records.monitoring.field_error_bound import field_rce, field_rce_bound
from calibration_records.monitoring.sums import Sums
from calibration_records.statistics.field_noise import count_probabilities


def sums_of(rows, rate, positives=None):
    """Sums of field values with one predicted probability each."""
    rows, rate = np.broadcast_arrays(np.asarray(rows, float), np.asarray(rate, float))
    m = rows * rate
    k = m if positives is None else np.asarray(positives, float)
    return Sums(rows=rows, positives=k, predicted=m, predicted_squares=m * rate)


def counts_of(sums, **arguments):
    means = (sums[name] for name in ("rows", "predicted", "predicted_squares"))
    return count_probabilities(*means, **arguments)


def errors_of(rows, rate, positives):
    terms = np.abs(positives - rows * rate) * rows / (positives + 0.01 * rows)
    return terms.sum(axis=-1) / rows.sum()


def test_counts_have_the_distribution_of_the_labels():
    rng = np.random.default_rng(0)
    p = rng.uniform(0, 0.6, 8)
    exact = np.ones(1)
    for each in p:
        exact = np.convolve(exact, [1 - each, each])
    counts, probabilities = count_probabilities([8], [p.sum()], [(p * p).sum()])
    found = [probabilities[counts == k].sum() for k in range(9)]
    assert probabilities.sum() == pytest.approx(1)
    assert np.dot(found, range(9)) == pytest.approx(p.sum(), rel=1e-9)
    np.testing.assert_allclose(found, exact, atol=0.02)
    # All p equal: exactly binomial. Many rows: as many numbers as asked for, in the middle.
    counts, probabilities = counts_of(sums_of([50], [0.07]))
    np.testing.assert_allclose(probabilities, binom.pmf(counts, 50, 0.07), atol=1e-12)
    counts, probabilities = counts_of(sums_of([1e7], [0.3]), most_counts=101)
    assert counts.shape == (1, 101)
    assert np.sum(counts * probabilities) == pytest.approx(3e6)
    assert np.sum((counts - 3e6) ** 2 * probabilities) == pytest.approx(2.1e6)


@pytest.mark.parametrize("risk", [0.05, 0.002])
def test_the_bound_of_two_values_is_that_of_enumeration(risk):
    rows, rate = np.array([20.0, 30.0]), np.array([0.1, 0.3])
    pairs = np.array(list(itertools.product(range(21), range(31))), float)
    error = errors_of(rows, rate, pairs)
    chance = binom.pmf(pairs[:, 0], 20, 0.1) * binom.pmf(pairs[:, 1], 30, 0.3)
    mean, deviation, bound = field_rce_bound(sums_of(rows, rate), risk)
    assert mean == pytest.approx(np.dot(error, chance))
    assert deviation == pytest.approx(np.sqrt(np.dot((error - mean) ** 2, chance)))
    assert chance[error > bound].sum() <= risk
    # No wider than needed: 1 % below it, or at the next value below, the risk is exceeded.
    assert chance[error > 0.99 * bound - 0.005].sum() > 0.8 * risk


# The first three raised false alerts in 8.7, 2.7 and 3.3 % of logs.
@pytest.mark.parametrize(
    ("values", "rows", "rate"), [(5, 20, 0.001), (50, 200, 0.001), (500, 200, 0.1), (40, 50, 0.5)]
)
def test_right_predictions_exceed_the_bound_as_rarely_as_promised(values, rows, rate):
    rows = np.full(values, float(rows))
    _, _, bound = field_rce_bound(sums_of(rows, rate), 0.01)
    positives = np.random.default_rng(0).binomial(rows.astype(int), rate, (8000, values))
    exceeded = np.mean(errors_of(rows, rate, positives) > bound)
    assert exceeded <= 0.01 + 3 * np.sqrt(0.01 / 8000)
    if values > 5:  # with few values, few numbers are possible
        assert exceeded > 0.005


def test_values_beyond_those_that_are_convolved(monkeypatch):
    rng = np.random.default_rng(0)
    sums = sums_of(rng.integers(1, 400, 300), rng.uniform(0.01, 0.4, 300))
    exact = field_rce_bound(sums, 0.002)
    monkeypatch.setattr(field_error_bound, "_MOST_EXACT", 60)
    monkeypatch.setattr(field_error_bound, "_VALUES_TOGETHER", 70)
    few = field_rce_bound(sums, 0.002)
    assert few[:2] == pytest.approx(exact[:2])
    assert few[2] == pytest.approx(exact[2], rel=0.01)


def test_the_ends():
    assert field_rce_bound(sums_of([], []), 0.01) == (0, 0, 0)
    assert field_rce(sums_of([], [])) == 0
    # Probabilities of 0 and of 1 leave nothing to chance; values without rows do not count.
    mean, deviation, bound = field_rce_bound(sums_of([5, 7, 0], [0.0, 1.0, 0.5]), 0.01)
    assert (mean, deviation) == pytest.approx((0, 0), abs=1e-5)
    assert bound < 1e-5
    assert field_rce(sums_of([5], [0.0], [1])) > bound
    for rows, rate in ((1e9, 0.2), (1e9, 1e-9), (1, 0.5)):
        assert np.isfinite(field_rce_bound(sums_of([rows], [rate]), 1e-6)).all()
