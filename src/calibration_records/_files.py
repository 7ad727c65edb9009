"""Files that are the old ones or the new ones, also after a kill, a full disk or a power cut."""

import os
import uuid
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file in one step: at any moment there is its old content or all of the new.

    Args:
        path: The file. Its folder must exist.
        content: What it shall hold.

    Raises:
        OSError: If the file cannot be written. The old one stays, and nothing else is left.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "page.html")
        ...     write_atomically(path, b"old")
        ...     write_atomically(path, b"new")
        ...     path.read_bytes(), len(os.listdir(folder))
        (b'new', 1)
    """
    # In the same folder, because a rename is atomic only within one file system; and of a name that
    # no other writer has.
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
    """Waits until a file is on the disk; a folder: until its renames are.

    On Windows, which has no such call for a folder, it does nothing.
    """
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
