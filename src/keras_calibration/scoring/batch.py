"""Batch: rows of labels and predictions, with weights and fields where metrics need them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from keras_calibration._columns import by_name, field_values, numbers_of, suggestion
from keras_calibration._typing import Tensor


class Batch(NamedTuple):
    """Rows to score. A plain tuple of its first two, three or four items works as well.

    Args:
        labels: Labels, shape `(n,)` or `(n, 1)`; for several classes as the metrics expect them.
        predictions: Predictions, shape `(n,)` or `(n, 1)`, or `(n, K)` for K classes.
        sample_weight: Weights, shape `(n,)` or `(n, 1)`, or None.
        fields: Field name → field values, whole numbers, shape `(n,)` or `(n, 1)`.

    Example:
        >>> Batch([1, 0], [0.8, 0.3], fields={"site": [4, 2]}).sample_weight is None
        True
    """

    labels: Tensor
    predictions: Tensor
    sample_weight: Tensor | None = None
    fields: Mapping[str, Tensor] = MappingProxyType({})


# One batch, or any number of them, each a `Batch` or a plain tuple.
Batches: TypeAlias = tuple | Iterable[tuple]


def chunks(batches: Batches, fields: Iterable[str], chunk_rows: int) -> Iterator[Batch]:
    """Checks batches and cuts them into pieces of at most `chunk_rows` rows, as views.

    Where predictions have one column, labels, predictions and weights have the shape (n, 1): Keras'
    own metrics would take rows of shape (n,) for the classes of one row.
    """
    fields = tuple(fields)
    weighted = None
    for number, given in enumerate([batches] if isinstance(batches, tuple) else batches):
        batch = _checked(given, fields, f"batch {number}")
        if weighted is None:
            weighted = batch.sample_weight is not None
        elif weighted != (batch.sample_weight is not None):
            raise ValueError(
                "Argument `batches` must have the same columns in every batch. Received: batch "
                f"{number} {'without' if weighted else 'with'} sample_weight, after batches "
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
            "Argument `batches` must be a tuple (labels, predictions[, sample_weight[, fields]]) "
            f"or an iterable of such tuples. Received: {name} of type {type(given).__name__}"
            f"{f' with {len(given)} items' if isinstance(given, tuple | list) else ''}."
        )
    batch = Batch(*given)
    available = {} if batch.fields is None else by_name(batch.fields)
    if missing := [field for field in fields if field not in available]:
        raise ValueError(
            f"Argument `batches` must have the fields {missing}, which the field metrics need. "
            f"Received: {name} with the fields {sorted(available)}.{suggestion(missing, available)}"
        )
    predictions = numbers_of(batch.predictions, "Predictions")
    one_column = predictions.ndim == 1 or (predictions.ndim == 2 and predictions.shape[1] == 1)
    shape = (-1, 1) if one_column else (-1,)
    labels = numbers_of(batch.labels, "Labels")
    columns = {
        "labels": labels.reshape(-1, 1) if one_column else labels,
        "predictions": predictions.reshape(-1, 1) if one_column else predictions,
        **{
            f"field {field!r}": np.asarray(field_values(available[field], repr(field))).reshape(-1)
            for field in fields
        },
    }
    if batch.sample_weight is not None:
        columns["sample_weight"] = numbers_of(batch.sample_weight, "Weights").reshape(shape)
    if single := [column for column, values in columns.items() if not values.ndim]:
        raise ValueError(
            "Argument `batches` must hold arrays of rows. "
            f"Received: {name} with a single number as {single}."
        )
    rows = {column: len(values) for column, values in columns.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{count} of {column}" for column, count in rows.items())
        raise ValueError(
            "Argument `batches` must have columns of equal length in each batch. "
            f"Received: {name} with {counts}."
        )
    return Batch(
        columns["labels"],
        columns["predictions"],
        columns.get("sample_weight"),
        {field: columns[f"field {field!r}"] for field in fields},
    )
