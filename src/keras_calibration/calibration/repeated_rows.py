"""Rows that a development set holds several times, after a join gone wrong or oversampling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.segments import distinct_values

# Different rows with equal inputs differ in their labels as often as chance has it. If so many of
# them should, and at most this share of those does, they are the same rows.
_LEAST_EXPECTED, _MOST_OF_EXPECTED = 10.0, 0.1
_NUM_BINS = 20
# If every row is there twice, say, by chance, so are so many different ones with odds of 1 to 2^20.
_LEAST_DIFFERENT = 20
# The logits of equal inputs differ by rounding, if these are in different batches.
_ROUNDING = 1e-4


def distinct_rows(rows: Rows) -> Rows:
    """The different rows of a development set, weighted by how often each is there.

    Rows are the same if their inputs and labels are equal although different rows would not be: if
    the labels of equal inputs hardly ever differ, or every row is there the same number of times.
    Rows of few values, such as scores in whole points, are equal by chance and stay.

    The weights are scaled so that their sum counts the rows: of rows that are there equally often,
    each counts as one.

    Args:
        rows: The rows, with all inputs of the model as features.

    Returns:
        The different rows. Warns if there are fewer of them.

    Example:
        >>> import warnings
        >>> x = np.repeat(np.random.default_rng(0).normal(size=200), 3)
        >>> rows = Rows(x, (x > 0).astype(float), None, {"x": x})
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     distinct = distinct_rows(rows)
        >>> len(distinct), distinct.weights
        (200, None)
    """
    group = _equal_rows(rows)
    if group is not None and not _are_repeated(group, rows):
        group = _copies(group, rows)
    if group is None:
        return rows
    _, numbers, group = np.unique(group, return_index=True, return_inverse=True)
    order = np.argsort(numbers)  # in the order of the rows
    numbers = numbers[order]
    merged = replace(rows.take(numbers), weights=np.bincount(group, rows.row_weights)[order])
    weights = merged.row_weights * (merged.num_effective / rows.num_effective)
    is_even = rows.weights is None and np.allclose(weights, 1.0)
    merged = replace(merged, weights=None if is_even else weights)
    warn(
        f"The {len(group):,} rows of the development set are {len(numbers):,} different rows, up "
        f"to {np.bincount(group).max():,} times each: more inputs and labels are equal than by "
        f"chance. They are used as {len(numbers):,} rows, weighted by how often each is there. If "
        "a join has repeated them, drop the duplicates; to give rows a weight, pass sample_weight.",
    )
    return merged


def _equal_rows(rows: Rows) -> np.ndarray | None:
    """The group of each row (n,), of rows with equal inputs; None if no inputs are equal."""
    number = len(rows)
    group = np.arange(number)
    logit = rows.logits.reshape(number, -1)[:, 0]
    order = np.argsort(logit, kind="stable")
    starts = np.diff(logit[order], prepend=-np.inf) > _ROUNDING
    group[order] = order[starts][np.cumsum(starts) - 1]
    # Columns of one value a row take the least time, and mostly tell the rows apart.
    columns = [*rows.features.values(), *([] if rows.times is None else [rows.times])]
    for column in sorted(columns, key=lambda each: int(np.prod(each.shape[1:]))):
        sizes = np.bincount(group, minlength=number)
        tied = np.flatnonzero(sizes[group] > 1)
        if not len(tied):
            return None
        values = column[tied].reshape(len(tied), -1)
        if values.dtype.kind == "O":  # strings, which have no bytes of their own
            values = distinct_values(values)[1].reshape(values.shape)
        if values.shape[1] != 1:
            values = np.ascontiguousarray(values)
            values = values.view(np.dtype((np.void, values.strides[0] or 1)))
        _, codes = np.unique(values[:, 0], return_inverse=True)
        pairs = group[tied] * number + codes.reshape(-1)
        _, first, place = np.unique(pairs, return_index=True, return_inverse=True)
        group[tied] = tied[first][place]
    return group if len(np.unique(group)) < number else None


def _are_repeated(group: np.ndarray, rows: Rows) -> bool:
    """Whether the labels of equal inputs differ far less often than those of different rows."""
    _, group, counts = np.unique(group, return_inverse=True, return_counts=True)
    shares = rows.shares
    differ = np.zeros(len(counts), bool)
    rate = np.empty(shares.shape)
    bins = _bins(rows)
    for column, values in enumerate(shares.T):
        means = np.bincount(group, values) / counts
        differ |= np.bincount(group, np.abs(values - means[group])) > 1e-9
        rate[:, column] = (np.bincount(bins, values) / np.maximum(np.bincount(bins), 1))[bins]
    rates = np.stack([np.bincount(group, column) / counts for column in rate.T], axis=1)
    expected = 1 - (rates ** counts[:, None]).sum(axis=1)
    expected = expected[counts > 1].sum()
    return expected >= _LEAST_EXPECTED and differ.sum() <= _MOST_OF_EXPECTED * expected


def _bins(rows: Rows) -> np.ndarray:
    """Bins of the rows (n,) by quantiles of the logit, or by the largest logit of the classes."""
    if rows.logits.ndim == 2:
        return rows.logits.argmax(axis=1)
    edges = np.quantile(rows.logits, np.arange(1, _NUM_BINS) / _NUM_BINS)
    return np.searchsorted(edges, rows.logits)


def _copies(group: np.ndarray, rows: Rows) -> np.ndarray | None:
    """Groups of rows (n,) if all are there the same number of times, else None."""
    columns = [group, *rows.labels.reshape(len(group), -1).T, rows.row_weights]
    _, same, counts = np.unique(
        np.stack(columns, axis=1), axis=0, return_inverse=True, return_counts=True
    )
    times = int(np.gcd.reduce(counts))
    if times == 1 or len(counts) < _LEAST_DIFFERENT:
        return None
    order = np.argsort(same.reshape(-1), kind="stable")
    copies = np.arange(len(group))
    # Equal rows follow each other, and there is a multiple of `times` of each.
    copies[order] = order[np.arange(len(order)) // times * times]
    return copies
