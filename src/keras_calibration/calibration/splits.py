"""Splits a development set into rows to fit and rows that are scored by this fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import refused
from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.repeated_rows import num_independent
from keras_calibration._solvers.row_folds import Folds, blocks_of_time, fold_of_rows


@dataclass(frozen=True)
class Splits:
    """The folds of the rows and how they are scored.

    Args:
        fold: The fold of each row, 0, 1 … (n,).
        parts: For each scored fold, the numbers of the rows to fit, and of the rows that this fit
            scores. The scored folds are the last ones.
        is_forward: Whether a fold is scored by a fit on the earlier folds only. Otherwise it is
            scored by a fit on all other folds.
        in_order: Whether the folds are blocks of consecutive rows. Standard errors then treat the
            rows of a block as dependent. They always treat the rows of a group (`Rows.groups`) so.
    """

    fold: np.ndarray
    parts: list[tuple[np.ndarray, np.ndarray]]
    is_forward: bool
    in_order: bool

    @property
    def num_folds(self) -> int:
        """Number of folds."""
        return int(self.fold.max()) + 1

    @property
    def scored(self) -> np.ndarray:
        """Numbers of the scored rows (m,)."""
        return np.flatnonzero(self.fold >= self.num_folds - len(self.parts))

    @property
    def clusters(self) -> np.ndarray | None:
        """Block of each scored row (m,); None if folds are not blocks of consecutive rows."""
        return self.fold[self.scored] if self.in_order else None

    @property
    def part(self) -> str:
        """The prefix of warnings from a fit to a part of the rows."""
        rows = "the rows of early blocks of time" if self.is_forward else "the other folds"
        return f"In a fit to {rows} alone, which only serves to score a candidate"

    def weighted(self, rows: Rows) -> Rows:
        """The scored rows; with `is_forward`, weighted by the share of the rows in their fit.

        The final calibration is fitted to all rows, so a fit on few rows counts less.
        """
        if not self.is_forward:
            return rows.take(self.scored)
        weights = rows.row_weights.copy()
        for fitted, scored in self.parts:
            # A fit to few rows says less about the final fit, which sees all of them.
            weights[scored] *= len(fitted) / len(rows)
        return replace(rows, weights=weights).take(self.scored)


def time_and_gap(time: Any, folds: Folds | None) -> tuple[ArrayLike | str | None, Any]:
    """The argument `time` of `calibrate` as times and a gap; raises if there are folds too."""
    if time is not None and folds is not None:
        raise ValueError(
            "Argument `folds` must be None with `time`: the folds are then blocks of time, each "
            f"scored by a fit on the earlier ones. Received: folds={folds!r}."
        )
    if not (isinstance(time, tuple) and len(time) == 2):
        return time, 0.0
    if time[0] is None:
        raise refused("time", "times and a gap", time, "Without times, there is no gap.")
    return time


def default_folds(rows: Rows, most: int) -> int:
    """The default number of folds; raises for rows that no folds can divide.

    Example:
        >>> default_folds(Rows(np.zeros(4), np.array([0, 0, 1, 1]), None), most=5)
        4
        >>> default_folds(Rows(np.zeros(3), np.array([0.2, 0.5, 0.9]), None), most=5)
        3
    """
    # A row with a soft label counts for both classes, so `counts` may add up to more than the rows.
    counts = num_independent(rows)
    if np.count_nonzero(counts >= 2) < 2:
        raise ValueError(
            "The development set must have at least two rows of each of two classes, because each "
            "row is scored by a fit to other rows. Received: "
            f"{' and '.join(f'{count} of class {number}' for number, count in enumerate(counts))}, "
            "not counting rows of weight 0, and the rows of a group as one."
        )
    return int(min(most, counts.sum(), len(rows)))


def splits_of(folds: Folds | None, rows: Rows, gap: float = 0.0) -> Splits:
    """The splits for the argument `folds` of `calibrate`; forward, if the rows have times.

    Example:
        >>> rows = Rows(np.zeros(16), np.arange(16) % 2, None, times=np.arange(16.0))
        >>> for fitted, scored in splits_of(None, rows).parts[:3]:
        ...     print(fitted, scored)
        [0 1] [2 3]
        [0 1 2 3] [4 5]
        [0 1 2 3 4 5] [6 7]
    """
    fold = fold_of_rows(folds, rows, seed=0) if rows.times is None else blocks_of_time(rows.times)
    parts, num_left_out = [], 0
    for number in range(fold.max() + 1):
        is_scored = fold == number
        is_fitted = ~is_scored
        if rows.times is not None:
            # Purged forward validation: rows within the gap before a block had no labels yet when a
            # fit would have had to predict that block.
            is_earlier = fold < number
            is_fitted = is_earlier & (rows.times <= rows.times[is_scored].min() - gap)
            num_left_out += int(np.count_nonzero(is_earlier & ~is_fitted))
        # The first block of time has no earlier rows, so no fit scores it.
        if is_fitted.any():
            parts.append((np.flatnonzero(is_fitted), np.flatnonzero(is_scored)))
    if len(parts) < 2:  # one block alone has no standard error
        raise ValueError(
            "Argument `time` must tell at least two blocks of rows from the rows before them. "
            f"Received: too few times, or a gap of {gap:g} leaves too few fits. Use a smaller gap, "
            "rows of a longer time, or no `time`."
        )
    # A fit needs two classes; with few positives, a block may have one alone.
    for fitted, scored in parts:
        if np.count_nonzero(rows.take(fitted).shares.any(axis=0)) < 2:
            raise ValueError(
                "Argument `folds` must leave rows of both classes for each fit. Received: folds "
                f"where the fit that scores fold {fold[scored[0]]} has {len(fitted)} rows, "
                "all of one class. Use other folds, or more rows."
            )
    is_forward = rows.times is not None
    if rows.times is not None and gap and not num_left_out and rows.time_unit != "day":
        warn(
            f"The gap of {gap:g} leaves out no row. It is in the unit of the times, which span "
            f"{np.ptp(rows.times):g}: of times in seconds, a week is 604800."
        )
    return Splits(fold, parts, is_forward, in_order=is_forward or isinstance(folds, str))
