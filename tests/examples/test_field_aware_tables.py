"""The tables of Field-aware Calibration: the methods, the columns, and the command."""

import sys

import jackknife
import numpy as np
import pytest
import tables
import training
from paper_ilps import PaperILPS
from scipy.special import expit
from sklearn import metrics

from keras_calibration import scoring
from keras_calibration.seeds import Ledger

pytestmark = pytest.mark.slow
METRICS = ["log_loss", "brier", "field_ece", "field_rce", "auc"]


@pytest.fixture(scope="module")
def task():
    """A task without a base model, for the methods that need only its logits."""
    rng = np.random.default_rng(0)

    def rows(number):
        logits = rng.normal(-1, 1, number).astype(np.float32)
        site = rng.integers(0, 3, number).astype(np.int32)
        labels = rng.random(number) < 1 / (1 + np.exp(-0.5 * logits - site))
        return logits, training.Rows({"site": site}, labels.astype(np.float32))

    (_, train), (development_logits, development), (test_logits, test) = map(rows, (99, 3000, 500))
    parts = {"train": train, "development": development, "test": test, "base": None}
    parts |= {"development_logits": development_logits, "test_logits": test_logits}
    settings = {"field": "site", "num_values": {"site": 3}, "seed": 0, "batch_size": 30}
    size = tables.NetworkSize(2, (4,))
    return tables.CalibrationTask(name="made up", size=size, **settings, **parts)


def test_columns_are_those_of_other_programs():
    rng = np.random.default_rng(1)
    labels = (rng.random(400) < 0.2).astype(np.float32)
    site = np.minimum(rng.geometric(0.3, 400), 9).astype(np.int32)
    logits = np.round(rng.normal(-1, 1, 400) + labels, 1).astype(np.float32)  # with ties
    p = expit(logits.astype(np.float64))
    expected = {
        "log_loss": metrics.log_loss(labels, p),
        "brier": metrics.brier_score_loss(labels, p),
        "field_ece": scoring.field_ece(labels, p, site),
        "field_rce": scoring.field_rce(labels, p, site, epsilon=0.01),
        "auc": metrics.roc_auc_score(labels, p),
    }
    assert jackknife.scores(logits, labels, site) == pytest.approx(expected, rel=1e-6)


def test_a_converged_ilps_has_the_loss_of_its_optimum(task):
    loss = {
        name: metrics.log_loss(task.test.labels, expit(tables.METHODS[name](task)))
        for name in ("Model-1", "ILPS", "ILPS to the end", "ILPS at its optimum")
    }
    gain = loss["Model-1"] - loss["ILPS at its optimum"]
    assert gain > 0.05
    assert abs(loss["ILPS to the end"] - loss["ILPS at its optimum"]) < 0.02 * gain
    assert loss["ILPS"] - loss["ILPS at its optimum"] > 0.3 * gain


def test_values_of_the_papers_ilps_may_decrease_and_are_penalized():
    layer = PaperILPS(step=2.0, penalty=0.1, num_knots=3)
    layer.build()
    np.testing.assert_allclose(expit(layer.knots.astype(np.float64)), [0.25, 0.5, 0.75], rtol=1e-6)
    logits = np.array([[-5.0], [-1.0], [0.0], [0.5], [5.0]], "float32")
    inside = np.clip(logits, layer.knots[0], layer.knots[-1])
    np.testing.assert_allclose(np.asarray(layer(logits)), inside, rtol=1e-6)
    layer.changes.assign([0.0, -1.0, 0.0])
    values = layer.knots + np.array([0, -2, 0])
    expected = np.interp(logits[:, 0], layer.knots, values)
    np.testing.assert_allclose(np.asarray(layer(logits))[:, 0], expected, rtol=1e-5)
    assert float(layer.losses[-1]) == pytest.approx(0.1 * (values[0] - values[1]), rel=1e-5)


def test_the_smallest_tables(data_root, tmp_path, monkeypatch, capsys):
    command = ["tables.py", "--data", str(data_root / "avazu_head10k"), "--seeds", "1"]
    command += ["--embedding-dim", "4", "--hidden-units", "8", "--batch-size", "32"]
    command += ["--output", str(tmp_path), "--methods"]
    names = ["Model-1", "Platt scaling", "Model-2"]
    monkeypatch.setattr(sys, "argv", [*command, *names[:2]])
    tables.main()
    capsys.readouterr()
    # The next command makes only the row that is missing.
    monkeypatch.setattr(sys, "argv", [*command, *names])
    tables.main()
    printed = capsys.readouterr().out
    assert "Made 1 runs" in printed
    runs = Ledger(tmp_path).runs(status="finished")
    assert [run["pipeline"] for run in runs] == names
    for run in runs:
        assert list(run["metrics"]) == [*METRICS, "seconds", "base_seconds"]
        assert np.isfinite([values[0] for values in run["metrics"].values()]).all()
        assert run["configuration"]["data"]["field"] == "site_id"
    (without,) = jackknife.read_jackknife(tmp_path).values()
    assert list(without) == names
    assert [len(values) for values in without["Platt scaling"][0].values()] == [20] * 5
    platt = runs[1]["metrics"]["log_loss"][0]
    assert platt < runs[0]["metrics"]["log_loss"][0]
    (line,) = (line for line in printed.splitlines() if line.startswith("| Platt scaling"))
    assert f"{platt:.5f} (0.3921)" in line
    assert "5,999 training, 2,000 development and 2,000 test rows" in printed
    # A third one trains nothing: without the data, it prints the same tables.
    monkeypatch.setattr(tables, "read_split", None)
    tables.main()
    again = capsys.readouterr().out
    assert again[again.index("###") :] == printed[printed.index("###") :]
