"""Where the arrays of long rows are kept: in memory, or in files that are mapped into it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np


class ArrayStore:
    """Keeps arrays in memory, as they are."""

    def keep(self, values: np.ndarray) -> np.ndarray:
        """The array, from where it is kept."""
        return values

    def empty(self, num_rows: int) -> np.ndarray:
        """A new array (num_rows,) of float64, to be written to."""
        return np.empty(num_rows)


IN_MEMORY = ArrayStore()


class FolderStore(ArrayStore):
    """Keeps each array in a file, in the smallest type that holds it; it is mapped into memory.

    Args:
        folder: A folder for the files, which is there as long as the arrays are used.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kept = FolderStore(folder).keep(np.array([0, 7, 200]))
        ...     print(kept, kept.dtype)
        [  0   7 200] uint8
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder, self._numbers = Path(folder), itertools.count()

    def keep(self, values: np.ndarray) -> np.ndarray:
        """The array, mapped from a new file."""
        if values.dtype.kind in "iu" and len(values):
            values = values.astype(np.promote_types(*map(np.min_scalar_type, _ends(values))))
        path = self._new_file()
        values.tofile(path)
        return np.memmap(path, values.dtype, "r", shape=values.shape) if values.size else values

    def empty(self, num_rows: int) -> np.ndarray:
        """A new array (num_rows,) of float64 in a new file."""
        return np.memmap(self._new_file(), np.float64, "w+", shape=(num_rows,))

    def _new_file(self) -> Path:
        return self._folder / f"{next(self._numbers)}.bin"


def _ends(values: np.ndarray) -> tuple[int, int]:
    return int(values.min()), int(values.max())
