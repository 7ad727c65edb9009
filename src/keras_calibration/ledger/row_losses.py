"""The losses of single held-out rows, stored beside the records of a ledger."""

import hashlib
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = "rows"


def hash_row_ids(row_ids: Any) -> str:
    """A hash of which rows were evaluated, and in which order.

    Args:
        row_ids: ints or strings, `(num_rows,)`.

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
        # Lengths between them, so that ("ab", "c") and ("a", "bc") differ.
        texts = [str(row_id).encode() for row_id in ids]
        content = b"".join(b"%d:%s" % (len(text), text) for text in texts)
    return hashlib.sha256(content).hexdigest()


def write_row_losses(folder: Path, losses: Any, row_ids: Any) -> dict[str, Any]:
    """Stores the loss of each row in a file of its own, written in full or not at all.

    Args:
        folder: the ledger's.
        losses: `(num_rows,)`, in the loss's unit; stored as float32.
        row_ids: `(num_rows,)`, ints or strings.

    Returns:
        `file`, relative to the folder, `rows_hash` and `num_rows`.

    Raises:
        ValueError: the two are not one-dimensional and of one length.

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
            f"Received losses of shape {array.shape} and row_ids of shape {np.shape(row_ids)}; "
            "expected (num_rows,) of both; give one loss and one id for each held-out row."
        )
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4().hex
    temporary = target / f"{name}.tmp"
    try:
        with temporary.open("wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target / f"{name}.npy")
    finally:
        temporary.unlink(missing_ok=True)
    return {
        "file": f"{FOLDER}/{name}.npy",
        "rows_hash": hash_row_ids(row_ids),
        "num_rows": array.size,
    }


def read_row_losses(folder: Path, run: Mapping[str, Any]) -> NDArray[np.float32]:
    """The losses that a record refers to, float32 `(num_rows,)`.

    Args:
        folder: the ledger's.
        run: a record with `row_losses`.

    Raises:
        ValueError: the record has none, or their file is gone or lies outside the ledger.
    """
    reference = run["row_losses"]
    if reference is None:
        raise ValueError(
            "Received a run without row_losses; expected one that has them; store them with "
            "`Ledger.write_row_losses` before the run is recorded."
        )
    path = folder / FOLDER / Path(reference["file"]).name
    try:
        array: NDArray[np.float32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Received a run whose row losses are not readable at {str(path)!r} ({error}); "
            "expected the file that was written with it; copy a ledger with its folder `rows`."
        ) from error
    return array
