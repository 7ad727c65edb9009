"""What is said of labels that are none: missing, of another coding, or of several classes."""

from __future__ import annotations

import numpy as np

MISSING_LABELS = (
    "Missing labels are not negative: drop these rows, give them weight 0, or wait for their "
    "labels (LabelDelay, if positives come late)."
)
_MINUS_1 = "If -1 stands for a missing label, drop these rows or give them weight 0."
_MOST_CLASSES = 1000


def label_advice(labels: np.ndarray) -> str:
    """How to mend labels of which some are not in [0, 1], by what they look like.

    Example:
        >>> label_advice(np.array([-1.0, 1.0]))
        'Recode -1 and 1, for example as (labels + 1) / 2.'
        >>> label_advice(np.array([1.0, 0.0, np.nan]))[:34]
        'Missing labels are not negative: d'
    """
    is_missing = np.isnan(labels)
    found = np.unique(labels[~is_missing])
    outside = found[(found < 0) | (found > 1)]
    advice = [MISSING_LABELS] if is_missing.any() else []
    if not len(outside):
        return " ".join(advice)
    are_whole = bool(np.isin(found, np.arange(-1, _MOST_CLASSES)).all())
    if np.isin(found, (-1, 1)).all():
        recode = "Recode -1 and 1, for example as (labels + 1) / 2."
        advice.append(recode if 1 in found else _MINUS_1)
    elif np.isin(found, (-1, 0, 1)).all():
        advice.append(_MINUS_1)
    elif np.isin(found, (1, 2)).all():
        advice.append("Recode 1 and 2, for example as labels - 1.")
    elif are_whole and len(found) > 2:
        advice += [_MINUS_1] if found[0] < 0 else []
        advice.append(
            "Numbers of classes need one logit per class, shape (n, K); for one class k against "
            "all others, pass labels == k."
        )
    else:
        advice.append("Recode them, or pass shares of positives between 0 and 1.")
    return " ".join(advice)


def class_advice(labels: np.ndarray) -> str:
    """How to mend labels of K classes of which some are none.

    Example:
        >>> class_advice(np.array([1.0, 2.0, 3.0]))
        'Recode or drop these rows. Class numbers start at 0.'
    """
    if np.isnan(labels).any():
        return MISSING_LABELS
    if labels.ndim == 1 and (labels == -1).any():
        return _MINUS_1
    start = " Class numbers start at 0." if labels.ndim == 1 and labels.min() == 1 else ""
    return f"Recode or drop these rows.{start}"
