"""Several seeds at once on TensorFlow: an epoch is one graph, with a thread for each seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_calibration._keras import throwaway_layers
from keras_calibration._rows.columns import is_sparse
from keras_calibration._typing import Tensor
from keras_calibration.seeds.seed_task import Rows, SeedTask, num_rows_of

# Operations that keep the state of their generator outside the model.
_RANDOM = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")


class TensorFlowLanes:
    """Models that train in parallel threads, each epoch one call of a graph.

    A lane keeps its model and graphs, and gets the weights of the next seed. The graph repeats the
    model's `train_step`, so that results are those of `fit`. XLA compiles the graph if it compiles
    the model (`compile(jit_compile=…)`).
    """

    def __init__(self, models: Sequence[keras.Model], task: SeedTask) -> None:
        self.models = list(models)
        rows = keras.tree.map_structure(_place_in_graph, task.rows)
        self._train = [_trace_pass(rows, m, m.train_step, task.batch_size) for m in models]
        _check_randomness(models[0], self._train[0])
        if task.validation is not None:
            self._num_held_out = num_rows_of(task.validation)
            held_out = keras.tree.map_structure(_place_in_graph, task.validation)
            self._test = [_trace_pass(held_out, m, m.test_step, task.batch_size) for m in models]
        self._threads = ThreadPoolExecutor(len(models))

    def start(self, models: Sequence[keras.Model]) -> None:
        """Gives the lanes the state of new models, one for each lane or fewer."""
        for lane, model in zip(self.models, models, strict=False):
            # The graph reads the variables of its own lane, so copy values, weights and optimizer,
            # into them.
            for old, new in zip(_list_variables(lane), _list_variables(model), strict=True):
                old.assign(new)

    def train_epoch(self, orders: Mapping[int, np.ndarray]) -> None:
        """One epoch of each lane, in its order of the rows."""
        self._run(self._train, orders)

    def validate(self, numbers: Sequence[int]) -> None:
        """Updates the metrics of the given lanes with the held-out rows."""
        self._run(self._test, dict.fromkeys(numbers, np.arange(self._num_held_out)))

    def _run(
        self, graphs: Sequence[Callable[[Tensor], Any]], orders: Mapping[int, np.ndarray]
    ) -> None:
        for number in orders:
            self.models[number].reset_metrics()
        jobs = [self._threads.submit(graphs[n], tf.constant(order)) for n, order in orders.items()]
        for job in jobs:
            job.result()


def _list_variables(model: keras.Model) -> list[keras.Variable]:
    """The variables that training depends on; metrics restart with every epoch."""
    return [*model.variables, *model.optimizer.variables]


def _trace_pass(
    rows: Rows, model: keras.Model, step: Callable[[Rows], Any], batch_size: int
) -> Callable[[Tensor], Any]:
    """A function that takes the order of the rows and makes one step of a model for each batch."""

    def take_steps(order: Tensor) -> None:
        _loop_over_batches(
            lambda batch: _refuse_own_logs(model, step(batch)), rows, order, batch_size
        )

    order = tf.TensorSpec((num_rows_of(rows),), "int64")
    # Traced here, because Keras' settings are local to this thread: the lanes' threads lack them.
    with throwaway_layers():
        graph: Callable[[Tensor], Any] = tf.function(
            take_steps, jit_compile=model.jit_compile, autograph=False
        ).get_concrete_function(order)
    return graph


def _refuse_own_logs(model: keras.Model, logs: Mapping[str, Any]) -> None:
    """Refuses a user's step that does not return the metrics of the model.

    `fit` would record what the step returns for the last batch of an epoch.
    """
    names = sorted(model.get_metrics_result())
    if sorted(logs) != names:
        raise ValueError(
            "Argument `build_model` must return a model whose steps return its metrics with "
            f"engine='vectorized'. Received: {model.name!r}, whose step returns {sorted(logs)}, "
            f"while its metrics are {names}. Return self.get_metrics_result(), or use "
            "engine='loop'."
        )


def _check_randomness(model: keras.Model, graph: Any) -> None:
    """Refuses programs with state besides the variables of the model: seeds would share it."""
    # Any other variable in the graph, and any operation with a hidden generator, goes on from seed
    # to seed.
    ids = {id(variable.value) for variable in (*_list_variables(model), *model.metrics_variables)}
    reason = next((f"the variable {v.name!r}" for v in graph.variables if id(v) not in ids), None)
    definition = graph.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    if drawn := [node.op for node in nodes if node.op.startswith(_RANDOM)]:
        reason = f"TensorFlow's random numbers ({drawn[0]})"
    if reason is not None:
        raise ValueError(
            "Argument `build_model` must return a model that keeps all of its state in its "
            "variables with engine='vectorized', which sets them for each seed. Received: a model "
            f"that uses {reason}. Draw random numbers in a layer that has a "
            "keras.random.SeedGenerator as an attribute, or use engine='loop'."
        )


def _loop_over_batches(
    step: Callable[[Rows], Any], rows: Rows, order: Tensor, batch_size: int
) -> None:
    """A graph's loop over full batches, and a last smaller batch."""
    num_full, rest = divmod(num_rows_of(rows), batch_size)

    def batch(number: Tensor, size: int) -> None:
        # `tf.slice` with a fixed size: XLA must know the shape.
        chosen = tf.slice(order, [number * batch_size], [size])
        step(keras.tree.map_structure(lambda array: _gather(array, chosen), rows))

    def body(number: Tensor) -> tuple[Tensor]:
        batch(number, batch_size)
        return (number + 1,)

    # The full batches in a loop; the rest is traced apart, because its shape differs.
    if num_full:
        tf.while_loop(lambda number: number < num_full, body, (0,), maximum_iterations=num_full)
    if rest:
        batch(num_full, rest)


def _place_in_graph(array: Any) -> Tensor | _SparseRows:
    return _SparseRows(array) if is_sparse(array) else tf.constant(array)


def _gather(array: Tensor | _SparseRows, chosen: Tensor) -> Tensor:
    """Some of the rows."""
    if isinstance(array, _SparseRows):
        return array.take(chosen)
    batch = tf.gather(array, chosen)
    return _hide_shape(batch, [None, *batch.shape[1:]])


def _hide_shape(tensor: Tensor, shape: list[int | None]) -> Tensor:
    """A tensor whose number of rows is unknown while a step is traced, as in `fit`.

    Keras weighs the loss of each output by the number of rows of a batch where it is known, and
    otherwise weighs all batches alike. When XLA compiles the trace, it finds the number itself.
    """
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape)


class _SparseRows:
    """A sparse matrix whose rows a graph can select, which a sparse tensor does not allow."""

    def __init__(self, matrix: Any) -> None:
        self.shape = matrix.shape
        splits = matrix.indptr.astype("int64")
        self._columns = tf.RaggedTensor.from_row_splits(matrix.indices.astype("int64"), splits)
        self._values = tf.RaggedTensor.from_row_splits(matrix.data, splits)

    def take(self, chosen: Tensor) -> tf.SparseTensor:
        """The rows with these numbers."""
        columns = tf.gather(self._columns, chosen)
        values = tf.gather(self._values, chosen)
        # The chosen rows in coordinates: number of the row in the batch, number of the column.
        cells = tf.stack([columns.value_rowids(), columns.flat_values], axis=1)
        size = tf.constant([chosen.shape[0], self.shape[1]], "int64")
        batch = tf.SparseTensor(cells, values.flat_values, _hide_shape(size, [2]))
        batch.set_shape((None, self.shape[1]))
        return batch
