import json
import subprocess
import sys

import numpy as np
import pytest

from keras_calibration.cli import main
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
    assert "posterior, flat prior: A better with probability > 0.999\n" in text
    assert main(["compare", folder, "deepfm", EVIL]) == 1
    assert "Verdict: undecided" in capsys.readouterr().out
    assert main(["compare", folder, "deepfm", "few"]) == 1
    assert "Verdict: cannot tell" in capsys.readouterr().out
    assert main(["compare", folder, "deepfm", EVIL, "--delta", "0.1"]) == 0
    text = capsys.readouterr().out
    assert "no difference larger than 0.1" in text
    assert "by at least 0.1 with < 0.001" in text


def test_errors_are_said_on_stderr(folder, capsys):
    for arguments in (
        ["compare", folder, "deepfm", "dnn"],
        ["compare", folder, "deepfm", "dcn", "--metric", "f1"],
        ["runs", f"{folder}/nowhere"],
        ["show", folder, "nothing"],
        ["report", folder, "deepfm", "--html", "page.html"],
        ["report", folder, "--html", f"{folder}/no/such/page.html"],
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("keras-calibration: ")
    with pytest.raises(SystemExit) as stopped:
        main(["compare", folder])
    assert stopped.value.code == 2


def test_terminal_output_is_narrow_and_sends_no_control_characters(folder, capsys):
    for arguments in (["runs", folder], ["show", folder, EVIL], ["compare", folder, "dcn", EVIL]):
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
    assert "unfinished" in capsys.readouterr().out


def test_an_empty_ledger(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "The ledger is empty.\n"


def test_show(folder, capsys):
    (run, *_) = Ledger(folder).runs("deepfm")
    assert main(["show", folder, run["run_id"][:30]]) == 0
    assert json.loads(capsys.readouterr().out) == run
    assert main(["show", folder, "dcn", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["val_loss"]["count"] == 6
    assert main(["show", folder, "dcn"]) == 0
    assert "6 of 7 runs finished" in capsys.readouterr().out


def test_forms(folder, capsys):
    main(["compare", folder, "deepfm", "dcn", "--json"])
    assert json.loads(capsys.readouterr().out)["verdict"]["words"] == "B better"
    main(["compare", folder, "deepfm", EVIL, "--markdown"])
    text = capsys.readouterr().out
    assert "| --- |" in text
    assert "<script" not in text
    main(["compare", folder, "deepfm", "dcn", "--latex"])
    text = capsys.readouterr().out
    assert r"calibrated\_log\_loss" in text
    assert text.count(r"\hline") == 3


def test_looks_and_epoch(folder, capsys):
    assert main(["compare", folder, "deepfm", "dcn", "--looks", "4", "--epoch", "best"]) == 0
    assert "Pocock's level for 4" in capsys.readouterr().out
    assert main(["compare", folder, "deepfm", "dcn", "--looks", "any", "--epoch", "0"]) == 0
    assert "always-valid" in capsys.readouterr().out


def test_report(folder, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert main(["report", folder, "--html", str(page)]) == 0
    assert page.read_text(encoding="utf-8").count('class="verdict"') == 3
    assert main(["report", folder, "deepfm", "dcn", "--html", str(page)]) == 0
    assert page.read_text(encoding="utf-8").count('class="verdict"') == 1


def test_as_a_program(folder):
    command = [sys.executable, "-m", "keras_calibration.cli", "compare", folder, "dcn", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Received the pipeline 'nothing'" in done.stderr
