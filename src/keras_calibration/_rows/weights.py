"""Sample weights: what they are, and which rows count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._columns import refuse_rows
from calibration_records._warn import warn
from keras_calibration._rows.columns import as_array, flat_numbers, numbers_of

# What the sample weights of a fit are: known up to a common factor, or numbers of rows.
WEIGHTS_ARE = ("importance", "counts")


def counts_of(
    sample_weight: ArrayLike | None, weights_are: str, num_rows: int
) -> np.ndarray | None:
    """Sample weights (n,) as numbers of rows, which is what every fit takes; None for ones.

    Counts stay as they are. Importances are known up to a common factor: they are scaled to the
    sum `(Σ w)² / Σ w²`, the number of rows of equal weight that say as much (Kish). So equal
    weights are ones, and priors, shrinkage and intervals do not depend on their unit.

    Example:
        >>> counts_of([2.0, 2.0, 0.0, 2.0], "importance", 4)
        array([1., 1., 0., 1.])
        >>> counts_of([3.0, 1.0], "importance", 2), counts_of([3.0, 1.0], "counts", 2)
        (array([1.2, 0.4]), array([3., 1.]))
    """
    check_weights_are(weights_are)
    if (weights := checked_weights(sample_weight, num_rows)) is None:
        return None
    if weights_are == "counts":
        check_counts(weights)
        return np.rint(weights)
    shares = weights / weights.max()
    used = shares[weights > 0]
    if (used == 1).all():
        return shares
    return shares * (used.sum() / (used @ used))


def unit_of(sample_weight: ArrayLike | None, counts: np.ndarray | None) -> float:
    """The sample weight of one row: what `counts_of` has divided the weights by.

    Example:
        >>> unit_of([30.0, 10.0], counts_of([30.0, 10.0], "importance", 2))
        25.0
    """
    if sample_weight is None or counts is None:
        return 1.0
    return float(np.max(sample_weight) / counts.max())


def check_weights_are(weights_are: str) -> None:
    """Raises unless the argument says what sample weights are."""
    if weights_are not in WEIGHTS_ARE:
        raise ValueError(
            f"Argument `weights_are` must be one of {WEIGHTS_ARE}: sample weights are importances, "
            "known up to a common factor, or counts of rows. Received: "
            f"weights_are={weights_are!r}."
        )


def check_counts(weights: np.ndarray, what: str = "weights") -> None:
    """Raises unless weights, or sums of them, are whole numbers: numbers of rows."""
    if not are_counts(weights):
        raise ValueError(
            'With weights_are="counts", sample weights must be whole numbers: a row of weight 2 '
            f"counts as two. Received: {what} such as {weights[~_are_whole(weights)][0]:g}. For "
            'importances, pass weights_are="importance".'
        )


def warn_of_weights(labels: np.ndarray, weights: ArrayLike | None, weights_are: str) -> None:
    """Warns of importances that depend on the label alone, or that look like counts.

    Args:
        labels: Labels (n,) or (n, 1), or of classes.
        weights: Sample weights as they were given, (n,) or (n, 1), or None.
        weights_are: What they are, see `counts_of`.
    """
    if weights is None or weights_are == "counts" or labels.size != len(labels):
        return
    labels, weights = labels.reshape(-1), np.asarray(weights).reshape(-1)
    used = weights > 0
    of_class = [np.unique(weights[used & (labels == label)]) for label in (0, 1)]
    if all(len(each) == 1 for each in of_class) and np.isin(labels[used], (0, 1)).all():
        negative, positive = (float(each[0]) for each in of_class)
        if negative != positive:
            warn(
                f"The sample weights depend on the label alone: {negative:g} for negatives, "
                f"{positive:g} for positives. If they undo a sampling of the negatives, fit to the "
                "sample without weights: the logits of all rows are those of the sample plus the "
                "log of the sampling rate (SamplingCorrection), and no row counts for many. If "
                "they are weights of classes, the calibrated rate will not be that of the rows.",
            )
    elif weights.max() > 1 and are_counts(weights) and weights[used].min() == 1:
        warn(
            "The sample weights look like counts of rows: all are whole numbers, from 1 to "
            f"{weights.max():g}. They are taken as importances, {used.sum():,} rows that are worth "
            'fewer. Pass weights_are="counts" if a row of weight 2 is two rows.',
        )


def are_counts(weights: np.ndarray | None) -> bool:
    """Whether weights, or sums of weights, are whole numbers: numbers of rows. None are.

    Example:
        >>> are_counts(np.array([1.0, 3.0])), are_counts(np.array([1.0, 2.5]))
        (True, False)
    """
    if weights is None:
        return True
    return bool(_are_whole(weights).all())


def rows_that_count(weights: np.ndarray | None) -> np.ndarray | None:
    """Row numbers in which the first row of positive weight stands for each of weight 0.

    A row of weight 0 is no row, whatever its logit, label and features. Columns that are taken by
    these numbers keep their length, and hold the values of other rows alone. None if all rows count
    (or none does).

    Example:
        >>> rows_that_count(np.array([0.0, 2.0, 1.0, 0.0]))
        array([1, 1, 2, 1])
    """
    if weights is None or not weights.any() or weights.all():
        return None
    numbers = np.arange(len(weights))
    return np.where(weights == 0, np.argmax(weights != 0), numbers)


def columns_that_count(
    columns: Mapping[str, Any], sample_weight: ArrayLike | None
) -> Mapping[str, Any]:
    """The columns with another row in place of each of weight 0: see `rows_that_count`.

    For use before a column is read: a row of weight 0 may hold what no column may.

    Example:
        >>> columns_that_count({"site": [None, 3]}, [0.0, 1.0])["site"].tolist()
        [3, 3]
    """
    if sample_weight is None:
        return columns
    weights = numbers_of(sample_weight, "Weights").reshape(-1)
    numbers = rows_that_count(weights)
    if numbers is None or np.isnan(weights.astype(np.float64)).any():
        return columns
    arrays = {name: as_array(column, repr(name)) for name, column in columns.items()}
    fit = {name for name, array in arrays.items() if array.ndim and len(array) == len(weights)}
    return {n: arrays[n][numbers] if n in fit else column for n, column in columns.items()}


def checked_weights(sample_weight: ArrayLike | None, num_rows: int) -> np.ndarray | None:
    """Weights (n,), finite, not negative, not all 0."""
    if sample_weight is None:
        return None
    weights = flat_numbers(sample_weight, "weights", num_rows)
    refuse_rows(
        ~(np.isfinite(weights) & (weights >= 0)),
        weights,
        "Sample weights must be finite and not negative.",
        "Drop these rows or give them weight 0.",
    )
    if not weights.any():
        raise ValueError("All sample weights are 0. At least one must be positive.")
    return weights


def _are_whole(weights: np.ndarray) -> np.ndarray:
    # A small weight is no count of 0.
    is_counted = (weights == 0) | (weights > 0.5)
    return is_counted & (np.abs(weights - np.rint(weights)) <= 1e-6 + 1e-12 * weights)
