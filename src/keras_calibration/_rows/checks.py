"""Checks of arrays of logits, labels and weights, before anything is computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import truth
from calibration_records._columns import check_same_rows, numbers_of, refuse_rows
from calibration_records._limits import SMALLEST_PROBABILITY, SUM_TOLERANCE
from calibration_records._predictions import check_probabilities
from calibration_records._warn import warn
from keras_calibration._rows.columns import flat_numbers, refuse_beyond_float32
from keras_calibration._rows.labels import class_shares, label_advice
from keras_calibration._rows.rank_auc import rank_auc
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import ALL, Counted

_HANDFUL = 10
# The logit of a probability of exactly 1. A probability of 0 has its negative, as a logit and as a
# class logit.
_FARTHEST_LOGIT = -np.log(SMALLEST_PROBABILITY)
_LOOK_LIKE_PROBABILITIES = (
    "The logits look like probabilities: all are in [0, 1]. Received: {} A head needs logits. Pass "
    "logits, log(p / (1 - p)), or from_logits=False to the head's `fit` or to calibrate_scores, or "
    'base_output="probability" to CalibratedModel.'
)
# The AUC, and the standard deviations below 1/2, from which on an order is called turned round.
_TURNED_ROUND, _FAR = 0.45, 4


def check_rows(
    scores: ArrayLike,
    labels: ArrayLike | None = None,
    counted: Counted = ALL,
    both_classes: bool = False,
    from_logits: bool = True,
    argument: str = "logits",
    labels_argument: str = "labels",
) -> Rows:
    """Scores, labels and weights as arrays; raises for invalid ones.

    Scores (n, K) are of K classes, with labels as class numbers or shares. Warns of logits that
    look like probabilities or labels.

    Args:
        scores: Logits, or probabilities, of the rows that count.
        labels: Their labels, or None.
        counted: The weights of the rows, and their numbers among the passed rows.
        both_classes: Whether the rows must be of all classes.
        from_logits: Whether the scores are logits.
        argument: The user's name for the scores.
        labels_argument: The user's name for the labels.
    """
    truth("from_logits", from_logits)
    numbers, weights = counted.numbers, counted.weights
    read = numbers_of(scores, argument) if is_of_classes(scores) else flat_numbers(scores, argument)
    read = np.asarray(read, np.float64)
    if not len(read):
        raise ValueError("The development set is empty. Pass at least one row of each class.")
    columns = {argument: read, labels_argument: labels, "sample_weight": weights}
    check_same_rows(
        "Scores, labels and weights",
        {name: (*np.shape(c), 0)[0] for name, c in columns.items() if c is not None},
    )
    if from_logits:
        is_finite = np.isfinite(read.reshape(len(read), -1)).all(axis=1)
        refuse_rows(
            np.asarray(~is_finite),
            read,
            f"Argument `{argument}` must be finite.",
            "Check these rows for missing features.",
            numbers,
        )
        refuse_beyond_float32(read, f"Argument `{argument}`")
    else:
        check_probabilities(read, argument)
        refuse_rows(
            np.asarray(is_of_classes(read) and np.abs(read.sum(axis=1) - 1) > SUM_TOLERANCE),
            read,
            f"Argument `{argument}` must hold rows of probabilities that add up to 1.",
            "Divide each row by its sum, or pass logits, with from_logits=True.",
            numbers,
        )
    logits = read if from_logits else logits_of_probabilities(read)
    # All later code computes on logits; probabilities were only the user's form.
    shares = None if labels is None else _read_shares(labels, logits, numbers, labels_argument)
    rows = Rows(logits, shares, weights, numbers=numbers)
    if both_classes and labels is not None:
        refuse_absent_classes(
            rows.shares.sum(axis=0), counted.num_given or len(rows), labels_argument
        )
    if from_logits:
        _warn_of_probabilities(read, rows.labels)
    else:
        warn_if_swapped(rows.labels, read, "probabilities")
    return rows


def _read_shares(
    labels: ArrayLike, scores: np.ndarray, numbers: np.ndarray | None, argument: str
) -> np.ndarray:
    """Labels (n,) in [0, 1], or class shares (n, K); raises for invalid ones."""
    if scores.ndim == 2:
        return class_shares(labels, len(scores), scores.shape[1], numbers, argument)
    shares = flat_numbers(labels, argument)
    if (bad := ~((shares >= 0) & (shares <= 1))).any():
        # Labels outside [0, 1] with scores of 0 and 1 are most likely scores and labels swapped.
        are_swapped = np.isin(scores, (0, 1)).all() and scores.any()
        advice = _describe_swap("logits") if are_swapped else label_advice(shares)
        expected = "in [0, 1]: 0 for negative, 1 for positive, or a share between"
        refuse_rows(bad, shares, f"Argument `{argument}` must be {expected}.", advice, numbers)
    return shares


def refuse_absent_classes(totals: ArrayLike, num_rows: float, argument: str = "labels") -> None:
    """Raises unless every class has rows, from the sums of their weights (K,)."""
    absent = np.flatnonzero(np.asarray(totals) <= 0)
    if len(absent):
        # One logit has two totals, of negatives and of positives.
        is_one = np.size(totals) == 2
        named = ", ".join(map(str, absent[:_HANDFUL]))
        raise ValueError(
            f"Argument `{argument}` must hold {'both' if is_one else f'all {np.size(totals)}'} "
            "classes where the weight is above 0. Received: "
            f"{'one class only, ' * is_one}{num_rows:g} rows, none of them of class {named}. Use "
            "more rows, or check how labels are made."
        )


def is_of_classes(logits: ArrayLike) -> bool:
    """Whether logits are of K classes: (n, K), one column per class.

    Example:
        >>> is_of_classes(np.zeros((5, 3))), is_of_classes(np.zeros((5, 1)))
        (True, False)
    """
    shape = np.shape(logits)
    return len(shape) == 2 and shape[1] > 1


def logits_of_probabilities(probabilities: np.ndarray, one_column: bool = False) -> np.ndarray:
    """Logits, float64, of probabilities (n,) or (n, 1), or of K classes (n, K), up to a constant.

    With `one_column=True`, columns are not classes. A p or 1 - p below 2⁻⁵³ (1.1e-16) counts as
    2⁻⁵³.

    Example:
        >>> logits_of_probabilities(np.array([0, 1e-9, 1 - 1e-9, 1])).round(6)
        array([-36.736801, -20.723266,  20.723266,  36.736801])
    """
    # Clip both p and 1 - p, so that 0 and 1 get finite logits, and all others keep their digits.
    p = np.asarray(probabilities, np.float64)
    if is_of_classes(probabilities) and not one_column:
        return np.log(np.maximum(p, SMALLEST_PROBABILITY))
    return np.log(np.maximum(p, SMALLEST_PROBABILITY) / np.maximum(1 - p, SMALLEST_PROBABILITY))


def _warn_of_probabilities(logits: np.ndarray, labels: np.ndarray | None) -> None:
    """Warns if logits look like probabilities, or like labels passed in their place.

    Class logits look so if all are in [0, 1] and every row has the sum 1.
    """
    if logits.min() < 0 or logits.max() > 1:
        return
    if is_of_classes(logits):
        if len(logits) > _HANDFUL and np.allclose(logits.sum(axis=1), 1.0, atol=1e-3):
            warn(_LOOK_LIKE_PROBABILITIES.format("All rows add up to 1."))
        return
    distinct = np.unique(logits)
    # Many values in [0, 1] are probabilities; a handful may be labels.
    if len(distinct) > _HANDFUL:
        seen = f"{len(distinct):,} values from {distinct[0]:g} to {distinct[-1]:g}."
        warn(_LOOK_LIKE_PROBABILITIES.format(seen))
    elif labels is not None:
        warn_if_swapped(labels, logits, "logits")


def warn_of_contradicted_ends(rows: Rows) -> None:
    """Warns if probabilities of exactly 0 or 1 have labels that contradict them.

    A probability of exactly 0 or 1 has a logit of ±36.7, whoever computed it. Rows whose labels
    agree with it do not move a fit. If all probabilities are exactly 0 or 1, such rows have no
    others to outweigh, and there is no warning.

    Example:
        >>> warn_of_contradicted_ends(Rows(np.array([-1.0, 1.0]), np.array([1.0, 0.0]), None))
    """
    if max(-rows.logits.min(), rows.logits.max()) < _FARTHEST_LOGIT - 1:
        return
    # A probability of 0 has the logit -36.7; with one logit, a probability of 1 has +36.7.
    of_classes = rows.logits.ndim == 2
    least = rows.logits if of_classes else -np.abs(rows.logits)
    are_ends = np.abs(least + _FARTHEST_LOGIT) < 1e-4  # as float32 holds them
    are_certain = are_ends | (rows.logits == 0) if of_classes else are_ends
    if not are_ends.any() or are_certain.all():
        return
    # The weight of the label on the outcome that has the probability 0.
    missed = rows.labels if of_classes else np.where(rows.logits < 0, rows.labels, 1 - rows.labels)
    is_wrong = (are_ends & (missed > 0)).reshape(len(rows), -1).any(axis=1)
    if num_wrong := np.count_nonzero(is_wrong):
        # Half a vote for each class keeps the sum of a row at 1.
        warn(
            f"{num_wrong:,} of {len(rows):,} rows have a probability of exactly 0 or 1, and a "
            "label that contradicts it. Each counts as a logit of ±36.7; a few outweigh all other "
            "rows. Smooth the votes of a forest, (k + ½) / "
            f"({'V + K / 2' if of_classes else 'V + 1'}) for k of V votes; for other models, pass "
            "logits: float32 probabilities are exactly 1 for logits above 17."
        )


def warn_if_turned_round(rows: Rows) -> None:
    """Warns if negatives have higher logits than positives, far beyond chance."""
    if rows.logits.ndim == 2:
        return
    weights = rows.row_weights
    rate = np.average(rows.labels, weights=weights)
    # A covariance above 0 shows cheaply that the order is right, which it mostly is; only otherwise
    # is the AUC worth a sort. Scaled logits keep the products finite.
    logits = rows.logits / max(np.abs(rows.logits).max(), 1)
    if np.average((rows.labels - rate) * logits, weights=weights) >= 0:
        return
    auc = rank_auc(rows.labels, rows.logits, weights)
    # Mann-Whitney: without any relation, the AUC is ½ with variance `1 / (12 n r (1 - r))`.
    deviation = 1 / np.sqrt(12 * rows.num_effective * rate * (1 - rate))
    if auc < _TURNED_ROUND and auc < 0.5 - _FAR * deviation:
        warn(
            f"The scores rank the labels the wrong way round: their AUC is {auc:.2f}. No method "
            "turns an order round. If they are probabilities of the other class, pass 1 - p; if "
            "they fall with the probability, as distances do, pass -scores; or turn the labels."
        )


def are_0_or_1(values: np.ndarray) -> bool:
    """Whether all values are 0 or 1, in any dtype: `np.isin` does not take bfloat16.

    Example:
        >>> are_0_or_1(np.array([0.0, 1.0])), are_0_or_1(np.array([0.5]))
        (True, False)
    """
    return bool(((values == 0) | (values == 1)).all())


def warn_if_swapped(labels: ArrayLike, predictions: np.ndarray, what: str = "predictions") -> None:
    """Warns if labels and predictions look swapped: the predictions are 0 and 1, and no label is.

    `what` names the predictions. They are the first argument of a fit; elsewhere, labels are.

    Example:
        >>> warn_if_swapped(np.array([0, 1]), np.array([0.2, 0.7]))
    """
    # The first rows mostly show that predictions are not 0 and 1, and then no others are read.
    if is_of_classes(predictions) or not all(map(are_0_or_1, (predictions[:100], predictions))):
        return
    if len(np.unique(predictions)) == 2 and len(np.unique(np.asarray(labels))) > _HANDFUL:
        warn(_describe_swap(what))


def _describe_swap(what: str) -> str:
    first, second = ("labels", what) if what == "predictions" else (what, "labels")
    return (
        f"Labels and {what} look swapped: all {what} are 0 or 1, but the labels are not. Pass the "
        f"{first} first, then the {second}."
    )
