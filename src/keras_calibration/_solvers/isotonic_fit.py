"""Isotonic regression of the labels on the logit, as a step function.

A rate of 0 or 1 has no finite logit. A step without positives therefore counts as if it held half a
positive, and a step without negatives half a negative: the rate `½ / n` for a step of n rows.
"""

import numpy as np
import scipy.optimize

from keras_calibration._rows.rows import Rows


def tied_rows(rows: Rows, dtype: str) -> Rows:
    """One row for all that are equal in the dtype of the layer, in the order of the logits."""
    # Clipped so that differences of two logits are still finite.
    largest = 0.25 * float(np.finfo(dtype).max)
    seen = np.clip(rows.logits, -largest, largest).astype(dtype)
    order = np.argsort(seen)
    columns = (seen, rows.labels, rows.row_weights)
    seen, labels, weights = (column[order] for column in columns)
    # A step function cannot tell equal logits apart, so they count as one row with their mean
    # label.
    starts = np.flatnonzero(np.r_[True, seen[1:] > seen[:-1]])
    sums = np.add.reduceat(weights, starts)
    positives = np.add.reduceat(weights * labels, starts)
    return Rows(seen[starts].astype(np.float64), positives / sums, sums)


def isotonic_steps(rows: Rows, max_num_steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Isotonic regression: the non-decreasing rates closest to the labels, as steps.

    The same rates minimise log loss and squared error. The first block may have the rate 0 and the
    last the rate 1: half a positive or negative is then added, up to the rate of the neighbour, so
    the steps still do not decrease. If there are more than `max_num_steps` blocks, neighbours are
    merged into groups of equal size (except for one).

    Returns:
        The first and the last logit of each step, and its value.

    Reference:
        Zadrozny and Elkan, *Transforming classifier scores into accurate multiclass probability
        estimates*, KDD 2002.
    """
    weights = rows.row_weights
    # Pool adjacent violators.
    pooled = scipy.optimize.isotonic_regression(rows.labels, weights=weights)
    starts = pooled.blocks[:-1]
    if len(starts) > max_num_steps:
        starts = starts[np.arange(max_num_steps) * len(starts) // max_num_steps]
    positives = np.add.reduceat(weights * rows.labels, starts)
    weights = np.add.reduceat(weights, starts)
    half_positive = np.minimum(0.5, 0.5 / weights)
    rates = np.maximum.accumulate(positives / weights)  # removes decreases due to rounding
    # Half a positive in a step without any, but not more than the rate of its neighbour.
    if rates[0] == 0:
        rates[0] = min(half_positive[0], *rates[1:2])
    if rates[-1] == 1:
        rates[-1] = max(1 - half_positive[-1], *rates[-2:-1])
    ends = np.append(starts[1:], len(rows.logits)) - 1
    return rows.logits[starts], rows.logits[ends], np.log(rates) - np.log1p(-rates)
