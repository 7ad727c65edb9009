"""Moments of logits by SQL, tensors and their formula; losses and bias by NumPy and tensors.

Bins and the columns of a row are written once for tensors and NumPy, and once more in SQL.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, xlog1py, xlogy

from calibration_records.logs.query import logit_moments as moments_query
from calibration_records.logs.query import moments_of
from calibration_records.monitoring.bounds import PeriodLosses
from keras_calibration._ops.logit_moments import (
    bias_root,
    by_group,
    log_loss_and_weight,
    logit_moments,
)
from keras_calibration.logs import ScoredLog, log_sums
from metric_references import BIN_EDGES
from metric_references import logit_moments as reference


def moments_of_rows(labels, logits, weights=None):
    """By tensors, in float64."""
    weights = np.ones(len(labels)) if weights is None else weights
    group = np.zeros(len(labels), np.int32)
    return np.asarray(logit_moments(np.asarray(labels, np.float64), logits, weights, group, 1))


@pytest.mark.parametrize("label", ["hard", "soft"])
def test_moments_of_sql_and_of_tensors_are_those_of_the_formula(label):
    rng = np.random.default_rng(0)
    # Tensors take numbers below 2e-308 for 0.
    edges = BIN_EDGES[BIN_EDGES != 0]
    beside = [np.nextafter(edges, -np.inf), BIN_EDGES, np.nextafter(edges, np.inf)]
    far = [-0.0, 1e-300, -1e-300, 88.5, -88.5, 700.0, -700.0, 1e15, -1e15]
    logits = np.concatenate([*beside, far, rng.normal(0, 3, 500), rng.normal(0, 40, 500)])
    weights = rng.choice([0.5, 1.0, 3.0], len(logits))
    labels = rng.random(len(logits))
    labels = np.round(labels) if label == "hard" else labels
    group = np.zeros(len(logits), int)
    (expected,) = reference(labels, logits, weights, group, 1)
    log = ScoredLog(
        pd.DataFrame({"label": labels, "z": logits, "w": weights}), logit="z", sample_weight="w"
    )
    table = log_sums(log, {"moments": moments_query()}).table("moments")
    (by_sql,) = moments_of(table, 0, 1)
    for moments in (by_sql, moments_of_rows(labels, logits, weights)):
        np.testing.assert_allclose(moments, expected, rtol=1e-12, atol=1e-9)


@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.3, 2.0, 8.0, 60.0]),
    shift=st.sampled_from([-30.0, -3.0, 0.0, 2.0, 95.0]),
    bias=st.sampled_from([-5.0, -0.5, 0.0, 1.0]),
)
@settings(max_examples=20)
def test_losses_are_those_of_the_metric(seed, spread, shift, bias):
    """NumPy's losses of a summary, and those of tensors in float64, which metrics compute."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(shift, spread, 300)
    labels = (rng.random(300) < expit(logits + bias)).astype(float)
    moments = moments_of_rows(labels, logits)
    losses, summary = PeriodLosses(moments), by_group(moments)
    fitted_bias, expected = losses.bias, float(bias_root(summary)[0])
    np.testing.assert_allclose(fitted_bias, expected, rtol=1e-8, atol=1e-8)
    if np.isfinite(fitted_bias):
        received = losses.mean_loss(fitted_bias) * 300
        np.testing.assert_allclose(
            received, float(log_loss_and_weight(summary, np.array([fitted_bias]))[0][0]), rtol=1e-12
        )
        p = expit(logits + fitted_bias)
        exact = np.logaddexp(0, np.where(labels > 0, -1, 1) * (logits + fitted_bias)).sum()
        np.testing.assert_allclose(received, exact, rtol=2e-6)
        entropy, _, high = losses.bounds(0.99)
        negative_entropies = xlogy(p, p) + xlog1py(1 - p, -p)
        np.testing.assert_allclose(entropy, -negative_entropies.mean(), rtol=1e-5, atol=1e-9)
        # The width is at least that of the variance of the rows.
        x, weights = logits + fitted_bias, p * (1 - p)
        deviation = x - weights @ x / weights.sum()
        least = np.sqrt(2 * weights @ deviation**2 * np.log(2 / 0.01)) / 300
        assert high - entropy >= least * (1 - 1e-4)


@pytest.mark.parametrize("ratio", [1e-24, 1e-12, 1.0, 1e12, 1e24])
@pytest.mark.parametrize("logit", [0.125, -70.25])
def test_the_bias_is_found_at_any_rate_of_positives(ratio, logit):
    # Rows at the centre of a bin; their number may be beyond the digits of float64.
    moments = np.zeros((418, 8))
    bin_number = np.searchsorted(BIN_EDGES, logit, side="right")
    moments[bin_number, :2] = 1 / np.sqrt(ratio), np.sqrt(ratio)
    moments[bin_number, 4:] = moments[bin_number, :2].sum() * np.array([-1, 0, 1, 0])
    biases = PeriodLosses(moments).bias, float(bias_root(by_group(moments))[0])
    np.testing.assert_allclose(biases, np.log(ratio) - logit, rtol=1e-9)


def test_rows_that_do_not_determine_a_bias_have_none():
    rng = np.random.default_rng(25)
    for _ in range(8):
        logits = rng.normal(0, 60, 15)
        labels = np.arange(15) % 2.0
        # The rows of label 1 are 1e24 times as many: what is rounded is more than those of label 0.
        weights = np.where(labels > 0, 1e12, 1e-12)
        moments = moments_of_rows(labels, logits, weights)
        bias, expected = PeriodLosses(moments).bias, float(bias_root(by_group(moments))[0])
        np.testing.assert_allclose(bias, expected, rtol=1e-6)
        if np.isfinite(bias):
            excess = weights @ expit(-np.where(labels > 0, 1, -1) * (logits + bias))
            assert excess <= 3 * weights[labels == 0].sum()
