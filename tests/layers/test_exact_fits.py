"""Calibrators of a few parameters, beside the optimum that SciPy finds on the rows in float64."""

import numpy as np
import pytest
import scipy.optimize
from scipy.special import expit as sigmoid

from every_head import FORMULAS, STREAMING
from keras_calibration import layers

SLOPES = [layers.TemperatureScaling, layers.PlattScaling, layers.BetaCalibration]


def test_every_calibrator_of_a_few_parameters_is_listed():
    assert {*STREAMING} == {*FORMULAS, layers.ILPS}


def parameters_of(layer):
    return np.array(FORMULAS[type(layer)].parameters(layer))


def rows_of(parameters=(0.7, 0.7, -0.3), mean=-1.0, spread=1.5, num_rows=20_000, seed=0):
    """Rows whose truth is a beta curve; with equal slopes, a line."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(mean, spread, num_rows)
    truth = np.array(parameters) @ FORMULAS[layers.BetaCalibration].columns(logits)
    return logits, (generator.random(num_rows) < sigmoid(truth)).astype(float)


def log_loss(curve, labels, weights=None):
    return np.average(np.logaddexp(0, curve) - labels * curve, weights=weights)


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"parameters": (0.7, 0.7, -5.0)},
        {"parameters": (2.0, 0.3, 0.5)},
        {"parameters": (0.7, 1.4, -1.0), "mean": -4.0, "spread": 1.0},
        {"parameters": (0.1, 0.02, 0.0), "spread": 30.0},
        {"parameters": (1.0, 0.0, 0.5), "seed": 5},  # a slope may end at its bound
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layer_class", FORMULAS)
def test_fit_is_the_optimum_on_the_rows(layer_class, weighted, form):
    logits, labels = rows_of(**form)
    weights = np.ones(len(logits))
    if weighted:
        weights = np.random.default_rng(1).choice([0.0, 0.5, 3.0], len(logits))
        labels = 0.9 * labels + 0.02  # soft, too
    layer = layer_class()
    summary = layer.fit(logits, labels, sample_weight=weights if weighted else None)
    weights = weights * (weights.sum() / (weights @ weights))  # rows that say as much
    formula = FORMULAS[layer_class]
    columns = np.stack(formula.columns(logits), axis=1)
    precision = np.array(formula.precision)
    fixed = formula.fixed(logits)

    def value_and_gradient(theta):
        curve = columns @ theta + fixed
        away = precision * (theta - formula.centre)
        prior = 0.5 * away @ (theta - formula.centre) / weights.sum()
        loss = log_loss(curve, labels, weights) + prior
        gradient = columns.T @ (weights * (sigmoid(curve) - labels)) + away
        return loss, gradient / weights.sum()

    bounds = [(formula.lowest if has_prior else None, None) for has_prior in precision]
    options = {"ftol": 0.0, "gtol": 1e-12, "maxiter": 2000}
    start = np.full(len(precision), 0.5 if layer_class in SLOPES else 0.0)
    best = scipy.optimize.minimize(
        value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x
    loss = log_loss(columns @ best + fixed, labels, weights)
    received = log_loss(columns @ parameters_of(layer) + fixed, labels, weights)
    assert received == pytest.approx(loss, abs=2e-9)
    # The figure itself rests on bins, within which a curve is taken as a line.
    assert summary.log_loss_in_sample == pytest.approx(loss, abs=1e-7)
    assert summary.log_loss_before == pytest.approx(log_loss(logits, labels, weights), abs=1e-7)
    assert summary.converged
    assert summary.num_rows == np.count_nonzero(weights)
    np.testing.assert_allclose(parameters_of(layer), best, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("layer_class", SLOPES)
def test_a_ranking_turned_round_gives_the_smallest_scale_and_a_warning(layer_class):
    logits, labels = rows_of(parameters=(-1.0, -1.0, 0.0))
    layer = layer_class()
    with pytest.warns(UserWarning, match=f"{layer_class.__name__}.*not above 0"):
        summary = layer.fit(logits, labels)
    assert summary.converged
    scale, *_ = parameters_of(layer)
    assert 0 < scale < 1e-5
    received = np.asarray(layer(np.float32([-10, 10])))
    assert received[0] < received[1]
    if layer_class is layers.PlattScaling:
        # A slope at its bound is taken as known by an interval.
        rate = labels.mean()
        expected = 1 / np.sqrt(len(labels) * rate * (1 - rate))
        np.testing.assert_allclose(layer.logit_standard_deviation(logits), expected, rtol=1e-3)


@pytest.mark.parametrize("layer_class", [layers.PlattScaling, layers.TemperatureScaling])
@pytest.mark.parametrize("threshold", [0.0, 0.004])
def test_separated_classes_are_refused_and_nothing_is_changed(layer_class, threshold):
    logits = np.linspace(-3, 3, 1000)
    layer = layer_class()
    layer.fit(*rows_of())
    before = parameters_of(layer)
    with pytest.raises(ValueError, match=r"infinite.*ILPS"):
        layer.fit(logits, logits > (0.0 if layer_class is layers.TemperatureScaling else threshold))
    np.testing.assert_array_equal(parameters_of(layer), before)


@pytest.mark.parametrize("num_positives", [1, 2, 500])
def test_the_prior_of_beta_calibration_keeps_separated_classes_finite(num_positives):
    layer = layers.BetaCalibration()
    summary = layer.fit(np.linspace(-3, 3, 1000), np.arange(1000) >= 1000 - num_positives)
    assert summary.converged
    assert 0 < summary.log_loss_in_sample < summary.log_loss_before
    assert np.abs(parameters_of(layer)).max() < 100


def test_where_no_logit_is_near_zero_beta_calibration_is_platt_scaling():
    logits, labels = rows_of((0.8, 0.8, 9.0), mean=-14, spread=1, num_rows=10_000)
    beta, platt = layers.BetaCalibration(), layers.PlattScaling()
    beta.fit(logits, labels)
    platt.fit(logits, labels)
    assert beta.slope_above == pytest.approx(1, abs=0.2)
    assert beta.slope_below == pytest.approx(platt.scale, abs=1e-3)
