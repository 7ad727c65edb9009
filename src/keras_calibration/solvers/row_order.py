"""The order of rows in which a fit by chance (folds, batches) depends on the rows alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from keras_calibration.solvers.data_checks import Rows
from keras_calibration.solvers.segments import distinct_values


def canonical_order(rows: Rows, columns: Iterable[np.ndarray]) -> np.ndarray:
    """Row numbers by increasing logit, and of equal logits by label, weight and features.

    Rows that are still equal can be exchanged. So whatever is drawn by chance for the rows in this
    order does not depend on the order in which they were given; nor on which class is called the
    positive one, because `are_turned_round` rows are ordered by decreasing logit and label.

    Args:
        rows: Logits, labels and weights.
        columns: Features, arrays with n rows.

    Example:
        >>> rows = Rows(np.array([2.0, 1.0, 1.0, 1.0]), np.array([0, 1, 0, 0]), None)
        >>> canonical_order(rows, [np.array(["a", "b", "d", "c"])])
        array([3, 2, 1, 0])
    """
    side = -1 if are_turned_round(rows) else 1
    logits = side * rows.logits.reshape(len(rows.logits), -1)
    order = np.argsort(logits[:, 0], kind="stable")
    first = logits[order, 0]
    is_tied = np.zeros(len(order), bool)
    is_tied[1:] = first[1:] == first[:-1]
    is_tied[:-1] |= is_tied[1:]
    if is_tied.any():
        tied = order[is_tied]
        keys = [*logits.T, side * rows.labels, rows.row_weights, *columns]
        ranks = [_rank(part) for key in keys for part in _parts(np.asarray(key)[tied])]
        order[is_tied] = tied[np.lexsort(ranks[::-1])]
    return order


def are_turned_round(rows: Rows) -> bool:
    """Whether rows of one logit have more positives than negatives.

    Of rows, and the same with labels and logits turned round, it is true of one. If both classes
    have as many rows, the farthest logits decide. Never of rows of K classes.

    Example:
        >>> are_turned_round(Rows(np.array([2.0, 1.0, 1.0]), np.array([1, 0, 1]), None))
        True
    """
    if rows.logits.ndim > 1:
        return False
    labels = rows.labels[rows.row_weights > 0]
    excess = np.count_nonzero(labels > 0.5) - np.count_nonzero(labels < 0.5)
    return bool(excess > 0 or (excess == 0 and rows.logits.min() + rows.logits.max() > 0))


def _parts(column: np.ndarray) -> np.ndarray:
    return np.atleast_2d(column.reshape(len(column), -1).T)


def _rank(values: np.ndarray) -> np.ndarray:
    """Numbers that sort as the values do, of any type."""
    return values if values.dtype.kind in "biuf" else distinct_values(values)[1]
