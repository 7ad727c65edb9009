"""How every network of the tables is trained: one model and one function for all rows.

A model is compiled once for a data set and gets new initial weights for each seed, because tracing
takes longer than an epoch. An epoch is one call of a TensorFlow function: `fit` would take three
times as long on batches of a few rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from numpy.typing import NDArray

LEARNING_RATE = 1e-3
# At least 2,000 steps and 8 epochs are allowed. A training stops earlier if the best loss of the
# held-out rows is 300 steps and two epochs old.
MAX_STEPS, MIN_EPOCHS = 2_000, 8
PATIENT_STEPS, PATIENT_EPOCHS = 300, 2
# Steps of a curve of the logit alone, the last third of them at a tenth of the learning rate.
CURVE_STEPS = 3_000
HELD_OUT_SHARE = 0.1
PREDICTED_TOGETHER = 4096


class Rows(NamedTuple):
    """Rows of one part of the data.

    Args:
        features: Ids of each column, shape (n,).
        labels: 0 or 1, shape (n,).
    """

    features: dict[str, NDArray[np.int32]]
    labels: NDArray[np.float32]


class Inputs(NamedTuple):
    """What a `RowModel` reads.

    Args:
        logits: Logits of the base model, shape (n, 1).
        ids: Ids of its columns, shape (n, columns).
    """

    logits: NDArray[np.float32]
    ids: NDArray[np.int32]

    def rows(self, chosen: NDArray[np.generic] | slice) -> "Inputs":
        """Some of the rows."""
        return Inputs(self.logits[chosen], self.ids[chosen])


class RowModel(keras.Model):
    """A head that is trained on rows of logits and ids, compiled with Adam and the log loss.

    Args:
        head: Layer that maps logits (batch, 1) and a mapping of ids to logits (batch, 1), built.
        columns: Names of the ids.
        auxiliary_loss: Layer that maps labels and logits (batch, 1) to a loss, or None.
    """

    def __init__(
        self,
        head: keras.layers.Layer,
        columns: Sequence[str],
        auxiliary_loss: keras.layers.Layer | None = None,
    ) -> None:
        """Compiles the model."""
        super().__init__()
        self.head, self.columns, self.auxiliary_loss = head, list(columns), auxiliary_loss
        self.compile(
            keras.optimizers.Adam(LEARNING_RATE), keras.losses.BinaryCrossentropy(from_logits=True)
        )
        self.optimizer.build(self.head.trainable_variables)
        self.built = True
        shapes = Inputs(tf.TensorSpec((None, 1)), tf.TensorSpec((None, len(columns)), "int32"))
        labels, order = tf.TensorSpec((None, 1)), tf.TensorSpec((None, None), "int32")
        self.run_epoch = tf.function(self._run_epoch, input_signature=(shapes, labels, order))
        self.calibrated = tf.function(self.call, input_signature=(shapes,), autograph=False)

    def call(self, inputs: Inputs) -> keras.KerasTensor:
        """Logits of the head, shape (batch, 1)."""
        columns = {name: inputs.ids[:, place] for place, name in enumerate(self.columns)}
        return self.head(inputs.logits, columns)

    def compute_loss(
        self,
        x: Inputs | None = None,
        y: keras.KerasTensor | None = None,
        y_pred: keras.KerasTensor | None = None,
        sample_weight: keras.KerasTensor | None = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """The log loss, with the auxiliary loss."""
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss if self.auxiliary_loss is None else loss + self.auxiliary_loss(y, y_pred)

    def start_anew(self, head: keras.layers.Layer) -> None:
        """Takes the weights of another head of the same form; optimizer and losses start anew."""
        self.head.set_weights(head.get_weights())
        states = [v for v in self.optimizer.variables if v is not self.optimizer.learning_rate]
        states += self.auxiliary_loss.variables if self.auxiliary_loss is not None else []
        for state in states:
            state.assign(ops.zeros_like(state))

    def predict_logits(self, inputs: Inputs) -> NDArray[np.float32]:
        """Logits of any number of rows, shape (n,)."""
        starts = range(0, len(inputs.logits), PREDICTED_TOGETHER)
        parts = [inputs.rows(slice(start, start + PREDICTED_TOGETHER)) for start in starts]
        return np.concatenate([self.calibrated(part).numpy()[:, 0] for part in parts])

    def _run_epoch(self, inputs: Inputs, labels: tf.Tensor, order: tf.Tensor) -> None:
        """A step for each line of `order`, the numbers of the rows of a batch."""
        step = tf.autograph.experimental.do_not_convert(self.train_step)
        for rows in order:
            batch = Inputs(tf.gather(inputs.logits, rows), tf.gather(inputs.ids, rows))
            step((batch, tf.gather(labels, rows)))


def inputs_of(logits: NDArray[np.float32], rows: Rows, columns: Sequence[str]) -> Inputs:
    """The rows as a `RowModel` reads them."""
    ids = np.zeros((len(logits), len(columns)), np.int32)
    for place, name in enumerate(columns):
        ids[:, place] = rows.features[name]
    return Inputs(np.reshape(logits, (-1, 1)), ids)


def epoch_order(num_rows: int, batch_size: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """The numbers of all rows in random order, a line for each batch; the last is filled up."""
    num_steps = -(-num_rows // batch_size)
    order = rng.permutation(num_rows).astype(np.int32)
    return np.resize(order, (num_steps, min(batch_size, num_rows)))


def train_one_epoch(
    model: RowModel, inputs: Inputs, labels: NDArray[np.float32], batch_size: int, seed: int
) -> None:
    """Trains for one epoch on all rows, as the paper does."""
    order = epoch_order(len(labels), batch_size, np.random.default_rng(seed))
    model.run_epoch(inputs, labels[:, None], order)


def train_with_early_stopping(
    model: RowModel, inputs: Inputs, labels: NDArray[np.float32], batch_size: int, seed: int
) -> int:
    """Trains on nine tenths of the rows until the log loss of the other tenth stops improving.

    The arguments are those of `train_one_epoch`. The model gets the weights of its best epoch.

    Returns:
        The number of steps up to the best epoch.
    """
    rng = np.random.default_rng(seed)
    is_held_out = held_out_rows(len(labels), seed)
    training, held_out = np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
    parts = inputs.rows(training), labels[training, None]
    parts = tuple(tf.nest.map_structure(tf.convert_to_tensor, part) for part in parts)
    num_steps = -(-len(training) // batch_size)
    num_epochs = max(MIN_EPOCHS, -(-MAX_STEPS // num_steps))
    patience = max(PATIENT_EPOCHS, -(-PATIENT_STEPS // num_steps))
    best_loss, best_epoch, best_weights = np.inf, 0, model.head.get_weights()
    for epoch in range(num_epochs):
        model.run_epoch(*parts, epoch_order(len(training), batch_size, rng))
        logits = model.predict_logits(inputs.rows(held_out))
        loss = mean_log_loss(logits, labels[held_out])
        if loss < best_loss:
            best_loss, best_epoch, best_weights = loss, epoch, model.head.get_weights()
        elif epoch - best_epoch >= patience:
            break
    model.head.set_weights(best_weights)
    return (best_epoch + 1) * num_steps


def train_on_all_rows(
    model: RowModel, inputs: Inputs, labels: NDArray[np.float32], batch_size: int, seed: int
) -> None:
    """Trains a curve of the logit alone for at least 3,000 steps on all rows.

    Its hundred values on thousands of rows need no early stopping, which would end some trainings
    by chance before the optimum. The arguments are those of `train_one_epoch`.
    """
    rng = np.random.default_rng(seed)
    parts = tuple(tf.nest.map_structure(tf.convert_to_tensor, p) for p in (inputs, labels[:, None]))
    num_epochs = -(-CURVE_STEPS * batch_size // len(labels))
    for epoch in range(num_epochs):
        is_last_third = 3 * epoch >= 2 * num_epochs
        model.optimizer.learning_rate = LEARNING_RATE * (0.1 if is_last_third else 1.0)
        model.run_epoch(*parts, epoch_order(len(labels), batch_size, rng))
    model.optimizer.learning_rate = LEARNING_RATE


def held_out_rows(num_rows: int, seed: int) -> NDArray[np.bool_]:
    """A random tenth of the rows, as a mask."""
    order = np.random.default_rng(seed).permutation(num_rows)
    return order < HELD_OUT_SHARE * num_rows


def mean_log_loss(logits: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    """The log loss of logits (n,)."""
    logits = logits.astype(np.float64)
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))
