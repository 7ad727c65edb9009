"""The five ways in which the values of fields are numbered in a fit, and the ways between them.

- *id*: as the rows have it, from 0 to `num_values - 1`; any other number is "other".
- *place*: among the values of the field that have rows, in the order of ids; "other" is the last.
- *field*: from 0, as the fields were given.
- *group*: fields that divide the rows alike have one effect; its number, from 0.
- *kept*: of the places of a group's first field, those that the values of a field go by.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from keras_calibration._rows.array_store import IN_MEMORY, ArrayStore
from keras_calibration._solvers.coinciding_fields import Shared, shared_effects
from keras_calibration._solvers.effects import OffsetsEffect, TableEffect


@dataclass(frozen=True)
class FieldIndex:
    """The numbers of the values of fields in a fit.

    Args:
        num_values: Number of ids of each field.
        seen: The ids of each field that have rows, by place.
        places: For each block of rows, the place of each row's value (n,), of each field.
        weights: For each block, sample weights (n,) or None. Rows of weight 0 make no fields
            differ.
    """

    num_values: Sequence[int]
    seen: list[np.ndarray]
    places: list[list[np.ndarray]]
    weights: Sequence[np.ndarray | None]

    @classmethod
    def of(
        cls,
        ids: Sequence[Sequence[np.ndarray]],
        num_values: Sequence[int],
        weights: Sequence[np.ndarray | None],
        store: ArrayStore = IN_MEMORY,
    ) -> FieldIndex:
        """The index of the fields of some rows.

        The time and memory of a fit depend on the number of values that have rows, not on the
        number of possible ids.

        Args:
            ids: For each block of rows, ids (n,) of each field.
            num_values: Number of ids of each field.
            weights: For each block, sample weights (n,), or None.
            store: Where the places are kept.
        """
        seen = []
        for field, number in enumerate(num_values):
            has_rows = np.zeros(number + 1, bool)
            for block in ids:
                has_rows[np.minimum(block[field].astype(np.intp), number)] = True
            seen.append(np.flatnonzero(has_rows[:-1]))
        # "Other" is above all of them, so it comes last.
        places = [
            [store.keep(np.searchsorted(v, i)) for v, i in zip(seen, block, strict=True)]
            for block in ids
        ]
        return cls(num_values, seen, places, weights)

    @functools.cached_property
    def shared(self) -> list[Shared]:
        """The effect of each field, if need be in common with others."""
        return shared_effects(self.places, list(map(len, self.seen)), self.weights)

    @property
    def leaders(self) -> list[int]:
        """The first field of each group."""
        return sorted({each.leader for each in self.shared})

    @property
    def groups(self) -> list[int]:
        """The group of each field."""
        leaders = self.leaders
        return [leaders.index(each.leader) for each in self.shared]

    @property
    def sizes(self) -> np.ndarray:
        """Number of fields in the group of each field."""
        return np.array([each.size for each in self.shared])

    def tables(self) -> list[TableEffect]:
        """A new effect of each group, with a number for each place, all 0."""
        return [OffsetsEffect(len(self.seen[field])) for field in self.leaders]

    def places_in_tables(self, block: int) -> list[np.ndarray]:
        """The places of the rows of a block in each of the `tables`."""
        return [self.places[block][field] for field in self.leaders]

    def deviations_of_groups(self, of_fields: np.ndarray) -> np.ndarray:
        """The standard deviation of each group's effect, a sum, from those of its fields' parts."""
        squares = np.bincount(np.array(self.groups, int), of_fields**2, len(self.leaders))
        return np.asarray(np.sqrt(squares))

    def deviations(self, tables: Sequence[TableEffect]) -> np.ndarray:
        """The standard deviation of each field's part, an equal one of its group's effect."""
        of_groups = np.array([table.deviations[0] for table in tables])
        return np.asarray(of_groups[self.groups] / np.sqrt(self.sizes))

    def offsets(self, tables: Sequence[TableEffect]) -> list[np.ndarray]:
        """The offset of each id of each field, an equal part of its group's effect."""
        parts = [
            tables[group].coefficients[:-1, 0][each.kept] / each.size
            for group, each in zip(self.groups, self.shared, strict=True)
        ]
        return self.by_id(parts)

    def by_id(self, found: Sequence[np.ndarray], unseen_value: ArrayLike = 0.0) -> list[np.ndarray]:
        """What was found for the values of each field that have rows, by id.

        Args:
            found: For each field, of the values `kept` (k, …).
            unseen_value: What all other ids have, one number or one for each field.
        """
        ids = [known[each.places] for known, each in zip(self.seen, self.shared, strict=True)]
        return with_unseen(found, ids, self.num_values, unseen_value)


def with_unseen(
    found: Sequence[np.ndarray],
    ids: Sequence[np.ndarray],
    num_values: Sequence[int],
    unseen_value: ArrayLike = 0.0,
) -> list[np.ndarray]:
    """Arrays by id (num_values, …), from what was found for some ids, and a number for others."""
    filled = []
    others = np.broadcast_to(unseen_value, len(ids))
    for values, known, number, other in zip(found, ids, num_values, others, strict=True):
        array = np.full((number, *values.shape[1:]), other)
        array[known] = values
        filled.append(array)
    return filled
