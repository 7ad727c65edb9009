import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibration_records.cli import main
from keras_calibration.seeds import Ledger

EVIL = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "runs"
    runs = Ledger(path)
    rng = np.random.default_rng(0)
    for pipeline, shift, num_runs in (
        ("deepfm", 0, 6),
        ("dcn", -1, 6),
        (EVIL, 0, 6),
        ("few", 0, 1),
    ):
        for seed in range(num_runs):
            loss = 0.5 + 0.01 * shift + 1e-3 * rng.normal()
            metrics = {"val_calibrated_log_loss": [loss], "val_loss": [loss + 1e-3]}
            record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            runs.append({**record, "metrics": metrics, "configuration": {"units": [8]}})
    runs.append({"pipeline": "dcn", "seed": 9, "status": "started"})
    return str(path)


def test_compare_answers_by_its_exit_code(folder, capsys):
    assert main(["compare", folder, "deepfm", "dcn"]) == 0
    assert capsys.readouterr().out.endswith("Verdict: B better\n")
    assert main(["compare", folder, "dcn", "deepfm"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("Verdict: A better\n")
    assert main(["compare", folder, "deepfm", EVIL]) == 1
    assert "Verdict: undecided" in capsys.readouterr().out
    assert main(["compare", folder, "deepfm", "few"]) == 1
    text = capsys.readouterr().out
    assert "from 6 runs of the ledger (pipelines: 1)" in " ".join(text.split())
    assert "Verdict: undecided: about" in text
    assert main(["compare", folder, "deepfm", EVIL, "--delta", "0.1"]) == 0
    text = capsys.readouterr().out
    assert "no difference larger than 0.1" in text


def test_the_command_asks_what_the_function_asks(folder, capsys):
    for options, expected in (
        ([], ("val_calibrated_log_loss", None, "advised")),
        (["--recalibrated", "yes"], ("val_calibrated_log_loss", True, "advised")),
        (["--recalibrated", "no", "--looks", "1"], ("val_loss", False, 1)),
    ):
        main(["compare", folder, "deepfm", "dcn", "--json", *options])
        found = json.loads(capsys.readouterr().out)
        names = ("metric", "recalibrated", "num_looks")
        assert tuple(found[name] for name in names) == expected
    with pytest.raises(SystemExit):
        main(["compare", folder, "deepfm", "dcn", "--recalibrated", "perhaps"])
    assert "'yes', 'no'" in capsys.readouterr().err


def test_errors_are_said_on_stderr(folder, capsys):
    for arguments in (
        ["compare", folder, "deepfm", "dnn"],
        ["compare", folder, "deepfm", "dcn", "--metric", "f1"],
        ["compare", folder, "deepfm", "dcn", "--metric", "f1\n\x1b[31m"],
        ["compare", folder, "deepfm", "dcn", "--epoch", "-1"],
        ["compare", folder, "deepfm", "dcn", "--delta", "nan"],
        ["compare", folder, "deepfm", "dcn", "--delta", "inf"],
        ["compare", folder, "deepfm", "dcn", "--confidence", "95"],
        ["compare", folder, "deepfm", "dcn", "--confidence", "nan"],
        ["compare", folder, "deepfm", "dcn", "--confidence", "0.9999999999999999"],
        ["compare", folder, "deepfm", "dcn", "--looks", "99"],
        ["compare", folder, "deepfm", "dcn", "--maximize", "f1"],
        ["runs", f"{folder}/nowhere"],
        ["runs", "\x00"],
        ["runs", __file__],
        ["runs", str(Path(__file__).parent)],
        ["compare", str(Path(__file__).parent), "a", "b"],
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("keras-calibration: ")
        assert captured.err.count("\n") == 1
        assert "\x1b" not in captured.err
    for arguments in (
        ["compare", folder],
        ["compare", folder, "deepfm", "dcn", "--epoch", "first"],
        ["compare", folder, "deepfm", "dcn", "--looks", "many"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
    assert "expected any or an integer, received 'many'" in capsys.readouterr().err


def test_an_unexpected_exception_is_one_line_too(folder, capsys, monkeypatch):
    monkeypatch.setattr(Ledger, "runs", lambda self: [][0])
    assert main(["runs", folder]) == 2
    assert re.fullmatch(
        r"keras-calibration: IndexError: list index out of range \(test_cli.py, line \d+\)\n",
        capsys.readouterr().err,
    )


def test_a_terminal_in_ascii_is_no_obstacle(folder, monkeypatch):
    content = io.BytesIO()
    with io.TextIOWrapper(content, "ascii") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["compare", folder, "deepfm", "dcn"]) == 0
        terminal.flush()
        text = content.getvalue().decode("ascii")
    assert "B - A [interval]" in text
    assert "+-" in text
    assert "\\u" not in text


def test_the_direction_is_told_where_the_name_does_not(tmp_path, capsys):
    runs = Ledger(tmp_path)
    for pipeline, value in (("deepfm", 0.2), ("dcn", 0.3)):
        for seed in range(6):
            record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            runs.append({**record, "metrics": {"val_uplift": [value + seed / 1e3]}})
    command = ["compare", str(tmp_path), "deepfm", "dcn", "--metric", "uplift"]
    assert main(command) == 2
    assert "--maximize val_uplift or --minimize val_uplift" in capsys.readouterr().err
    for option, words in (("--maximize", "B better"), ("--minimize", "A better")):
        assert main([*command, option, "uplift"]) == 0
        assert f"Verdict: {words}" in capsys.readouterr().out


PROGRAM = """
import sys
from calibration_records.cli import main
try:
    code = main()
finally:
    heavy = {"keras", "tensorflow", "jax", "torch"} & set(sys.modules)
    numeric = {"jinja2", "matplotlib", "numpy", "pandas", "scipy"} & set(sys.modules)
    print("loaded:", *sorted(heavy | numeric), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        (["--help"], ""),
        (["monitor", "--help"], ""),
        (["runs"], ""),
        (["compare", "deepfm", "dcn"], " numpy scipy"),
        (["monitor", "log.csv"], " numpy scipy"),
    ],
)
def test_the_program_loads_what_its_command_needs(folder, tmp_path, arguments, loaded):
    """Without Keras and TensorFlow: neither their seconds nor their messages."""
    if arguments[-1] == "log.csv":
        rows = "".join(f"2026-03-01,0.5,{number % 2}\n" for number in range(100))
        (tmp_path / "log.csv").write_text(f"timestamp,probability,label\n{rows}")
    elif "--help" not in arguments:
        arguments = [arguments[0], folder, *arguments[1:]]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0
    assert done.stderr == f"loaded:{loaded}\n"


def test_terminal_output_is_narrow_and_sends_no_control_characters(folder, capsys):
    for arguments in (["runs", folder], ["compare", folder, "dcn", EVIL]):
        main(arguments)
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 100
        assert "\x1b" not in text
        assert "<script>" in text


def test_runs_counts(folder, capsys):
    assert main(["runs", folder, "--json"]) == 0
    rows = {row["pipeline"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["deepfm", "dcn", EVIL, "few"]
    assert (rows["dcn"]["finished"], rows["dcn"]["started"], rows["dcn"]["seeds"]) == (6, 1, 6)
    assert main(["runs", folder]) == 0
    assert "started" in capsys.readouterr().out


def test_an_empty_ledger(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "The ledger is empty.\n"


def test_looks_and_epoch(folder, capsys):
    assert main(["compare", folder, "deepfm", "dcn", "--looks", "4", "--epoch", "best"]) == 0
    assert "Bonferroni's level for 4" in capsys.readouterr().out
    assert main(["compare", folder, "deepfm", "dcn", "--looks", "any", "--epoch", "0"]) == 0
    assert "always-valid" in capsys.readouterr().out


@pytest.mark.slow
def test_a_program_of_the_name_of_the_command_has_the_whole_package(tmp_path):
    program = tmp_path / "keras-calibration.py"
    program.write_text("import keras_calibration as kc; print(kc.layers.ILPS.__name__)")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert done.stdout == "ILPS\n", done.stderr
