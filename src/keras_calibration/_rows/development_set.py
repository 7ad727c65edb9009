"""Reads development sets from arrays, data frames and data sets into memory."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._columns import by_name, check_same_rows, is_table, warn_of_other_order
from keras_calibration._rows.columns import as_array, numbers_of
from keras_calibration._rows.data_checks import (
    columns_that_count,
    counts_of,
    unit_of,
    warn_of_weights,
)
from keras_calibration._rows.input_columns import inputs_of
from keras_calibration._typing import Data, Inputs, Tensor


@dataclass(frozen=True)
class DevelopmentSet:
    """Inputs, labels and weights of the same rows.

    Args:
        inputs: An array with n rows, or the structure of arrays that the model expects. Strings are
            tensors, numbers are NumPy arrays.
        labels: Array of labels with n rows.
        weights: Array of sample weights with n rows, or None.
        unit: The sample weight of one row, if the weights are numbers of rows.
    """

    inputs: Inputs
    labels: np.ndarray
    weights: np.ndarray | None
    unit: float = 1.0

    def counted(self, weights_are: str = "importance") -> tuple[DevelopmentSet, np.ndarray]:
        """The rows that count, with weights that are numbers of rows, and their numbers."""
        weights = counts_of(self.weights, weights_are, len(self.labels))
        warn_of_weights(self.labels, self.weights, weights_are)
        counted = replace(self, weights=weights, unit=unit_of(self.weights, weights))
        if weights is None or weights.all():
            return counted, np.arange(len(self.labels))
        used = np.flatnonzero(weights)

        def taken(column: Tensor) -> Tensor:
            return ops.take(column, used, 0) if ops.is_tensor(column) else column[used]

        inputs = keras.tree.map_structure(taken, self.inputs)
        labels, weights = self.labels[used], weights[used]
        return replace(counted, inputs=inputs, labels=labels, weights=weights), used


def read_development_set(
    x: Data,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    steps_per_epoch: int | None = None,
    expected: Inputs | None = None,
    outputs: Collection[str] = (),
    ids: Collection[str] = (),
) -> DevelopmentSet:
    """Reads the data passed to a fit into arrays.

    Of the inputs, `ids` names those that hold ids, which must be exact. Of a data set of batches,
    the first `steps_per_epoch` are read.

    Labels and weights may be dictionaries, as for a model with several outputs: those of the output
    with one of the given names are read.

    Example:
        >>> rows = read_development_set({"site": [3, 1]}, [0, 1])
        >>> rows.inputs["site"], rows.labels
        (array([3, 1]), array([0, 1]))
        >>> labels = {"click": [0, 1], "buy": [0, 0]}
        >>> read_development_set({"site": [3, 1]}, labels, outputs=["click"]).labels
        array([0, 1])
    """
    if is_batches(x):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "Arguments `y` and `sample_weight` must be None if `x` is a dataset. Received: "
                f"x={type(x).__name__} and y or sample_weight. Put them into the batches, (x, y) "
                "or (x, y, sample_weight)."
            )
        return _read_batches(x, steps_per_epoch, outputs, expected, ids)
    if steps_per_epoch is not None:
        raise ValueError(
            "Argument `steps_per_epoch` must be None if `x` holds arrays, all rows of which are "
            f"read. Received: steps_per_epoch={steps_per_epoch}."
        )
    if y is None:
        raise ValueError(
            "The development set must have labels. Received: arrays without y. Pass x and y, or a "
            "dataset of batches (x, y)."
        )
    warn_of_other_order(x=x, y=y, sample_weight=sample_weight)
    y, sample_weight = _one_output(y, outputs), _one_output(sample_weight, outputs)
    if sample_weight is not None and (isinstance(x, Mapping) or is_table(x)):
        x = columns_that_count(by_name(x), sample_weight)
    inputs = as_inputs(x, expected, ids)
    num_rows = max((len(part) for part in keras.tree.flatten(inputs)), default=0)
    _check_one_output(y, num_rows)
    weights = None if sample_weight is None else numbers_of(sample_weight, "Weights")
    return _checked(DevelopmentSet(inputs, numbers_of(y, "Labels"), weights))


def as_inputs(
    x: Data,
    expected: Inputs | None = None,
    ids: Collection[str] = (),
    also: Collection[str] = (),
) -> Data:
    """Arrays and tables as inputs that a model expects; data sets are returned unchanged."""
    if is_batches(x):
        return x
    return keras.tree.map_structure(_as_array, inputs_of(x, expected, ids, also))


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


def _read_batches(
    batches: Iterable,
    num_batches: int | None,
    outputs: Collection[str],
    expected: Inputs | None,
    ids: Collection[str],
) -> DevelopmentSet:
    if num_batches is None and _may_be_endless(batches):
        raise ValueError(
            "The development set must be finite, because base logits are computed once for all "
            f"rows. Received: {type(batches).__name__}, a generator or an infinite dataset. Pass "
            "steps_per_epoch, the number of batches to read, or dataset.take(...)."
        )
    read = itertools.islice(_iterate(batches), num_batches)
    parts = [_batch(batch, outputs, expected, ids) for batch in read]
    if not parts:
        raise ValueError("The development set is empty. Received: a dataset without batches.")
    inputs, labels, *weights = keras.tree.map_structure(
        lambda *arrays: np.concatenate(arrays), *parts
    )
    inputs = keras.tree.map_structure(_as_array, inputs)
    return _checked(DevelopmentSet(inputs, labels, weights[0] if weights else None))


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


def _batch(
    batch: Any, outputs: Collection[str], expected: Inputs | None, ids: Collection[str]
) -> tuple[Inputs, ...]:
    """Inputs, labels and, if given, weights of a batch, as NumPy arrays."""
    is_pair = isinstance(batch, tuple | list) and len(batch) in (2, 3)
    if not is_pair or batch[1] is None:
        raise ValueError(
            "Each batch of the development set must be (x, y) or (x, y, sample_weight). "
            f"Received: {type(batch).__name__} of {keras.tree.map_structure(type, batch)}."
        )
    x, *labels_and_weights = batch if batch[-1] is not None else batch[:-1]
    inputs = keras.tree.map_structure(as_numpy, inputs_of(x, expected, ids))
    parts = zip(labels_and_weights, ("Labels", "Weights"), strict=False)
    arrays = (inputs, *(numbers_of(_one_output(part, outputs), what) for part, what in parts))
    if not all(array.ndim for array in keras.tree.flatten(arrays)):
        raise ValueError(
            "The development set must consist of batches. Received: single rows. Pass, for "
            "example, dataset.batch(256)."
        )
    return arrays


def _checked(rows: DevelopmentSet) -> DevelopmentSet:
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
    return is_structure or hasattr(x, "__array__") or ops.is_tensor(x)


def as_numpy(values: Tensor) -> np.ndarray:
    """Converts a tensor, an array or a list to a NumPy array."""
    return as_array(values)


def _as_array(values: Tensor) -> Tensor:
    """A NumPy array, or a tensor for strings, because Keras accepts strings only as tensors."""
    array = as_numpy(values)
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
