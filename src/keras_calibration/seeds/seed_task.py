"""SeedTask: the model, the rows and the record of a training, the same for all seeds."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from calibration_records._columns import as_array, column_of
from keras_calibration._graph.outputs import symbolic_input
from keras_calibration._keras import restart_names, throwaway_layers
from keras_calibration._rows.columns import as_csr, is_sparse, take
from keras_calibration._rows.inputs import inputs_of, structured
from keras_calibration._typing import Data, Tensor
from keras_calibration.callbacks.seed_variance import SeedVariance
from keras_calibration.seeds.random_seeds import set_seeds

Rows: TypeAlias = tuple[Any, ...]
"""Inputs, labels and optional sample weights, as arrays or structures of arrays."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedTask:
    """The training of one pipeline, without the seed; it can be sent to other processes.

    Args:
        build_model: Returns a new compiled model; the seeds are set before each call.
        rows: Training rows.
        validation: Held-out rows, evaluated after each epoch, or `None`.
        ledger: Folder of the ledger.
        pipeline: Name of the pipeline.
        epochs: Number of epochs.
        batch_size: Rows per step, also in validation.
        callbacks: Returns the user's callbacks for a seed, or `None`.
        record: Further fields of the record, see `SeedVariance`.
    """

    build_model: Callable[[], keras.Model]
    rows: Rows
    validation: Rows | None = None
    ledger: str
    pipeline: str
    epochs: int = 1
    batch_size: int = 32
    callbacks: Callable[[int], Sequence[keras.callbacks.Callback]] | None = None
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Number of steps in an epoch."""
        return -(-num_rows_of(self.rows) // self.batch_size)

    def all_callbacks(self, seed: int) -> list[keras.callbacks.Callback]:
        """The callbacks of a seed: `SeedVariance`, then those of the user."""
        own = keras.tree.flatten(self.callbacks(seed)) if self.callbacks else []
        if not all(isinstance(callback, keras.callbacks.Callback) for callback in own):
            raise ValueError(
                "Argument `callbacks` must return a list of callbacks. Received: "
                f"{own} for seed {seed}."
            )
        recorder = SeedVariance(
            self.ledger,
            self.pipeline,
            seed,
            seeds={"initialization": seed, "order": seed},
            verbose=0,
            **self.record,
        )
        return [recorder, *own]

    def row_order(self, seed: int, epoch: int) -> np.ndarray:
        """The order of the training rows in an epoch, int64 `(num_rows,)`."""
        # From seed and epoch alone, so that every engine, and every process, draws the same order.
        return np.random.default_rng([seed, epoch]).permutation(num_rows_of(self.rows))

    def batches(self, seed: int) -> Iterator[Rows]:
        """The batches of a seed, without end."""
        for epoch in itertools.count():
            order = self.row_order(seed, epoch)
            for start in range(0, len(order), self.batch_size):
                batch = tensors(take(self.rows, order[start : start + self.batch_size]))
                # TensorFlow's data sets allow no lists.
                yield keras.tree.lists_to_tuples(batch)


def new_model(build_model: Callable[[], keras.Model], seed: int) -> keras.Model:
    """A compiled model with the initial weights of a seed."""
    # Number unnamed layers and metrics as a new process would: the records of all seeds then have
    # the same names of metrics.
    restart_names()
    set_seeds(initialization=seed, order=seed)
    model = build_model()
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ValueError(
            "Argument `build_model` must return a compiled keras.Model. Received: "
            f"build_model() returned {model!r}. Call model.compile(...) in it."
        )
    return model


def train_one_by_one(task: SeedTask, seeds: Sequence[int], on_end: Callable[[], None]) -> None:
    """Trains one seed after the other by `fit`: the engine `"loop"`."""
    for seed in seeds:
        with own_random_numbers():
            fit_seed(task, seed)
        on_end()


def fit_seed(task: SeedTask, seed: int) -> None:
    """Trains one seed by `fit`, and records it."""
    new_model(task.build_model, seed).fit(
        task.batches(seed),
        steps_per_epoch=task.num_steps,
        epochs=task.epochs,
        validation_data=None if task.validation is None else tensors(task.validation),
        validation_batch_size=task.batch_size,
        callbacks=task.all_callbacks(seed),
        verbose=0,
        shuffle=False,
    )


@contextlib.contextmanager
def own_random_numbers() -> Iterator[None]:
    """Restores the state of the user's random numbers and layer names after the block."""
    with contextlib.ExitStack() as at_end, throwaway_layers():
        at_end.callback(random.setstate, random.getstate())
        at_end.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        yield


def as_rows(name: str, data: Data, model: keras.Model) -> Rows:
    """Rows as arrays; inputs are read as in the other functions of the package."""
    if not isinstance(data, tuple) or not 2 <= len(data) <= 3:
        raise ValueError(
            f"Argument `{name}` must be a tuple (x, y) or (x, y, sample_weight) of arrays. "
            f"Received: {name} of type {type(data).__name__}. Read a tf.data.Dataset into arrays "
            "first, because every seed takes the rows in another order."
        )
    x, *labels_and_weights = (part for part in data if part is not None)
    if (expected := symbolic_input(model)) is not None:
        x = structured(inputs_of(x, expected), expected)
    rows: Rows = keras.tree.map_structure(_convert_to_array, (x, *labels_and_weights))
    lengths = {array.shape[0] if array.ndim else 0 for array in keras.tree.flatten(rows)}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            f"Argument `{name}` must hold arrays with the same number of rows, at least one. "
            f"Received: {name} with {sorted(lengths)} rows."
        )
    # Losses convert labels to numbers only when the first batch is trained.
    if any(array.dtype.kind in "OSU" for array in keras.tree.flatten(rows[1:])):
        raise ValueError(
            f"Argument `{name}` must hold labels and sample weights that are numbers. Received: "
            "strings. Convert them first, for example with (y == 'yes').astype(int)."
        )
    return rows


def _convert_to_array(values: Any) -> np.ndarray:
    array = as_csr(values) if is_sparse(values) else column_of(as_array(values), "data")
    # `fit` would convert arrays of float64 in the same way.
    return array.astype(keras.config.floatx()) if array.dtype == "float64" else array


def tensors(rows: Rows) -> Rows:
    """The rows as tensors: Keras takes no arrays of strings, and no mixture with tensors."""
    return keras.tree.map_structure(_convert_to_tensor, rows)


def _convert_to_tensor(array: Any) -> Tensor:
    if not is_sparse(array):
        return ops.convert_to_tensor(array)
    if keras.backend.backend() != "tensorflow":
        return ops.convert_to_tensor(array.toarray())
    import tensorflow as tf

    cells = array.tocoo()
    return tf.sparse.reorder(tf.SparseTensor(np.stack(cells.coords, 1), cells.data, cells.shape))


def num_rows_of(rows: Rows) -> int:
    """The number of rows."""
    return int(keras.tree.flatten(rows)[0].shape[0])
