"""Fields that divide the rows alike: the rows tell only the sum of their effects."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Rows that are compared first: most fields differ within them.
_FIRST_ROWS = 1000


@dataclass(frozen=True)
class Shared:
    """The effect that a field has, if need be in common with others.

    Args:
        leader: Number of the first field that divides the rows in the same way; often its own.
        size: Number of fields that do.
        kept: Places of the leader's values (k,) that have rows.
        places: Their places among the values of this field (k,).
    """

    leader: int
    size: int
    kept: np.ndarray
    places: np.ndarray


def shared_effects(
    places: Sequence[Sequence[np.ndarray]],
    num_values: Sequence[int],
    weights: Sequence[np.ndarray | None],
) -> list[Shared]:
    """Which fields have the same values in the same rows, but for their names.

    Args:
        places: For each block of rows, the place of each row's value among those of the field (n,),
            for each field; the number of values is "other".
        num_values: Number of values of each field.
        weights: For each block, sample weights (n,) or None. Rows of weight 0 do not count.

    Example:
        >>> site, page, day = np.array([0, 1, 2]), np.array([1, 0, 2]), np.array([0, 0, 1])
        >>> [each.leader for each in shared_effects([[site, page, day]], [3, 3, 2], [None])]
        [0, 0, 2]
    """
    counts = [slice(None) if each is None else each > 0 for each in weights]
    found: list[tuple[int, np.ndarray]] = []
    for field in range(len(num_values)):
        own = field, np.arange(num_values[field])
        for leader in sorted({leader for leader, _ in found}):
            pairs = (
                (block[leader][rows], block[field][rows])
                for block, rows in zip(places, counts, strict=True)
            )
            renamed = _renamed(pairs, num_values[leader], num_values[field])
            if renamed is not None:
                own = leader, renamed
                break
        found.append(own)
    leaders = [leader for leader, _ in found]
    return [
        Shared(leader, leaders.count(leader), np.flatnonzero(renamed >= 0), renamed[renamed >= 0])
        for leader, renamed in found
    ]


def _renamed(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]], num_values: int, num_others: int
) -> np.ndarray | None:
    """The other field's value for each value of one field, or None if they differ in any row."""
    table = np.full(num_values + 1, -1)
    for one, other in blocks:
        for rows in (slice(min(_FIRST_ROWS, len(one))), slice(None)):
            names = table.copy()
            names[one[rows]] = other[rows]
            has_two = np.any((table >= 0) & (table != names))
            if has_two or not np.array_equal(names[one[rows]], other[rows]):
                return None
            if np.bincount(names[names >= 0], minlength=1).max() > 1:
                return None
        table = names
    is_other = table == num_others
    return None if is_other[:-1].any() or 0 <= table[-1] < num_others else table[:-1]
