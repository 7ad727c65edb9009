"""CalibratedModel around a base model of several classes."""

import keras
import numpy as np
import pytest
import scipy.special

from class_worlds import base_model, class_rows, log_loss
from keras_calibration import base_logits, fit_head
from keras_calibration.layers import ILPS, TemperatureScaling, VectorScaling
from keras_calibration.models import CalibratedModel


def test_the_direct_fit_is_that_of_the_calibrator():
    x, labels = class_rows()
    weights = np.random.default_rng(1).uniform(0, 2, len(labels)).astype("float32")
    model = CalibratedModel(base_model(), VectorScaling(3))
    fit_head(model, x, np.eye(3)[labels], weights, verbose=0)
    alone = VectorScaling(3)
    alone.fit(x["scores"], labels, sample_weight=weights)
    expected = scipy.special.softmax(alone.scales * x["scores"] + alone.biases, axis=1)
    received = model.predict(x, verbose=0)
    assert received.shape == (3000, 3)
    np.testing.assert_allclose(received, expected, atol=1e-5)
    assert log_loss(labels, received) < log_loss(labels, base_model()(x)) - 0.05
    np.testing.assert_allclose(base_logits(model, x), x["scores"], atol=1e-6)
    before = -scipy.special.log_softmax(x["scores"], axis=1)[np.arange(len(labels)), labels]
    expected = np.average(before, weights=weights)
    assert model.head.fit_summary.log_loss_before == pytest.approx(expected, abs=1e-5)


def test_a_fit_that_misses_a_class_warns_of_it():
    x, labels = class_rows(num_rows=600)
    x["scores"] = x["scores"] + np.array([0, 0, 3], "float32")  # which no temperature corrects
    model = CalibratedModel(base_model(), TemperatureScaling())
    with pytest.warns(UserWarning, match="mean prediction of class 2"):
        fit_head(model, x, labels, verbose=0)


@pytest.mark.parametrize("head", [ILPS(), VectorScaling(4)])
def test_a_head_for_other_logits_is_refused_and_nothing_is_frozen(head):
    base = base_model()
    base = keras.Model(base.input, keras.layers.Dense(3, "softmax")(base.input["scores"]))
    with pytest.raises(ValueError, match=r"shape \(None, 3\)"):
        CalibratedModel(base, head)
    assert len(base.trainable_variables) == 2
