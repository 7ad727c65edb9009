"""The direct fit of ILPS: exact, strictly increasing, sane with few clicks."""

import keras
import numpy as np
import pytest
import scipy.optimize
from scipy.special import expit as sigmoid

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.reference_line import reference_line
from keras_calibration.layers import ILPS


def rows_of(curve, num_rows, seed=0, click_logit=-3.0, dtype=np.float64):
    generator = np.random.default_rng(seed)
    logits = generator.normal(click_logit, 1.5, num_rows).astype(dtype)
    labels = generator.random(num_rows) < sigmoid(curve(logits))
    return logits, labels.astype(dtype)


def kinked(logits):
    return np.interp(logits, [-12, -4, -2.5, 9], [-13, -5, -4.7, 7])


def turned(logits):
    return np.interp(logits, [-9, -4, -2, 3], [-5, -1, -4, 1])


def falling(logits):
    return -logits - 5


def curve_at(logits, knots, values, constant=False):
    """The curve on rows, in float64."""
    logits = np.clip(logits, knots[0], knots[-1]) if constant else logits
    segment = np.clip(np.searchsorted(knots, logits, side="right") - 1, 0, len(knots) - 2)
    slopes = np.diff(values) / np.diff(knots)
    return values[segment] + slopes[segment] * (logits - knots[segment])


def objective(values, knots, logits, labels, weights, smoothness, constant, unit=1.0):
    """What the fit minimises, on the rows, over the sum of the weights; slopes by `unit`."""
    curve = curve_at(logits, knots, values, constant)
    slopes = np.diff(values) / np.diff(knots) / unit
    loss = np.sum(weights * (np.logaddexp(0, curve) - labels * curve))
    prior = smoothness / 2 * np.sum(np.diff(slopes) ** 2) + 0.05 * np.mean((slopes - 1) ** 2)
    return (loss + prior) / weights.sum()


def reference(knots, logits, labels, weights, smoothness, constant, unit=1.0):
    """The lowest objective over level and slopes, by a general method on the rows."""
    knots, logits = unit * knots, unit * logits
    gaps = np.diff(knots)
    held = np.clip(logits, knots[0], knots[-1]) if constant else logits
    design = np.clip(held[:, None] - knots[:-1], 0, gaps)
    design[:, 0] = np.minimum(held - knots[0], gaps[0])
    design[:, -1] = np.maximum(held - knots[-2], 0 if len(gaps) > 1 else -np.inf)
    middle = len(gaps) // 2
    design = np.c_[np.ones(len(logits)), design]
    design[:, 1 : middle + 1] -= gaps[:middle]  # about the middle, for the method's sake
    total = weights.sum()

    def value_and_gradient(theta):
        curve, slopes = design @ theta, theta[1:]
        loss = weights @ (np.logaddexp(0, curve) - labels * curve)
        prior = smoothness / 2 * np.sum(np.diff(slopes) ** 2) + 0.05 * np.mean((slopes - 1) ** 2)
        gradient = design.T @ (weights * (sigmoid(curve) - labels))
        change = np.r_[0, np.diff(slopes), 0]
        gradient[1:] += smoothness * (change[:-1] - change[1:])
        gradient[1:] += 0.1 * (slopes - 1) / len(slopes)
        return (loss + prior) / total, gradient / total

    solution = scipy.optimize.minimize(
        value_and_gradient,
        np.r_[knots[middle], np.ones(len(gaps))],
        jac=True,
        method="L-BFGS-B",
        bounds=[(None, None)] + [(1e-6, None)] * len(gaps),
        options={"ftol": 1e-16, "gtol": 1e-11, "maxiter": 20000, "maxfun": 40000, "maxcor": 60},
    )
    return solution.fun


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("smoothness", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("form", ["balanced", "quantile", "constant", "falling", "weighted"])
def test_fit_is_the_optimum_on_the_rows(form, smoothness):
    logits, labels = rows_of(kinked, 20_000)
    weights = np.ones(len(logits))
    if form == "falling":  # in the middle, so that the bound on the slopes holds some of them
        logits, labels = rows_of(turned, 20_000)
    if form == "weighted":
        weights = np.random.default_rng(1).choice([0.0, 1.0, 3.0], len(logits))
        labels = 0.9 * labels + 0.02  # soft, too
    layer = ILPS(
        12,
        "quantile" if form == "quantile" else "balanced",
        "constant" if form == "constant" else "linear",
        smoothness=smoothness,
        dtype="float64" if keras.backend.backend() == "tensorflow" else None,
    )
    summary = layer.fit(
        logits, labels, sample_weight=weights if form == "weighted" else None, weights_are="counts"
    )
    knots, values = layer.get_knots().astype(float), layer.get_values().astype(float)
    rows = logits, labels, weights, smoothness, form == "constant"
    unit = reference_line(Rows(logits, labels, weights)).scale
    # In float32, values that are equal at the optimum rise by a rounding each.
    tolerance = 1e-8 if keras.backend.backend() == "tensorflow" else 1e-7
    assert objective(values, knots, *rows, unit) <= reference(knots, *rows, unit) + tolerance
    curve = curve_at(logits, knots, values, form == "constant")
    loss = np.average(np.logaddexp(0, curve) - labels * curve, weights=weights)
    before = np.average(np.logaddexp(0, logits) - labels * logits, weights=weights)
    assert summary.log_loss_in_sample == pytest.approx(loss, abs=2 * tolerance)
    assert summary.log_loss_before == pytest.approx(before, abs=1e-8)
    assert summary.num_rows == weights.sum()
    assert summary.converged
    assert 0 < summary.num_iterations < 40
    assert (np.diff(values) > 0).all()
    if form == "falling":
        assert np.diff(values).min() < 2e-6  # a slope at its bound


@pytest.mark.parametrize("arguments", [{"knots": [-6.1, -3.3, -2.2, 0.7]}, {"knots": "sigmoid"}])
def test_knots_that_are_not_on_edges_lose_next_to_nothing(arguments):
    logits, labels = rows_of(kinked, 50_000)
    layer = ILPS(9, **arguments)
    summary = layer.fit(logits, labels)
    knots, values = layer.get_knots().astype(float), layer.get_values().astype(float)
    rows = logits, labels, np.ones(len(logits)), 1.0, False
    assert objective(values, knots, *rows) <= reference(knots, *rows) + 1e-8
    curve = curve_at(logits, knots, values)
    loss = np.mean(np.logaddexp(0, curve) - labels * curve)
    assert summary.log_loss_in_sample == pytest.approx(loss, abs=1e-6)


def test_auto_is_straight_where_the_truth_is_and_bends_where_it_bends():
    def excess(curve, smoothness):
        """Mean Kullback-Leibler divergence from the truth, over some samples."""
        excesses = []
        for seed in range(6):
            logits, labels = rows_of(curve, 20_000, seed)
            layer = ILPS(smoothness=smoothness)
            layer.fit(logits, labels)
            truth = curve(logits)
            fitted = curve_at(logits, layer.get_knots(), layer.get_values())
            click, none = sigmoid(truth), sigmoid(-truth)
            away = click * (np.logaddexp(0, -fitted) - np.logaddexp(0, -truth))
            away += none * (np.logaddexp(0, fitted) - np.logaddexp(0, truth))
            excesses.append(away.mean())
        return np.mean(excesses)

    def straight(logits):
        return 0.8 * logits - 0.4

    assert excess(straight, "auto") < 0.7 * excess(straight, 1.0)
    assert excess(kinked, "auto") < 0.5 * excess(kinked, 1e6)
    assert ILPS(smoothness="auto").get_config()["smoothness"] == "auto"


def assert_never_falls(function, low=-20.0, high=20.0):
    grid = np.sort(np.random.default_rng(0).uniform(low, high, 1_000_000).astype(np.float32))
    curve = keras.ops.convert_to_numpy(function(grid))
    assert curve.dtype == np.float32
    assert np.isfinite(curve).all()
    assert (np.diff(curve) >= 0).all()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("monotonic", ["penalty", "strict"])
@pytest.mark.parametrize("form", ["rising", "falling", "flat"])
def test_no_pair_of_sorted_logits_falls_after_fit_training_and_reload(form, monotonic, reload):
    curves = {"rising": kinked, "falling": falling, "flat": lambda logits: 0 * logits - 1}
    logits, labels = rows_of(curves[form], 5000, dtype=np.float32)
    layer = ILPS(40, monotonic=monotonic, smoothness=0.0)
    layer.fit(logits, labels)
    assert_never_falls(layer)
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(layer(inputs)))
    model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy")
    model.fit(logits, labels, batch_size=500, epochs=2, verbose=0)
    assert_never_falls(layer)
    assert_never_falls(reload(model).layers[1])


def test_a_threshold_that_separates_the_classes_gives_a_finite_slope():
    logits = np.linspace(-5, 1, 1000)
    for smoothness in (0.0, 1.0):
        layer = ILPS(smoothness=smoothness)
        assert layer.fit(logits, logits > -1.003).converged
        slopes = np.diff(layer.get_values()) / np.diff(layer.get_knots())
        assert slopes.max() < 150
