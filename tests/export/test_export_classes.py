"""Export and refresh of a calibrated model of several classes."""

import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from class_worlds import base_model, class_rows
from keras_calibration.export import refresh_savedmodel
from keras_calibration.layers import VectorScaling
from keras_calibration.models import CalibratedModel


@pytest.fixture(scope="module")
def model():
    x, labels = class_rows(1500)
    model = CalibratedModel(base_model(), VectorScaling(3))
    kc.fit_head(model, x, labels, verbose=0)
    return model


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_every_signature_serves_the_classes(model, tmp_path, jit_compile):
    x, _ = class_rows(7, seed=1)
    path = kc.export_savedmodel(model, tmp_path / "1", x, jit_compile=jit_compile)
    signatures = tf.saved_model.load(str(path)).signatures
    inputs = {name: tf.constant(column) for name, column in x.items()}
    served = signatures["serving_default"](**inputs)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(served["probability"], expected, atol=1e-6)
    np.testing.assert_allclose(served["logit"], x["scores"], atol=1e-6)
    raw = signatures["raw"](**inputs)["uncalibrated_probability"]
    np.testing.assert_allclose(raw, base_model()(x), atol=1e-6)
    head = signatures["calibrate"](logit=served["logit"])
    np.testing.assert_allclose(head["probability"], expected, atol=1e-6)


@pytest.mark.slow
def test_refreshed_on_new_rows(model, tmp_path):
    x, _ = class_rows(9)
    path = kc.export_savedmodel(model, tmp_path / "1", x)
    new, labels = class_rows(1500, scale=0.3, seed=2)
    # A softmax leaves open a constant of each row, on which the head's scales depend.
    with pytest.raises(ValueError, match="`from_logits` must be True for classes"):
        refresh_savedmodel(path, base_model()(new), labels, from_logits=False)
    second = refresh_savedmodel(path, new["scores"], labels, from_logits=True)
    head = VectorScaling(3)
    head.fit(new["scores"], labels)
    serve = tf.saved_model.load(str(second)).signatures["serving_default"]
    served = serve(**{name: tf.constant(column) for name, column in new.items()})
    expected = tf.nn.softmax(head(new["scores"]))
    np.testing.assert_allclose(served["probability"], expected, atol=1e-6)
