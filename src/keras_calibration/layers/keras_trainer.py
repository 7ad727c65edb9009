"""KerasTrainer: trains any network of Keras in one compiled program."""

from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
from keras import ops

from keras_calibration._keras import throwaway_layers
from keras_calibration._rows.columns import take
from keras_calibration._typing import Tensor
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.network_trainer import (
    PREDICTED_TOGETHER,
    NetworkTrainer,
    TrainingRows,
    copy_of,
    weights_of,
)


class KerasTrainer(NetworkTrainer):
    """Trains any Keras layer or model as g. On TensorFlow, an epoch is one graph.

    A `FieldNetwork` trains in a `FieldNetworkTrainer` instead, because on two CPU cores this one
    takes 2.1 times as long for `NeuralCalibration.fit` on 5,000 rows, 1.16 times on 50,000, and
    1.5 times for `calibrate(methods="thorough")`.
    """

    @throwaway_layers()
    def __init__(
        self, network: keras.layers.Layer, rows: TrainingRows, settings: FitSettings
    ) -> None:
        super().__init__(rows, settings)
        num_columns = rows.curve.shape[1]
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
        optimizer = keras.optimizers.Adam(
            settings.learning_rate, use_ema=True, ema_momentum=self.momentum
        )
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
            self._steps = _in_one_graph(self.model, columns, rows)
        else:
            self._steps = self._one_by_one

    def restart(self, chosen: np.ndarray) -> None:
        """Resets g and the optimizer, and adapts g to the rows with the given numbers."""
        if isinstance(self.network, FieldNetwork):
            fresh = copy_of(self.network)
            fresh.adapt(take(self.rows.features, chosen))
            self.network.set_weights(fresh.get_weights())
        elif self._start is not None:
            self.network.set_weights([weight.copy() for weight in self._start])
        for variable, value in zip(
            self.model.optimizer.variables, self._fresh_optimizer, strict=True
        ):
            variable.assign(value.copy())

    @throwaway_layers()  # The first call traces.
    def train_batches(self, batches: np.ndarray) -> None:
        """One step per batch, given as row numbers (batches, size), then averages the weights."""
        self._steps(batches)
        # Training continues from the averaged weights.
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        for variable in self.model.trainable_variables:
            # A copy: JAX's next step donates the buffers of both the weight and its average.
            variable.assign(ops.copy(ops.convert_to_tensor(variable)))

    def logits(self, chosen: np.ndarray) -> np.ndarray:
        """`η + g(x)` of the rows with the given numbers, (m, 1) or (m, K), float64."""
        size = min(2 ** int(np.ceil(np.log2(len(chosen)))), PREDICTED_TOGETHER)
        filled = np.resize(chosen, -(-len(chosen) // size) * size)
        parts = [
            self.model.predict_on_batch(self._inputs(filled[start : start + size]))
            for start in range(0, len(filled), size)
        ]
        return np.concatenate(parts)[: len(chosen)].astype("float64")

    def weights(self) -> list[np.ndarray]:
        """A copy of the weights, in the order of the network's `get_weights`."""
        return weights_of(self.network)

    def _one_by_one(self, batches: np.ndarray) -> None:
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
