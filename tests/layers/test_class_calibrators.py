"""TemperatureScaling of class logits, and VectorScaling: convex fits."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends import examples, few_lengths
from keras_calibration.layers import TemperatureScaling, VectorScaling

LAYERS = ["temperature", "vector"]


def layer_of(kind, num_classes=4, **kwargs):
    if kind == "temperature":
        return TemperatureScaling(**kwargs)
    return VectorScaling(num_classes, **kwargs)


def rows_of(num_rows=5000, num_classes=4, width=2.0, seed=0):
    """Logits, class numbers and the scales and biases that the classes were drawn with."""
    generator = np.random.default_rng(seed)
    logits = width * generator.normal(size=(num_rows, num_classes))
    scales = generator.uniform(0.3, 1.2, num_classes) / width
    rates = scipy.special.softmax(logits * scales + generator.normal(size=num_classes), axis=1)
    labels = (rates.cumsum(axis=1) > generator.random((num_rows, 1))).argmax(axis=1)
    return logits, labels


def one_hot(labels, num_classes=4):
    return np.eye(num_classes)[labels]


def line_of(layer):
    if isinstance(layer, TemperatureScaling):
        return 1 / layer.temperature, 0.0
    return layer.scales.astype(np.float64), layer.biases.astype(np.float64)


def log_loss(logits, shares, weights=None):
    losses = scipy.special.logsumexp(logits, axis=1) - (shares * logits).sum(axis=1)
    return np.average(losses, weights=weights)


def best_loss(kind, logits, shares, weights):
    """The lowest loss, without the prior, by a general method."""
    num_classes = logits.shape[1]

    def unpack(theta):
        return (theta[0], 0.0) if kind == "temperature" else theta.reshape(2, num_classes)

    def value_and_gradient(theta):
        scales, biases = unpack(theta)
        calibrated = scales * logits + biases
        rates = scipy.special.softmax(calibrated, axis=1)
        residual = (weights / weights.sum())[:, None] * (rates - shares)
        scale_gradient = (residual * logits).sum(axis=0)
        gradient = np.r_[scale_gradient, residual.sum(axis=0)]
        gradient = np.r_[scale_gradient.sum()] if kind == "temperature" else gradient
        return log_loss(calibrated, shares, weights), gradient

    start = [0.5] if kind == "temperature" else np.repeat([0.5, 0.0], num_classes)
    solution = scipy.optimize.minimize(
        value_and_gradient, start, jac=True, method="BFGS", options={"gtol": 1e-9}
    )
    return solution.fun


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("form", ["numbers", "column", "one-hot", "soft", "weighted", "wide"])
def test_fit_is_the_optimum_on_the_rows(kind, form):
    logits, labels = rows_of(20_000, width=40.0 if form == "wide" else 2.0)
    shares, weights = one_hot(labels), np.ones(len(labels))
    given_labels = labels
    if form == "column":
        given_labels = labels[:, None].astype(np.float32)
    if form == "one-hot":
        given_labels = shares.astype(np.float32)
    if form == "soft":
        shares = given_labels = 0.9 * shares + 0.025
    if form == "weighted":
        weights = np.random.default_rng(1).choice([0.0, 0.5, 3.0], len(labels))
    layer = layer_of(kind)
    summary = layer.fit(logits, given_labels, sample_weight=weights if form == "weighted" else None)
    best = best_loss(kind, logits, shares, weights)
    assert summary.log_loss_in_sample == pytest.approx(best, abs=1e-8)
    scales, biases = line_of(layer)
    received = log_loss(scales * logits + biases, shares, weights)
    assert received == pytest.approx(best, abs=1e-8)
    assert summary.log_loss_before == pytest.approx(log_loss(logits, shares, weights), abs=1e-9)
    assert summary.converged
    assert summary.num_rows == np.count_nonzero(weights)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.filterwarnings("ignore:TemperatureScaling:UserWarning")
def test_logits_that_are_all_equal(kind):
    layer = layer_of(kind)
    summary = layer.fit(np.zeros((400, 4)), np.arange(400) % 8 % 4 * (np.arange(400) % 8 < 4))
    entropy = np.log(4) if kind == "temperature" else scipy.stats.entropy([5, 1, 1, 1])
    assert summary.log_loss_in_sample == pytest.approx(entropy, abs=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_separated_classes_have_a_finite_answer(kind):
    logits = np.random.default_rng(0).normal(size=(500, 4))
    layer = layer_of(kind)
    summary = layer.fit(logits, logits.argmax(axis=1))
    assert summary.converged
    assert summary.log_loss_in_sample < 0.1 < summary.log_loss_before
    assert np.abs(np.concatenate([np.ravel(part) for part in line_of(layer)])).max() < 300


def test_logits_that_mislead_give_the_largest_temperature_and_a_warning():
    logits = np.random.default_rng(0).normal(size=(500, 4))
    layer = TemperatureScaling()
    with pytest.warns(UserWarning, match="TemperatureScaling: .*separate"):
        layer.fit(logits, logits.argmin(axis=1))
    assert layer.temperature > 1e5


LOGITS = st.sampled_from([-1e30, -50.0, -2.0, 0.0, 0.0, 0.3, 3.0, 8e37])


@settings(max_examples=examples(80))
@given(
    st.sampled_from(LAYERS),
    few_lengths(
        st.tuples(
            st.tuples(LOGITS, LOGITS, LOGITS, LOGITS),
            st.integers(0, 3),
            st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
        ),
        min_size=1,
        max_size=12,
    ),
)
@pytest.mark.filterwarnings("ignore:TemperatureScaling:UserWarning")
@example("vector", [((-50.0, -1e30, -1e30, -2.0), 2, 1.0), ((-2.0, -1e30, 0.3, 8e37), 0, 1e6)])
@pytest.mark.filterwarnings("ignore:The development set has no rows:UserWarning")
def test_any_rows_are_fitted_or_refused(kind, rows):
    logits, labels, weights = map(np.array, zip(*rows, strict=True))
    layer = layer_of(kind)
    try:
        summary = layer.fit(logits, labels, sample_weight=weights)
    except ValueError as error:
        summary, refusal = None, str(error)
    if summary is None:
        assert any(why in refusal for why in ("all 4 classes", "`sample_weight`"))
        return
    for part in line_of(layer):
        assert np.isfinite(part).all()
    assert np.isfinite([summary.log_loss_before, summary.log_loss_in_sample]).all()
    counted = weights > 0
    if len(np.unique(labels[counted])) == 4:
        # A class without rows has no say, and the loss over all classes may rise.
        assert summary.log_loss_in_sample <= summary.log_loss_before + 0.5 / len(rows) + 1e-9
    again = layer_of(kind)
    assert again.fit(
        logits[counted], labels[counted], sample_weight=weights[counted]
    ).log_loss_in_sample == pytest.approx(summary.log_loss_in_sample, rel=1e-6, abs=1e-9)


def test_a_handful_of_rows_does_not_spoil_a_class():
    generator = np.random.default_rng(0)

    def rows(number):
        true = generator.normal(0, 1.5, (number, 20))
        rates = scipy.special.softmax(true, axis=1)
        return 1.5 * true, (rates.cumsum(axis=1) > generator.random((number, 1))).argmax(axis=1)

    tests, losses = rows(20_000), []
    for _ in range(5):
        with_every_class = (few for few in iter(lambda: rows(120), None) if len(set(few[1])) == 20)
        layer = VectorScaling(20)
        layer.fit(*next(with_every_class))
        losses.append(log_loss(layer.scales * tests[0] + layer.biases, one_hot(tests[1], 20)))
    assert np.mean(losses) < log_loss(tests[0], one_hot(tests[1], 20))
