"""FieldBias, against the optimum that SciPy finds in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit as sigmoid

from backends import examples
from keras_calibration._solvers.field_offsets import OffsetRows, fit_field_offsets
from keras_calibration._solvers.field_spreads import half_cauchy
from keras_calibration.layers import FieldBias


def made_clicks(num_rows=20_000, num_values=50, deviation=0.5, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1, num_rows)
    offsets = generator.normal(0, deviation, num_values)
    site = generator.integers(0, num_values, num_rows)
    labels = generator.random(num_rows) < sigmoid(0.8 * logits + 0.3 + offsets[site])
    return logits, site, labels.astype(float), offsets


@pytest.mark.parametrize("weighted", [False, True])
def test_finds_the_optimum(weighted):
    logits, site, labels, _ = made_clicks(3000, 8)
    device = np.arange(3000) % 5
    weights = np.random.default_rng(1).choice([0.0, 0.5, 3.0], 3000) if weighted else np.ones(3000)
    rows = OffsetRows(logits, labels, weights if weighted else None, ids=[site, device])
    fit = fit_field_offsets(rows, [8, 5], half_cauchy(1.0))
    assert fit.converged

    def objective(parameters):
        slope, bias, u, v = np.split(parameters, [1, 2, 10])
        curve = slope * logits + bias + u[site] + v[device]
        loss = weights @ (np.logaddexp(0, curve) - labels * curve)
        priors = u @ u / fit.spreads.deviations[0] ** 2 + v @ v / fit.spreads.deviations[1] ** 2
        return loss + 0.5 * priors + 0.5e-3 * (slope[0] - 1) ** 2

    fitted = np.concatenate([[fit.slope, fit.bias], *fit.offsets])
    best = minimize(objective, fitted, method="BFGS", options={"gtol": 1e-6})
    assert objective(fitted) <= best.fun + 1e-6
    np.testing.assert_allclose(fitted, best.x, atol=1e-4)
    curve = fit.slope * logits + fit.bias + fit.offsets[0][site] + fit.offsets[1][device]
    loss = np.average(np.logaddexp(0, curve) - labels * curve, weights=weights)
    np.testing.assert_allclose(fit.log_loss, loss, rtol=1e-12)


def test_spread_is_the_mode_of_the_marginal_likelihood():
    logits, site, labels, _ = made_clicks(4000, 40)
    fit = fit_field_offsets(OffsetRows(logits, labels, None, ids=[site]), [40], half_cauchy(1.0))
    line = fit.slope * logits + fit.bias
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(41)
    onehot = np.eye(40)[site]

    def log_marginal(deviation):
        """By quadrature, a and c held."""
        curves = line[:, None] + deviation * nodes
        by_value = -onehot.T @ (np.logaddexp(0, curves) - labels[:, None] * curves)
        prior = np.log(2 / np.pi / (1 + deviation**2))
        return np.logaddexp.reduce(by_value + np.log(node_weights), axis=1).sum() + prior

    grid = np.geomspace(0.25, 1, 40)
    best = grid[np.argmax([log_marginal(deviation) for deviation in grid])]
    assert abs(fit.spreads.deviations[0] / best - 1) < 0.1


def test_effects_are_the_offsets_of_each_row():
    logits, site, labels, _ = made_clicks(2000, 10)
    device = np.arange(2000) % 3
    head = FieldBias({"site": 10, "device": 3})
    head.fit(logits, labels, {"site": site, "device": device})
    features = {"site": np.array([4, 10, -1]), "device": np.array([2, 0, 7])}
    received = np.asarray(head.effects(features))
    u, v = head.get_offsets("site"), head.get_offsets("device")
    np.testing.assert_array_equal(received, [[u[4], v[2]], [0, v[0]], [0, 0]])
    others = np.asarray(head(np.zeros(3), features))[:, 0] - received.sum(axis=1)
    np.testing.assert_allclose(others, others[0], atol=1e-6)
    assert not np.asarray(FieldBias({"site": 10}).effects({"site": [4]})).any()


def test_fields_that_always_coincide_say_what_one_of_them_says():
    generator = np.random.default_rng(0)
    site = generator.choice(200, 20_000, p=generator.dirichlet(np.full(200, 0.3)))
    logits = generator.normal(-1, 1, 20_000)
    true = logits + generator.normal(0, 1, 200)[site]
    labels = (generator.random(20_000) < sigmoid(true)).astype(float)
    both, alone = FieldBias({"site": 200, "page": 205}), FieldBias({"site": 200})
    features = {"site": site, "page": 199 - site}
    with pytest.warns(UserWarning, match="'site'.*'page'.*Leave one"):
        both.fit(logits, labels, features)
    alone.fit(logits, labels, features)
    np.testing.assert_allclose(both(logits, features), alone(logits, features), atol=0.03)
    for page in (site // 2, np.where(np.arange(20_000), site, 200), np.zeros(20_000, int)):
        both.fit(logits, labels, {**features, "page": page})  # a warning is an error here


@settings(max_examples=examples(40))
@given(st.data())
def test_few_clicks(data):
    num_rows = data.draw(st.integers(2, 30))
    numbers = st.lists(st.integers(0, 4), min_size=num_rows, max_size=num_rows)
    logits = np.array(data.draw(numbers)) * data.draw(st.sampled_from([0.0, 1.0, 10.0])) - 2.0
    labels, site = np.zeros(num_rows), np.array(data.draw(numbers))
    labels[: data.draw(st.integers(1, min(2, num_rows - 1)))] = 1
    weights = np.array(data.draw(numbers), float)
    weights[[0, -1]] = 1
    fit = fit_field_offsets(OffsetRows(logits, labels, weights, ids=[site]), [4], half_cauchy(1.0))
    assert fit.slope > 0
    assert np.isfinite(fit.bias)
    assert fit.converged
    assert np.all(np.isfinite(fit.offsets[0]))
    assert 1e-3 <= fit.spreads.deviations[0] <= 10
    # An id with no weight, and none of all, changes nothing.
    offsets = fit.offsets[0][np.bincount(site, weights, 5)[:4] == 0]
    np.testing.assert_allclose(offsets, 0, atol=1e-12)
