"""Checks of class logits, labels and weights, before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._columns import refuse_rows
from calibration_records._warn import warn
from keras_calibration._rows.columns import numbers_of
from keras_calibration._rows.data_checks import Rows, check_rows, is_of_classes, rows_that_count
from keras_calibration._rows.labels import class_advice
from keras_calibration._rows.line import Line

# Tolerance for the sum of soft labels, which may have been rounded to float32.
_LABEL_TOLERANCE = 1e-3
# Differences and products of such logits are still finite.
_LARGEST_LOGIT = 1e100
# Classes that a warning names.
_MOST_NAMED = 10


@dataclass(frozen=True)
class ClassRows:
    """Class logits (n, K) within ±1e100, label shares (n, K) and weights (n,), in float64.

    `num_rows` counts all rows given, including those of weight 0, which are usually left out.
    """

    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    num_rows: int

    @property
    def present(self) -> np.ndarray:
        """Numbers of the classes that have a label of positive weight."""
        return np.flatnonzero(present_classes(self.labels, self.weights))

    @property
    def absent(self) -> np.ndarray:
        """Numbers of all other classes."""
        return np.flatnonzero(~present_classes(self.labels, self.weights))

    def seen(self, line: Line) -> ClassRows:
        """The same rows, with logits mapped by a line."""
        return replace(self, logits=line(self.logits))

    def with_classes(self, classes: np.ndarray) -> ClassRows:
        """The columns of the classes with these numbers."""
        columns = self.logits[:, classes], self.labels[:, classes]
        return ClassRows(*columns, self.weights, self.num_rows)


def check_class_rows(
    logits: ArrayLike,
    labels: ArrayLike,
    sample_weight: ArrayLike | None = None,
    keep_all: bool = False,
) -> ClassRows:
    """Class logits, labels and weights as checked arrays; raises a `ValueError` for invalid ones.

    Labels are class numbers (n,) or (n, 1), or one-hot or soft labels (n, K). Rows of weight 0 are
    left out unless `keep_all=True`. At least two classes must occur.
    """
    scores = np.asarray(logits, np.float64)
    if scores.ndim != 2 or scores.shape[1] < 2 or not len(scores):
        raise ValueError(
            "Argument `logits` must have shape (n, K), with at least 1 row and at least 2 classes. "
            f"Received: shape {scores.shape}. For one logit per row, use a binary calibrator, such "
            "as TemperatureScaling or PlattScaling."
        )
    weights = check_rows(np.zeros(len(scores)), None, sample_weight).weights
    counts = None if weights is None else weights > 0
    refuse_rows(
        np.asarray(~np.isfinite(scores).all(axis=1)),
        scores,
        "Logits must be finite.",
        "Drop these rows, or check their features for missing values that the base model cannot "
        "handle.",
        counts,
    )
    shares = class_shares(labels, len(scores), scores.shape[1], counts)
    if (numbers := rows_that_count(weights)) is not None:
        scores, shares = scores[numbers], shares[numbers]
    weights = np.ones(len(scores)) if weights is None else weights
    counts = weights > 0
    present = np.flatnonzero(shares[counts].any(axis=0))
    if len(present) < 2:
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


def check_rows_or_classes(
    logits: ArrayLike, labels: ArrayLike, sample_weight: ArrayLike | None
) -> Rows:
    """The checked rows of a fit: of one logit per row or of K classes, by the logits' columns."""
    if not is_of_classes(logits):
        return check_rows(logits, labels, sample_weight, both_classes=True)
    rows = check_class_rows(logits, labels, sample_weight, keep_all=True)
    return Rows(rows.logits, rows.labels, rows.weights)


def class_rows_of(rows: Rows) -> ClassRows:
    """Checked rows of K classes without those of weight 0, which are only counted."""
    return check_class_rows(rows.logits, rows.labels, rows.weights)


def class_shares(
    labels: ArrayLike, num_rows: int, num_classes: int, counts: np.ndarray | None = None
) -> np.ndarray:
    """Class numbers or shares as shares of the classes, (n, K); raises for other labels.

    Only rows that count, by default all, must have a label.
    """
    given = numbers_of(labels, "Labels")
    if given.shape in ((num_rows,), (num_rows, 1)):
        given = given.reshape(-1).astype(np.float64)
        bad = ~np.isin(given, np.arange(num_classes))
        expected = f"class numbers 0 … {num_classes - 1}"
        shares = np.eye(num_classes)[np.where(bad, 0, given).astype(np.intp)]
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
    advice = class_advice(given if counts is None else given[counts])
    refuse_rows(bad, given, f"Labels must be {expected}.", advice, counts)
    return shares


def present_classes(labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Whether each class has a label of positive weight, (K,).

    Example:
        >>> present_classes(np.eye(3)[[0, 2]], np.array([1.0, 0.0]))
        array([ True, False, False])
    """
    return np.asarray((labels if weights is None else labels[weights > 0]).any(axis=0))


def absent_classes(rows: Rows) -> list[int]:
    """Numbers of the classes without a label of positive weight; none for binary labels."""
    if rows.labels is None or rows.labels.ndim < 2:
        return []
    return np.flatnonzero(~present_classes(rows.labels, rows.weights)).tolist()


def warn_of_absent_classes(rows: Rows) -> None:
    """Warns if a class of labels (n, K) has no row, naming the classes."""
    if absent := absent_classes(rows):
        warn(
            f"The development set has no rows of {named_classes(absent)}, of "
            f"{rows.labels.shape[1]} classes. The fit cannot tell how often they occur: they are "
            "calibrated by the temperature of the other classes, and keep the mean probability "
            "that this gives them. Add rows of these classes."
        )


def named_classes(classes: list[int]) -> str:
    """Class numbers as words; of many, the first ones.

    Example:
        >>> named_classes([3]), named_classes([1, 4])
        ('class 3', 'classes 1, 4')
    """
    named = ", ".join(map(str, classes[:_MOST_NAMED]))
    more = f" and {len(classes) - _MOST_NAMED} more" if len(classes) > _MOST_NAMED else ""
    return f"class{'es' if len(classes) > 1 else ''} {named}{more}"


def keep_absent_classes(
    labels: np.ndarray, probabilities: np.ndarray, present: np.ndarray
) -> np.ndarray:
    """Labels (n, K) in which every class that is not present has its probability as its share.

    Training on them leaves the probabilities of these classes as they are. Without, it would drive
    them to 0.

    Example:
        >>> keep_absent_classes(np.array([[1.0, 0.0]]), np.array([[0.8, 0.2]]), np.array([1, 0]))
        array([[0.8, 0.2]])
    """
    kept = np.where(present, 0.0, probabilities)
    return (1 - kept.sum(axis=1, keepdims=True)) * labels + kept
