"""Checks of logits, labels and weights that are at hand as a whole, before anything is done."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Rows:
    """Logits, labels and weights of the same rows, float64.

    Args:
        logits: Logits (n,); of classes (n, K).
        labels: Labels (n,), or None; of classes their shares (n, K).
        weights: Weights (n,), or None.
    """

    logits: np.ndarray
    labels: Any  # None where the caller asked for none
    weights: np.ndarray | None

    @property
    def row_weights(self) -> np.ndarray:
        """The weights, ones where there are none (n,)."""
        return np.ones(len(self.logits)) if self.weights is None else self.weights


def check_rows(
    logits: Any, labels: Any = None, sample_weight: Any = None, both_classes: bool = False
) -> Rows:
    """Flattens logits, labels and weights, and refuses what no calibration can be fitted on.

    Args:
        logits: Logits (n,) or (n, 1), finite.
        labels: Labels (n,) or (n, 1) in [0, 1], or None.
        sample_weight: Weights (n,) or (n, 1), not negative, or None.
        both_classes: Whether the labels must hold both classes (with a weight above 0).

    Returns:
        The rows as flat float64 arrays.

    Raises:
        ValueError: Saying what was received, what was expected and how to mend it.

    Example:
        >>> check_rows([[0.5], [1.0]], [0, 1]).logits
        array([0.5, 1. ])
    """
    flat_logits = _flat(logits, "logits")
    if not len(flat_logits):
        raise ValueError("The development set is empty. Expected at least one row of each class.")
    _refuse(
        ~np.isfinite(flat_logits),
        flat_logits,
        "Logits must be finite.",
        "Look at these rows' features for missing values that the base model cannot take.",
    )
    flat_labels = None if labels is None else _flat(labels, "labels", len(flat_logits))
    weights = None if sample_weight is None else _flat(sample_weight, "weights", len(flat_logits))
    if weights is not None:
        _refuse(
            ~(np.isfinite(weights) & (weights >= 0)),
            weights,
            "Sample weights must be finite and not negative.",
            "Drop these rows or give them weight 0.",
        )
        if not weights.any():
            raise ValueError("All sample weights are 0: no row counts. Pass some above 0.")
    if flat_labels is not None:
        _refuse(
            ~((flat_labels >= 0) & (flat_labels <= 1)),
            flat_labels,
            "Labels must be in [0, 1]: 0 for no click, 1 for a click, or a share of clicks.",
            "Recode them, for example as (labels > 0).astype('float32').",
        )
        if both_classes:
            _check_both_classes(flat_labels, weights)
    return Rows(flat_logits, flat_labels, weights)


def _flat(values: Any, name: str, num_rows: int | None = None) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 1):
        raise ValueError(
            f"Expected {name} of shape (n,) or (n, 1). Received: shape {array.shape}. "
            "Calibration is for one probability a row."
        )
    if num_rows is not None and len(array) != num_rows:
        raise ValueError(
            f"Logits and {name} must have the same number of rows. Received: {num_rows} logits and "
            f"{len(array)} {name}."
        )
    return array.reshape(-1)


def _refuse(bad: np.ndarray, values: np.ndarray, expected: str, remedy: str) -> None:
    if bad.any():
        rows = np.flatnonzero(bad)
        raise ValueError(
            f"{expected} Received: {len(rows)} of {len(values)} rows with other values, the first "
            f"being {values[rows[0]]} in row {rows[0]}. {remedy}"
        )


def _check_both_classes(labels: np.ndarray, weights: np.ndarray | None) -> None:
    mean = float(np.average(labels, weights=weights))
    if mean in (0.0, 1.0):
        raise ValueError(
            f"The development set holds one class only. Received: {len(labels)} rows, all labels "
            f"{mean:g} where the weight is above 0. Expected both classes: use more rows, or check "
            "the label rule."
        )
