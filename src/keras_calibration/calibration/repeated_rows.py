"""Rows that a development set holds several times, after a join gone wrong or oversampling."""

from __future__ import annotations

import numpy as np

from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.segments import distinct_values

# Rows count as copies if chance would give different labels to at least this many groups, and at
# most this share of that number have them.
_LEAST_EXPECTED, _MOST_OF_EXPECTED = 10, 0.1
# The logits of equal inputs in different batches differ by rounding.
_ROUNDING = 1e-6


def copies(rows: Rows) -> np.ndarray | None:
    """Groups of equal inputs, by row (n,), if their labels agree more than by chance; or None.

    Coarse columns make inputs equal by chance. The labels of a group then differ about as often as
    those of neighbouring groups, and the rows are independent.

    Example:
        >>> import warnings
        >>> x = np.random.default_rng(0).normal(size=200)
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     group = copies(Rows(np.tile(x, 2), np.tile(np.arange(200) % 2.0, 2), None))
        >>> bool((group[:200] == group[200:]).all())
        True
    """
    group = _equal_inputs(rows)
    counts = np.bincount(group)
    is_mixed, is_unlike = np.zeros(len(counts), bool), np.zeros(len(counts), bool)
    for share in rows.shares.T:
        mean = np.bincount(group, share) / counts
        is_mixed |= np.bincount(group, np.abs(share - mean[group])) > 1e-9
        is_unlike |= np.abs(mean - np.roll(mean, 1)) > 1e-9
    num_expected = np.count_nonzero(is_unlike & (counts > 1))
    if num_expected < _LEAST_EXPECTED or is_mixed.sum() > _MOST_OF_EXPECTED * num_expected:
        return None
    warn(
        f"The {len(group):,} rows of the development set are {len(counts):,} different rows, up to "
        f"{counts.max():,} times each: more inputs and labels are equal than by chance. Folds that "
        "are drawn keep equal rows together, but all standard errors take them as independent. If "
        "a join has repeated them, drop the duplicates; to give rows a weight, pass sample_weight."
    )
    return group


def _equal_inputs(rows: Rows) -> np.ndarray:
    """Groups of equal logits, features and times, by row (n,), numbered by the logit."""
    logits = rows.logits.reshape(len(rows), -1)[:, 0]
    order, group = np.argsort(logits, kind="stable"), np.zeros(len(rows), np.int64)
    group[order[1:]] = np.cumsum(np.diff(logits[order]) > _ROUNDING)
    columns = [*rows.features.values(), *([] if rows.times is None else [rows.times])]
    for column in (part for array in columns for part in array.reshape(len(rows), -1).T):
        if group.max() == len(rows) - 1:
            break
        values = column if column.dtype.kind in "biuf" else distinct_values(column)[1]
        codes = np.unique(values, return_inverse=True)[1]
        group = np.unique(group * len(rows) + codes, return_inverse=True)[1]
    return group
