"""BetaCalibration: the exact fit of the curve with two slopes."""

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings

from backends import HOSTILE_ROWS, examples
from keras_calibration.layers import BetaCalibration, PlattScaling


def softplus(logits):
    return np.logaddexp(0.0, logits)


def curve(parameters, logits):
    below, above, bias = parameters
    return -below * softplus(-logits) + above * softplus(logits) + bias


def parameters_of(layer):
    return layer.slope_below, layer.slope_above, layer.bias


def log_loss(calibrated, labels, weights=None):
    losses = labels * softplus(-calibrated) + (1 - labels) * softplus(calibrated)
    return np.average(losses, weights=weights)


def rows_of(parameters=(0.7, 1.4, -0.3), mean=0.0, spread=1.5, num_rows=20_000, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(mean, spread, num_rows)
    rates = np.exp(-softplus(-curve(parameters, logits)))
    return logits, (generator.random(num_rows) < rates).astype(float)


def best_parameters(logits, labels, weights):
    """The minimum over the rows themselves, prior included, by a general method."""
    total = weights.sum()

    def value_and_gradient(parameters):
        calibrated = curve(parameters, logits)
        residual = weights * (0.5 * (1 + np.tanh(0.5 * calibrated)) - labels)
        away = np.array([parameters[0] - 1, parameters[1] - 1, 0.0])
        sums = [-residual @ softplus(-logits), residual @ softplus(logits), residual.sum()]
        value = log_loss(calibrated, labels, weights) + 0.05 * away @ away / total
        return value, (np.array(sums) + 0.1 * away) / total

    return scipy.optimize.minimize(
        value_and_gradient,
        [0.7, 0.7, 0.0],
        jac=True,
        method="L-BFGS-B",
        bounds=[(1e-6, None), (1e-6, None), (None, None)],
        options={"ftol": 0.0, "gtol": 1e-12, "maxiter": 2000},
    ).x


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"parameters": (2.0, 0.3, 0.5)},
        {"parameters": (0.7, 1.4, -1.0), "mean": -4.0, "spread": 1.0},
        {"parameters": (0.1, 0.02, 0.0), "spread": 30.0},
        {"parameters": (0.5, 5.0, 0.0), "mean": -3.0, "spread": 1.0},
        {"parameters": (1.0, 0.0, 0.5), "seed": 5},  # b may end at its bound
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_fit_is_the_optimum_on_the_rows(form, weighted):
    logits, labels = rows_of(**form)
    weights = np.ones(len(logits))
    if weighted:
        weights = np.random.default_rng(1).choice([0.0, 0.5, 3.0], len(logits))
        labels = 0.9 * labels + 0.02  # soft, too
    layer = BetaCalibration()
    summary = layer.fit(logits, labels, sample_weight=weights if weighted else None)
    # As many rows as importances are worth, beside the prior.
    weights = weights * (weights.sum() / (weights @ weights))
    best = best_parameters(logits, labels, weights)
    loss = log_loss(curve(best, logits), labels, weights)
    received = log_loss(curve(parameters_of(layer), logits), labels, weights)
    assert received == pytest.approx(loss, abs=2e-9)
    # The figure itself rests on bins, within which the curve is taken as a line.
    assert summary.log_loss_after == pytest.approx(loss, abs=1e-7)
    assert summary.log_loss_before == pytest.approx(log_loss(logits, labels, weights), abs=1e-8)
    assert summary.converged
    np.testing.assert_allclose(parameters_of(layer), best, rtol=1e-4, atol=1e-4)


def test_where_no_logit_is_near_zero_it_is_platt_scaling():
    generator = np.random.default_rng(0)
    logits = generator.normal(-14, 1, 10_000)
    labels = generator.random(10_000) < 1 / (1 + np.exp(-0.8 * logits - 9))
    beta, platt = BetaCalibration(), PlattScaling()
    beta.fit(logits, labels)
    platt.fit(logits, labels)
    assert beta.slope_above == pytest.approx(1, abs=0.2)
    assert beta.slope_below == pytest.approx(platt.scale, abs=1e-3)


def test_a_ranking_turned_round_gives_the_smallest_slopes_and_a_warning():
    logits, labels = rows_of(parameters=(-1.0, -1.0, 0.0))
    layer = BetaCalibration()
    with pytest.warns(UserWarning, match=r"BetaCalibration.*not above 0"):
        layer.fit(logits, labels)
    np.testing.assert_allclose(parameters_of(layer)[:2], 1e-6, rtol=1e-4)


@pytest.mark.parametrize("num_clicks", [1, 2, 500])
def test_separated_classes_have_a_finite_answer(num_clicks):
    logits = np.linspace(-3, 3, 1000)
    layer = BetaCalibration()
    summary = layer.fit(logits, np.arange(1000) >= 1000 - num_clicks)
    assert summary.converged
    assert 0 < summary.log_loss_after < summary.log_loss_before
    assert max(np.abs(parameters_of(layer))) < 100


@settings(max_examples=examples(60))
@given(HOSTILE_ROWS)
@pytest.mark.filterwarnings("ignore:.*the best scale:UserWarning")
@pytest.mark.filterwarnings("ignore:The sample weights:UserWarning")
def test_any_rows_are_fitted_or_refused(rows):
    logits, labels, weights = map(np.array, zip(*rows, strict=True))
    layer = BetaCalibration()
    try:
        summary = layer.fit(logits, labels, sample_weight=weights)
    except ValueError as error:
        summary, refusal = None, str(error)
    if summary is None:
        assert "one class" in refusal or "All sample weights" in refusal
        return
    assert np.isfinite(parameters_of(layer)).all()
    assert min(parameters_of(layer)[:2]) > 0
    prior = 0.05 * 2 * (1 + 1e-6) / weights.sum()
    assert summary.log_loss_after <= summary.log_loss_before * (1 + 1e-9) + prior + 1e-9
    counted = weights > 0
    again = BetaCalibration()
    again.fit(logits[counted], labels[counted], sample_weight=weights[counted])
    np.testing.assert_allclose(parameters_of(again), parameters_of(layer), rtol=1e-6)
