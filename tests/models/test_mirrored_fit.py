"""Keras' `fit` and `fit_head` of a calibrated model under a `MirroredStrategy` of two CPUs."""

import json
import subprocess
import sys

import pytest

IN_A_NEW_PROCESS = """
import json, warnings
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, numpy as np
import keras_calibration as kc

rng = np.random.default_rng(0)
x = {
    "price": rng.normal(size=(512, 1)).astype("float32"),
    "site": rng.integers(0, 3, 512).astype("int32"),
}
logit = x["price"][:, 0] + x["site"] - 1
y = (rng.random(512) < 1 / (1 + np.exp(-logit))).astype("float32")


def make():
    keras.utils.set_random_seed(0)
    inputs = {
        "price": keras.Input((1,), name="price"),
        "site": keras.Input((), dtype="int32", name="site"),
    }
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))
    network = kc.layers.FieldNetwork(
        {"site": 3}, numeric=["price"], embedding_dim=2, hidden_units=(4,), dropout=0, seed=0
    )
    head = kc.layers.NeuralCalibration(kc.layers.ILPS(num_knots=5), network)
    model = kc.models.CalibratedModel(base, head)
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=[kc.metrics.LogLoss()])
    return model


def fitted(model):
    found = []
    warnings.simplefilter("ignore")
    model.head.adapt(kc.base_logits(model, x), y, x)
    model.fit(x, y, batch_size=64, epochs=2, shuffle=False, verbose=0)
    found.append(model.predict(x, batch_size=64, verbose=0)[:, 0].tolist())
    warnings.simplefilter("error", UserWarning)
    summary = kc.fit_head(model, x, y, verbose=0)
    found.append(model.predict(x, batch_size=64, verbose=0)[:, 0].tolist())
    scores = model.evaluate(x, y, verbose=0, return_dict=True)
    return found, summary.log_loss_in_sample, scores["log_loss"]


with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    mirrored = make()
print(json.dumps([fitted(mirrored), fitted(make())]))
"""


@pytest.mark.slow
def test_fit_under_a_mirrored_strategy():
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    mirrored, alone = json.loads(done.stdout.splitlines()[-1])
    for on_two, on_one in zip(mirrored[0], alone[0], strict=True):
        assert max(abs(a - b) for a, b in zip(on_two, on_one, strict=True)) < 1e-4
    for predictions, loss, evaluated in (mirrored, alone):
        assert len(predictions) == 2
        assert abs(loss - evaluated) < 1e-5
