"""The place of an export: created in one step, also with concurrent exports."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from calibration_records._check import instance, integer, refused
from calibration_records._files import sync

# Not a number, so that TensorFlow Serving does not take it for a version.
_PREFIX = ".export-"
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
        """Raises, before anything is computed, if the place is taken or the version invalid."""
        if self.version not in (None, NEXT):
            integer(
                "version", self.version, 0, f'Or pass "{NEXT}", or None: `path` is the version.'
            )
        target = self.path if self.version is None else self.path / str(self.version)
        if self.version != NEXT and os.path.lexists(target):
            raise self._build_path_error(target)
        folder = next(parent for parent in target.parents if os.path.lexists(parent))
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise refused(
                "path",
                "in a folder in which this process may write",
                str(self.path),
                f"Look at {str(folder)!r}.",
            )

    @property
    def _folder(self) -> Path:
        """The folder in which the place is."""
        return self.path.parent if self.version is None else self.path

    @contextlib.contextmanager
    def temporary_path(self) -> Iterator[Path]:
        """A path in a temporary folder next to the place or above it, for writing the export."""
        # Folders are made when the export moves: after an error, none is left.
        above = (self._folder, *self._folder.parents)
        parent = next(folder for folder in above if folder.is_dir())
        with tempfile.TemporaryDirectory(
            prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder, self.path.name if self.is_file else "model")

    def move(self, source: Path) -> Path:
        """Moves the export into place in one step, synced to disk, and returns its path.

        Raises:
            ValueError: If the place is taken; with `"next"`, another number is chosen instead.
        """
        # All contents reach the disk before the name does: a crash leaves no half-written version.
        for path in (source, *source.rglob("*")):
            sync(path)
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            name = (
                1 + max(versions_in(self.path), default=0) if self.version == NEXT else self.version
            )
            target = self.path if self.version is None else self.path / str(name)
            try:
                # Creating the file fails if it exists, so that only one process gets the place; the
                # replacement then overwrites its own empty file.
                if self.is_file:
                    target.touch(exist_ok=False)
                    os.replace(source, target)
                else:
                    # Fails if the target is not empty: another process may have written it.
                    os.rename(source, target)
            except OSError as error:
                if not os.path.lexists(target):
                    raise
                # Another process took the number: try the next one.
                if self.version != NEXT:
                    raise self._build_path_error(target) from error
                continue
            sync(self._folder)
            return target

    def _build_path_error(self, path: Path) -> ValueError:
        new = "file" if self.is_file else f'folder, such as version="{NEXT}"'
        return ValueError(
            f"Argument `path` must be new. Received: path={str(path)!r}, which exists. An export "
            f"never overwrites: choose a new {new}."
        )


def as_path(path: object) -> Path:
    """The argument `path` of a user; raises if it is no path."""
    instance("path", path, (str, os.PathLike), "a path")
    return Path(cast(str, path))


def versions_in(folder: Path) -> dict[int, Path]:
    """Version number → folder in a model's folder; empty if the latter does not exist.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("1", "10", "009", ".export-a", "notes.txt"):
        ...         (Path(folder) / name).mkdir()
        ...     {n: path.name for n, path in sorted(versions_in(Path(folder)).items())}
        {1: '1', 9: '009', 10: '10'}
    """
    if not folder.is_dir():
        return {}
    return {
        int(entry.name): entry
        for entry in folder.iterdir()
        if entry.name.isascii() and entry.name.isdecimal()
    }
