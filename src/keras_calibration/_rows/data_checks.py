"""Checks of logits, labels and weights given as whole arrays, before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._columns import refuse_rows
from calibration_records._limits import SMALLEST_PROBABILITY
from calibration_records._predictions import check_probabilities
from calibration_records._warn import warn
from keras_calibration._rows.columns import as_array, numbers_of
from keras_calibration._rows.labels import label_advice

# What the sample weights of a fit are: known up to a common factor, or numbers of rows.
WEIGHTS_ARE = ("importance", "counts")

_HANDFUL = 10
# The logit of a probability of exactly 1; its negative is that of 0, and the class logit of 0.
_FARTHEST_LOGIT = -np.log(SMALLEST_PROBABILITY)
_LOOK_LIKE_PROBABILITIES = (
    "The logits look like probabilities: all are in [0, 1]. Received: {} A fit to probabilities is "
    "wrong, because the layer is called on logits. Pass logits, log(p / (1 - p)), or say what they "
    "are: from_logits=False to the head's own fit or to calibrate_scores, "
    'base_output="probability" to calibrate or CalibratedModel.'
)


@dataclass(frozen=True)
class Rows:
    """Logits (n,) or class logits (n, K), labels and weights (or None) of rows, in float64.

    Weights are numbers of rows (`counts_of`), and `unit` is the sample weight of one row.
    """

    logits: np.ndarray
    labels: Any  # None where the caller passed none
    weights: np.ndarray | None
    unit: float = 1.0

    @property
    def row_weights(self) -> np.ndarray:
        """The weights (n,), ones if there are none."""
        return np.ones(len(self.logits)) if self.weights is None else self.weights

    @property
    def num_effective(self) -> float:
        """How many rows of equal weight the weighted ones are worth."""
        weights = self.row_weights
        return float(weights.sum() ** 2 / (weights @ weights))

    def take(self, numbers: np.ndarray) -> Rows:
        """The rows with the given numbers."""
        labels, weights = (
            None if column is None else column[numbers] for column in (self.labels, self.weights)
        )
        return replace(self, logits=self.logits[numbers], labels=labels, weights=weights)


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
    if (weights := _checked_weights(sample_weight, num_rows)) is None:
        return None
    if weights_are == "counts":
        check_counts(weights)
        return np.rint(weights)
    used = weights > 0
    shares = weights / weights.max()
    if (shares[used] == 1).all():
        return used.astype(np.float64)
    return shares * (shares.sum() / (shares @ shares))


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


def _are_whole(weights: np.ndarray) -> np.ndarray:
    # A small weight is no count of 0.
    is_counted = (weights == 0) | (weights > 0.5)
    return is_counted & (np.abs(weights - np.rint(weights)) <= 1e-6 + 1e-12 * weights)


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


def are_counts(weights: np.ndarray | None) -> bool:
    """Whether weights, or sums of weights, are whole numbers: numbers of rows. None are.

    Example:
        >>> are_counts(np.array([1.0, 3.0])), are_counts(np.array([1.0, 2.5]))
        (True, False)
    """
    if weights is None:
        return True
    return bool(_are_whole(weights).all())


def shares_of_classes(labels: np.ndarray) -> np.ndarray:
    """The labels of `Rows` as shares of the classes (n, K), of two for labels (n,).

    Example:
        >>> shares_of_classes(np.array([1.0, 0.25])).tolist()
        [[0.0, 1.0], [0.75, 0.25]]
    """
    return labels if labels.ndim == 2 else np.stack([1 - labels, labels], axis=1)


def check_rows(
    logits: ArrayLike,
    labels: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    both_classes: bool = False,
) -> Rows:
    """Logits, labels and weights as flat checked arrays; raises a `ValueError` for invalid ones.

    With `both_classes=True`, both classes must have a positive weight.
    """
    flat_logits = _flat(logits, "logits")
    if not len(flat_logits):
        raise ValueError("The development set is empty. Pass at least one row of each class.")
    flat_labels = None if labels is None else _flat(labels, "labels", len(flat_logits))
    weights = _checked_weights(sample_weight, len(flat_logits))
    counts = None if weights is None else weights > 0
    refuse_rows(
        ~np.isfinite(flat_logits),
        flat_logits,
        "Logits must be finite.",
        "Check the features of these rows for missing values that the base model cannot handle.",
        counts,
    )
    if flat_labels is not None:
        counted = flat_labels if counts is None else flat_labels[counts]
        are_swapped = np.isin(flat_logits, (0, 1)).all() and flat_logits.any()
        refuse_rows(
            ~((flat_labels >= 0) & (flat_labels <= 1)),
            flat_labels,
            "Labels must be in [0, 1]: 0 for negative, 1 for positive, or a share of positives.",
            _look_swapped("logits") if are_swapped else label_advice(counted),
            counts,
        )
    rows = Rows(flat_logits, flat_labels, weights)
    if (numbers := rows_that_count(weights)) is not None:
        rows = replace(rows.take(numbers), weights=weights)
    if both_classes and flat_labels is not None:
        _check_both_classes(rows.labels, weights)
    return rows


def _checked_weights(sample_weight: ArrayLike | None, num_rows: int) -> np.ndarray | None:
    """Weights (n,), finite, not negative, not all 0."""
    if sample_weight is None:
        return None
    weights = _flat(sample_weight, "weights", num_rows)
    refuse_rows(
        ~(np.isfinite(weights) & (weights >= 0)),
        weights,
        "Sample weights must be finite and not negative.",
        "Drop these rows or give them weight 0.",
    )
    if not weights.any():
        raise ValueError("All sample weights are 0. At least one must be positive.")
    return weights


def is_of_classes(logits: ArrayLike) -> bool:
    """Whether logits are of K classes: (n, K), one column per class.

    Example:
        >>> is_of_classes(np.zeros((5, 3))), is_of_classes(np.zeros((5, 1)))
        (True, False)
    """
    shape = np.shape(logits)
    return len(shape) == 2 and shape[1] > 1


def checked_logits(
    logits: ArrayLike,
    labels: ArrayLike,
    from_logits: bool,
    sample_weight: ArrayLike | None = None,
) -> ArrayLike:
    """The logits of a fit, converted from probabilities with `from_logits=False`.

    Warns if they look like probabilities, or like the labels. Rows of weight 0 do not count.
    """
    values = columns_that_count({"logits": np.asarray(logits)}, sample_weight)["logits"]
    if from_logits:
        warn_of_probabilities(values, labels)
        return logits
    warn_if_swapped(labels, values, "probabilities", labels_first=False)
    check_probabilities(np.asarray(values, np.float64), "logits")
    return logits_of_probabilities(values)


def logits_of_probabilities(probabilities: np.ndarray, one_column: bool = False) -> np.ndarray:
    """Logits, float64, of probabilities (n,) or (n, 1), or of K classes (n, K), up to a constant.

    With `one_column=True`, several columns are no classes.

    Where p or 1 - p is below 2⁻⁵³ (1.1e-16), it is replaced by it.

    Example:
        >>> logits_of_probabilities(np.array([0, 1e-9, 1 - 1e-9, 1])).round(6)
        array([-36.736801, -20.723266,  20.723266,  36.736801])
    """
    given = np.asarray(probabilities, np.float64)
    if is_of_classes(probabilities) and not one_column:
        return np.log(np.maximum(given, SMALLEST_PROBABILITY))
    odds = np.maximum(given, SMALLEST_PROBABILITY) / np.maximum(1 - given, SMALLEST_PROBABILITY)
    return np.log(odds)


def warn_of_probabilities(logits: ArrayLike, labels: ArrayLike | None = None) -> None:
    """Warns if logits look like probabilities, or like labels passed in their place.

    Class logits do if all are in [0, 1] and every row has the sum 1.
    """
    values = np.asarray(logits)
    if not (values.size and values.dtype.kind in "iubf" and _are_within_unit(values)):
        return
    if is_of_classes(values):
        if len(values) > _HANDFUL and np.allclose(values.sum(axis=1), 1.0, atol=1e-3):
            warn(_LOOK_LIKE_PROBABILITIES.format("All rows add up to 1."))
        return
    distinct = np.unique(values)
    if len(distinct) > _HANDFUL:
        seen = f"{len(distinct):,} values from {distinct[0]:g} to {distinct[-1]:g}."
        warn(_LOOK_LIKE_PROBABILITIES.format(seen))
    elif labels is not None:
        warn_if_swapped(labels, values, "logits", labels_first=False)


def warn_of_contradicted_ends(rows: Rows) -> None:
    """Warns if probabilities of exactly 0 or 1 have labels that contradict them.

    Such rows are known by their logits, ±36.7, wherever these were computed. Rows whose labels
    agree cost nothing and move no fit; nor are there any to outweigh if all are exactly 0 or 1.

    Example:
        >>> warn_of_contradicted_ends(Rows(np.array([-1.0, 1.0]), np.array([1.0, 0.0]), None))
    """
    are_ends = np.abs(np.abs(rows.logits) - _FARTHEST_LOGIT) < 1e-4  # as float32 holds them
    ends = rows.take(np.flatnonzero(are_ends.reshape(len(are_ends), -1).any(axis=1)))
    are_certain = are_ends | (rows.logits == 0) if rows.logits.ndim == 2 else are_ends
    if are_certain.all():
        return  # Decisions, not votes: there are no other rows to outweigh.
    logits = ends.logits if ends.logits.ndim == 2 else np.stack([-ends.logits, ends.logits], axis=1)
    is_wrong = (logits < 1e-4 - _FARTHEST_LOGIT) & (shares_of_classes(ends.labels) > 0)
    if num_wrong := np.count_nonzero(is_wrong.any(axis=1) & (ends.row_weights > 0)):
        warn(
            f"{num_wrong:,} of {np.count_nonzero(rows.row_weights):,} rows have a probability of "
            "exactly 0 or 1, and a label that says otherwise. Each counts as a logit of ±36.7, of "
            "which a few outweigh all other rows. Smooth the votes of a forest, (k + ½) / (K + 1) "
            "for k of K votes, when fitting and when predicting; of other models, pass logits: a "
            "float32 probability is exactly 1 from a logit of 17 on."
        )


def warn_if_swapped(
    labels: ArrayLike,
    predictions: np.ndarray,
    what: str = "predictions",
    labels_first: bool = True,
) -> None:
    """Warns if labels and predictions look swapped: the predictions are 0 and 1, and no label is.

    `what` names the predictions, and `labels_first` tells the order of the arguments.

    Example:
        >>> warn_if_swapped(np.array([0, 1]), np.array([0.2, 0.7]))
    """
    if predictions.ndim > 1 and predictions.shape[1] != 1:
        return
    if not all(np.isin(part, (0, 1)).all() for part in (predictions[:100], predictions)):
        return
    distinct = np.unique(np.asarray(labels))
    # A fit refuses labels outside [0, 1], with the same remedy.
    is_refused = not labels_first and not (distinct[0] >= 0 and distinct[-1] <= 1)
    if len(np.unique(predictions)) == 2 and len(distinct) > _HANDFUL and not is_refused:
        warn(_look_swapped(what, labels_first))


def _look_swapped(what: str, labels_first: bool = False) -> str:
    order = f"labels first, then the {what}" if labels_first else f"{what} first, then the labels"
    return (
        f"Labels and {what} look swapped: all {what} are 0 or 1, but the labels are not. Pass the "
        f"{order}."
    )


def _are_within_unit(values: np.ndarray) -> bool:
    # For most logits, the first rows are enough to decide.
    return all(part.min() >= 0 and part.max() <= 1 for part in (values[:100], values))


def _flat(values: ArrayLike, name: str, num_rows: int | None = None) -> np.ndarray:
    array = numbers_of(values, name.capitalize()).astype(np.float64)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 1):
        raise ValueError(
            "Logits, labels and weights must have shape (n,) or (n, 1), one value per row. "
            f"Received: {name} of shape {array.shape}."
        )
    if num_rows is not None and len(array) != num_rows:
        raise ValueError(
            f"Logits and {name} must have the same number of rows. "
            f"Received: {num_rows} logits and {len(array)} {name}."
        )
    return array.reshape(-1)


def _check_both_classes(labels: np.ndarray, weights: np.ndarray | None) -> None:
    mean = float(np.average(labels, weights=weights))
    if mean in (0.0, 1.0):
        raise ValueError(
            f"Argument `labels` must hold both classes. Received: one class only, {len(labels)} "
            f"rows, all labels {mean:g} where the weight is above 0. Use more rows, or check how "
            "the labels are made."
        )
