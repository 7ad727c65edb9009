"""RowsToScore: labels and predictions, with weights and fields where metrics need them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from calibration_records._check import known
from calibration_records._columns import by_name, check_same_rows, warn_of_other_order
from keras_calibration._rows.columns import column_that_counts, field_values, numbers_of, take
from keras_calibration._rows.weights import rows_that_count
from keras_calibration._typing import Tensor


class RowsToScore(NamedTuple):
    """Rows to score; a plain tuple of the first two, three or four items works too.

    Args:
        labels: Labels, shape `(n,)` or `(n, 1)`; for several classes as the metrics expect them.
        predictions: Predictions, shape `(n,)` or `(n, 1)`, or `(n, K)` for K classes.
        sample_weight: Weights, shape `(n,)` or `(n, 1)`, or None.
        fields: Field name → field values, whole numbers, shape `(n,)` or `(n, 1)`.

    Example:
        >>> RowsToScore([1, 0], [0.8, 0.3], fields={"site": [4, 2]}).sample_weight is None
        True
    """

    labels: Tensor
    predictions: Tensor
    sample_weight: Tensor | None = None
    fields: Mapping[str, Tensor] = MappingProxyType({})


def checked_rows(arrays: Any, fields: Iterable[str]) -> RowsToScore:
    """The columns as arrays of equal length, with these fields.

    With one column of predictions, labels, predictions and weights have the shape (n, 1): Keras'
    metrics would take rows of shape (n,) for the classes of one row.
    """
    if not isinstance(arrays, tuple) or not 2 <= len(arrays) <= 4:
        raise ValueError(
            "Argument `rows` must be a tuple (labels, predictions[, sample_weight[, fields]]) of "
            f"arrays, or a ScoredLog. Received: {type(arrays).__name__}. For batches, call "
            "`update_state` of the metrics with each."
        )
    rows = RowsToScore(*arrays)
    available = {} if rows.fields is None else by_name(rows.fields)
    fields = tuple(fields)
    known("Argument `rows` must have the fields of the metrics", fields, available, missing=True)
    warn_of_other_order(**rows._replace(fields=available)._asdict())
    labels = np.atleast_1d(numbers_of(rows.labels, "Labels"))
    predictions = np.atleast_1d(numbers_of(rows.predictions, "Predictions"))
    shape = (-1, 1) if predictions.ndim == 1 or predictions.shape[1:] == (1,) else (-1,)
    columns, numbers = {"labels": labels, "predictions": predictions}, None
    if shape == (-1, 1):
        columns = {name: column.reshape(shape) for name, column in columns.items()}
    if rows.sample_weight is not None:
        columns["sample_weight"] = numbers_of(rows.sample_weight, "Weights").reshape(shape)
        numbers = rows_that_count(columns["sample_weight"].reshape(-1))
    ids = {}
    for field in fields:
        values = column_that_counts(available[field], repr(field), numbers)
        ids[field] = np.asarray(field_values(values, repr(field))).reshape(-1)
    check_same_rows(
        "The columns of `rows`", {name: len(column) for name, column in (columns | ids).items()}
    )
    return RowsToScore(**columns, fields=ids)


def chunks(rows: RowsToScore, chunk_size: int) -> Iterator[RowsToScore]:
    """Checked rows in pieces of at most `chunk_size` rows, as views."""
    for start in range(0, len(rows.labels), chunk_size):
        yield take(rows, slice(start, start + chunk_size))
