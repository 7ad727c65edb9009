"""StructuredMatrixScaling: the penalised matrix after a temperature."""

import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import examples
from keras_calibration.layers import (
    StructuredMatrixScaling,
    TemperatureScaling,
    VectorScaling,
)


def rows_of(num_rows=4000, num_classes=4, width=2.0, mixing=0.1, seed=0):
    """Logits, and class numbers whose logits are those of all classes, mixed."""
    generator = np.random.default_rng(seed)
    logits = width * generator.normal(size=(num_rows, num_classes))
    mixed = 0.5 * np.eye(num_classes) + mixing * generator.normal(size=(num_classes, num_classes))
    return logits, (logits @ mixed.T + generator.gumbel(size=logits.shape)).argmax(axis=1)


def log_loss(logits, shares, weights):
    losses = scipy.special.logsumexp(logits, axis=1) - (shares * logits).sum(axis=1)
    return np.average(losses, weights=weights)


def penalty(theta):
    """The penalty of D, with b as its last column, by entries."""
    size = len(theta)
    return sum(
        (size * (size - 1) if k not in (j, size) else size) * theta[j, k] ** 2
        for j in range(size)
        for k in range(size + 1)
    )


def best(logits, shares, weights, temperature):
    """The minimum by a general method, and its calibrated logits."""
    size = logits.shape[1]
    z = scipy.special.log_softmax(logits / temperature, axis=1)
    columns = np.c_[z, np.ones(len(z))]
    factors = np.array(
        [[size * (size - 1) if k not in (j, size) else size for k in range(size + 1)]
         for j in range(size)]
    )  # fmt: skip

    def value_and_gradient(flat):
        theta = flat.reshape(size, size + 1)
        calibrated = z + columns @ theta.T
        residual = (weights / weights.sum())[:, None]
        residual = residual * (scipy.special.softmax(calibrated, axis=1) - shares)
        value = log_loss(calibrated, shares, weights) + penalty(theta) / weights.sum()
        return value, (residual.T @ columns + 2 * factors * theta / weights.sum()).ravel()

    found = scipy.optimize.minimize(
        value_and_gradient,
        np.zeros(size * (size + 1)),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 0.0, "gtol": 1e-9, "maxiter": 5000},
    )
    theta = found.x.reshape(size, size + 1)
    return found.fun, z + columns @ theta.T


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("form", ["numbers", "soft", "weighted", "wide", "few rows", "two classes"])
def test_fit_is_the_optimum_on_the_rows(form):
    logits, labels = rows_of(
        60 if form == "few rows" else 4000,
        2 if form == "two classes" else 4,
        40.0 if form == "wide" else 2.0,
    )
    shares, weights = np.eye(logits.shape[1])[labels], np.ones(len(labels))
    given_labels = labels
    if form == "soft":
        shares = given_labels = 0.9 * shares + 0.025
    if form == "weighted":
        weights = np.random.default_rng(1).choice([1.0, 3.0], len(labels))
    layer = StructuredMatrixScaling(logits.shape[1])
    summary = layer.fit(
        logits,
        given_labels,
        sample_weight=weights if form == "weighted" else None,
        weights_are="counts",
    )
    expected, calibrated = best(logits, shares, weights, layer.temperature)
    theta = np.c_[layer.matrix, layer.biases].astype(np.float64)
    z = scipy.special.log_softmax(logits / layer.temperature, axis=1)
    fitted = z + np.c_[z, np.ones(len(z))] @ theta.T
    received = log_loss(fitted, shares, weights) + penalty(theta) / weights.sum()
    assert received == pytest.approx(expected, abs=1e-8)
    assert summary.converged
    assert summary.log_loss_after == pytest.approx(log_loss(calibrated, shares, weights), abs=1e-7)
    layer_probabilities = scipy.special.softmax(keras.ops.convert_to_numpy(layer(logits)), axis=1)
    np.testing.assert_allclose(
        layer_probabilities, scipy.special.softmax(calibrated, axis=1), atol=2e-5
    )


def test_its_temperature_is_the_one_of_temperature_scaling():
    temperature, matrix = TemperatureScaling(), StructuredMatrixScaling(4)
    temperature.fit(*rows_of())
    matrix.fit(*rows_of())
    assert matrix.temperature == pytest.approx(temperature.temperature, rel=1e-6)


@pytest.mark.parametrize(("num_rows", "gain"), [(10_000, 0.02), (60, -0.01)])
def test_new_rows_gain_from_the_matrix_or_lose_nothing(num_rows, gain):
    """With classes that are mixed, against vector scaling; with few rows it does not overfit."""
    logits, labels = rows_of(20_000, 6)

    def loss_on_new_rows(layer):
        layer.fit(logits[:num_rows], labels[:num_rows])
        calibrated = keras.ops.convert_to_numpy(layer(logits[10_000:])).astype(np.float64)
        return log_loss(calibrated, np.eye(6)[labels[10_000:]], np.ones(10_000))

    assert loss_on_new_rows(StructuredMatrixScaling(6)) < loss_on_new_rows(VectorScaling(6)) - gain


def test_a_constant_added_to_a_row_changes_nothing():
    logits, labels = rows_of()
    layer, shifted = StructuredMatrixScaling(4), StructuredMatrixScaling(4)
    layer.fit(logits, labels)
    shifted.fit(logits + np.arange(len(logits))[:, None] % 7, labels)
    np.testing.assert_allclose(shifted.matrix, layer.matrix, atol=1e-5)
    received = keras.ops.softmax(layer(logits[:50] + 5.0))
    expected = keras.ops.softmax(layer(logits[:50]))
    np.testing.assert_allclose(received, expected, atol=1e-6)


def test_starts_as_the_identity_and_keeps_infinity():
    layer = StructuredMatrixScaling(4)
    logits = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(logits)), logits)
    layer.fit(*rows_of())
    ends = np.float32([[-np.inf, np.inf, np.inf, -np.inf]])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(ends)), ends)
    with pytest.raises(ValueError, match=r"\(batch, 4\).*\(3, 5\)"):
        layer(np.zeros((3, 5), np.float32))


def test_logits_that_mislead_give_the_largest_temperature_and_a_warning():
    logits = np.random.default_rng(0).normal(size=(500, 4))
    with pytest.warns(UserWarning, match=r"StructuredMatrixScaling.*order of the classes"):
        StructuredMatrixScaling(4).fit(logits, logits.argmin(axis=1))


@settings(max_examples=examples(40))
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.sampled_from([-1e30, -300.0, -2.0, 0.0, 0.3, 40.0, 1e30]),
                min_size=3,
                max_size=3,
            ),
            st.integers(0, 2),
            st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
        ),
        min_size=4,
        max_size=4,
    )
)
@pytest.mark.filterwarnings("ignore:.*the best 1 / T:UserWarning")
@pytest.mark.filterwarnings("ignore:The development set has no rows:UserWarning")
def test_any_rows_are_fitted_or_refused(rows):
    logits, labels, weights = map(np.array, zip(*rows, strict=True))
    layer = StructuredMatrixScaling(3)
    try:
        summary = layer.fit(logits, labels, sample_weight=weights)
    except ValueError as error:
        summary, refusal = None, str(error)
    if summary is None:
        assert "one class" in refusal or "All sample weights" in refusal
        return
    for weight in layer.get_weights():
        assert np.isfinite(weight).all()
    assert np.isfinite(summary.log_loss_after)
    calibrated = keras.ops.convert_to_numpy(keras.ops.softmax(layer(logits)))
    np.testing.assert_allclose(calibrated.sum(axis=1), 1, atol=1e-5)
