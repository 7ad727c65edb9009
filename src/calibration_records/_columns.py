"""Columns of arrays, lists, pandas, Polars and Arrow, as arrays: exactly, or with an error.

No library of data frames is imported: a table is recognised by the names of its columns, a column
by NumPy's conversion, a missing value by its type or by being NaN. Only columns that are read are
converted. If the conversion would change a number, an error names the column.
"""

from __future__ import annotations

import decimal
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from calibration_records._check import known
from calibration_records._limits import EXACT_WHOLE_NUMBERS
from calibration_records._warn import warn

NUMBERS = (int, float, np.number, np.bool_, decimal.Decimal)
# Functions that turn what NumPy cannot read by itself into what it can, and return all else as it
# is. A package with such arrays, as tensors are, adds its own.
FROM_OTHERS: list[Callable[[Any], Any]] = []


def is_table(values: object) -> bool:
    """Whether values are a table with named columns: of pandas, Polars, Arrow, or similar.

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
    if not hasattr(columns, "__len__"):  # a lazy frame
        raise ValueError(
            f"Tables must be in memory. Received: {type(columns).__name__}: collect it."
        )
    names = list(columns.column_names if hasattr(columns, "column_names") else columns.columns)
    # Columns with the same name, such as 0 and "0", are left out: either would be a guess.
    number = Counter(map(str, names))
    unique = _Columns({str(name): columns[name] for name in names if number[str(name)] == 1})
    unique.repeated = frozenset(number) - {*unique}
    return unique


class _Columns(dict[str, Any]):
    """The columns of a table, without those of the same name."""

    repeated: frozenset[str]


def refuse_repeated(what: str, columns: Any) -> None:
    """Raises if a table has columns of the same name, for readers of all columns.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame([[1, 2]], columns=["a", "a"])
        >>> refuse_repeated("Features must differ", by_name(table))
        Traceback (most recent call last):
        ...
        ValueError: Features must differ. Received: several columns 'a'. Keep one of each name, or
        rename the others.
    """
    known(what, getattr(columns, "repeated", ()), columns)


def warn_of_other_order(**arguments: Any) -> None:
    """Warns if pandas objects have the same index in another order: rows match by position.

    Example:
        >>> import pandas as pd
        >>> warn_of_other_order(x=pd.Series([1, 2]), y=pd.Series([1, 0]))
    """
    indexed = [
        (name, part.index)
        for name, values in arguments.items()
        for part in (values.values() if isinstance(values, Mapping) else [values])
        if hasattr(part, "iloc")
    ]
    for (first_name, first), (name, index) in itertools.combinations(indexed, 2):
        is_other = len(index) == len(first) and index is not first and not index.equals(first)
        if is_other and index.is_unique and first.is_unique and index.isin(first).all():
            warn(
                f"Arguments `{first_name}` and `{name}` have the same index in another order, and "
                "rows are matched by position. Use .reindex(other.index), or pass arrays."
            )
            return


def select_features(features: Any, names: Iterable[str], reader: str) -> dict[str, Any]:
    """The columns of these names, not converted; raises if one is missing.

    Example:
        >>> select_features({"site": [1], "hour": [2]}, ["sites"], "FieldBias")
        Traceback (most recent call last):
        ...
        ValueError: Argument `features` must hold all features of FieldBias. Received: no 'sites'.
        Did you mean 'site'? Available: 'site', 'hour'.
    """
    columns = by_name(features)
    if not isinstance(columns, Mapping):
        raise ValueError(
            "Argument `features` must be a mapping of names to arrays, or a data frame. Received: "
            f"{type(columns).__name__}."
        )
    names = list(names)
    known(f"Argument `features` must hold all features of {reader}", names, columns, missing=True)
    return {name: columns[name] for name in names}


def names_of(names: str | Iterable[str]) -> list[str]:
    """Names of columns as a list, from a list or a single name.

    Example:
        >>> names_of("price"), names_of(("price", "age"))
        (['price'], ['price', 'age'])
    """
    return [names] if isinstance(names, str) else list(names)


def numbers_of(values: Any, name: str) -> np.ndarray:
    """Labels, predictions or weights as an array of numbers; raises for strings.

    Example:
        >>> numbers_of(["1.5"], "labels")
        Traceback (most recent call last):
        ...
        ValueError: Input labels must be numbers. Received: strings, such as '1.5'. Convert them,
        for example with labels.astype(float), or (labels == '1.5').astype(int).
    """
    array = as_array(values, name)
    values = array.reshape(-1).tolist() if array.dtype.kind in "OSU" else []
    if texts := [value for value in values if isinstance(value, str | bytes)]:
        text = max(texts, key=str)
        raise ValueError(
            f"Input {name} must be numbers. Received: strings, such as {text!r}. Convert them, for "
            f"example with {name}.astype(float), or ({name} == {text!r}).astype(int)."
        )
    return column_of(array, name)


def check_same_rows(what: str, num_rows: Mapping[str, int]) -> None:
    """Raises if the numbers of rows of these columns differ."""
    if len(set(num_rows.values())) > 1:
        raise ValueError(f"{what} must have the same number of rows. Received: {dict(num_rows)}.")


def refuse_rows(
    bad: np.ndarray,
    values: np.ndarray,
    expected: str,
    remedy: str,
    numbers: np.ndarray | None = None,
) -> None:
    """Raises if a row is bad; the error names the first one, by its number among all `numbers`."""
    rows = np.flatnonzero(bad)
    if len(rows):
        raise ValueError(
            f"{expected} Received: {len(rows)} of {len(values)} rows with other values, the first "
            f"being {values[rows[0]]} in row {(rows if numbers is None else numbers[rows])[0]}. "
            f"{remedy}"
        )


def _make_input_error(name: str, expected: str, received: str) -> ValueError:
    return ValueError(f"Input {name} must {expected}. Received: {received}.")


def as_array(values: Any, name: str = "it") -> np.ndarray:
    """A column, array or list as NumPy reads it, with missing values where it has them.

    Example:
        >>> as_array(["a", None])
        array(['a', None], dtype=object)
    """
    for converted in FROM_OTHERS:
        values = converted(values)
    if isinstance(values, np.ma.MaskedArray):
        remedy = "Pass values.tolist(), which has None where something is masked"
        raise _make_input_error(name, "be an array without a mask", f"a masked array. {remedy}")
    is_list = isinstance(values, list | tuple | range)
    if not (is_list or hasattr(values, "__array__") or np.isscalar(values)):
        raise _make_input_error(
            name, "be an array or a column of a table", f"{type(values).__name__}. Convert it"
        )
    is_arrow = type(values).__module__.partition(".")[0] == "pyarrow"
    if is_arrow and str(values.type).startswith("dictionary"):
        # NumPy would get some value of the dictionary in place of a missing one.
        values = values.cast(values.type.value_type)
    try:
        # NumPy would turn numbers and NaN among strings into strings, all as long as the longest.
        has_texts = is_list and any(
            isinstance(v, str | bytes) for v in np.array(values, object).flat
        )
        array = np.asarray(values, object if has_texts else None)
    except ValueError as error:
        raise _make_input_error(name, "hold rows of one length", str(error)) from error
    # NumPy's strings of any length, with its missing values.
    return array.astype(object) if array.dtype.kind == "T" else array


def values_of(values: Any, name: str) -> np.ndarray:
    """A column of field values, which are told apart exactly; raises for floats that may be merged.

    Example:
        >>> values_of(np.array([2.0**60, 3.0]), "'user'")
        Traceback (most recent call last):
        ...
        ValueError: Input 'user' must hold field values, exactly. Received: 1152921504606846976 in
        row 0 as float64, where ids may be rounded. Read the column as integers or strings.
    """
    array = exact_array(values, name)
    if array.dtype.name in EXACT_WHOLE_NUMBERS:
        flat = array.reshape(-1)
        finite = np.where(np.isfinite(flat), flat, 0).astype(flat.dtype)
        _refuse_merged(finite, array.dtype.name, name, "field values")
    return array


def exact_array(values: Any, name: str) -> np.ndarray:
    """As `as_array`, with whole numbers as Python objects where NumPy would make them floats.

    It does so where one is missing. Floats do not tell ids beyond 2⁵³ apart.

    Example:
        >>> exact_array([2**60 + 1, float("nan")], "'user'")
        array([1152921504606846977, nan], dtype=object)
    """
    array = as_array(values, name)
    given = str(getattr(values, "dtype", getattr(values, "type", ""))).lower()
    if array.dtype.kind != "f" or "float" in given or "double" in given:
        return array
    if hasattr(values, "to_pylist"):  # of Arrow
        values = values.to_pylist()
    elif not isinstance(values, list | tuple):
        values = values.astype(object) if hasattr(values, "astype") else values.to_list()
    objects = np.array(values, dtype=object).reshape(array.shape)
    is_whole = [isinstance(value, int | np.integer) or is_missing(value) for value in objects.flat]
    return objects if all(is_whole) else array


def column_of(values: Any, name: str) -> np.ndarray:
    """A column as an array of numbers or strings.

    Columns of strings become arrays of `str`, with the empty string for missing values. Nullable
    and object columns of numbers become arrays of numbers, with NaN for missing values.

    Example:
        >>> column_of([1, None], "'price'")
        array([ 1., nan])
    """
    array = as_array(values, name)
    if array.dtype.kind == "O":
        array = numbers_or_strings(array, name)
    elif array.dtype.kind == "S" and not array.tobytes().isascii():
        for value in set(array.reshape(-1).tolist()):
            text_of(value, name)
    if array.dtype.kind not in "biufOSU" and array.dtype.name not in EXACT_WHOLE_NUMBERS:
        raise _make_input_error(
            name,
            "hold numbers or strings",
            f"dtype {array.dtype}. Convert it, a date to the day or the month as a string",
        )
    return array


def ids_of(values: Any, name: str, reader: str = "ids") -> np.ndarray:
    """A column of ids as an array of integers or strings; raises if an id is not exact.

    Whole floats are ids too: a data frame turns integers into floats if one is missing, also in
    rows that have been dropped since.

    Example:
        >>> ids_of(np.array([1e9 + 1, 3.0]), "'user'")
        array([1000000001,          3])
    """
    return exact_ids(column_of(values, name), name, reader)


def exact_ids(array: np.ndarray, name: str, reader: str) -> np.ndarray:
    """The ids of an array that was made from a column; raises if one is not exact."""
    if array.dtype.kind in "OSUbi" or not array.size:
        return array
    if array.dtype.kind != "u":
        return _read_whole_numbers(array, name, reader)
    if int(array.max()) > np.iinfo(np.int64).max:
        received = f"{array.max()}. Convert them to strings, for a StringLookup"
        raise _make_input_error(name, "hold whole numbers below 2⁶³", received)
    return array


def holds(dtype: str) -> int:
    """The number up to which a float dtype holds all whole numbers.

    Example:
        >>> holds("float32")
        16777216
    """
    # At most int64's range, also where a float has more digits.
    return EXACT_WHOLE_NUMBERS.get(dtype, 2**63)


def _read_whole_numbers(array: np.ndarray, name: str, reader: str) -> np.ndarray:
    """Floats that are whole numbers, as int64."""
    numbers = array if array.dtype.kind == "f" else array.astype("float32")
    flat = numbers.reshape(-1)
    if (missing := np.isnan(flat)).any():
        raise _make_input_error(
            name,
            f"hold {reader}, without missing values",
            f"nan in row {missing.argmax()}. Fill them with an id: -1, or the one used in training",
        )
    refuse_fractions(flat, name, reader)
    _refuse_merged(flat, array.dtype.name, name, reader)
    return numbers.astype("int64")


def _refuse_merged(flat: np.ndarray, dtype: str, name: str, reader: str) -> None:
    """Raises if a float is so large that neighbouring whole numbers may have become equal to it."""
    far = np.flatnonzero(np.abs(flat) >= holds(dtype))
    if len(far):
        raise _make_input_error(
            name,
            f"hold {reader}, exactly",
            f"{flat[far[0]]:.0f} in row {far[0]} as {dtype}, where ids may be rounded. Read the "
            "column as integers or strings",
        )


def refuse_fractions(flat: np.ndarray, name: str, reader: str) -> None:
    """Raises if a number is not whole."""
    fractions = np.flatnonzero(flat != np.floor(flat))
    if len(fractions):
        first = f"{float(flat[fractions[0]])} in row {fractions[0]}"
        raise _make_input_error(name, f"hold {reader}", f"{first}. Name other numbers in `numeric`")


def numbers_or_strings(array: np.ndarray, name: str, as_strings: bool = False) -> np.ndarray:
    """An object array as numbers, with NaN for missing values, or as strings."""
    values = [None if is_missing(value) else value for value in array.reshape(-1).tolist()]
    kinds = {type(value) for value in values if value is not None}
    if all(issubclass(kind, str | bytes) for kind in kinds) and (kinds or as_strings):
        if num_missing := values.count(None):
            warn(
                f"Input {name} has missing strings in {num_missing:,} of {len(values):,} rows. "
                "They are read as empty strings."
            )
        strings = ["" if value is None else text_of(value, name) for value in values]
        # NumPy's own strings are faster to sort, but all as long as the longest.
        are_short = max(map(len, strings), default=0) <= 64
        return np.array(strings, np.str_ if are_short else object).reshape(array.shape)
    if not all(issubclass(kind, NUMBERS) for kind in kinds):
        names = sorted(kind.__name__ for kind in kinds)
        raise _make_input_error(
            name,
            "hold numbers or strings",
            f"objects of the types {names}. Convert the column to numbers or to strings",
        )
    numbers = np.asarray([np.nan if value is None else value for value in values])
    # Decimals, and whole numbers beyond 64 bits, stay Python objects.
    return (numbers.astype("float64") if numbers.dtype == object else numbers).reshape(array.shape)


def text_of(value: object, name: str) -> str:
    """A value as text; raises for bytes that are not UTF-8, and for a null character at the end.

    Example:
        >>> text_of("café".encode(), "'shop'"), text_of(3, "'shop'")
        ('café', '3')
    """
    try:
        text = value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        received = f'{value!r}. Decode it first, as by value.decode("latin-1")'
        raise _make_input_error(name, "hold strings of UTF-8", received) from error
    if text.endswith("\0"):  # Keras' lookups would drop it, and merge two values
        raise _make_input_error(
            name, "hold strings that do not end in a null character", f"{text!r}. Replace it"
        )
    return text


def is_missing(value: object) -> bool:
    """Whether a Python value is missing: None, NaN, or pandas' NA or NaT."""
    # NaN differs from itself; comparing pandas' missing values would raise.
    return type(value).__name__ in ("NAType", "NaTType", "NoneType") or (
        isinstance(value, float | np.floating) and value != value
    )
