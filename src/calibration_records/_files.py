"""Atomic writes: a file is the old one or the new one, also after a kill or a power cut."""

import os
import uuid
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file atomically: at any moment it holds the old content or all of the new.

    Args:
        path: The file. Its folder must exist.
        content: The new content.

    Raises:
        OSError: If the file cannot be written. The old one stays, without temporary files.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "page.html")
        ...     write_atomically(path, b"old")
        ...     write_atomically(path, b"new")
        ...     path.read_bytes(), len(os.listdir(folder))
        (b'new', 1)
    """
    # In the same folder, because a rename is atomic only within one file system, and with a name
    # that no other writer has.
    first = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with first.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(first, path)
    finally:
        # Still there only after an error.
        first.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Waits until a file, or the renames in a folder, are on the disk.

    It does nothing on Windows, which has no such call for a folder.
    """
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
