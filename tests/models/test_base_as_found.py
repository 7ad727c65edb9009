"""A base model whose calibration is refused is given back as it was, layer by layer."""

import keras
import numpy as np
import pytest

import keras_calibration as kc

X = np.random.default_rng(0).normal(size=(200, 2)).astype("float32")
Y = np.arange(200) % 3 == 0


@pytest.fixture
def base():
    """A base with a frozen layer and a frozen variable, in a model in the model."""
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    inner.layers[0].trainable = False
    inner.layers[1].bias.trainable = False
    inputs = keras.Input((2,), name="x")
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(inner(inputs)))


def flags(model):
    layers = [(layer.name, layer.trainable) for layer in model._flatten_layers()]
    return layers + [(variable.path, variable.trainable) for variable in model.variables]


class Failing(kc.layers.Head):
    """A head that cannot be built."""

    def build(self, logits_shape=None, features_shape=None):
        raise ValueError("this head fails")

    def call(self, logits, features=None):
        return logits


def separable(base):
    labels = kc.base_logits(kc.models.CalibratedModel(base, kc.layers.ILPS()), X)[:, 0] > 0
    base.trainable = True
    base.layers[1].layers[0].trainable = False
    base.layers[1].layers[1].bias.trainable = False
    return labels


REFUSED = {
    "no such feature": (
        lambda base: kc.models.CalibratedModel(base, kc.layers.FieldBias({"site": 3})),
        "Received: no 'site'",
    ),
    "no head": (lambda base: kc.models.CalibratedModel(base, "ilps"), "`head`"),
    "a head that fails": (lambda base: kc.models.CalibratedModel(base, Failing()), "head fails"),
    "no such method": (
        lambda base: kc.calibrate(base, X, Y, methods="best", verbose=0),
        "`methods`",
    ),
    "one class": (lambda base: kc.calibrate(base, X, 0 * Y, verbose=0), "one class"),
    "separable": (
        lambda base: kc.calibrate(base, X, separable(base), methods="platt", verbose=0),
        "separate|separable",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_base_is_as_it_was(case, base):
    refused, message = REFUSED[case]
    before = flags(base)
    assert len({flag for _, flag in before}) == 2
    with pytest.raises(ValueError, match=message):
        refused(base)
    assert flags(base) == before


def test_a_base_in_use_is_frozen_and_can_be_unfrozen(base):
    model = kc.calibrate(base, X, Y, methods="bias", verbose=0)
    assert base.trainable_variables == []
    assert not any(flag for _, flag in flags(base))
    model.base_model.trainable = True
    assert len(base.trainable_variables) == 4
