"""Requests of TensorFlow Serving's REST form give what the Keras model gives."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from serving import rest
from symbols import symbols

pytestmark = pytest.mark.tensorflow

SITES = ["news", "mail", "straße", 'a; "b"']


def make_rows(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "site": rng.choice([*SITES, "", "never seen"], num_rows).tolist(),
        "device": rng.integers(0, 4, (num_rows, 1)).tolist(),
        "bid": rng.normal(size=num_rows).tolist(),
    }


def tensors(rows):
    kinds = {"site": tf.string, "device": tf.int64, "bid": tf.float32, "logit": tf.float32}
    return {name: tf.constant(values, kinds[name]) for name, values in rows.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    keras.utils.set_random_seed(0)
    inputs = symbols(site="string", device=((1,), "int64"), bid=())
    site = keras.layers.StringLookup(vocabulary=SITES)(inputs["site"])
    columns = [
        keras.layers.Embedding(5, 3)(site),
        keras.layers.Flatten()(keras.layers.Embedding(4, 2)(inputs["device"])),
        keras.layers.Reshape((1,))(inputs["bid"]),
    ]
    hidden = keras.layers.Dense(8, "tanh")(keras.layers.Concatenate()(columns))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    head = kc.layers.FieldBias({"site": keras.layers.StringLookup(vocabulary=SITES)})
    model = kc.models.CalibratedModel(base, head)
    rows = make_rows(1000)
    rate = np.where(np.array(rows["site"]) == "news", 0.6, 0.2)
    labels = np.random.default_rng(1).random(1000) < rate
    kc.fit_head(model, tensors(rows), labels.astype("float32"), verbose=0)
    folder = tmp_path_factory.mktemp("served") / "1"
    return model, kc.export_savedmodel(model, folder)


def test_columns_are_answered_by_columns(served):
    model, path = served
    rows = make_rows(7)
    outputs = json.loads(rest.answer(path, json.dumps({"inputs": rows})))["outputs"]
    expected = model.predict(tensors(rows), verbose=0)
    np.testing.assert_allclose(outputs["probability"], expected, rtol=0, atol=1e-6)
    assert outputs.keys() == {"probability", "uncalibrated_probability", "logit"}
    assert np.ptp(expected) > 0.1


@pytest.mark.parametrize("logit", [[[-2.0], [0.5]], [-2.0, 0.5]], ids=["column", "row"])
@pytest.mark.parametrize("form", ["inputs", "instances"])
def test_a_number_may_stand_alone_or_in_brackets(served, form, logit):
    """By rows, `{"logit": -2.0, …}` makes a tensor (n,), and `{"logit": [-2.0], …}` one (n, 1)."""
    model, path = served
    rows = {"logit": logit, "site": ["news", "mail"]}
    content = rows
    if form == "instances":
        content = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    body = json.dumps({"signature_name": "calibrate", form: content})
    answer = json.loads(rest.answer(path, body))["outputs" if form == "inputs" else "predictions"]
    values = {"site": tf.constant(rows["site"])}
    calibrated = model.head(tf.constant([[-2.0], [0.5]]), values)
    expected = np.asarray(keras.ops.sigmoid(calibrated))
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-6)


def test_what_is_missing_is_nan(served):
    """The network of the base gives NaN for a missing bid; so does the answer, as JSON's token."""
    _, path = served
    rows = {**make_rows(2), "bid": [float("nan"), 0.5]}
    text = rest.answer(path, json.dumps({"inputs": rows}))
    assert "NaN" in text
    assert np.isnan(json.loads(text)["outputs"]["probability"]).tolist() == [[True], [False]]
