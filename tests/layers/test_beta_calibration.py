"""BetaCalibration: the exact fit of the curve with two slopes."""

import csv

import keras
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


def test_figures_of_real_rows(data_root):
    rows = np.load(data_root / "adult_49k" / "base_logits.npz")
    with (data_root / "peers.csv").open() as file:
        (peer,) = (
            row
            for row in csv.DictReader(file)
            if (row["dataset"], row["field"], row["method"])
            == ("adult_49k", str(rows["field_name"]), "beta")
        )
    layer = BetaCalibration()
    layer.fit(rows["dev_logit"], rows["dev_label"])
    calibrated = keras.ops.convert_to_numpy(layer(rows["test_logit"])).astype(np.float64)
    assert log_loss(calibrated, rows["test_label"]) == pytest.approx(
        float(peer["log_loss"]), abs=5e-6
    )
    probabilities = 1 / (1 + np.exp(-calibrated))
    assert probabilities.mean() == pytest.approx(float(peer["mean_p"]), abs=1e-4)


def test_starts_as_the_identity_and_keeps_shape_order_and_infinity():
    layer = BetaCalibration()
    grid = np.linspace(-20, 20, 31, dtype=np.float32)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(grid)), grid, rtol=1e-6, atol=1e-6)
    layer.fit(*rows_of())
    expected = curve(parameters_of(layer), grid.astype(np.float64))
    for shape in ((31,), (31, 1)):
        received = keras.ops.convert_to_numpy(layer(grid.reshape(shape)))
        np.testing.assert_allclose(received.reshape(-1), expected, rtol=1e-5, atol=1e-6)
        assert received.shape == shape
    sorted_logits = np.sort(np.random.default_rng(0).normal(0, 5, 100_000).astype(np.float32))
    neighbours = np.sort(np.r_[sorted_logits, np.nextafter(sorted_logits, np.float32(np.inf))])
    assert np.diff(keras.ops.convert_to_numpy(layer(neighbours))).min() >= 0
    for scale in (0.0, -1e4):
        for weight in layer.weights[:2]:
            weight.assign(scale)  # the slopes underflow
        ends = keras.ops.convert_to_numpy(layer(np.float32([-np.inf, np.inf, np.nan])))
        np.testing.assert_array_equal(ends, [-np.inf, np.inf, np.nan])
    with pytest.raises(ValueError, match=r"\(batch,\) or \(batch, 1\)"):
        layer(np.zeros((3, 2), np.float32))


def test_updates_add_up_and_survive_a_file(reload):
    logits, labels = rows_of()
    whole, parts = BetaCalibration(), BetaCalibration(name="beta", trainable=False)
    assert BetaCalibration.from_config(parts.get_config()).get_config() == parts.get_config()
    whole.fit(logits, labels)
    parts.fit(logits[:5000], labels[:5000])
    restored = reload(keras.Sequential([keras.Input((1,)), parts])).layers[0]
    assert parameters_of(restored) == parameters_of(parts)
    assert not restored.trainable
    restored.update(logits[5000:], labels[5000:])
    np.testing.assert_allclose(parameters_of(restored), parameters_of(whole), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_trains_by_gradient_to_the_fit():
    logits, labels = rows_of(parameters=(0.5, 1.5, -1.5), num_rows=4000)
    fitted, trained = BetaCalibration(), BetaCalibration()
    fitted.fit(logits, labels)
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(trained(inputs)))
    model.compile(keras.optimizers.Adam(0.03), "binary_crossentropy", jit_compile=True)
    model.fit(logits.astype(np.float32), labels, batch_size=400, epochs=20, verbose=0)
    received, best = (
        log_loss(curve(parameters_of(layer), logits), labels) for layer in (trained, fitted)
    )
    assert best <= received <= best + 0.005 < log_loss(logits, labels)


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
