"""Training a field network on folds of the development set: how long, and whether at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._compat import flatten_layers, without_replica_sums
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head_logits import head_log_losses

# The size of a batch: about how many there are in an epoch, and its bounds.
_BATCHES_AN_EPOCH = 50
_SMALLEST_BATCH, _LARGEST_BATCH = 128, 2048
_PREDICTED_TOGETHER = 8192
# Weights are averaged over about this many steps, but half an epoch at most.
_AVERAGED_STEPS = 50


@dataclass(frozen=True)
class TrainingRows:
    """What a correction g is trained on: the log loss of `η + g(x)`, binary or of classes.

    Args:
        curve: η of each row (n, 1), or (n, K) of K classes, float32.
        features: A mapping of feature names to arrays with n rows.
        labels: Labels of the shape of `curve`, float32: in [0, 1], or shares of the classes.
        weights: Weights (n,), float32.
    """

    curve: np.ndarray
    features: Mapping[str, np.ndarray]
    labels: np.ndarray
    weights: np.ndarray


class NetworkTrainer:
    """Trains copies of a field network, one after the other, in one compiled program.

    Adam with weights averaged exponentially over the steps. The batches are full ones, drawn anew
    in every epoch; it thus compiles once.
    """

    def __init__(self, network: Any, rows: TrainingRows, settings: FitSettings) -> None:
        self.rows = rows
        self.settings = settings
        num_rows, num_columns = rows.curve.shape
        share = 2 ** int(np.log2(max(num_rows / _BATCHES_AN_EPOCH, 1)))
        chosen = int(np.clip(share, _SMALLEST_BATCH, _LARGEST_BATCH))
        self.batch_size = settings.batch_size or chosen
        self.generator = np.random.default_rng(settings.seed)
        self.network = copy_of(network)
        self._start = weights_of(network) if network.built else None
        self._together, features = _columns_together(rows.features)
        inputs = [
            keras.Input(columns.shape[1:], dtype=ops.convert_to_tensor(columns[:1]).dtype)
            for columns in self._together
        ]
        curve = keras.Input((num_columns,), name="curve_of_the_logit")
        correction = self.network(
            {n: inputs[at][:, column] for n, (at, column) in features.items()}
        )
        correction = ops.reshape(correction, (-1, num_columns))
        self.model = keras.Model([curve, *inputs], curve + ops.cast(correction, "float32"))
        averaged_steps = np.clip(num_rows / self.batch_size / 2, 1, _AVERAGED_STEPS)
        momentum = float(1 - 1 / averaged_steps)
        optimizer = keras.optimizers.Adam(
            settings.learning_rate, use_ema=True, ema_momentum=momentum
        )
        if keras.backend.backend() == "tensorflow":
            optimizer = without_replica_sums(optimizer)
        losses = keras.losses
        loss = losses.BinaryCrossentropy if num_columns == 1 else losses.CategoricalCrossentropy
        # TensorFlow's XLA draws the random numbers of dropout thirty times as slowly on a CPU, and
        # cannot look up strings; JAX without XLA goes operation by operation.
        self.model.compile(
            optimizer, loss(from_logits=True), jit_compile=keras.backend.backend() == "jax"
        )
        optimizer.build(self.model.trainable_variables)
        self._fresh_optimizer = [np.array(v) for v in optimizer.variables]

    def restart(self, chosen: np.ndarray) -> None:
        """Begins anew: g has learnt nothing, and is adapted to the rows of the given numbers."""
        if isinstance(self.network, FieldNetwork):
            fresh = copy_of(self.network)
            fresh.adapt({name: column[chosen] for name, column in self.rows.features.items()})
            self.network.set_weights(fresh.get_weights())
        elif self._start is not None:
            self.network.set_weights([weight.copy() for weight in self._start])
        for variable, value in zip(
            self.model.optimizer.variables, self._fresh_optimizer, strict=True
        ):
            variable.assign(value.copy())

    def train_epoch(self, chosen: np.ndarray) -> None:
        """One pass over the rows of the given numbers, but for what does not fill a batch."""
        size = min(self.batch_size, len(chosen))
        order = self.generator.permutation(chosen)
        for start in range(0, len(chosen) - size + 1, size):
            batch = order[start : start + size]
            self.model.train_on_batch(
                self._inputs(batch), self.rows.labels[batch], self.rows.weights[batch]
            )
        # The averages take the place of the weights, and training goes on from there.
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        for variable in self.model.trainable_variables:
            # Of its own: JAX's next step gives up the memory of weight and average alike.
            variable.assign(ops.copy(ops.convert_to_tensor(variable)))

    def logits(self, chosen: np.ndarray) -> np.ndarray:
        """`η + g(x)` of the rows of the given numbers (m, 1) or (m, K), float64."""
        size = min(2 ** int(np.ceil(np.log2(len(chosen)))), _PREDICTED_TOGETHER)
        filled = np.resize(chosen, -(-len(chosen) // size) * size)
        parts = [
            self.model.predict_on_batch(self._inputs(filled[start : start + size]))
            for start in range(0, len(filled), size)
        ]
        return np.concatenate(parts)[: len(chosen)].astype("float64")

    def train(
        self, chosen: np.ndarray, held_out: np.ndarray
    ) -> tuple[int, np.ndarray, list[np.ndarray]]:
        """Trains from the start until the held-out log loss has not fallen for some epochs."""
        self.restart(chosen)
        labels, weights = self.rows.labels[held_out], self.rows.weights[held_out]
        lowest, best = np.inf, (0, np.empty(0), weights_of(self.network))
        for epoch in range(self.settings.max_epochs + 1):
            if epoch:
                self.train_epoch(chosen)
            logits = self.logits(held_out)
            loss = float(weights @ head_log_losses(labels, logits))
            if loss < lowest:
                lowest, best = loss, (epoch, logits, weights_of(self.network))
            elif epoch - best[0] >= self.settings.patience:
                break
        return best

    def _inputs(self, order: np.ndarray) -> list[Any]:
        return [self.rows.curve[order], *(columns[order] for columns in self._together)]


def _columns_together(
    features: Mapping[str, np.ndarray],
) -> tuple[list[np.ndarray], dict[str, tuple[int, int]]]:
    """Columns of one dtype and shape as one array (n, columns, …), and where each of them is.

    A step takes time for every array that it is given: with forty columns, most of its time.
    """
    alike: dict[Any, list[str]] = {}
    for name, column in features.items():
        dtype = ops.convert_to_tensor(column[:1]).dtype
        alike.setdefault((str(dtype), column.dtype.kind, column.shape[1:]), []).append(name)
    together = [np.stack([features[n] for n in names], axis=1) for names in alike.values()]
    places = enumerate(alike.values())
    return together, {n: (at, i) for at, names in places for i, n in enumerate(names)}


def copy_of(network: Any) -> Any:
    """A layer or model of the same configuration, with fresh weights."""
    classes = {type(layer) for layer in flatten_layers(network)}
    known = {keras.saving.get_registered_name(each): each for each in classes}
    try:
        config = keras.saving.serialize_keras_object(network)
        # The configuration is of an object at hand: a Lambda in it runs no foreign code.
        return keras.saving.deserialize_keras_object(config, known, safe_mode=False)
    except Exception as error:  # Whatever a user's constructor raises.
        raise ValueError(
            "A direct fit trains copies of the field network, which are made from its "
            f"configuration. Received: {network!r}, of which no copy can be made "
            f"({type(error).__name__}: {error}). Give its class a `get_config` that returns all "
            "arguments of its constructor, or train it by gradient: initialize=None in "
            "CalibratedModel.fit."
        ) from error


def weights_of(network: Any) -> list[np.ndarray]:
    """The weights, in memory of their own: `get_weights` may give views of what will be reused."""
    return [np.array(weight) for weight in network.get_weights()]
