"""Labels: class numbers as shares, and advice for invalid labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import refused
from calibration_records._columns import numbers_of, refuse_rows

_MISSING_LABELS = (
    "Missing labels are not negative: drop these rows, give them weight 0, or wait for their "
    "labels."
)
_MOST_CLASSES = 1000
_MINUS_1 = "If -1 stands for a missing label, drop these rows or give them weight 0."
# Advice for invalid labels. The first code that explains all values gives it, from the most special
# to the most general.
_ADVICE = (
    ((-1, 0), _MINUS_1),
    ((-1, 1), "Recode -1 and 1, for example as (labels + 1) / 2."),
    ((-1, 0, 1), _MINUS_1),
    ((1, 2), "Recode 1 and 2, for example as labels - 1."),
    (
        tuple(range(-1, _MOST_CLASSES)),
        "Numbers of classes need one logit per class, shape (n, K); for one class k against all "
        "others, pass labels == k. A -1 that stands for a missing label needs weight 0.",
    ),
)
_OTHERS = "Recode them, or pass shares of positives between 0 and 1."
# Tolerance for the sum of soft labels, which may have been rounded to float32.
_LABEL_TOLERANCE = 1e-3


def class_shares(
    labels: ArrayLike,
    num_rows: int,
    num_classes: int,
    numbers: np.ndarray | None,
    argument: str = "labels",
) -> np.ndarray:
    """Class numbers or shares as shares (n, K); messages name rows by their `numbers`."""
    values = numbers_of(labels, argument)
    if values.shape in ((num_rows,), (num_rows, 1)):
        values = values.reshape(-1).astype(np.float64)
        # Invalid numbers become class 0 for now; `refuse_rows` reports them below.
        bad = ~np.isin(values, np.arange(num_classes))
        expected = f"class numbers 0 … {num_classes - 1}"
        shares = np.eye(num_classes)[np.where(bad, 0, values).astype(np.intp)]
    elif values.shape == (num_rows, num_classes):
        shares = values.astype(np.float64)
        # Shares may be rounded to float32: accept sums near 1, and divide by them.
        sums = shares.sum(axis=1, keepdims=True)
        bad = ~((shares >= 0).all(axis=1) & (np.abs(sums[:, 0] - 1) <= _LABEL_TOLERANCE))
        expected = "rows of non-negative shares that add up to 1"
        shares = np.divide(shares, sums, out=np.zeros_like(shares), where=sums > 0)
    else:
        expected = f"class numbers ({num_rows},) or soft labels ({num_rows}, {num_classes})"
        raise refused(argument, expected, values.shape, "Pass one label per row.")
    refuse_rows(
        bad,
        values,
        f"Argument `{argument}` must be {expected}.",
        _MISSING_LABELS if np.isnan(values).any() else "Recode or drop these; numbers start at 0.",
        numbers,
    )
    return shares


def label_advice(labels: np.ndarray) -> str:
    """How to correct labels outside [0, 1], by their values.

    Example:
        >>> label_advice(np.array([-1.0, 1.0]))
        'Recode -1 and 1, for example as (labels + 1) / 2.'
        >>> label_advice(np.array([1.0, 0.0, np.nan]))[:34]
        'Missing labels are not negative: d'
    """
    # The values themselves show which convention the labels follow.
    distinct = np.unique(labels[~np.isnan(labels)])
    advice = [_MISSING_LABELS] if np.isnan(labels).any() else []
    if ((distinct < 0) | (distinct > 1)).any():
        advice += [next((text for code, text in _ADVICE if np.isin(distinct, code).all()), _OTHERS)]
    return " ".join(advice)
