"""Table 1 of Field-aware Calibration: columns known only after the outcome."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.seeds import Ledger

sys.path.append(str(Path(__file__).parents[2] / "examples" / "field_aware_calibration"))
import lending_club

pytestmark = pytest.mark.slow


def write_data(folder):
    """400 loans: the amount says a little, the last payment all."""
    rng = np.random.default_rng(0)
    amount = rng.normal(size=400)
    labels = (rng.random(400) < 1 / (1 + np.exp(-amount))).astype(int)
    names = "loan_status,amount,state,total_rec_late_fee,last_pymnt_amnt"
    lines = [
        f"{label},{each:.3f},{'ab'[number % 2]},0.0,{1000 * (1 - label)}"
        for number, (label, each) in enumerate(zip(labels, amount, strict=True))
    ]
    (folder / "data.csv").write_text("\n".join([names, *lines]))
    meta = {"files": ["data.csv"], "sep": ",", "numeric": ["amount"], "categorical": ["state"]}
    meta["read_csv"] = {"dtype": "str", "keep_default_na": False, "na_values": ["", "NA"]}
    (folder / "meta.json").write_text(json.dumps(meta))


def test_columns_known_afterwards_make_the_outcome_known(tmp_path, monkeypatch, capsys):
    write_data(tmp_path)
    monkeypatch.setattr(lending_club, "NUM_SEEDS", 1)
    command = ["lending_club.py", "--data", str(tmp_path), "--output", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", command)
    lending_club.main()
    printed = capsys.readouterr().out
    ledger = Ledger(tmp_path / "runs")
    auc = {run["pipeline"]: run["metrics"]["auc"][0] for run in ledger.runs()}
    assert auc[lending_club.WITHOUT] < 0.9
    assert auc[lending_club.WITH] == auc[lending_club.ALONE] == 1
    assert printed == lending_club.section(ledger) + "\n"
    assert "| 0.992 | 0.066" in printed
    # The runs are not repeated.
    monkeypatch.setattr(lending_club, "records", None)
    lending_club.main()
    assert capsys.readouterr().out == printed


def test_without_runs_the_section_says_so(tmp_path):
    assert lending_club.section(Ledger(tmp_path)) == "The ledger holds no finished runs."
