"""The methods that came after the paper: their maps, their losses, and training."""

import numpy as np
import pytest
import training
from sbcr import SBCR
from scipy import special
from scipy.integrate import quad
from umc import UMC, MonotoneIntegral, SmoothCalibrationLoss

from keras_calibration.layers import Head
from keras_calibration.seeds import set_seeds

pytestmark = pytest.mark.slow

DIM = 3


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def built(layer, seed=0):
    """The layer with random weights, biases among them."""
    set_seeds(initialization=seed, order=seed)
    layer(np.zeros((1, 1), "float32"), np.zeros((1, DIM), "float32"))
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign_add(0.3 * rng.normal(size=weight.shape))
    return layer


def relu_network(weights, x):
    """The ReLU network with these kernels and biases in turn, in float64."""
    *hidden, (kernel, bias) = zip(weights[::2], weights[1::2], strict=True)
    for each_kernel, each_bias in hidden:
        x = np.maximum(x @ each_kernel + each_bias, 0)
    return x @ kernel + bias


def values_of(weights):
    return [np.asarray(weight, np.float64) for weight in weights]


def test_the_integral_is_that_of_the_slopes():
    """These are positive, so that the map of a context increases in the logit."""
    layer = built(MonotoneIntegral(hidden_units=(8, 8), last_knot=4.0, num_knots=9))
    rng = np.random.default_rng(0)
    logits = np.array([-9, -4, -2.5, -0.1, 0, 0.7, 3.9, 12], "float32")[:, None]
    context = rng.normal(size=(len(logits), DIM)).astype("float32")
    slopes = np.asarray(layer.slopes(context), np.float64)
    assert slopes.min() > 0
    expected = [
        quad(lambda t, s=s: np.interp(t, layer.knots, s), 0, logit, points=layer.knots, limit=99)[0]
        for (logit,), s in zip(logits.astype(float), slopes, strict=True)
    ]
    integrals = np.asarray(layer(logits, context))[:, 0]
    np.testing.assert_allclose(integrals, expected, rtol=1e-5, atol=1e-5)


def test_umc_scales_and_shifts_the_integral():
    layer = built(UMC(rescaling_units=(5, 4)))
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(6, 1)).astype("float32")
    context = rng.normal(size=(6, DIM)).astype("float32")
    scale, shift = relu_network(values_of(layer.rescaling.trainable_weights), context).T
    integral = np.asarray(layer.integral(logits, context), np.float64)[:, 0]
    expected = np.exp(scale) * (integral + float(layer.offset)) + shift
    assert float(layer.offset) != 0
    np.testing.assert_allclose(np.asarray(layer(logits, context))[:, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("num_bins", [1, 7])
def test_sbcr_interpolates_between_the_cumulative_sums_of_a_softmax(num_bins):
    layer = built(SBCR(hidden_units=(8,), num_bins=num_bins))
    logits = np.linspace(-9, 9, 37, dtype="float32")[:, None]
    context = np.random.default_rng(2).normal(size=(37, DIM)).astype("float32")
    scores = relu_network(values_of(layer.network.trainable_weights), context)
    sums = np.c_[np.zeros(37), np.cumsum(special.softmax(scores, axis=1), axis=1)]
    knots = np.linspace(0, 1, num_bins + 1)
    expected = [
        np.interp(p, knots, row) for p, row in zip(sigmoid(logits[:, 0]), sums, strict=True)
    ]
    np.testing.assert_allclose(sigmoid(layer(logits, context))[:, 0], expected, rtol=1e-4)


def test_smooth_calibration_loss():
    """Of each batch: running averages by bin of the probability."""
    rng, averages = np.random.default_rng(4), np.zeros((10, 3))
    layer = SmoothCalibrationLoss(weight=3.0, num_bins=10, decay=0.9)
    for shift in (-3, 0, 3, -3):
        labels = (rng.random(50) < 0.3).astype("float32")
        logits = rng.normal(shift, 1, 50).astype("float32")
        p, expected = sigmoid(logits), 0.0
        for k in range(10):
            mask = (p >= k / 10) & (p < (k + 1) / 10)
            if mask.any():
                now = np.array([mask.mean(), labels[mask].mean(), p[mask].mean()])
                averages[k] = 0.9 * averages[k] + 0.1 * now
                share, label, prediction = averages[k]
                expected += 3 * share * (label - prediction) ** 2
        assert float(layer(labels[:, None], logits[:, None])) == pytest.approx(expected, rel=1e-4)


class OneOffset(Head):
    """Adds an offset to the logits."""

    def build(self, logits_shape=None, features_shape=None):
        self.offset = self.add_weight(shape=(), initializer="zeros")

    def call(self, logits, features=None):
        return logits + self.offset


def test_held_out_rows_stop_the_training_at_their_best_epoch():
    is_held_out = training.held_out_rows(1000, 0)
    # All training rows are positive, and 60 of the 100 held out.
    labels = np.ones(1000, "float32")
    labels[np.flatnonzero(is_held_out)[60:]] = 0
    inputs = training.Inputs(np.zeros((1000, 1), "float32"), np.zeros((1000, 0), "int32"))
    head = OneOffset()
    head.build()
    model = training.RowModel(head, ())
    num_steps = training.train_with_early_stopping(model, inputs, labels, 9, 0)
    best = np.log(60 / 40)
    # Adam moves by 0.001 a step, and an epoch has 100 steps.
    assert abs(float(model.head.offset) - best) <= 0.1
    assert num_steps % 100 == 0
    assert abs(num_steps * training.LEARNING_RATE - best) <= 0.1
