"""Sums: rows, positives and predictions of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Sums(NamedTuple):
    """The sums of the rows of each group, arrays (groups,). Sums of groups add up.

    Args:
        rows: Number of rows.
        positives: Sum of the labels.
        predicted: Sum of the probabilities.
        squares: Sum of the squared probabilities.

    Example:
        >>> sums = Sums(*np.array([[9.0, 7.0], [3.0, 2.0], [2.5, 2.0], [0.8, 0.6]]))
        >>> sums.select(np.array([1])).rows.tolist(), sums.added([0]).positives.tolist()
        ([7.0], [5.0])
    """

    rows: np.ndarray
    positives: np.ndarray
    predicted: np.ndarray
    squares: np.ndarray

    def select(self, groups: np.ndarray | slice) -> Sums:
        """The sums of some groups, by their numbers, a mask or a slice."""
        return Sums(*(column[groups] for column in self))

    def added(self, firsts: Sequence[int] | np.ndarray) -> Sums:
        """The sums of consecutive groups, from each of `firsts` to the next."""
        return Sums(*(np.add.reduceat(column, firsts) for column in self))
