"""The page of results, from ledgers that are made up."""

import sys

import numpy as np
import pytest

import results
from keras_calibration.seeds import Ledger

METRICS = ("log_loss", "brier", "field_ece", "field_rce", "auc")


def write_tables(folder, losses):
    """Runs of `tables.py`: data set → row → log loss of each seed."""
    ledger = Ledger(folder / results.FIELD_AWARE)
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
    """The cells of the first line of the page that starts with these cells."""
    for line in page.splitlines():
        found = [cell.strip() for cell in line.strip("|").split("|")]
        if found[: len(starts)] == list(starts):
            return found
    raise AssertionError(f"no line {starts}")


def test_claims_hold_on_the_data_sets_where_the_mean_is_better(tmp_path):
    neural, base = "Neural Calibration", "Model-1"
    losses = {
        "beyond": {base: [0.5, 0.6, 0.7], neural: [0.4, 0.5, 0.6001]},
        "by the mean": {base: [0.5, 0.6, 0.7], neural: [0.4, 0.65, 0.6]},
        "worse": {base: [0.5, 0.6, 0.7], neural: [0.6, 0.7, 0.8001]},
        "one seed": {base: [0.5], neural: [0.4]},
    }
    write_tables(tmp_path, losses)
    page = results.make_page(results.find_groups([tmp_path]), [])
    assert cells(page, neural, base, "log loss")[3:] == [
        *("2 of 3", "1", "1", "tables 1–5", "partly")
    ]
    # The AUC, here the same numbers, is better where it is higher.
    assert cells(page, neural, base, "AUC")[3:] == [
        *("1 of 3", "1", "1", "tables 1–5", "not reproduced")
    ]
    assert "### beyond" in page
    assert "| Neural Calibration | Platt scaling " not in page


@pytest.mark.parametrize(
    ("share", "expected"),
    [(1, "reproduced"), (0.8, "reproduced"), (0.7, "partly"), (0.5, "partly"), (0.4, None)],
)
def test_verdicts_of_claims(share, expected):
    assert results.verdict(share) == (expected or "not reproduced")


def test_verdicts_of_pairs(tmp_path):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, 30))
    steady = 1 + 1e-6 * rng.normal(size=30)
    losses = {
        "base": (1 + noise[0], steady),
        # Known by 30 seeds, seldom by one; the calibrated loss always tells.
        "half_hidden": (1.6 + noise[1], steady + 1),
        # So much worse that there is nothing to gain.
        "one_more_layer": (9 + noise[1], steady + 1),
        # The calibrated loss says the opposite.
        "one_more_epoch": (1.6 + noise[1], steady - 1),
    }
    write_stocks(tmp_path, losses)
    studies = results.find_studies([tmp_path, tmp_path / "nothing"])
    page = results.make_page([], studies)
    study = "Stocks, range of the next day"
    assert [found.title for found in studies] == [study]
    found = cells(page, study, "hidden size")
    assert found[2] == "1 of 1"
    assert 55 < float(found[3]) < 80
    assert found[4:] == ["100.0", "100.0", "reproduced"]
    assert cells(page, study, "layers")[2:] == ["0 of 1", "–", "–", "–", "open"]
    assert cells(page, study, "epochs")[4:] == ["0.0", "0.0", "not reproduced"]


def test_the_page_and_the_picture_are_written(tmp_path, monkeypatch, capsys):
    write_tables(tmp_path, {"a": {"Model-1": [0.5, 0.6], "calibrate": [0.4, 0.5]}})
    monkeypatch.setattr("sys.argv", ["results.py", "--from", str(tmp_path)])
    monkeypatch.setattr("sys.argv", [*sys.argv, "--page", str(tmp_path / "RESULTS.md")])
    results.main()
    assert "Wrote" in capsys.readouterr().out
    assert results.PICTURE in (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert (tmp_path / results.PICTURE).stat().st_size > 10_000


def test_no_runs_are_refused_and_nothing_is_written(tmp_path, monkeypatch):
    page = tmp_path / "RESULTS.md"
    monkeypatch.setattr("sys.argv", ["results.py", "--from", str(tmp_path), "--page", str(page)])
    with pytest.raises(SystemExit, match="run the studies first"):
        results.main()
    assert not page.exists()
