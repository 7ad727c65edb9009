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
    for first, second in itertools.combinations(ids, 2):
        if num_seen[first] == num_seen[second] > 1:
            # `partner` maps each value of the first field to the second field's value in its last
            # row. If this is right for all rows, and both fields have as many values, each
            # determines the other.
            partner = np.zeros(int(ids[first].max()) + 1, ids[second].dtype)
            partner[ids[first]] = ids[second]
            if (partner[ids[first]] == ids[second]).all():
                yield first, second


@dataclass(frozen=True)
class FieldIndex:
    """The numbers of the values of fields in a fit.

    Args:
        num_values: Number of ids of each field.
        seen_ids: For each field, the ids that have rows, by place.
        places: For each field, the place of each row's value (n,).
    """

    num_values: Sequence[int]
    seen_ids: list[np.ndarray]
    places: list[np.ndarray]

    @classmethod
    def of(cls, ids: Sequence[np.ndarray], num_values: Sequence[int]) -> FieldIndex:
        """The index of some rows, from the ids (n,) of each field."""
        seen_ids, places = [], []
        for column, size in zip(ids, num_values, strict=True):
            has_rows = np.zeros(size + 1, bool)
            has_rows[np.minimum(column.astype(np.intp), size)] = True
            seen_ids.append(np.flatnonzero(has_rows[:-1]))
            # Ids of "other" are above all ids with rows, so that the search puts them last.
            places.append(np.searchsorted(seen_ids[-1], column))
        return cls(num_values, seen_ids, places)

    def by_id(self, arrays: Sequence[np.ndarray], unseen: ArrayLike = 0.0) -> list[np.ndarray]:
        """Arrays by id (num_values, …), from arrays by place (k, …).

        All other ids get the value `unseen`: one number, or one for each field.
        """
        filled = []
        unseen_values = np.broadcast_to(unseen, len(self.seen_ids))
        for values, ids, size, unseen_value in zip(
            arrays, self.seen_ids, self.num_values, unseen_values, strict=True
        ):
            array = np.full((size, *values.shape[1:]), unseen_value)
            array[ids] = values
            filled.append(array)
        return filled
