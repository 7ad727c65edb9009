"""Trains a field network on folds of the development set, with early stopping."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import keras
import numpy as np
from keras import ops

from keras_calibration._compat import flatten_layers, without_replica_sums
from keras_calibration._typing import Tensor
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head_logits import head_log_losses

# About this many batches per epoch, within these bounds of the batch size.
_BATCHES_AN_EPOCH = 50
_SMALLEST_BATCH, _LARGEST_BATCH = 128, 2048
_PREDICTED_TOGETHER = 8192
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
    """Trains copies of a field network, one after the other, in one compiled program.

    Uses Adam with an exponential moving average of the weights. All batches are full and are drawn
    anew in every epoch, so the step compiles only once. On TensorFlow, an epoch is one graph.
    """

    def __init__(
        self, network: keras.layers.Layer, rows: TrainingRows, settings: FitSettings
    ) -> None:
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
        # Without XLA on TensorFlow: there it makes the random numbers of dropout 30 times slower on
        # a CPU, and cannot look up strings. With XLA on JAX, which otherwise runs single
        # operations.
        self.model.compile(
            optimizer, loss(from_logits=True), jit_compile=keras.backend.backend() == "jax"
        )
        optimizer.build(self.model.trainable_variables)
        self._fresh_optimizer = [np.array(v) for v in optimizer.variables]
        if keras.backend.backend() == "tensorflow":
            columns = [ops.convert_to_tensor(each) for each in self._together]
            self._train_batches = _in_one_graph(self.model, columns, rows)
        else:
            self._train_batches = self._train_one_by_one

    def restart(self, chosen: np.ndarray) -> None:
        """Resets g and the optimizer, and adapts g to the rows with the given numbers."""
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
        """One epoch over the rows with the given numbers; an incomplete last batch is dropped."""
        size = min(self.batch_size, len(chosen))
        order = self.generator.permutation(chosen)[: len(chosen) // size * size]
        self._train_batches(order.reshape(-1, size))
        # Training continues from the averaged weights.
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        for variable in self.model.trainable_variables:
            # A copy: JAX's next step donates the buffers of both the weight and its average.
            variable.assign(ops.copy(ops.convert_to_tensor(variable)))

    def logits(self, chosen: np.ndarray) -> np.ndarray:
        """`η + g(x)` of the rows with the given numbers, (m, 1) or (m, K), float64."""
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
        """Trains afresh with early stopping; returns the best epoch, its logits and its weights."""
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

    def _train_one_by_one(self, batches: np.ndarray) -> None:
        """One step per batch, given as row numbers (batches, size)."""
        for batch in batches:
            self.model.train_on_batch(
                self._inputs(batch), self.rows.labels[batch], self.rows.weights[batch]
            )

    def _inputs(self, order: np.ndarray) -> list[np.ndarray]:
        return [self.rows.curve[order], *(columns[order] for columns in self._together)]


def _in_one_graph(
    model: keras.Model, columns: Sequence[Tensor], rows: TrainingRows
) -> Callable[[np.ndarray], None]:
    """A function of batches, as row numbers, that trains one step per batch, on TensorFlow.

    Called from Python one by one, the steps of a small network take several times as long.
    """
    import tensorflow as tf

    labels, weights = tf.constant(rows.labels), tf.constant(rows.weights)

    def train(batches: Tensor, curve: Tensor) -> None:
        def step(number: Tensor) -> tuple[Tensor]:
            x, y, w = tf.nest.map_structure(
                lambda column: tf.gather(column, batches[number]),
                ([curve, *columns], labels, weights),
            )
            model.distribute_strategy.run(model.train_step, args=((x, y, w),))
            return (number + 1,)

        tf.while_loop(lambda number: number < tf.shape(batches)[0], step, (0,))

    signature = [tf.TensorSpec((None, None), "int64"), tf.TensorSpec(rows.curve.shape, "float32")]
    graph = tf.function(train, input_signature=signature, autograph=False)
    # η is another one for each fold.
    return lambda batches: graph(batches, rows.curve)


def _columns_together(
    features: Mapping[str, np.ndarray],
) -> tuple[list[np.ndarray], dict[str, tuple[int, int]]]:
    """Stacks columns of one dtype and shape, (n, columns, …); returns the place of each column.

    Every array passed to a training step costs time; with forty columns, most of the step's time.
    """
    alike: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for name, column in features.items():
        dtype = ops.convert_to_tensor(column[:1]).dtype
        alike.setdefault((str(dtype), column.dtype.kind, column.shape[1:]), []).append(name)
    together = [np.stack([features[n] for n in names], axis=1) for names in alike.values()]
    places = enumerate(alike.values())
    return together, {n: (at, i) for at, names in places for i, n in enumerate(names)}


def copy_of(network: _Layer) -> _Layer:
    """A layer or model of the same configuration, with fresh weights."""
    classes = {type(layer) for layer in flatten_layers(network)}
    known = {keras.saving.get_registered_name(each): each for each in classes}
    try:
        config = keras.saving.serialize_keras_object(network)
        # Safe: the configuration comes from an object in memory, so a Lambda runs no foreign code.
        return keras.saving.deserialize_keras_object(config, known, safe_mode=False)
    except Exception as error:  # A user's constructor may raise anything.
        raise ValueError(
            "It must be possible to copy the field network from its configuration, because a "
            f"direct fit trains copies of it. Received: {network!r}, which cannot be copied "
            f"({type(error).__name__}: {error}). Give its class a `get_config` that returns all "
            "arguments of its constructor, or train it by gradient, with initialize=None in "
            "CalibratedModel.fit."
        ) from error


def weights_of(network: keras.layers.Layer) -> list[np.ndarray]:
    """A copy of the weights: `get_weights` may return views of memory that is reused."""
    return [np.array(weight) for weight in network.get_weights()]
