"""The ledger under attack: killed writers, full disks, damaged files, hostile names."""

import json
import random
import subprocess
import sys
import time

import pytest

from keras_calibration.seeds import Ledger, compare

pytestmark = pytest.mark.slow

RUN = {"pipeline": "deepfm", "seed": 1, "status": "finished", "epochs": [0, 1, 2]}
RUN |= {"metrics": {"val_loss": [0.3, 0.2, 0.1]}}
# `calibration_records` loads no Keras, so that a process starts in a tenth of a second.
PREAMBLE = """
import os, sys
from calibration_records import Ledger
assert "keras" not in sys.modules
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


def killed(folder, number, note):
    """A writer that is killed soon after its first run."""
    note.touch()
    writer = start(WRITER, folder, number, note)
    while not note.read_text():  # Otherwise most are killed while Python starts.
        assert writer.poll() is None
        time.sleep(0.001)
    time.sleep(random.random() * 0.05)
    writer.kill()
    writer.communicate()


def test_killed_writers_lose_no_run_and_readers_never_fail(tmp_path):
    folder = tmp_path / "runs"
    Ledger(folder).append({**RUN, "epochs": [*range(100)], "metrics": {"val_loss": [0.1] * 100}})
    other = tmp_path / "other"
    other.touch()
    beside = start(WRITER, folder, 9, other)
    reader = start(READER, folder)
    assert reader.stdout.readline() == b"ready\n"
    notes = [tmp_path / str(number) for number in range(10, 18)]
    for number, note in enumerate(notes, start=10):
        killed(folder, number, note)
    for process in (beside, reader):
        assert process.poll() is None  # No write and no read has failed.
        process.kill()
        process.communicate()
    runs = Ledger(folder).runs("deepfm")
    status = {run["seed"]: run["status"] for run in runs}
    assert len(status) == len(runs)
    lines = [line for note in [*notes, other] for line in note.read_text().splitlines()[1:]]
    noted = dict(line.split() for line in lines)
    assert len(noted) > len(notes) / 2
    for seed, noted_status in noted.items():
        assert status[int(seed)] in (noted_status, "finished")


# A child that may write files of a few thousand bytes only.
FULL_DISK = f"""{PREAMBLE}
import json, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
finished = {{**record, "pipeline": "full", "seed": 1, "status": "finished"}}
started = runs.append({{**finished, "status": "started"}})
errors = 0
for action in (
    lambda: runs.append({{**finished, "configuration": "x" * 5000}}),
    lambda: runs.finish(started, {{**finished, "configuration": "x" * 5000}}),
):
    try:
        action()
    except OSError:
        errors += 1
num_read = len(runs.runs())
runs.finish(started, finished)
print(json.dumps([errors, num_read, [run["status"] for run in runs.runs("full")]]))
"""


def test_a_full_disk_leaves_the_ledger_as_it_was(tmp_path):
    """`RLIMIT_FSIZE`: the kernel refuses to write on in the middle of a file."""
    for seed in range(8):
        Ledger(tmp_path).append({**RUN, "seed": seed})
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [2, 9, ["finished"]]
    assert [path.name for path in tmp_path.rglob("*") if path.suffix != ".json"] == []


def test_a_damaged_record_is_a_record_or_an_error_that_names_it(tmp_path):
    """Cut off anywhere, or with other bytes; what is read keeps the schema."""
    runs, rng = Ledger(tmp_path), random.Random(0)
    run_id = runs.append(RUN)
    path = tmp_path / f"{run_id}.json"
    text = path.read_bytes()
    contents = [text[:size] for size in range(0, len(text), 20)]
    for _ in range(200):
        changed = bytearray(text)
        for _ in range(rng.choice((1, 1, 3, 20))):
            changed[rng.randrange(len(text))] = rng.choice((0, 34, 44, 58, 91, 123, 255, 57))
        contents.append(bytes(changed))
    num_errors = 0
    for content in contents:
        path.write_bytes(content)
        try:
            (run,) = runs.runs()
        except ValueError as error:
            assert run_id in str(error)  # noqa: PT017
            num_errors += 1
        else:
            assert isinstance(run["seed"], int)
            assert all(len(values) == len(run["epochs"]) for values in run["metrics"].values())
    assert num_errors > 100


HOSTILE_NAMES = [
    *("a/b\\c", "../../etc/passwd", "..", "/dev/null", "x" * 300, "two\nlines\r\ttabs"),
    *("\x1b[31mred\x1b]0;title\x07", "<script>alert(1)</script>", '=HYPERLINK("http://x")'),
    *("\u202eright to left", "\ud800", "\0", " ", "NaN"),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_hostile_name_is_a_name(tmp_path, name):
    """Of a pipeline, a metric and values: nothing leaves the folder of the ledger."""
    runs = Ledger(tmp_path / "runs")
    for pipeline in (name, f"{name}2"):
        for seed in range(4):
            metrics = {"val_loss": [0.5 + seed / 100], f"val_{name}": [1.0]}
            record = {**RUN, "epochs": [0], "pipeline": pipeline, "seed": seed}
            runs.append({**record, "metrics": metrics, "configuration": {name: name}})
    assert {run["pipeline"] for run in runs.runs()} == {name, f"{name}2"}
    assert [*tmp_path.iterdir()] == [runs.path]
    assert all(path.suffix == ".json" for path in runs.path.iterdir())
    text = str(compare(runs, name, f"{name}2", metric="val_loss"))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert max(map(len, text.splitlines())) <= 100
