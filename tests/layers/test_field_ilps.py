"""FieldILPS, against the optimum that SciPy finds in float64."""

import keras
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit as sigmoid

from backends import compiled
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.field_offsets import fit_field_curves
from keras_calibration._solvers.field_spreads import half_cauchy
from keras_calibration.layers import ILPS, FieldBias, FieldILPS

KNOTS = np.array([-2.5, -1.0, 0.0, 1.5])


def log_loss(labels, logits):
    return np.mean(np.logaddexp(0, logits) - labels * logits)


def made_clicks(num_rows=20_000, num_values=40, deviation=0.5, slope_deviation=0.4, seed=0):
    """The lines of the values differ in level and slope."""
    truth = np.random.default_rng(1)
    offsets = truth.normal(0, deviation, num_values)
    slopes = 1 + truth.uniform(-1.7, 1.7, num_values) * slope_deviation
    generator = np.random.default_rng(seed)
    logits = generator.normal(-0.5, 1.2, num_rows)
    site = generator.integers(0, num_values, num_rows)
    labels = generator.random(num_rows) < sigmoid(slopes[site] * logits + offsets[site])
    return logits, site, labels.astype(float), slopes


def hats(logits, knots):
    """Rows of a matrix that maps values at the knots to the curve: linear, the ends go on."""
    matrix = np.zeros((len(logits), len(knots)))
    for row, logit in enumerate(logits):
        k = min(max(int(np.sum(knots <= logit)) - 1, 0), len(knots) - 2)
        share = (logit - knots[k]) / (knots[k + 1] - knots[k])
        matrix[row, [k, k + 1]] = 1 - share, share
    return matrix


def polynomials(knots):
    """Orthonormal on the knots, by Gram and Schmidt."""
    columns = []
    for degree in range(len(knots)):
        column = (knots - knots.mean()) ** degree
        for earlier in columns:
            column = column - np.mean(column * earlier) * earlier
        columns.append(column / np.sqrt(np.mean(column**2)))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("weighted", [False, True])
def test_finds_the_optimum(weighted):
    logits, site, labels, _ = made_clicks(3000, 6, slope_deviation=0.2)
    device = np.arange(3000) % 3
    weights = np.random.default_rng(1).choice([0.0, 0.5, 3.0], 3000) if weighted else np.ones(3000)
    rows = Rows(logits, labels, weights if weighted else None)
    fit = fit_field_curves(rows, KNOTS, [site, device], [6, 3], half_cauchy(1.0))
    assert fit.converged
    to_rows, to_knots = hats(logits, KNOTS), polynomials(KNOTS)
    design = np.concatenate(
        [
            to_rows @ to_knots,
            *(
                np.einsum("nv,nk->nvk", np.eye(len(values))[ids], to_rows @ to_knots).reshape(
                    3000, -1
                )
                for ids, values in zip([site, device], fit.deviations, strict=True)
            ),
        ],
        axis=1,
    )
    value_precision = fit.scales[:, [0, 1, 2, 2]] ** -2.0
    unit = KNOTS.std()
    precision = np.r_[
        0, 1e-3 / unit**2, 1, 1, np.tile(value_precision[0], 6), np.tile(value_precision[1], 3)
    ]
    centre = np.zeros(len(precision))
    centre[:2] = KNOTS.mean(), unit

    def objective(parameters):
        curve, away = design @ parameters, parameters - centre
        loss = weights @ (np.logaddexp(0, curve) - labels * curve)
        slope = design.T @ (weights * (sigmoid(curve) - labels)) + precision * away
        return loss + 0.5 * precision @ away**2, slope

    coefficients = [curves @ to_knots / 4 for curves in (fit.values, *fit.deviations)]
    fitted = np.concatenate([part.reshape(-1) for part in coefficients])
    best = minimize(objective, fitted, jac=True, method="BFGS", options={"gtol": 1e-7})
    assert objective(fitted)[0] <= best.fun + 1e-6
    np.testing.assert_allclose(fitted, best.x, atol=1e-4)
    curve = design @ fitted
    loss = np.average(np.logaddexp(0, curve) - labels * curve, weights=weights)
    np.testing.assert_allclose(fit.log_loss, loss, rtol=1e-12)


def test_spreads_are_learnt():
    logits, site, labels, slopes = made_clicks()
    features = {"site": site, "nothing": np.arange(len(logits)) % 7}
    head, offsets = FieldILPS({"site": 40, "nothing": 7}), FieldBias({"site": 40, "nothing": 7})
    assert head.fit(logits, labels, features).converged
    offsets.fit(logits, labels, features)
    (level, slope, bend), of_nothing = np.asarray(head._deviations)
    assert 0.35 < level < 0.8
    assert 0.25 < slope / head.get_knots().std() < 0.6
    assert bend < 0.1
    assert max(of_nothing) < 0.1
    assert head.get_deviations()["site"] == level
    rises = np.diff(head.get_curves("site")[:, [0, -1]])[:, 0]
    assert np.corrcoef(rises, slopes)[0, 1] > 0.9
    levels = head.get_offsets("site")
    expected = (head.get_curves("site") - head.get_values()).mean(axis=1)
    np.testing.assert_allclose(levels, expected, atol=1e-6)
    # What the curves say of new rows is better than what offsets say.
    logits, site, labels, _ = made_clicks(seed=2)
    features = {"site": site, "nothing": features["nothing"]}
    losses = [log_loss(labels, np.asarray(h(logits, features))[:, 0]) for h in (head, offsets)]
    assert losses[0] < losses[1] - 1e-3


def test_curves_of_two_knots_have_levels_and_slopes_but_no_bends():
    logits, site, labels, slopes = made_clicks(4000)
    head = FieldILPS({"site": 40}, num_knots=2)
    head.fit(logits, labels, {"site": site})
    ((level, slope, bend),) = np.asarray(head._deviations)
    assert level > 0.2
    assert slope > 0.1
    assert bend == 0
    rises = np.diff(head.get_curves("site"))[:, 0]
    assert np.corrcoef(rises, slopes)[0, 1] > 0.7


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("trained", [False, True])
def test_every_curve_rises(trained):
    logits, site, labels, _ = made_clicks(6000, 5)
    device = np.arange(6000) % 5
    falls = (site == 2) ^ (device == 1)
    labels = np.where(falls, np.random.default_rng(3).random(6000) < sigmoid(-logits), labels)
    head = FieldILPS({"site": 5, "device": 5}, ILPS(monotonic="strict"))
    assert head.fit(logits, labels, {"site": site, "device": device}).converged
    if trained:
        noise = np.random.default_rng(4)
        for weight in (head._values, head._field_deviations):
            value = keras.ops.convert_to_numpy(weight)
            weight.assign(value + noise.normal(0, 2, value.shape))
        head.finalize()
    grid = np.sort(np.random.default_rng(5).normal(0, 5, 20_000)).astype("float32")
    call = compiled(lambda *tensors: head(tensors[0], {"site": tensors[1], "device": tensors[2]}))
    for i in range(1, 6, 2):
        for j in range(1, 6, 2):
            ids = [np.full(20_000, i, "int32"), np.full(20_000, j, "int32")]
            for run in (call, lambda *g: head(g[0], {"site": g[1], "device": g[2]})):
                curve = np.asarray(run(*map(keras.ops.convert_to_tensor, [grid, *ids])))[:, 0]
                assert np.all(np.diff(curve) >= 0)
                assert trained or curve[-1] > curve[0]


def test_a_value_that_would_fall_keeps_its_level():
    logits, site, labels, _ = made_clicks(8000, 4, deviation=0.0, slope_deviation=0.0)
    generator = np.random.default_rng(3)
    labels = np.where(site == 1, generator.random(8000) < sigmoid(1 - logits), labels)
    head = FieldILPS({"site": 4}, num_knots=3)
    head.fit(logits, labels, {"site": site})
    rises = np.diff(head.get_curves("site")) / np.diff(head.get_knots())
    shared_slopes = np.diff(head.get_values()) / np.diff(head.get_knots())
    assert np.all(rises >= 0.0099 * shared_slopes)
    assert rises[1].max() < 0.5 * shared_slopes.min()
    predicted = sigmoid(np.asarray(head(logits, {"site": site}))[:, 0])
    assert abs(np.mean((predicted - labels)[site == 1])) < 0.01


def test_flat_ends_continue_to_infinity():
    # The curve of the first value is flat at both ends, that of the second rises.
    head = FieldILPS({"site": 2})
    head.build()
    head._values.assign([-1.0, -1.0, 0.5, 0.5])
    head._field_deviations.assign(np.r_[np.zeros(4), -3.0, -1.0, 1.0, 3.0, np.zeros(4)])
    logits = np.float32([-np.inf, -3e38, np.nan, 3e38, np.inf])
    flat, rising = (np.asarray(head(logits, {"site": np.full(5, i)}))[:, 0] for i in (0, 1))
    np.testing.assert_array_equal(flat, [-1, -1, np.nan, 0.5, 0.5])
    np.testing.assert_array_equal(rising, [-np.inf, rising[1], np.nan, rising[3], np.inf])
