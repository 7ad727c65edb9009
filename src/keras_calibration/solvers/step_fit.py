"""Fits of step functions of the logit, on the host: equal-mass bins, and pooled adjacent violators.

NumPy, float64. A rate of 0 or 1 has no finite logit: a step without a positive (or of nothing but
positives) counts as if it held half a positive (half a negative), a positive being worth the mean
weight of the rows. With equal weights that is the rate `½ / n` of a step of n rows.
"""

from dataclasses import dataclass

import numpy as np
import scipy.optimize

from keras_calibration.solvers.data_checks import Rows


@dataclass(frozen=True)
class TiedRows:
    """Rows summed over equal logits.

    Args:
        logits: The distinct logits of the rows that count (m,), increasing.
        weights: `Σ w` of each (m,), above 0.
        positives: `Σ w y` of each (m,).
        mean_weight: Mean weight of the rows that count: what one positive is worth.
    """

    logits: np.ndarray
    weights: np.ndarray
    positives: np.ndarray
    mean_weight: float

    def mean_log_loss(self, calibrated: np.ndarray) -> float:
        """The mean log loss, in nats a row, of calibrated logits (m,)."""
        loss_sum = self.positives @ np.logaddexp(0.0, -calibrated)
        loss_sum += (self.weights - self.positives) @ np.logaddexp(0.0, calibrated)
        return float(loss_sum / self.weights.sum())


@dataclass(frozen=True)
class Steps:
    """A function that is constant on groups of neighbouring logits.

    Args:
        first: Least logit of each step (s,), increasing.
        last: Greatest logit of each step (s,), before the next one's first.
        values: Calibrated logits (s,).
        sizes: How many distinct logits each holds (s,).
    """

    first: np.ndarray
    last: np.ndarray
    values: np.ndarray
    sizes: np.ndarray


def largest_logit(dtype: str) -> float:
    """What logits farther out count as: differences of two such are still finite.

    Args:
        dtype: The layer's dtype.

    Returns:
        A logit.
    """
    return 0.25 * float(np.finfo(dtype).max)


def tied_rows(rows: Rows, dtype: str) -> TiedRows:
    """Sums rows over logits that are equal in the dtype that the layer will see them in.

    Args:
        rows: The rows, checked. Those of weight 0 are left out.
        dtype: The layer's dtype.

    Returns:
        The sums.

    Example:
        >>> from keras_calibration.solvers.data_checks import check_rows
        >>> tied_rows(check_rows([2.0, 1.0, 2.0], [1, 0, 0]), "float32").positives
        array([0., 1.])
    """
    num_rows = len(rows.logits)
    weights = rows.row_weights
    labels = np.zeros(num_rows) if rows.labels is None else rows.labels
    largest = largest_logit(dtype)
    seen = np.clip(rows.logits, -largest, largest).astype(dtype)
    order = np.argsort(seen)
    if rows.weights is not None:
        order = order[weights[order] > 0]
    seen, labels, weights = seen[order], labels[order], weights[order]
    starts = np.flatnonzero(np.r_[True, seen[1:] > seen[:-1]])
    return TiedRows(
        seen[starts].astype(np.float64),
        np.add.reduceat(weights, starts),
        np.add.reduceat(weights * labels, starts),
        float(weights.mean()),
    )


def equal_mass_steps(rows: TiedRows, num_bins: int) -> Steps:
    """Bins of equal weight, as far as ties allow, with the logit of each bin's positive rate.

    Equal logits share a bin, the one that the middle of their weight falls into. Where ties leave
    a bin empty there are fewer steps.

    Args:
        rows: The rows.
        num_bins: Number of bins K.

    Returns:
        At most K steps.

    Example:
        >>> from keras_calibration.solvers.data_checks import check_rows
        >>> rows = check_rows(np.arange(8), [0, 0, 0, 1, 0, 1, 1, 1])
        >>> equal_mass_steps(tied_rows(rows, "float32"), 2).values.round(4)
        array([-1.0986,  1.0986])
    """
    middles = np.cumsum(rows.weights) - 0.5 * rows.weights
    bin_number = np.floor(middles * (num_bins / rows.weights.sum()))
    starts = np.flatnonzero(np.r_[True, np.diff(bin_number) > 0])
    positives, weights = (
        np.add.reduceat(rows.positives, starts),
        np.add.reduceat(rows.weights, starts),
    )
    half_positive = _half_positive(rows, weights)
    return _steps(rows, starts, np.clip(positives / weights, half_positive, 1 - half_positive))


def isotonic_steps(rows: TiedRows, max_num_steps: int) -> Steps:
    """The non-decreasing rates closest to the positives, in log loss and in squared error alike.

    Of the pooled blocks, the first one's rate may be 0 and the last one's 1. Half a positive is
    then put in, but no more than the neighbour's rate, so that the steps still do not fall.

    Args:
        rows: The rows.
        max_num_steps: Where more blocks than this come out, neighbours are pooled, equally many in
            each of `max_num_steps` groups but for one.

    Returns:
        At most `max_num_steps` steps, whose values do not fall.

    Example:
        >>> from keras_calibration.solvers.data_checks import check_rows
        >>> rows = check_rows(np.arange(4), [0, 1, 0, 1])
        >>> steps = isotonic_steps(tied_rows(rows, "float32"), 10)
        >>> steps.first, steps.last
        (array([0., 1., 3.]), array([0., 2., 3.]))
        >>> steps.values.round(4)
        array([0., 0., 0.])

    Reference:
        Zadrozny and Elkan, *Transforming classifier scores into accurate multiclass probability
        estimates*, KDD 2002.
    """
    pooled = scipy.optimize.isotonic_regression(rows.positives / rows.weights, weights=rows.weights)
    starts = pooled.blocks[:-1]
    if len(starts) > max_num_steps:
        starts = starts[np.arange(max_num_steps) * len(starts) // max_num_steps]
    positives, weights = (
        np.add.reduceat(rows.positives, starts),
        np.add.reduceat(rows.weights, starts),
    )
    half_positive = _half_positive(rows, weights)
    rates = np.maximum.accumulate(positives / weights)  # they rise but for rounding
    first, last = rates[0], rates[-1]
    if first == 0:
        rates[0] = min(half_positive[0], *rates[1:2])
    if last == 1:
        rates[-1] = max(1 - half_positive[-1], *rates[-2:-1])
    return _steps(rows, starts, rates)


def _half_positive(rows: TiedRows, weights: np.ndarray) -> np.ndarray:
    return np.minimum(0.5, 0.5 * rows.mean_weight / weights)


def _steps(rows: TiedRows, starts: np.ndarray, rates: np.ndarray) -> Steps:
    sizes = np.diff(np.r_[starts, len(rows.logits)])
    values = np.log(rates) - np.log1p(-rates)
    return Steps(rows.logits[starts], rows.logits[starts + sizes - 1], values, sizes)
