"""read_parquet: batches to score, from Parquet files larger than memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from keras_calibration._typing import Tensor
from keras_calibration.scoring.batch import Batch

if TYPE_CHECKING:
    import pyarrow.dataset

Paths: TypeAlias = (
    "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | pyarrow.dataset.Dataset"
)
# What turns the values of a column into ids; None where it holds ids.
Lookup: TypeAlias = Mapping[Any, int] | Callable[[np.ndarray], Tensor] | None


def read_parquet(
    paths: Paths,
    *,
    label: str = "label",
    probability: str | Sequence[str] = "probability",
    sample_weight: str | None = None,
    fields: Mapping[str, Lookup] | Sequence[str] = (),
    label_lookup: Lookup = None,
    batch_size: int = 2**17,
) -> ParquetBatches:
    """Reads labels, predictions, weights and fields from Parquet files, as batches for `score`.

    Only the named columns are read, batch by batch, in the order of the files and their rows.

    Requires pyarrow: `pip install "keras-calibration[parquet]"`.

    Args:
        paths: A file, a folder of Parquet files (Hive partitions become columns), a list of files,
            or a `pyarrow.dataset.Dataset`, for example with a filter.
        label: Column of the labels.
        probability: Column of the predictions. For K classes, a list of K columns, or one column of
            lists of length K; the predictions then have the shape (n, K).
        sample_weight: Column of the weights, or None.
        fields: Columns of the fields: a list of columns that hold ids (whole numbers), or column →
            lookup. A lookup is None for ids, a mapping value → id, or a Keras lookup layer
            (`StringLookup`, `IntegerLookup`, `Hashing`). Values that a mapping lacks get the id -1,
            which the field metrics count as "other".
        label_lookup: A lookup of the labels, for example name of a class → its number; None where
            they are numbers.
        batch_size: Largest number of rows of a batch. Row groups may make batches smaller.

    Returns:
        An iterable of `Batch` with the attribute `num_rows`. It can be iterated repeatedly.

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If a column is missing, or is not numeric where it must be. While reading, if a
            column has null values, or lists of different lengths.

    Example:
        >>> import tempfile, pyarrow as pa, pyarrow.parquet
        >>> from keras_calibration.metrics import CalibratedLogLoss, FieldECE
        >>> from keras_calibration.scoring import score
        >>> table = pa.table({"y": [1, 0, 1, 0], "p": [0.9, 0.5, 0.6, 0.2], "site": list("abba")})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pa.parquet.write_table(table, f"{folder}/part-0.parquet")
        ...     sites = {"site": {"a": 0, "b": 1}}
        ...     batches = read_parquet(folder, label="y", probability="p", fields=sites)
        ...     scores = score(batches, field_metrics={"site": FieldECE(2)}, verbose=0)
        >>> round(scores["site_field_ece"], 4)
        0.05
    """
    dataset = _dataset(paths)
    lookups = dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(fields)
    if batch_size < 1:
        raise ValueError(
            f"Argument `batch_size` must be at least 1. Received: batch_size={batch_size}."
        )
    predictions = [probability] if isinstance(probability, str) else list(probability)
    weights = [] if sample_weight is None else [sample_weight]
    used = [label, *predictions, *weights, *lookups]
    available = dataset.schema.names
    if missing := [column for column in used if column not in available]:
        raise ValueError(f"The files have no columns {missing}. Received: columns {available}.")
    ids = [field for field, lookup in lookups.items() if lookup is None]
    labels = [label] if label_lookup is None else []
    for column in [*labels, *predictions, *weights, *ids]:
        data_type = dataset.schema.field(column).type
        if column == probability and _is_list(data_type):
            data_type = data_type.value_type
        if not _is_numeric(data_type):
            raise ValueError(
                f"The column {column!r} must hold numbers. Received: {data_type}."
                + (
                    f" Map each value to an id, fields={{{column!r}: {{value: id, …}}}}, or pass a "
                    "Keras lookup layer."
                    if column in ids
                    else ""
                )
            )
    return ParquetBatches(
        dataset, label, probability, sample_weight, lookups, batch_size, label_lookup
    )


class ParquetBatches:
    """Batches of a Parquet data set. `read_parquet` creates them and checks the arguments.

    Args:
        dataset: A `pyarrow.dataset.Dataset`.
        label: Column of the labels.
        probability: Column of the predictions, or a list of the columns of the classes.
        sample_weight: Column of the weights, or None.
        lookups: Column of each field → its lookup, or None for ids.
        batch_size: Largest number of rows of a batch.
        label_lookup: The lookup of the labels, or None for numbers.
    """

    def __init__(
        self,
        dataset: pyarrow.dataset.Dataset,
        label: str,
        probability: str | Sequence[str],
        sample_weight: str | None,
        lookups: Mapping[str, Lookup],
        batch_size: int,
        label_lookup: Lookup = None,
    ) -> None:
        self._dataset = dataset
        self._label = label
        self._probability = probability
        self._sample_weight = sample_weight
        self._lookups = lookups
        self._batch_size = batch_size
        self._label_lookup = label_lookup

    @property
    def num_rows(self) -> int:
        """Number of rows. Without a filter, it is read from the footers of the files."""
        return int(self._dataset.count_rows())

    def __iter__(self) -> Iterator[Batch]:
        weight = self._sample_weight
        weights = [] if weight is None else [weight]
        probability = self._probability
        predictions = [probability] if isinstance(probability, str) else list(probability)
        lookups = {self._label: self._label_lookup, **self._lookups}
        columns = {*predictions, *weights, *lookups}
        rows = 0
        # Read ahead less than pyarrow's default, 16 batches of 4 files, which can be a whole table.
        for record_batch in self._dataset.to_batches(
            columns=sorted(columns),
            batch_size=self._batch_size,
            batch_readahead=2,
            fragment_readahead=1,
        ):
            arrays = {
                name: _array(record_batch.column(name), name, lookups.get(name), rows)
                for name in record_batch.schema.names
            }
            rows += record_batch.num_rows
            yield Batch(
                arrays[self._label],
                arrays[probability]
                if isinstance(probability, str)
                else np.stack([arrays[name] for name in predictions], axis=1),
                None if weight is None else arrays[weight],
                {field: arrays[field] for field in self._lookups},
            )


def _dataset(paths: Paths) -> pyarrow.dataset.Dataset:
    try:
        import pyarrow.dataset
    except ImportError as error:
        raise ImportError(
            "read_parquet requires pyarrow. Install it with `pip install "
            '"keras-calibration[parquet]"`.'
        ) from error
    if isinstance(paths, pyarrow.dataset.Dataset):
        return paths
    if isinstance(paths, str | os.PathLike):
        source: str | list[str] = os.fspath(paths)
    else:
        source = [os.fspath(path) for path in paths]
    return pyarrow.dataset.dataset(source, format="parquet", partitioning="hive")


def _is_numeric(data_type: pyarrow.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(data_type):
        data_type = data_type.value_type
    kinds = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
    return any(is_kind(data_type) for is_kind in kinds)


def _is_list(data_type: pyarrow.DataType) -> bool:
    from pyarrow import types

    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(is_kind(data_type) for is_kind in kinds)


def _array(column: pyarrow.Array, name: str, lookup: Lookup, first_row: int) -> np.ndarray:
    """One column of a batch as numbers, (n,), or (n, K) of lists of length K.

    The lookup is called once, with the distinct values.
    """
    import pyarrow
    from pyarrow import compute

    shape: tuple[int, ...] = (len(column),)
    last_row = first_row + len(column) - 1
    if lookup is None and _is_list(column.type) and not column.null_count:
        lengths = compute.unique(compute.list_value_length(column)).to_pylist() or [0]
        if len(lengths) > 1:
            raise ValueError(
                f"Lists must have one entry per class. Received: {name!r} has lists of lengths "
                f"{sorted(lengths)} among the rows {first_row} to {last_row}."
            )
        column, shape = column.flatten(), (*shape, lengths[0])
    if column.null_count:
        raise ValueError(
            f"Columns must have no null values. Received: {name!r} has {column.null_count} null "
            f"values among the rows {first_row} to {last_row}. Fill them, or filter these rows "
            "out: read_parquet(pyarrow.dataset.dataset(…).filter(…), …)."
        )
    if lookup is None:
        if pyarrow.types.is_decimal(column.type):
            column = compute.cast(column, pyarrow.float64())
        return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(shape)
    encoded = compute.dictionary_encode(column)
    values = encoded.dictionary.to_pylist()
    if isinstance(lookup, Mapping):
        ids = np.array([lookup.get(value, -1) for value in values])
    else:
        ids = np.asarray(lookup(np.array(values)))
    return ids[encoded.indices.to_numpy(zero_copy_only=False)]
