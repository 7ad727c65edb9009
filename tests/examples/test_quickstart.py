"""The main job, as the README starts it, with one seed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def run_quickstart(output, *arguments):
    """What the quickstart prints; its scores as {name: (before, after)}."""
    done = subprocess.run(
        [sys.executable, str(QUICKSTART), "--seeds", "1", "--output", str(output), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^  (\S.*?)  +(\d+\.\d+) +(\d+\.\d+)", done.stdout, re.MULTILINE)
    return done.stdout, {name: (float(before), float(after)) for name, before, after in rows}


def check_files(folder):
    picture = matplotlib.image.imread(folder / "calibration.png")
    assert picture.shape[0] > 300
    assert picture.shape[1] > 600
    assert picture[..., :3].std() > 0.05
    assert [path.name for path in (folder / "savedmodel").iterdir()] == ["1"]
    assert (folder / "savedmodel" / "1" / "saved_model.pb").exists()
    assert len(list((folder / "runs").glob("*.json"))) == 1


@pytest.mark.slow
def test_on_the_generated_click_log(tmp_path):
    text, scores = run_quickstart(tmp_path, "--num-rows", "20000")
    before, after = scores["distance to the truth (mean KL)"]
    assert after <= before / 2
    assert scores["log loss"][1] < scores["log loss"][0]
    assert scores["Field-ECE (site_id)"][1] < scores["Field-ECE (site_id)"][0]
    assert "Calibration improves the probabilities" in text
    # What gets worse is said: here the error relative to sites without a single click.
    worse = {name for name, (b, a) in scores.items() if a > b and name != "AUC"}
    for name in worse - {"mean prediction / mean label"}:
        assert re.search(rf"^  {re.escape(name)} .*worse$", text, re.MULTILINE)
    check_files(tmp_path / "click_log")


@pytest.mark.slow
def test_a_loss_is_said_plainly(data_root, tmp_path):
    arguments = ("--data", str(data_root / "movielens_100k"))
    text, scores = run_quickstart(tmp_path, *arguments)
    before, after = scores["log loss"]
    # The rate of the development part is not that of the test part: no calibration helps.
    assert after > before
    assert "makes the log loss WORSE here" in text
    assert re.search(r"^  log loss .*worse$", text, re.MULTILINE)
    check_files(tmp_path / "movielens_100k")
