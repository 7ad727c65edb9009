"""Adaptive optimizers step right: Keras takes a wrong second moment from sparse gradients."""

import keras
import numpy as np
import pytest

from backends import JIT_COMPILE
from keras_calibration.layers import ILPS

NUM_STEPS = 10
RATE = 0.01


class Adam:
    def __init__(self):
        self.step, self.first, self.second = 0, 0.0, 0.0

    def __call__(self, gradient):
        self.step += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        rate = RATE * np.sqrt(1 - 0.999**self.step) / (1 - 0.9**self.step)
        return rate * self.first / (np.sqrt(self.second) + 1e-7)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


@pytest.mark.parametrize("jit_compile", JIT_COMPILE)
def test_ilps_steps_as_a_dense_reference(jit_compile):
    generator = np.random.default_rng(0)
    batches = generator.normal(0, 2, (NUM_STEPS, 256))
    # Labels far from the curve: gradients that do not hover about 0.
    labels = (generator.random(batches.shape) < 0.9).astype(float)
    knots = np.array([-2.0, -0.5, 0.5, 2.0, 3.0])
    layer = ILPS(knots=list(knots), smoothness=0.0)
    model = keras.Sequential([keras.Input((1,)), layer, keras.layers.Activation("sigmoid")])
    optimizer, step = keras.optimizers.Adam(RATE), Adam()
    model.compile(optimizer, "binary_crossentropy", jit_compile=jit_compile)
    values = knots.copy()
    for rows, batch_labels in zip(batches, labels, strict=True):
        model.train_on_batch(rows[:, None], batch_labels[:, None])
        segment = np.clip(np.searchsorted(knots, rows, side="right") - 1, 0, 3)
        share = (rows - knots[segment]) / (knots[segment + 1] - knots[segment])
        curve = values[segment] + share * (values[segment + 1] - values[segment])
        residual = (sigmoid(curve) - batch_labels) / len(rows)
        gradient = np.zeros(5)
        np.add.at(gradient, segment, residual * (1 - share))
        np.add.at(gradient, segment + 1, residual * share)
        assert (np.diff(values) > 0).all()  # no penalty
        values -= step(gradient)
    np.testing.assert_allclose(layer.get_values() - knots, values - knots, atol=1e-5)
    assert np.abs(values - knots).max() > 0.005
