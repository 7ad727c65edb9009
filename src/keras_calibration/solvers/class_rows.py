"""Checks of class logits, labels and weights, before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from keras_calibration.solvers.data_checks import check_rows

# Tolerance for the sum of soft labels, which may have been rounded to float32.
_LABEL_TOLERANCE = 1e-3
# Far beyond any meaningful logit; differences and products of such logits are still finite.
_LARGEST_LOGIT = 1e15


@dataclass(frozen=True)
class ClassRows:
    """Class logits (n, K) within ±1e15, label shares (n, K) and weights (n,), in float64.

    `num_rows` counts all rows given, including those of weight 0, which are usually left out.
    """

    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    num_rows: int


def check_class_rows(
    logits: ArrayLike,
    labels: ArrayLike,
    sample_weight: ArrayLike | None = None,
    keep_all: bool = False,
    both_classes: bool = True,
) -> ClassRows:
    """Class logits, labels and weights as checked arrays; raises a `ValueError` for invalid ones.

    Labels are class numbers (n,) or (n, 1), or one-hot or soft labels (n, K). Rows of weight 0 are
    left out unless `keep_all=True`. With `both_classes=True`, at least two classes must occur.
    """
    scores = np.asarray(logits, np.float64)
    if scores.ndim != 2 or scores.shape[1] < 2 or not len(scores):
        raise ValueError(
            "Argument `logits` must have shape (n, K), with at least 1 row and at least 2 classes. "
            f"Received: shape {scores.shape}. For one logit per row, use a binary calibrator, such "
            "as TemperatureScaling or PlattScaling."
        )
    if bad := np.flatnonzero(~np.isfinite(scores).all(axis=1)).tolist():
        raise ValueError(
            f"Logits must be finite. Received: {len(bad)} of {len(scores)} rows with other values, "
            f"the first being {scores[bad[0]]} in row {bad[0]}. Drop these rows, or check their "
            "features for missing values that the base model cannot handle."
        )
    shares = class_shares(labels, *scores.shape)
    weights = check_rows(np.zeros(len(scores)), None, sample_weight).weights
    weights = np.ones(len(scores)) if weights is None else weights
    counts = weights > 0
    present = np.flatnonzero(shares[counts].any(axis=0))
    if both_classes and len(present) < 2:
        raise ValueError(
            "Argument `labels` must hold at least two classes. Received: one class only, "
            f"{len(scores)} rows, all labels {present[0]} where the weight is above 0. Use more "
            "rows, or check how the labels are made."
        )
    kept = np.ones_like(counts) if keep_all else counts
    return ClassRows(
        np.clip(scores[kept], -_LARGEST_LOGIT, _LARGEST_LOGIT),
        shares[kept],
        weights[kept],
        len(scores),
    )


def class_shares(labels: ArrayLike, num_rows: int, num_classes: int) -> np.ndarray:
    """Class numbers or shares as shares of the classes, (n, K); raises for other labels."""
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
        expected = "rows of non-negative shares that add up to 1"
        shares = np.divide(shares, sums, out=np.zeros_like(shares), where=sums > 0)
    else:
        raise ValueError(
            f"Argument `labels` must be class numbers of shape ({num_rows},), or one-hot or soft "
            f"labels of shape ({num_rows}, {num_classes}). Received: shape {given.shape}. Pass one "
            "label per row."
        )
    if bad.any():
        (rows,) = np.nonzero(bad)
        raise ValueError(
            f"Labels must be {expected}. Received: {len(rows)} of {num_rows} rows with other "
            f"values, the first being {given[rows[0]]} in row {rows[0]}. Recode or drop these rows."
        )
    return shares
