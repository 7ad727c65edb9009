"""The tables of Field-aware Calibration: the methods, the columns, and the command."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.seeds import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "field_aware_calibration"
METRICS = ["log_loss", "brier", "field_ece", "field_rce", "auc"]


@pytest.fixture(scope="module")
def tables():
    sys.path.append(str(EXAMPLE))
    import tables

    yield tables
    sys.path.remove(str(EXAMPLE))


@pytest.fixture(scope="module")
def task(tables):
    """A task without a base model, for the methods that need only its logits."""
    rng = np.random.default_rng(0)

    def rows(number):
        logits = rng.normal(-1, 1, number).astype(np.float32)
        site = rng.integers(0, 3, number).astype(np.int32)
        labels = rng.random(number) < 1 / (1 + np.exp(-0.5 * logits - site))
        return logits, tables.Rows({"site": site}, labels.astype(np.float32))

    (_, train), (development_logits, development), (test_logits, test) = map(rows, (9, 3000, 500))
    return tables.CalibrationTask(
        name="made up",
        field="site",
        num_values={"site": 3},
        train=train,
        development=development,
        test=test,
        base=None,
        development_logits=development_logits,
        test_logits=test_logits,
        seed=0,
        size=tables.NetworkSize(2, (4,)),
        batch_size=30,
    )


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def log_loss(labels, logits):
    return np.mean(np.logaddexp(0, np.where(labels == 1, -logits, logits).astype(np.float64)))


def test_columns_against_numpy(tables):
    rng = np.random.default_rng(1)
    labels = (rng.random(400) < 0.2).astype(np.float32)
    site = np.minimum(rng.geometric(0.3, 400), 9).astype(np.int32)
    logits = np.round(rng.normal(-1, 1, 400) + labels, 1).astype(np.float32)  # with ties
    found = tables.scores(logits, tables.Rows({"site": site}, labels), "site")

    p = sigmoid(logits)
    ece = rce = 0.0
    for value in range(10):
        here = site == value
        gap = abs(np.sum(labels[here] - p[here]))
        ece += gap / 400
        rce += here.sum() * gap / np.sum(labels[here] + 0.01) / 400 if here.any() else 0.0
    ranks = logits[labels == 1][:, None] - logits[labels == 0][None, :]
    expected = {
        "log_loss": log_loss(labels, logits),
        "brier": np.mean((labels - p) ** 2),
        "field_ece": ece,
        "field_rce": rce,
        "auc": np.mean((ranks > 0) + 0.5 * (ranks == 0)),
    }
    assert list(found) == METRICS
    for metric, value in expected.items():
        np.testing.assert_allclose(found[metric], value, rtol=1e-6, err_msg=metric)


def test_isotonic_regression_is_scikit_learns(tables, task):
    from sklearn.isotonic import IsotonicRegression

    reference = IsotonicRegression(out_of_bounds="clip")
    reference.fit(task.development_logits, task.development.labels)
    expected = reference.predict(task.test_logits)
    found = sigmoid(tables.METHODS["Isotonic regression"](task))
    # At both ends, ours keeps clear of 0 and 1.
    steps = np.unique(reference.y_thresholds_)
    inside = (expected >= steps[1]) & (expected <= steps[-2])
    assert inside.mean() > 0.9
    np.testing.assert_allclose(found[inside], expected[inside], atol=1e-5)


def test_methods_that_read_the_field_gain_by_it(tables, task):
    loss = {
        name: log_loss(task.test.labels, tables.METHODS[name](task))
        for name in ("Model-1", "Platt scaling", "FieldBias", "FieldILPS", "Our ILPS")
    }
    assert loss["Model-1"] - 0.05 > loss["Platt scaling"] > loss["FieldBias"] + 0.02
    assert abs(loss["FieldBias"] - loss["FieldILPS"]) < 0.01
    assert abs(loss["Our ILPS"] - loss["Platt scaling"]) < 0.01


@pytest.mark.slow
def test_neural_calibration_learns_the_field_in_one_epoch(tables, task):
    found = tables.METHODS["Neural Calibration"](task)
    change = found - task.test_logits
    site = task.test.features["site"]
    assert change[site == 2].mean() > change[site == 0].mean()
    assert log_loss(task.test.labels, found) < log_loss(task.test.labels, task.test_logits)


def test_the_inverted_setting_exchanges_the_rows(tables, task, monkeypatch):
    monkeypatch.setattr(tables.methods, "make_task", lambda split, *_: split)
    exchanged = tables.methods.inverted.__wrapped__(task)
    assert exchanged.train is task.development
    assert exchanged.development is task.train
    assert exchanged.test is task.test


def test_an_epoch_has_at_least_150_steps_where_it_can(tables):
    from base_network import default_batch_size

    assert [default_batch_size(n) for n in (10**6, 76_800, 76_799, 6_000, 150, 3)] == [
        *(512, 512, 256, 32, 1, 1)
    ]


def test_unknown_rows_are_refused(tables):
    assert tables.choose_methods(["Platt scaling", "paper"])[0] == "Model-1"
    with pytest.raises(SystemExit, match="No rows \\['Plat'\\]"):
        tables.choose_methods(["Plat"])


def test_a_row_that_cannot_be_fitted_does_not_stop_the_others(
    tables, task, tmp_path, monkeypatch, capsys
):
    def refuse(task):
        raise ValueError("Too few rows.")

    monkeypatch.setattr(tables, "METHODS", {"refused": refuse, **tables.methods.METHODS})
    monkeypatch.setattr(tables, "read_split", lambda *_: None)
    monkeypatch.setattr(tables, "make_task", lambda *_: task)
    command = ["tables.py", "--data", "made up", "--seeds", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--methods", "refused", "Model-1"])
    with pytest.raises(SystemExit, match="made up, seed 0, refused: Too few rows"):
        tables.main()
    assert "Made 1 runs" in capsys.readouterr().out
    assert [run["pipeline"] for run in Ledger(tmp_path).runs()] == ["Model-1"]


def test_published_figures_are_complete():
    published = json.loads((EXAMPLE / "published.json").read_text(encoding="utf-8"))
    contents = published["tables"]
    assert list(contents) == ["1", "2", "3", "4", "5", "6"]
    data = [contents[number]["data"] for number in "12345"]
    for number in "12345":
        rows = contents[number]["rows"]
        assert len(rows) == 5
        assert all(list(values) == METRICS for values in rows.values())
    rows = contents["6"]["rows"]
    assert len(rows) == 10
    for values in rows.values():
        assert list(values) == data
        assert all(list(each) == ["field_rce", "auc"] for each in values.values())
    assert set(published["folders"].values()) <= set(data)
    assert {name for content in contents.values() for name in content["rows"]} == set(
        published["rows"]
    )


def test_published_rows_are_rows_of_the_tables(tables):
    published = json.loads((EXAMPLE / "published.json").read_text(encoding="utf-8"))
    assert set(published["rows"].values()) <= set(tables.METHODS)


def test_figures_of_the_paper_beside_its_data_sets_only(tables):
    from tables_markdown import published_figures

    assert published_figures("kddcup2012_click40k") == {}
    found = published_figures("lendingclub_2018_32k")
    assert len(found) == 11  # the ten of table 6, and Model-2
    assert found["Platt scaling"]["brier"] == 0.08
    assert found["Isotonic regression"]["auc"] == 0.912  # of table 1; 0.909 in table 6
    assert found["ILPS, inverted"] == {"field_rce": 0.083, "auc": 0.786}


def test_published_figures_are_those_of_the_paper(data_root):
    paper = data_root.parent / "papers" / "pan_field_aware_calibration.txt"
    if not paper.is_file():
        pytest.skip(f"The text of the paper is not at {paper}.")
    lines = paper.read_text(encoding="utf-8").splitlines()
    published = json.loads((EXAMPLE / "published.json").read_text(encoding="utf-8"))
    for number, content in published["tables"].items():
        title = next(i for i, line in enumerate(lines) if line.startswith(f"Table {number}."))
        first = title + (3 if number == "6" else 2)
        for name, line in zip(content["rows"], lines[first:], strict=False):
            values = content["rows"][name]
            assert line.split()[0] == name.split()[0]
            flat = (
                [v for each in values.values() for v in each.values()]
                if number == "6"
                else list(values.values())
            )
            words = re.findall(r" ([\d.]+)(%?)(?= |$)", line)[-len(flat) :]
            printed = [float(digits) / (100 if percent else 1) for digits, percent in words]
            np.testing.assert_allclose(flat, printed, rtol=1e-9, err_msg=f"{number}: {name}")


@pytest.mark.slow
def test_the_smallest_tables(tables, data_root, tmp_path, monkeypatch, capsys):
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


def test_markdown_of_several_seeds_and_data_sets(tables, tmp_path):
    ledger = Ledger(tmp_path)
    losses = {
        ("a", "Model-1"): [0.50, 0.52],
        ("a", "Platt scaling"): [0.49, 0.50],
        ("a", "mine"): [0.51, 0.53],
        ("b", "Model-1"): [0.30, 0.32],
        ("b", "Platt scaling"): [0.31, 0.33],
        ("b", "mine"): [0.29, 0.30],
    }
    data = {
        **{"field": "site", "num_field_values": 3, "num_columns": 2, "positive_rate": 0.5},
        "batch_size": 16,
        **{"num_train": 60, "num_development": 20, "num_test": 20},
    }
    sizes = {"field": None, "embedding_dim": 4, "hidden_units": [8], "batch_size": None}
    for (name, row), values in losses.items():
        for seed, value in enumerate(values):
            metrics = {metric: [0.1] for metric in METRICS} | {"log_loss": [value]}
            metrics |= {"seconds": [2.0], "base_seconds": [10.0]}
            ledger.append(
                {
                    **{"pipeline": row, "seed": seed, "status": "finished", "epochs": [0]},
                    "metrics": metrics,
                    "configuration": {"settings": {"data": name, **sizes}, "data": data},
                }
            )
    text = tables.markdown(ledger)
    # Three rows of two seconds under two seeds, and two base models.
    assert text.count("2 seeds; 32 s in all.") == 2
    assert "parentheses" not in text
    half = 12.7062 * np.std([0.49, 0.50], ddof=1) / np.sqrt(2)
    assert f"| Platt scaling | 0.49500 ± {half:.5f} |" in text
    # Differences -0.01 and -0.02: their mean ± 12.7062 · 0.005.
    assert "-0.01500 [-0.07853, +0.04853]" in text
    summary = [line.split(" | ") for line in text[text.index("### Summary") :].splitlines()]
    cells = {line[0].strip("| "): [c.strip(" |") for c in line[1:]] for line in summary if line[1:]}
    assert cells["Model-1"] == ["0", "2", "", "1 of 2"]
    assert cells["Platt scaling"] == ["1", "2", "1 of 2", ""]
    assert cells["mine"] == ["1", "2", "1 of 2", "1 of 2"]
