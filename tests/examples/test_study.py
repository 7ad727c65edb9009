"""The study of real pipelines: its statistics, and the whole of it on a small table."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_calibration.seeds import Ledger, metric_accuracy

EXAMPLE = Path(__file__).parents[2] / "examples" / "calibrated_metric" / "study.py"


@pytest.fixture(scope="module")
def study():
    specification = importlib.util.spec_from_file_location("study", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    sys.modules["study"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def pipelines(study, shifts, num_seeds=20, noise=1e-3):
    """Losses of pipelines that share half of their noise, seed by seed."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=num_seeds)
    return {
        f"p{number}": {
            metric: 0.4 + shift + noise * (shared + rng.normal(size=num_seeds)) / np.sqrt(2)
            for metric in study.METRICS.values()
        }
        for number, shift in enumerate(shifts)
    }


def test_the_pairs_are_known_and_not_too_easy(study):
    # 0 and 1 are alike, 2 is worse by 1.5 standard deviations, 3 beyond all doubt.
    values = pipelines(study, (0, 0, 1.5e-3, 1e-1))
    assert study.known_pairs(values) == [("p0", "p2"), ("p1", "p2")]


def test_accuracies_are_those_of_the_package(study):
    values = pipelines(study, (0, 5e-4), num_seeds=7)
    wins = study.pair_wins(values, [("p0", "p1")], "val_log_loss")
    once = np.ones((1, 7), int)
    a, b = (values[name]["val_log_loss"] for name in ("p0", "p1"))
    (same,) = 100 * study.accuracies(wins, once, same=True)
    (apart,) = 100 * study.accuracies(wins, once, same=False)
    np.testing.assert_allclose(same, 100 * np.mean(a < b))
    np.testing.assert_allclose(7 * same + 42 * apart, 4900 * metric_accuracy(a, b))


def test_a_seed_drawn_twice_is_no_pair_of_independent_runs(study):
    values = pipelines(study, (0, 5e-4), num_seeds=5)
    wins = study.pair_wins(values, [("p0", "p1")], "val_log_loss")
    counts = np.array([[2, 0, 1, 0, 2]])
    drawn = np.repeat(np.arange(5), counts[0])
    expected = [wins[i, j] for i in drawn for j in drawn if i != j]
    (found,) = 100 * study.accuracies(wins, counts, same=False)
    np.testing.assert_allclose(found, 100 * np.mean(expected))
    (found,) = 100 * study.accuracies(wins, counts, same=True)
    np.testing.assert_allclose(found, 100 * np.mean(np.diag(wins)[drawn]))


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
    command = [
        sys.executable,
        str(EXAMPLE),
        "--data",
        str(tmp_path),
        "--shared",
        "order",
        *arguments,
    ]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "output")],
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
    losses = [run["metrics"]["val_averaged_calibrated_log_loss"][-1] for run in runs]
    assert len(set(losses)) == 4
    assert 0.5 < np.mean(losses) < 0.72


def test_dropout_has_a_seed_of_its_own(study):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.5)])
    x = np.ones((4, 8), "float32")

    def drop(seed):
        assert study.set_dropout_seed(model, seed) == {"dropout": seed}
        return keras.ops.convert_to_numpy(model(x, training=True))

    first = drop(1)
    np.testing.assert_array_equal(drop(1), first)
    assert (drop(2) != first).any()
