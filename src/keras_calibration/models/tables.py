"""Converts columns of data frames, from pandas and others, to arrays that Keras accepts.

pandas is not imported: a data frame is recognised by its `columns` and `iloc`, a missing value by
its type name or by being NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_calibration._typing import Data, Inputs, Tensor
from keras_calibration._warn import warn

_MISSING_TYPES = ("NAType", "NaTType", "NoneType")


def is_data_frame(values: object) -> bool:
    """Whether the values are a data frame, recognised by its attributes."""
    return hasattr(values, "columns") and hasattr(values, "iloc")


def columns_of(x: Data, expected: Inputs | None = None) -> Inputs:
    """Arrays and data frames in the form that a model expects.

    Strings, possibly with `None` or NaN among them, become arrays of `str`; a missing one becomes
    the empty string. Nullable and object columns of numbers become arrays of numbers; missing
    values become NaN.

    Example:
        >>> columns_of({"site": np.array(["a", "b"], object)})["site"]
        array(['a', 'b'], dtype='<U1')
    """
    if is_data_frame(x):
        columns = {str(name): column_of(x[name], repr(str(name))) for name in x.columns}
        is_one = expected is not None and len(keras.tree.flatten(expected)) == 1
        if is_one and not isinstance(expected, Mapping):
            return np.stack(list(columns.values()), axis=1)
        x = columns
    else:
        x = _part(x, "'x'")
    if isinstance(x, dict) and isinstance(expected, Mapping):
        for name in expected.keys() & x.keys():
            _check_kind(x[name], name, expected[name])
    return x


def column_of(values: Tensor, name: str) -> Tensor:
    """One column as an array of numbers or strings; tensors are returned unchanged.

    Example:
        >>> column_of([1, None], "'price'")
        array([ 1., nan])
    """
    if ops.is_tensor(values):
        return values
    array = np.asarray(values)
    if array.dtype.kind == "O":
        array = _of_objects(array, name)
    if array.dtype.kind in "mMc":
        raise ValueError(
            f"Input {name} must hold numbers or strings. Received: dtype {array.dtype}. Convert "
            "times to numbers, for example seconds since 1970."
        )
    return array


def _part(values: Inputs, name: str) -> Inputs:
    """Converts the columns of a structure; a list of numbers is one column."""
    if isinstance(values, Mapping):
        return {key: _part(part, repr(key)) for key, part in values.items()}
    if isinstance(values, list | tuple) and any(hasattr(part, "shape") for part in values):
        return type(values)([_part(part, f"{name}[{n}]") for n, part in enumerate(values)])
    return column_of(values, name)


def _of_objects(array: np.ndarray, name: str) -> np.ndarray:
    """An object array as numbers, with NaN for missing values, or as strings."""
    values = array.reshape(-1).tolist()
    missing = [_is_missing(value) for value in values]
    present = [value for value, is_missing in zip(values, missing, strict=True) if not is_missing]
    kinds = set(map(type, present))
    if all(issubclass(kind, str | bytes) for kind in kinds) and kinds:
        if any(missing):
            warn(
                f"Input {name} has missing values among its strings: {sum(missing):,} of "
                f"{len(values):,} rows. They are read as empty strings. Fill them with the value "
                "that the base model was trained on, for example with column.fillna(...).",
            )
        strings = ["" if gone else value for value, gone in zip(values, missing, strict=True)]
        return np.array(
            [v.decode() if isinstance(v, bytes) else v for v in strings], dtype=np.str_
        ).reshape(array.shape)
    if not all(issubclass(kind, int | float | np.number | np.bool_) for kind in kinds):
        names = sorted(kind.__name__ for kind in kinds)
        raise ValueError(
            f"Input {name} must hold numbers or strings. Received: objects of the types {names}. "
            "Convert them to numbers or to strings."
        )
    if any(missing):
        values = [np.nan if gone else value for value, gone in zip(values, missing, strict=True)]
    return np.asarray(values).reshape(array.shape)


def _is_missing(value: object) -> bool:
    # NaN differs from itself; comparing pandas' missing values would raise.
    is_float = isinstance(value, float | np.floating)
    return type(value).__name__ in _MISSING_TYPES or (is_float and value != value)


def _check_kind(values: Tensor, name: str, expected: keras.KerasTensor) -> None:
    """Raises for strings instead of numbers, the reverse, and fractions instead of integers."""
    if ops.is_tensor(values):
        return
    dtype = keras.backend.standardize_dtype(expected.dtype)
    is_text = values.dtype.kind in "US"
    if is_text != (dtype == "string"):
        kind = "strings" if dtype == "string" else f"numbers ({dtype})"
        raise ValueError(
            f"Input {name!r} of the model must hold {kind}. Received: a column of "
            f"{'strings' if is_text else values.dtype}."
        )
    if "int" in dtype and values.dtype.kind == "f":
        wrong = np.flatnonzero(~(values.reshape(-1) == np.floor(values.reshape(-1))))
        if len(wrong):
            raise ValueError(
                f"Input {name!r} of the model must hold integers ({dtype}). Received: "
                f"{values.reshape(-1)[wrong[0]]:g} in row {wrong[0]}, {len(wrong):,} such rows. "
                "Fill missing ids with an id of their own."
            )
