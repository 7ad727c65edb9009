"""Reader: reads arrays, data frames and data sets as a model takes them, into `Rows`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._columns import check_same_rows, is_table, warn_of_other_order
from calibration_records._times import times_of
from keras_calibration._rows.checks import read_rows
from keras_calibration._rows.columns import as_array, as_csr, is_sparse, numbers_of, take
from keras_calibration._rows.inputs import inputs_of, structured
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.times import ORDER, time_given, with_times
from keras_calibration._rows.weights import checked_weights, rows_that_count
from keras_calibration._typing import Data, Inputs, Tensor

# Of more rows, the progress is shown.
_MANY_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads development sets as a model takes them, into `Rows` of its logits.

    Args:
        structure: The symbolic inputs of the model.
        compute: Computes logits, and features by name, of inputs in this structure; it also gets
            `verbose`.
        ids: Names of the inputs that hold ids, which must be exact.
        label_names: Labels and weights may be dictionaries, as for a model with several outputs:
            those of the output with one of these names are read.
    """

    structure: Inputs
    compute: Callable[[Inputs, int | str], tuple[np.ndarray, Mapping[str, Tensor]]]
    ids: Collection[str] = ()
    label_names: Collection[str] = ()

    def inputs(self, x: Data) -> Data:
        """Arrays and tables as the model takes them; data sets are returned unchanged."""
        return as_inputs(x, self.structure, self.ids)

    def values(self, x: Data) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The logits (n, 1) or (n, K), and the features by name, of arrays or a table."""
        logits, features = self.compute(self.inputs(x), 0)
        return logits, {name: as_array(column) for name, column in features.items()}

    def read(
        self,
        x: Data,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        steps_per_epoch: int | None = None,
        time: ArrayLike | str | None = None,
        weights_are: str = "importance",
        verbose: int | str = 0,
    ) -> Rows:
        """The checked rows that count, of a development set.

        Args:
            x: Arrays, a table, or a finite data set of batches.
            y: Labels, if `x` holds arrays.
            sample_weight: Sample weights, if `x` holds arrays.
            steps_per_epoch: Number of batches to read of a data set.
            time: The times of the rows, see `times.with_times`; a column need not be an input.
            weights_are: What the weights are, see `weights.counts_of`.
            verbose: Whether progress is shown.
        """
        given = self._given(x, y, sample_weight, steps_per_epoch, time)
        num_given, time = len(given.labels), given.time
        weights = checked_weights(given.weights, num_given)
        numbers = None
        if weights is not None and not weights.all():
            numbers = np.flatnonzero(weights)
            given = take(given._replace(time=None), numbers)
        is_long = bool(verbose) and len(given.labels) > _MANY_ROWS
        if is_long:
            print(f"Computing the base logits of {len(given.labels):,} rows:")
        inputs = structured(given.inputs, self.structure)
        logits, features = self.compute(inputs, verbose if is_long else 0)
        rows = read_rows(logits, given.labels, given.weights, weights_are=weights_are)
        features = {name: as_array(column) for name, column in features.items()}
        rows = replace(rows, features=features, numbers=numbers, num_given=num_given)
        return with_times(rows, time)

    def _given(
        self,
        x: Data,
        y: Any,
        sample_weight: ArrayLike | None,
        steps_per_epoch: int | None,
        time: ArrayLike | str | None,
    ) -> _Given:
        """Inputs, labels and weights of all rows, in memory."""
        if is_batches(x):
            if y is not None or sample_weight is not None:
                raise ValueError(
                    "Arguments `y` and `sample_weight` must be None if `x` is a dataset. Received: "
                    f"x={type(x).__name__} and y or sample_weight. Put them into the batches, "
                    "(x, y) or (x, y, sample_weight)."
                )
            return self._given_batches(x, steps_per_epoch, time)
        if steps_per_epoch is not None:
            raise ValueError(
                "Argument `steps_per_epoch` must be None if `x` holds arrays, all rows of which "
                f"are read. Received: steps_per_epoch={steps_per_epoch}."
            )
        if y is None:
            raise ValueError(
                "The development set must have labels. Received: arrays without y. Pass x and y, "
                "or a dataset of batches (x, y)."
            )
        warn_of_other_order(x=x, y=y, sample_weight=sample_weight, time=time)
        time = time_given(time, x)
        y, weights = (_one_output(part, self.label_names) for part in (y, sample_weight))
        weights = None if weights is None else numbers_of(weights, "Weights")
        standing_in = None if weights is None else rows_that_count(weights.reshape(-1))
        inputs = as_inputs(x, self.structure, self.ids, standing_in=standing_in)
        num_rows = max((part.shape[0] for part in keras.tree.flatten(inputs)), default=0)
        _check_one_output(y, num_rows)
        return _checked(_Given(inputs, numbers_of(y, "Labels"), weights, time))

    def _given_batches(
        self, batches: Iterable, num_batches: int | None, time: ArrayLike | str | None
    ) -> _Given:
        if num_batches is None and _may_be_endless(batches):
            raise ValueError(
                "The development set must be finite, because base logits are computed once for "
                f"all rows. Received: {type(batches).__name__}, a generator or an infinite "
                "dataset. Pass steps_per_epoch, the number of batches to read, or "
                "dataset.take(...)."
            )
        read = itertools.islice(_iterate(batches), num_batches)
        parts, times = [], []
        for batch in read:
            parts.append(self._batch(batch))
            if isinstance(time, str) and time != ORDER:
                times.append(times_of(time_given(time, batch[0]), "time"))
        if not parts:
            raise ValueError("The development set is empty. Received: a dataset without batches.")
        inputs, labels, *weights = keras.tree.map_structure(
            lambda *arrays: np.concatenate(arrays), *parts
        )
        inputs = keras.tree.map_structure(_as_input, inputs)
        time = np.concatenate(times) if times else time
        return _checked(_Given(inputs, labels, weights[0] if weights else None, time))

    def _batch(self, batch: Any) -> tuple[Inputs, ...]:
        """Inputs, labels and, if given, weights of a batch, as NumPy arrays."""
        is_pair = isinstance(batch, tuple | list) and len(batch) in (2, 3)
        if not is_pair or batch[1] is None:
            raise ValueError(
                "Each batch of the development set must be (x, y) or (x, y, sample_weight). "
                f"Received: {type(batch).__name__} of {keras.tree.map_structure(type, batch)}."
            )
        x, *labels_and_weights = batch if batch[-1] is not None else batch[:-1]
        inputs = keras.tree.map_structure(as_array, inputs_of(x, self.structure, self.ids))
        parts = zip(labels_and_weights, ("Labels", "Weights"), strict=False)
        names = self.label_names
        arrays = (inputs, *(numbers_of(_one_output(part, names), what) for part, what in parts))
        if not all(array.ndim for array in keras.tree.flatten(arrays)):
            raise ValueError(
                "The development set must consist of batches. Received: single rows. Pass, for "
                "example, dataset.batch(256)."
            )
        return arrays


class _Given(NamedTuple):
    """Inputs, labels and weights (or None) of the same rows, and `time` of `with_times`."""

    inputs: Inputs
    labels: np.ndarray
    weights: np.ndarray | None
    time: ArrayLike | str | None


def as_inputs(
    x: Data,
    expected: Inputs,
    ids: Collection[str] = (),
    also: Collection[str] = (),
    standing_in: np.ndarray | None = None,
) -> Data:
    """Arrays and tables as a model takes them; data sets are returned unchanged."""
    if is_batches(x):
        return x
    inputs = inputs_of(x, expected, ids, also, standing_in)
    return keras.tree.map_structure(_as_input, structured(inputs, expected))


def is_batches(x: Data) -> bool:
    """Whether the inputs are a data set of batches, not arrays."""
    return isinstance(x, Iterable) and not _is_arrays(x)


def _one_output(values: Any, names: Collection[str]) -> Any:
    """The labels or weights of an output with one of the names, if they are given by output."""
    if not isinstance(values, Mapping):
        return values
    found = [name for name in names if name in values]
    if not found:
        raise ValueError(
            "Labels and weights must be arrays, or dictionaries with those of the calibrated "
            f"output, {' or '.join(map(repr, names))}. Received: a dictionary with {list(values)}."
        )
    return values[found[0]]


def _check_one_output(labels: Any, num_rows: int) -> None:
    """Raises if labels are a list with those of every output, as Keras' `fit` takes them."""
    if not isinstance(labels, list | tuple) or len(labels) == num_rows:
        return
    lengths = [part.shape[0] if getattr(part, "shape", ()) else 0 for part in labels]
    if lengths and set(lengths) == {num_rows}:
        raise ValueError(
            "Labels must be those of the calibrated output, one for each row. Received: a list of "
            f"{len(labels)} arrays with {num_rows:,} rows each. Pass one of them, for example "
            "y[0], or a dictionary of output names to labels."
        )


def _may_be_endless(batches: Iterable) -> bool:
    if isinstance(batches, keras.utils.PyDataset):
        return batches.num_batches is None
    cardinality = getattr(batches, "cardinality", None)
    return isinstance(batches, Iterator) or (callable(cardinality) and int(cardinality()) == -1)


def _iterate(batches: Iterable) -> Iterator:
    """Iterates over the batches of a data set; a `PyDataset` is indexed by batch number."""
    if isinstance(batches, keras.utils.PyDataset):
        endless = batches.num_batches is None
        numbers = itertools.count() if endless else range(batches.num_batches)
        return (batches[number] for number in numbers)
    return iter(batches)


def _checked(rows: _Given) -> _Given:
    named = [
        (f"input {'.'.join(map(str, path)) or 'x'}", array)
        for path, array in keras.tree.flatten_with_path(rows.inputs)
    ]
    named += [("labels", rows.labels)]
    named += [] if rows.weights is None else [("sample weights", rows.weights)]
    num_rows = {name: array.shape[0] if array.shape else 0 for name, array in named}
    check_same_rows("Inputs, labels and weights", num_rows)
    if not num_rows["labels"]:
        raise ValueError("The development set is empty. Pass at least one row of each class.")
    return rows


def _is_arrays(x: Data) -> bool:
    is_structure = isinstance(x, dict | list | tuple) or is_table(x)
    return is_structure or hasattr(x, "__array__") or ops.is_tensor(x) or is_sparse(x)


def _as_input(values: Tensor) -> Tensor:
    """A NumPy array, or a tensor for strings, because Keras accepts strings only as tensors."""
    if is_sparse(values) and len(values.shape) == 2:
        return as_csr(values)
    array = as_array(values)
    if array.dtype.kind not in "OSUT":
        return array
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Inputs of strings need the TensorFlow backend. Received: strings, and the backend "
            f"{keras.backend.backend()!r}, which has no tensors of strings. Number the values "
            "first, for example with numpy.unique(values, return_inverse=True), or set "
            'KERAS_BACKEND="tensorflow".'
        )
    return ops.convert_to_tensor(values if ops.is_tensor(values) else array.astype(object))
