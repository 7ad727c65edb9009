"""Folders that appear as a whole or not at all, under version numbers that nobody else takes."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# No number, hence nothing that TensorFlow Serving takes for a version.
_PREFIX = ".export-"
NEXT = "next"


def check_version_folder(path: Path, version: Any) -> None:
    """Refuses, before anything is computed, a folder that could not be made at the end.

    Args:
        path: As `move_into_place` takes it.
        version: As `move_into_place` takes it.

    Raises:
        ValueError: If it exists already, or the version is none.
    """
    whole = isinstance(version, int) and not isinstance(version, bool) and version >= 0
    if not (version is None or version == NEXT or whole):
        raise ValueError(
            f'Argument `version` must be "{NEXT}", a whole number, or None where `path` is the '
            f"folder of the version itself. Received: version={version!r}."
        )
    target = path if version is None else path / str(version)
    if version != NEXT and os.path.lexists(target):
        raise _exists(target)


def versions_in(folder: Path) -> list[int]:
    """The version numbers that stand in a folder, in increasing order.

    Args:
        folder: Folder of a model, with a folder for each version; it need not exist.

    Returns:
        The numbers.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("1", "10", "9", ".export-a", "notes.txt"):
        ...         (Path(folder) / name).mkdir()
        ...     versions_in(Path(folder))
        [1, 9, 10]
    """
    if not folder.is_dir():
        return []
    names = (entry.name for entry in folder.iterdir())
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder in `parent` to write in, gone at the end whatever is left in it.

    A killed process leaves its own behind; the next one that comes along clears it away. The lock
    on the folder, which ends with the process, tells which ones are still written in.

    Args:
        parent: Folder to make it in; made if it is missing.

    Yields:
        The folder.

    Example:
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     with temporary_folder(Path(parent)) as folder:
        ...         [entry == folder for entry in Path(parent).iterdir()]
        ...     list(Path(parent).iterdir())
        [True]
        []
    """
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"{_PREFIX}*"):
        with _locked(leftover) as is_locked:
            if is_locked:
                shutil.rmtree(leftover, ignore_errors=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with _locked(folder) as is_locked:
            # Between the two lines above, another process may have taken it for a leftover.
            if not is_locked or not folder.exists():
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder)
            return


def move_into_place(source: Path, path: Path, version: Any) -> Path:
    """Moves a folder to its final place in one step, never onto another.

    Everything in it is on the disk before it is moved.

    Args:
        source: A folder that is not empty, on the same file system.
        path: The final place; with a version, the folder in which it is made.
        version: A whole number; `"next"`, one more than the highest in `path`; or None.

    Returns:
        Where it is now.

    Raises:
        ValueError: If the place is taken; with `"next"` another number is chosen instead.
    """
    _sync(source)
    while True:
        name = 1 + max(versions_in(path), default=0) if version == NEXT else version
        target = path if version is None else path / str(name)
        if target.is_symlink() or target.is_file():
            raise _exists(target)
        try:
            # Onto a folder that is not empty this fails, whoever put it there in the meantime.
            os.rename(source, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if version != NEXT:
                raise _exists(target) from error
            continue
        _sync_one(target.parent)
        return target


def _exists(path: Path) -> ValueError:
    return ValueError(
        f"Received: path={str(path)!r}, which exists. An export never overwrites: choose a new "
        f'folder, the next version number for example (version="{NEXT}").'
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether this process now holds the lock on a folder; until the end of the block."""
    import fcntl  # not on Windows, where the rest of the package can be imported

    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    for directory, _, names in os.walk(folder):
        for name in names:
            _sync_one(Path(directory) / name)
        _sync_one(Path(directory))


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
