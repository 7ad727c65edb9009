"""The door for scored rows: labels, predictions, weights and columns, read in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration_records._check import instance, known
from calibration_records._columns import (
    by_name,
    check_same_rows,
    exact_array,
    names_of,
    numbers_of,
    refuse_repeated,
    refuse_rows,
    values_of,
    warn_of_other_order,
)
from calibration_records._predictions import probabilities_of
from keras_calibration._rows.checks import is_of_classes, warn_if_swapped
from keras_calibration._rows.columns import flat_array
from keras_calibration._rows.labels import label_advice
from keras_calibration._rows.weights import Counted, counted_rows

PREDICTED = "predicted"  # the name of predictions without one


@dataclass(frozen=True)
class ScoredRows:
    """The scored rows that count, as `scored_rows` reads them.

    Args:
        labels: Labels (n,); for predictions of classes, in the shape in which they were passed.
        predictions: Name → predictions (n,), or of K classes (n, K).
        columns: Name → values (n,), told apart exactly.
        numeric: Names of the columns of numbers.
        counted: The weights of these rows, and their numbers among the passed rows.
    """

    labels: np.ndarray
    predictions: Mapping[str, np.ndarray]
    columns: Mapping[str, np.ndarray]
    numeric: Sequence[str]
    counted: Counted

    @property
    def weights(self) -> np.ndarray:
        """The weights (n,), ones if there are none."""
        weights = self.counted.weights
        return np.ones(len(self.labels)) if weights is None else weights

    def probabilities(self, from_logits: bool, are_binary: bool = False) -> ScoredRows:
        """The rows with probabilities and labels in float64, after checks of both.

        Labels are in [0, 1], or 0 and 1 with `are_binary`.
        """
        arguments = _name_arguments(self.predictions)
        predictions = {
            name: probabilities_of(values.astype(np.float64), from_logits, arguments[name])
            for name, values in self.predictions.items()
        }
        y, numbers = self.labels.astype(np.float64), self.counted.numbers
        is_bad = ~np.isin(y, (0.0, 1.0)) if are_binary else ~((y >= 0) & (y <= 1))
        advice = label_advice(y) if is_bad.any() else ""
        # Labels that are no labels are mostly swapped arguments.
        if are_binary:
            advice = f"Pass the labels first, then the predictions. {advice}"
        expected = f"Argument `labels` must be {'0 or 1' if are_binary else 'in [0, 1]'}."
        refuse_rows(is_bad, y, expected, advice, numbers)
        for values in self.predictions.values():
            warn_if_swapped(y, values)
        return ScoredRows(y, predictions, self.columns, self.numeric, self.counted)


def scored_rows(
    labels: Any,
    predictions: Any,
    sample_weight: Any = None,
    columns: Any = None,
    numeric: str | Sequence[str] | None = (),
    may_be_classes: bool = False,
) -> ScoredRows:
    """Reads scored rows: the weights first, then what counts of predictions, labels and columns.

    Rows of weight 0 are left out, whatever they hold.

    Args:
        labels: Labels (n,) or (n, 1).
        predictions: Predictions (n,) or (n, 1), or a mapping of names to such.
        sample_weight: Sample weights (n,) or (n, 1), or None.
        columns: Name → values (n,) or (n, 1); or a data frame.
        numeric: Names of the columns of numbers; None for all columns of floating-point numbers.
            All other columns must hold exact values.
        may_be_classes: Whether predictions may be of K classes (n, K), with labels of any shape.

    Example:
        >>> rows = scored_rows([1, 0, 7], [0.5, 0.2, 9.0], [1, 1, 0], {"site": [2**60, 3, None]})
        >>> rows.labels, rows.columns["site"], rows.counted.numbers
        (array([1, 0]), array([1152921504606846976, 3], dtype=object), array([0, 1]))
    """
    table = {} if columns is None else by_name(columns)
    refuse_repeated("Argument `features` must have one column of each name", table)
    instance("features", table, Mapping, "a mapping of column names to values, or a data frame")
    named = predictions if isinstance(predictions, Mapping) else {PREDICTED: predictions}
    arguments = _name_arguments(named)
    warn_of_other_order(
        **{str(name): values for name, values in table.items()},
        **{arguments[name]: values for name, values in named.items()},
        labels=labels,
        sample_weight=sample_weight,
    )
    # The weights decide which rows count, so they are read before everything else.
    counted = counted_rows(sample_weight)
    read = {
        name: numbers_of(counted.of(values, arguments[name]), arguments[name])
        for name, values in named.items()
    }
    y = numbers_of(counted.of(labels, "labels"), "labels")
    if not (may_be_classes and any(map(is_of_classes, read.values()))):
        y = flat_array(y, "labels")
        read = {name: flat_array(values, arguments[name]) for name, values in read.items()}
    if not (len(y) and read):
        raise ValueError("Arguments `labels` and `predictions` must hold rows. Received: none.")
    values = {
        name: flat_array(exact_array(counted.of(column, repr(name)), repr(name)), str(name))
        for name, column in table.items()
    }
    sizes = {"labels": len(y)} | {arguments[name]: len(p) for name, p in read.items()}
    sizes |= {} if counted.weights is None else {"sample_weight": len(counted.weights)}
    check_same_rows(
        "Labels, predictions, weights and columns",
        sizes | {str(name): len(column) for name, column in values.items()},
    )
    # By default, floats are numbers and all else are field values.
    floats, numbers = ([n for n, c in values.items() if c.dtype.kind in k] for k in ("f", "biuf"))
    numeric = floats if numeric is None else names_of(numeric)
    known("Argument `numeric` must name columns of numbers of `features`", numeric, numbers)
    # Values of fields keep their identity: 2**60 and 2**60 + 1 would be one float.
    exact = {n: c if n in numeric else values_of(c, repr(n)) for n, c in values.items()}
    return ScoredRows(y, read, exact, numeric, counted)


def _name_arguments(named: Mapping[str, Any]) -> dict[str, str]:
    """How the user calls each of the predictions."""
    if list(named) == [PREDICTED]:
        return {PREDICTED: "predictions"}
    return {name: f"predictions[{name!r}]" for name in named}
