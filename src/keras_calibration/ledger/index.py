"""A cache of the records of a large ledger, so that it is read as one file."""

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

INDEX_NAME = "index.cache"
INDEX_VERSION = 2
# The index is written anew when this share of the ledger has changed since.
_STALE_SHARE = 0.05

Record = dict[str, Any]


def read_indexed(
    folder: Path, paths: Sequence[Path], read: Callable[[Path], Record | None]
) -> list[Record | None]:
    """Reads the records at `paths`, those that have not changed from the ledger's index.

    The index is a cache and nothing more: a record is taken from it only if its file still has the
    size and the time that it had when indexed; whatever is wrong with the index itself, or where
    the folder cannot be written, the files are read.

    Args:
        folder: the ledger's.
        paths: files of the records, in the order wanted.
        read: reads one of them; what it gives as `None` is not indexed.

    Returns:
        The records, each a dict of its own, or `None`.

    Raises:
        ValueError: what `read` raises.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     path = Path(name, "run.json")
        ...     _ = path.write_text('{"seed": 7}')
        ...     [read_indexed(Path(name), [path], lambda p: json.loads(p.read_text()))
        ...      for _ in range(2)]
        [[{'seed': 7}], [{'seed': 7}]]
    """
    index = _load(folder)
    stamps = _stamps(folder)
    records: list[Record | None] = []
    num_read = 0
    for path in paths:
        stamp, known = stamps.get(path.name), index.get(path.name)
        if known is not None and known[0] == stamp:
            records.append(known[1])
        else:
            records.append(read(path))
            num_read += 1
    if num_read > _STALE_SHARE * len(records):
        # A file that was replaced while it was read is read again next time: its stamp is older.
        _store(
            folder,
            {
                path.name: (stamps[path.name], record)
                for path, record in zip(paths, records, strict=True)
                if path.name in stamps and record is not None
            },
        )
    return records


def _stamps(folder: Path) -> dict[str, str]:
    """The stamp of each record's file."""
    stamps = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            # Other processes write beside: their temporary files are gone when they are looked at.
            if entry.name.endswith(".json"):
                with contextlib.suppress(FileNotFoundError):
                    stamps[entry.name] = _stamp(entry.stat())
    return stamps


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns}:{stat.st_size}:{stat.st_ino}"


def _load(folder: Path) -> dict[str, tuple[str, Record]]:
    try:
        content = json.loads((folder / INDEX_NAME).read_bytes())
        if content["version"] != INDEX_VERSION:
            return {}
        return {name: (stamp, record) for name, (stamp, record) in content["records"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _store(folder: Path, records: dict[str, tuple[str, Record]]) -> None:
    # Each writer has a temporary file of its own; of several, the last rename stands.
    temporary = folder / f"{INDEX_NAME}.{uuid.uuid4().hex}.tmp"
    try:
        # This is Python's own dialect, which has NaN: no one else reads the file.
        temporary.write_text(json.dumps({"version": INDEX_VERSION, "records": records}))
        os.replace(temporary, folder / INDEX_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
