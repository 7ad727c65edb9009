"""The page of results, from ledgers that are made up and from those in the repository."""

import json
import sys

import numpy as np
import pytest

import results
from keras_calibration.seeds import Ledger
from results import claims_table, field_aware_claims, pair_claims

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


def write_stocks(folder, losses):
    """Runs of `stocks.py`: pipeline → (quadratic losses, calibrated ones) of the seeds."""
    ledger = Ledger(folder / "stocks" / "range")
    for pipeline, (plain, calibrated) in losses.items():
        for seed, values in enumerate(zip(plain, calibrated, strict=True)):
            names = ("quadratic_loss", "calibrated_quadratic_loss")
            metrics = {name: [value] for name, value in zip(names, values, strict=True)}
            metrics |= {"cross_fitted_quadratic_loss": [values[1]], "seconds": [2.0]}
            run = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            run |= {"configuration": {"hidden_size": len(pipeline)}, "num_rows": 7}
            ledger.append({**run, "metrics": metrics})


def cells(page, *starts):
    """The cells of the first line of the page whose cells start with these texts."""
    for line in page.splitlines():
        found = [cell.strip() for cell in line.strip("|").split("|")]
        if len(found) > len(starts) and all(map(str.startswith, found, starts)):
            return found
    raise AssertionError(f"no line {starts}")


def test_claims_are_tested_over_the_data_sets(tmp_path):
    neural, base = "Neural Calibration", "Model-1"
    rng = np.random.default_rng(1)
    losses = {
        f"set_{number}": {
            base: 0.5 + 0.01 * rng.normal(size=10),
            neural: 0.45 + 0.01 * rng.normal(size=10),
        }
        for number in range(8)
    }
    # Better by less than the noise of the seeds, and a data set with one seed.
    losses["set_8"] = {base: [0.5, 0.6, 0.7], neural: [0.4, 0.65, 0.6]}
    losses["one_seed"] = {base: [0.5], neural: [0.4]}
    write_tables(tmp_path, losses)
    found = results.find_groups([tmp_path])
    claims = [
        Claim(neural, base, "log_loss", "tables 1–5"),
        Claim(neural, base, "auc", "table 6"),
    ]
    table = claims_table([*claims, Claim(neural, "Platt scaling", "log_loss")], found)
    line = cells(table, neural, base, "log loss")
    assert line[3:6] == ["9 of 9", "8", "0"]
    assert 5 < float(line[6].split()[0]) < 15
    assert line[7] == "tables 1–5"
    # The AUC, here the same numbers, is better where it is higher.
    line = cells(table, neural, base, "AUC")
    assert line[3:6] == ["0 of 9", "0", "8"]
    assert float(line[6].split()[0]) < 0
    assert "Platt scaling" not in table


def test_the_scale_of_a_gain_is_the_loser(tmp_path):
    write_tables(tmp_path, {"a": {"ILPS": [0.2, 0.3], "Platt scaling": [0.4, 0.6]}})
    (group,) = results.find_groups([tmp_path])
    claim = Claim("ILPS", "Platt scaling", "log_loss")
    assert field_aware_claims.scale_of(claim, group) == pytest.approx(0.5)
    assert field_aware_claims.scale_of(claim._replace(metric="auc"), group) == 1
    assert field_aware_claims.difference(claim, group).value == pytest.approx(0.25, abs=1e-4)


def test_gains_of_pairs(tmp_path):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, 60))
    steady = 1 + 1e-6 * rng.normal(size=60)
    losses = {
        "base": (1 + noise[0], steady),
        # Known by 30 seeds, seldom by one; the calibrated loss always tells.
        "half_hidden": (1.8 + noise[1], steady + 1),
        # So much worse that there is nothing to gain.
        "one_more_layer": (9 + noise[1], steady + 1),
        # The calibrated loss says the opposite.
        "one_more_epoch": (1.8 + noise[1], steady - 1),
    }
    write_stocks(tmp_path, losses)
    studies = results.find_studies([tmp_path, tmp_path / "nothing"])
    study = "Stocks, range of the next day"
    assert [found.title for found in studies] == [study]
    page = pair_claims.kinds_table(pair_claims.kind_lines(studies))
    found = cells(page, study, "hidden size")
    assert found[2] == "1 of 1"
    assert 60 < float(found[3]) < 85
    assert found[4:6] == ["100.0", "100.0"]
    # The paper has the smaller network as the better one.
    assert found[-1] == "0 of 1"
    assert cells(page, study, "layers")[2:6] == ["0 of 1", "–", "–", "–"]
    assert cells(page, study, "epochs")[4:6] == ["0.0", "0.0"]


def test_the_axis_has_a_line_for_each_study(tmp_path):
    rng = np.random.default_rng(3)
    steady = [1 + 0.1 * rng.normal(size=40) for _ in range(2)]
    bias = [0.3 * rng.normal(size=40) for _ in range(2)]
    losses = {
        "base": (steady[0] + bias[0], steady[0]),
        "half_hidden": (steady[1] + bias[1] + 0.3, steady[1] + 0.3),
    }
    write_stocks(tmp_path, losses)
    line = cells(pair_claims.axis_table(results.find_studies([tmp_path])), "Stocks, range")
    assert abs(float(line[1]) - 90) < 6
    assert abs(float(line[2]) - np.sqrt(0.1)) < 0.08


def test_the_page_and_the_picture_are_written(tmp_path, monkeypatch, capsys):
    write_tables(tmp_path, {"a": {"Model-1": [0.5, 0.6], "calibrate": [0.4, 0.5]}})
    monkeypatch.setattr("sys.argv", ["results.py", "--from", str(tmp_path)])
    monkeypatch.setattr("sys.argv", [*sys.argv, "--page", str(tmp_path / "RESULTS.md")])
    results.main()
    assert "Wrote" in capsys.readouterr().out
    assert results.PICTURE in (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert (tmp_path / results.PICTURE).stat().st_size > 10_000
    assert "√(d / (d + 1))" in (tmp_path / "RESULTS.md").read_text(encoding="utf-8")


def test_no_runs_are_refused_and_nothing_is_written(tmp_path, monkeypatch):
    page = tmp_path / "RESULTS.md"
    monkeypatch.setattr("sys.argv", ["results.py", "--from", str(tmp_path), "--page", str(page)])
    with pytest.raises(SystemExit, match="run the studies first"):
        results.main()
    assert not page.exists()
