"""Folds of rows given as whole arrays, for cross-fitting."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import refused
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import are_counts
from keras_calibration._seeds import generator_of
from keras_calibration._solvers.repeated_rows import (
    clusters_of,
    with_copies_grouped,
)
from keras_calibration._solvers.row_order import (
    are_turned_round,
    canonical_order,
    differ_from_previous,
    equal_rows,
)

# Numbers of blocks of rows and of blocks of time. With four scored blocks of time, a standard error
# would be off by about 40 %.
_NUM_BLOCKS, _BLOCKS_OF_TIME = 5, 8

# A number of folds, a name such as "blocks", or the fold of each row.
Folds: TypeAlias = int | str | ArrayLike


def blocks_of_time(times: np.ndarray, num_blocks: int | None = None) -> np.ndarray:
    """The block of each row (n,). Blocks have about equally many rows; a time is in one block.

    Args:
        times: The times (n,).
        num_blocks: The number of blocks, if there are as many times; eight by default.

    Example:
        >>> blocks_of_time(np.array([5.0, 1.0, 1.0, 1.0, 2.0, 9.0]), 3)
        array([2, 0, 0, 0, 1, 2])
    """
    _, time, counts = np.unique(times, return_inverse=True, return_counts=True)
    ends, num_blocks = np.cumsum(counts), num_blocks or _BLOCKS_OF_TIME
    # The middle row of a time decides its block, in whole numbers, without rounding.
    blocks = ((2 * ends - counts - 1) * num_blocks // (2 * len(times)))[time]
    return np.unique(blocks, return_inverse=True)[1]


def fold_of_rows(folds: Folds | None, rows: Rows, seed: int | None) -> np.ndarray:
    """The fold of each row, whole numbers from 0, none of them empty.

    `folds` is a number of folds (random, stratified by label; the rows of a group are in one fold),
    `"blocks"` (five consecutive blocks of rows), or the fold of each row.

    Example:
        >>> rows = Rows(np.zeros(10), np.arange(10) % 5 == 0, None)
        >>> fold_of_rows("blocks", rows, seed=0)
        array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    """
    num_rows = len(rows.logits)
    if isinstance(folds, str) and folds == "blocks":
        fold = np.arange(num_rows) * _NUM_BLOCKS // num_rows
    elif isinstance(folds, int | np.integer) and 2 <= folds <= num_rows:
        labels = rows.labels if rows.labels.ndim == 1 else rows.labels.argmax(axis=1)
        # The class with more rows comes first, so that folds do not depend on which is called 1.
        labels = -1 * labels if are_turned_round(rows) else labels
        if (groups := clusters_of(with_copies_grouped(rows))) is not None:
            return _assign_groups_to_folds(int(folds), rows, groups, seed)
        by_chance = generator_of(seed).random(num_rows)
        fold = np.empty(num_rows, np.int64)
        # Stratify: sort by label, in random order within a label, and deal the folds out in turn.
        fold[np.lexsort((by_chance, labels))] = np.arange(num_rows) % folds
    else:
        fold = np.asarray(folds)
        if fold.dtype.kind not in "iu" or fold.shape != (num_rows,):
            expected = f'at least 2, "blocks", or the fold of each of the {num_rows} rows'
            remedy = 'For rows in order of time, pass time="order" to `calibrate`.'
            raise refused("folds", expected, folds, remedy)
    _, fold = np.unique(fold, return_inverse=True)
    if not fold.any():
        raise ValueError(
            "Argument `folds` must be at least two folds. Received: all rows in one fold."
        )
    return fold


def _assign_groups_to_folds(
    num_folds: int, rows: Rows, groups: np.ndarray, seed: int | None
) -> np.ndarray:
    """The fold of each row, for folds that do not divide a group.

    The folds depend on which rows a group has, but neither on its name nor on the order of the
    rows. They have about equally many rows of each class.
    """
    _, group = np.unique(groups, return_inverse=True)
    counts = rows.meant_counts
    order = canonical_order(rows)
    # Each different row draws a number, and a group's key is the sum of its rows' numbers. So only
    # groups of equal rows have equal keys, and order and names do not matter.
    different = np.cumsum(differ_from_previous(rows, order)) - 1
    drawn = generator_of(seed).integers(2**32, size=len(rows))[different]
    key = np.zeros(int(group.max()) + 1, np.int64)
    np.add.at(key, group[order], drawn * counts[order].astype(np.int64))
    if len(key) < num_folds:
        raise refused("folds", f"at most the number of groups, {len(key)}", num_folds)
    # The class with more rows comes first, so that folds do not depend on which is called 1.
    label = (rows.shares[:, ::-1] if are_turned_round(rows) else rows.shares).argmax(axis=1)
    kinds = [np.bincount(group, counts * (label == c), len(key)) for c in np.unique(label)]
    shares = np.stack([kind / kind.sum() for kind in kinds], axis=1)
    fold = np.empty(len(key), np.int64)
    loads = np.zeros((num_folds, len(kinds)))
    # Greedy bin packing, the largest groups first: each group gets the fold that has the fewest
    # rows of its classes so far.
    for number in np.lexsort((key, *kinds, -np.sum(kinds, axis=0))):
        fold[number] = np.argmin(loads @ shares[number])
        loads[fold[number]] += shares[number]
    return fold[group]


def refuse_divided_groups(folds: Any, rows: Rows) -> None:
    """Raises if the user's fold of each row divides a group of the user."""
    if rows.groups is None or rows.fold is None or not np.ndim(folds):
        return
    pairs = np.unique(np.stack([rows.groups, rows.fold]), axis=1)
    if num_divided := pairs.shape[1] - len(np.unique(rows.groups)):
        raise ValueError(
            "Argument `folds` must have all rows of a group in one fold. Received: folds that "
            f"divide up to {num_divided:,} groups. Pass a number of folds: they are drawn by group."
        )


def weights_in_folds(num_folds: int, rows: Rows) -> np.ndarray:
    """The weight that each row has in each fold (folds, n), drawn by chance.

    A row with a count of 3 is drawn three times, like three equal rows, so it may be in several
    folds. Counted and repeated rows get the same folds. A group is in one fold.

    Example:
        >>> weights_in_folds(2, Rows(np.zeros(1), np.zeros(1), np.array([9.0]))).sum(axis=0)
        array([9.])
    """
    order, weights = canonical_order(rows), rows.row_weights
    if clusters_of(rows := with_copies_grouped(rows)) is not None:
        return weights * (fold_of_rows(num_folds, rows, 0) == np.arange(num_folds)[:, None])
    is_counted = are_counts(weights)
    counts = np.rint(weights if is_counted else np.ones(len(rows))).astype(np.int64)
    group = equal_rows(rows, order)
    totals = np.rint(np.bincount(group, counts[order])).astype(np.int64)
    # Dealing single rows to folds at random makes the counts of each group multinomial.
    drawn = np.random.default_rng(0).multinomial(totals, np.full(num_folds, 1 / num_folds))
    # In order, a group covers a range of places. Its rows divide this range, and so do its folds;
    # the overlap of a row's range with a fold's range is how often the fold drew the row.
    ends = np.cumsum(counts[order])
    fold_ends = np.cumsum(drawn).reshape(drawn.shape)[group].T
    starts = ends - counts[order]
    fold_starts = fold_ends - drawn[group].T
    overlap = np.empty(fold_ends.shape)
    overlap[:, order] = np.maximum(np.minimum(ends, fold_ends) - np.maximum(starts, fold_starts), 0)
    return overlap if is_counted else overlap * weights


def folds_of(folds: Any, rows: Rows) -> Any:
    """The argument `folds` for some rows: if it has a fold for each passed row, only their folds.

    Example:
        >>> rows = Rows(np.zeros(4), np.array([0, 1, 0, 1]), None, fold=np.array([0, 1, 0, 2]))
        >>> some = rows.take(np.array([1, 2]))
        >>> folds_of([0, 1, 0, 2], some), folds_of("blocks", some)
        (array([1, 0]), 'blocks')
    """
    return rows.fold if np.ndim(folds) and rows.fold is not None else folds
