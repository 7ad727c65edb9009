"""Sample weights: their meaning, and which rows count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import one_of
from calibration_records._columns import check_same_rows, exact_array, refuse_rows
from calibration_records._warn import warn
from keras_calibration._rows.columns import flat_numbers

# What the sample weights of a fit are: known up to a common factor, or numbers of rows.
WEIGHTS_ARE = ("importance", "counts")


def counts_of(weights: np.ndarray, weights_are: str) -> tuple[np.ndarray, float]:
    """Sample weights (n,) above 0 as numbers of rows, for the fit, and the weight of one row.

    Counts stay as they are. Importances are known up to a common factor: the function scales them
    so that their sum is `(Σ w)² / Σ w²`, the number of rows of equal weight with the same
    information (Kish). Equal weights become ones, and priors, shrinkage and intervals do not depend
    on their unit.

    Example:
        >>> counts_of(np.array([2.0, 2.0]), "importance")
        (array([1., 1.]), 2.0)
        >>> counts_of(np.array([30.0, 10.0]), "importance")
        (array([1.2, 0.4]), 25.0)
        >>> counts_of(np.array([30.0, 10.0]), "counts")
        (array([30., 10.]), 1.0)
    """
    if weights_are == "counts":
        check_counts(weights)
        return np.rint(weights), 1.0
    # Dividing by the largest first keeps sums of squares within float64, in any unit.
    shares = weights / weights.max()
    if not (shares == 1).all():
        shares *= shares.sum() / (shares @ shares)
    return shares, float(weights.max() / shares.max())


def check_weights_are(weights_are: str, are_given: bool = True) -> None:
    """Raises unless the argument is a kind of weights; warns of counts without weights."""
    kinds = ": sample weights are importances, known up to a common factor, or counts of rows"
    one_of("weights_are", weights_are, WEIGHTS_ARE, also=kinds)
    if not are_given and weights_are == "counts":
        warn('weights_are="counts" has no effect without sample weights: each row counts once.')


def check_counts(weights: np.ndarray, what: str = "weights") -> None:
    """Raises unless weights, or sums of them, are whole numbers: numbers of rows."""
    if not are_counts(weights):
        raise ValueError(
            'With weights_are="counts", sample weights must be whole numbers. Received: '
            f"{what} such as {weights[~_are_whole(weights)][0]:g}. For importances, pass "
            'weights_are="importance".'
        )


def warn_of_weights(labels: np.ndarray, weights: np.ndarray) -> None:
    """Warns of importances (n,) that depend on the labels (n,) alone, or that look like counts."""
    # One weight for each class: the user most likely undoes a sampling, or balances classes.
    of_class = [weights[labels == label] for label in (0, 1)]
    are_two = all(len(part) and part.min() == part.max() for part in of_class)
    if are_two and sum(map(len, of_class)) == len(labels) and of_class[0][0] != of_class[1][0]:
        warn(
            f"The sample weights depend on the label alone: {of_class[0][0]:g} for negatives, "
            f"{of_class[1][0]:g} for positives. If they undo a sampling of the negatives, fit to "
            "the sample without weights, and use SamplingCorrection. If they are class weights, "
            "the calibrated rate will differ from that of the rows."
        )
    elif weights.max() > 1 and are_counts(weights) and weights.min() == 1:
        warn(
            "The sample weights look like counts of rows: all are whole numbers, from 1 to "
            f"{weights.max():g}. They are taken as importances. Pass "
            'weights_are="counts" if a row of weight 2 is two rows.'
        )


def are_counts(weights: np.ndarray | None) -> bool:
    """Whether weights, or sums of weights, are whole numbers: numbers of rows. True for None.

    Example:
        >>> are_counts(np.array([1.0, 3.0])), are_counts(np.array([1.0, 2.5]))
        (True, False)
    """
    return weights is None or bool(_are_whole(weights).all())


@dataclass(frozen=True)
class Counted:
    """The rows that count among the passed rows: every row with a weight above 0.

    Args:
        weights: Weights of the rows that count (n,), float64; None without weights.
        numbers: Numbers of these rows among the passed rows (n,); None if all rows count.
        num_given: The number of passed rows, if there are weights.
    """

    weights: np.ndarray | None = None
    numbers: np.ndarray | None = None
    num_given: int = 0

    def of(self, column: Any, name: str) -> Any:
        """Selects the rows that count before anything reads a column: others may hold anything.

        Example:
            >>> counted_rows([1.0, 0.0]).of([3, None], "'site'").tolist()
            [3]
        """
        # All rows count: nothing to select, and nothing to copy.
        if self.numbers is None or column is None:
            return column
        array = exact_array(column, name)
        sizes = {name.strip("'"): (*array.shape, 0)[0], "sample_weight": self.num_given}
        check_same_rows("Columns and weights", sizes)
        return array[self.numbers]


ALL = Counted()


def counted_rows(sample_weight: ArrayLike | None) -> Counted:
    """The rows that count; raises unless weights are finite, not negative, and not all 0."""
    if sample_weight is None:
        return Counted()
    weights = flat_numbers(sample_weight, "sample_weight")
    refuse_rows(
        ~(np.isfinite(weights) & (weights >= 0)),
        weights,
        "Argument `sample_weight` must be finite and not negative.",
        "Drop these rows.",
    )
    # Without rows of weight 0, no column needs a selection, which would copy it.
    if weights.all():
        return Counted(weights)
    if not weights.any():
        raise ValueError(
            "Argument `sample_weight` must be positive in a row or more. Received: weights of 0."
        )
    numbers = np.flatnonzero(weights)
    return Counted(weights[numbers], numbers, len(weights))


def _are_whole(weights: np.ndarray) -> np.ndarray:
    # A tiny weight would round to the count 0, and from 2⁵³ on, every float is a whole number:
    # neither is a count.
    is_counted = (weights == 0) | ((weights > 0.5) & (weights < 2.0**53))
    return is_counted & (np.abs(weights - np.rint(weights)) <= 1e-6 + 1e-12 * weights)
