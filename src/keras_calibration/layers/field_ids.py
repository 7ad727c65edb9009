"""Ids of field values, from integers or lookup layers, and the serialization of fields."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from calibration_records._check import instance, refused
from calibration_records._columns import by_name, ids_of, names_of, select_features
from keras_calibration._keras import outside_of_graphs
from keras_calibration._ops.field_sums import exact_ids, id_tensor, known_ids
from keras_calibration._rows.columns import column_or_tensor, is_symbolic
from keras_calibration._typing import Features, Tensor
from keras_calibration.layers.logits import check_column

# The ids of a field: their number, or a layer that looks them up.
Vocabulary: TypeAlias = int | keras.layers.Layer
Fields: TypeAlias = Mapping[str, Vocabulary]


def checked_fields(fields: Fields) -> dict[str, Vocabulary]:
    """The fields as a dictionary; raises unless each is a number of ids or a lookup layer.

    Example:
        >>> checked_fields({"site": 0})
        Traceback (most recent call last):
        ...
        ValueError: Field 'site' must be given as its number of ids (at least 1) or as a Keras
        lookup layer with output_mode="int". Received: 0.
    """
    example = 'Pass, for example, {"site_id": 5000}.'
    instance("fields", fields, Mapping, "a mapping of names to numbers of ids", example)
    for name, vocabulary in fields.items():
        is_number = isinstance(vocabulary, int) and vocabulary >= 1
        is_lookup = isinstance(vocabulary, keras.layers.Layer)
        if not (is_number or is_lookup) or getattr(vocabulary, "output_mode", "int") != "int":
            raise ValueError(
                f"Field {name!r} must be given as its number of ids (at least 1) or as a Keras "
                f'lookup layer with output_mode="int". Received: {vocabulary!r}.'
            )
    return dict(fields)


@dataclass(frozen=True)
class Reads:
    """The features that a head or a network reads as fields or as numbers.

    Args:
        fields: Field name → number of ids or lookup layer.
        numeric: Names of the numeric columns.

    Example:
        >>> bins = keras.layers.Discretization([0.5])
        >>> (Reads({"site": 3}) + Reads({"price": bins}, ["age"])).ids
        {'site'}
    """

    fields: Fields = field(default_factory=dict)
    numeric: Sequence[str] = ()

    def __add__(self, other: Reads) -> Reads:
        return Reads({**self.fields, **other.fields}, (*self.numeric, *other.numeric))

    @property
    def ids(self) -> set[str]:
        """Names of the fields that are numbered by ids, which must be exact."""
        return id_names(self.fields)


def id_names(fields: Fields | Iterable[str]) -> set[str]:
    """Names of the fields that are numbered by ids; without vocabularies, all of them are.

    Example:
        >>> id_names({"site": 3, "price": keras.layers.Discretization([0.5])})
        {'site'}
    """
    if not isinstance(fields, Mapping):
        return {fields} if isinstance(fields, str) else set(fields)
    # Other lookup layers may take other values: bins take any number.
    kinds = int, keras.layers.IntegerLookup, keras.layers.Hashing
    return {name for name, vocabulary in fields.items() if isinstance(vocabulary, kinds)}


def checked_numeric(numeric: str | Sequence[str], fields: Iterable[str]) -> tuple[str, ...]:
    """Names of numeric columns; raises if a field has the same name.

    Example:
        >>> checked_numeric("price", {"site": 3})
        ('price',)
    """
    for argument, given in (("fields", fields), ("numeric", numeric)):
        instance(argument, given, Iterable, "names of columns; an empty list for none")
    names = tuple(names_of(numeric))
    if both := sorted({*names}.intersection(names_of(fields))):
        raise refused("numeric", "of other columns than `fields`", both, "Name each column once.")
    return names


def called_features(features: Any, names: Iterable[str] | None, reads: Reads, reader: str) -> Any:
    """The features of a call, exactly: arrays, tables and their columns become tensors or arrays.

    Keras would convert an array of floats to float32, which merges ids beyond 2²⁴. So an id that a
    float may have rounded is unknown if the field is a number of ids: a graph, which cannot raise,
    treats it the same way. If the field has a lookup layer, such an id is an error. Numeric columns
    become floats, because JAX keeps only 32 bits of an integer.
    """
    columns = by_name({} if features is None else features)
    if not isinstance(columns, Mapping):
        return features  # The layer reports the error.
    read = select_features(columns, columns if names is None else names, reader)
    # A Functional model is being built: symbolic tensors hold nothing to convert.
    if all(isinstance(part, keras.KerasTensor) for part in columns.values()):
        return features
    ids = reads.ids
    called = {}
    for name, values in read.items():
        if isinstance(values, keras.KerasTensor):
            called[name] = values
        elif name in reads.numeric:
            called[name] = _read_numbers(values, name)
        else:
            called[name] = _read_ids(
                values, name, name in ids, isinstance(reads.fields.get(name), int)
            )
    return called


def check_features(features: Features | None, names: Iterable[str], reader: str) -> None:
    """Raises if a feature is missing or does not have one value per row.

    Example:
        >>> check_features({"site": np.zeros((3, 1))}, ["site"], "FieldBias")
    """
    for name, values in select_features(features or {}, names, reader).items():
        check_column(values.shape, reader, f"feature {name!r}")


def _read_numbers(values: Tensor, name: str) -> Tensor:
    column = column_or_tensor(values, repr(name))
    if ops.is_tensor(column):
        return column
    if column.dtype.kind in "OSU":
        raise ValueError(
            f"Feature {name!r} must hold numbers, because `numeric` names it. Received: strings. "
            "Name it in `fields`, with a StringLookup."
        )
    return column.astype("float64") if column.dtype.kind in "iub" else column


def _read_ids(values: Tensor, name: str, is_id: bool, is_numbered: bool) -> Tensor:
    if ops.is_tensor(values):
        # Only floats can have lost digits, and only ids must be exact: bins may get any number.
        if not is_id or "float" not in keras.backend.standardize_dtype(values.dtype):
            return values
        is_exact = is_numbered or is_symbolic(values)
        return exact_ids(values) if is_exact else ids_of(values, repr(name))
    # TensorFlow returns strings as an array of bytes objects, which a lookup layer takes as it is.
    is_object = isinstance(values, np.ndarray) and values.dtype == object and values.size > 0
    if is_object and isinstance(values.flat[0], bytes):
        return values  # a string tensor has no missing values
    column = column_or_tensor(values, repr(name))
    if is_numbered and column.dtype.kind == "f":
        return exact_ids(ops.convert_to_tensor(column, column.dtype.name))
    ids = ids_of(values, repr(name)) if is_id else column
    return id_tensor(ids) if is_numbered else ids


def vocabulary_sizes(fields: Fields) -> dict[str, int]:
    """Number of ids of each field, without "other".

    Example:
        >>> vocabulary_sizes({"site": 3, "page": keras.layers.Hashing(num_bins=8)})
        {'site': 3, 'page': 8}
    """
    # Inside of a compiled step, `vocabulary_size` of a lookup layer would return a tensor.
    with outside_of_graphs():
        return {name: _count_vocabulary(vocabulary) for name, vocabulary in fields.items()}


def _count_vocabulary(vocabulary: Vocabulary) -> int:
    if isinstance(vocabulary, int):
        return vocabulary
    if hasattr(vocabulary, "vocabulary_size"):
        return int(vocabulary.vocabulary_size())
    # `Discretization` has one bin more than boundaries; `Hashing` has `num_bins`.
    boundaries = getattr(vocabulary, "bin_boundaries", None)
    return len(boundaries) + 1 if boundaries else int(getattr(vocabulary, "num_bins", 0))


def ids_of_field(values: Tensor, vocabulary: Vocabulary, num_values: int) -> Tensor:
    """Ids (batch,) of the values of a field, int32; "other" is the number of field values.

    Example:
        >>> print(ids_of_field(ops.array([[2], [7]]), 3, 3).numpy())
        [2 3]
    """
    ids = values if isinstance(vocabulary, int) else vocabulary(values)
    return known_ids(ops.reshape(ids, (-1,)), num_values)


def table_starts(num_values: Iterable[int]) -> np.ndarray:
    """First row of each field in one table of all fields; each field's last row is "other".

    Example:
        >>> table_starts([3, 2])
        array([0, 4], dtype=int32)
    """
    # Each field has one row more than values, for "other".
    return np.cumsum([0, *(number + 1 for number in num_values)])[:-1].astype("int32")


def table_rows(features: Features, fields: Fields, num_values: Mapping[str, int]) -> Tensor:
    """Rows of the values in one table of all fields, shape (fields, batch).

    The last row of each field is "other". Fields of one dtype and rank are processed together: with
    one row a batch, the number of operations determines the latency.

    Example:
        >>> fields = {"site": 3, "device": 2}
        >>> features = {"site": ops.array([2, 7]), "device": ops.array([0, 1])}
        >>> print(table_rows(features, fields, fields).numpy())
        [[2 3]
         [4 5]]
    """
    starts = table_starts([num_values[name] for name in fields])
    # Stack the fields of one dtype and rank, so that one operation checks and moves all of them.
    by_dtype: dict[tuple[Hashable, int], list[tuple[int, str, Tensor]]] = {}
    for place, (name, vocabulary) in enumerate(fields.items()):
        ids = features[name] if isinstance(vocabulary, int) else vocabulary(features[name])
        ids = ops.convert_to_tensor(ids)
        by_dtype.setdefault((ids.dtype, len(ids.shape)), []).append((place, name, ids))
    columns, order = [], []
    for (_, rank), group in by_dtype.items():
        places, names, ids = map(list, zip(*group, strict=True))
        sizes = np.array([num_values[name] for name in names], "int32")[:, None]
        together = ops.stack(ids) if rank == 1 else ops.squeeze(ops.stack(ids), axis=2)
        columns.append(known_ids(together, sizes) + starts[places][:, None])
        order += places
    # The stacks have the fields in another order: `argsort` of their places restores it.
    several = len(columns) > 1
    return ops.take(ops.concatenate(columns), np.argsort(order), axis=0) if several else columns[0]


def serialize_fields(fields: Fields) -> dict[str, Any]:
    """Fields as plain Python values.

    Lookup layers are saved with their vocabulary, which Keras omits from the config of an adapted
    layer.
    """
    return {name: v if isinstance(v, int) else _serialize_lookup(v) for name, v in fields.items()}


def _serialize_lookup(lookup: keras.layers.Layer) -> dict[str, Any]:
    serialized = keras.saving.serialize_keras_object(lookup)
    if callable(getattr(lookup, "get_vocabulary", None)):
        vocabulary = lookup.get_vocabulary(include_special_tokens=False)
        # Strings, or numbers of Python: JSON knows no numbers of NumPy.
        serialized["config"]["vocabulary"] = [
            entry if isinstance(entry, str) else int(entry) for entry in vocabulary
        ]
    return serialized
