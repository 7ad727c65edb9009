"""Splits a development set into rows to fit and rows that are scored by this fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.row_folds import Folds, fold_of_rows

FORWARD = "forward"
# Enough to estimate a standard error: with four scored blocks it would be off by about 40 %.
_NUM_BLOCKS = 8


@dataclass(frozen=True)
class Splits:
    """The folds of the rows and how they are scored.

    Args:
        fold: The fold of each row, 0, 1 … (n,).
        is_forward: Whether a fold is scored by a fit on the earlier folds only; the first fold is
            then not scored. Otherwise it is scored by a fit on all other folds.
        in_order: Whether the folds are blocks of consecutive rows. The rows of a block are then not
            treated as independent.
    """

    fold: np.ndarray
    is_forward: bool
    in_order: bool

    @property
    def num_folds(self) -> int:
        """Number of folds."""
        return int(self.fold.max()) + 1

    @property
    def scored(self) -> np.ndarray:
        """Numbers of the scored rows (m,)."""
        return np.flatnonzero(self.fold >= self.is_forward)

    @property
    def clusters(self) -> np.ndarray | None:
        """Block of each scored row (m,); None if rows are treated as independent."""
        return self.fold[self.scored] if self.in_order else None

    @property
    def weights(self) -> np.ndarray | None:
        """With `is_forward`, the share of all rows that each scored row's fit used (m,); else None.

        The final calibration is fitted to all rows, so fits on few rows say less about it.
        """
        return self.fold[self.scored] / self.num_folds if self.is_forward else None

    def parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Iterates over the scored folds.

        Yields:
            Numbers of the rows to fit, and of the rows that this fit scores.
        """
        for number in range(self.is_forward, self.num_folds):
            fitted = self.fold < number if self.is_forward else self.fold != number
            yield np.flatnonzero(fitted), np.flatnonzero(self.fold == number)


def default_folds(rows: Rows, most: int) -> int:
    """The number of folds where none is asked for; raises for rows that no folds can divide.

    Example:
        >>> default_folds(Rows(np.zeros(4), np.array([0, 0, 1, 1]), None), most=5)
        4
    """
    # A soft label is of both classes.
    counts = np.count_nonzero(rows.shares, axis=0)
    if np.count_nonzero(counts >= 2) < 2:
        raise ValueError(
            "The development set must have at least two rows of each of two classes, because each "
            "row is scored by a fit to other rows. Received: "
            f"{' and '.join(f'{count} of class {number}' for number, count in enumerate(counts))}, "
            "not counting rows of weight 0."
        )
    return min(most, len(rows.logits))


def splits_of(folds: Folds, rows: Rows, seed: int | None) -> Splits:
    """The splits for the argument `folds` of `calibrate`.

    Example:
        >>> rows = Rows(np.zeros(16), np.arange(16) % 2, None)
        >>> for fitted, scored in list(splits_of("forward", rows, 0).parts())[:3]:
        ...     print(fitted, scored)
        [0 1] [2 3]
        [0 1 2 3] [4 5]
        [0 1 2 3 4 5] [6 7]
    """
    is_forward = isinstance(folds, str) and folds == FORWARD
    num_rows = len(rows.logits)
    blocks = np.arange(num_rows) * _NUM_BLOCKS // num_rows
    fold = fold_of_rows(blocks if is_forward else folds, rows, seed)
    splits = Splits(fold, is_forward, in_order=isinstance(folds, str))
    for fitted, scored in splits.parts():
        if np.count_nonzero(rows.take(fitted).shares.any(axis=0)) < 2:
            raise ValueError(
                "Argument `folds` must leave rows of both classes for each fit. Received: folds "
                f"where the fit that scores fold {int(fold[scored[0]])} has {len(fitted)} rows, "
                "all of one class. Use other folds, or more rows."
            )
    return splits
