"""The gate through which columns enter: arrays, pandas, Polars and Arrow become arrays, exactly.

No library of data frames is imported: a table is recognised by the names of its columns, a column
by what NumPy makes of it, a missing value by its type or by being NaN. Only columns that are read
are converted. A number that would change on the way is an error here, with the column's name.
"""

from __future__ import annotations

import contextlib
import decimal
import difflib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._typing import Tensor
from keras_calibration._warn import warn
from keras_calibration.ops.field_sums import EXACT_WHOLE_NUMBERS

_MISSING_TYPES = ("NAType", "NaTType", "NoneType")
_NUMBERS = (int, float, np.number, np.bool_, decimal.Decimal)
# How the assertions of graphs start.
_REFUSED = "The input"
# Beyond int64, also where a float has more digits.
_MOST = 2**63


def is_table(values: object) -> bool:
    """Whether values are a table with named columns: of pandas, Polars, Arrow, or alike.

    Example:
        >>> import pandas as pd
        >>> is_table(pd.DataFrame({"site": [1]})), is_table({"site": [1]})
        (True, False)
    """
    if isinstance(values, Mapping) or not hasattr(values, "__getitem__"):
        return False
    # Polars computes, and warns, if a lazy frame is asked for its columns.
    return hasattr(type(values), "columns") or hasattr(type(values), "column_names")


def by_name(columns: Any) -> Any:
    """A table as a dictionary of its columns, not converted; anything else unchanged."""
    if not is_table(columns):
        return columns
    if not hasattr(columns, "__len__"):
        raise ValueError(
            "A table must be in memory. Received: "
            f"{type(columns).__name__}. Collect it first, for example with table.collect()."
        )
    names = columns.column_names if hasattr(columns, "column_names") else columns.columns
    keys = list(names)
    found = {str(key): columns[key] for key in dict.fromkeys(keys) if keys.count(key) == 1}
    # Two columns of one name are an error only if one of them is read.
    return found | {str(key): _Twice() for key in keys if keys.count(key) > 1}


class _Twice:
    """A column whose name another one of the table has too."""


def warn_of_other_order(**arguments: Any) -> None:
    """Warns if pandas objects have the same index in another order: rows match by position.

    Example:
        >>> import pandas as pd
        >>> warn_of_other_order(x=pd.Series([1, 2]), y=pd.Series([1, 0]))
    """
    parts = [
        (name, part)
        for name, values in arguments.items()
        for part in (values.values() if isinstance(values, Mapping) else [values])
    ]
    indexed = [(name, part.index) for name, part in parts if hasattr(part, "iloc")]
    for name, index in indexed[1:]:
        first_name, first = indexed[0]
        if len(index) != len(first) or index.equals(first):
            continue
        if index.is_unique and first.is_unique and index.isin(first).all():
            warn(
                f"Arguments `{first_name}` and `{name}` have the same index in another order. "
                f"Received: {first[:3].tolist()} … and {index[:3].tolist()} …. Rows are matched by "
                "position, not by index. Put them in the same order, for example with "
                ".reindex(other.index), or pass arrays.",
            )


def suggestion(missing: Iterable[str], available: Iterable[str]) -> str:
    """What may have been meant by names that are missing; empty if nothing is near.

    Example:
        >>> suggestion(["sites"], ["hour", "site"])
        " Did you mean 'site'?"
    """
    names = list(map(str, available))
    near = [difflib.get_close_matches(str(name), names, 2) for name in missing]
    found = list(dict.fromkeys(name for names in near for name in names))
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""


def select_features(features: Any, names: Iterable[str], reader: str) -> dict[str, Any]:
    """The columns of these names, not converted; raises if one is missing.

    Example:
        >>> select_features({"site": [1], "hour": [2]}, ["sites"], "FieldBias")
        Traceback (most recent call last):
        ...
        ValueError: Argument `features` must hold all features that FieldBias reads, ['sites'].
        Received: ['hour', 'site'], without ['sites']. Did you mean 'site'?
    """
    columns = by_name(features)
    if not isinstance(columns, Mapping):
        raise ValueError(
            "Argument `features` must be a mapping of feature names to arrays, or a data frame. "
            f"Received: features of type {type(columns).__name__}. The order of the arguments is "
            "logits, labels, features, sample_weight."
        )
    names = list(names)
    missing = [name for name in names if name not in columns]
    if missing:
        raise ValueError(
            f"Argument `features` must hold all features that {reader} reads, {names}. Received: "
            f"{sorted(map(str, columns))}, without {missing}.{suggestion(missing, columns)}"
        )
    return {name: columns[name] for name in names}


def names_of(names: str | Iterable[str]) -> list[str]:
    """Names of columns, given as a list or as a single name.

    Example:
        >>> names_of("price"), names_of(("price", "age"))
        (['price'], ['price', 'age'])
    """
    return [names] if isinstance(names, str) else list(names)


def numbers_of(values: Any, what: str) -> np.ndarray:
    """Labels, predictions or weights as an array of numbers; raises for strings.

    Example:
        >>> numbers_of(["no", "yes"], "Labels")
        Traceback (most recent call last):
        ...
        ValueError: Labels must be numbers. Received: strings, such as 'no'. Recode them first, for
        example as (labels == 'no').astype(int).
    """
    column = column_of(values, what.lower())
    array = column if isinstance(column, np.ndarray) else as_array(column)
    if array.dtype.kind in "OSUT":
        first = array.reshape(-1)[0] if array.size else ""
        first = first.decode() if isinstance(first, bytes) else str(first)
        raise ValueError(
            f"{what} must be numbers. Received: strings, such as {first!r}. Recode them first, for "
            f"example as ({what.lower()} == {first!r}).astype(int)."
        )
    return array


def check_same_rows(what: str, num_rows: Mapping[str, int]) -> None:
    """Raises if columns, given by name with their numbers of rows, differ in them."""
    if len(set(num_rows.values())) > 1:
        raise ValueError(f"{what} must have the same number of rows. Received: {dict(num_rows)}.")


def is_symbolic(values: object) -> bool:
    """Whether values are a tensor that a graph will compute, so that they cannot be read."""
    if isinstance(values, keras.KerasTensor):
        return True
    if not ops.is_tensor(values):
        return False
    if keras.backend.backend() == "jax":
        import jax

        return isinstance(values, jax.core.Tracer)
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not (tf.executing_eagerly() and hasattr(values, "numpy"))


def as_array(values: Any, name: str = "it") -> np.ndarray:
    """A column, tensor, array or list as NumPy reads it, with missing values where it has them.

    Example:
        >>> as_array(["a", None])
        array(['a', None], dtype=object)
    """
    if ops.is_tensor(values):
        return ops.convert_to_numpy(values)
    if isinstance(values, np.ma.MaskedArray):
        return _unmasked(values)
    if isinstance(values, _Twice):
        raise ValueError(
            f"Input {name} must be one column of the table. Received: several columns of this "
            "name. Rename or drop the others."
        )
    is_list = isinstance(values, list | tuple | range)
    if not (is_list or hasattr(values, "__array__") or np.isscalar(values)):
        raise ValueError(
            f"Input {name} must be an array or a column of a table in memory. Received: "
            f"{type(values).__name__}. Convert it to NumPy, pandas, Polars or Arrow."
        )
    of_arrow = type(values).__module__.partition(".")[0] == "pyarrow"
    if of_arrow and str(values.type).startswith("dictionary"):
        # NumPy would get some value of the dictionary in place of a missing one.
        values = values.cast(values.type.value_type)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"Input {name} must hold one number or string per row, or rows of the same length. "
            f"Received: {type(values).__name__} ({error})."
        ) from error
    if is_list and array.dtype.kind in "US":
        # NumPy makes strings of the numbers and of NaN beside strings.
        array = np.asarray(values, dtype=object)
    return array


def column_of(values: Any, name: str) -> Tensor:
    """A column as an array of numbers or strings; tensors are returned unchanged.

    Strings, possibly with missing values among them, become arrays of `str`; a missing one becomes
    the empty string. Nullable and object columns of numbers become arrays of numbers, with NaN for
    missing values.

    Example:
        >>> column_of([1, None], "'price'")
        array([ 1., nan])
    """
    if ops.is_tensor(values) or isinstance(values, keras.KerasTensor):
        return values
    array = as_array(values, name)
    if array.dtype.kind == "O":
        array = _of_objects(array, name, values)
    is_number = array.dtype.kind in "biufOSU" or array.dtype.name in EXACT_WHOLE_NUMBERS
    if not is_number:
        raise ValueError(
            f"Input {name} must hold numbers or strings. Received: dtype {array.dtype}. Convert "
            "times to numbers, for example seconds since 1970."
        )
    return array


def ids_of(values: Any, name: str, reader: str = "ids") -> Tensor:
    """A column of ids as an array of integers or strings; raises if an id is not exact.

    Whole numbers among floats are ids too: a data frame makes floats of integers if one is
    missing, also in rows that have been dropped since.

    Example:
        >>> ids_of(np.array([1e9 + 1, 3.0]), "'user'")
        array([1000000001,          3])
    """
    array = column_of(values, name)
    if is_symbolic(array):
        return array
    array = array if isinstance(array, np.ndarray) else ops.convert_to_numpy(array)
    if array.dtype.kind in "OSUb" or not array.size:
        return array
    if array.dtype.kind in "iu":
        if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
            raise ValueError(
                f"Input {name} must hold whole numbers below 2⁶³. Received: {array.max()}. Convert "
                "the column to strings, and look them up with keras.layers.StringLookup."
            )
        return array
    return _whole(array, name, reader, values)


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
        flat = array.astype("float64").reshape(-1)
        _refuse_fractions(flat[np.isfinite(flat)], name, "field values, whole numbers")
    return array


def entering(values: Any, name: str, expected: keras.KerasTensor, is_id: bool = False) -> Tensor:
    """A column in the dtype of the model's input; raises if a value would change.

    Numbers that are not ids are rounded as Keras does. A float input holds ids only as far as
    float32 does, also in float64: Keras hands floats on in float32.

    Example:
        >>> site = keras.Input((), dtype="int32", name="site")
        >>> entering([2.0, 7.0], "'site'", site)
        array([2, 7], dtype=int32)
    """
    dtype = keras.backend.standardize_dtype(expected.dtype)
    is_same = ops.is_tensor(values) and keras.backend.standardize_dtype(values.dtype) == dtype
    if is_same and not (is_id and "float" in dtype):
        return values
    column = column_of(values, name)
    if is_symbolic(column):
        return _asserted(column, name, dtype, is_id)
    array = column if isinstance(column, np.ndarray) else ops.convert_to_numpy(column)
    if array.dtype.kind == "f" and dtype == "string" and np.isnan(array).all():
        array = _of_objects(np.full(array.shape, None, object), name, values, of_strings=True)
    is_text = array.dtype.kind in "OSU"
    if is_text != (dtype == "string"):
        kind = "strings" if dtype == "string" else f"numbers ({dtype})"
        raise ValueError(
            f"Input {name} of the model must hold {kind}. Received: a column of "
            f"{'strings' if is_text else array.dtype}."
        )
    if is_text:
        return column
    if "int" in dtype:
        array = ids_of(values, name, f"integers ({dtype})")
        _check_range(array, name, dtype)
    elif is_id:
        array = ids_of(values, name)
        _check_float_input(array, name, dtype)
    if dtype == "bool" or array.dtype.name == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(_numpy_dtype(dtype))


def _asserted(values: Tensor, name: str, dtype: str, is_id: bool) -> Tensor:
    """A tensor of a graph, which raises when it is computed if a value would change."""
    given = keras.backend.standardize_dtype(getattr(values, "dtype", "string"))
    is_read = given == "string" or isinstance(values, keras.KerasTensor)
    if is_read or keras.backend.backend() != "tensorflow" or not (is_id or "int" in dtype):
        return values  # only TensorFlow can raise in a graph
    import tensorflow as tf

    high = min(holds(dtype), holds("float32"))
    low = -high
    if "int" in dtype:
        limits = np.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
    if "float" in given:
        low, high = max(low, 1 - holds(given)), min(high, holds(given) - 1)
    wide = tf.cast(values, tf.float64)
    is_exact = (wide == tf.floor(wide)) & (wide >= low) & (wide <= high)
    message = (
        f"{_REFUSED} {name} of the model must hold whole numbers from {low} to {high}, "
        f"without missing ones, because {given} or {dtype} holds no others exactly. Received:"
    )
    asserted = tf.debugging.Assert(tf.reduce_all(is_exact), [message, values])
    with tf.control_dependencies([asserted]):
        return tf.identity(values)


@contextlib.contextmanager
def refused_in_graphs() -> Iterator[None]:
    """Reports a column that a graph has refused as it is reported for arrays."""
    try:
        yield
    except Exception as error:  # of TensorFlow, which may not be there
        refused = re.search(rf"assertion failed: \[({_REFUSED}.*?)\] \[(.*)\]", str(error))
        if refused is None:
            raise
        message = f"{refused[1]} {refused[2]}.".replace("\\'", "'")
        raise ValueError(message) from error


def _numpy_dtype(dtype: str) -> Any:
    # bfloat16 is no type of NumPy's own; Keras rounds to it.
    return "float32" if dtype == "bfloat16" else dtype


def holds(dtype: str) -> int:
    """The number up to which a float dtype holds all whole numbers.

    Example:
        >>> holds("float32")
        16777216
    """
    return EXACT_WHOLE_NUMBERS.get(dtype, _MOST)


def _whole(array: np.ndarray, name: str, reader: str, column: Any) -> np.ndarray:
    """Floats that are whole numbers, as int64."""
    dtype = array.dtype.name
    numbers = array if array.dtype.kind == "f" else array.astype("float32")
    flat = numbers.reshape(-1)
    missing = np.isnan(flat)
    if missing.any():
        raise ValueError(
            f"Input {name} must hold {reader}, without missing values. Received: nan in row "
            f"{int(missing.argmax())}, {int(missing.sum()):,} such rows. Give them an id of their "
            f"own, -1 or the one that the model was trained on, for example with {filled(column)}."
        )
    _refuse_fractions(flat, name, reader)
    limit = holds(dtype)
    far = np.flatnonzero(np.abs(flat) >= limit)
    if len(far):
        raise ValueError(
            f"Input {name} must hold {reader}, exactly. Received: {flat[far[0]]:.0f} in row "
            f"{far[0]} as {dtype}, in which different whole numbers from {limit:,} on may be the "
            "same. Read the column as integers (int64) in the first place, or as strings."
        )
    return numbers.astype("int64")


def _refuse_fractions(flat: np.ndarray, name: str, reader: str) -> None:
    fractions = np.flatnonzero(flat != np.floor(flat))
    if len(fractions):
        raise ValueError(
            f"Input {name} must hold {reader}. Received: {float(flat[fractions[0]])} in row "
            f"{fractions[0]}, {len(fractions):,} such rows. Numbers that are not ids belong in "
            "`numeric`."
        )


def _check_range(array: np.ndarray, name: str, dtype: str) -> None:
    """Raises if an integer is beyond the dtype of the input."""
    if array.dtype.kind not in "iu" or not array.size:
        return
    # JAX computes in int32 unless it is told otherwise.
    limits = np.iinfo(keras.backend.standardize_dtype(ops.zeros((0,), dtype).dtype))
    for number in (int(array.min()), int(array.max())):
        if not limits.min <= number <= limits.max:
            row = int(np.flatnonzero(array.reshape(-1) == number)[0])
            raise ValueError(
                f"Input {name} of the model must hold integers from {limits.min} to {limits.max} "
                f"({limits.dtype}). Received: {number} in row {row}. Declare it as "
                f'keras.Input((), dtype="int64", name={name}), or number the values anew.'
            )


def _check_float_input(array: np.ndarray, name: str, dtype: str) -> None:
    """Raises if an id is beyond what a float input holds exactly."""
    limit = min(holds(dtype), holds("float32"))
    far = np.flatnonzero(np.abs(array.reshape(-1).astype("float64")) > limit)
    if len(far):
        raise ValueError(
            f"Input {name} of the model must be of integers to hold these ids. Received: an input "
            f"of dtype {dtype}, in which Keras keeps whole numbers apart only up to {limit:,}, and "
            f"the id {array.reshape(-1)[far[0]]} in row {far[0]}. Declare it as "
            f'keras.Input((), dtype="int64", name={name}).'
        )


def filled(column: Any, of_strings: bool = False) -> str:
    """Code that fills the missing values of a column of this kind.

    Example:
        >>> filled(np.array([1.0, np.nan]))
        'np.nan_to_num(column, nan=-1).astype("int64")'
    """
    library = type(column).__module__.partition(".")[0]
    is_list = isinstance(column, list | tuple)
    is_object = not is_list and getattr(getattr(column, "dtype", None), "kind", "") == "O"
    if library == "pandas" or (is_object and "pandas" in sys.modules):
        # Arrays of objects may hold a missing value of pandas.
        series = "column" if library == "pandas" else "pandas.Series(column)"
        if of_strings:
            return f'{series}.astype(object).fillna("missing")'
        return f'{series}.astype("Int64").fillna(-1)'
    if library == "polars":
        if of_strings:
            return 'column.cast(str).fill_null("missing")'
        no_nan = "column.fill_nan(None)" if "Float" in str(column.dtype) else "column"
        return f"{no_nan}.cast(int).fill_null(-1)"
    if library == "pyarrow" and (of_strings or str(column.type) not in ("float", "double")):
        kind, value = ("string", '"missing"') if of_strings else ("int64", "-1")
        return f'column.cast("{kind}").fill_null({value})'
    value = '"missing"' if of_strings else "-1"
    if isinstance(column, np.ma.MaskedArray):
        return f"column.astype(object).filled({value})"
    if of_strings or is_list or is_object:
        return f"[{value} if v is None or v != v else v for v in column]"
    return 'np.nan_to_num(column, nan=-1).astype("int64")'


def _unmasked(values: np.ma.MaskedArray) -> np.ndarray:
    """A masked array with its missing values: NaN, or None among strings."""
    is_missing, array = np.ma.getmaskarray(values), np.asarray(values.data)
    if not is_missing.any():
        return array
    missing: Any = np.nan if array.dtype.kind in "iufb" else None
    array = array.astype("float64" if array.dtype.kind in "iufb" else object)
    array[is_missing] = missing
    return array


def _of_objects(array: np.ndarray, name: str, column: Any, of_strings: bool = False) -> np.ndarray:
    """An object array as numbers, with NaN for missing values, or as strings."""
    values = array.reshape(-1).tolist()
    missing = [is_missing(value) for value in values]
    present = [value for value, gone in zip(values, missing, strict=True) if not gone]
    kinds = set(map(type, present))
    if all(issubclass(kind, str | bytes) for kind in kinds) and (kinds or of_strings):
        if any(missing):
            warn(
                f"Input {name} has missing values among its strings: {sum(missing):,} of "
                f"{len(values):,} rows. They are read as empty strings. Fill them with the value "
                f"that the base model was trained on, for example with {filled(column, True)}.",
            )
        strings = ["" if gone else value for value, gone in zip(values, missing, strict=True)]
        return np.array(
            [v.decode() if isinstance(v, bytes) else v for v in strings], dtype=np.str_
        ).reshape(array.shape)
    if not all(issubclass(kind, _NUMBERS) for kind in kinds):
        names = sorted(kind.__name__ for kind in kinds)
        raise ValueError(
            f"Input {name} must hold numbers or strings. Received: objects of the types {names}. "
            "Convert them to numbers or to strings."
        )
    if any(missing):
        values = [np.nan if gone else value for value, gone in zip(values, missing, strict=True)]
    numbers = np.asarray([float(v) if isinstance(v, decimal.Decimal) else v for v in values])
    # Whole numbers beyond 64 bits stay Python objects.
    return (numbers.astype("float64") if numbers.dtype == object else numbers).reshape(array.shape)


def is_missing(value: object) -> bool:
    """Whether a Python value stands for a missing one: None, NaN, or pandas' NA or NaT."""
    # NaN differs from itself; comparing pandas' missing values would raise.
    is_float = isinstance(value, float | np.floating)
    return type(value).__name__ in _MISSING_TYPES or (is_float and value != value)


def check_one_value_a_row(values: Any, name: str, use: str) -> None:
    """Raises for a column with several values per row, given as an array or a tensor."""
    shape = tuple(values.shape)
    if len(shape) > 1 and shape[1:] != (1,):
        raise ValueError(
            f"{use} {name!r} must have one value per row, shape (n,) or (n, 1). Received: shape "
            f"{shape}. Give each of the {shape[1]} columns a name and an input of its own."
        )


def inputs_of(
    x: Any, expected: Any = None, ids: Collection[str] = (), also: Collection[str] = ()
) -> Any:
    """Arrays and tables in the form that a model expects; columns that it does not read are left.

    Args:
        x: An array, a list of arrays, a mapping of names to columns, or a table.
        expected: The symbolic inputs of the model, in its structure; None converts every column.
        ids: Names of the inputs that hold ids.
        also: Names of further columns to read, if there are any.

    Example:
        >>> site = keras.Input((), dtype="int64", name="site")
        >>> inputs_of({"site": [3.0, 1.0], "at": [[], []]}, {"site": site})
        {'site': array([3, 1])}
    """
    if expected is None:
        return _converted(by_name(x), "'x'")
    x = _one_matrix(x, expected) if is_table(x) else x
    if isinstance(x, Mapping) or isinstance(expected, Mapping):
        named = expected if isinstance(expected, Mapping) else input_names(expected)
        _check_named(x, named)
        read = {name: _entered(x[name], part, name, ids) for name, part in named.items()}
        others = [name for name in also if name in x and name not in read]
        return read | {name: column_of(x[name], repr(name)) for name in others}
    return _entered(x, expected, "x", ids)


def _check_named(x: Any, named: Mapping[str, Any]) -> None:
    """Raises unless inputs are given by name, and all of them."""
    is_named = isinstance(x, Mapping)
    missing = [name for name in named if not is_named or name not in x]
    if missing:
        received = sorted(map(str, x)) if is_named else type(x).__name__
        near = suggestion(missing, x) if is_named else ""
        raise ValueError(
            "The input must be a dictionary with all features of the model, "
            f"{sorted(named)}. Received: {received}, without {sorted(missing)}.{near}"
        )


def input_names(named: Any) -> dict[str, keras.KerasTensor]:
    """Symbolic inputs by the names of their tensors."""
    return {tensor.name: tensor for tensor in keras.tree.flatten(named)}


def _entered(x: Any, expected: Any, name: str, ids: Collection[str]) -> Any:
    """`inputs_of` for a part of the inputs: a column, or a structure of columns."""
    if isinstance(expected, Mapping):
        columns = by_name(x)
        if not isinstance(columns, Mapping) or any(key not in columns for key in expected):
            return x  # Keras reports the error.
        return {key: _entered(columns[key], part, key, ids) for key, part in expected.items()}
    if not isinstance(expected, list | tuple) and isinstance(x, list | tuple):
        if len(x) == 1 and len(getattr(x[0], "shape", ())):
            return [_entered(x[0], expected, name, ids)]
    if isinstance(expected, list | tuple):
        if len(expected) == 1 and not isinstance(x, list | tuple):
            return _entered(x, expected[0], name, ids)
        if not isinstance(x, list | tuple) or len(x) != len(expected):
            return x  # Keras reports the error.
        pairs = enumerate(zip(x, expected, strict=True))
        parts = [_entered(part, each, f"{name}[{n}]", ids) for n, (part, each) in pairs]
        return parts if isinstance(x, list) else tuple(parts)
    if x is None:
        return x  # an optional input
    return entering(x, repr(name), expected, name in ids or expected.name in ids)


def _one_matrix(table: Any, expected: Any) -> Any:
    """The columns of a table by name, or as one matrix if that is what the model expects."""
    columns = by_name(table)
    flat = keras.tree.flatten(expected)
    is_one = len(flat) == 1 and not isinstance(expected, Mapping)
    if not is_one or (flat[0].name in columns and tuple(flat[0].shape[1:]) in ((), (1,))):
        return columns
    arrays = [column_of(column, repr(name)) for name, column in columns.items()]
    return np.stack(arrays, axis=1)


def _converted(values: Any, name: str) -> Any:
    """Converts the columns of a structure; a list of numbers is one column."""
    if isinstance(values, Mapping):
        return {key: _converted(part, repr(key)) for key, part in values.items()}
    is_list = isinstance(values, list | tuple)
    if is_list and any(len(getattr(part, "shape", ())) for part in values):
        parts = [_converted(part, f"{name}[{n}]") for n, part in enumerate(values)]
        return parts if isinstance(values, list) else tuple(parts)
    return column_of(values, name)
