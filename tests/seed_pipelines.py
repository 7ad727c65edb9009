"""A small pipeline with everything that a seed changes, importable by other processes."""

import os
import signal
from pathlib import Path

import keras
import numpy as np

from keras_calibration.metrics import CalibratedLogLoss
from symbols import symbols

SHAPE = {"epochs": 2, "batch_size": 32}


def make_rows(num_rows, seed):
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, 20, num_rows).astype("int32")
    numbers = generator.normal(size=(num_rows, 3)).astype("float32")
    rate = 1 / (1 + np.exp(1 - numbers[:, 0] - ids % 3))
    return {"id": ids, "numbers": numbers}, (generator.random(num_rows) < rate).astype("float32")


# Neither is a multiple of the batch size.
TRAINING, HELD_OUT = make_rows(203, seed=0), make_rows(77, seed=1)


def build_model(optimizer="adam", metrics=None, **arguments):
    """Embeddings with repeated ids, batch normalization and dropout."""
    inputs = symbols(id="int32", numbers=(3,))
    embedded = keras.layers.Embedding(20, 4)(inputs["id"])
    hidden = keras.layers.Concatenate()([embedded, inputs["numbers"]])
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, "relu")(hidden))
    hidden = keras.layers.Dropout(0.3)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    metrics = [CalibratedLogLoss(), keras.metrics.AUC()] if metrics is None else metrics
    model.compile(optimizer, "binary_crossentropy", metrics=metrics, **arguments)
    return model


def build_small():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy")
    return model


SMALL = (TRAINING[0]["numbers"], TRAINING[1])


class WriteWeights(keras.callbacks.Callback):
    """Writes the weights at the end of training to a file."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_end(self, logs=None):
        np.savez(self.path, *self.model.get_weights())


class DieOnce:
    """Callbacks that write the weights of each seed, and kill the process of one of them.

    It is killed at the first attempt, in the first epoch.
    """

    def __init__(self, folder, seed):
        self.folder, self.seed = Path(folder), seed

    def __call__(self, seed):
        write = WriteWeights(self.path(seed))
        if seed != self.seed:
            return [write]
        return [write, keras.callbacks.LambdaCallback(on_epoch_end=self.die)]

    def path(self, seed):
        return self.folder / f"weights_{seed}.npz"

    def die(self, epoch, logs):
        if not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Fail:
    """Callbacks that raise an error for one seed, always."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, seed):
        return [keras.callbacks.LambdaCallback(on_epoch_end=self.fail)] if seed == self.seed else []

    def fail(self, epoch, logs):
        raise OSError("the disk is full")


# TensorFlow starts when a process imports this module.
STARTED = keras.ops.ones(1)


def build_half():
    """A model of the global dtype policy, on images of the global format."""
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Reshape((3, 1)),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(4, "relu"),
            keras.layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy")
    return model
