"""Brings rows into one order and form, so that draws do not depend on how they were passed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np

from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import are_counts
from keras_calibration._solvers.repeated_rows import with_copies_grouped
from keras_calibration._solvers.segments import distinct_values

# Above this number of rows, the share of rows that a fold gets by chance hardly varies.
_MAX_ROWS = 1 << 20


def canonical_order(rows: Rows) -> np.ndarray:
    """Row numbers by increasing logit, and of equal logits by label, features and weight.

    Rows that are still equal can be exchanged. So random draws for the rows in this order do not
    depend on the order in which they were passed. Nor do they depend on which class is called
    positive, because `are_turned_round` rows are ordered by decreasing logit and label.

    Args:
        rows: The rows, with their features.

    Example:
        >>> features = {"site": np.array(["a", "b", "d", "c"])}
        >>> rows = Rows(np.array([2.0, 1.0, 1.0, 1.0]), np.array([0, 1, 0, 0]), None, features)
        >>> canonical_order(rows)
        array([3, 2, 1, 0])
    """
    sign = -1 if are_turned_round(rows) else 1
    logits = sign * rows.logits.reshape(len(rows.logits), -1)
    order = np.argsort(logits[:, 0], kind="stable")
    # Only rows that tie in the first logit need the other columns, which take a slower sort.
    are_equal = logits[order[1:], 0] == logits[order[:-1], 0]
    is_tied = np.r_[False, are_equal] | np.r_[are_equal, False]
    if is_tied.any():
        tied = order[is_tied]
        # The weight comes last, so that two copies of a row stand where one row of weight 2 would.
        ranks = [*_rank_columns(rows.take(tied), sign), rows.row_weights[tied]]
        order[is_tied] = tied[np.lexsort(ranks[::-1])]
    return order


def equal_rows(rows: Rows, order: np.ndarray) -> np.ndarray:
    """The group of each row in an order (n,): if weights are counts, equal neighbours form a group.

    Equal rows are one row, whose count is the sum of theirs. If weights are importances, every row
    is a group of its own.

    Example:
        >>> rows = Rows(np.array([2.0, 1.0, 1.0]), np.array([0, 1, 1]), np.array([1.0, 4.0, 2.0]))
        >>> equal_rows(rows, canonical_order(rows))
        array([0, 1, 1])
    """
    is_counted = are_counts(rows.weights)
    is_new = differ_from_previous(rows, order) if is_counted else np.ones(len(rows), bool)
    return np.cumsum(is_new) - 1


def differ_from_previous(rows: Rows, order: np.ndarray) -> np.ndarray:
    """Whether each row in an order (n,) differs from the one before it, aside from counts."""
    rows = rows.take(order)
    ranks = _rank_columns(rows) + ([] if are_counts(rows.weights) else [rows.row_weights])
    return np.r_[True, np.any([rank[1:] != rank[:-1] for rank in ranks], axis=0)]


def are_turned_round(rows: Rows) -> bool:
    """True if positives outweigh negatives; false for K classes.

    Callers turn such rows round, so that rows with exchanged classes and negated logits come in the
    same order as the rows themselves. If both classes have the same weight, the logit farthest from
    0 decides.

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


def rows_apart(rows: Rows, folds: object = None) -> tuple[Rows, np.ndarray, np.ndarray]:
    """The rows in canonical order, with groups; a row with a count of 2 occurs twice.

    Folds, batches and the leaves of trees are made of rows. So here, a row with a count of 2 has to
    become two rows. Above a million rows, this function adds up equal rows first, and repeats the
    rows with the largest counts less often, with whole numbers as weights that have the same sum.
    It leaves importances as they are.

    Args:
        rows: The rows.
        folds: What the folds will be (`row_folds.Folds`). With blocks, the order stays. With a fold
            for each row, equal rows are not added up, as they may be in different folds.

    Returns:
        The rows (m,); their numbers among the passed rows (m,); and for each passed row, the number
        of an equal row among the returned ones (n,).

    Example:
        >>> rows, numbers, _ = rows_apart(Rows(np.zeros(2), np.array([1, 0]), np.array([1.0, 2])))
        >>> numbers, rows.weights is None
        (array([1, 1, 0]), True)
        >>> rows_apart(Rows(np.zeros(2), np.array([1, 0]), np.array([1.0, 2.5])))[0].weights
        array([2.5, 1. ])
    """
    source = np.arange(len(rows))
    numbers = source if isinstance(folds, str) else canonical_order(rows)
    weights = rows.row_weights[numbers]
    if are_counts(weights):
        counts = np.rint(weights).astype(np.int64)
        if counts.sum() > _MAX_ROWS and (folds is None or isinstance(folds, int | np.integer)):
            # Add up equal rows. The total stays; what is left to do below is to repeat the sums.
            group = equal_rows(rows, numbers)
            if rows.groups is not None:  # rows of two groups are never one
                by_group = np.lexsort([rows.groups[numbers], group])
                numbers = numbers[by_group]
                counts = counts[by_group]
                pairs = np.stack([group[by_group], rows.groups[numbers]])
                group = np.cumsum(np.any(np.diff(pairs, prepend=-2) != 0, axis=0)) - 1
            counts = np.rint(np.bincount(group, counts)).astype(np.int64)
            first = numbers[np.diff(group, prepend=-1) > 0]
            source[numbers], numbers = first[group], first
        # A row with the count c becomes `copies` rows whose weights are c / copies, rounded down or
        # up so that they add up to c.
        copies = np.minimum(counts, _limit_copies(counts))
        weight, extra = np.divmod(counts, copies)
        place = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
        weights = np.repeat(weight, copies) + (place < np.repeat(extra, copies)).astype(np.float64)
        numbers = np.repeat(numbers, copies)
    separate_rows = replace(rows.take(numbers), weights=None if (weights == 1).all() else weights)
    return with_copies_grouped(separate_rows), numbers, source


def _limit_copies(counts: np.ndarray) -> int:
    """The largest number of copies of a row that keeps the number of all rows within the limit."""
    max_rows = max(_MAX_ROWS, len(counts))
    copies = range(1, int(counts.max()) + 1)
    return bisect_right(copies, max_rows, key=lambda cap: np.minimum(counts, cap).sum())


def _rank_columns(rows: Rows, sign: int = 1) -> list[np.ndarray]:
    """All columns but the weights as numbers with the same order and the same ties."""
    columns = [sign * rows.logits, sign * rows.labels, *rows.features.values()]
    columns += [] if rows.times is None else [rows.times]
    return [_rank(part) for column in columns for part in np.reshape(column, (len(rows), -1)).T]


def _rank(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        return distinct_values(values)[1]
    # Missing numbers are equal.
    return np.unique(values, return_inverse=True)[1] if np.isnan(values).any() else values
