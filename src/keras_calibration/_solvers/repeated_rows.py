"""Rows that belong together: the rows of a group, and rows that a table holds several times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.segments import distinct_values

# Equal rows count as copies if chance alone would give different labels to at least this many
# groups, and at most this share of that number of groups have different labels.
_LEAST_EXPECTED, _MOST_OF_EXPECTED = 10, 0.1
# The logits of equal inputs in different batches differ by rounding.
_ROUNDING = 1e-6


def with_copies_grouped(rows: Rows) -> Rows:
    """The rows with their groups: the user's groups, or else `copies`, with a warning.

    A fold never divides a group, and a standard error takes it as one observation. All functions
    that draw folds call this, and only the first call looks for copies.
    """
    if rows.groups is not None:
        return rows
    group = copies(rows)
    if group is None:
        return replace(rows, groups=np.full(len(rows), -1))
    warn(
        f"The {rows.num_meant:,} rows of the development set are {group.max() + 1:,} different "
        f"rows, up to {np.bincount(group, rows.meant_counts).max():,.0f} times each: more inputs "
        "and labels are equal than by chance. "
        "Folds that are drawn keep equal rows together, and standard errors take them as one row. "
        "But the fit counts each. If a join has repeated them, drop the duplicates; to give rows a "
        "weight, pass sample_weight."
    )
    return replace(rows, groups=group)


def copies(rows: Rows) -> np.ndarray | None:
    """Groups of equal inputs, by row (n,), if their labels agree more than by chance; or None.

    Coarse columns make inputs equal by chance. Labels within a group then differ about as often as
    labels of neighbouring groups, and the rows are independent. A row with a count of 2 is two
    rows.

    Example:
        >>> x = np.random.default_rng(0).normal(size=200)
        >>> group = copies(Rows(np.tile(x, 2), np.tile(np.arange(200) % 2.0, 2), None))
        >>> bool((group[:200] == group[200:]).all())
        True
    """
    group = _group_equal_inputs(rows)
    weights = rows.meant_counts
    counts = np.bincount(group, weights)
    is_mixed, is_unlike = np.zeros((2, len(counts)), bool)
    # Independent rows of a group have different labels (`is_mixed`) about as often as neighbouring
    # groups do (`is_unlike`). Copies hardly ever do, as they repeat one outcome.
    for share in rows.shares.T:
        mean = np.bincount(group, weights * share) / np.maximum(counts, 1)
        is_mixed |= np.bincount(group, np.abs(share - mean[group])) > 1e-9
        is_unlike |= np.abs(mean - np.roll(mean, 1)) > 1e-9
    num_expected = np.count_nonzero(is_unlike & (counts > 1))
    are_rarely_mixed = is_mixed.sum() <= _MOST_OF_EXPECTED * num_expected
    return group if num_expected >= _LEAST_EXPECTED and are_rarely_mixed else None


def clusters_of(rows: Rows) -> np.ndarray | None:
    """The group of each row (n,); None if there are no groups, or none has two rows."""
    groups = rows.groups
    if groups is None or groups.min(initial=0) < 0 or len(np.unique(groups)) == rows.num_meant:
        return None
    return groups


def num_independent(rows: Rows) -> np.ndarray:
    """Number of rows with a share of each class (K,), or number of groups if rows have groups.

    Example:
        >>> rows = Rows(np.zeros(4), np.array([0, 1, 1, 0]), None, groups=np.array([0, 0, 0, 1]))
        >>> num_independent(rows)
        array([2, 1])
    """
    groups = clusters_of(rows)
    groups = np.arange(len(rows)) if groups is None else groups
    return np.array([len(np.unique(groups[share > 0])) for share in rows.shares.T])


def _group_equal_inputs(rows: Rows) -> np.ndarray:
    """Groups of equal logits, features and times, by row (n,), numbered by the logit."""
    logits = rows.logits.reshape(len(rows), -1)[:, 0]
    order = np.argsort(logits, kind="stable")
    group = np.zeros(len(rows), np.int64)
    group[order[1:]] = np.cumsum(np.diff(logits[order]) > _ROUNDING)
    columns = [*rows.features.values(), *([] if rows.times is None else [rows.times])]
    for column in (part for array in columns for part in array.reshape(len(rows), -1).T):
        # Every row is alone by now, which no further column can change.
        if group.max() == len(rows) - 1:
            break
        values = column if column.dtype.kind in "biuf" else distinct_values(column)[1]
        # Refine the groups: a pair of group and value becomes a number, and numbers are made small
        # again.
        codes = np.unique(values, return_inverse=True)[1]
        group = np.unique(group * len(rows) + codes, return_inverse=True)[1]
    return group
