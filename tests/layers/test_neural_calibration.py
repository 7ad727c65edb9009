"""NeuralCalibration, the sum of a curve and a field network."""

import keras
import numpy as np
import pytest

from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration


def functional_network():
    inputs = {"age": keras.Input((1,), name="age"), "pair": keras.Input((2,), name="pair")}
    hidden = keras.layers.Concatenate()([inputs["age"], inputs["pair"]])
    return keras.Model(inputs, keras.layers.Dense(1, bias_initializer="ones")(hidden))


def bent():
    layer = ILPS(knots=[-1, 0, 2])
    layer.get_values()
    layer._assign_values(np.float32([-2, 0.5, 1]))
    return layer


FEATURES = {
    "site": np.array([0, 2, 9]),
    "age": np.float32([[1], [2], [3]]),
    "pair": np.ones((3, 2), np.float32),
}
LOGITS = np.float32([-1.5, 0.25, 4])


def head_model(head, features):
    inputs = {
        name: keras.Input(values.shape[1:], dtype=values.dtype.name, name=name)
        for name, values in features.items()
    }
    logits = keras.Input((), name="logits")
    return keras.Model([logits, inputs], head(logits, inputs))


@pytest.mark.parametrize("kind", ["fields", "functional"])
def test_is_the_sum_of_its_parts(kind, reload):
    network = functional_network() if kind == "functional" else FieldNetwork({"site": 3}, seed=0)
    names = ("age", "pair") if kind == "functional" else ("site",)
    features = {name: FEATURES[name] for name in names}
    network(features)
    for weight in network.trainable_weights:
        weight.assign(np.random.default_rng(0).normal(0, 1, weight.shape))
    curve = bent()
    head = NeuralCalibration(curve, network)
    expected = np.asarray(curve(LOGITS))[:, None] + np.asarray(network(features))
    assert np.std(network(features)) > 0.1
    for logits in (LOGITS, LOGITS[:, None]):
        received = head(logits, features)
        assert (received.shape, received.dtype) == ((3, 1), "float32")
        np.testing.assert_allclose(received, expected, rtol=1e-6)
    assert sorted(head.feature_names) == sorted(names)

    model = head_model(head, features)
    assert model.output.shape == (None, 1)
    predicted = model.predict([LOGITS, features], verbose=0)
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)
    restored = reload(model)
    np.testing.assert_array_equal(restored.predict([LOGITS, features], verbose=0), predicted)


def test_calibrator_alone():
    head = NeuralCalibration(bent())
    np.testing.assert_allclose(head(LOGITS, FEATURES)[:, 0], bent()(LOGITS))
    assert head.feature_names == ()
    head.adapt(LOGITS, {}, np.array([0, 1, 1]))
    assert head.is_adapted


def test_any_layer_may_calibrate():
    head = NeuralCalibration(keras.layers.Dense(1), FieldNetwork({"site": 3}))
    assert head(LOGITS, FEATURES).shape == (3, 1)
    assert not head.is_adapted
    head.adapt(LOGITS, FEATURES, np.array([0, 1, 1]))
    assert head.is_adapted
    head.finalize()


def test_adapt_and_finalize_reach_both_parts():
    curve, network = ILPS(3), FieldNetwork({"site": 3}, ("age",))
    head = NeuralCalibration(curve, network)
    assert not head.is_adapted
    weights = np.array([1.0, 1.0, 0.0])
    head.adapt(LOGITS, FEATURES, np.array([0, 1, 1]), weights)
    assert head.is_adapted
    assert curve.is_adapted
    assert network.is_adapted
    alone = ILPS(3)
    alone.adapt(LOGITS, np.array([0, 1, 1]), weights)
    np.testing.assert_array_equal(curve.get_knots(), alone.get_knots())
    assert curve.get_knots().max() < 4
    curve._free_values.assign([2.0, 1.0, 0.0])
    head.finalize()
    np.testing.assert_array_equal(curve.get_values(), [1, 1, 1])


def test_losses_of_both_parts_are_the_heads():
    curve, network = bent(), FieldNetwork({"site": 3}, seed=0, regularization=5.0)
    head = NeuralCalibration(curve, network)
    head.adapt(LOGITS, FEATURES, np.array([0, 1, 1]))
    curve._free_values.assign([2.0, 1.0, 1.0])
    head(LOGITS, FEATURES)
    received = sum(map(float, head.losses))
    network(FEATURES)
    curve(LOGITS)
    assert received == pytest.approx(
        sum(map(float, network.losses)) + sum(map(float, curve.losses)), rel=1e-6
    )
    assert received > 1


def test_config_round_trip():
    head = NeuralCalibration(
        ILPS(5, "sigmoid"), FieldNetwork({"site": 3}, ("age",), seed=1), name="head"
    )
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(head))
    assert restored.get_config() == head.get_config()
    assert restored.name == "head"
    alone = NeuralCalibration(ILPS())
    restored = NeuralCalibration.from_config(alone.get_config())
    assert restored.field_network is None


@pytest.mark.parametrize("jit_compile", [False, True])
def test_trains(jit_compile, clicks):
    logits, labels = clicks
    features = {"site": np.arange(len(logits)) % 4}
    head = NeuralCalibration(ILPS(), FieldNetwork({"site": 4}, embedding_dim=2, seed=0))
    head.adapt(logits, features, labels)
    model = head_model(head, features)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, jit_compile=jit_compile)
    inputs = [logits[:, 0], features]
    before = model.evaluate(inputs, labels, verbose=0)
    model.fit(inputs, labels, batch_size=100, epochs=4, verbose=0)
    head.finalize()
    assert model.evaluate(inputs, labels, verbose=0) < before - 0.01


def test_float32_under_a_mixed_policy(mixed_bfloat16):
    head = NeuralCalibration(ILPS(), functional_network())
    network = functional_network()  # in bfloat16
    features = {"age": FEATURES["age"], "pair": FEATURES["pair"]}
    assert network(features).dtype == "bfloat16"
    head.field_network.set_weights([0 * weight for weight in head.field_network.get_weights()])
    received = head(LOGITS + 1e-4, features)
    assert received.dtype == "float32"
    np.testing.assert_allclose(received[:, 0], LOGITS + 1e-4, rtol=1e-6)


@pytest.mark.parametrize("arguments", [(None,), ("ilps",), (ILPS(), lambda features: 0)])
def test_parts_must_be_layers(arguments):
    with pytest.raises(ValueError, match="must be a Keras layer"):
        NeuralCalibration(*arguments)


@pytest.mark.parametrize("shape", [(3, 2), (1, 2), ()])
def test_other_shapes_of_logits_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(batch,\) or \(batch, 1\)"):
        NeuralCalibration(ILPS())(np.zeros(shape, np.float32), {})


def test_a_network_of_several_outputs_is_refused():
    inputs = {"age": keras.Input((1,), name="age")}
    network = keras.Model(inputs, keras.layers.Dense(2)(inputs["age"]))
    with pytest.raises(ValueError, match=r"corrections of shape.*\(1, 2\)"):
        NeuralCalibration(ILPS(), network)(np.zeros(1, np.float32), {"age": np.ones((1, 1))})


def test_a_missing_feature_is_named():
    head = NeuralCalibration(ILPS(), FieldNetwork({"site": 3, "device": 2}))
    with pytest.raises(ValueError, match=r"without \['device'\]"):
        head(LOGITS, {"site": FEATURES["site"]})
