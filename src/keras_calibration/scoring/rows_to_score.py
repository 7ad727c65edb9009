"""RowsToScore: labels and predictions, with weights and fields where metrics need them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from calibration_records._check import known
from calibration_records._columns import by_name
from keras_calibration._rows.columns import field_values, in_place_of_names, take
from keras_calibration._rows.scored_rows import scored_rows
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


def checked_rows(arrays: Any, fields: Collection[str]) -> RowsToScore:
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
    labels, predictions, weights, columns = RowsToScore(*arrays)
    available = {} if columns is None else by_name(columns)
    known("Argument `rows` must have the fields of the metrics", fields, available, missing=True)
    columns = {field: available[field] for field in fields}
    (labels, predictions, weights), _ = in_place_of_names(
        available, fields, labels=labels, predictions=predictions, sample_weight=weights
    )
    rows = scored_rows(labels, predictions, weights, columns, may_be_classes=True)
    read: list[Any] = [rows.labels, *rows.predictions.values(), rows.counted.weights]
    ids = {name: np.asarray(field_values(c, repr(name))) for name, c in rows.columns.items()}
    if (numbers := rows.counted.numbers) is not None:
        # `scored_rows` has left out the rows of weight 0. Put a copy of a neighbour with weight 0
        # in their places: metrics see as many rows as were passed, in the same places.
        every = np.arange(rows.counted.num_given)
        place = np.maximum(np.searchsorted(numbers, every, side="right") - 1, 0)
        read, ids = take((read, ids), place)
        read[2] = np.where(numbers[place] == every, read[2], 0.0)
    if read[1].ndim == 1:
        read = [None if column is None else column.reshape(-1, 1) for column in read]
    return RowsToScore._make((*read, ids))
