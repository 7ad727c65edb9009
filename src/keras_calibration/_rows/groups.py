"""The groups of rows, such as the rows of a customer, and the folds that a user has made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import same_rows
from calibration_records._columns import as_array, column_of, ids_of, is_missing, refuse_rows
from keras_calibration._rows.columns import flat_array, in_place_of_names
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import ALL, Counted


def with_groups(
    rows: Rows, groups: ArrayLike | str | None, columns: Any = None, counted: Counted = ALL
) -> Rows:
    """The rows with their groups, numbered from 0.

    Args:
        rows: The rows that count.
        groups: The group of each passed row (n,) or (n, 1), whole numbers or strings; the name of
            the column with the groups; or None.
        columns: A mapping of names to columns with all passed rows, or a data frame.
        counted: Which of the passed rows count.

    Example:
        >>> rows = Rows(np.zeros(3), np.array([0, 1, 0]), None)
        >>> with_groups(rows, ["ann", "bob", "ann"]).groups
        array([0, 1, 0])
    """
    if groups is None:
        return rows
    (groups,), _ = in_place_of_names(columns, (), groups=groups)
    values = flat_array(as_array(counted.of(groups, "'groups'"), "'groups'"), "groups")
    same_rows("groups", len(values), len(rows), "row")
    # Only objects and floats can hold missing groups, which are not one group, and fractions.
    if values.dtype.kind in "Of":
        refuse_rows(
            np.array(
                [is_missing(v) or (isinstance(v, float) and v % 1 != 0) for v in values.tolist()],
                bool,
            ),
            values,
            "Argument `groups` must have the group of each row, as a whole number or a string.",
            "Drop rows without a group, or give each a group of its own. Number other values, for "
            "example with numpy.unique(values, return_inverse=True)[1].",
            counted.numbers,
        )
    # Numbers from 0 serve as well as the user's names, and take less time.
    ids = ids_of(values, "'groups'", "ids of groups")
    return replace(rows, groups=np.unique(ids, return_inverse=True)[1])


def with_folds(rows: Rows, folds: Any, counted: Counted = ALL) -> Rows:
    """The rows with the user's folds, if `folds` names one for each passed row.

    Example:
        >>> with_folds(Rows(np.zeros(3), np.array([0, 1, 0]), None), [1, 0, 2]).fold
        array([1, 0, 2])
    """
    if rows.fold is not None or not np.ndim(folds):
        return rows
    fold = column_of(counted.of(folds, "folds"), "'folds'")
    same_rows("folds", len(fold), len(rows), "row")
    return replace(rows, fold=fold)
