"""QuadraticScaling: the exact fit of the curve whose slope changes over the range of the logits."""

import keras
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings

from backends import HOSTILE_ROWS, examples
from keras_calibration.layers import PlattScaling, QuadraticScaling


def log_loss(calibrated, labels, weights=None):
    losses = np.logaddexp(0.0, calibrated) - labels * calibrated
    return np.average(losses, weights=weights)


def curve(parameters, logits, ends):
    """Integrates the slope from 0, piece by piece."""
    low, high, bias = parameters
    start, end = ends

    def from_start(values):
        inside = np.clip(values, start, end) - start
        parabola = low * inside + (high - low) * inside**2 / (2 * (end - start))
        return parabola + low * np.minimum(values - start, 0) + high * np.maximum(values - end, 0)

    return bias + from_start(logits) - from_start(0.0)


def parameters_of(layer):
    return np.array([layer.slope_low, layer.slope_high, layer.bias])


def rows_of(line=1.1, square=0.05, mean=-2.0, spread=1.5, num_rows=20_000, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(mean, spread, num_rows)
    true = line * logits + square * logits**2 - 0.5
    return logits, (generator.random(num_rows) < 1 / (1 + np.exp(-true))).astype(float)


def best_parameters(logits, labels, weights, ends):
    """The minimum over the rows themselves, prior included, by a general method."""

    def value_and_gradient(parameters):
        calibrated = curve(parameters, logits, ends)
        columns = [curve(unit, logits, ends) for unit in np.eye(3)]
        residual = weights * (0.5 * (1 + np.tanh(0.5 * calibrated)) - labels)
        away = np.array([parameters[0] - 1, parameters[1] - 1, 0.0])
        value = log_loss(calibrated, labels, weights) + 0.05 * away @ away / weights.sum()
        return value, (np.array(columns) @ residual + 0.1 * away) / weights.sum()

    return scipy.optimize.minimize(
        value_and_gradient,
        [0.7, 0.7, 0.0],
        jac=True,
        method="L-BFGS-B",
        bounds=[(1e-6, None), (1e-6, None), (None, None)],
        options={"ftol": 0.0, "gtol": 1e-12, "maxiter": 2000},
    ).x


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"mean": 1.0, "square": -0.1, "line": 1.5},
        {"square": 0.3},  # falls at the low end: the slope there ends at its bound
        {"mean": 0.0, "spread": 30.0, "line": 0.05, "square": 0.0002},
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_fit_is_the_optimum_on_the_rows(form, weighted):
    logits, labels = rows_of(**form)
    weights = np.ones(len(logits))
    if weighted:
        weights = np.random.default_rng(1).choice([0.0, 0.5, 3.0], len(logits))
        labels = 0.9 * labels + 0.02  # soft, too
    layer = QuadraticScaling()
    summary = layer.fit(logits, labels, sample_weight=weights if weighted else None)
    ends = layer.logit_range
    best = best_parameters(logits, labels, weights, ends)
    loss = log_loss(curve(best, logits, ends), labels, weights)
    received = log_loss(curve(parameters_of(layer), logits, ends), labels, weights)
    assert received == pytest.approx(loss, abs=2e-9)
    assert summary.log_loss_after == pytest.approx(loss, abs=1e-7)
    assert summary.converged
    np.testing.assert_allclose(parameters_of(layer), best, rtol=1e-3, atol=2e-4)
    of_layer = keras.ops.convert_to_numpy(layer(logits.astype(np.float32)))
    np.testing.assert_allclose(of_layer, curve(best, logits, ends), rtol=2e-3, atol=2e-3)


def test_a_parabola_is_found_and_nothing_else_gets_as_near():
    logits, labels = rows_of(num_rows=200_000)
    quadratic, platt = QuadraticScaling(), PlattScaling()
    quadratic.fit(logits, labels)
    platt.fit(logits, labels)
    grid = np.linspace(-6, 2, 50, dtype=np.float32)
    true = 1.1 * grid + 0.05 * grid**2 - 0.5

    def error_of(layer):
        return np.abs(keras.ops.convert_to_numpy(layer(grid)) - true).max()

    assert error_of(quadratic) < 0.1 < error_of(platt)


def test_starts_as_the_identity_and_keeps_infinity():
    layer = QuadraticScaling()
    grid = np.linspace(-20, 20, 31, dtype=np.float32)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(grid)), grid, rtol=1e-6, atol=1e-6)
    layer.fit(*rows_of())
    for scale in (0.0, -1e4):
        for weight in layer.weights[:2]:
            weight.assign(scale)  # the slopes underflow
        ends = keras.ops.convert_to_numpy(layer(np.float32([-np.inf, np.inf, np.nan])))
        np.testing.assert_array_equal(ends, [-np.inf, np.inf, np.nan])


def test_one_wild_logit_does_not_stretch_the_range():
    logits, labels = rows_of()
    layer = QuadraticScaling()
    layer.fit(np.append(logits, [16e3, -16e3]), np.append(labels, [1, 0]))
    start, end = layer.logit_range
    assert -8 < start < end < 4
    without = QuadraticScaling()
    without.fit(logits, labels)
    np.testing.assert_allclose(parameters_of(layer), parameters_of(without), atol=0.02)


def test_a_ranking_turned_round_gives_the_smallest_slopes_and_a_warning():
    logits, labels = rows_of(line=-1.0, square=0.0)
    layer = QuadraticScaling()
    with pytest.warns(UserWarning, match=r"QuadraticScaling.*not above 0"):
        layer.fit(logits, labels)
    np.testing.assert_allclose(parameters_of(layer)[:2], 1e-6, rtol=1e-4)


@settings(max_examples=examples(60))
@given(HOSTILE_ROWS)
@pytest.mark.filterwarnings("ignore:.*the best scale:UserWarning")
def test_any_rows_are_fitted_or_refused(rows):
    logits, labels, weights = map(np.array, zip(*rows, strict=True))
    layer = QuadraticScaling()
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
    grid = np.sort(np.append(logits, np.linspace(-50, 50, 101))).astype(np.float32)
    steps = np.diff(keras.ops.convert_to_numpy(layer(grid)))
    assert (steps >= -1e-5 * np.abs(grid[1:])).all()
