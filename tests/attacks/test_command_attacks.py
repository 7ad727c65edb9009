"""The command line under attack: wrong input gives exit code 2 and one line; names are names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibration_records.cli import main
from keras_calibration.seeds import Ledger, compare

pytestmark = pytest.mark.slow

# Control characters, of which none may reach a terminal.
RED = "\x1b[31m\x07\x9b\u202e"
DEEP = "[" * 10**5
LOG = "timestamp,probability,label\n"
FILES = {
    "good.csv": LOG + "2026-03-01,0.5,1\n2026-03-02,0.5,0\n" * 20,
    "empty.csv": "",
    "header.csv": LOG,
    "words.csv": f"{LOG}2026-03-01,high{RED},1\n",
    "bad.parquet": "PAR1 this is no Parquet PAR1",
    "damaged/deep.json": DEEP,
    "newer/run.json": '{"schema_version": 99}',
    "file": "text",
}


def write_runs(ledger, pipelines, other_metric, **fields):
    for pipeline in pipelines:
        for seed in range(4):
            metrics = {"val_calibrated_log_loss": [0.5 + seed / 100], other_metric: [1.0]}
            run = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            ledger.append({**run, "metrics": metrics, **fields})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands run: ledgers and logs, good and bad."""
    path = tmp_path_factory.mktemp("work")
    runs = Ledger(path / "runs")
    write_runs(runs, ("a", "b"), "val_uplift")
    for name, text in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    (path / "empty").mkdir()
    (path / "loop").symlink_to(path / "loop")
    return path


OPTIONS = [
    *(["--metric", name] for name in ("f1", f"f1{RED}\n", "", "uplift")),
    *(["--epoch", epoch] for epoch in ("-1", "first", "1e3")),
    *(["--delta", delta] for delta in ("nan", "-1", "wide")),
    *(["--looks", looks] for looks in ("-5", "1e9", "many")),
    ["--colour", RED],
]
LEDGERS = ["nowhere", "file", "damaged", "newer", "loop", "\0", "x" * 5000, "", "file/a"]
LOGS = ["nowhere.csv", "empty", "file", "loop", "\0", "bad.parquet"]
LOGS += [name for name in FILES if name.endswith(".csv") and name != "good.csv"]
TABLE = {
    "": [[], ["nothing"], [RED]],
    "runs": [*([ledger] for ledger in LEDGERS), [], ["runs", "more"], ["\ud800"], ["good.csv"]],
    "compare": [
        *([ledger, "a", "b"] for ledger in LEDGERS),
        *(["runs", "a", "b", *options] for options in OPTIONS),
        *(["runs", "a", other] for other in ("a", "c", f"{RED}\n")),
        ["runs", "a"],
    ],
    "monitor": [
        *([log] for log in LOGS),
        [],
        ["good.csv", "--label", f"click{RED}\n"],
        ["good.csv", "--field", "site"],
        *(["good.csv", "--since", time] for time in ("soon", "2027-01-01")),
        *(["good.csv", "--tolerance", value] for value in ("-1", "nan")),
        *(["good.csv", "--false-alarms-per-year", value] for value in ("0", "nan", "few")),
    ],
}


@pytest.mark.parametrize("command", TABLE)
@pytest.mark.filterwarnings("default")
def test_wrong_input_is_one_line_and_exit_code_2(command, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    before, wrong = sorted(os.listdir(folder)), []
    for arguments in TABLE[command]:
        argv = [command, *arguments] if command else arguments
        try:
            code = main(argv)
        except SystemExit as stop:  # What argparse finds.
            code = stop.code
        out, err = capsys.readouterr()
        one_line = err.count("\n") == 1 and err.startswith("keras-calibration: ")
        is_plain = all(c.isprintable() or c == "\n" for c in err) and len(err) < 1100
        if not (code == 2 and out == "" and one_line and is_plain):
            wrong.append((argv, code, out[-300:], err[-1000:]))
    assert wrong == []
    assert sorted(os.listdir(folder)) == before


def program(folder, *arguments, **options):
    """The command in a process of its own, its output buffered, as users have it."""
    command = [sys.executable, "-m", "calibration_records.cli", *arguments]
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment, **options}
    return subprocess.run(command, text=True, cwd=folder, **options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="No device that is always full.")
def test_output_that_cannot_be_written_is_an_error(folder):
    """Not only at exit, as a traceback and with Python's own exit code."""
    with open("/dev/full", "w") as full:
        done = program(folder, "runs", "runs", "--json", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "keras-calibration: [Errno 28] No space left on device\n"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        done = program(folder, "runs", "runs", stdout=closed)
    assert done.returncode == 2
    assert done.stderr == "keras-calibration: [Errno 32] Broken pipe\n"


HOSTILE_NAMES = [
    *("a/b\\c", "../../etc/passwd", "..", "/dev/null", "x" * 300, "two\nlines\r\ttabs"),
    *("\x1b[31mred\x1b]0;title\x07", "<script>alert(1)</script>", '=HYPERLINK("http://x")'),
    *("\u202eright to left", "\ud800", "\0", " ", "NaN"),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_hostile_name_is_a_name(tmp_path, name):
    """Of a pipeline, a metric and values: nothing leaves the folder of the ledger."""
    runs = Ledger(tmp_path / "runs")
    write_runs(runs, (name, f"{name}2"), f"val_{name}", configuration={name: name})
    assert {run["pipeline"] for run in runs.runs()} == {name, f"{name}2"}
    assert [*tmp_path.iterdir()] == [runs.path]
    assert all(path.suffix == ".json" for path in runs.path.iterdir())
    text = str(compare(runs, name, f"{name}2", metric="val_calibrated_log_loss"))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert max(map(len, text.splitlines())) <= 100
