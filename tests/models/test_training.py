"""Keras' own `fit` of a calibrated model: it trains the head by gradient, the base is frozen."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.models import CalibratedModel
from symbols import symbols
from trained_heads import train_head

RNG = np.random.default_rng(0)
NUM_ROWS, NUM_SITES = 800, 4
X = {
    "price": RNG.normal(-1, 1, (NUM_ROWS, 1)).astype("float32"),
    "site": RNG.integers(0, NUM_SITES, NUM_ROWS).astype("int32"),
}
Y = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-0.5 * X["price"][:, 0] - 0.4 * X["site"]))) * 1.0


@keras.saving.register_keras_serializable(package="tests")
class SiteOffsets(kc.layers.Head):
    """A head of a user's own, without a direct fit."""

    @property
    def feature_names(self):
        return ("site",)

    def build(self, logits_shape=None, features_shape=None):
        self.offsets = self.add_weight(shape=(NUM_SITES,), initializer="zeros")

    def call(self, logits, features=None):
        site = keras.ops.one_hot(keras.ops.reshape(features["site"], (-1,)), NUM_SITES)
        offset = keras.ops.sum(site * self.offsets, axis=1, keepdims=True)
        return keras.ops.reshape(logits, (-1, 1)) + offset


def make_base():
    inputs = symbols(price=(1,), site="int32")
    hidden = keras.layers.BatchNormalization()(inputs["price"])
    output = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(hidden)
    return keras.Model(inputs, output)


def best_offsets():
    """The offset of each site on which the mean prediction is the mean label."""
    offsets = []
    for site in range(NUM_SITES):
        rows, bias = X["site"] == site, kc.layers.BiasCorrection()
        bias.fit(X["price"][rows] / np.sqrt(1.001), Y[rows])
        offsets.append(bias.bias)
    return offsets


@pytest.mark.slow
def test_a_head_without_a_direct_fit(tmp_path):
    model = CalibratedModel(make_base(), SiteOffsets())
    before = [np.array(weight) for weight in model.base_model.get_weights()]
    with pytest.raises(ValueError, match="SiteOffsets has no direct fit"):
        kc.fit_head(model, X, Y, verbose=0)
    settings = {"learning_rate": 0.2, "batch_size": NUM_ROWS}
    history = train_head(model, X, Y, epochs=150, validation_data=(X, Y), **settings)
    np.testing.assert_allclose(np.array(model.head.offsets), best_offsets(), atol=2e-3)
    assert history["val_loss"][-1] < history["loss"][0] - 0.05
    for old, new in zip(before, model.base_model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert model.head.fit_summary is None
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    loaded.fit(X, Y, batch_size=NUM_ROWS, verbose=0)  # goes on, with its optimizer
    np.testing.assert_allclose(np.array(loaded.head.offsets), best_offsets(), atol=1e-2)
