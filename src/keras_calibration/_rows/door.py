"""The door of fits: what was passed becomes `Rows`, which nothing behind it reads again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from calibration_records._check import refused
from calibration_records._columns import (
    as_array,
    by_name,
    check_same_rows,
    column_of,
    ids_of,
    numbers_of,
    select_features,
    warn_of_other_order,
)
from keras_calibration._rows.checks import (
    check_rows,
    warn_if_turned_round,
    warn_of_contradicted_ends,
)
from keras_calibration._rows.columns import in_place_of_names, numbers_in_float32
from keras_calibration._rows.groups import with_folds, with_groups
from keras_calibration._rows.inputs import entering
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.times import with_times
from keras_calibration._rows.weights import (
    ALL,
    Counted,
    check_weights_are,
    counted_rows,
    counts_of,
    warn_of_weights,
)

_FIELD = "strings or whole numbers, to be a field"


@dataclass(frozen=True)
class Wanted:
    """The columns that a fit reads.

    Args:
        names: Names of the columns; None for all passed columns.
        ids: Names of the columns of ids, which must be exact.
        numeric: Names of the numeric columns, which float32, the dtype of layers, must hold.
        reader: What reads the columns, for messages.
        inputs: Name → symbolic input, for columns that get the dtype of this input.
    """

    names: Collection[str] | None = ()
    ids: Collection[str] = ()
    numeric: Collection[str] = ()
    reader: str = "the fit"
    inputs: Mapping[str, keras.KerasTensor] = field(default_factory=dict)


NOTHING = Wanted()


@dataclass(frozen=True)
class Given:
    """What was passed to a fit. The name of a column of `columns` stands for this column.

    Args:
        scores: Logits (n,) or (n, 1), or of K classes (n, K); with `from_logits=False`
            probabilities. Or a function that takes the `Counted` rows, and returns their scores and
            a mapping of names to columns.
        labels: Labels in [0, 1], (n,) or (n, 1), of both classes; for K classes their numbers (n,)
            or (n, 1), or shares (n, K).
        sample_weight: Sample weights (n,) or (n, 1), or None.
        columns: A mapping of names to columns, or a data frame.
        time: The time of each row, see `times.with_times`.
        groups: Which rows belong together, see `groups.with_groups`.
        folds: How to split the rows, see `row_folds.Folds`.
        from_logits: Whether `scores` are logits.
        weights_are: What the weights are, see `weights.counts_of`.
        argument: The user's name for `scores`.
        labels_argument: The user's name for `labels`.
        both_classes: Whether the rows must be of all classes.
    """

    scores: Any
    labels: Any
    sample_weight: Any = None
    columns: Any = None
    time: Any = None
    groups: Any = None
    folds: Any = None
    from_logits: bool = True
    weights_are: str = "importance"
    argument: str = "logits"
    labels_argument: str = "labels"
    both_classes: bool = True


def by_names(given: Given, wanted: Wanted) -> tuple[Given, Wanted]:
    """What was passed, with columns in place of their names, which are then no features.

    Example:
        >>> table = {"p": [0.2, 0.4], "clicked": [0, 1], "site": [3, 4]}
        >>> given, wanted = by_names(Given("p", "clicked", columns=table), Wanted(None))
        >>> given.scores, given.labels, wanted.names
        ([0.2, 0.4], [0, 1], ['site'])
    """
    (scores, labels, weights), used = in_place_of_names(
        given.columns,
        wanted.names or (),
        **{given.argument: given.scores, given.labels_argument: given.labels},
        sample_weight=given.sample_weight,
    )
    # A fit that reads all columns reads the others.
    if used and wanted.names is None:
        wanted = replace(wanted, names=[n for n in by_name(given.columns) if n not in used])
    return replace(given, scores=scores, labels=labels, sample_weight=weights), wanted


def rows_of(given: Given, wanted: Wanted = NOTHING) -> Rows:
    """The rows that count, after all checks and warnings of what was passed.

    The function reads the weights first, and then the scores, labels, columns, times, groups and
    folds of the rows that count, in this order. So rows of weight 0 may hold anything.

    Example:
        >>> rows = rows_of(Given([0.5, -1.0, 7.0], [1, 0, None], [2.0, 2.0, 0.0]))
        >>> rows.logits, rows.labels, rows.weights
        (array([ 0.5, -1. ]), array([1., 0.]), array([1., 1.]))
    """
    given, wanted = by_names(given, wanted)
    # Report a missing argument before any array is read.
    if given.labels is None:
        raise refused(given.labels_argument, "an array of labels, one for each row", None)
    check_weights_are(given.weights_are, given.sample_weight is not None)
    counted = counted_rows(given.sample_weight)
    scores, columns, of, kept = given.scores, given.columns, counted, {}
    # A model computes scores and columns of only the rows that count, so nothing is left to select;
    # arrays hold all rows.
    if callable(scores):
        scores, kept = scores(counted)
        columns, of = kept, ALL
    else:
        # Pandas objects may have the same index in another order.
        warn_of_other_order(
            **{given.argument: scores},
            features=columns,
            labels=given.labels,
            sample_weight=given.sample_weight,
            time=given.time,
            groups=given.groups,
            folds=given.folds,
        )
        scores = counted.of(scores, given.argument)
    rows = check_rows(
        scores,
        counted.of(given.labels, given.labels_argument),
        counted,
        given.both_classes,
        given.from_logits,
        given.argument,
        given.labels_argument,
    )
    warn_of_contradicted_ends(rows)
    if rows.weights is not None:
        # From here on, weights are numbers of rows, so that priors mean the same in any unit.
        counts, unit = counts_of(rows.weights, given.weights_are)
        if given.weights_are == "importance" and rows.labels.ndim == 1:
            warn_of_weights(rows.labels, rows.weights)
        rows = replace(rows, weights=counts, unit=unit)
    warn_if_turned_round(rows)
    # Columns come last, so that a fault in scores or labels shows first.
    read = columns_of(columns, wanted, of, {given.argument: len(rows)})
    rows = with_times(replace(rows, features=kept | read), given.time, given.columns, counted)
    return with_folds(with_groups(rows, given.groups, given.columns, counted), given.folds, counted)


def columns_of(
    columns: Any, wanted: Wanted, counted: Counted = ALL, sizes: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """The wanted columns of the rows that count; `sizes` are the lengths of other columns.

    Example:
        >>> columns_of({"site": [3.0, 1.0], "hour": [7, 8]}, Wanted(["site"], ids=["site"]))
        {'site': array([3, 1])}
    """
    table = by_name({} if columns is None else columns)
    names = table if wanted.names is None else wanted.names
    read = {}
    for name, values in select_features(table, names, wanted.reader).items():
        # Select the rows that count before any value is read: the others may hold anything.
        column = counted.of(values, repr(name))
        is_id = name in wanted.ids
        column = ids_of(column, repr(name), _FIELD) if is_id else column_of(column, repr(name))
        if name in wanted.numeric:
            numbers_in_float32(numbers_of(column, repr(name)), name)
        if name in wanted.inputs:
            column = entering(column, repr(name), wanted.inputs[name], is_id)
        read[name] = as_array(column)
    # All columns must have one length, so that row k of each is the same row.
    lengths = {name: len(column) for name, column in read.items()}
    check_same_rows("Scores and features", {**(sizes or {}), **lengths})
    return read
