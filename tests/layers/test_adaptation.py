"""Layers trained in a model of the user's own, before anything has called `adapt`."""

import keras
import numpy as np
import pytest

from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration

AGES = np.linspace(0, 9, 64, dtype="float32")
LABELS = (AGES > 5).astype("float32")[:, None]
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
only_on_tensorflow = pytest.mark.skipif(not ON_TENSORFLOW, reason="JAX cannot read a traced weight")


def network_model(network):
    inputs = {name: keras.Input((), name=name) for name in network.feature_names}
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(network(inputs)))


def by_fit(model, x):
    model.fit(x, LABELS, batch_size=64, epochs=1, verbose=0)


def by_train_on_batch(model, x):
    model.train_on_batch(x, LABELS)


def by_own_loop(model, x):
    import tensorflow as tf

    with tf.GradientTape() as tape:  # no `training=True`, as users often write it
        loss = keras.ops.mean(model.loss(LABELS, model(x)))
    variables = model.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


LOOPS = [by_fit, by_train_on_batch, by_own_loop]


def compiled_model(model, **arguments):
    model.compile("adam", keras.losses.BinaryCrossentropy(), **arguments)
    return model


@pytest.mark.quick_cases(1)
@only_on_tensorflow
@pytest.mark.parametrize("loop", LOOPS)
def test_numeric_columns_without_knots_are_not_trained(loop):
    network = FieldNetwork({}, ["age"], hidden_units=(4,))
    model = compiled_model(network_model(network))
    before = network.get_weights()
    with pytest.raises(ValueError, match=r"(?s)numeric=\['age'\].*Call field_network\S*\.adapt"):
        loop(model, {"age": AGES})
    for weight, earlier in zip(network.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, earlier)
    network.adapt({"age": AGES})
    loop(compiled_model(model), {"age": AGES})
    assert np.any(network._output.kernel)


@pytest.mark.skipif(ON_TENSORFLOW, reason="an error there")
def test_a_compiled_step_of_jax_gives_nan():
    network = FieldNetwork({}, ["age"], hidden_units=(4,))
    model = compiled_model(network_model(network))
    by_fit(model, {"age": AGES})
    assert np.isnan(model.predict({"age": AGES}, verbose=0)).all()
    again = FieldNetwork({}, ["age"], hidden_units=(4,))
    model = compiled_model(network_model(again))
    again.adapt({"age": AGES})
    by_fit(model, {"age": AGES})
    assert np.isfinite(model.predict({"age": AGES}, verbose=0)).all()


def test_predicting_before_adapt_is_no_change():
    network = FieldNetwork({}, ["age"])
    model = compiled_model(network_model(network))
    np.testing.assert_array_equal(model.predict({"age": AGES}, verbose=0), 0.5)
    assert model.evaluate({"age": AGES}, LABELS, verbose=0) == pytest.approx(np.log(2))
    head = NeuralCalibration(ILPS(), network)
    np.testing.assert_allclose(head(AGES, {"age": AGES})[:, 0], AGES, atol=1e-5)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("make", [ILPS, ILPS.from_paper, lambda: ILPS(4, "quantile")])
def test_a_curve_can_be_trained_without_adapt(make):
    """Together with its base, whose logits are not known before; a warning is an error here."""
    curve = make()
    hidden = keras.layers.Dense(1)(inputs := keras.Input((1,)))
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(curve(hidden)))
    before = curve.get_values()
    by_fit(compiled_model(model), AGES[:, None])
    assert np.any(curve.get_values() != before)


@pytest.mark.quick_cases(1)
@only_on_tensorflow
@pytest.mark.parametrize("make", [ILPS.from_paper, ILPS], ids=["paper", "default"])
@pytest.mark.parametrize("rate", [0.001, 0.5])
def test_a_trained_curve_is_calibrated_on_its_own_rows(rate, make):
    import tensorflow as tf

    generator = np.random.default_rng(0)
    logits = generator.normal(np.log(rate / (1 - rate)), 1.5, 10_000).astype("float32")
    labels = (generator.random(10_000) < 1 / (1 + np.exp(-logits))).astype("float32")
    curve, logits = make(), 1.3 * logits + 0.5
    model = keras.Sequential([keras.Input((1,)), curve, keras.layers.Activation("sigmoid")])
    decay = keras.optimizers.schedules.CosineDecay(0.1, 400)
    model.compile(keras.optimizers.Adam(decay), "binary_crossentropy")
    # All rows in a step: what is left is not the noise of batches.
    rows = tf.data.Dataset.from_tensors((logits[:, None], labels[:, None]))
    model.fit(rows.repeat(400), shuffle=False, verbose=0)
    predicted = 1 / (1 + np.exp(-np.asarray(curve(logits), np.float64)))
    assert predicted.mean() == pytest.approx(labels.mean(), rel=0.01)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("regularization", [0.0, 1.0])
def test_a_network_of_ids_can_be_trained_without_adapt(regularization):
    sites = np.arange(64) % 3
    network = FieldNetwork({"site": 3}, hidden_units=(4,), regularization=regularization)
    by_fit(compiled_model(network_model(network)), {"site": sites})
    assert np.any(network._output.kernel)


def test_adapt_of_a_head_is_that_of_its_curve_and_of_each_network():
    network = FieldNetwork({}, ["age"], hidden_units=(4,))
    head = NeuralCalibration(ILPS(8), network, num_members=2)
    logits = np.linspace(-3, 1, 64, dtype="float32")
    head.adapt(logits, LABELS[:, 0], {"age": AGES})
    curve, alone = ILPS(8), FieldNetwork({}, ["age"], hidden_units=(4,))
    curve.adapt(logits, LABELS[:, 0])
    alone.adapt({"age": AGES})
    np.testing.assert_array_equal(head.calibrator.get_knots(), curve.get_knots())
    assert np.ptp(alone._knots)
    for member in head.members:
        np.testing.assert_array_equal(member._knots, alone._knots)
        np.testing.assert_array_equal(member._coarse_knots, alone._coarse_knots)
