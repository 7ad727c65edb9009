"""The state of a daily monitor counts each row once, or says why it cannot."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from calibration_records.cli import main
from calibration_records.monitoring import monitor
from calibration_records.monitoring.monitor_state import MonitorState
from keras_calibration.logs import LogSums, Periods, ScoredLog

START = np.datetime64("2026-03-01")
ROWS = 400


def make_day(day, seed=0, rows=ROWS, factor=1.0):
    """The rows of a day, of which the labels are right with a factor of 1."""
    rng = np.random.default_rng([day, seed])
    p = 1 / (1 + np.exp(-rng.normal(-1.5, 1, rows)))
    seconds = np.sort(rng.integers(0, 86400, rows)).astype("timedelta64[s]")
    columns = {
        "timestamp": START + np.timedelta64(day, "D") + seconds,
        "site": rng.choice(["news", "mail", "shop"], rows),
        "probability": p,
        "other": p / 2,
        "label": (rng.random(rows) < factor * p).astype(int),
        "clicked": (rng.random(rows) < p).astype(int),
    }
    return pa.table(columns)


def write(table, path, **options):
    kind = pyarrow.csv.write_csv if path.suffix == ".csv" else pyarrow.parquet.write_table
    kind(table, path, **options)
    return path


class Job:
    """A folder of files, and a monitor with a state that is called now and then."""

    def __init__(self, folder):
        self.log, self.state = folder / "log", folder / "state"
        self.log.mkdir()

    def add(self, day, name=None, **options):
        return write(make_day(day, **options), self.log / (name or f"{day}.parquet"))

    def report(self, **options):
        return monitor(options.pop("log", self.log), state=self.state, **options)

    def num_rows(self, **options):
        return self.report(**options).overall.num_rows

    def refuses(self, words, **options):
        """Whether a call is refused, and leaves the state as it is."""
        before = self.state.read_bytes()
        with pytest.raises(ValueError, match=words):
            self.report(**options)
        assert self.state.read_bytes() == before
        assert not [path for path in self.state.parent.iterdir() if path.suffix == ".tmp"]


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def assert_same(one, two):
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for name in one:
            assert_same(one[name], two[name])
    elif isinstance(one, list):
        assert len(one) == len(two)
        for parts in zip(one, two, strict=True):
            assert_same(*parts)
    else:
        assert one == (pytest.approx(two, rel=1e-9) if isinstance(two, float) else two)


def test_files_of_past_days_are_counted_when_they_arrive(job):
    options = {"fields": ["site", ("site", "clicked")]}
    alerts = []
    for day in (0, 3, 1, 2):  # the second day comes last but one
        job.add(day, factor=0.4 if day == 2 else 1.0)
        daily, whole = job.report(**options), monitor(job.log, **options)
        assert_same(daily.to_dict(), whole.to_dict())
        alerts.append(daily.is_alert)
    assert alerts == [False, False, False, True]
    job.add(3, "late.parquet", seed=1)
    daily, whole = job.report(**options), monitor(job.log, **options)
    assert_same(daily.to_dict(), whole.to_dict())


@pytest.mark.slow
def test_shifts_are_those_of_a_run_from_the_start(job):
    # Four weeks in files of some days each, one of them late; a value appears in the third.
    days = []
    for day in range(28):
        table = make_day(day, factor=1.5 if day > 16 else 1.0)
        site = table["site"].to_numpy(zero_copy_only=False)
        site = np.where((np.arange(ROWS) % 5 == 0) & (day > 15), "new", site)
        days.append(table.set_column(1, "site", pa.array(site)))
    options = {"fields": ["site"], "tolerance": 0.0}
    for number, (first, last) in enumerate([(0, 3), (10, 11), (3, 10), (11, 20), (20, 28)]):
        write(pa.concat_tables(days[first:last]), job.log / f"{number}.parquet")
        daily, whole = job.report(**options), monitor(job.log, **options)
        assert_same(daily.to_dict(), whole.to_dict())
    assert daily.overall.is_off
    assert daily.overall.shift.since in ("2026-03-17", "2026-03-18", "2026-03-19")
    assert "new" in {rates.name for rates in daily.fields["site"].values}


@pytest.mark.slow
def test_no_clock_decides_what_is_read(job, monkeypatch):
    job.add(0)
    for now in (0.0, 4e9, 1e9):  # 1970, 2096, 2001
        monkeypatch.setattr("time.time", lambda now=now: now)
        assert job.num_rows() == ROWS
    job.add(1)
    assert job.num_rows() == 2 * ROWS
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        job.add(2)
        assert job.num_rows() == 3 * ROWS
    finally:
        monkeypatch.undo()
        time.tzset()


def test_files_that_are_known_are_not_read_again(job, monkeypatch):
    job.add(0)
    job.report()
    read = []
    import calibration_records.monitoring.monitor_state as module

    monkeypatch.setattr(module, "log_sums", lambda log, *_, **__: read.append(log.source))
    assert job.num_rows() == ROWS
    assert read == []


@pytest.mark.slow
def test_files_may_be_renamed_moved_touched_and_deleted(job):
    first, _ = job.add(0), job.add(1)
    assert job.num_rows() == 2 * ROWS
    (job.log / "below [1]").mkdir()
    moved = shutil.move(first, job.log / "below [1]" / "année*.parquet")
    assert job.num_rows() == 2 * ROWS
    os.utime(moved, (0, 0))
    assert job.num_rows() == 2 * ROWS
    os.remove(moved)
    assert job.num_rows() == 2 * ROWS
    job.add(2)
    assert job.num_rows() == 3 * ROWS


@pytest.mark.slow
def test_rotated_logs_are_counted_once(job):
    for day in range(3):
        for older in range(day, 0, -1):
            (job.log / f"{older - 1}.csv").rename(job.log / f"{older}.csv")
        job.add(day, "0.csv")
        assert job.num_rows() == (day + 1) * ROWS


@pytest.mark.slow
def test_a_file_of_one_name_may_hold_each_day(job):
    for day in range(3):
        job.add(day, "today.parquet")
        assert job.num_rows() == (day + 1) * ROWS


@pytest.mark.slow
def test_new_files_may_be_named_alone(job, monkeypatch):
    first = job.add(0)
    monkeypatch.chdir(job.log)
    assert job.num_rows(log="0.parquet") == ROWS
    job.add(0, "late.parquet", seed=1)  # the same day; the first file is still there
    assert job.num_rows(log=["late.parquet"]) == 2 * ROWS
    assert job.num_rows(log=first) == 2 * ROWS


def changed(job, path):
    table = pyarrow.parquet.read_table(path)
    labels = pa.array(1 - table["label"].to_numpy())
    write(table.set_column(table.column_names.index("label"), "label", labels), path)


def appended(job, path):
    write(pa.concat_tables([make_day(0), make_day(2)]), path)


def merged(job, path):
    os.remove(path)
    write(pa.concat_tables([make_day(0), make_day(2)]), job.log / "all.parquet")


def compressed(job, path):
    write(make_day(0), path, compression="gzip")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed, "rows of 2026-03-01T00:00, of which rows of .*0.parquet' .* has changed since"),
        (appended, "has changed since"),
        (merged, "all.parquet' with rows of 2026-03-01T00:00, of .*0.parquet' .* no longer there"),
        (compressed, "has changed since"),
    ],
)
def test_rows_that_may_be_counted_twice_are_refused(job, change, words):
    path = job.add(0)
    job.add(1)
    job.report()
    times = path.stat().st_atime, path.stat().st_mtime
    change(job, path)
    if path.exists():
        os.utime(path, times)  # as a copy that keeps the times has it
    job.refuses(words)
    job.state.unlink()
    assert job.num_rows() == monitor(job.log).overall.num_rows


def test_a_csv_file_that_is_appended_to_is_refused(job):
    path = job.add(0, "log.csv")
    job.report()
    with path.open("a") as file:
        file.write(path.read_text().splitlines()[-1] + "\n")
    job.refuses("log.csv'.* has changed since")


def test_a_copy_beside_its_file_is_refused(job):
    shutil.copy(job.add(0), job.log / "copy.parquet")
    with pytest.raises(ValueError, match=r"0.parquet' and .*copy.parquet', which have the same"):
        job.report()
    (job.log / "copy.parquet").unlink()
    assert job.num_rows() == ROWS
    shutil.copy(job.log / "0.parquet", job.log / "copy.parquet")
    job.refuses("have the same content")


def compressed_anew(path, other):
    write(pyarrow.parquet.read_table(path), other, compression="zstd")


def in_other_row_groups_and_order(path, other):
    table = pyarrow.parquet.read_table(path)
    order = np.random.default_rng(0).permutation(len(table))
    write(table.take(order), other, row_group_size=50)


def with_more_columns_in_another_order(path, other):
    table = pyarrow.parquet.read_table(path)
    table = table.select(table.column_names[::-1]).append_column("new", table["other"])
    write(table.cast(table.schema.set(1, pa.field("label", pa.int8()))), other)


def as_text(path, other):
    write(pyarrow.parquet.read_table(path), other)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("folder", ["log", "archive"])
@pytest.mark.parametrize(
    "rewritten",
    [
        compressed_anew,
        in_other_row_groups_and_order,
        with_more_columns_in_another_order,
        as_text,
    ],
)
def test_a_file_that_is_written_anew_is_not_counted_twice(job, rewritten, folder):
    if rewritten is as_text and folder == "log":
        pytest.skip("A log has files of one kind.")
    path = job.add(0)
    job.add(0, "late.parquet", seed=1)
    assert job.num_rows(fields=["site"]) == 2 * ROWS
    log = job.log.parent / folder
    log.mkdir(exist_ok=True)
    other = log / ("anew.csv" if rewritten is as_text else "anew.parquet")
    rewritten(path, other)
    words = r"0.parquet' and .*anew.*', which hold the same rows"
    job.refuses(words, fields=["site"], log=log)
    other.unlink()
    assert job.num_rows(fields=["site"]) == 2 * ROWS
    if rewritten is not as_text:
        job.state.unlink()
        rewritten(path, other)
        with pytest.raises(ValueError, match="which hold the same rows"):
            job.report(fields=["site"], log=[path, other])


@pytest.mark.slow
def test_files_of_the_same_hours_are_others_if_a_row_differs(job):
    """Of 400 rows, one has another label, field value, time or prediction."""
    options = {"fields": ["site"], "state": job.state}
    assert monitor(job.add(0), **options).overall.num_rows == ROWS
    for number, (column, value) in enumerate(
        {"label": 1, "site": "shop", "timestamp": START, "probability": 0.5}.items(), start=2
    ):
        table = make_day(0)
        values = table[column].to_numpy().copy()
        row = int(np.flatnonzero(values != value)[0])
        values[row] = value
        table = table.set_column(table.column_names.index(column), column, pa.array(values))
        path = write(table, job.log / f"{column}.parquet")
        assert monitor(path, **options).overall.num_rows == number * ROWS


def test_a_state_of_an_earlier_version_is_read(job):
    job.add(0)
    job.report()
    state = MonitorState.load(job.state)
    files = tuple(dataclasses.replace(file, rows=None) for file in state.files)
    dataclasses.replace(state, files=files).save(job.state)
    job.add(1)
    assert job.num_rows() == 2 * ROWS


@pytest.mark.slow
def test_files_without_rows_are_no_copies(job):
    job.add(0)
    for name in ("a", "b"):
        job.add(1, f"{name}.parquet", rows=0)
    assert job.num_rows() == ROWS
    job.add(1, "b.parquet")  # now it has rows
    assert job.num_rows() == 2 * ROWS


def test_an_empty_or_partial_file_leaves_the_state(job):
    job.add(0, "0.csv")
    job.report()
    (job.log / "1.csv").write_bytes(b"")
    job.refuses("1.csv', which is empty")
    whole = job.add(1, "1.csv").read_bytes()
    (job.log / "1.csv").write_bytes(whole[: len(whole) // 2 - 15])
    try:
        partial = job.num_rows()  # the file may end with a whole line
    except ValueError:
        (job.log / "1.csv").write_bytes(whole)
        assert job.num_rows() == 2 * ROWS
    else:
        assert ROWS < partial < 2 * ROWS
        (job.log / "1.csv").write_bytes(whole)
        job.refuses("has changed since")
    write(make_day(2), job.log / "2.parquet")
    job.refuses("Parquet files or CSV files, and not both")


def test_a_file_that_changes_while_it_is_read_is_refused(job, monkeypatch):
    path = job.add(0)
    import calibration_records.monitoring.monitor_state as module

    def read(log, *arguments):
        write(make_day(5), path)
        return original(log, *arguments)

    original = module.class_sums
    monkeypatch.setattr(module, "class_sums", read)
    with pytest.raises(ValueError, match="changed while it was read"):
        job.report()
    assert not job.state.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["log.parquet", "log.csv"])
def test_rows_beyond_until_are_counted_later(job, name):
    write(pa.concat_tables([make_day(day) for day in range(4)]), job.log / name)
    for until, days in ((1, 1), (1, 1), (3, 3), (9, 4)):
        if until == 3:
            job.add(4, f"later-{name}")
        period = Periods("day", until=str(START + np.timedelta64(until, "D")))
        expected = monitor(job.log, period=period, fields=["site"])
        report = job.report(period=period, fields=["site"])
        assert_same(report.to_dict(), expected.to_dict())
        assert len(report.periods) == days + (until == 9)
    job.refuses(
        "Argument `until` must not be earlier",
        period=Periods("day", until="2026-03-02"),
        fields=["site"],
    )


def test_labels_may_arrive_until_their_rows_are_counted(job):
    job.add(0)
    late = make_day(1)
    unknown = pa.nulls(ROWS, pa.int64())
    place = late.column_names.index("label")
    write(late.set_column(place, "label", unknown), job.log / "1.parquet")
    assert job.num_rows(period=Periods("day", until="2026-03-02")) == ROWS
    job.refuses("400 invalid labels")
    write(late, job.log / "1.parquet")
    assert job.num_rows() == 2 * ROWS


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "options",
    [
        {"probability": "other"},
        {"label": "clicked"},
        {"fields": ["site"]},
        {"period": "hour"},
        {"period": Periods("day", since="2026-03-01")},
        {"where": "site = 'news'"},
        {"logit": "probability"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_state_of_other_columns_rows_or_periods_is_refused(job, options):
    job.add(0)
    job.report()
    log_options = {name: options[name] for name in ("where", "logit") if name in options}
    if log_options:
        options = {"log": ScoredLog(job.log, timestamp="timestamp", **log_options)}
    job.refuses(
        "the state of a monitor of the same columns.*Received: .* with .*; this call", **options
    )


def test_sources_that_are_no_files_are_refused(job):
    path = job.add(0)
    job.report()
    table = pyarrow.parquet.read_table(path)
    for log in (
        table,
        table.to_pandas(),
        duckdb.sql(f"FROM '{path}'"),
        ScoredLog(table, timestamp="timestamp"),
    ):
        job.refuses("must name Parquet or CSV files if `state` is given", log=log)
    with pytest.raises(ValueError, match="name existing Parquet or CSV files"):
        job.report(log=job.log / "nothing")


@pytest.mark.parametrize("name", ["not there/state", "log"])
def test_a_state_that_cannot_be_written_is_refused_before_the_work(job, name):
    job.add(0, "0.csv")
    (job.log / "0.csv").write_text("a log that would be refused")
    with pytest.raises(ValueError, match="Argument `state` must be the path of a file in a folder"):
        monitor(job.log, state=job.log.parent / name)


@pytest.mark.parametrize("name", ["state.parquet", "State.CSV.gz"])
def test_a_state_named_like_a_file_of_the_log_is_refused(job, name):
    # In the folder of the log, the next call read it as rows.
    job.add(0)
    with pytest.raises(ValueError, match="must not be named like a file of a log"):
        monitor(job.log, state=job.log / name)
    assert not (job.log / name).exists()


def test_damage_of_a_state_is_noticed(job):
    job.add(0)
    job.report(fields=["site"])
    whole = job.state.read_bytes()
    rng = np.random.default_rng(0)
    for place in [0, len(whole) - 1, *rng.integers(0, len(whole), 60)]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        job.state.write_bytes(damaged)
        job.refuses("which is damaged, or another file", fields=["site"])
    for other in (b"", whole[:-1], whole + b"\0", whole[:1000]):
        job.state.write_bytes(other)
        job.refuses("which is damaged, or another file", fields=["site"])
    LogSums({}).save(job.state)
    job.refuses("which is damaged, or another file", fields=["site"])


@pytest.mark.parametrize(("version", "told"), [(None, 1), (1, 1), (99, 99)])
def test_a_state_of_another_version_is_refused(job, version, told):
    job.add(0)
    job.report()
    tables = LogSums.load(job.state).tables
    written = json.loads(tables["settings"]["key_settings"][0].as_py())
    del written["version"]
    written |= {} if version is None else {"version": version}
    tables["settings"] = pa.table({"key_settings": [json.dumps(written)]})
    LogSums(tables).save(job.state)
    job.refuses(f"of version {told}, and this is version")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_state_that_cannot_be_replaced_stays(job, monkeypatch, step):
    job.add(0)
    job.report()
    job.add(1)
    before = job.state.read_bytes()

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(f"os.{step}", fail)
    with pytest.raises(OSError, match="No space"):
        job.report()
    assert sorted(path.name for path in job.state.parent.iterdir()) == ["log", "state"]
    assert job.state.read_bytes() == before


def test_calls_at_once_leave_a_whole_state(job):
    for day in range(3):
        job.add(day)
    job.report()
    state, errors = MonitorState.load(job.state), []

    def save():
        try:
            for _ in range(20):
                state.save(job.state)
                MonitorState.load(job.state)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(path.name for path in job.state.parent.iterdir()) == ["log", "state"]


@pytest.mark.slow
def test_what_another_call_has_overwritten_is_read_again(job):
    job.add(0)
    job.report()
    slow = job.state.read_bytes()  # what a call began with, which ends after the next one
    job.add(1)
    assert job.num_rows() == 2 * ROWS
    job.state.write_bytes(slow)
    assert job.num_rows() == 2 * ROWS


@pytest.mark.slow
def test_a_state_moves_to_another_machine(job, tmp_path):
    for day in range(2):
        job.add(day)
    job.report()
    other = tmp_path / "other machine"
    shutil.copytree(job.log, other)  # with new times of change
    shutil.rmtree(job.log)
    write(make_day(2), other / "2.parquet")
    assert job.num_rows(log=other) == 3 * ROWS


@pytest.mark.slow
def test_a_linked_state_is_replaced_where_it_is(job):
    job.add(0)
    target = job.state.parent / "target"
    job.state.symlink_to(target)
    assert job.num_rows() == ROWS
    assert job.state.is_symlink()
    assert job.num_rows() == ROWS
    assert MonitorState.load(target).files[0].path == str(job.log / "0.parquet")


@pytest.mark.slow
def test_hours_that_summer_time_repeats_are_in_utc(job):
    texts = ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]  # Berlin, an hour apart
    for number, text in enumerate(texts):
        table = pa.table(
            {"timestamp": [text] * 50, "probability": [0.5] * 50, "label": [0, 1] * 25}
        )
        write(table, job.log / f"{number}.csv")
        report = job.report(period="hour")
    assert [period.rates.name for period in report.periods] == [
        "2026-10-25T00:00",
        "2026-10-25T01:00",
    ]
    assert [period.rates.num_rows for period in report.periods] == [50, 50]


@pytest.mark.slow
def test_files_of_other_columns_are_one_log(job):
    job.add(0)
    job.report(fields=["site"])
    write(make_day(1).append_column("more", pa.array([[1]] * ROWS)), job.log / "1.parquet")
    assert job.num_rows(fields=["site"]) == 2 * ROWS
    write(make_day(2).drop_columns("site"), job.log / "2.parquet")
    job.refuses("no columns .'site'.", fields=["site"])
    ids = pa.array(range(ROWS))
    write(make_day(2).set_column(1, "site", ids), job.log / "2.parquet")
    job.refuses("each column of a field has one type", fields=["site"])


@pytest.mark.slow
def test_a_state_of_classes(tmp_path):
    job, names = Job(tmp_path), ["cat", "dog", "bird"]
    rng = np.random.default_rng(0)
    for day in range(2):
        p = rng.dirichlet([1, 1, 1], ROWS)
        labels = (p.cumsum(axis=1) > rng.random((ROWS, 1))).argmax(axis=1)
        table = pa.table(
            {
                "timestamp": [str(START + np.timedelta64(day, "D"))] * ROWS,
                "label": labels,
                "p": list(p),
            }
        )
        write(table, job.log / f"{day}.parquet")
        for options in ({"classes": names}, {}):  # the state knows the names
            report = job.report(probability="p", **options)
            expected = monitor(job.log, probability="p", classes=names)
            assert_same(report.to_dict(), expected.to_dict())
    job.refuses("same columns, classes", probability="p", classes=["a", "b", "c"])


def test_the_command_keeps_a_state(job, capsys):
    job.add(0)
    arguments = ["monitor", str(job.log), "--state", str(job.state)]
    assert main(arguments) == 0
    job.add(1)
    assert main(arguments) == 0
    assert re.search(r"^all +800 ", capsys.readouterr().out, re.MULTILINE)
    assert main([*arguments, "--since", "2026-03-02"]) == 2
    assert "the same columns, classes, periods" in capsys.readouterr().err


WORKER = """
import os, shutil, sys
from calibration_records.monitoring import monitor

log, old, state = sys.argv[1:]
while True:
    shutil.copy(old, state + ".copy")
    os.replace(state + ".copy", state)
    print("go", flush=True)
    monitor(log, state=state, fields=["site"])
"""


@pytest.mark.slow
def test_killed_at_any_moment_the_state_is_the_old_or_the_new_one(job):
    job.add(0)
    job.report(fields=["site"])
    old = shutil.copy(job.state, job.state.parent / "old")
    job.add(1)
    for delay in np.random.default_rng(0).uniform(0, 0.6, 3):
        arguments = [sys.executable, "-c", WORKER, str(job.log), str(old), str(job.state)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
            for _ in range(3):  # the first calls take longer
                assert process.stdout.readline() == b"go\n"
            time.sleep(delay)
            process.kill()
        left = MonitorState.load(job.state)
        rows = left.sums_of_classes[0].table("rows")["rows"].sum()
        assert rows == ROWS * len(left.files)
        assert job.num_rows(fields=["site"]) == 2 * ROWS
