"""`fit_head` and `interval` of a calibrated model: the head's own, on the base model's logits."""

import warnings

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.layers import ILPS, FieldBias, NeuralCalibration, PlattScaling
from keras_calibration.layers.fits import is_as_fitted
from keras_calibration.models import CalibratedModel
from symbols import symbols

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


def test_a_mean_that_the_head_cannot_correct_warns():
    x, y = draw(5_000, shift=0.8)
    model = make_model(kc.layers.TemperatureScaling())
    with pytest.warns(UserWarning, match="standard errors apart.*shift the mean"):
        kc.fit_head(model, x, y, verbose=0)
    assert is_as_fitted(model.head)
    kc.fit_head(make_model(PlattScaling()), x, y, verbose=0)  # a warning would be an error


def test_an_interval_holds_the_prediction_and_narrows_with_rows():
    x, y = draw(2_000)
    in_fit = (x["site"] > 0) | (np.arange(2_000) < 50)  # of the first site, a few rows only
    model = make_model(FieldBias({"site": NUM_SITES}, PlattScaling()))
    kc.fit_head(model, {name: column[in_fit] for name, column in x.items()}, y[in_fit], verbose=0)
    lower, upper = kc.interval(model, x)
    assert lower.shape == upper.shape == (2_000, 1)
    probabilities = model.predict(x, verbose=0)
    assert ((lower < probabilities) & (probabilities < upper)).all()
    width = (upper - lower)[:, 0] / (probabilities * (1 - probabilities))[:, 0]
    assert width[x["site"] > 0].mean() < 0.5 * width[x["site"] == 0].mean()
    wide = kc.interval(model, x, level=0.99)
    assert ((wide[0] < lower) & (upper < wide[1])).all()
    again = CalibratedModel.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(kc.interval(again, x)[0], lower)


def test_it_prints_its_summary(capsys):
    x, y = draw(5_000)
    summary = kc.fit_head(make_model(), x, y, verbose=1)
    shown = capsys.readouterr().out
    assert "5,000/5,000 base logits, 0:00" in shown
    assert shown.endswith(f"{summary}\n")
    kc.fit_head(make_model(), x, y, verbose=0)
    assert capsys.readouterr().out == ""


def test_a_word_in_place_of_a_bool_is_refused():
    x, labels = draw(100)
    with pytest.raises(ValueError, match="`only_if_better`"):
        kc.fit_head(make_model(PlattScaling()), x, labels, only_if_better="no")


def test_what_is_wrong_is_said_once():
    x, labels = draw(900)
    x["l"] = 1 / (1 + np.exp(-x["l"]))  # probabilities in place of logits
    weights = np.where(labels == 1, 1.0, 30.0)  # which depend on the label alone
    for fit in (
        lambda: PlattScaling().fit(x["l"], labels, sample_weight=weights),
        lambda: kc.fit_head(make_model(PlattScaling()), x, labels, weights, verbose=0),
        lambda: kc.calibrate(make_base(), x, labels, weights, methods="platt", verbose=0),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fit()
        texts = [str(warning.message) for warning in told]
        assert sum("look like probabilities" in text for text in texts) == 1, texts
        assert sum("depend on the label alone" in text for text in texts) == 1, texts
