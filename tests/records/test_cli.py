import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from calibration_records.cli import main
from keras_calibration.seeds import Ledger, compare

EVIL = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "runs"
    runs = Ledger(path)
    rng = np.random.default_rng(0)
    for pipeline, shift, num_runs in ("deepfm", 0, 6), ("dcn", -1, 6), (EVIL, 0, 6), ("few", 0, 1):
        for seed in range(num_runs):
            loss = 0.5 + 0.01 * shift + 1e-3 * rng.normal()
            metrics = {"val_calibrated_log_loss": [loss], "val_loss": [loss + 1e-3]}
            record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            runs.append({**record, "metrics": metrics, "configuration": {"units": [8]}})
    runs.append({"pipeline": "dcn", "seed": 9, "status": "started"})
    values = [float("nan"), float("inf"), -float("inf"), 1e308, None]
    record = {"pipeline": "diverged", "seed": 1, "status": "diverged", "epochs": [*range(5)]}
    runs.append({**record, "metrics": {f"val_{EVIL}": values}})
    return str(path)


def test_compare_answers_by_its_exit_code(folder, capsys):
    assert main(["compare", folder, "deepfm", "dcn"]) == 0
    assert capsys.readouterr().out.startswith("Verdict: B better\n")
    assert main(["compare", folder, "deepfm", EVIL]) == 1
    assert "Verdict: undecided" in capsys.readouterr().out
    assert main(["compare", folder, "deepfm", EVIL, "--delta", "0.1"]) == 0
    assert "no difference larger than 0.1" in capsys.readouterr().out


def test_the_command_asks_what_the_function_asks(folder, capsys):
    for options, expected in (
        ([], ("val_calibrated_log_loss", "advised")),
        (["--looks", "any"], ("val_calibrated_log_loss", None)),
        (["--metric", "loss", "--looks", "1", "--epoch", "best"], ("val_loss", 1)),
        (["--metric", "loss", "--maximize", "loss", "--epoch", "0"], ("val_loss", "advised")),
    ):
        main(["compare", folder, "deepfm", "dcn", "--json", *options])
        report = json.loads(capsys.readouterr().out)
        assert (report["metric"], report["question"]["num_looks"]) == expected
    main(["compare", folder, "deepfm", "dcn", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(json.dumps(compare(folder, "deepfm", "dcn").to_dict()))


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


def test_runs_counts(folder, tmp_path, capsys):
    assert main(["runs", folder, "--json"]) == 0
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)
    # Constants such as NaN are no JSON.
    rows = {row["pipeline"]: row for row in json.loads(out, parse_constant=pytest.fail)}
    assert list(rows) == ["deepfm", "dcn", EVIL, "few", "diverged"]
    assert (rows["dcn"]["finished"], rows["dcn"]["unfinished"], rows["dcn"]["seeds"]) == (6, 1, 6)
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "The ledger is empty.\n"


@pytest.mark.slow
def test_a_program_of_the_name_of_the_command_has_the_whole_package(tmp_path):
    program = tmp_path / "keras-calibration.py"
    program.write_text("import keras_calibration as kc; print(kc.layers.ILPS.__name__)")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert done.stdout == "ILPS\n", done.stderr
