"""Columns that may be tensors of the backend or symbolic, which `_columns` then reads too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike
from scipy import sparse

from calibration_records._check import known, one_column, refused
from calibration_records._columns import (
    FROM_OTHERS,
    as_array,
    by_name,
    column_of,
    numbers_of,
    refuse_fractions,
)
from calibration_records._warn import warn
from keras_calibration._typing import Tensor

# One limit for two losses of float32: the distance of its numbers as a share of the spread of a
# column, and the share of numbers outside of the two bounds below. TensorFlow takes smaller numbers
# for 0, and the difference of two larger ones may overflow.
_MOST_LOST = 0.01
SMALLEST_NUMBER = 2.0**-126
LARGEST_NUMBER = 2.0**126


def is_symbolic(values: object) -> bool:
    """Whether values are a tensor of a graph, which cannot be read yet."""
    # Each backend has its own kind of tensors that exist only while it traces a function.
    if not ops.is_tensor(values):
        return isinstance(values, keras.KerasTensor)
    if keras.backend.backend() == "jax":
        import jax

        return isinstance(values, jax.core.Tracer)
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not (tf.executing_eagerly() and hasattr(values, "numpy"))


def is_sparse(values: object) -> bool:
    """Whether values are a sparse matrix of SciPy, or a sparse tensor of TensorFlow."""
    return hasattr(values, "tocsr") or hasattr(values, "dense_shape")


def as_csr(values: Any) -> Any:
    """A sparse matrix or tensor of rank 2 as CSR, whose rows SciPy can select; `fit` accepts it."""
    if hasattr(values, "tocsr"):
        return values.tocsr()
    # TensorFlow keeps a row of indices for each value, SciPy an array for each axis.
    places = np.asarray(values.indices).T
    return sparse.csr_array((np.asarray(values.values), tuple(places)), tuple(values.shape))


def flat_numbers(values: ArrayLike, name: str) -> np.ndarray:
    """Logits, labels or weights (n,) or (n, 1) as an array (n,) in float64."""
    return flat_array(numbers_of(values, name).astype(np.float64), name)


def flat_array(array: np.ndarray, name: str) -> np.ndarray:
    """An array (n,) or (n, 1) as (n,); raises for other shapes."""
    one_column(name, array.shape)
    return array.reshape(-1)


def column_or_tensor(values: Any, name: str) -> Tensor:
    """A column as an array of numbers or strings; tensors are returned unchanged."""
    is_tensor = ops.is_tensor(values) or isinstance(values, keras.KerasTensor)
    return values if is_tensor else column_of(values, name)


def take(columns: Any, numbers: np.ndarray | slice) -> Any:
    """Some rows of a column, or of each column of a mapping or structure.

    `numbers` are row numbers, a slice, or an array of bool with an entry for each row. None, for a
    missing column, stays None.

    Example:
        >>> take({"site": np.array([7, 8, 9])}, slice(2))
        {'site': array([7, 8])}
        >>> take((np.array([7, 8, 9]), None), np.array([2, 0]))
        (array([9, 7]), None)
    """
    if isinstance(columns, Mapping):
        return {name: take(column, numbers) for name, column in columns.items()}
    if isinstance(columns, list | tuple):
        return keras.tree.map_structure(lambda column: take(column, numbers), columns)
    # Not every backend indexes tensors by arrays; `ops.take` does it on all, by row numbers.
    if ops.is_tensor(columns) and not isinstance(numbers, slice):
        is_mask = numbers.dtype == bool
        return ops.take(columns, np.flatnonzero(numbers) if is_mask else numbers, axis=0)
    return None if columns is None else columns[numbers]


def named_column(argument: str, name: str, columns: Any, also: str) -> Any:
    """The column that an argument names; `also` is what else the argument may be."""
    # A matrix has no names; it counts as a table without columns.
    table = by_name(columns)
    table = table if isinstance(table, Mapping) else {}
    remedy = "" if table else "Pass the table that has it, as `features`; with a model, as `x`."
    known(f"Argument `{argument}` must be a column of the rows, {also}", [name], table, remedy)
    return table[name]


def in_place_of_names(
    columns: Any, read: Collection[str], **arguments: Any
) -> tuple[list[Any], list[str]]:
    """The arguments, with columns of the rows in place of their names; and these names.

    Raises if a name is no column, or if it is used twice: by two arguments, or by a fit that would
    also `read` this column as a feature, so that the model would need the label to predict it.

    Example:
        >>> in_place_of_names({"clicked": [0, 1], "site": [3, 4]}, ["site"], labels="clicked")
        ([[0, 1]], ['clicked'])
    """
    named = {argument: name for argument, name in arguments.items() if isinstance(name, str)}
    for argument, name in named.items():
        arguments[argument] = named_column(argument, name, columns, "or an array")
        if name in read or list(named.values()).count(name) > 1:
            raise refused(argument, "a column that nothing else uses", name, "Use it only once.")
    return list(arguments.values()), list(named.values())


def field_values(values: Any, name: str) -> Tensor:
    """Field values of a metric, for which NaN is one more value; raises for fractions.

    Example:
        >>> field_values([0.0, float("nan")], "'site'")
        array([ 0., nan])
    """
    if ops.is_tensor(values) or isinstance(values, keras.KerasTensor):
        return values
    array = column_of(values, name)
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        # Ids may be floats, as data frames with gaps hold them, but a fraction is no id.
        flat = array.astype("float64").reshape(-1)
        refuse_fractions(flat[np.isfinite(flat)], name, "field values, whole numbers")
    return array


def refuse_beyond_float32(values: np.ndarray, what: str) -> None:
    """Raises if finite numbers overflow in float32, the dtype of layers, or many are near its ends.

    Example:
        >>> refuse_beyond_float32(np.array([1e-40, 1.0]), "Argument `scores`")
        Traceback (most recent call last):
        ...
        ValueError: Argument `scores` must hold 0 or numbers that float32 holds, from 1.2e-38 to
        8.5e37. Received: 1e-40, 1 of 2 numbers being too small or too large. Divide it by its
        standard deviation, or take its logarithm.
    """
    sizes = np.abs(values[values != 0])
    # A few extreme numbers may be lost; an overflow may not, as it would become infinite.
    bad = sizes[(sizes < SMALLEST_NUMBER) | (sizes > LARGEST_NUMBER)]
    if len(bad) > _MOST_LOST * len(sizes) or bad.max(initial=0) > np.finfo(np.float32).max:
        raise ValueError(
            f"{what} must hold 0 or numbers that float32 holds, from 1.2e-38 to 8.5e37. Received: "
            f"{bad[0]:g}, {len(bad):,} of {values.size:,} numbers being too small or too large. "
            "Divide it by its standard deviation, or take its logarithm."
        )


def numbers_in_float32(values: Any, name: str) -> Any:
    """A numeric column, unchanged; raises if float32, the dtype of layers, does not hold it.

    Warns if neighbouring numbers of the column become equal in float32.

    Example:
        >>> import warnings
        >>> dates = np.array([20180130, 20180131, 20180201, 20180202])
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     days = numbers_in_float32(dates, "day")
        >>> str(caught[0].message)[:65]
        "The column 'day' loses digits in float32, which layers convert to"
    """
    column = as_array(values, repr(name))
    numbers = column if column.dtype.kind in "iuf" else np.zeros(0)
    present = numbers[np.isfinite(numbers)].astype(np.float64)
    refuse_beyond_float32(present, f"Column {name!r}")
    # Narrow dtypes fit into float32, digit by digit.
    if numbers.dtype.itemsize < 4 or numbers.dtype == np.float32 or not len(present):
        return values
    # The middle of the distribution decides: one far number takes no digits from the others. Digits
    # are lost if float32 numbers of this size lie too far apart (`np.spacing`).
    low, high = np.quantile(present, (0.16, 0.84), method="inverted_cdf")
    largest = max(abs(low), abs(high))
    step = float(np.spacing(np.float32(largest)))
    if high > low and step > _MOST_LOST * (high - low):
        warn(
            f"The column {name!r} loses digits in float32, which layers convert to: numbers about "
            f"{largest:.10g} are {step:g} apart there, and most of these lie within {high - low:g}."
            " Subtract a constant first; pass a date as days since a date."
        )
    return values


def _convert_to_numpy(values: Any) -> Any:
    if hasattr(values, "toarray"):
        return values.toarray()
    # NumPy reads a dense tensor without a copy. Keras' conversion copies, and NumPy 2.4 warns of
    # how TensorFlow does it.
    if ops.is_tensor(values) and hasattr(values, "__array__"):
        return np.asarray(values)
    return ops.convert_to_numpy(values) if ops.is_tensor(values) else values


# `calibration_records` knows no tensors; this teaches its readers to take them.
FROM_OTHERS.append(_convert_to_numpy)
