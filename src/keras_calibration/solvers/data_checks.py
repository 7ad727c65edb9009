"""Checks of logits, labels and weights that are at hand as a whole, before anything is done."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_calibration.ops.losses import LARGEST_PROBABILITY, SMALLEST_PROBABILITY

_HANDFUL = 10
_LOOK_LIKE_PROBABILITIES = (
    "The logits look like probabilities: all are in [0, 1]. Received: {} A fit to probabilities is "
    "wrong for the logits that the layer is called on. Pass logits, log(p / (1 - p)); the fits of "
    "calibrators take probabilities with from_logits=False."
)
_SWAP_THEM = "All logits are 0 or 1: pass the logits first, then the labels."
_LOOK_SWAPPED = (
    "Logits and labels look swapped: all logits are 0 or 1, the labels are not. " + _SWAP_THEM
)


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
        are_swapped = np.isin(flat_logits, (0, 1)).all() and flat_logits.any()
        _refuse(
            ~((flat_labels >= 0) & (flat_labels <= 1)),
            flat_labels,
            "Labels must be in [0, 1]: 0 for negative, 1 for positive, or a share of positives.",
            _SWAP_THEM
            if are_swapped
            else "Recode them, for example as (labels > 0).astype('float32').",
        )
        if both_classes:
            _check_both_classes(flat_labels, weights)
    return Rows(flat_logits, flat_labels, weights)


def checked_logits(logits: Any, labels: Any, from_logits: bool) -> Any:
    """The logits of a fit, from probabilities where these are announced.

    Args:
        logits: Logits, or probabilities (n,) or (n, 1).
        labels: Labels of the same rows.
        from_logits: Whether they are logits.

    Returns:
        Logits of the same shape.

    Raises:
        ValueError: If probabilities are outside [0, 1].

    Warns:
        UserWarning: As `warn_of_probabilities`.

    Example:
        >>> checked_logits([0.5, 0.25], [0, 1], from_logits=False).round(4)
        array([ 0.    , -1.0986])
    """
    if from_logits:
        warn_of_probabilities(logits, labels, stacklevel=4)
        return logits
    inside = _probabilities(logits, LARGEST_PROBABILITY)
    return np.log(inside) - np.log1p(-inside)


def checked_class_logits(logits: Any, from_logits: bool) -> Any:
    """The class logits (n, K) of a fit, from probabilities where these are announced.

    Args:
        logits: Logits, or probabilities (n, K).
        from_logits: Whether they are logits.

    Returns:
        Logits of the same shape.

    Raises:
        ValueError: If probabilities are outside [0, 1].

    Warns:
        UserWarning: If logits look like probabilities: rows within [0, 1] that add up to 1.

    Example:
        >>> checked_class_logits([[0.5, 0.5]], from_logits=False).round(4)
        array([[-0.6931, -0.6931]])
    """
    if not from_logits:
        return np.log(_probabilities(logits, 1.0))
    values = np.asarray(logits)
    if len(values) > _HANDFUL and _are_within_unit(values):
        if np.allclose(values.sum(axis=1), 1.0, atol=1e-3):
            warnings.warn(_LOOK_LIKE_PROBABILITIES.format("All rows add up to 1."), stacklevel=3)
    return logits


def warn_of_probabilities(logits: Any, labels: Any = None, stacklevel: int = 3) -> None:
    """Warns where logits look like probabilities, or like labels that stand in their place.

    Args:
        logits: Logits (n,) or (n, 1).
        labels: Labels of the same rows, or None.
        stacklevel: As of `warnings.warn`.

    Warns:
        UserWarning: If all logits are in [0, 1], more than a handful of different ones, or if they
            are all 0 or 1 and the labels are not.
    """
    values = np.asarray(logits).reshape(-1)
    if not (values.size and values.dtype.kind in "iubf" and _are_within_unit(values)):
        return
    distinct = np.unique(values)
    if len(distinct) > _HANDFUL:
        seen = f"{len(distinct):,} values from {distinct[0]:g} to {distinct[-1]:g}."
        warnings.warn(_LOOK_LIKE_PROBABILITIES.format(seen), stacklevel=stacklevel)
    elif labels is not None and np.isin(distinct, (0, 1)).all() and len(distinct) == 2:
        others = np.unique(np.asarray(labels))
        # Labels outside [0, 1] are refused, with the same remedy.
        if len(others) > _HANDFUL and others[0] >= 0 and others[-1] <= 1:
            warnings.warn(_LOOK_SWAPPED, stacklevel=stacklevel)


def _are_within_unit(values: np.ndarray) -> bool:
    # The first rows tell of most logits that they are none.
    return all(part.min() >= 0 and part.max() <= 1 for part in (values[:100], values))


def _probabilities(values: Any, largest: float) -> np.ndarray:
    """Probabilities as float64, no nearer to 0 and 1 than float32 tells."""
    array = np.asarray(values, np.float64)
    if not ((array >= 0) & (array <= 1)).all():
        raise ValueError(
            "from_logits=False takes probabilities in [0, 1]. Received: values from "
            f"{array.min():g} to {array.max():g}. Leave it out for logits."
        )
    return np.clip(array, SMALLEST_PROBABILITY, largest)


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
