"""ILPS, the trainable isotonic curve."""

import keras
import numpy as np
import pytest
from scipy.special import expit

from backends import JIT_COMPILE
from keras_calibration.layers import ILPS


def set_curve(layer, values):
    """Sets the free values of the penalised form."""
    layer.get_values()  # builds
    weights = {weight.name: weight for weight in layer.weights}
    weights["values"].assign(values)


@pytest.mark.parametrize("extrapolation", ["linear", "constant"])
def test_ends(extrapolation):
    layer = ILPS(knots=[0, 1, 2], extrapolation=extrapolation)
    set_curve(layer, [0, 2, 2.5])
    expected = [-6, 3.5] if extrapolation == "linear" else [0, 2.5]
    np.testing.assert_allclose(layer(np.float32([-3, 4])), expected)


def test_strict_never_falls_whatever_its_weights():
    generator = np.random.default_rng(2)
    grid = np.linspace(-20, 20, 4001, dtype=np.float32)
    for scale in (0.1, 3, 30):
        layer = ILPS(12, "sigmoid", monotonic="strict")
        layer.build()
        for weight in layer.trainable_weights:
            weight.assign(generator.normal(0, scale, weight.shape))
        curve = np.asarray(layer(grid), np.float64)
        assert np.isfinite(curve).all()
        # To the rounding of a float32.
        assert (np.diff(curve) >= -1e-6 * np.abs(curve).max()).all()
        assert np.diff(curve).max() > 0
        assert (np.diff(layer.get_values()) >= 0).all()


def test_smoothness_prior_has_its_value_once_the_number_of_rows_is_known():
    layer = ILPS(knots=[-1, 0, 1, 3], smoothness=4.0)
    set_curve(layer, [-3, -1, 0, 4])  # slopes 2, 1, 2
    layer(np.float32([0.5]))
    assert sum(map(float, layer.losses)) == 0
    layer.adapt(np.linspace(-2, 2, 50))
    layer(np.float32([0.5]))
    assert sum(map(float, layer.losses)) == pytest.approx(4.0 / 2 * (1 + 1) / 50, rel=1e-5)
    strict = ILPS(knots=[-1, 0, 1, 3], smoothness=4.0, monotonic="strict")
    strict.adapt(np.linspace(-2, 2, 50))
    weights = {weight.name: weight for weight in strict.weights}
    weights["raw_slopes"].assign(np.log(np.expm1([2.0, 1.0, 2.0])) - np.log(np.e - 1))
    strict(np.float32([0.5]))
    assert sum(map(float, strict.losses)) == pytest.approx(4.0 / 2 * (1 + 1) / 50, rel=1e-4)


def test_values_that_cross_make_a_level_curve_and_are_penalised():
    layer = ILPS(knots=[0, 1, 2, 3], smoothness=0.0, penalty=2.0)
    set_curve(layer, [0, 2, 1, 4])
    np.testing.assert_array_equal(layer.get_values(), [0, 1.5, 1.5, 4])
    np.testing.assert_allclose(layer(np.float32([1, 1.5, 2, 3])), [1.5, 1.5, 1.5, 4])
    assert sum(map(float, layer.losses)) == 2.0
    set_curve(layer, [0, 2, 1.5, 1.25])
    layer(np.float32([1]))
    assert sum(map(float, layer.losses)) == 2.0 * 0.75
    set_curve(layer, [0.1, 0.2, 0.2, 4])
    np.testing.assert_array_equal(layer.get_values(), np.float32([0.1, 0.2, 0.2, 4]))


class Adam:
    """Adam of dense gradients, with a rate of 0.01."""

    def __init__(self):
        self.step, self.first, self.second = 0, 0.0, 0.0

    def __call__(self, gradient):
        self.step += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        rate = 0.01 * np.sqrt(1 - 0.999**self.step) / (1 - 0.9**self.step)
        return rate * self.first / (np.sqrt(self.second) + 1e-7)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("jit_compile", JIT_COMPILE)
def test_ilps_steps_as_a_dense_reference(jit_compile):
    """Keras takes a wrong second moment from sparse gradients."""
    generator = np.random.default_rng(0)
    batches = generator.normal(0, 2, (10, 256))
    # Labels far from the curve: gradients that do not hover about 0.
    labels = (generator.random(batches.shape) < 0.9).astype(float)
    knots = np.array([-2.0, -0.5, 0.5, 2.0, 3.0])
    layer = ILPS(knots=list(knots), smoothness=0.0)
    model = keras.Sequential([keras.Input((1,)), layer, keras.layers.Activation("sigmoid")])
    optimizer, step = keras.optimizers.Adam(0.01), Adam()
    model.compile(optimizer, "binary_crossentropy", jit_compile=jit_compile)
    values = knots.copy()
    for rows, batch_labels in zip(batches, labels, strict=True):
        model.train_on_batch(rows[:, None], batch_labels[:, None])
        segment = np.clip(np.searchsorted(knots, rows, side="right") - 1, 0, 3)
        share = (rows - knots[segment]) / (knots[segment + 1] - knots[segment])
        curve = values[segment] + share * (values[segment + 1] - values[segment])
        residual = (expit(curve) - batch_labels) / len(rows)
        gradient = np.zeros(5)
        np.add.at(gradient, segment, residual * (1 - share))
        np.add.at(gradient, segment + 1, residual * share)
        assert (np.diff(values) > 0).all()  # no penalty
        values -= step(gradient)
    np.testing.assert_allclose(layer.get_values() - knots, values - knots, atol=1e-5)
    assert np.abs(values - knots).max() > 0.005
