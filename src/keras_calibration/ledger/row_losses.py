"""Losses of single held-out rows, stored in a folder of the ledger."""

from __future__ import annotations

import hashlib
import io
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_calibration._files import write_atomically
from keras_calibration._typing import RunRecord

FOLDER = "rows"


def hash_row_ids(row_ids: ArrayLike) -> str:
    """A hash of the evaluated rows (ints or strings) and their order.

    Example:
        >>> hash_row_ids([1, 2]) == hash_row_ids(np.array([1, 2], "int32"))
        True
        >>> hash_row_ids([1, 2]) == hash_row_ids([2, 1])
        False
    """
    ids = np.asarray(row_ids)
    if ids.dtype.kind in "iu":
        content = ids.astype("<i8").tobytes()
    else:
        # With lengths, so that ("ab", "c") and ("a", "bc") differ.
        texts = [str(row_id).encode() for row_id in ids]
        content = b"".join(b"%d:%s" % (len(text), text) for text in texts)
    return hashlib.sha256(content).hexdigest()


def write_row_losses(folder: Path, losses: ArrayLike, row_ids: ArrayLike) -> dict[str, Any]:
    """Atomically stores row losses in a new file; returns the reference to it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     reference = write_row_losses(Path(name), [0.5, 0.25], [10, 11])
        ...     read_row_losses(Path(name), {"row_losses": reference}).tolist()
        [0.5, 0.25]
    """
    array = np.asarray(losses, np.float32)
    if array.ndim != 1 or array.shape != np.shape(row_ids):
        raise ValueError(
            "Arguments `losses` and `row_ids` must both have shape (num_rows,). Received: "
            f"losses.shape={array.shape}, row_ids.shape={np.shape(row_ids)}."
        )
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4().hex
    content = io.BytesIO()
    np.save(content, array)
    write_atomically(target / f"{name}.npy", content.getvalue())
    return {
        "file": f"{FOLDER}/{name}.npy",
        "rows_hash": hash_row_ids(row_ids),
        "num_rows": array.size,
    }


def read_row_losses(folder: Path, run: RunRecord) -> NDArray[np.float32]:
    """The row losses of a record, float32 `(num_rows,)`."""
    reference = run["row_losses"]
    if reference is None:
        raise ValueError(
            "Argument `run` must have row losses. Received: row_losses=None. Store them with "
            "`Ledger.write_row_losses` before the run is recorded."
        )
    path = folder / FOLDER / Path(reference["file"]).name
    try:
        array: NDArray[np.float32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Cannot read the row losses at {str(path)!r} ({error}). Copy a ledger together with "
            "its folder `rows`."
        ) from error
    return array
