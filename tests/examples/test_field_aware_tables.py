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


sys.path.append(str(EXAMPLE))
import jackknife  # noqa: E402
import tables as tables_script  # noqa: E402
import training  # noqa: E402
from paper_ilps import PaperILPS  # noqa: E402

from two_way_bootstrap import pseudo_values, two_way_interval  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables():
    return tables_script


@pytest.fixture(scope="module")
def task(tables):
    """A task without a base model, for the methods that need only its logits."""
    rng = np.random.default_rng(0)

    def rows(number):
        logits = rng.normal(-1, 1, number).astype(np.float32)
        site = rng.integers(0, 3, number).astype(np.int32)
        labels = rng.random(number) < 1 / (1 + np.exp(-0.5 * logits - site))
        return logits, training.Rows({"site": site}, labels.astype(np.float32))

    (_, train), (development_logits, development), (test_logits, test) = map(rows, (99, 3000, 500))
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


def test_columns_against_numpy():
    rng = np.random.default_rng(1)
    labels = (rng.random(400) < 0.2).astype(np.float32)
    site = np.minimum(rng.geometric(0.3, 400), 9).astype(np.int32)
    logits = np.round(rng.normal(-1, 1, 400) + labels, 1).astype(np.float32)  # with ties
    found = jackknife.scores(logits, labels, site)

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


def test_columns_without_a_block_are_those_of_the_other_rows():
    rng = np.random.default_rng(2)
    site = rng.integers(0, 40, 300).astype(np.int32)  # some blocks hold all rows of a site
    logits = np.round(rng.normal(-1, 1, 300), 1).astype(np.float32)
    labels = (rng.random(300) < sigmoid(logits)).astype(np.float32)
    found = jackknife.scores_without_blocks(logits, labels, site)
    blocks = jackknife.blocks_of_rows(300)
    assert np.bincount(blocks).tolist() == [15] * 20
    for block in range(20):
        kept = blocks != block
        expected = jackknife.scores(logits[kept], labels[kept], site[kept])
        for metric in METRICS:
            np.testing.assert_allclose(found[metric][block], expected[metric], rtol=1e-6)


def test_the_side_file_keeps_the_last_line_of_a_run(tmp_path):
    run = {"pipeline": "a", "seed": 3, "configuration": {"settings": {"y": 1, "x": None}}}
    for value in (0.1, 0.123456789):
        jackknife.append_jackknife(tmp_path, run, {"auc": [value, 0.5]})
    assert jackknife.read_jackknife(tmp_path) == {
        '{"x": null, "y": 1}': {"a": {3: {"auc": [0.12345679, 0.5]}}}
    }
    assert jackknife.read_jackknife(tmp_path / "nothing") == {}


def test_the_noise_floor_is_that_of_labels_drawn_from_the_probabilities(tables, task, monkeypatch):
    monkeypatch.setattr(tables.methods, "calibrate", lambda task: task.test_logits)
    found = tables.noise_floor(task)
    p = sigmoid(task.test_logits)
    site = task.test.features["site"]
    # E|N(0, v)| of each site, whose errors are sums over many rows.
    variances = [np.sum((p * (1 - p))[site == value]) for value in range(3)]
    expected = np.sqrt(2 / np.pi * np.array(variances)).sum() / len(p)
    assert 0.6 * expected < found["field_ece"] < 1.5 * expected
    assert list(found) == METRICS


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
        for name in (
            *("Model-1", "Platt scaling", "FieldBias", "FieldILPS", "Our ILPS"),
            "Our NeuralCalibration",
        )
    }
    assert loss["Model-1"] - 0.05 > loss["Platt scaling"] > loss["FieldBias"] + 0.02
    assert abs(loss["FieldBias"] - loss["FieldILPS"]) < 0.01
    assert loss["Our NeuralCalibration"] < loss["Platt scaling"] - 0.01
    assert abs(loss["Our ILPS"] - loss["Platt scaling"]) < 0.01


def test_a_converged_ilps_has_the_loss_of_its_optimum(tables, task):
    loss = {
        name: log_loss(task.test.labels, tables.METHODS[name](task))
        for name in ("Model-1", "ILPS, one epoch", "ILPS", "ILPS at its optimum")
    }
    gain = loss["Model-1"] - loss["ILPS at its optimum"]
    assert gain > 0.05
    assert abs(loss["ILPS"] - loss["ILPS at its optimum"]) < 0.02 * gain
    assert loss["ILPS, one epoch"] - loss["ILPS at its optimum"] > 0.3 * gain


def test_values_of_the_papers_ilps_may_decrease_and_are_penalized():
    layer = PaperILPS(step=2.0, penalty=0.1, num_knots=3)
    layer.build()
    np.testing.assert_allclose(sigmoid(layer.knots), [0.25, 0.5, 0.75], rtol=1e-6)
    logits = np.array([[-5.0], [-1.0], [0.0], [0.5], [5.0]], "float32")
    inside = np.clip(logits, layer.knots[0], layer.knots[-1])
    np.testing.assert_allclose(np.asarray(layer(logits)), inside, rtol=1e-6)
    layer.changes.assign([0.0, -1.0, 0.0])
    values = layer.knots + np.array([0, -2, 0])
    expected = np.interp(logits[:, 0], layer.knots, values)
    np.testing.assert_allclose(np.asarray(layer(logits))[:, 0], expected, rtol=1e-5)
    assert float(layer.losses[-1]) == pytest.approx(0.1 * (values[0] - values[1]), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Neural Calibration", "Neural Calibration, one epoch"])
def test_neural_calibration_learns_the_field(tables, task, name):
    found = tables.METHODS[name](task)
    change = found - task.test_logits
    site = task.test.features["site"]
    assert change[site == 2].mean() > change[site == 0].mean()
    assert log_loss(task.test.labels, found) < log_loss(task.test.labels, task.test_logits)


def test_a_compiled_model_trains_anew_for_each_seed(task):
    def train(seed):
        head = PaperILPS()
        head.build()
        model = task.model("anew", head)
        inputs = training.inputs_of(task.development_logits, task.development, ())
        training.train_one_epoch(model, inputs, task.development.labels, 30, seed)
        assert model.optimizer.learning_rate == np.float32(training.LEARNING_RATE)
        assert int(model.optimizer.iterations) == 100
        return model, np.asarray(model.head.changes)

    (first, once), (second, again), (_, other) = train(0), train(0), train(1)
    assert first is second
    np.testing.assert_array_equal(once, again)
    assert (once != other).any()


def test_every_row_is_in_an_epoch():
    order = training.epoch_order(10, 4, np.random.default_rng(0))
    assert order.shape == (3, 4)
    assert set(order.ravel()) == set(range(10))
    assert training.epoch_order(3, 8, np.random.default_rng(0)).shape == (1, 3)


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


def test_markdown_of_several_seeds_and_data_sets(tables, tmp_path):
    def without_blocks(value):
        return (value + 0.01 * np.random.default_rng(int(1e3 * value)).normal(size=20)).tolist()

    ledger = Ledger(tmp_path)
    losses = {
        ("a", "Model-1"): [0.50, 0.52],
        ("a", "Platt scaling"): [0.49, 0.50],
        ("a", "mine"): [0.51, 0.53],
        ("b", "Model-1"): [0.30, 0.32],
        ("b", "Platt scaling"): [0.31, 0.33],
        ("b", "mine"): [0.29, 0.30],
        ("b", "unfinished"): [0.9],
        ("b", "Noise floor"): [0.2, 0.2],
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
            run = {"pipeline": row, "seed": seed, "status": "finished", "epochs": [0]}
            run["configuration"] = {"settings": {"data": name, **sizes}, "data": data}
            ledger.append({**run, "metrics": metrics})
            if name == "a":
                jackknife.append_jackknife(tmp_path, run, {"log_loss": without_blocks(value)})
    text = tables.markdown(ledger)
    # Three rows of two seconds under two seeds, and two base models.
    assert "2 seeds; 32 s in all." in text
    assert "parentheses" not in text
    half = 12.7062 * np.std([0.49, 0.50], ddof=1) / np.sqrt(2)
    assert f"| Platt scaling | 0.49500 ± {half:.5f} |" in text
    first, second = (
        pseudo_values(losses["a", row], [without_blocks(value) for value in losses["a", row]])
        for row in ("Model-1", "Platt scaling")
    )
    estimate = two_way_interval(first, second)
    assert f"-0.01500 [{estimate.low:+.5f}, {estimate.high:+.5f}]" in text
    # Without the side file, there is no interval.
    assert "| +0.01000 " in text
    assert "| unfinished " not in text[: text.index("### Summary")]
    assert "Left out, because they have fewer seeds: unfinished (1)." in text
    (floor,) = (line for line in text.splitlines() if line.startswith("| Noise floor"))
    found = [cell.strip().split(" ")[0] for cell in floor.split("|")[2:-1]]
    assert found == ["", "", "0.10000", "10.00", "", "", "2.0"]
    summary = [line.split(" | ") for line in text[text.index("### Summary") :].splitlines()]
    cells = {line[0].strip("| "): [c.strip(" |") for c in line[1:]] for line in summary if line[1:]}
    assert cells["Model-1"] == ["0", "2", "", "1 of 2"]
    assert cells["Platt scaling"] == ["1", "2", "1 of 2", ""]
    assert cells["mine"] == ["1", "2", "1 of 2", "1 of 2"]
