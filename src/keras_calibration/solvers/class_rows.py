"""Checks of class logits, labels and weights, before anything is done with them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_calibration.solvers.data_checks import check_rows

# Soft labels that were float32, or sums of many classes in it, may miss 1 by this much.
_LABEL_TOLERANCE = 1e-3
# Far beyond any logit that means something; differences and products of such still are finite.
_LARGEST_LOGIT = 1e15


@dataclass(frozen=True)
class ClassRows:
    """Class logits, labels and weights of rows, of those that count as a rule, float64.

    Args:
        logits: Logits (n, K), within ±1e15.
        labels: One-hot or soft labels (n, K), each row of sum 1.
        weights: Weights (n,), above 0; or not below it, where all rows were asked for.
        num_rows: Number of rows given, those of weight 0 included.
    """

    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    num_rows: int


def check_class_rows(
    logits: Any, labels: Any, sample_weight: Any = None, keep_all: bool = False
) -> ClassRows:
    """Refuses what no calibration of class logits can be fitted on.

    Args:
        logits: Logits (n, K), K ≥ 2, finite.
        labels: Class numbers (n,) or (n, 1), 0 … K - 1, or one-hot or soft labels (n, K).
        sample_weight: Weights of the rows (n,) or (n, 1), not negative, or None.
        keep_all: Whether to keep the rows of weight 0 too.

    Returns:
        The rows of weight above 0, or all.

    Raises:
        ValueError: Saying what was received, what was expected and how to mend it.

    Example:
        >>> check_class_rows([[0.5, 1.0], [2.0, -1.0]], [1, 0]).labels
        array([[0., 1.],
               [1., 0.]])
    """
    scores = np.asarray(logits, np.float64)
    if scores.ndim != 2 or scores.shape[1] < 2 or not len(scores):
        raise ValueError(
            "Expected logits of shape (n, K), n of at least 1 row, K of at least 2 classes. "
            f"Received: shape {scores.shape}. For one logit a row there are the binary "
            "calibrators, TemperatureScaling and PlattScaling among them."
        )
    if bad := np.flatnonzero(~np.isfinite(scores).all(axis=1)).tolist():
        raise ValueError(
            f"Logits must be finite. Received: {len(bad)} of {len(scores)} rows with other values, "
            f"the first being {scores[bad[0]]} in row {bad[0]}. Drop these rows, or look at their "
            "features for missing values that the base model cannot take."
        )
    shares = _shares(labels, *scores.shape)
    weights = check_rows(np.zeros(len(scores)), None, sample_weight).weights
    weights = np.ones(len(scores)) if weights is None else weights
    counts = weights > 0
    present = np.flatnonzero(shares[counts].any(axis=0))
    if len(present) < 2:
        raise ValueError(
            f"The rows hold one class only. Received: {len(scores)} rows, all labels "
            f"{present[0]} where the weight is above 0. Expected at least two "
            "classes: use more rows, or check the label rule."
        )
    kept = np.ones_like(counts) if keep_all else counts
    return ClassRows(
        np.clip(scores[kept], -_LARGEST_LOGIT, _LARGEST_LOGIT),
        shares[kept],
        weights[kept],
        len(scores),
    )


def _shares(labels: Any, num_rows: int, num_classes: int) -> np.ndarray:
    """Labels as shares of the classes (n, K)."""
    given = np.asarray(labels)
    if given.shape in ((num_rows,), (num_rows, 1)):
        numbers = given.reshape(-1).astype(np.float64)
        bad = ~np.isin(numbers, np.arange(num_classes))
        expected = f"class numbers 0 … {num_classes - 1}"
        shares = np.eye(num_classes)[np.where(bad, 0, numbers).astype(np.intp)]
    elif given.shape == (num_rows, num_classes):
        shares = given.astype(np.float64)
        sums = shares.sum(axis=1, keepdims=True)
        in_range = (shares >= 0).all(axis=1)
        bad = ~(in_range & (np.abs(sums[:, 0] - 1) <= _LABEL_TOLERANCE))
        expected = "rows of shares that add up to 1"
        shares = np.divide(shares, sums, out=np.zeros_like(shares), where=sums > 0)
    else:
        raise ValueError(
            f"Expected labels of shape ({num_rows},), class numbers, or ({num_rows}, "
            f"{num_classes}), one-hot or soft. Received: shape {given.shape}. Pass one label a row."
        )
    if bad.any():
        (rows,) = np.nonzero(bad)
        raise ValueError(
            f"Labels must be {expected}. Received: {len(rows)} of {num_rows} rows with other "
            f"values, the first being {given[rows[0]]} in row {rows[0]}. Recode or drop these rows."
        )
    return shares
