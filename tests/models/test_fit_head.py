"""`fit_head` of a calibrated model: the head's own `fit`, on the logits of the base model."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.layers import ILPS, NeuralCalibration, PlattScaling
from keras_calibration.models import CalibratedModel
from symbols import symbols
from trained_heads import train_head

NUM_SITES = 6
SITE_BIAS = np.array([-1.0, -0.5, 0.0, 0.3, 0.6, 0.9])


def draw(num_rows, shift=2.2):
    """Inputs of `make_base` and labels; the base logit is the input "l"."""
    rng = np.random.default_rng(0)
    logit = rng.normal(-1, 1, num_rows)
    site = rng.integers(0, NUM_SITES, num_rows).astype("int32")
    labels = (rng.random(num_rows) < 1 / (1 + np.exp(-logit - SITE_BIAS[site]))).astype("float32")
    return {"l": (logit + shift).astype("float32")[:, None], "site": site}, labels


def make_base():
    inputs = symbols(l=(1,), site="int32")
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["l"]))


def make_model(head=None):
    return CalibratedModel(make_base(), NeuralCalibration(ILPS()) if head is None else head)


def test_training_replaces_what_the_fit_says():
    x, y = draw(500)
    model = make_model(PlattScaling())
    kc.fit_head(model, x, y, verbose=0)
    assert model.head.is_as_fitted
    train_head(model, x, y, learning_rate=0.05)
    assert not model.head.is_as_fitted
    kc.fit_head(model, x, y, only_if_better=False, verbose=0)
    other = make_model(PlattScaling())
    kc.fit_head(other, x, y, verbose=0)
    np.testing.assert_array_equal(model.head.get_weights()[0], other.head.get_weights()[0])


def test_a_mean_that_the_head_cannot_correct_warns():
    x, y = draw(5_000, shift=0.8)
    model = make_model(kc.layers.TemperatureScaling())
    with pytest.warns(UserWarning, match=r"standard errors apart.*cannot correct the mean"):
        kc.fit_head(model, x, y, verbose=0)
    assert model.head.is_as_fitted
    kc.fit_head(make_model(PlattScaling()), x, y, verbose=0)  # a warning would be an error


def test_it_prints_its_summary(capsys):
    x, y = draw(5_000)
    summary = kc.fit_head(make_model(), x, y, verbose=1)
    shown = capsys.readouterr().out
    assert "Computing the base logits of 5,000 rows:" in shown
    assert shown.endswith(f"{summary}\n")
    kc.fit_head(make_model(), x, y, verbose=0)
    assert capsys.readouterr().out == ""
