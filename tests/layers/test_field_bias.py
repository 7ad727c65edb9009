"""FieldBias, against the optimum that SciPy finds in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


@pytest.mark.filterwarnings("ignore:Fields have values")
def test_a_slope_at_its_bound_does_not_stop_the_offsets():
    """The higher the score, the fewer positives: the best slope is 0, and offsets do the rest."""
    logits = 10.0 * np.array([0, 2, 4, 4, 0, 0, 2]) - 2
    features = {"site": np.array([1, 0, 2, 0, 4, 0, 0]), "device": np.zeros(7, int)}
    counts = np.array([4, 2, 4, 2, 1, 1, 1])
    labels = np.array([1, 0, 0, 0, 0, 0, 0])
    # One more positive row, of the site 0.
    features = {name: np.append(column, 0) for name, column in features.items()}
    rows = np.append(logits, -2.0), np.append(labels, 1), features, np.append(counts, 1)
    summary = FieldBias({"site": 4, "device": 3}).fit(*rows, weights_are="counts")
    assert summary.converged
    assert summary.num_iterations < 100


@pytest.mark.filterwarnings("ignore:On the rows of the fit, each value of the field")
@settings(max_examples=examples(40))
@given(st.data())
def test_few_clicks(data):
    num_rows = data.draw(st.integers(2, 30))
    numbers = st.lists(st.integers(0, 4), min_size=num_rows, max_size=num_rows)
    logits = np.array(data.draw(numbers)) * data.draw(st.sampled_from([0.0, 1.0, 10.0])) - 2.0
    labels, weights = np.zeros(num_rows), np.array(data.draw(numbers), float)
    labels[: data.draw(st.integers(1, min(2, num_rows - 1)))] = 1
    weights[[0, -1]] = 1
    features = {name: np.array(data.draw(numbers)) for name in ("site", "device")}
    head = FieldBias({"site": 4, "device": 3})
    assert head.fit(logits, labels, features, weights, weights_are="counts").converged
    assert float(head._slope) > 0
    assert np.isfinite(float(head._bias))
    deviations = np.asarray(head.logit_standard_deviation(logits, features))
    assert np.isfinite(deviations).all()
    assert (deviations > 0).all()
    for name, size in head.fields.items():
        assert np.isfinite(head.get_offsets(name)).all()
        assert 1e-3 <= head.get_deviations()[name] <= 10
        # An id with no weight changes nothing.
        absent = np.bincount(features[name], weights, 5)[:size] == 0
        np.testing.assert_allclose(head.get_offsets(name)[absent], 0, atol=1e-12)
