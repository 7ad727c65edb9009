"""The page of results, from a ledger that is made up."""

import json

import numpy as np
import pytest

import results
from keras_calibration.seeds import Ledger
from results import claims_table, field_aware_claims

pytestmark = pytest.mark.slow

Claim = field_aware_claims.Claim
METRICS = ("log_loss", "brier", "field_ece", "field_rce", "auc")
NUM_BLOCKS = 20


def write_tables(folder, losses):
    """Runs of `tables.py`: data set → row → log loss of each seed; test rows add little noise."""
    ledger = Ledger(folder / results.FIELD_AWARE)
    rng = np.random.default_rng(0)
    lines = []
    for data, rows in losses.items():
        settings = {"data": data, "field": None, "embedding_dim": 4, "hidden_units": [8]}
        sizes = {"num_field_values": 3, "num_columns": 2, "positive_rate": 0.5, "batch_size": 16}
        counts = {"num_train": 60, "num_development": 20, "num_test": 20, "field": "site"}
        for row, values in rows.items():
            for seed, value in enumerate(values):
                metrics = {metric: [value] for metric in METRICS}
                metrics |= {"seconds": [1.0], "base_seconds": [1.0]}
                configuration = {"settings": settings, "data": sizes | counts}
                run = {"pipeline": row, "seed": seed, "status": "finished", "epochs": [0]}
                ledger.append({**run, "metrics": metrics, "configuration": configuration})
                without = value + 1e-6 * rng.normal(size=NUM_BLOCKS)
                line = {"pipeline": row, "seed": seed, "settings": settings}
                line["without_block"] = {metric: without.tolist() for metric in METRICS}
                lines.append(json.dumps(line))
    (ledger.path / "jackknife.jsonl").write_text("\n".join(lines), encoding="utf-8")


def test_claims_are_tested_over_the_data_sets(tmp_path):
    neural, base = "Neural Calibration", "Model-1"
    rng = np.random.default_rng(1)
    means = {base: 0.5, neural: 0.45}
    losses = {
        f"set_{k}": {row: mean + 0.01 * rng.normal(size=10) for row, mean in means.items()}
        for k in range(8)
    }
    # Better by less than the noise of the seeds, and a data set with one seed.
    losses["set_8"] = {base: [0.5, 0.6, 0.7], neural: [0.4, 0.65, 0.6]}
    losses["one_seed"] = {base: [0.5], neural: [0.4]}
    write_tables(tmp_path, losses)
    groups = results.find_groups([tmp_path])
    claims = [Claim(neural, base, "log_loss", "tables 1–5"), Claim(neural, base, "auc", "table 6")]
    table = claims_table([*claims, Claim(neural, "Platt scaling", "log_loss")], groups)
    assert "Platt scaling" not in table
    loss, auc = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if "table" in line and neural in line
    )
    assert loss[:6] == [neural, base, "log loss", "9 of 9", "8", "0"]
    assert 5 < float(loss[6].split()[0]) < 15
    assert loss[7] == "tables 1–5"
    # The AUC, here the same numbers, is better where it is higher.
    assert auc[2:6] == ["AUC", "0 of 9", "0", "8"]
    assert float(auc[6].split()[0]) < 0
