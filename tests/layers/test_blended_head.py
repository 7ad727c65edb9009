"""BlendedHead: the mean of heads, in and out of a compiled model."""

import json

import keras
import numpy as np
import pytest

from keras_calibration.layers import (
    ILPS,
    BiasCorrection,
    BlendedHead,
    FieldBias,
    FieldNetwork,
    FitSettings,
    NeuralCalibration,
    PlattScaling,
)


def heads():
    network = FieldNetwork({"site": 3}, ["price"], embedding_dim=2, hidden_units=(4,), seed=0)
    return [FieldBias({"site": 3}, PlattScaling()), NeuralCalibration(ILPS(), network)]


def clicks(num_rows=600):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=num_rows).astype("float32")
    features = {
        "site": rng.integers(0, 4, num_rows).astype("int32"),
        "price": rng.normal(size=num_rows).astype("float32"),
    }
    chance = 1 / (1 + np.exp(-0.7 * logits - features["site"] + 1.5))
    return logits, rng.random(num_rows) < chance, features


def test_fit_is_the_fit_of_each_head():
    logits, labels, features = clicks()
    weights = np.linspace(0.5, 2, len(logits))
    head = BlendedHead(heads())
    summary = head.fit(
        logits, labels, features, weights, settings=FitSettings(folds=2, max_epochs=2, seed=3)
    )
    alone = heads()
    alone[0].fit(logits, labels, features, weights)
    alone[1].fit(
        logits, labels, features, weights, settings=FitSettings(folds=2, max_epochs=2, seed=3)
    )
    for fitted, expected in zip(head.heads, alone, strict=True):
        for one, other in zip(fitted.get_weights(), expected.get_weights(), strict=True):
            # Rows in another order may turn the columns of a posterior's factor round.
            np.testing.assert_allclose(np.abs(one), np.abs(other), rtol=1e-4, atol=1e-5)
    outputs = keras.ops.convert_to_numpy(head(logits, features))[:, 0].astype("float64")
    losses = np.logaddexp(0, outputs) - labels * outputs
    np.testing.assert_allclose(summary.log_loss_in_sample, np.average(losses, weights=weights))
    assert summary.num_rows == len(logits)
    assert summary.log_loss_in_sample < summary.log_loss_before


def test_weights_and_what_is_left_to_the_logit():
    logits = np.array([0.5, -1.0, np.inf, -np.inf])
    parts = [BiasCorrection(), PlattScaling()]
    for head in parts:
        head.fit(np.linspace(-2, 2, 90), np.arange(90) * 37 % 90 < np.arange(90))
    blend = BlendedHead(parts, head_weights=[0.25, 0.5])
    received = keras.ops.convert_to_numpy(blend(logits))[:, 0]
    one, two = (np.ravel(head(logits)) for head in parts)
    np.testing.assert_allclose(received, 0.25 * one + 0.5 * two + 0.25 * logits, rtol=1e-6)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(blend)))
    assert keras.saving.deserialize_keras_object(config).head_weights == [0.25, 0.5]
    alone = BlendedHead([parts[0]], head_weights=[0.5])
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(alone(logits))[:2, 0], 0.5 * (one + logits)[:2], rtol=1e-6
    )
    for wrong in ([0.5], [0.7, 0.4], [1.0, 0.0], [np.nan, 0.5]):
        with pytest.raises(ValueError, match="`head_weights` must be 2"):
            BlendedHead(parts, head_weights=wrong)
