"""Reader: reads arrays, data frames and data sets as a model takes them, into `Rows`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._check import known, refused
from calibration_records._columns import (
    as_array,
    by_name,
    check_same_rows,
    is_table,
    warn_of_other_order,
)
from keras_calibration._rows.columns import as_csr, in_place_of_names, is_sparse
from keras_calibration._rows.door import NOTHING, Given, Wanted, rows_of
from keras_calibration._rows.inputs import inputs_by_name, inputs_of, structured
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import ALL, Counted
from keras_calibration._typing import Data, Inputs, Tensor

# Above this number of rows, the reader shows progress.
_MANY_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads development sets as a model takes them, into `Rows` of its logits.

    Args:
        structure: The symbolic inputs of the model.
        compute: Computes logits, and features by name, from inputs in this structure and `verbose`.
        ids: Names of the inputs that hold ids, which must be exact.
        numeric: Names of the inputs of numeric columns, which a fit must not lose in float32.
        label_names: Names of the calibrated output in dictionaries of labels or weights, which a
            model with several outputs may have.
        other_names: Names of all outputs, which these dictionaries may also have.
        wanted: The features that a fit reads. All other features stay as the model takes them.
    """

    structure: Inputs
    compute: Callable[[Inputs, int | str], tuple[np.ndarray, Mapping[str, Tensor]]]
    ids: Collection[str] = ()
    numeric: Collection[str] = ()
    label_names: Sequence[str] = ()
    other_names: Sequence[str] = ()
    wanted: Wanted = NOTHING

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
        time: ArrayLike | str | None = None,
        groups: ArrayLike | str | None = None,
        folds: Any = None,
        weights_are: str = "importance",
        verbose: int | str = 0,
    ) -> Rows:
        """The checked rows that count, of a development set.

        Args:
            x: Arrays, a table, or a finite data set of batches.
            y: Labels, if `x` holds arrays.
            sample_weight: Sample weights, if `x` holds arrays.
            time: The times of the rows, see `times.with_times`; they need not be an input.
            groups: Which rows belong together, see `groups.with_groups`; they need not be an input.
            folds: A number of folds, their name, or the fold of each row.
            weights_are: What the weights are, see `weights.counts_of`.
            verbose: Whether progress is shown.
        """
        if is_batches(x):
            if y is not None or sample_weight is not None:
                raise ValueError(
                    "Arguments `y` and `sample_weight` must be None if `x` is a dataset. Received: "
                    f"x={type(x).__name__} and y or sample_weight. Put them into the batches, "
                    "(x, y) or (x, y, sample_weight)."
                )
            # A fit needs all rows several times, so a data set is read into memory once.
            x, y, sample_weight = self._load_into_memory(x, (time, groups))
        else:
            warn_of_other_order(x=x, y=y, sample_weight=sample_weight, time=time, groups=groups)
        y_name, y = self._pick_output("y", y)
        _, sample_weight = self._pick_output("sample_weight", sample_weight)
        # Of a table that becomes one matrix, what these arguments name is no part.
        apart = {part for part in (y, sample_weight, groups, time) if isinstance(part, str)}
        # No input of a model is its label. What a fit reads as features is neither a label nor a
        # weight, and no column is both.
        in_place_of_names(x, inputs_by_name(self.structure, self.structure), y=y)
        (y, sample_weight), _ = in_place_of_names(
            x, {*self.ids, *self.numeric}, y=y, sample_weight=sample_weight
        )

        # The door calls this after it has read the weights: the model computes no row of weight 0.
        def scores(counted: Counted) -> tuple[np.ndarray, dict[str, np.ndarray]]:
            inputs = as_inputs(x, self.structure, self.ids, counted, self.numeric, apart)
            num_rows = _count_rows(inputs, counted.of(y, y_name), counted.weights)
            logits, features = self.compute(inputs, verbose if num_rows > _MANY_ROWS else 0)
            return logits, {name: as_array(column) for name, column in features.items()}

        given = Given(
            scores,
            y,
            sample_weight,
            x,
            time=time,
            groups=groups,
            folds=folds,
            weights_are=weights_are,
            labels_argument=y_name,
        )
        return rows_of(given, self.wanted)

    def _pick_output(self, argument: str, values: Any) -> tuple[str, Any]:
        """The labels or weights of the calibrated output, and how the user calls them."""
        if not isinstance(values, Mapping):
            return argument, values
        known(
            f"Argument `{argument}` must name outputs of the model",
            values,
            dict.fromkeys([*self.label_names, *self.other_names]),
        )
        name = next((name for name in self.label_names if name in values), None)
        if name is None:
            raise refused(
                argument,
                f"a dictionary with the output {' or '.join(map(repr, self.label_names))}",
                list(values),
            )
        return f"{argument}[{name!r}]", values[name]

    def _load_into_memory(self, batches: Iterable, more: Sequence) -> tuple[Data, Any, Any]:
        """The columns that are read, labels and weights of a data set, as arrays."""
        # Drop columns that nobody reads before they fill the memory.
        inputs = inputs_by_name(self.structure, self.structure)
        parts = [_read_batch(batch, inputs, more) for batch in _iterate(batches)]
        if not parts:
            raise ValueError("The development set is empty. Received: a dataset without batches.")
        x, y, *weights = keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
        return x, y, next(iter(weights), None)


def as_inputs(
    x: Data,
    expected: Inputs,
    ids: Collection[str] = (),
    counted: Counted = ALL,
    numeric: Collection[str] = (),
    apart: Collection[str] = (),
) -> Data:
    """Arrays and tables as a model takes them; data sets are returned unchanged."""
    if is_batches(x):
        return x
    inputs = inputs_of(x, expected, ids, counted, numeric, apart)
    return keras.tree.map_structure(_convert_to_input, structured(inputs, expected))


def _read_batch(batch: Any, inputs: Collection[str], more: Sequence) -> tuple[Any, ...]:
    """Inputs, labels and optional weights of a batch, with only the columns that are read."""
    if not (isinstance(batch, tuple | list) and len(batch) in (2, 3)) or batch[1] is None:
        raise ValueError(
            "Each batch of the development set must be (x, y) or (x, y, sample_weight). "
            f"Received: {type(batch).__name__} of {keras.tree.map_structure(type, batch)}."
        )
    # A weight of None counts as no weight.
    x, *others = batch if batch[-1] is not None else batch[:-1]
    x = by_name(x)
    if isinstance(x, Mapping) and all(name in x for name in inputs):
        read_names = {*inputs, *(name for name in more if isinstance(name, str))}
        x = {name: column for name, column in x.items() if name in read_names}
    arrays: tuple[Any, ...] = keras.tree.map_structure(as_array, (x, *others))
    if not all(array.ndim for array in keras.tree.flatten(arrays)):
        raise ValueError(
            "The development set must consist of batches. Received: single rows. Pass, for "
            "example, dataset.batch(256)."
        )
    return arrays


def is_batches(x: Data) -> bool:
    """Whether the inputs are a data set of batches, not arrays."""
    # Arrays and tables are iterable too, so exclude them: what else can be iterated has batches.
    is_structure = isinstance(x, dict | list | tuple) or is_table(x)
    is_arrays = is_structure or hasattr(x, "__array__") or ops.is_tensor(x) or is_sparse(x)
    return isinstance(x, Iterable) and not is_arrays


def given_labels(x: Data, y: Any) -> Any:
    """The labels as the user passed them; for a data set, the labels of its first batch."""
    if not is_batches(x):
        return y
    first = next(_iterate(x), None)
    return first[1] if isinstance(first, tuple | list) and len(first) > 1 else None


def _iterate(batches: Iterable) -> Iterator:
    """Iterates over the batches of a finite data set; a `PyDataset` is indexed by batch number."""
    # TensorFlow's sign for an infinite data set is -1; a Keras `PyDataset` has no number of
    # batches.
    cardinality = getattr(batches, "cardinality", None)
    is_infinite = callable(cardinality) and int(cardinality()) == -1
    if isinstance(batches, keras.utils.PyDataset):
        is_infinite = batches.num_batches is None
    if isinstance(batches, Iterator) or is_infinite:
        raise ValueError(
            "The development set must be finite, because base logits are computed once for all "
            f"rows. Received: {type(batches).__name__}, a generator or an infinite dataset. Pass "
            "dataset.take(...)."
        )
    if isinstance(batches, keras.utils.PyDataset):
        return (batches[number] for number in range(batches.num_batches))
    return iter(batches)


def _count_rows(inputs: Inputs, labels: Any, weights: Any) -> int:
    """The number of rows; raises if inputs, labels and weights differ in it, or there is none."""
    paths = keras.tree.flatten_with_path(inputs)
    columns = {f"input {'.'.join(map(str, path)) or 'x'}": column for path, column in paths}
    columns |= {"labels": labels} if weights is None else {"labels": labels, "weights": weights}
    num_rows = {name: (*np.shape(column), 0)[0] for name, column in columns.items()}
    check_same_rows("Inputs, labels and weights", num_rows)
    if not num_rows["labels"]:
        raise ValueError("The development set is empty. Pass at least one row of each class.")
    return num_rows["labels"]


def _convert_to_input(values: Tensor) -> Tensor:
    """A NumPy array, or a tensor for strings, because Keras accepts strings only as tensors."""
    if is_sparse(values) and len(values.shape) == 2:
        return as_csr(values)
    array = as_array(values)
    # Numbers pass as they are; only TensorFlow has tensors of strings.
    if array.dtype.kind not in "OSU":
        return array
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Inputs of strings need the TensorFlow backend. Received: strings, and the backend "
            f"{keras.backend.backend()!r}. Number the values first, for example with numpy.unique."
        )
    return ops.convert_to_tensor(values if ops.is_tensor(values) else array.astype(object))
