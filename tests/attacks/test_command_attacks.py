"""The command line under attack: wrong input gives exit code 2 and one line, never a traceback."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from calibration_records.cli import main
from keras_calibration.seeds import Ledger
from tiers import only_in_full_attack

pytestmark = pytest.mark.slow

# Control characters, of which none may reach a terminal.
RED = "\x1b[31m\x07\x9b\u202e"
DEEP = "[" * 10**5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands run: ledgers and logs, good and bad, by the names used below."""
    path = tmp_path_factory.mktemp("work")
    runs = Ledger(path / "runs")
    for pipeline in ("a", "b"):
        for seed in range(4):
            metrics = {"val_calibrated_log_loss": [0.5 + seed / 100], "val_uplift": [1.0]}
            record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            runs.append({**record, "metrics": metrics})
    (path / "empty").mkdir()
    (path / "file").write_text("text")
    (path / "damaged").mkdir()
    (path / "damaged" / "deep.json").write_text(DEEP)
    (path / "other").mkdir()
    (path / "other" / "photo.png").write_bytes(b"\x89PNG")
    (path / "newer").mkdir()
    (path / "newer" / "run.json").write_text('{"schema_version": 99}')
    (path / "loop").symlink_to(path / "loop")
    logs = {
        "good.csv": "timestamp,probability,label\n" + "2026-03-01,0.5,1\n2026-03-02,0.5,0\n" * 20,
        "empty.csv": "",
        "header.csv": "timestamp,probability,label\n",
        "words.csv": f"timestamp,probability,label\n2026-03-01,high{RED},1\n",
        "ragged.csv": "timestamp,probability,label\n2026-03-01,0.5\n",
        "beyond.csv": "timestamp,probability,label\n2026-03-01,1.5,1\n",
        "label.csv": "timestamp,probability,label\n2026-03-01,0.5,7\n",
        "time.csv": "timestamp,probability,label\nyesterday,0.5,1\n",
        "year.csv": "timestamp,probability,label\n99999-01-01,0.5,1\n",
        "twice.csv": "timestamp,probability,probability,label\n2026-03-01,0.5,0.5,1\n",
        "deep.json": DEEP,
        "bad.parquet": "PAR1 this is no Parquet PAR1",
    }
    for name, text in logs.items():
        (path / name).write_text(text)
    (path / "binary.csv").write_bytes(bytes(range(256)) * 10)
    return path


OPTIONS = [
    ["--metric", "f1"],
    ["--metric", f"f1{RED}\n"],
    ["--metric", ""],
    ["--metric", "uplift"],
    ["--epoch", "-1"],
    ["--epoch", "first"],
    ["--epoch", "1e3"],
    ["--delta", "nan"],
    ["--delta", "-1"],
    ["--delta", "wide"],
    ["--confidence", "0"],
    ["--confidence", "1"],
    ["--confidence", "0.9999999999999999"],
    ["--confidence", "nan"],
    ["--confidence", "-inf"],
    ["--looks", "0"],
    ["--looks", "-5"],
    ["--looks", "1e9"],
    ["--looks", "many"],
    ["--maximize", "f1"],
    ["--maximize", "calibrated_log_loss", "--minimize", "nothing"],
    ["--colour", RED],
]
LEDGERS = ["nowhere", "file", "damaged", "other", "newer", "loop", "\0", "x" * 5000, "", "file/a"]
TABLE = {
    "": [[], ["nothing"], ["--nothing"], [RED], ["-"], ["compare"], ["compare", "runs"]],
    "runs": [
        *([ledger] for ledger in LEDGERS),
        [],
        ["runs", "more"],
        ["runs", "--jsn"],
        ["runs", "--json=3"],
        [f"{RED}\n"],
        ["\ud800"],
        ["runs\n"],
        ["good.csv"],
        ["--json"],
        ["/proc/1/mem/x"],
    ],
    "show": [
        *([ledger, "a"] for ledger in LEDGERS),
        ["runs"],
        ["runs", "nothing"],
        ["runs", ""],
        ["runs", "2"],
        ["runs", f"{RED}\n"],
        ["runs", "x" * 5000],
        ["runs", "\ud800"],
        ["runs", "a", "b"],
        ["runs", "a", "--html", "page.html"],
        ["empty", "a"],
        ["runs", "../runs"],
    ],
    "compare": [
        *([ledger, "a", "b"] for ledger in LEDGERS),
        *(["runs", "a", "b", *options] for options in OPTIONS),
        ["runs", "a", "a"],
        ["runs", "a", "c"],
        ["runs", "a", f"{RED}\n"],
        ["runs", "a"],
        ["runs", "a", "b", "c"],
        ["runs", "a", "b", "--json", "--markdown"],
        ["empty", "a", "b"],
    ],
    "report": [
        *([ledger, "--html", "page.html"] for ledger in LEDGERS),
        *(["runs", "--html", "page.html", *options] for options in OPTIONS),
        ["runs"],
        ["runs", "--html"],
        ["runs", "--html", ""],
        ["runs", "--html", "."],
        ["runs", "--html", "runs"],
        ["runs", "--html", "no/such/folder.html"],
        ["runs", "--html", "file/page.html"],
        ["runs", "--html", "\0"],
        ["runs", "--html", "x" * 300],
        ["runs", "--html", "/dev/full/page.html"],
        ["runs", "a", "--html", "page.html"],
        ["runs", "a", "c", "--html", "page.html"],
        ["runs", "a", "a", "--html", "page.html"],
        ["empty", "--html", "page.html"],
    ],
    "monitor": [
        [],
        ["nowhere.csv"],
        ["empty"],
        ["file"],
        ["loop"],
        ["\0"],
        *(
            [f"{name}.csv"]
            for name in ("empty", "header", "words", "ragged", "beyond", "label", "time", "year")
        ),
        ["binary.csv"],
        ["twice.csv"],
        ["deep.json"],
        ["bad.parquet"],
        ["good.csv", "nowhere.csv"],
        ["good.csv", "--label", f"click{RED}\n"],
        ["good.csv", "--probability", "label", "--probability", "label"],
        ["good.csv", "--field", "site"],
        ["good.csv", "--period", "century"],
        ["good.csv", "--since", "soon"],
        ["good.csv", "--until", "0000-00-00"],
        ["good.csv", "--since", "2027-01-01"],
        ["good.csv", "--tolerance", "-1"],
        ["good.csv", "--tolerance", "nan"],
        ["good.csv", "--false-alarms-per-year", "0"],
        ["good.csv", "--false-alarms-per-year", "nan"],
        ["good.csv", "--false-alarms-per-year", "few"],
        ["good.csv", "--html", "no/such/page.html"],
        ["good.csv", "--html", "runs"],
        ["good.csv", "--class", "x"],
    ],
}


@pytest.mark.parametrize("command", TABLE)
@pytest.mark.filterwarnings("default")
def test_wrong_input_is_one_line_and_exit_code_2(command, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = sorted(path.name for path in folder.iterdir())
    wrong = []
    for arguments in TABLE[command]:
        given = [command, *arguments] if command else arguments
        try:
            code = main(given)
        except SystemExit as stop:  # What argparse finds.
            code = stop.code
        out, err = capsys.readouterr()
        one_line = err.count("\n") == 1 and err.startswith("keras-calibration: ")
        is_plain = all(c.isprintable() or c == "\n" for c in err) and len(err) < 1100
        if not (code == 2 and out == "" and one_line and is_plain and "Traceback" not in err):
            wrong.append((given, code, out[-300:], err[-1000:]))
    assert wrong == []
    names = sorted(path.name for path in folder.iterdir())
    assert [name for name in names if name != "__pycache__"] == before


def program(folder, *arguments, **options):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "calibration_records.cli", *arguments]
    # Buffered, as users have it.
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"}
    standard = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment}
    options = standard | options
    return subprocess.run(command, text=True, cwd=folder, **options)


def test_as_a_program(folder):
    for arguments in (["compare", "runs", "a", "nothing"], ["runs", "damaged"], ["show"]):
        done = program(folder, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="No device that is always full.")
def test_a_full_disk_under_the_output_is_an_error(folder):
    """Not only at exit, as a traceback and with Python's own exit code."""
    with open("/dev/full", "w") as full:
        done = program(folder, "runs", "runs", "--json", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "keras-calibration: [Errno 28] No space left on device\n"


def test_a_closed_pipe_is_an_error(folder):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        done = program(folder, "runs", "runs", stdout=closed)
    assert done.returncode == 2
    assert done.stderr == "keras-calibration: [Errno 32] Broken pipe\n"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_of_any_encoding_shows_every_result(folder, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = program(folder, "compare", "runs", "a", "b", env=environment)
    assert done.returncode in (0, 1), done.stderr
    assert "B - A [interval]" in done.stdout or encoding == "cp1252"


# What TensorFlow says of the machine when it is imported, whatever its level of messages.
OF_TENSORFLOW = re.compile(r"WARNING: All log messages before absl|[IWE]\d{4} \d\d:")


@only_in_full_attack
@pytest.mark.parametrize("command", TABLE)
def test_every_wrong_input_as_a_program(folder, command):
    wrong = []
    # Those that import Keras take seconds each.
    for arguments in TABLE[command][:: 9 if command == "monitor" else 1]:
        given = [command, *arguments] if command else arguments
        if any("\0" in text or "\ud800" in text for text in given):
            continue  # No shell can pass these.
        done = program(folder, *given)
        own_lines = [line for line in done.stderr.splitlines() if not OF_TENSORFLOW.match(line)]
        if done.returncode != 2 or done.stdout or len(own_lines) != 1:
            wrong.append((given, done.returncode, done.stdout[-300:], done.stderr[-1000:]))
    assert wrong == []


def test_json_is_strict_whatever_was_recorded(tmp_path, capsys):
    runs = Ledger(tmp_path / "runs")
    values = [float("nan"), float("inf"), -float("inf"), 1e308, None]
    record = {"pipeline": RED, "seed": 1, "status": "diverged", "epochs": [*range(5)]}
    run_id = runs.append({**record, "metrics": {f"val_{RED}": values}})

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    for arguments in (["runs"], ["show", RED], ["show", run_id]):
        command, *name = arguments
        assert main([command, str(runs.path), *name, "--json"]) == 0
        out = capsys.readouterr().out
        json.loads(out, parse_constant=refuse)
        assert all(c.isprintable() or c == "\n" for c in out)
