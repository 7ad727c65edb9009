"""The trainer of field networks: what a step is fed with."""

import keras
import numpy as np
import pytest

from keras_calibration.layers import FieldNetwork
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head_logits import head_log_losses
from keras_calibration.layers.network_training import NetworkTrainer, TrainingRows

NUM_ROWS = 50
RNG = np.random.default_rng(0)


def trainer_of(network, features, learning_rate=0.01):
    return NetworkTrainer(
        network,
        TrainingRows(
            curve=RNG.normal(size=(NUM_ROWS, 1)).astype("float32"),
            features=features,
            labels=RNG.integers(0, 2, (NUM_ROWS, 1)).astype("float32"),
            weights=np.ones(NUM_ROWS, "float32"),
        ),
        FitSettings(learning_rate=learning_rate, batch_size=16),
    )


def test_columns_of_every_dtype_and_shape_reach_the_network_as_they_are():
    features = {
        "site": RNG.integers(0, 4, NUM_ROWS).astype("int32"),
        "price": RNG.normal(size=NUM_ROWS).astype("float32"),
        "device": RNG.integers(0, 3, (NUM_ROWS, 1)).astype("int32"),
        "hour": RNG.integers(0, 24, NUM_ROWS).astype("int32"),
        "age": RNG.normal(size=NUM_ROWS).astype("float32"),
    }
    network = FieldNetwork({"site": 4, "device": 3, "hour": 24}, ["age", "price"], dropout=0.0)
    trainer = trainer_of(network, features)
    everything = np.arange(NUM_ROWS)
    trainer.restart(everything)
    for _ in range(3):
        trainer.train_epoch(everything)
    some = np.array([3, 41, 0, 17, 3])
    g = trainer.network({name: column[some] for name, column in features.items()})
    assert np.ptp(g) > 1e-3
    expected = trainer.rows.curve[some] + np.asarray(g)
    np.testing.assert_allclose(trainer.logits(some), expected, rtol=1e-5, atol=1e-6)


def test_training_stops_and_the_best_epoch_is_kept():
    # The labels have nothing to do with the features: the network can only learn them by heart.
    features = {"site": RNG.integers(0, 20, NUM_ROWS).astype("int32")}
    trainer = trainer_of(FieldNetwork({"site": 20}, dropout=0.0, seed=0), features, 0.1)
    numbers = np.arange(NUM_ROWS)
    held_out = numbers % 2 == 0
    epoch, logits, weights = trainer.train(numbers[~held_out], numbers[held_out])
    assert epoch < 10
    labels = trainer.rows.labels[held_out]
    curve = trainer.rows.curve[held_out].astype("float64")
    assert head_log_losses(labels, logits).mean() <= head_log_losses(labels, curve).mean()
    trainer.network.set_weights(weights)
    np.testing.assert_allclose(trainer.logits(numbers[held_out]), logits, atol=1e-6)


def test_vectors_reach_a_model_of_ones_own():
    shapes = {"embedding": (3,), "site": (), "place": (3,)}
    inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
    together = keras.ops.concatenate(
        [inputs["embedding"], 2.0 * inputs["place"], inputs["site"][:, None]], axis=1
    )
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(together))
    features = {
        "embedding": RNG.normal(size=(NUM_ROWS, 3)).astype("float32"),
        "site": RNG.normal(size=NUM_ROWS).astype("float32"),
        "place": RNG.normal(size=(NUM_ROWS, 3)).astype("float32"),
    }
    trainer = trainer_of(model, features)
    everything = np.arange(NUM_ROWS)
    trainer.restart(everything)
    g = features["embedding"].sum(1) + 2 * features["place"].sum(1) + features["site"]
    received = trainer.logits(everything)[:, 0] - trainer.rows.curve[:, 0]
    np.testing.assert_allclose(received, g, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Strings are TensorFlow's.")
def test_strings_of_every_kind_are_looked_up():
    values = np.array(["a", "bb", "ccc"])
    chosen = RNG.integers(0, 3, NUM_ROWS)
    features = {
        "unicode": values[chosen],
        "bytes": values.astype("S")[chosen],
        "objects": values.astype(object)[chosen],
    }
    lookups = {name: keras.layers.StringLookup(vocabulary=["a", "bb"]) for name in features}
    network = FieldNetwork(lookups, dropout=0.0)
    trainer = trainer_of(network, features)
    everything = np.arange(NUM_ROWS)
    trainer.restart(everything)
    trainer.train_epoch(everything)
    g = np.asarray(trainer.network(features))
    assert len(np.unique(g.round(6))) == 3
    np.testing.assert_allclose(
        trainer.logits(everything), trainer.rows.curve + g, rtol=1e-5, atol=1e-6
    )
