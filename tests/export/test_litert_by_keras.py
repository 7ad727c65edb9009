"""LiteRT files that Keras itself writes run in every interpreter, by built-in operators alone."""

import warnings

import keras
import numpy as np
import pytest

from keras_calibration.layers import ILPS, FieldBias, FieldNetwork, NeuralCalibration
from keras_calibration.models import CalibratedModel
from symbols import symbols
from tiers import slow_except

pytestmark = pytest.mark.tensorflow

HEADS = {
    "ILPS": ILPS,
    "FieldBias": lambda: FieldBias({"site": 7}, numeric=["age"]),
    "NeuralCalibration": lambda: NeuralCalibration(
        ILPS(), FieldNetwork({"site": 7}, numeric=["age"])
    ),
}


def some_rows():
    rng = np.random.default_rng(0)
    rows = {
        "age": rng.normal(size=(600, 1)).astype("float32"),
        "site": rng.integers(0, 7, (600, 1)).astype("int32"),
    }
    return rows, (rng.random(600) < 1 / (1 + np.exp(2 - rows["age"][:, 0]))).astype(float)


@pytest.mark.parametrize("name", slow_except(("NeuralCalibration",), HEADS))
def test_keras_writes_a_model_of_built_in_operators(name, tmp_path):
    import tensorflow as tf

    rows, labels = some_rows()
    inputs = symbols(age=(1,), site=((1,), "int32"))
    site = keras.layers.Flatten()(keras.layers.Embedding(7, 2)(inputs["site"]))
    logit = keras.layers.Dense(1, kernel_initializer="ones")(
        keras.layers.Concatenate()([inputs["age"], site])
    )
    base, head = keras.Model(inputs, logit), HEADS[name]()
    logits = base.predict(rows, batch_size=600, verbose=0)
    if name != "NeuralCalibration":
        head.fit(logits, labels, rows)
    else:  # a network far from its start, without the time of its training
        head.adapt(logits, labels, rows)
        head.calibrator.fit(logits, labels)
        for weight in head.field_network.trainable_weights:
            weight.assign_add(np.random.default_rng(1).normal(0, 0.3, weight.shape))
    model = CalibratedModel(base, head)
    file = tmp_path / "model.tflite"
    model.export(file, format="litert", verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it moves to a package of its own
        interpreter = tf.lite.Interpreter(
            str(file), experimental_op_resolver_type=tf.lite.experimental.OpResolverType.BUILTIN
        )
    (received,) = interpreter.get_signature_runner()(**rows).values()
    np.testing.assert_allclose(received, model.predict(rows, batch_size=600, verbose=0), atol=5e-7)
