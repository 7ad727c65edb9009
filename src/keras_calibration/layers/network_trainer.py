"""NetworkTrainer: what trains a network on folds of the development set, with early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import keras
import numpy as np

from keras_calibration._keras import flatten_layers, throwaway_layers
from keras_calibration._seeds import generator_of
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head_logits import head_log_losses

# About this many batches per epoch, within these bounds of the batch size.
_BATCHES_AN_EPOCH = 50
_SMALLEST_BATCH, _LARGEST_BATCH = 128, 2048
PREDICTED_TOGETHER = 8192  # rows
# Weights are averaged over about this many steps, at most half an epoch.
_AVERAGED_STEPS = 50

_Layer = TypeVar("_Layer", bound=keras.layers.Layer)


@dataclass(frozen=True)
class TrainingRows:
    """The rows on which g is trained, by the log loss of `η + g(x)`, binary or multiclass.

    Args:
        curve: η of each row, (n, 1), or (n, K) for K classes, float32.
        features: A mapping of feature names to arrays with n rows.
        labels: Labels with the shape of `curve`, float32: in [0, 1], or one column per class.
        weights: Sample weights (n,), float32.
    """

    curve: np.ndarray
    features: Mapping[str, np.ndarray]
    labels: np.ndarray
    weights: np.ndarray


class NetworkTrainer:
    """Base of the trainers: train copies of a network, by Adam with averaged weights.

    All batches are full and are drawn anew in every epoch.
    """

    def __init__(self, rows: TrainingRows, settings: FitSettings) -> None:
        self.rows = rows
        self.settings = settings
        num_rows = len(rows.curve)
        share = 2 ** int(np.log2(max(num_rows / _BATCHES_AN_EPOCH, 1)))
        chosen = int(np.clip(share, _SMALLEST_BATCH, _LARGEST_BATCH))
        self.batch_size = settings.batch_size or chosen
        averaged_steps = np.clip(num_rows / self.batch_size / 2, 1, _AVERAGED_STEPS)
        self.momentum = float(1 - 1 / averaged_steps)
        self.generator = generator_of(settings.seed)

    def restart(self, chosen: np.ndarray) -> None:
        """Starts anew with a network that is adapted to the rows with the given numbers."""
        raise NotImplementedError

    def train_batches(self, batches: np.ndarray) -> None:
        """One step per batch, given as row numbers (batches, size), then averages the weights."""
        raise NotImplementedError

    def logits(self, chosen: np.ndarray) -> np.ndarray:
        """`η + g(x)` of the rows with the given numbers, (m, 1) or (m, K), float64."""
        raise NotImplementedError

    def weights(self) -> list[np.ndarray]:
        """A copy of the weights, in the order of the network's `get_weights`."""
        raise NotImplementedError

    def train_epoch(self, chosen: np.ndarray) -> None:
        """One epoch over the rows with the given numbers; an incomplete last batch is dropped."""
        size = min(self.batch_size, len(chosen))
        order = self.generator.permutation(chosen)[: len(chosen) // size * size]
        self.train_batches(order.reshape(-1, size))

    def train(
        self, chosen: np.ndarray, held_out: np.ndarray
    ) -> tuple[int, np.ndarray, list[np.ndarray]]:
        """Trains afresh with early stopping; returns the best epoch, its logits and its weights."""
        self.restart(chosen)
        labels, weights = self.rows.labels[held_out], self.rows.weights[held_out]
        lowest, best = np.inf, (0, np.empty(0), self.weights())
        for epoch in range(self.settings.max_epochs + 1):
            if epoch:
                self.train_epoch(chosen)
            logits = self.logits(held_out)
            loss = float(weights @ head_log_losses(labels, logits))
            if loss < lowest:
                lowest, best = loss, (epoch, logits, self.weights())
            elif epoch - best[0] >= self.settings.patience:
                break
        return best


def copy_of(network: _Layer) -> _Layer:
    """A layer or model of the same configuration but for its name, with fresh weights."""
    classes = {type(layer) for layer in flatten_layers(network)}
    known = {keras.saving.get_registered_name(each): each for each in classes}
    try:
        config = keras.saving.serialize_keras_object(network)
        if "name" in config["config"]:
            config["config"]["name"] = "copy"
        with throwaway_layers():
            # Safe: the configuration is of an object in memory, so a Lambda runs no foreign code.
            return keras.saving.deserialize_keras_object(config, known, safe_mode=False)
    except Exception as error:  # A user's constructor may raise anything.
        raise ValueError(
            "It must be possible to copy the field network from its configuration, because a "
            f"direct fit trains copies of it. Received: {network!r}, which cannot be copied "
            f"({type(error).__name__}: {error}). Give its class a `get_config` that returns all "
            "arguments of its constructor, or train it by gradient, with Keras' `fit`."
        ) from error


def weights_of(network: keras.layers.Layer) -> list[np.ndarray]:
    """A copy of the weights: `get_weights` may return views of memory that is reused."""
    return [np.array(weight) for weight in network.get_weights()]
