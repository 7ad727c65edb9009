"""Sums: the sums of the rows of groups, each sum with a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike


class Sums(dict[str, np.ndarray]):
    """Name → the sum of the rows of each group, an array (groups,). Sums of groups add up.

    Checks use the number of "rows", of "positives", and the sums "predicted" of the probabilities
    and "predicted_squares" of their squares; for labels that come late also "hazard_up" and
    "hazard_down", see `logs.late_labels.late_sql.hazard_sums`.

    Example:
        >>> sums = Sums(rows=np.array([9.0, 7.0, 5.0]), positives=np.array([3.0, 2.0, 1.0]))
        >>> sums.of([0, 2])["rows"].tolist(), sums.added([0, 2])["positives"].tolist()
        ([9.0, 5.0], [5.0, 1.0])
    """

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self["rows"])

    @property
    def is_late(self) -> bool:
        """Whether labels come late, and the sums have their hazards."""
        return "hazard_up" in self

    def of(self, groups: ArrayLike | slice) -> Sums:
        """The sums of some groups, by their numbers, a mask or a slice."""
        where = groups if isinstance(groups, slice) else np.asarray(groups)
        return self._each(lambda column: column[where])

    def only(self, is_counted: np.ndarray) -> Sums:
        """The same groups, with sums of 0 where they are not counted."""
        return self._each(lambda column: column * is_counted)

    def added(self, firsts: Sequence[int] | np.ndarray) -> Sums:
        """The sums of groups that follow each other, from each of the `firsts` to the next."""
        return self._each(lambda column: np.add.reduceat(column, firsts))

    def _each(self, function: Callable[[np.ndarray], np.ndarray]) -> Sums:
        return Sums({name: function(column) for name, column in self.items()})
