"""NetworkTrainer: its steps beside a reference, what they are fed with, and when they end."""

import keras
import numpy as np
import pytest

from keras_calibration._rows.rows import Rows
from keras_calibration.layers import FieldNetwork, FitSettings, network_trainer
from keras_calibration.layers.network_trainer import NetworkTrainer

NUM_ROWS = 50
RNG = np.random.default_rng(0)
EVERY = np.arange(NUM_ROWS)


def log_losses(labels, logits):
    return np.logaddexp(0, logits) - labels * logits


def trainer_of(network, features, learning_rate=0.01, batch_size=16):
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 2, NUM_ROWS).astype(float)
    weights = generator.choice([0.5, 1.5], NUM_ROWS)
    settings = FitSettings(learning_rate=learning_rate, batch_size=batch_size)
    trainer = NetworkTrainer(network, Rows(np.zeros(NUM_ROWS), labels, weights, features), settings)
    trainer.curve[:] = generator.normal(size=(NUM_ROWS, 1))
    trainer.restart(EVERY)
    return trainer


def g_of(trainer, features):
    """The network's own output."""
    return keras.ops.convert_to_numpy(trainer.network(features)).reshape(-1)


def assert_logits_are_of_the_network(trainer, features):
    g = g_of(trainer, features)
    expected = trainer.curve[:, 0] + g
    np.testing.assert_allclose(trainer.logits(EVERY), expected, rtol=1e-5, atol=1e-6)
    return g


def test_steps_are_those_of_a_dense_reference():
    """Loss, weights, gradients, prior, Adam, and the average at the end of each epoch."""
    site = RNG.integers(0, 7, NUM_ROWS)  # 6 is "other"
    network = FieldNetwork({"site": 6}, (), 3, (4,), regularization=3.0, dropout=0.0, seed=1)
    trainer = trainer_of(network, {"site": site}, 0.05, batch_size=10)
    for weight in trainer.network.trainable_weights:
        weight.assign(np.random.default_rng(2).normal(size=weight.shape))
    theta = [np.float64(keras.ops.convert_to_numpy(w)) for w in trainer.network.trainable_weights]
    shapes = [array.shape for array in theta]
    assert shapes == [(7, 3), (3, 4), (4,), (4, 1), (1,)]
    first, second, average = ([np.zeros(s) for s in shapes] for _ in range(3))
    curve, labels, weights = trainer.curve, trainer.labels, trainer.weights
    assert weights.mean() == pytest.approx(1)
    batches = []
    steps = trainer._steps
    trainer._steps = lambda epoch_batches: (batches.extend(epoch_batches), steps(epoch_batches))
    step, momentum = 0, float(trainer.model.optimizer.ema_momentum)
    for _ in range(2):
        trainer.train_epoch(EVERY)
        for batch in batches[step:]:
            table, kernel, bias, last, last_bias = theta
            inputs = table[site[batch]]
            hidden = np.maximum(inputs @ kernel + bias, 0)
            rates = 1 / (1 + np.exp(-curve[batch] - hidden @ last - last_bias))
            error = (rates - labels[batch]) * weights[batch][:, None] / len(batch)
            below = (error @ last.T) * (hidden > 0)
            by_table = np.zeros_like(table)
            np.add.at(by_table, site[batch], below @ kernel.T)
            decay = 3.0 / NUM_ROWS
            gradients = [
                by_table + decay * table,
                inputs.T @ below + decay * kernel,
                below.sum(axis=0),
                hidden.T @ error,
                error.sum(axis=0),
            ]
            step += 1
            for place, gradient in enumerate(gradients):
                first[place] += 0.1 * (gradient - first[place])
                second[place] += 0.001 * (gradient**2 - second[place])
                rate = 0.05 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
                theta[place] = theta[place] - rate * first[place] / (np.sqrt(second[place]) + 1e-7)
                kept = momentum if step > 1 else 0.0
                average[place] += (1 - kept) * (theta[place] - average[place])
        theta = [array.copy() for array in average]
    assert (step, momentum) == (10, pytest.approx(0.6))
    assert sorted(np.concatenate(batches[:5])) == EVERY.tolist()
    for weight, expected in zip(trainer.network.trainable_weights, theta, strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(weight), expected, atol=5e-5)
    assert np.ptp(assert_logits_are_of_the_network(trainer, {"site": site})) > 0.1


def test_columns_of_every_dtype_and_shape_reach_the_network_as_they_are():
    features = {
        "site": RNG.integers(0, 4, NUM_ROWS).astype("int32"),
        "price": RNG.normal(size=NUM_ROWS).astype("float32"),
        "device": RNG.integers(0, 3, (NUM_ROWS, 1)).astype("int32"),
        "hour": RNG.integers(0, 24, NUM_ROWS).astype("int32"),
        "age": np.append(RNG.normal(size=NUM_ROWS - 3), [np.nan, np.inf, -np.inf]),
    }
    fields = {"site": 4, "device": 3, "hour": 24}
    if keras.backend.backend() == "tensorflow":  # which alone has strings
        words = np.array(["a", "bb", "ccc"])[RNG.integers(0, 3, NUM_ROWS)]
        texts = {"unicode": words, "bytes": words.astype("S"), "objects": words.astype(object)}
        lookups = {name: keras.layers.StringLookup(vocabulary=["a", "bb"]) for name in texts}
        features, fields = {**features, **texts}, {**fields, **lookups}
    network = FieldNetwork(fields, ["age", "price"], dropout=0.0)
    trainer = trainer_of(network, features)
    for _ in range(3):
        trainer.train_epoch(EVERY)
    g = assert_logits_are_of_the_network(trainer, features)
    assert np.ptp(g) > 1e-3
    some = np.array([3, 41, 0, 17, 3])
    np.testing.assert_allclose(trainer.logits(some), trainer.logits(EVERY)[some], rtol=1e-6)


def test_training_stops_and_the_best_epoch_is_kept():
    # The labels have nothing to do with the features: the network can only learn them by heart.
    features = {"site": RNG.integers(0, 20, NUM_ROWS)}
    trainer = trainer_of(FieldNetwork({"site": 20}, dropout=0.0, seed=0), features, 0.1)
    held_out, curve = EVERY % 2 == 0, trainer.curve[:, 0].astype(float)
    epoch, logits, weights = trainer.train(curve, EVERY[~held_out], EVERY[held_out])
    assert epoch < 10
    labels = trainer.labels[held_out, 0]
    assert log_losses(labels, logits).mean() <= log_losses(labels, curve[held_out]).mean()
    trainer.network.set_weights(weights)
    g = g_of(trainer, {"site": features["site"][held_out]})
    np.testing.assert_allclose(curve[held_out] + g, logits, atol=1e-6)


@pytest.mark.parametrize(("batch_size", "num_epochs"), [(16, 5), (2, 5), (1, 3)])
def test_patience_is_shorter_for_epochs_of_many_batches(batch_size, num_epochs, monkeypatch):
    """Of twice the batches, an epoch counts twice: 5 / 2, rounded up."""
    monkeypatch.setattr(network_trainer, "_BATCHES_OF_PATIENCE", 25)
    trainer = trainer_of(FieldNetwork({"site": 2}), {"site": EVERY % 2}, batch_size=batch_size)
    epochs = []
    trainer.train_epoch = epochs.append  # which learns nothing
    trainer.train(np.zeros(NUM_ROWS), EVERY, EVERY)
    assert len(epochs) == num_epochs
