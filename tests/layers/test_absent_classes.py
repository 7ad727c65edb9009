"""Classes of which the development set has no rows, or only a handful."""

import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.special

import keras_calibration as kc
from keras_calibration.layers import (
    FieldNetwork,
    FitSettings,
    NeuralCalibration,
    StructuredMatrixScaling,
    TemperatureScaling,
    VectorScaling,
)

LAYERS = {
    "temperature": TemperatureScaling,
    "vector": lambda: VectorScaling(5),
    "matrix": lambda: StructuredMatrixScaling(5),
}


def world(num_rows, seed, absent=None):
    """Logits twice too steep, and class numbers without those of one class."""
    generator = np.random.default_rng(seed)
    true = generator.normal(0, 1.5, (num_rows, 5))
    rates = scipy.special.softmax(true, axis=1)
    labels = (rates.cumsum(axis=1) > generator.random((num_rows, 1))).argmax(axis=1)
    kept = labels != absent
    return 2 * true[kept], labels[kept]


def log_loss(logits, labels):
    rates = scipy.special.log_softmax(np.asarray(logits, np.float64), axis=1)
    return -rates[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("kind", LAYERS)
def test_a_class_without_rows_keeps_its_probability(kind):
    layer = LAYERS[kind]()
    with pytest.warns(UserWarning, match="no rows of class 3, of 5 classes"):
        layer.fit(*world(2000, 1, absent=3))
    logits, labels = world(20_000, 2)
    calibrated = keras.ops.convert_to_numpy(layer(logits))
    rates = scipy.special.softmax(calibrated, axis=1)
    assert rates[:, 3].mean() == pytest.approx((labels == 3).mean(), abs=0.01)
    # The truth is the temperature 2.
    assert log_loss(calibrated, labels) < log_loss(logits / 2, labels) + 0.005


def test_the_vector_is_the_optimum_among_the_classes_with_rows():
    logits, labels = world(2000, 1, absent=3)
    layer = VectorScaling(5)
    with pytest.warns(UserWarning, match="class 3"):
        layer.fit(logits, labels)
    present = [0, 1, 2, 4]
    columns, numbers = logits[:, present], np.searchsorted(present, labels)

    def loss(theta):
        return log_loss(theta[:4] * columns + theta[4:], numbers)

    best = scipy.optimize.minimize(loss, np.r_[np.full(4, 0.5), np.zeros(4)]).fun
    received = layer.scales[present] * columns + layer.biases[present]
    assert log_loss(received, numbers) == pytest.approx(best, abs=1e-6)
    rates = scipy.special.softmax(layer.scales * logits + layer.biases, axis=1)
    alone = scipy.optimize.minimize_scalar(lambda scale: log_loss(scale * columns, numbers)).x
    tempered = scipy.special.softmax(alone * logits, axis=1)
    assert layer.scales[3] == pytest.approx(alone, abs=1e-3)
    assert rates[:, 3].mean() == pytest.approx(tempered[:, 3].mean(), abs=1e-4)


def test_a_handful_of_rows_does_not_spoil_a_class():
    generator = np.random.default_rng(0)

    def rows(number):
        true = generator.normal(0, 1.5, (number, 20))
        rates = scipy.special.softmax(true, axis=1)
        return 1.5 * true, (rates.cumsum(axis=1) > generator.random((number, 1))).argmax(axis=1)

    tests = rows(20_000)
    losses = []
    for _ in range(5):
        layer = VectorScaling(20)
        layer.fit(*rows(100))
        losses.append(log_loss(layer.scales * tests[0] + layer.biases, tests[1]))
    assert np.mean(losses) < log_loss(*tests)  # without the prior, 0.15 above


def test_a_network_keeps_the_probability_of_a_class_without_rows():
    logits, labels = world(3000, 1, absent=3)
    site = np.arange(len(labels)) % 2
    labels = np.where(site == 1, np.where(labels == 0, 1, labels), labels)  # site 1 has no class 0
    head = NeuralCalibration(VectorScaling(5), FieldNetwork({"site": 2}, num_outputs=5, seed=0))
    settings = FitSettings(learning_rate=0.01, max_epochs=15)
    with pytest.warns(UserWarning, match="class 3"):
        summary = head.fit(logits, labels, {"site": site}, settings=settings)
    assert summary.network_kept
    fresh, _ = world(20_000, 2)
    for value in (0, 1):
        features = {"site": np.full(len(fresh), value)}
        rates = scipy.special.softmax(keras.ops.convert_to_numpy(head(fresh, features)), axis=1)
        assert rates[:, 3].mean() == pytest.approx(0.2, abs=0.03)  # without, 0.02


def test_calibrate_says_it_once_and_chooses_among_the_classes_with_rows(recwarn):
    logits, labels = world(1000, 1, absent=3)
    model = kc.calibrate_scores(logits, labels, from_logits=True, methods="vector", verbose=0)
    (warning,) = recwarn.list
    assert "no rows of class 3" in str(warning.message)
    assert model.report.absent_classes == (3,)
    assert "No rows of class 3" in str(model.report)
    present = [0, 1, 2, 4]
    expected = log_loss(logits[:, present], np.searchsorted(present, labels))
    assert model.report.before.log_loss == pytest.approx(expected, abs=1e-6)
    fresh, truth = world(20_000, 2)
    predicted = model.predict({"score": fresh}, verbose=0)
    assert log_loss(np.log(predicted), truth) < log_loss(fresh / 2, truth) + 0.01


def test_fit_head_warns_of_a_class_without_rows():
    logits, labels = world(300, 1, absent=3)
    inputs = keras.Input((5,))
    base = keras.Model(inputs, keras.layers.Softmax()(inputs))
    model = kc.models.CalibratedModel(base, VectorScaling(5))
    with pytest.warns(UserWarning, match="no rows of class 3"):
        kc.fit_head(model, logits, labels, verbose=0)


def test_all_labels_of_weight_0_are_no_rows():
    logits, labels = world(300, 1)
    with pytest.warns(UserWarning, match="no rows of classes 1, 3"):
        VectorScaling(5).fit(logits, labels, sample_weight=(~np.isin(labels, (1, 3))).astype(float))
