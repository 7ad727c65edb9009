"""T1 on the page of results, from losses that are made up."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.seeds import Ledger

sys.path.append(str(Path(__file__).parents[2] / "examples" / "calibrated_metric"))
import block_losses
import time_page
from click_auc import REGRESSION
from clicks import PLAIN, ROLLING
from primary_clicks import PLANS

pytestmark = pytest.mark.slow

PLAN = PLANS["time"]._replace(
    tables=("table_a", "table_b"), pipelines=("fnn", "deepfm", "dcn"), num_seeds=20
)


def write_table(folder, table, *, num_seeds=20, bias=2.0):
    """Each network is worse than the one before; the log loss has a bias of its own beside."""
    generator = np.random.default_rng(len(folder.name))
    path = folder / f"{table}_mixing_0"
    ledger, lines = Ledger(path), []
    for place, name in enumerate((REGRESSION, *PLAN.pipelines)):
        for seed in range(2000, 2000 + (num_seeds if place else 1)):
            run = {"pipeline": name, "seed": seed, "status": "finished", "epochs": [0]}
            # The regression is above the first network.
            metrics = {"val_auc": [0.7 + 0.01 * place if place != 1 else 0.6]}
            ledger.append({**run, "metrics": metrics})
            own, noise = 0.01 * generator.normal(size=2)
            rolling = 0.4 + 0.008 * place + own + 0.002 * generator.normal(size=10)
            losses = {PLAIN: (rolling + bias * noise).tolist(), ROLLING: rolling.tolist()}
            lines.append(json.dumps({"pipeline": name, "seed": seed, "losses": losses}))
    (path / block_losses.FILE).write_text("\n".join(lines[1:]), encoding="utf-8")


def test_the_gain_is_that_of_a_loop(tmp_path):
    write_table(tmp_path, "table_a")
    (runs,) = time_page.read_runs(tmp_path, PLAN)
    assert runs.num_tested == 2
    gain, num_pairs = time_page.time_gain(runs, True, PLAN)
    plain, rolling = (losses.mean(axis=-1) for losses in runs.losses)
    even = np.array(runs.seeds) % 2 == 0
    of_pairs = []
    for first, second in ((0, 1), (0, 2), (1, 2)):
        halves = []
        for judged in (even, ~even):
            a, b = rolling[first][~judged], rolling[second][~judged]
            wins = (a[:, None] < b)[~np.eye(len(a), dtype=bool)].mean()
            if (
                time_page.decide(
                    [time_page.Fold(*(x[:, ~judged] for x in runs.losses[::-1]))], first, second
                )
                is None
            ):
                continue
            better, worse = (first, second) if wins > 0.5 else (second, first)
            found = []
            for losses in (plain, rolling):
                won = losses[better][judged][:, None] < losses[worse][judged]
                found.append(won[~np.eye(len(won), dtype=bool)].mean())
            halves.append(found[1] - found[0])
        if halves:
            of_pairs.append(np.mean(halves))
    assert num_pairs == len(of_pairs) >= 2
    assert gain.value == pytest.approx(np.mean(of_pairs))
    assert gain.low < gain.value < gain.high


def test_only_complete_tables_are_shown(tmp_path):
    assert time_page.markdown(time_page.read_runs(tmp_path, PLAN), PLAN) == ""
    write_table(tmp_path, "table_a")
    write_table(tmp_path, "table_b", num_seeds=19)
    found = time_page.read_runs(tmp_path, PLAN)
    assert [runs.table for runs in found] == ["table_a"]
    page = time_page.markdown(found, PLAN)
    (line,) = [text for text in page.splitlines() if text.startswith("| table_a")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == "2 of 3"
    # Of two independent parts, one with twice the deviation of the other, the loss keeps one.
    assert 60 < float(cells[2]) < 95
    assert 0.3 < float(cells[3]) < 0.6
    assert cells[6].endswith("of 3)")
