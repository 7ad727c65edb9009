"""BlendedHead: the mean of heads, in and out of a compiled model."""

import keras
import numpy as np
import pytest

from keras_calibration.layers import (
    ILPS,
    BlendedHead,
    FieldBias,
    FieldNetwork,
    NeuralCalibration,
    PlattScaling,
)

LOGITS = np.linspace(-3, 3, 40).astype("float32")
FEATURES = {"site": np.arange(40, dtype="int32") % 4, "price": LOGITS**2}


def heads():
    network = FieldNetwork({"site": 3}, ["price"], embedding_dim=2, hidden_units=(4,), seed=0)
    return [FieldBias({"site": 3}, PlattScaling()), NeuralCalibration(ILPS(), network)]


def test_it_starts_as_the_identity_and_reads_what_its_heads_read():
    head = BlendedHead(heads())
    outputs = keras.ops.convert_to_numpy(head(LOGITS, FEATURES))
    np.testing.assert_allclose(outputs[:, 0], LOGITS, atol=1e-6)
    assert head.feature_names == ("site", "price")
    assert not head.is_adapted
    head.adapt(LOGITS, FEATURES, LOGITS > 0)
    assert head.is_adapted
    head.finalize()


def test_it_is_the_mean_and_serializes():
    parts = heads()
    parts[0].build()
    parts[0].set_weights([weight + 0.3 for weight in parts[0].get_weights()])
    head = BlendedHead(parts)
    outputs = keras.ops.convert_to_numpy(head(LOGITS[:, None], FEATURES))
    of_parts = [keras.ops.convert_to_numpy(part(LOGITS, FEATURES)) for part in parts]
    np.testing.assert_allclose(outputs, np.mean(of_parts, axis=0), atol=1e-6)
    assert np.ptp(of_parts[0] - of_parts[1]) > 0.1
    copy = BlendedHead.from_config(head.get_config())
    copy.build((None, 1), None)
    copy.set_weights(head.get_weights())
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(copy(LOGITS, FEATURES)), outputs)


@pytest.mark.parametrize("wrong", [[], [PlattScaling()], [FieldBias({"site": 3}), "neural"]])
def test_anything_but_two_heads_is_refused(wrong):
    with pytest.raises(ValueError, match="must be two Keras layers or more"):
        BlendedHead(wrong)
