"""The study of real pipelines: its statistics, and the whole of it on a small table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.seeds import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "calibrated_metric" / "study.py"


@pytest.mark.slow
def test_the_whole_study(tmp_path):
    rng = np.random.default_rng(0)
    sites, hours = rng.integers(0, 40, 3000), rng.integers(0, 24, 3000)
    clicks = rng.random(3000) < 1 / (1 + np.exp(1 - sites / 40 - 0.1 * (hours % 5)))
    lines = [f"{c:d},s{s},{h}" for c, s, h in zip(clicks, sites, hours, strict=True)]
    (tmp_path / "log.csv").write_text("\n".join(["clicked,site,hour", *lines]))
    meta = {
        "files": ["log.csv"],
        "columns": ["clicked", "site", "hour"],
        "label": {"column": "clicked", "equals": "1"},
        "categorical": ["site"],
        "numeric": ["hour"],
        "fields": ["site"],
        "split": "random",
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    arguments = ["--quick", "--seeds", "2", "--held-out", "1000", "--workers", "1"]
    arguments += ["--pipelines", "base", "dropout"]
    arguments += ["--data", str(tmp_path), "--shared", "order"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments, "--output", str(tmp_path / "output")],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert "2,000 rows to train on, 1,000 held out" in done.stdout
    runs = Ledger(tmp_path / "output" / tmp_path.name / "runs_shared_order").runs(status="finished")
    assert {run["pipeline"] for run in runs} == {"base", "dropout"}
    assert len(runs) == 4
    # One order for a seed, an initialisation of its own for each run.
    assert {run["seeds"]["order"] for run in runs if run["seed"] == 1} == {1}
    assert len({run["initial_weights"] for run in runs}) == 4
    losses = [run["metrics"]["val_calibrated_log_loss"][-1] for run in runs]
    assert len(set(losses)) == 4
    assert 0.5 < np.mean(losses) < 0.72
