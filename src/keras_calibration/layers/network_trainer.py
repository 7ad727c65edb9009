"""NetworkTrainer: trains a network on folds of the development set, with early stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import keras
import numpy as np
from keras import ops

from keras_calibration._keras import flatten_layers
from keras_calibration._rows.columns import take
from keras_calibration._rows.rows import Rows
from keras_calibration._seeds import generator_of
from keras_calibration._solvers.row_blocks import row_parts
from keras_calibration._typing import Tensor
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fits import weights_of
from keras_calibration.layers.head_logits import head_log_losses

# About this many batches per epoch, within these bounds of the batch size.
_BATCHES_AN_EPOCH = 50
_SMALLEST_BATCH, _LARGEST_BATCH = 128, 2048
# With more batches than this in an epoch, the patience is for fewer epochs.
_BATCHES_OF_PATIENCE = 100
_PREDICTED_TOGETHER = 8192  # rows
# Weights are averaged over about this many steps, at most half an epoch.
_AVERAGED_STEPS = 50

# All weights of a network.
Weights: TypeAlias = Sequence[np.ndarray]
_Layer = TypeVar("_Layer", bound=keras.layers.Layer)


class NetworkTrainer:
    """Trains any Keras layer or model as g, by the log loss of `η + g(x)`.

    It uses Adam with averaged weights. All batches are full, and each epoch draws new ones. The
    epochs of all folds use one graph of TensorFlow, or one program of JAX, which is compiled once.
    """

    def __init__(self, network: keras.layers.Layer, rows: Rows, settings: FitSettings) -> None:
        num_rows, weights = len(rows), rows.row_weights
        self.settings, self.features = settings, rows.features
        self.labels = rows.labels[:, None].astype("float32")
        # Mean weight 1: the prior of the network and the learning rate assume it.
        self.weights = (weights / weights.mean()).astype("float32")
        self.curve = np.empty((num_rows, 1), "float32")
        # About 50 batches an epoch, of a power of 2 rows.
        share = 2 ** int(np.log2(max(num_rows / _BATCHES_AN_EPOCH, 1)))
        usual = int(np.clip(share, _SMALLEST_BATCH, _LARGEST_BATCH))
        self.batch_size = settings.batch_size or usual
        self.generator = generator_of(settings.seed)
        is_unseeded = isinstance(network, FieldNetwork) and network.seed is None
        self.network = copy_of(network, **({"seed": settings.seed} if is_unseeded else {}))
        self.model = _build_model(self.network, rows.features)
        if network.built and not isinstance(network, FieldNetwork):  # which starts from 0
            self.network.set_weights(weights_of(network))
        self._start = weights_of(self.network)
        # An exponential moving average with the momentum 1 - 1/m averages about m steps.
        averaged_steps = np.clip(num_rows / self.batch_size / 2, 1, _AVERAGED_STEPS)
        optimizer = keras.optimizers.Adam(
            settings.learning_rate, use_ema=True, ema_momentum=float(1 - 1 / averaged_steps)
        )
        # No XLA on TensorFlow: it makes the random numbers of dropout 30 times slower on a CPU, and
        # cannot look up strings. JAX needs it, because it would run single operations otherwise.
        is_tensorflow = keras.backend.backend() == "tensorflow"
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self.model.compile(optimizer, loss, jit_compile=not is_tensorflow)
        optimizer.build(self.model.trainable_variables)
        # Keep the initial state of the optimizer, because each fold starts from it, as from
        # `_start`.
        self._fresh_optimizer: dict[str, np.ndarray] = {}
        optimizer.save_own_variables(self._fresh_optimizer)
        self._steps = self._build_graph() if is_tensorflow else self._build_program()

    def train(
        self, curve: np.ndarray, chosen: np.ndarray, held_out: np.ndarray
    ) -> tuple[int, np.ndarray, list[np.ndarray]]:
        """Trains from the start on top of η (n,), with early stopping.

        `chosen` and `held_out` are row numbers. Returns the best epoch, `η + g` of the held-out
        rows, and the weights.
        """
        self.curve[:] = curve[:, None]
        self.restart(chosen)
        labels = self.labels[held_out, 0]
        weights = self.weights[held_out]
        lowest, best = np.inf, (0, np.empty(0), weights_of(self.network))
        num_batches = len(chosen) / self.batch_size
        # Early stopping. Epoch 0 scores the network as it starts, so that no training may be best.
        patience = np.ceil(self.settings.patience * min(_BATCHES_OF_PATIENCE / num_batches, 1))
        for epoch in range(self.settings.max_epochs + 1):
            if epoch:
                self.train_epoch(chosen)
            logits = self.logits(held_out)
            loss = float(weights @ head_log_losses(labels, logits))
            if loss < lowest:
                lowest, best = loss, (epoch, logits, weights_of(self.network))
            elif epoch - best[0] >= patience:
                break
        return best

    def restart(self, chosen: np.ndarray) -> None:
        """Resets g and the optimizer, and adapts g to the rows with these numbers."""
        self.network.set_weights([weight.copy() for weight in self._start])
        if isinstance(self.network, FieldNetwork):
            self.network.adapt(take(self.features, chosen))
        self.model.optimizer.load_own_variables(self._fresh_optimizer)

    def train_epoch(self, chosen: np.ndarray) -> None:
        """One epoch over the rows with these numbers; an incomplete last batch is dropped."""
        size = min(self.batch_size, len(chosen))
        # Only whole batches: another size would be compiled anew. Each epoch leaves out other rows.
        order = self.generator.permutation(chosen)[: len(chosen) // size * size]
        self._steps(order.reshape(-1, size))
        # Keras writes the averaged weights into the network: the epoch is scored with them, and the
        # next one starts from them.
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        for variable in self.model.trainable_variables:
            # A copy: JAX's `predict_on_batch` donates the buffer of the weight, and of its average.
            variable.assign(ops.copy(ops.convert_to_tensor(variable)))

    def logits(self, chosen: np.ndarray) -> np.ndarray:
        """`η + g(x)` of the rows with these numbers, (m,), float64."""
        # Batches of a power of 2 rows, filled up by repeating rows: few sizes, each compiled once.
        size = min(2 ** int(np.ceil(np.log2(len(chosen)))), _PREDICTED_TOGETHER)
        filled = np.resize(chosen, -(-len(chosen) // size) * size)
        parts = [
            self.model.predict_on_batch(self._select_inputs(rows))
            for rows in filled.reshape(-1, size)
        ]
        return np.concatenate(parts)[: len(chosen), 0].astype("float64")

    def _select_inputs(self, rows: np.ndarray) -> list[np.ndarray]:
        return [self.curve[rows], *(column[rows] for column in self.features.values())]

    def _build_graph(self) -> Callable[[np.ndarray], None]:
        """A step for each batch of row numbers (batches, size), in one graph of TensorFlow.

        Single steps take several times as long.
        """
        import tensorflow as tf

        columns = [
            ops.convert_to_tensor(column)
            for column in (*self.features.values(), self.labels, self.weights)
        ]

        def train(batches: Tensor, curve: Tensor) -> None:
            # One gather for the whole epoch; each step then takes a slice.
            epoch = [tf.gather(column, batches) for column in [curve, *columns]]

            def step(number: Tensor) -> tuple[Tensor]:
                *inputs, labels, weights = (column[number] for column in epoch)
                self.model.distribute_strategy.run(
                    self.model.train_step, args=((inputs, labels, weights),)
                )
                return (number + 1,)

            tf.while_loop(lambda number: number < tf.shape(batches)[0], step, (0,))

        signature = [tf.TensorSpec((None, None), "int64"), tf.TensorSpec((None, 1), "float32")]
        graph = tf.function(train, input_signature=signature, autograph=False)
        return lambda batches: graph(batches, self.curve)

    def _build_program(self) -> Callable[[np.ndarray], None]:
        """The same in one program of JAX: starting a program takes longer than a small step."""
        import jax

        @jax.jit
        def train(state: Any, num_batches: int, epoch: Any) -> Any:
            def step(number: Tensor, state: Any) -> Any:
                return self.model.train_step(state, jax.tree.map(lambda c: c[number], epoch))[1]

            return jax.lax.fori_loop(0, num_batches, step, state)

        def run(batches: np.ndarray) -> None:
            # Filled up: the program is compiled for a number of batches, and folds differ in it.
            rows = np.resize(batches, (len(self.labels) // batches.shape[1], batches.shape[1]))
            epoch = self._select_inputs(rows), self.labels[rows], self.weights[rows]
            variables = (
                self.model.trainable_variables,
                self.model.non_trainable_variables,
                self.model.optimizer.variables,
                self.model.metrics_variables,
            )
            # JAX functions take state and return state: read all variables, run, and write them
            # back.
            state = jax.tree.map(lambda variable: variable.value, variables)
            after = train(state, len(batches), epoch)
            jax.tree.map(lambda variable, value: variable.assign(value), variables, after)

        return run


def _build_model(network: keras.layers.Layer, features: Mapping[str, np.ndarray]) -> keras.Model:
    """The model `η + g(x)` of η and the features."""
    inputs = {
        name: keras.Input(column.shape[1:], dtype=ops.convert_to_tensor(column[:1]).dtype)
        for name, column in features.items()
    }
    curve = keras.Input((1,), name="curve_of_the_logit")
    g = ops.cast(ops.reshape(network(inputs), (-1, 1)), "float32")
    return keras.Model([curve, *inputs.values()], curve + g)


def outputs_of(
    network: keras.layers.Layer, weights: Weights, features: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The outputs (n,) of a built network with other weights, float64."""
    values = [
        (weight, ops.convert_to_tensor(value, weight.dtype))
        for weight, value in zip(network.weights, weights, strict=True)
    ]
    with keras.StatelessScope(state_mapping=values):
        parts = [
            np.asarray(network(take(features, part))).reshape(-1)
            for part in row_parts(len(next(iter(features.values()))))
        ]
    return np.concatenate(parts).astype("float64")


def _drop_shared_ids(config: Any) -> Any:
    """A configuration without ids of shared objects: Keras would load one object for two."""
    if isinstance(config, list | tuple):
        return type(config)(map(_drop_shared_ids, config))
    if not isinstance(config, dict):
        return config
    return {k: _drop_shared_ids(v) for k, v in config.items() if k != "shared_object_id"}


def copy_of(network: _Layer, **changes: Any) -> _Layer:
    """A layer or model of the same configuration except for its name, with new weights."""
    # Register the classes of all inner layers for loading: a user's class may not be registered.
    kinds = {type(layer) for layer in flatten_layers(network)}
    classes = {keras.saving.get_registered_name(kind): kind for kind in kinds}
    try:
        config = _drop_shared_ids(keras.saving.serialize_keras_object(network))
        if "name" in config["config"]:
            config["config"]["name"] = "copy"
        config["config"].update(changes)
        # Safe: the configuration is of an object in memory, so a Lambda runs no foreign code.
        return keras.saving.deserialize_keras_object(config, classes, safe_mode=False)
    except Exception as error:  # A user's constructor may raise anything.
        raise ValueError(
            "It must be possible to copy the field network, because a direct fit trains copies. "
            f"Received: {network!r}, which cannot be copied ({type(error).__name__}: {error}). "
            "Give its class a `get_config` that returns all arguments of its constructor."
        ) from error
