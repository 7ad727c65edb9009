"""The ledger under attack: killed writers, full disks, damaged files, clocks, hostile names."""

import collections
import datetime
import io
import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import time

import pandas as pd
import pytest
from calibration_records.pages.comparison_page import report_html, write_report

from calibration_records.runs import ledger
from keras_calibration.seeds import Ledger, compare
from tiers import attack_size, only_in_full_attack

pytestmark = pytest.mark.slow

RUN = {
    "pipeline": "deepfm",
    "seed": 1,
    "status": "finished",
    "epochs": [0, 1, 2],
    "metrics": {"val_loss": [0.3, 0.2, 0.1]},
}

# The name of the command keeps Keras out, so that a process starts in a tenth of a second.
PREAMBLE = """
import os, sys
from calibration_records import Ledger
assert "keras" not in sys.modules and "numpy" not in sys.modules
runs = Ledger(sys.argv[1])
record = {"pipeline": "deepfm", "epochs": list(range(100))}
values = {"metrics": {"val_loss": [0.1] * 100}}
"""
# Notes each run whose write has returned, in a file of its own that is on the disk by then.
WRITER = f"""{PREAMBLE}
number, notes = int(sys.argv[2]), open(sys.argv[3], "a")
def note(text):
    print(text, file=notes, flush=True)
    os.fsync(notes.fileno())
note("ready")
for seed in range(number * 10**6, (number + 1) * 10**6):
    run_id = runs.append({{**record, "seed": seed, "status": "started"}})
    note(f"{{seed}} started")
    runs.finish(run_id, {{**record, "seed": seed, "status": "finished", **values}})
    note(f"{{seed}} finished")
"""
READER = f"""{PREAMBLE}
print("ready", flush=True)
while True:
    for run in runs.runs():
        assert run["epochs"] == record["epochs"]
        assert run["status"] == "started" or run["metrics"] == values["metrics"]
"""


def start(program, *arguments):
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=-1)


class Writers:
    """Processes that write to one ledger; one that is killed is replaced by a new one."""

    def __init__(self, folder, notes, num_writers):
        self.folder, self.notes, self.num_started = folder, notes, 0
        notes.mkdir()
        self.running = [self.start() for _ in range(num_writers)]

    def start(self):
        note = self.notes / str(self.num_started)
        note.touch()
        self.num_started += 1
        return start(WRITER, self.folder, self.num_started - 1, note), note

    def kill(self, place):
        process, note = self.running[place]
        while not note.read_text():  # Otherwise most are killed while Python starts.
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(random.random() * 0.05)
        assert process.poll() is None
        process.kill()
        process.wait()
        process.stdout.close()

    def noted(self):
        """Seed → status in the last note of it."""
        lines = [line for note in self.notes.iterdir() for line in note.read_text().splitlines()]
        return dict(line.split() for line in lines if line != "ready")


def test_killed_writers_lose_no_run_and_readers_never_fail(tmp_path):
    folder = tmp_path / "runs"
    num_kills = attack_size(4, 200)
    writers = Writers(folder, tmp_path / "notes", attack_size(3, 8))
    while not folder.is_dir():
        time.sleep(0.001)
    readers = [start(READER, folder) for _ in range(attack_size(1, 2))]
    for reader in readers:
        assert reader.stdout.readline() == b"ready\n"
    for kill in range(num_kills):
        place = random.randrange(len(writers.running))
        writers.kill(place)
        writers.running[place] = writers.start()
        if kill % 20 == 10:  # A reader may die too.
            assert readers[0].poll() is None
            readers[0].kill()
            readers[0].communicate()
            readers[0] = start(READER, folder)
    for place in range(len(writers.running)):
        writers.kill(place)
    for reader in readers:
        # Still reading: no read has failed.
        assert reader.poll() is None
        reader.kill()
        reader.communicate()

    found = collections.Counter(run["seed"] for run in Ledger(folder).runs())
    status = {run["seed"]: run["status"] for run in Ledger(folder).runs()}
    noted = writers.noted()
    assert len(noted) >= num_kills
    assert set(found.values()) == {1}
    for seed, known in noted.items():
        assert status[int(seed)] in (known, "finished")
    # A killed writer is at most one run ahead of its notes.
    assert len(found) <= len(noted) + writers.num_started
    # What the killed ones left goes a day later, with the first run that is appended.
    left = [path for path in folder.iterdir() if path.suffix == ".tmp"]
    assert len(left) <= writers.num_started + num_kills // 20 + 2
    for path in left:
        os.utime(path, (time.time() - 25 * 3600,) * 2)
    Ledger(folder).append(RUN)
    assert not [path for path in folder.iterdir() if path.suffix == ".tmp"]
    print(f"{writers.num_started} kills, {len(noted)} returned writes, {len(left)} left-overs")


def test_processes_that_start_read_and_write_at_once(tmp_path):
    """As trainings do: at its start each reads all runs."""
    runs = Ledger(tmp_path)
    for seed in range(attack_size(40, 600)):
        runs.append({**RUN, "seed": seed})
    program = f"""{PREAMBLE}
for seed in range(int(sys.argv[2])):
    runs.runs("deepfm")
    run_id = runs.append({{**record, "seed": seed, "status": "started"}})
    runs.finish(run_id, {{**record, "seed": seed, "status": "finished", **values}})
"""
    num_processes, num_starts = attack_size((3, 8), (8, 40))
    before = len(runs)
    processes = [start(program, tmp_path, num_starts) for _ in range(num_processes)]
    assert [process.wait() for process in processes] == [0] * num_processes
    for process in processes:
        process.stdout.close()
    assert len(runs.runs(status="finished")) == before + num_processes * num_starts


# Standard output of a child that may write files of a few thousand bytes only.
FULL_DISK = f"""{PREAMBLE}
import json, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
finished = {{**record, "pipeline": "full", "seed": 1, "status": "finished"}}
started = runs.append({{**finished, "status": "started"}})
errors = []
for action in (
    lambda: runs.append({{**finished, "configuration": "x" * 5000}}),
    lambda: runs.finish(started, {{**finished, "configuration": "x" * 5000}}),
):
    try:
        action()
    except OSError as error:
        errors.append(str(error))
num_read = len(runs.runs())
runs.finish(started, finished)
print(json.dumps([errors, num_read, [run["status"] for run in runs.runs("full")]]))
"""


def test_a_full_disk_leaves_the_ledger_as_it_was(tmp_path):
    """`RLIMIT_FSIZE`: the kernel refuses to write on in the middle of a file."""
    for seed in range(8):
        Ledger(tmp_path).append({**RUN, "seed": seed})
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    errors, num_read, status = json.loads(done.stdout)
    assert len(errors) == 2
    assert (num_read, status) == (9, ["finished"])
    names = [path.name for path in tmp_path.rglob("*") if path.suffix != ".json"]
    assert names == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True)
    except OSError:
        pytest.skip("No command mount.")
    if done.returncode:
        pytest.skip("Only root can mount a small file system.")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_small_file_system_that_fills_up_keeps_what_was_written(small_disk):
    runs, written, refused = Ledger(small_disk / "runs"), [], 0
    for seed in range(120):
        try:
            runs.append({**RUN, "seed": seed, "configuration": "x" * 3000})
            written.append(seed)
        except OSError:
            refused += 1
    assert written
    assert refused
    assert [run["seed"] for run in runs.runs()] == written
    assert not list(runs.path.glob("*.tmp"))


# Permission bits do not bind root, so that the child becomes nobody.
READ_ONLY = f"""{PREAMBLE}
import json
runs.runs()
if os.getuid() == 0:
    os.setgroups([])
    os.setuid(65534)
try:
    runs.append({{**record, "seed": 9, "status": "started"}})
    written = True
except PermissionError:
    written = False
print(json.dumps([written, len(runs.runs())]))
"""


def test_a_read_only_folder_is_read(tmp_path):
    folder = tmp_path / "runs"
    for seed in range(4):
        Ledger(folder).append({**RUN, "seed": seed})
    for parent in (tmp_path, *tmp_path.parents[:3]):  # one more beside other processes
        if parent.stat().st_uid == os.getuid():
            parent.chmod(0o755)
    folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(folder)], capture_output=True, text=True
    )
    folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [False, 4]


def test_a_folder_removed_in_a_run_is_an_error_and_made_anew(tmp_path):
    runs = Ledger(tmp_path / "runs")
    run_id = runs.append({**RUN, "status": "started"})
    shutil.rmtree(runs.path)
    assert runs.runs() == []
    with pytest.raises(ValueError, match="must be a run of the ledger"):
        runs.finish(run_id, RUN)
    assert not runs.path.exists()
    runs.append(RUN)
    assert [run["seed"] for run in runs.runs()] == [1]


def test_a_record_cut_off_anywhere_is_an_error_that_names_it(tmp_path):
    runs = Ledger(tmp_path)
    kept, cut = (runs.append({**RUN, "seed": seed}) for seed in (1, 2))
    path = tmp_path / f"{cut}.json"
    text = path.read_bytes()
    for size in range(0, len(text), attack_size(20, 1)):
        path.write_bytes(text[:size])
        with pytest.raises(ValueError, match=f"must be the record of a run.*{cut}"):
            runs.runs()
        with pytest.warns(UserWarning, match="Skipped 1 invalid"):
            assert [run["run_id"] for run in runs.runs(skip_damaged=True)] == [kept]


def test_damaged_bytes_give_a_record_or_an_error_that_names_it(tmp_path):
    """What is read without an error keeps the schema: its types and lengths."""
    runs = Ledger(tmp_path)
    run_id = runs.append(RUN)
    path = tmp_path / f"{run_id}.json"
    text = path.read_bytes()
    rng = random.Random(0)
    unnamed, num_errors, num_tries = 0, 0, attack_size(200, 5_000)
    for _ in range(num_tries):
        damaged = bytearray(text)
        for _ in range(rng.choice((1, 1, 3, 20))):
            damaged[rng.randrange(len(text))] = rng.choice((0, 34, 44, 58, 91, 123, 255, 57))
        path.write_bytes(damaged)
        try:
            (run,) = runs.runs()
        except ValueError as error:
            unnamed += run_id not in str(error)
            num_errors += 1
            continue
        assert isinstance(run["seed"], int)
        assert isinstance(run["pipeline"], str)
        assert all(len(values) == len(run["epochs"]) for values in run["metrics"].values())
    assert unnamed == 0
    assert num_errors > num_tries / 2


@pytest.mark.parametrize(
    "change",
    [
        {"created": 5},
        {"run_id": 5},
        {"schema_version": math.nan},
        {"schema_version": "1"},
        {"metrics": {"val_loss": ["low", 1, 2]}},
        {"metrics": {"val_loss": [[1], 1, 2]}},
        {"metrics": {"val_loss": 3}},
        {"metrics": None},
        {"epochs": [1e400]},
        {"epochs": ["a"]},
        {"epochs": [1, "a"]},
        {"epochs": [[1], [2]]},
        {"epochs": None},
        {"seeds": [1]},
        {"seeds": {"order": [1]}},
        {"status": ["finished"]},
        {"directions": {"val_loss": []}},
        {"kept_epoch": [1]},
        {"num_rows": "many"},
    ],
)
def test_values_of_other_types_are_an_error_that_names_the_file(tmp_path, change):
    run_id = Ledger(tmp_path).append(RUN)
    path = tmp_path / f"{run_id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=f"must (be the record|have schema_version).*{run_id}"):
        Ledger(tmp_path).runs()


class Clock(datetime.datetime):
    """A clock that is wrong by `error`."""

    error = datetime.timedelta()

    @classmethod
    def now(cls, zone=None):
        return super().now(zone) + cls.error


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(ledger, "datetime", Clock)
    return lambda hours: monkeypatch.setattr(Clock, "error", datetime.timedelta(hours=hours))


def test_a_clock_that_was_set_back_does_not_make_an_older_run_the_latest(tmp_path, clock):
    """The latest of the runs of a seed counts."""
    runs = Ledger(tmp_path)
    for number, hours in enumerate((0, 3, -2, -5, 1)):
        clock(hours)
        # The same process, or another one.
        runs = runs if number % 2 else Ledger(tmp_path)
        runs.append({**RUN, "configuration": number})
    assert [run["configuration"] for run in runs.runs()] == [0, 1, 2, 3, 4]
    # The time that a record tells is the clock's own.
    created = [run["created"] for run in runs.runs()]
    assert created[3] < created[2] < created[0] < created[1]


def test_two_hosts_with_two_clocks_keep_the_order_of_their_runs(tmp_path, clock):
    hosts = [Ledger(tmp_path), Ledger(tmp_path)]
    rng = random.Random(0)
    order = [rng.randrange(2) for _ in range(30)]
    for number, host in enumerate(order):
        clock(7 * host)
        run_id = hosts[host].append({**RUN, "configuration": number, "status": "started"})
        if number % 3:
            hosts[host].finish(run_id, {**RUN, "configuration": number})
    assert [run["configuration"] for run in hosts[0].runs()] == [*range(30)]


def test_a_file_from_the_end_of_time_does_not_stop_the_ledger(tmp_path):
    runs = Ledger(tmp_path)
    last = runs.append(RUN)
    for name in ("99991231T235959999999Z-", "20269999T999999999999Z-", "zzz"):
        shutil.copy(tmp_path / f"{last}.json", tmp_path / f"{name}.json")
    assert runs.append({**RUN, "seed": 2}) > last
    assert len(runs.runs()) == 5


def test_a_clock_ahead_deletes_no_file_that_is_being_written(tmp_path, clock, monkeypatch):
    """The age of a temporary file is told by the file system, not by this host's clock."""
    Ledger(tmp_path).append(RUN)
    temporary = tmp_path / "other.tmp"
    temporary.write_text("{")
    clock(100)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    Ledger(tmp_path).append(RUN)
    assert temporary.exists()


HOSTILE_NAMES = [
    "a/b\\c",
    "../../etc/passwd",
    "..",
    "/dev/null",
    "x" * 300,
    "two\nlines\r\ttabs",
    "\x1b[31mred\x1b]0;title\x07",
    "<script>document.title=1</script>",
    "\"><img src=x onerror=alert(1)>'",
    '=HYPERLINK("http://x")',
    "\\input{/etc/passwd}$%&_#{}",
    "\u202eright to left",
    "\ud800",
    "\0",
    " ",
    "NaN",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_hostile_name_is_a_name(tmp_path, name):
    """Of a pipeline, a metric and values: nothing leaves the folder of the ledger."""
    folder = tmp_path / "runs"
    runs = Ledger(folder)
    for pipeline in (name, f"{name}2"):
        for seed in range(4):
            metrics = {"val_loss": [0.5 + seed / 100], f"val_{name}": [1.0]}
            record = {**RUN, "epochs": [0], "pipeline": pipeline, "seed": seed}
            runs.append({**record, "metrics": metrics, "configuration": {name: name}})
    assert {run["pipeline"] for run in runs.runs()} == {name, f"{name}2"}
    assert [*tmp_path.iterdir()] == [folder]
    assert all(path.suffix == ".json" for path in folder.iterdir())
    comparison = compare(
        runs, name, f"{name}2", metric="val_loss", directions={f"val_{name}": "max"}
    )
    text = str(comparison)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert max(map(len, text.splitlines())) <= 100
    assert "<script" not in report_html([comparison])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0, None])
def test_any_number_is_kept_as_it_is(tmp_path, value):
    runs = Ledger(tmp_path)
    runs.append({**RUN, "epochs": [0], "metrics": {"val_loss": [value]}})
    (read,) = runs.runs()[0]["metrics"]["val_loss"]
    assert repr(read) == repr(value)


def _seconds(action):
    start_time = time.perf_counter()
    action()
    return time.perf_counter() - start_time


@only_in_full_attack
def test_fifty_thousand_runs(tmp_path):
    """Of 50 pipelines. The times are printed, and only the memory is bounded."""
    num_runs, num_pipelines = 50_000, 50
    runs = Ledger(tmp_path / "runs")
    first = runs.append(RUN)
    text = (runs.path / f"{first}.json").read_text()
    (runs.path / f"{first}.json").unlink()
    content = json.loads(text)
    for number in range(num_runs):
        run_id = f"20260101T{number // 10**4:06}{number % 10**4:06}Z-{number:032x}"
        loss = 0.5 + 1e-3 * math.sin(number * number)
        changed = {
            "pipeline": f"pipeline {number % num_pipelines}",
            "seed": number // num_pipelines,
            "run_id": run_id,
            "metrics": {"val_loss": [loss] * 3, "val_calibrated_log_loss": [loss - 0.01] * 3},
        }
        (runs.path / f"{run_id}.json").write_text(json.dumps({**content, **changed}))
    page = tmp_path / "page.html"
    actions = {
        "read": lambda: runs.runs(),
        "append": lambda: runs.append(RUN),
        "append again": lambda: runs.append(RUN),
        "compare": lambda: compare(runs, "pipeline 0", "pipeline 1"),
        "report": lambda: write_report(
            runs, page, pipelines=[f"pipeline {number}" for number in range(num_pipelines)]
        ),
    }
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, action in actions.items():
        print(f"{name}: {_seconds(action):.2f} s")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    print(f"memory: +{grown / 1024:.0f} MB, page: {page.stat().st_size / 1e6:.1f} MB")
    # A record of three epochs and two metrics takes 5 kB in memory, and is there twice at most.
    assert grown / 1024 < 1500


TABLE = "pipeline,seed,epoch,val_loss,auc\ndcn,1,0,0.5,0.7\ndcn,1,1,0.4,0.8\ndcn,2,0,0.3,0.9\n"
CELLS = ["", "nan", "-inf", "1e400", "0x10", "1_0", "７", "1.5", "2e0", "-1", "x" * 200_000]
CELLS += ["\x1b[31m", '"', "a\nb", "\0", "9" * 5000, "9007199254740993", "1e-999999999", "True"]


def damaged_tables(num_tables):
    """Tables with bytes, cells or lines changed."""
    rng = random.Random(0)
    for _ in range(num_tables):
        lines = [line.split(",") for line in TABLE.splitlines()]
        for _ in range(rng.choice((1, 1, 3))):
            line = rng.choice(lines)
            line[rng.randrange(len(line))] = rng.choice(CELLS)
        content = bytearray("\n".join(map(",".join, lines)).encode())
        if rng.random() < 0.3:
            content[rng.randrange(len(content))] = rng.randrange(256)
        yield bytes(content)


def test_a_damaged_table_is_taken_or_refused_as_a_whole(tmp_path):
    outcomes = collections.Counter()
    for number, content in enumerate(damaged_tables(attack_size(60, 1000))):
        try:
            frame = pd.read_csv(io.BytesIO(content))
        except ValueError:
            continue  # an error of pandas
        folder = tmp_path / str(number)
        try:
            runs = Ledger.from_frame(frame, folder)
        except ValueError as error:
            outcomes["refused"] += 1
            assert not folder.exists()
            message = str(error)
            assert len(message) < 1000
            assert all(c.isprintable() for c in message), message
        else:
            outcomes["taken"] += 1
            assert sum(len(run["epochs"]) for run in runs.runs()) == len(frame)
    assert min(outcomes["refused"], outcomes["taken"]) > 0
