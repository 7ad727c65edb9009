"""The two numberings of field values in a fit, and the conversion between them.

- *id*: as the rows have it, from 0 to `num_values - 1`; any other number is "other".
- *place*: among the values of the field that have rows, in the order of ids; "other" is the last.

So the time and memory of a fit depend on the number of values that have rows, not on the number of
possible ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


def coinciding(ids: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str]]:
    """Names of pairs of fields that determine each other, from the ids (n,) of each field.

    Example:
        >>> ids = {"shop": np.array([0, 1, 2]), "city": np.array([5, 3, 4])}
        >>> list(coinciding(ids))
        [('shop', 'city')]
    """
    num_seen = {name: np.count_nonzero(np.bincount(column)) for name, column in ids.items()}
    for one, other in itertools.combinations(ids, 2):
        if num_seen[one] == num_seen[other] > 1:
            partner = np.zeros(int(ids[one].max()) + 1, ids[other].dtype)
            partner[ids[one]] = ids[other]
            if (partner[ids[one]] == ids[other]).all():
                yield one, other


@dataclass(frozen=True)
class FieldIndex:
    """The numbers of the values of fields in a fit.

    Args:
        num_values: Number of ids of each field.
        seen: For each field, the ids that have rows, by place.
        places: For each field, the place of each row's value (n,).
    """

    num_values: Sequence[int]
    seen: list[np.ndarray]
    places: list[np.ndarray]

    @classmethod
    def of(cls, ids: Sequence[np.ndarray], num_values: Sequence[int]) -> FieldIndex:
        """The index of some rows, from the ids (n,) of each field."""
        seen, places = [], []
        for column, number in zip(ids, num_values, strict=True):
            has_rows = np.zeros(number + 1, bool)
            has_rows[np.minimum(column.astype(np.intp), number)] = True
            seen.append(np.flatnonzero(has_rows[:-1]))
            # "Other" is above all of them, so it comes last.
            places.append(np.searchsorted(seen[-1], column))
        return cls(num_values, seen, places)

    def by_id(self, arrays: Sequence[np.ndarray], unseen: ArrayLike = 0.0) -> list[np.ndarray]:
        """Arrays by id (num_values, …), from arrays by place (k, …).

        All other ids get the value `unseen`: one number, or one for each field.
        """
        filled = []
        others = np.broadcast_to(unseen, len(self.seen))
        for values, ids, number, other in zip(
            arrays, self.seen, self.num_values, others, strict=True
        ):
            array = np.full((number, *values.shape[1:]), other)
            array[ids] = values
            filled.append(array)
        return filled
