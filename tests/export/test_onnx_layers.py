"""ONNX files of Keras' preprocessing layers give the Keras model's probabilities."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from keras_calibration.export import export_onnx
from keras_calibration.export.onnx.export import run_onnx

pytest.importorskip("onnx")
pytest.importorskip("tf2onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.tensorflow

NUM_ROWS = 60


def make_rows():
    rng = np.random.default_rng(0)
    words = np.array(["a", "b", "c", "other", ""], object)
    return {
        "word": rng.choice(words, (NUM_ROWS, 1)),
        "words": rng.choice(words, (NUM_ROWS, 3)),
        "id": rng.integers(0, 9, (NUM_ROWS, 1)),
        "ids": rng.integers(0, 9, (NUM_ROWS, 3)),
        "number": rng.normal(5, 3, (NUM_ROWS, 1)).astype("float32"),
        "wide": (rng.normal(size=(NUM_ROWS, 200)) * np.arange(1, 201)).astype("float32"),
        "weights": rng.random((NUM_ROWS, 3)).astype("float32"),
    }


def normalized(inputs, rows):
    layer = keras.layers.Normalization()
    layer.adapt(rows["number"])
    return layer(inputs["number"])


def normalized_wide(inputs, rows):
    """Beyond 128 values, TensorFlow captures the mean as a tensor of its own."""
    layer = keras.layers.Normalization()
    layer.adapt(rows["wide"])
    return layer(inputs["wide"])


def given_mean(inputs, rows):
    return keras.layers.Normalization(mean=4.0, variance=9.0)(inputs["number"])


def multi_hot_words(inputs, rows):
    ids = keras.layers.StringLookup(vocabulary=["a", "b", "c"])(inputs["words"])
    return keras.layers.CategoryEncoding(4, output_mode="multi_hot")(ids)


def multi_hot_word(inputs, rows):
    ids = keras.layers.StringLookup(vocabulary=["a", "b", "c"])(inputs["word"])
    return keras.layers.CategoryEncoding(4, output_mode="multi_hot")(ids)


def one_hot_id(inputs, rows):
    ids = keras.layers.IntegerLookup(vocabulary=[1, 4, 7])(inputs["id"])
    return keras.layers.CategoryEncoding(4, output_mode="one_hot")(ids)


def counts(inputs, rows):
    ids = keras.layers.IntegerLookup(vocabulary=[1, 4, 7])(inputs["ids"])
    return keras.layers.CategoryEncoding(4, output_mode="count")(ids)


def weighted_counts(inputs, rows):
    layer = keras.layers.CategoryEncoding(9, output_mode="count")
    return layer(inputs["ids"], count_weights=inputs["weights"])


def bins(inputs, rows):
    layer = keras.layers.Discretization([2.0, 5.0, 7.5], output_mode="one_hot")
    return layer(inputs["number"])


@pytest.mark.parametrize(
    "encode",
    [
        normalized,
        normalized_wide,
        given_mean,
        multi_hot_words,
        multi_hot_word,
        one_hot_id,
        counts,
        weighted_counts,
        bins,
    ],
    ids=lambda function: function.__name__,
)
def test_a_layer(encode, tmp_path):
    rows = make_rows()
    inputs = {
        name: keras.Input(
            values.shape[1:],
            dtype="string" if values.dtype == object else values.dtype.name,
            name=name,
        )
        for name, values in rows.items()
    }
    encoded = encode(inputs, rows)
    read = [name for name in inputs if name in keras_inputs(encoded)]
    check({name: inputs[name] for name in read}, encoded, rows, tmp_path)


def keras_inputs(tensor):
    """Names of the inputs that a symbolic tensor depends on."""
    found = keras.utils.get_source_inputs(tensor)
    return {each.name for each in found}


def tensors(rows):
    return {
        name: tf.constant(values.tolist()) if values.dtype == object else tf.constant(values)
        for name, values in rows.items()
    }


def check(inputs, encoded, rows, tmp_path):
    """Compares all rows, each row alone and no rows with Keras."""
    keras.utils.set_random_seed(0)
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(encoded))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    model.head.fit([-1.0, 0.0, 1.0, 2.0], [0, 1, 0, 1])
    rows = {name: rows[name] for name in inputs}
    file = export_onnx(model, tmp_path / "model.onnx", rows)
    expected = np.asarray(model(tensors(rows)))
    assert np.ptp(expected) > 0.01
    received = run_onnx(file, rows)["probability"]
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-6)
    for row in range(3):
        one = run_onnx(file, {name: values[row : row + 1] for name, values in rows.items()})
        np.testing.assert_allclose(one["probability"], expected[row : row + 1], rtol=0, atol=1e-6)
    none = run_onnx(file, {name: values[:0] for name, values in rows.items()})
    assert none["probability"].shape == (0, 1)
