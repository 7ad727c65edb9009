"""log_files: which files a source names. No other code decides this."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from calibration_records.logs.query import text

if TYPE_CHECKING:
    import duckdb

# Suffixes of data, in upper or lower case: `part-0.snappy.parquet`, `log.csv.gz`, `LOG.CSV`.
PARQUET = (".parquet",)
CSV = (".csv", ".csv.gz", ".csv.zst")
# Names of files and folders that are being written, or hold what is beside the data.
_HIDDEN = (".", "_")


@dataclass(frozen=True)
class LogFile:
    """A file of a log: a literal path, and what changes when its content does.

    Args:
        path: Path or address. It is never a pattern, whatever characters it holds.
        size: Size in bytes; None if it is not known, as of most addresses of the web.
        modified: Time of the last change, in nanoseconds since 1970; None if it is not known.

    Example:
        >>> LogFile("log[1].CSV").is_csv, LogFile("log[1].CSV").literal
        (True, 'log[[]1].CSV')
    """

    path: str
    size: int | None = None
    modified: int | None = None

    @property
    def is_csv(self) -> bool:
        """Whether it is a CSV file, by its name; else it is a Parquet file."""
        name = self.path.partition("?")[0] if _is_web(self.path) else self.path
        return name.lower().endswith(CSV)

    @property
    def literal(self) -> str:
        """The path for DuckDB, which takes every path for a pattern."""
        if _is_web(self.path):
            return self.path  # DuckDB takes these as they are
        return re.sub(r"([*?[])", r"[\1]", self.path)


def names_files(source: Any) -> bool:
    """Whether a source is a path, glob or address of files, or a list of them.

    Example:
        >>> names_files("logs/*.parquet"), names_files([Path("a.csv"), "b.csv"]), names_files([])
        (True, True, False)
    """
    if isinstance(source, str | os.PathLike | LogFile):
        return True
    return (
        isinstance(source, Sequence)
        and len(source) > 0
        and all(isinstance(each, str | os.PathLike | LogFile) for each in source)
    )


def log_files(source: Any, connection: duckdb.DuckDBPyConnection | None = None) -> list[LogFile]:
    """The files that a source names, in the order in which their rows are numbered.

    - A path that exists is that file, or that folder, whatever characters it holds. Any other path
      is a glob: `*`, `?`, `[…]`, and `**` for folders of any depth. `file://` is a path; the object
      store lists other addresses.
    - A folder, and each folder that a glob matches, is all files in it and below whose names end in
      `.parquet`, `.csv`, `.csv.gz` or `.csv.zst`, in upper or lower case. A glob matches such files
      too, unless it ends in a suffix of its own, such as `*.pq`.
    - Files and folders whose names begin with `.` or `_` (`_temporary`, `.ipynb_checkpoints`) are
      left out, unless the path or glob names them.
    - Each folder and each glob is in the order of the paths; a list keeps its own order. A file
      that a folder or glob reaches by several ways, for example by a symbolic link, is read once.

    Args:
        source: A path, folder, glob or address, or a list of them; or files that this function has
            found, which are returned as they are.
        connection: DuckDB, for addresses such as `s3://…`. By default, a new connection.

    Raises:
        ValueError: If there are no such files, a list names one file twice, or Parquet and CSV
            files are mixed.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "_temporary").mkdir()
        >>> for name in ("b.PARQUET", "a.parquet", "a.parquet.bak", "_temporary/c.parquet"):
        ...     _ = (folder / name).write_bytes(b"")
        >>> [Path(file.path).name for file in log_files(folder)]
        ['a.parquet', 'b.PARQUET']
    """
    one = isinstance(source, str | os.PathLike | LogFile)
    given: Sequence[str | os.PathLike | LogFile] = [source] if one else source
    found: list[LogFile] = []
    names: dict[str, str] = {}  # real path → the path that is read
    for each in given:
        name = each.path if isinstance(each, LogFile) else os.fspath(each)
        files = [each] if isinstance(each, LogFile) else _named(name, connection)
        if not files:
            raise ValueError(
                f"Argument `source` must name existing Parquet or CSV files. Received: {name!r}."
            )
        for file in files:
            identity = file.path if _is_remote(file.path) else os.path.realpath(file.path)
            if identity in names:
                raise ValueError(
                    "Argument `source` must name each file once. Received: "
                    f"{names[identity]!r} and {file.path!r}, which is the same file."
                )
            names[identity] = file.path
        found += files
    _refuse_mixed(found)
    return found


def _named(name: str, connection: duckdb.DuckDBPyConnection | None) -> list[LogFile]:
    """The files of one path, folder, glob or address."""
    if name.startswith("file://"):
        name = unquote(re.sub(r"^file://(localhost(?=/))?", "", name))
    if _is_remote(name):
        return _remote(name, connection)
    if os.path.isdir(name):
        paths = _in_folder(name)
    elif os.path.exists(name):
        paths = [name]
    else:
        paths = _matched(name)
    return [_local(path) for path in _once(paths)]


def _matched(pattern: str) -> list[str]:
    """What a glob matches: data files, and those in matched folders."""
    suffix = Path(pattern).suffix
    has_suffix = suffix not in ("", *PARQUET, *CSV) and not glob.has_magic(suffix)
    found = []
    for path in _expanded("", Path(pattern).parts):
        if os.path.isdir(path):
            found += _in_folder(path)
        elif has_suffix or is_data(path):
            found.append(path)
    return found


def _expanded(base: str, parts: Sequence[str]) -> Iterator[str]:
    """The paths of a glob below a folder. Links are followed, but never in a circle."""
    if not parts:
        yield base
        return
    part, rest = parts[0], parts[1:]
    if part == "**":
        for folder, _ in _walked(base):
            yield from _expanded(folder, rest)
    elif not glob.has_magic(part):
        if os.path.lexists(path := os.path.join(base, part)):
            yield from _expanded(path, rest)
    elif os.path.isdir(base or "."):
        for name in _listed(base):
            is_asked = not name.startswith(_HIDDEN) or part.startswith(_HIDDEN)
            if is_asked and fnmatch.fnmatchcase(name, part):
                yield from _expanded(os.path.join(base, name), rest)


def _in_folder(folder: str) -> list[str]:
    """The data files in a folder and below, also where symbolic links lead."""
    return [
        os.path.join(root, name)
        for root, names in _walked(folder)
        for name in names
        if is_data(name) and not name.startswith(_HIDDEN)
    ]


def _walked(folder: str) -> Iterator[tuple[str, list[str]]]:
    """A folder and those below that are not hidden, with the names of their files; each once."""
    entered = set()
    for root, folders, names in os.walk(folder or ".", followlinks=True, onerror=_refuse):
        real = os.path.realpath(root)
        if real in entered:  # by another link, or a circle
            folders.clear()
            continue
        entered.add(real)
        folders[:] = sorted(each for each in folders if not each.startswith(_HIDDEN))
        yield root, names


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    raise ValueError(
        f"Argument `source` must name folders and files that can be read. Received: {error}."
    ) from error


def is_data(path: str) -> bool:
    """Whether a name is that of a Parquet or CSV file.

    Example:
        >>> [is_data(name) for name in ("b.PARQUET", "a.csv.gz", "a.parquet.bak", "_SUCCESS")]
        [True, True, False, False]
    """
    return path.lower().endswith(PARQUET + CSV)


def _once(paths: Iterable[str]) -> list[str]:
    """Each file once: by its own name, if there are links to it too."""
    by_identity: dict[str, str] = {}
    for path in sorted(paths, key=lambda each: (os.path.islink(each), each)):
        by_identity.setdefault(os.path.realpath(path), path)
    return sorted(by_identity.values())


def _local(path: str) -> LogFile:
    if "\\" in path and re.search(r"[*?[]", path):
        raise ValueError(
            "Argument `source` must name files that DuckDB can open: it cannot where a path holds "
            f"a backslash and one of * ? [. Received: {path!r}. Rename the file."
        )
    try:
        about = os.stat(path)
    except OSError as error:  # for example a link to a file that is not there
        _refuse(error)
    return LogFile(path, about.st_size, about.st_mtime_ns)


def _is_remote(name: str) -> bool:
    return "://" in name and not name.startswith("file://")


def _is_web(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def _remote(name: str, connection: duckdb.DuckDBPyConnection | None) -> list[LogFile]:
    """The files of an address, as their store lists them."""
    if _is_web(name):
        return [LogFile(name)]  # the web has no lists of files
    if connection is None:
        import duckdb

        with duckdb.connect() as own:
            return _remote(name, own)
    is_file = is_data(name) and not glob.has_magic(name)
    pattern = name if is_file or glob.has_magic(name) else f"{name.rstrip('/')}/**"
    sql = f"SELECT file FROM glob({text(pattern)}) ORDER BY file"
    paths = [path for (path,) in connection.execute(sql).fetchall()]
    paths = [path for path in paths if is_data(path) and not _is_beside(path, pattern)]
    if not paths:
        return []
    listed = ", ".join(text(LogFile(path).literal) for path in paths)
    sql = f"SELECT filename, size, epoch_us(last_modified) FROM read_blob([{listed}])"
    stamps = {path: about for path, *about in connection.execute(sql).fetchall()}
    found = []
    for path in paths:
        size, modified = stamps.get(path, (None, None))
        found.append(LogFile(path, size, None if modified is None else modified * 1000))
    return found


def _is_beside(path: str, pattern: str) -> bool:
    """Whether a part of a path is hidden, and no part of the pattern asks for it."""
    asked = [part for part in Path(pattern).parts if part.startswith(_HIDDEN)]
    return any(
        part.startswith(_HIDDEN)
        and part not in (".", "..")
        and not any(fnmatch.fnmatchcase(part, each) for each in asked)
        for part in Path(path).parts
    )


def _refuse_mixed(files: Sequence[LogFile]) -> None:
    csv = [file.path for file in files if file.is_csv]
    if csv and len(csv) < len(files):
        parquet = next(file.path for file in files if not file.is_csv)
        raise ValueError(
            "Argument `source` must name Parquet files or CSV files, and not both. Received: "
            f"{len(csv)} CSV files, for example {csv[0]!r}, and {len(files) - len(csv)} others, "
            f"for example {parquet!r}. Name those of one kind, for example with a glob."
        )
