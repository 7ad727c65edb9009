"""Where the arrays of long rows are kept: in memory, or in files that are mapped into it."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator
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
    """Keeps each array in a file, which is mapped into memory; whole numbers in the smallest type.

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
        with _told_where():
            values.tofile(path)
        return np.memmap(path, values.dtype, "r", shape=values.shape) if values.size else values

    def empty(self, num_rows: int) -> np.ndarray:
        """A new array (num_rows,) of float64 in a new file."""
        if not num_rows:
            return np.empty(0)
        path = self._new_file()
        with _told_where(), open(path, "wb") as file:
            # Without its room, a file that is mapped would end the process on a full disk.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, 8 * num_rows)
            else:
                file.truncate(8 * num_rows)
        return np.memmap(path, np.float64, "r+", shape=(num_rows,))

    def _new_file(self) -> Path:
        return self._folder / f"{next(self._numbers)}.bin"


@contextlib.contextmanager
def temporary_store() -> Iterator[FolderStore]:
    """A store in a temporary folder, which is removed at the end.

    Example:
        >>> with temporary_store() as store:
        ...     print(store.keep(np.array([1.5])))
        [1.5]
    """
    with tempfile.TemporaryDirectory(
        prefix="keras-calibration-", ignore_cleanup_errors=True
    ) as folder:
        yield FolderStore(folder)


@contextlib.contextmanager
def _told_where() -> Iterator[None]:
    """Adds to the error of a full disk what to do."""
    try:
        yield
    except OSError as error:
        error.add_note(
            "The rows of a long log are copied to the folder for temporary files, in up to 200 "
            f"bytes each: {tempfile.gettempdir()}. Set TMPDIR to one with more room."
        )
        raise


def _ends(values: np.ndarray) -> tuple[int, int]:
    return int(values.min()), int(values.max())
