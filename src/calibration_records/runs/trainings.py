"""Descriptions of trainings, stored once for all their runs in a folder of the ledger."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from calibration_records._files import write_atomically
from calibration_records.runs.run_record import RunRecord

FOLDER = "trainings"


def write_training(folder: Path, description: dict[str, Any]) -> str:
    """Stores a description of JSON values under its hash; returns the name of the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     file = write_training(Path(name), {"epochs": 2})
        ...     read_training(Path(name), {"training": {"file": file}})
        {'epochs': 2}
    """
    content = json.dumps(description, sort_keys=True, allow_nan=False).encode()
    name = f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.json"
    path = folder / FOLDER / name
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return f"{FOLDER}/{name}"


def read_training(folder: Path, run: RunRecord) -> dict[str, Any] | None:
    """The description of what a run has trained, or `None` if there is none."""
    if run["training"] is None:
        return None
    path = folder / FOLDER / Path(run["training"]["file"]).name
    try:
        content = path.read_bytes()
        description: dict[str, Any] = json.loads(content)
    except (OSError, ValueError):
        return None
    is_whole = hashlib.blake2b(content, digest_size=16).hexdigest() == path.stem
    return description if is_whole else None
