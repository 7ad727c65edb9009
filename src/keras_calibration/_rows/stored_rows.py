"""StoredRows: more rows than fit into memory, in files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_calibration._rows.array_store import ArrayStore
from keras_calibration._rows.rows import Rows

# Rows of a block, which are in memory at once, and the most rows of a sample.
ROWS_OF_BLOCK, LARGEST_SAMPLE = 1 << 20, 1 << 21


@dataclass(frozen=True)
class StoredRows:
    """The rows of a fit in blocks, of which one at a time is in memory.

    Args:
        blocks: The blocks, `Rows` whose arrays are mapped from files.
        store: Where they are kept, and where a fit keeps its own columns.
    """

    blocks: tuple[Rows, ...]
    store: ArrayStore

    @classmethod
    def of(cls, batches: Iterable[Rows], store: ArrayStore) -> StoredRows:
        """Writes batches of rows, of any sizes, in their order."""
        blocks = tuple(_kept(block, store) for block in _in_blocks(batches))
        return cls(blocks, store)

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def unit(self) -> float:
        """The sample weight of one row."""
        return self.blocks[0].unit

    @property
    def sample(self) -> Rows:
        """Every k-th row, in memory: all of them, if they are few."""
        step = 1 + len(self) // LARGEST_SAMPLE
        return joined([block.take(np.arange(0, len(block), step)) for block in self.blocks])


def joined(parts: list[Rows]) -> Rows:
    """Rows of several parts as one, in memory."""
    first = parts[0]
    if len(parts) == 1:
        return first
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("logits", "labels", "weights", "times")
        if getattr(first, name) is not None
    }
    features = {n: np.concatenate([p.features[n] for p in parts]) for n in first.features}
    return replace(first, features=features, **columns)


def _in_blocks(batches: Iterable[Rows]) -> Iterator[Rows]:
    """The rows of batches, as many as are one block together."""
    waiting: list[Rows] = []
    for batch in batches:
        waiting.append(batch.as_given())
        while sum(map(len, waiting)) >= ROWS_OF_BLOCK:
            rows = joined(waiting)
            yield rows.take(np.arange(ROWS_OF_BLOCK)).as_given()
            waiting = [rows.take(np.arange(ROWS_OF_BLOCK, len(rows))).as_given()]
            if not len(waiting[0]):
                waiting = []
    if waiting:
        yield joined(waiting)


def _kept(rows: Rows, store: ArrayStore) -> Rows:
    """Rows whose arrays are kept in a store.

    Labels of 0 and 1 take a byte. Logits, weights and times stay float64, in which a fit computes;
    features, which it converts, may be float32.
    """

    def keep(column: np.ndarray | None) -> Any:
        return None if column is None else store.keep(column)

    return replace(
        rows,
        logits=keep(rows.logits),
        labels=keep(_if_exact(rows.labels, "uint8")),
        weights=keep(rows.weights),
        times=keep(rows.times),
        features={n: keep(_if_exact(c, "float32")) for n, c in rows.features.items()},
    )


def _if_exact(column: np.ndarray, dtype: str) -> np.ndarray:
    """A column of floats in another type, if that holds all of its numbers."""
    if column.dtype.kind != "f":
        return column
    with np.errstate(all="ignore"):
        smaller = column.astype(dtype)
    return smaller if np.array_equal(smaller, column, equal_nan=dtype == "float32") else column
