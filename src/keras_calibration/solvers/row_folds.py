"""Folds of rows that are at hand as a whole, for cross-fitting on the host."""

from typing import Any

import numpy as np

from keras_calibration.solvers.data_checks import Rows

_NUM_BLOCKS = 5


def fold_of_rows(folds: Any, rows: Rows, seed: int | None) -> np.ndarray:
    """The fold of each row.

    Args:
        folds: Number of folds: rows at random, the classes shared out as equally as can be;
            `"blocks"`: five stretches of rows in their own order; or the number of the fold of each
            row (n,).
        rows: Logits, labels and weights of n rows.
        seed: Seed of the assignment at random.

    Returns:
        Whole numbers 0, 1 … (n,), each of them there.

    Raises:
        ValueError: If `folds` is none of these.

    Example:
        >>> rows = Rows(np.zeros(10), np.arange(10) % 5 == 0, None)
        >>> fold_of_rows("blocks", rows, seed=0)
        array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
        >>> fold = fold_of_rows(2, rows, seed=0)
        >>> np.bincount(fold), sorted(fold[[0, 5]].tolist())
        (array([5, 5]), [0, 1])
    """
    num_rows = len(rows.logits)
    if isinstance(folds, str) and folds == "blocks":
        fold = np.arange(num_rows) * _NUM_BLOCKS // num_rows
    elif isinstance(folds, int | np.integer) and 2 <= folds <= num_rows:
        labels = rows.labels if rows.labels.ndim == 1 else rows.labels.argmax(axis=1)
        by_chance = np.random.default_rng(seed).random(num_rows)
        fold = np.empty(num_rows, np.int64)
        # Rows of weight 0 are spread apart from the others.
        fold[np.lexsort((by_chance, labels, rows.row_weights > 0))] = np.arange(num_rows) % folds
    else:
        fold = np.asarray(folds)
        if isinstance(folds, str):
            raise ValueError(
                'Argument `folds` must be a number of folds from 2 on, "blocks" (stretches of rows '
                'in their own order), in `calibrate` also "forward" (rows in order of time, each '
                "scored by fits to those before it), or the number of the fold of each row. "
                f"Received: folds={folds!r}."
            )
        if fold.dtype.kind not in "iu" or fold.shape != (num_rows,):
            raise ValueError(
                'Argument `folds` must be a number of folds from 2 on, "blocks", or the number of '
                f"the fold of each of the {num_rows} rows. Received: folds={folds!r}."
            )
    _, fold = np.unique(fold, return_inverse=True)
    if not fold.any():
        raise ValueError(
            "Argument `folds` must make at least two folds. Received: all rows in one fold."
        )
    return fold
