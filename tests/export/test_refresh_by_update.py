"""A refresh with `forget` below 1 is an update of the head that is served."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit

import keras_calibration as kc
from keras_calibration.export import export_onnx, refresh_onnx
from keras_calibration.export.onnx.export import run_onnx
from keras_calibration.layers import ILPS, FieldBias
from keras_calibration.models import CalibratedModel
from tiers import slow_except

NUM_ROWS = 4000
pytestmark = pytest.mark.tensorflow


def served_model(follows_time):
    """A model of a score, as for bases that cannot be moved: the head alone."""
    inputs = {
        "score": keras.Input((1,), name="score"),
        "site": keras.Input((), dtype="string", name="site"),
    }
    base = keras.Model(inputs, keras.layers.Identity()(inputs["score"]))
    sites = keras.layers.StringLookup(vocabulary=["news", "mail", "shop"])
    head = FieldBias({"site": sites}, ILPS(), follows_time=follows_time)
    return CalibratedModel(base, head, base_output="logit")


def make_rows(seed=0):
    generator = np.random.default_rng(seed)
    scores = generator.normal(-1.0, 1.0, NUM_ROWS)
    site = generator.choice(["news", "mail", "shop"], NUM_ROWS).astype(object)
    day = np.arange(NUM_ROWS) // 200
    labels = generator.random(NUM_ROWS) < expit(scores + (site == "news") + 0.05 * day)
    return scores.astype("float32"), labels.astype(float), {"site": site}, day.astype(float)


def parts(follows_time, place):
    scores, labels, features, day = make_rows()
    time = {"time": day[place]} if follows_time else {}
    return (scores[place], labels[place], {"site": features["site"][place]}), time


def answer(path, inputs):
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    return signature(**{name: tf.constant(values) for name, values in inputs.items()})


@pytest.mark.parametrize("follows_time", slow_except([True], [False, True]))
def test_a_served_head_is_updated(follows_time, tmp_path):
    old, new = slice(0, 3000), slice(3000, NUM_ROWS)
    model = served_model(follows_time)
    rows, time = parts(follows_time, old)
    model.head.fit(*rows, **time)
    path = kc.export_savedmodel(model, tmp_path / "1", interval=0.9, verify="same_process")
    given, time = parts(follows_time, new)
    options = {"from_logits": True, "forget": 0.1, "verify": "same_process"}
    second = kc.refresh_savedmodel(path, *given, **time, **options)
    summary = model.head.update(*given, forget=0.1, **time)
    assert summary.num_rows == 1000
    inputs = {"score": given[0][:50, None], "site": given[2]["site"][:50]}
    expected = model.predict(inputs, verbose=0)
    found = answer(second, inputs)
    np.testing.assert_allclose(found["probability"].numpy(), expected, rtol=0, atol=1e-6)
    lower, _ = model.head.interval(given[0][:50], {"site": inputs["site"]}, level=0.9)
    np.testing.assert_allclose(
        found["probability_lower"].numpy().reshape(-1), lower.reshape(-1), rtol=0, atol=1e-6
    )
    if follows_time:
        with pytest.raises(ValueError, match="must not be before the last row"):
            kc.refresh_savedmodel(second, *rows, **parts(True, old)[1], **options)
        third = kc.refresh_savedmodel(second, *given, time="order", **options)
        assert third.name == "3"


def test_an_onnx_file_is_updated(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    model = served_model(True)
    rows, time = parts(True, slice(0, 3000))
    model.head.fit(*rows, **time)
    path = export_onnx(model, tmp_path / "1.onnx")
    given, time = parts(True, slice(3000, NUM_ROWS))
    second = refresh_onnx(
        path, *given, **time, from_logits=True, forget=0.1, destination=tmp_path / "2.onnx"
    )
    model.head.update(*given, forget=0.1, **time)
    inputs = {"score": given[0][:50, None], "site": given[2]["site"][:50]}
    found = run_onnx(second, inputs)["probability"]
    np.testing.assert_allclose(found, model.predict(inputs, verbose=0), rtol=0, atol=1e-6)
