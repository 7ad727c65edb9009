"""A cache of all records of a large ledger in one file."""

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_calibration._files import write_atomically

INDEX_NAME = "index.cache"
INDEX_VERSION = 2
# The index is rewritten when more than this share of the records has changed.
_STALE_SHARE = 0.05

Record = dict[str, Any]


def read_indexed(
    folder: Path, paths: Sequence[Path], read: Callable[[Path], Record | None]
) -> list[Record | None]:
    """Reads records from the index if their files are unchanged, otherwise with `read`.

    A record is taken from the index only if its file still has the indexed size and time. If the
    index is damaged or cannot be written, all files are read. Records for which `read` returns
    `None` are not indexed.

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
        # A file replaced while it was read has an older stamp, and is read again next time.
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
    """File name → stamp, for each record."""
    stamps = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            # Files of other processes may disappear in the meantime.
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
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _store(folder: Path, records: dict[str, tuple[str, Record]]) -> None:
    # Python's JSON with NaN, which is fine for a file that only this module reads.
    content = json.dumps({"version": INDEX_VERSION, "records": records})
    # Of several writers, the last wins. The records are all there without an index.
    with contextlib.suppress(OSError):
        write_atomically(folder / INDEX_NAME, content.encode())
