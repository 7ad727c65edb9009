"""Rows for a fit by chance (folds, batches): in an order, and each apart, whatever their form."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import are_counts
from keras_calibration._solvers.segments import distinct_values

# Beyond so many rows, the share that chance gives to a fold hardly varies.
_MOST_ROWS = 1 << 20


def canonical_order(rows: Rows) -> np.ndarray:
    """Row numbers by increasing logit, and of equal logits by label, features and weight.

    Rows that are still equal can be exchanged. So whatever is drawn by chance for the rows in this
    order does not depend on the order in which they were given; nor on which class is called the
    positive one, because `are_turned_round` rows are ordered by decreasing logit and label.

    Args:
        rows: The rows, with their features.

    Example:
        >>> features = {"site": np.array(["a", "b", "d", "c"])}
        >>> rows = Rows(np.array([2.0, 1.0, 1.0, 1.0]), np.array([0, 1, 0, 0]), None, features)
        >>> canonical_order(rows)
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
        # The weight last: rows that are there twice take the place of one of weight 2.
        keys = [*logits.T, side * rows.labels, *rows.features.values(), rows.row_weights]
        ranks = [_rank(part) for key in keys for part in _parts(np.asarray(key)[tied])]
        order[is_tied] = tied[np.lexsort(ranks[::-1])]
    return order


def are_turned_round(rows: Rows) -> bool:
    """Whether rows of one logit have more positives than negatives.

    Of rows, and the same with labels and logits turned round, it is true of one. If both classes
    weigh as much, the farthest logits decide. Never of rows of K classes.

    Example:
        >>> are_turned_round(Rows(np.array([2.0, 1.0, 1.0]), np.array([1, 0, 1]), None))
        True
    """
    if rows.logits.ndim > 1:
        return False
    excess = float(rows.row_weights @ np.sign(rows.labels - 0.5))
    if abs(excess) > 1e-9 * rows.row_weights.sum():  # not a rounding of equal weights
        return excess > 0
    return bool(rows.logits.min() + rows.logits.max() > 0)


def single_rows(numbers: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers in which a row of weight 2 is there twice, and the weights of these rows.

    Folds, batches and the leaves of trees are made of rows. If the weights are counts, rows that
    are counted and rows that are repeated are the same rows here. If there are more than a million,
    those of the largest counts are fewer rows, whose weights are still whole numbers with the same
    sum. Importances stay as they are.

    Args:
        numbers: Row numbers (m,).
        weights: Weights of all rows (n,).

    Example:
        >>> single_rows(np.array([1, 0]), np.array([1.0, 2.0]))
        (array([1, 1, 0]), array([1., 1., 1.]))
        >>> single_rows(np.array([1, 0]), np.array([1.0, 2.5]))
        (array([1, 0]), array([2.5, 1. ]))
    """
    weights = weights[numbers]
    if not are_counts(weights) or not len(numbers):
        return numbers, weights
    counts = np.rint(weights).astype(np.int64)
    copies = np.minimum(counts, _most_copies(counts))
    each, left = np.divmod(counts, copies)
    place = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    single = np.repeat(each, copies) + (place < np.repeat(left, copies))
    return np.repeat(numbers, copies), single.astype(np.float64)


def _most_copies(counts: np.ndarray) -> int:
    """The largest number of copies of a row with which there are not too many rows in all."""
    most = max(_MOST_ROWS, len(counts))
    copies = range(1, int(counts.max()) + 1)
    return bisect_right(copies, most, key=lambda number: np.minimum(counts, number).sum())


def _parts(column: np.ndarray) -> np.ndarray:
    return np.atleast_2d(column.reshape(len(column), -1).T)


def _rank(values: np.ndarray) -> np.ndarray:
    """Numbers that sort as the values do, of any type."""
    return values if values.dtype.kind in "biuf" else distinct_values(values)[1]
