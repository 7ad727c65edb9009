"""ReadFile: a file whose rows the state of a monitor has counted, known by its content."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from calibration_records.logs.files import LogFile


@dataclass(frozen=True)
class ReadFile:
    """A file of a log. Times are starts of hours, in seconds since 1970.

    Args:
        path: Absolute path, or address.
        content: SHA-256 of its bytes; of a file on an object store, its address, size and time of
            change, which the store tells.
        stamp: Size and times of the last change. While it is the same, so is the content.
        first: Hour of the first row that was counted; None if none was.
        last: Hour of the last row that was counted.
        next: Hour of the first row that was not counted because of `until`; None if all were.
        rows: What tells its rows, in any order, compressed in any way; None where an earlier
            version has counted them.
    """

    path: str
    content: str
    stamp: tuple[int, ...]
    first: int | None = None
    last: int | None = None
    next: int | None = None
    rows: str | None = None

    @property
    def is_counted(self) -> bool:
        """Whether rows of it were counted."""
        return self.first is not None

    def with_hours(self, hours: Iterable[int | None], until: int | None) -> ReadFile:
        """The file after its rows of these hours are counted up to `until`."""
        known = [hour for hour in hours if hour is not None]
        counted = [hour for hour in known if until is None or hour < until]
        return dataclasses.replace(
            self,
            first=min(counted) if self.first is None else self.first,
            last=max(counted),
            next=min(set(known).difference(counted), default=None),
        )

    def is_there(self) -> bool:
        """Whether the file is where it was, with the same content."""
        if is_remote(self.path) or not os.path.isfile(self.path):
            return False
        return stamp_of(self.path) == self.stamp or _sha256(self.path) == self.content


def content_of(file: LogFile) -> str:
    """What tells the content of a file, see `ReadFile`. A local file is read for it.

    Raises:
        ValueError: If the file is on the web, which does not tell whether a file has changed.
    """
    if not is_remote(file.path):
        return _sha256(file.path)
    if file.size is None or file.modified is None:
        raise ValueError(
            "Argument `log` must name files in folders or object stores if `state` is given: the "
            f"web does not tell whether a file has changed. Received: {file.path!r}."
        )
    return f"{file.path} {file.size} {file.modified}"


def stamp_of(path: str) -> tuple[int, ...]:
    """Size and times of the last change of a file; nothing for an address."""
    if is_remote(path):
        return ()
    about = os.stat(path)
    # Programs can set the first of these times, for example when they copy; not the second.
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def is_remote(path: str) -> bool:
    """Whether a path is an address."""
    return "://" in path


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
