"""Bounds against NumPy and SciPy references written apart from the code, and by simulation."""

import numpy as np
import pytest
from scipy.special import expit as sigmoid
from scipy.stats import binom

from calibration_records.monitoring.bounds import (
    PeriodLosses,
    field_rce,
    field_rce_bound,
    rate_factors,
)
from calibration_records.monitoring.sums import Sums
from records.test_logit_moments import moments_of_rows


def loss_bounds(labels, logits, confidence):
    """The loss, its expectation, and its bounds."""
    losses = PeriodLosses(moments_of_rows(labels, logits))
    return losses.mean_loss(losses.bias), *losses.bounds(confidence)


@pytest.mark.parametrize(
    ("positives", "p", "rows"), [(0, 0.01, 50), (7, 0.02, 300), (90, 0.3, 100)]
)
def test_the_ends_are_the_factors_at_which_the_tails_have_that_probability(positives, p, rows):
    sums = np.array([[positives], [p * rows], [rows]])
    low, high = rate_factors(*sums, 0.9)
    assert binom.cdf(positives, rows, min(p * high[0], 1)) == pytest.approx(0.05, abs=1e-9)
    if positives:
        assert binom.sf(positives - 1, rows, p * low[0]) == pytest.approx(0.05, abs=1e-9)
    else:
        assert low[0] == 0


@pytest.mark.parametrize("shift", [0.0, 2.5, -2.0])
def test_intervals_hold_the_true_rate_where_probabilities_differ(shift):
    rng = np.random.default_rng(0)
    for logits in (rng.normal(-5, 1.5, 400), rng.normal(-2, 1.5, 400), rng.normal(0, 2, 60)):
        p, true = sigmoid(logits), sigmoid(logits + shift)
        positives = (rng.random((4000, len(p))) < true).sum(axis=1)
        low, high = rate_factors(positives, np.full(4000, p.sum()), np.full(4000, len(p)), 0.9)
        factor = true.sum() / p.sum()
        missed = np.mean((low > factor) | (high < factor))
        # Four standard errors above 0.1 is 0.119.
        assert missed < 0.119
        assert missed > 0.001  # not any interval holds so often


@pytest.mark.parametrize("mean", [-1.0, -6.0])
def test_bounds_hold_where_probabilities_are_right_up_to_a_bias(mean):
    rng = np.random.default_rng(2)
    missed = told = 0
    for _ in range(150):
        logits = rng.normal(mean, 1.5, 800)
        labels = rng.random(800) < sigmoid(logits + 0.5)
        loss, _, low, high = loss_bounds(labels, logits, 0.8)
        told += not np.isnan(loss)
        missed += loss < low or loss > high
    assert told > 100
    assert missed <= 0.2 * told


def test_predictions_that_tell_nothing_are_found_though_their_mean_is_right():
    rng = np.random.default_rng(3)
    logits = rng.normal(-2, 1, 4000)
    labels = rng.random(4000) < sigmoid(logits).mean()
    loss, _, _, high = loss_bounds(labels, logits, 0.999)
    assert loss > high
    # And timid ones, half the logit they should have.
    labels = rng.random(4000) < sigmoid(2 * logits)
    loss, _, low, _ = loss_bounds(labels, logits, 0.999)
    assert loss < low


def test_one_class_or_constant_predictions():
    assert np.isnan(loss_bounds(np.zeros(10), np.zeros(10), 0.99)).all()
    labels = np.arange(100) % 4 == 0
    loss, expected, low, high = loss_bounds(labels, np.full(100, -3.0), 0.99)
    assert loss == pytest.approx(expected)
    assert low <= loss <= high


def sums_of(rows, rate, positives=None):
    """Sums of field values with one predicted probability each."""
    rows, rate = np.broadcast_arrays(np.asarray(rows, float), np.asarray(rate, float))
    m = rows * rate
    return Sums(rows, m if positives is None else np.asarray(positives, float), m, m * rate)


def errors_of(rows, rate, positives):
    terms = np.abs(positives - rows * rate) * rows / (positives + 0.01 * rows)
    return terms.sum(axis=-1) / rows.sum()


# By a normal distribution, the first three raise false alerts in 9.6, 1.5 and 1.3 % of logs.
@pytest.mark.parametrize(
    ("values", "rows", "rate"),
    [(5, 20, 0.001), (50, 200, 0.001), (500, 200, 0.1), (40, 50, 0.5), (2, 30, 0.3)],
)
def test_right_predictions_exceed_the_bound_as_rarely_as_promised(values, rows, rate):
    rows = np.full(values, float(rows))
    positives = np.random.default_rng(0).binomial(rows.astype(int), rate, (10_000, values))
    errors = errors_of(rows, rate, positives)
    for risk in (0.01, 0.001):
        mean, deviation, bound = field_rce_bound(sums_of(rows, rate), risk)
        assert mean == pytest.approx(errors.mean(), rel=0.05)
        assert deviation == pytest.approx(errors.std(), rel=0.15)
        exceeded = np.mean(errors > bound)
        assert exceeded <= 1.5 * risk + 3 * np.sqrt(risk / len(errors))


def test_the_bound_does_not_depend_on_the_names_of_the_values():
    rows, rates = np.array([20.0, 500.0, 90.0, 20.0]), np.array([0.1, 0.02, 0.4, 0.3])
    expected = field_rce_bound(sums_of(rows, rates), 0.01)
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        assert field_rce_bound(sums_of(rows[order], rates[order]), 0.01) == expected


def test_the_ends_of_the_bound_of_a_field_error():
    # Probabilities of 0 and of 1 leave nothing to chance.
    mean, deviation, bound = field_rce_bound(sums_of([5, 7], [0.0, 1.0]), 0.01)
    assert (mean, deviation, bound) == pytest.approx((0, 0, 0), abs=1e-6)
    assert field_rce(sums_of([5], [0.0], [1])) > bound
    for rows, rate in ((1e9, 0.2), (1e9, 1e-9), (1, 0.5)):
        assert np.isfinite(field_rce_bound(sums_of([rows], [rate]), 1e-6)).all()
