"""MonitorState: the sums of a log and the files that they are of, kept from call to call."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration_records._check import damaged
from calibration_records.logs import LogSums, Periods, ScoredLog, log_sums
from calibration_records.logs.files import LogFile, log_files, names_files
from calibration_records.logs.query import Query, field_column
from calibration_records.logs.rows import Selection, field_columns
from calibration_records.monitoring.monitor_sums import class_sums
from calibration_records.monitoring.read_file import ReadFile, content_of, is_remote, stamp_of

if TYPE_CHECKING:
    import pyarrow

_SETTINGS = "settings"
# Of the file: another number for other sums, or other names of them.
_VERSION = 2


@dataclass(frozen=True)
class MonitorState:
    """The sums that `monitor` has of the files that it has read.

    A file is known by its content. It may be moved, renamed or deleted: its rows are counted once.
    It must not be changed, or replaced by files that hold rows of the same hours, and there must be
    no second file of the same rows, for example compressed in another way. A file whose
    labels are still coming is not counted: it may change, and is read anew by each call.

    Args:
        settings: What the sums are of: columns, condition, classes, length of a period, `since`.
        files: The files whose rows are counted.
        sums_of_classes: The sums of each class against the others, one for a log of labels 0 and 1;
            none before the first file.
    """

    settings: dict[str, Any]
    files: tuple[ReadFile, ...] = ()
    sums_of_classes: tuple[LogSums, ...] = ()

    @classmethod
    def new(
        cls,
        log: ScoredLog,
        periods: Periods,
        class_names: Sequence[str] | None,
        tolerance: float,
    ) -> MonitorState:
        """A state of no files."""
        since, _ = periods.ends
        probability = log.probability if isinstance(log.probability, str) else [*log.probability]
        settings = {
            "label": log.label,
            "probability": None if log.logit is not None else probability,
            "logit": log.logit,
            "timestamp": log.timestamp,
            "fields": [[field] if isinstance(field, str) else [*field] for field in log.fields],
            "where": log.where,
            "classes": None if class_names is None else [*class_names],
            "period": periods.length,
            "since": None if since is None else periods.name(since),
            "label_time": log.label_time,
            "delay_field": log.delay_field,
            "tolerance": None if log.label_time is None else tolerance,
        }
        return cls(settings)

    def refuse_others(self, settings: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
        """Raises if the state is of other columns, rows or periods."""
        if other := [name for name in settings if settings[name] != self.settings.get(name)]:
            old, new = (
                ", ".join(f"{name}={of.get(name)!r}" for name in other)
                for of in (self.settings, settings)
            )
            raise ValueError(
                "Argument `state` must name a new file, or the state of a monitor of the same "
                "columns, classes, periods, `where` and `since`, and for labels that come late of "
                f"the same `tolerance`. Received: {os.fspath(path)!r} with {old}; this call has "
                f"{new}."
            )

    def with_rows_of(
        self, log: ScoredLog, periods: Periods, verbose: int = 0
    ) -> tuple[MonitorState, tuple[LogSums, ...]]:
        """The state after the rows of a log that are not counted yet; and the sums of all rows.

        Of labels that come late, a file is counted when all its labels have had their time to come.
        The sums also have the rows of younger files.

        Raises:
            ValueError: As `logs.log_sums`; or rows would be counted twice, or are counted that
                `periods` leave out.
        """
        _, until = periods.ends
        settled = _settled(log, periods)
        self._refuse_earlier(log, periods)
        named = self._named(log)
        counted = {file.content: file for file in (*self.files, *named) if file.is_counted}
        _refuse_copies(named, counted)
        parts = [self.sums_of_classes] if self.sums_of_classes else []
        young: list[tuple[LogSums, ...]] = []
        for start, files in _left_to_read(named, periods):
            hours, rows = _hours(log, files, start, self.settings["classes"])
            # Of a file that is counted in part, these are not all rows.
            files = [
                file if file.is_counted else replace(file, rows=rows[file.path])
                for file in files
                if _is_before(hours.get(file.path, []), until)
            ]
            if not files:
                continue
            _refuse_copies(named, {file.content for file in files})
            for file in files:
                self._refuse_twice(named, file, hours[file.path], until)
            _refuse_rewritten(files, counted.values())
            old = [file for file in files if _is_all_before(hours[file.path], settled)]
            if old:
                parts.append(self._sums_of(log, old, periods, (start, until), verbose))
                counted |= {file.content: file.with_hours(hours[file.path], until) for file in old}
            if rest := [file for file in files if file not in old]:
                young.append(self._sums_of(log, rest, periods, (start, until), verbose))
        state = MonitorState(self.settings, tuple(counted.values()), _merged(parts))
        return state, _merged([*parts, *young])

    def _sums_of(
        self,
        log: ScoredLog,
        files: Sequence[ReadFile],
        periods: Periods,
        ends: tuple[int | None, int | None],
        verbose: int,
    ) -> tuple[LogSums, ...]:
        """The sums of some files, which do not change meanwhile."""
        part = log.of([LogFile(file.path) for file in files])
        names, tolerance = self.settings["classes"], self.settings["tolerance"]
        sums = class_sums(part, periods.length, ends, names, tolerance or 0.0, verbose)
        _refuse_changed(files)
        return tuple(sums)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state to a file, in one step: it is the old one or the new one."""
        import pyarrow

        files = [dataclasses.asdict(file) for file in self.files]
        written = json.dumps({"version": _VERSION, "settings": self.settings, "files": files})
        tables = {_SETTINGS: pyarrow.table({"key_settings": [written]})}
        for number, sums in enumerate(self.sums_of_classes):
            tables |= {f"{number}/{name}": table for name, table in sums.tables.items()}
        LogSums(tables).save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MonitorState:
        """Reads the state that `save` wrote.

        Raises:
            ValueError: If the file is damaged, another one, or of another version.
        """
        try:
            tables = LogSums.load(path).tables
            written = json.loads(tables.pop(_SETTINGS).column("key_settings")[0].as_py())
        except (ValueError, KeyError, OSError) as error:
            remedy = "Name a new file, or move this one away, to read the whole log again."
            raise damaged("state", path, "monitor", remedy) from error
        if (version := written.get("version", 1)) != _VERSION:
            raise ValueError(
                "Argument `state` must name a file that this version of `monitor` wrote, or a new "
                f"one. Received: {os.fspath(path)!r} of version {version}, and this is version "
                f"{_VERSION}. Move it away to read the whole log again."
            )
        sums_of_classes: dict[int, dict[str, pyarrow.Table]] = {}
        for name, table in tables.items():
            number, _, rest = name.partition("/")
            sums_of_classes.setdefault(int(number), {})[rest] = table
        sums = tuple(LogSums(each) for _, each in sorted(sums_of_classes.items()))
        files = [ReadFile(**{**each, "stamp": tuple(each["stamp"])}) for each in written["files"]]
        return cls(written["settings"], tuple(files), sums)

    def _named(self, log: ScoredLog) -> list[ReadFile]:
        """The files of a log; of those that are known, with what was counted."""
        if not names_files(log.source):
            raise ValueError(
                "Argument `log` must name Parquet or CSV files if `state` is given, because the "
                "state remembers which files have been read. Received: a source of type "
                f"{type(log.source).__name__}. Write each part of the log to a file of its own."
            )
        by_stamp = {(file.path, file.stamp): file.content for file in self.files if file.stamp}
        by_content = {file.content: file for file in self.files}
        named = []
        for file in log_files(log.source):
            path = file.path if is_remote(file.path) else os.path.abspath(file.path)
            stamp = stamp_of(path)
            content = by_stamp.get((path, stamp)) or content_of(file)
            known = by_content.get(content, ReadFile(path, content, stamp))
            named.append(replace(known, path=path, stamp=stamp))
        return named

    def _refuse_earlier(self, log: ScoredLog, periods: Periods) -> None:
        """Raises if rows are counted that `until` leaves out, or whose labels are not complete."""
        last = max((file.last for file in self.files if file.last is not None), default=None)
        settled, (_, until) = _settled(log, periods), periods.ends
        for name, end, given in (
            ("until", until, periods.until),
            ("observed_until", settled, log.observed_until),
        ):
            if end is not None and last is not None and last >= end:
                raise ValueError(
                    f"Argument `{name}` must not be earlier than rows that the state has counted"
                    f"{' need for their labels' * (name == 'observed_until')}. Received: "
                    f"{name}={given!r}, and the state has rows of {_name(last)}. Leave `state` "
                    "out, or name another file."
                )

    def _refuse_twice(
        self,
        named: Sequence[ReadFile],
        file: ReadFile,
        hours: Sequence[int | None],
        until: int | None,
    ) -> None:
        """Raises if a counted file is gone, and this one has rows of the same hours.

        Then it may be that file, changed or merged with others.
        """
        contents = {each.content for each in named}
        to_count = [hour for hour in hours if hour is not None and (until is None or hour < until)]
        for other in self.files:
            if other.content in contents or other.first is None or other.last is None:
                continue
            twice = [hour for hour in to_count if other.first <= hour <= other.last]
            if twice and not other.is_there():
                why = "has changed since" if other.path == file.path else "is no longer there"
                raise ValueError(
                    "Argument `log` must name files that do not change once the state has counted "
                    f"their rows. Received: {file.path!r} with rows of {_name(twice[0])}, of which "
                    f"rows of {other.path!r} are counted, which {why}: they may be the same rows. "
                    "Write new rows to new files; to count all rows anew, name another `state`."
                )


def _left_to_read(
    named: Sequence[ReadFile], periods: Periods
) -> Iterator[tuple[int | None, list[ReadFile]]]:
    """First second to read, and the files that are to be read from there."""
    since, until = periods.ends
    by_start: dict[int | None, list[ReadFile]] = {}
    for file in named:
        if not file.is_counted:
            by_start.setdefault(since, []).append(file)
        elif file.next is not None and (until is None or file.next < until):
            by_start.setdefault(file.next, []).append(file)
    yield from by_start.items()


def _hours(
    log: ScoredLog,
    files: Sequence[ReadFile],
    start: int | None,
    class_names: Sequence[str] | None,
) -> tuple[dict[str, list[int | None]], dict[str, str]]:
    """Path → the hours of its rows, in ascending order; None for times that cannot be read.

    Also path → what tells its rows, in any order: their number and the sum of their hashes.
    """
    values = ", ".join(
        ["micros", "p", "y", *(f"{field_column(f)}::VARCHAR" for f in field_columns(log))]
    )
    query = Query({"file": "f", "period": "t"}, {"rows": "1", "hash": f"hash({values})"})
    part = log.of([LogFile(file.path) for file in files])
    selection = Selection("hour", (start, None), purpose=None)
    if class_names is not None:
        selection = replace(selection, class_number=0, class_names=tuple(class_names))
    table = log_sums(part, {"hours": query}, selection, check=False).table("hours")
    hours: dict[str, list[int | None]] = {}
    totals: dict[str, np.ndarray] = {}
    sums = np.stack([table["rows"], table["hash"]], axis=1)
    for path, hour, each in zip(table["key_file"], table["key_period"].tolist(), sums, strict=True):
        path = path if is_remote(path) else os.path.normpath(path)
        hours.setdefault(path, []).append(hour)
        totals[path] = totals.get(path, 0.0) + each
    return hours, {path: " ".join(map(repr, total.tolist())) for path, total in totals.items()}


def _settled(log: ScoredLog, periods: Periods) -> int | None:
    """The second until which all labels have had their time to come; None if they are there."""
    if log.label_delay is None:
        return None
    horizon = datetime.timedelta(days=log.label_delay.horizon)
    end = datetime.datetime(1970, 1, 1) - horizon
    return periods.start(end + datetime.timedelta(microseconds=log.observed_microseconds))


def _merged(parts: Sequence[Sequence[LogSums]]) -> tuple[LogSums, ...]:
    """The sums of each class over some parts."""
    return tuple(LogSums.merged(parts_of_class) for parts_of_class in zip(*parts, strict=True))


def _is_all_before(hours: Sequence[int | None], end: int | None) -> bool:
    """Whether all rows are before a time; rows of unknown times are read now, and refused."""
    return all(hour is None or end is None or hour < end for hour in hours)


def _is_before(hours: Sequence[int | None], until: int | None) -> bool:
    """Whether there are rows before `until`, or of unknown times, which are refused later."""
    return any(hour is None or until is None or hour < until for hour in hours)


def _refuse_copies(named: Sequence[ReadFile], contents: Container[str]) -> None:
    """Raises if two files have the same content, and it is one of these."""
    path_of: dict[str, str] = {}
    for file in named:
        if file.content in path_of and file.content in contents:
            raise ValueError(
                "Argument `log` must name each row once. Received: "
                f"{path_of[file.content]!r} and {file.path!r}, which have the same content. Remove "
                "one of them."
            )
        path_of.setdefault(file.content, file.path)


def _refuse_rewritten(files: Sequence[ReadFile], counted: Iterable[ReadFile]) -> None:
    """Raises if a file holds the rows of another one, written anew."""
    by_rows = {file.rows: file for file in counted if file.rows is not None}
    for file in files:
        other = file if file.rows is None else by_rows.setdefault(file.rows, file)
        if other.content != file.content:
            raise ValueError(
                f"Argument `log` must name each row once. Received: {other.path!r} and "
                f"{file.path!r}, which hold the same rows: one is the other, written anew. Remove "
                "one of them."
            )


def _refuse_changed(files: Sequence[ReadFile]) -> None:
    for file in files:
        if stamp_of(file.path) != file.stamp:
            raise ValueError(
                "Argument `log` must name files that do not change. Received: "
                f"{file.path!r}, which changed while it was read. Call again when it is written."
            )


def _name(hour: int) -> str:
    return Periods("hour").name(hour)
