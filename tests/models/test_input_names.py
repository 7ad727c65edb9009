"""Inputs and columns of any name: it works, or an error says so before anything is fitted."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.calibration.candidate_fits import Race

RNG = np.random.default_rng(0)
Z, SITE = RNG.normal(-1, 1, 300), RNG.integers(0, 3, 300)
Y = (RNG.random(300) < 1 / (1 + np.exp(-Z))).astype(int)
# Of layers that the package adds, of heads that it makes, of arguments, and of odd letters.
pytestmark = pytest.mark.filterwarnings(
    "ignore:When providing `inputs` as a dict", "ignore:The calibration .* log loss worse"
)
NAMES = (
    *("probability", "base", "base_logits", "base_score", "logit", "field_bias", "platt_scaling"),
    *("self", "inputs", "training", "features", "time", "Score", "a.b", "a b", "größe", "_x"),
)


def test_any_names_of_inputs(tmp_path):
    fields = {name: np.roll(SITE, shift) for shift, name in enumerate(NAMES)}
    x = {"z": Z, **fields}
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in NAMES}
    inputs["z"] = keras.Input((1,), name="z")
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["z"]))
    settings = {"fields": list(NAMES), "methods": "field_bias", "verbose": 0}
    calibrated = kc.calibrate(base, x, Y, **settings)
    scored = kc.calibrate_scores(Z, Y, fields, from_logits=True, **settings)
    expected = scored.predict({"score": Z.astype("float32"), **fields}, batch_size=300, verbose=0)
    calibrated.with_all_outputs().save(tmp_path / "model.keras")
    for model in (calibrated, keras.saving.load_model(tmp_path / "model.keras")):
        predicted = np.reshape(model.predict(x, batch_size=300, verbose=0), (-1, 1))
        np.testing.assert_allclose(predicted, expected, atol=1e-6)


def test_a_head_of_the_name_of_an_input_is_refused():
    inputs = {"own": keras.Input((1,), name="own")}
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["own"]))
    with pytest.raises(ValueError, match=r"named 'own'\. Rename the input"):
        kc.models.CalibratedModel(base, kc.layers.PlattScaling(name="own"))


@pytest.mark.parametrize("name", ["score", "a/b"])
def test_names_of_columns_are_refused_before_the_race(name, monkeypatch):
    monkeypatch.setattr(Race, "run", None)
    with pytest.raises(ValueError, match="Rename the column"):
        kc.calibrate_scores(Z, Y, {name: SITE}, from_logits=True, fields=[name], verbose=0)


def test_keys_with_a_slash_are_inputs():
    inputs = {"a/b": keras.Input((1,)), "a_b": keras.Input((1,), name="a_b")}
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["a/b"] - inputs["a_b"]))
    x = {"a/b": Z[:, None], "a_b": Z[:, None] ** 2}
    model = kc.calibrate(base, x, Y, methods="identity", verbose=0)
    expected = base.predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-6)
