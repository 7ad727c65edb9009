"""The trainers of networks: what a step is fed with, and that both take the same steps."""

import keras
import numpy as np
import pytest

from keras_calibration.layers import FieldNetwork, FitSettings
from keras_calibration.layers.field_network_trainer import FieldNetworkTrainer
from keras_calibration.layers.head_logits import head_log_losses
from keras_calibration.layers.keras_trainer import KerasTrainer
from keras_calibration.layers.network_trainer import TrainingRows

NUM_ROWS = 50
RNG = np.random.default_rng(0)


def rows_of(features, num_classes=1):
    generator = np.random.default_rng(1)
    labels = generator.integers(0, max(num_classes, 2), NUM_ROWS)
    one_hot = np.eye(num_classes)[labels] if num_classes > 1 else labels[:, None]
    return TrainingRows(
        curve=generator.normal(size=(NUM_ROWS, num_classes)).astype("float32"),
        features=features,
        labels=one_hot.astype("float32"),
        weights=generator.choice([0.5, 1.5], NUM_ROWS).astype("float32"),
    )


def trainer_of(network, features, learning_rate=0.01, trainer=None, num_classes=1):
    trainer = trainer or (FieldNetworkTrainer if type(network) is FieldNetwork else KerasTrainer)
    settings = FitSettings(learning_rate=learning_rate, batch_size=16)
    return trainer(network, rows_of(features, num_classes), settings)


def g_of(trainer, network, features):
    """The network's own output with the weights that the trainer has found."""
    if not network.built:
        network.build()
    network.set_weights(trainer.weights())
    return keras.ops.convert_to_numpy(network(features))


FEATURES = {
    "site": RNG.integers(0, 6, NUM_ROWS).astype("int32"),
    "device": RNG.integers(0, 3, (NUM_ROWS, 1)).astype("int32"),
    "age": np.where(RNG.random(NUM_ROWS) < 0.2, np.nan, RNG.normal(size=NUM_ROWS)),
    "price": np.append(RNG.normal(size=NUM_ROWS - 2), [np.inf, -np.inf]).astype("float32"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"numeric": ()},
        {"fields": {}, "num_coarse_knots": 0},
        {"hidden_units": (), "regularization": 0.0},
        {"hidden_units": (7,), "num_outputs": 3},
    ],
)
def test_both_trainers_take_the_same_steps(form):
    """The NumPy steps against those of Keras: loss, gradients, prior, Adam, average, classes."""
    arguments = {"fields": {"site": 5, "device": 3}, "numeric": ("age", "price"), **form}
    network = FieldNetwork(**arguments, embedding_dim=4, num_numeric_knots=9, dropout=0.0, seed=1)
    received, expected = (
        trainer_of(network, FEATURES, 0.02, trainer, network.num_outputs)
        for trainer in (FieldNetworkTrainer, KerasTrainer)
    )
    everything = np.arange(NUM_ROWS)
    for trainer in (received, expected):
        trainer.restart(everything)
        for _ in range(3):
            trainer.train_epoch(everything)
    np.testing.assert_allclose(received.logits(everything), expected.logits(everything), atol=2e-5)
    change = expected.logits(everything) - expected.rows.curve
    assert np.abs(change).max() > 0.02
    for weight, other in zip(received.weights(), expected.weights(), strict=True):
        np.testing.assert_allclose(weight, other, atol=5e-5)


def test_units_are_dropped_in_training_alone():
    features = {"site": FEATURES["site"]}
    everything, losses = np.arange(NUM_ROWS), []
    for dropout in (0.0, 0.5):
        network = FieldNetwork({"site": 6}, hidden_units=(100,), dropout=dropout, seed=0)
        trainer = trainer_of(network, features, 0.02)
        trainer.restart(everything)
        for _ in range(20):
            trainer.train_epoch(everything)
        g = g_of(trainer, network, features)
        np.testing.assert_allclose(trainer.logits(everything), trainer.rows.curve + g, atol=1e-6)
        rows = trainer.rows
        losses.append(rows.weights @ head_log_losses(rows.labels, trainer.logits(everything)))
    start = rows.weights @ head_log_losses(rows.labels, rows.curve.astype("float64"))
    assert max(losses) < 0.95 * start
    assert losses[0] != losses[1]


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
    g = g_of(trainer, network, {name: column[some] for name, column in features.items()})
    assert np.ptp(g) > 1e-3
    expected = trainer.rows.curve[some] + g
    np.testing.assert_allclose(trainer.logits(some), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trainer", [FieldNetworkTrainer, KerasTrainer])
def test_training_stops_and_the_best_epoch_is_kept(trainer):
    # The labels have nothing to do with the features: the network can only learn them by heart.
    features = {"site": RNG.integers(0, 20, NUM_ROWS).astype("int32")}
    network = FieldNetwork({"site": 20}, dropout=0.0, seed=0)
    trainer = trainer_of(network, features, 0.1, trainer)
    numbers = np.arange(NUM_ROWS)
    held_out = numbers % 2 == 0
    epoch, logits, weights = trainer.train(numbers[~held_out], numbers[held_out])
    assert epoch < 10
    labels = trainer.rows.labels[held_out]
    curve = trainer.rows.curve[held_out].astype("float64")
    assert head_log_losses(labels, logits).mean() <= head_log_losses(labels, curve).mean()
    network = FieldNetwork({"site": 20})
    network.build()
    network.set_weights(weights)
    g = network({"site": features["site"][held_out]})
    np.testing.assert_allclose(curve + keras.ops.convert_to_numpy(g), logits, atol=1e-6)


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
    g = g_of(trainer, network, features)
    assert len(np.unique(g.round(6))) == 3
    np.testing.assert_allclose(
        trainer.logits(everything), trainer.rows.curve + g, rtol=1e-5, atol=1e-6
    )
