"""BiasCorrection, TemperatureScaling and PlattScaling: exact fits of a straight line."""

import keras
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import HOSTILE_ROWS
from keras_calibration.layers import BiasCorrection, PlattScaling, TemperatureScaling

LAYERS = [BiasCorrection, TemperatureScaling, PlattScaling]


def sigmoid(logits):
    return 0.5 * (1 + np.tanh(0.5 * logits))


def rows_of(scale=0.7, bias=-1.0, num_rows=20_000, spread=1.5, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, spread, num_rows)
    labels = generator.random(num_rows) < sigmoid(scale * logits + bias)
    return logits, labels.astype(float)


def line_of(layer):
    """Scale and bias of any of the layers."""
    if isinstance(layer, TemperatureScaling):
        return 1 / layer.temperature, 0.0
    return getattr(layer, "scale", 1.0), layer.bias


def best_line(layer, logits, labels, weights):
    """The line of lowest log loss that the layer allows and that loss, by a general method."""
    free = {BiasCorrection: (0, 1), TemperatureScaling: (1, 0), PlattScaling: (1, 1)}[type(layer)]

    def value_and_gradient(theta):
        curve = (theta[0] if free[0] else 1.0) * logits + (theta[1] if free[1] else 0.0)
        residual = weights * (sigmoid(curve) - labels)
        value = np.average(np.logaddexp(0, curve) - labels * curve, weights=weights)
        gradient = np.array([residual @ logits, residual.sum()]) / weights.sum()
        return value, gradient * free

    options = {"gtol": 1e-11, "maxiter": 1000}
    found = scipy.optimize.minimize(
        value_and_gradient, [0.5, 0.0], jac=True, method="BFGS", options=options
    )
    return (found.x[0] if free[0] else 1.0, found.x[1] if free[1] else 0.0), found.fun


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.parametrize("form", ["ordinary", "weighted", "rare", "wide"])
def test_fit_is_the_optimum_on_the_rows(layer_class, form):
    logits, labels = rows_of(
        bias=-5.0 if form == "rare" else -0.3,
        scale=0.05 if form == "wide" else 0.7,
        spread=40 if form == "wide" else 1.5,
    )
    weights = np.ones(len(logits))
    if form == "weighted":
        weights = np.random.default_rng(1).choice([0.0, 0.5, 3.0], len(logits))
        labels = 0.9 * labels + 0.02  # soft, too
    layer = layer_class()
    summary = layer.fit(logits, labels, sample_weight=weights if form == "weighted" else None)
    (scale, bias), loss = best_line(layer, logits, labels, weights)
    assert summary.log_loss_after == pytest.approx(loss, abs=1e-7 if form == "wide" else 1e-8)
    np.testing.assert_allclose(line_of(layer), (scale, bias), rtol=2e-4, atol=2e-4)
    before = np.average(np.logaddexp(0, logits) - labels * logits, weights=weights)
    assert summary.log_loss_before == pytest.approx(before, abs=1e-7)
    assert summary.converged
    assert summary.num_rows == np.count_nonzero(weights)
    assert str(summary).startswith(f"{summary.num_rows:,} rows: log loss ")


# Where no finite line is best


@pytest.mark.parametrize("layer_class", [PlattScaling, TemperatureScaling])
def test_a_ranking_turned_round_gives_the_smallest_scale_and_a_warning(layer_class):
    logits, labels = rows_of(scale=-1.0, bias=0.0)
    layer = layer_class()
    with pytest.warns(UserWarning, match=f"{layer_class.__name__}.*not above 0"):
        summary = layer.fit(logits, labels)
    scale, bias = line_of(layer)
    assert 0 < scale < 1e-5
    if layer_class is PlattScaling:
        assert sigmoid(bias) == pytest.approx(labels.mean(), rel=1e-4)
    assert summary.converged
    received = keras.ops.convert_to_numpy(layer(np.float32([-10, 10])))
    assert received[0] < received[1]


@pytest.mark.parametrize("layer_class", [PlattScaling, TemperatureScaling])
@pytest.mark.parametrize("threshold", [0.0, 0.004])
def test_separated_classes_are_refused_and_nothing_is_changed(layer_class, threshold):
    logits = np.linspace(-3, 3, 1000)
    layer = layer_class()
    layer.fit(*rows_of())
    before = line_of(layer)
    with pytest.raises(ValueError, match=r"best scale is too large or infinite.*separates.*ILPS"):
        layer.fit(logits, logits > (0.0 if layer_class is TemperatureScaling else threshold))
    assert line_of(layer) == before


@settings(max_examples=60)
@given(
    st.sampled_from(LAYERS),
    HOSTILE_ROWS,
)
@pytest.mark.filterwarnings("ignore:.*the best scale:UserWarning")
@pytest.mark.filterwarnings("ignore:The sample weights:UserWarning")
def test_any_rows_are_fitted_or_refused(layer_class, rows):
    logits, labels, weights = map(np.array, zip(*rows, strict=True))
    layer = layer_class()
    try:
        summary = layer.fit(logits, labels, sample_weight=weights)
    except ValueError as error:
        summary, refusal = None, str(error)
    scale, bias = line_of(layer)
    if summary is None:
        reasons = ("one class", "All sample weights", "too large or infinite")
        assert any(reason in refusal for reason in reasons)
        assert (scale, bias) == (1, 0)
        return
    assert 0 < scale < np.inf
    assert np.isfinite(bias)
    assert np.isfinite([summary.log_loss_before, summary.log_loss_after]).all()
    assert summary.log_loss_after <= summary.log_loss_before * (1 + 1e-9) + 1e-9
