"""Batch: some rows of labels and predictions, with what metrics may need beside them."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np


class Batch(NamedTuple):
    """Rows to score. A plain tuple of its first two, three or four items does as well.

    Args:
        labels: Labels (n,) or (n, 1); for several classes as the metrics take them.
        predictions: Predictions (n,), (n, 1) or, for several classes, (n, classes).
        sample_weight: Weights (n,) or (n, 1), or None.
        fields: Field name → field values (n,) or (n, 1), whole numbers.

    Example:
        >>> Batch([1, 0], [0.8, 0.3], fields={"site": [4, 2]}).sample_weight is None
        True
    """

    labels: Any
    predictions: Any
    sample_weight: Any = None
    fields: Mapping[str, Any] = MappingProxyType({})


def chunks(batches: Any, fields: Iterable[str], chunk_rows: int) -> Iterator[Batch]:
    """Batches as NumPy arrays, checked, cut into pieces, one after the other.

    Arrays are cut as views; nothing is put together and no batch is kept.

    Args:
        batches: One batch (a tuple), or an iterable of batches.
        fields: The fields that are needed; others are left out.
        chunk_rows: Rows of a piece, at most.

    Returns:
        An iterator of batches that have rows. Where predictions have one column, labels,
        predictions and weights are (n, 1), so that Keras' own metrics do not take the rows for
        the classes of one row; fields are (n,).

    Raises:
        ValueError: If a batch is no such tuple, its columns do not align, a field is missing, or
            only some of the batches have weights.

    Example:
        >>> pieces = chunks(([1, 0, 1], [0.8, 0.3, 0.5]), fields=(), chunk_rows=2)
        >>> [len(piece.labels) for piece in pieces]
        [2, 1]
    """
    fields = tuple(fields)
    weighted = None
    for number, given in enumerate([batches] if isinstance(batches, tuple) else batches):
        batch = _checked(given, fields, f"batch {number}")
        if weighted is None:
            weighted = batch.sample_weight is not None
        elif weighted != (batch.sample_weight is not None):
            raise ValueError(
                f"Expected the same columns in every batch. Received: batch {number} "
                f"{'without' if weighted else 'with'} sample_weight, after batches "
                f"{'with' if weighted else 'without'} it."
            )
        for start in range(0, len(batch.labels), chunk_rows):
            rows = slice(start, start + chunk_rows)
            yield Batch(
                batch.labels[rows],
                batch.predictions[rows],
                None if batch.sample_weight is None else batch.sample_weight[rows],
                {field: ids[rows] for field, ids in batch.fields.items()},
            )


def _checked(given: Any, fields: tuple[str, ...], name: str) -> Batch:
    if not isinstance(given, tuple | list) or not 2 <= len(given) <= 4:
        raise ValueError(
            "Expected one tuple (labels, predictions[, sample_weight[, fields]]) or an iterable of "
            f"such tuples. Received: {name} of type {type(given).__name__}"
            f"{f' with {len(given)} items' if isinstance(given, tuple | list) else ''}."
        )
    batch = Batch(*given)
    available = batch.fields or {}
    if missing := [field for field in fields if field not in available]:
        raise ValueError(
            f"Expected the values of the fields {missing}, which metrics need. Received: {name} "
            f"with the fields {sorted(available)}."
        )
    predictions = np.asarray(batch.predictions)
    one_column = predictions.ndim == 1 or (predictions.ndim == 2 and predictions.shape[1] == 1)
    shape = (-1, 1) if one_column else (-1,)
    labels = np.asarray(batch.labels)
    columns = {
        "labels": labels.reshape(-1, 1) if one_column else labels,
        "predictions": predictions.reshape(-1, 1) if one_column else predictions,
        **{f"field {field!r}": np.asarray(available[field]).reshape(-1) for field in fields},
    }
    if batch.sample_weight is not None:
        columns["sample_weight"] = np.asarray(batch.sample_weight).reshape(shape)
    if single := [column for column, values in columns.items() if not values.ndim]:
        raise ValueError(
            f"Expected rows in every column. Received: {name} with a single number as {single}."
        )
    rows = {column: len(values) for column, values in columns.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{count} of {column}" for column, count in rows.items())
        raise ValueError(f"Expected as many rows in every column. Received: {name} with {counts}.")
    return Batch(
        columns["labels"],
        columns["predictions"],
        columns.get("sample_weight"),
        {field: columns[f"field {field!r}"] for field in fields},
    )
