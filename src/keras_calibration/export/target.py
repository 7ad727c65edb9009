"""The place of an export: made atomically, also with concurrent exports."""

import contextlib
import errno
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from calibration_records._files import sync

# Not a number, so TensorFlow Serving does not take it for a version.
_PREFIX = ".export-"
_GONE = f"{_PREFIX}gone"
_HOST = re.sub(r"[^A-Za-z0-9]+", "_", platform.node())[:60]
_NAME = re.compile(re.escape(_PREFIX) + r"(?P<host>[^-]*)-(?P<seconds>\d+)-")
# Age after which a folder is removed if its lock does not show whether its process is alive.
_SECONDS_KEPT = 24 * 3600
_MAX_TRIES = 10
NEXT = "next"


@dataclass(frozen=True)
class Target:
    """The place of an export, which must be new: nothing is ever overwritten.

    Args:
        path: A file, or a folder; with a version, the folder in which the version is created.
        version: An integer; `"next"` for one more than the highest in `path`; or None.
        is_file: Whether the export is a single file.
    """

    path: Path
    version: int | str | None = None
    is_file: bool = False

    def check(self) -> None:
        """Raises, before anything is computed, if the export could not be put there."""
        version = self.version
        whole = isinstance(version, int) and not isinstance(version, bool) and version >= 0
        if not (version is None or version == NEXT or whole):
            raise ValueError(
                f'Argument `version` must be "{NEXT}", an integer of at least 0, or None if `path` '
                f"is the folder of the version itself. Received: version={version!r}."
            )
        target = self.path if version is None else self.path / str(version)
        if version != NEXT and os.path.lexists(target):
            raise _exists(target, self.is_file)
        above = next(folder for folder in target.absolute().parents if folder.exists())
        if not above.is_dir():
            raise ValueError(
                f"Argument `path` must be in a folder. Received: path={str(target)!r}, and "
                f"{str(above)!r} is a file."
            )

    @contextlib.contextmanager
    def beside(self) -> Iterator[Path]:
        """A path in a temporary folder beside the place, at which to write the export."""
        with temporary_folder(self.path.parent if self.version is None else self.path) as folder:
            yield folder / (self.path.name if self.is_file else "model")

    def move(self, source: Path) -> Path:
        """Moves the export into place in one step, and returns its path."""
        if self.is_file:
            return move_file_into_place(source, self.path)
        return move_into_place(source, self.path, self.version)


def versions_in(folder: Path) -> list[int]:
    """Version numbers in a model's folder, increasing; empty if the folder does not exist.

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
    """Creates a temporary folder in `parent`, which is removed at exit.

    If the process is killed, the folder remains until the next export removes it. On one host, a
    lock on the folder, which ends with the process, shows whether the folder is still in use. If
    the lock cannot show it (a folder of another host, a file system without locks), the folder is
    removed one day after the time in its name.

    Raises:
        OSError: If other processes remove each folder as soon as it is created.

    Example:
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     with temporary_folder(Path(parent)) as folder:
        ...         [entry == folder for entry in Path(parent).iterdir()]
        ...     list(Path(parent).iterdir())
        [True]
        []
    """
    new = [each for each in (parent, *parent.parents) if not each.exists()]
    try:
        for folder in parent.glob(f"{_PREFIX}*"):
            with _locked(folder) as is_locked:
                if _is_leftover(folder, is_locked):
                    _remove(folder)
        with _new_folder(parent) as folder:
            yield folder
    finally:
        # Where nothing was put, the folders made for it go too; others are not empty.
        with contextlib.suppress(OSError):
            for each in new:
                each.rmdir()


@contextlib.contextmanager
def _new_folder(parent: Path) -> Iterator[Path]:
    """A new folder in an existing one, locked, and removed at exit."""
    for _ in range(_MAX_TRIES):
        prefix = f"{_PREFIX}{_HOST}-{int(time.time())}-"
        # Another export may have removed an empty parent, for it has failed.
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with _locked(folder) as is_locked:
            # Between the two lines above, another process may have removed it as a leftover.
            if is_locked is False or not folder.exists():
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
    raise OSError(
        f"Cannot keep a temporary folder in {str(parent)!r}: {_MAX_TRIES} were created, and "
        "another process removed or locked each of them. Find the process that does so."
    )


def _is_leftover(folder: Path, is_locked: bool | None) -> bool:
    """Whether a temporary folder is no longer in use."""
    name = _NAME.match(folder.name)
    if folder.name.startswith(_GONE):
        return True
    if name is not None and (is_locked is None or name["host"] != _HOST):
        return time.time() - int(name["seconds"]) > _SECONDS_KEPT
    return bool(is_locked)


def _remove(folder: Path) -> None:
    """Renames and removes a leftover; if its owner is alive after all, it finds the folder gone."""
    gone = folder
    if not folder.name.startswith(_GONE):
        gone = folder.with_name(_GONE + folder.name)
        try:
            os.rename(folder, gone)
        except OSError:
            return
    shutil.rmtree(gone, ignore_errors=True)


def move_into_place(source: Path, path: Path, version: int | str | None) -> Path:
    """Moves a folder to its final place in one step and returns it; never overwrites.

    All files are synced to disk before the move.

    Args:
        source: A folder that is not empty, on the same file system.
        path: The final place; with a version, the folder in which the version is created.
        version: An integer; `"next"` for one more than the highest in `path`; or None.

    Raises:
        ValueError: If the place is taken; with `"next"`, another number is chosen instead.
        RuntimeError: If another process has removed files of it.
    """
    try:
        files = _sync(source)
        target = _moved(source, path, version)
    except FileNotFoundError as error:
        raise _lost(source) from error
    if not all((target / file).is_file() for file in files):
        shutil.rmtree(target, ignore_errors=True)
        raise _lost(target)
    return target


def move_file_into_place(source: Path, path: Path) -> Path:
    """Moves a file to its final place in one step and returns it; never overwrites.

    Raises:
        ValueError: If the place is taken.
    """
    sync(source)
    try:
        # A rename would replace a file that another process has just put there.
        os.link(source, path)
    except FileExistsError as error:
        raise _exists(path, is_file=True) from error
    except OSError:
        # A file system without hard links.
        os.rename(source, path)
    sync(path.parent)
    return path


def _moved(source: Path, path: Path, version: int | str | None) -> Path:
    while True:
        name = 1 + max(versions_in(path), default=0) if version == NEXT else version
        target = path if version is None else path / str(name)
        if target.is_symlink() or target.is_file():
            raise _exists(target)
        try:
            # Fails if the target is a non-empty folder, which another process may just have
            # created.
            os.rename(source, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if version != NEXT:
                raise _exists(target) from error
            continue
        sync(target.parent)
        return target


def _exists(path: Path, is_file: bool = False) -> ValueError:
    kind = "file" if is_file else "folder"
    other = "another name" if is_file else f'a new folder, such as the next: version="{NEXT}"'
    return ValueError(
        f"Argument `path` must be a new {kind}. Received: path={str(path)!r}, which exists. An "
        f"export never overwrites: choose {other}."
    )


def _lost(folder: Path) -> RuntimeError:
    return RuntimeError(
        f"Another process removed files from {str(folder)!r} while this export wrote them, so "
        "there is no new version. Find the process that does so, and export again."
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool | None]:
    """Locks a folder until exit; yields whether that succeeded, None without support for locks."""
    import fcntl  # not on Windows, where the rest of the package can be imported

    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        is_locked: bool | None = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_locked = False
        except OSError:
            is_locked = None
        yield is_locked
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> list[Path]:
    """Syncs a folder to disk; returns its files, relative to it."""
    files = []
    for directory, _, names in os.walk(folder):
        files += [Path(directory) / name for name in names]
        sync(Path(directory))
    for file in files:
        sync(file)
    return [file.relative_to(folder) for file in files]
