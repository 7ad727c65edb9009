"""The study of click pipelines: its pairs, and the whole of it on a small table."""

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.seeds import Ledger

sys.path.append(str(Path(__file__).parents[2] / "examples" / "calibrated_metric"))
import click_auc
import clicks
from id_table import Rows, read_rows
from pairs import Pair


def small_rows(num_rows=2000):
    """Labels that depend on two of four columns, the last two numeric."""
    rng = np.random.default_rng(0)
    num_ids = (5, 3, 8, 8)
    ids = np.stack([rng.integers(0, n, num_rows) for n in num_ids], axis=1).astype(np.int32)
    logits = ids[:, 0] - 2 + 0.5 * (ids[:, 2] - 4)
    labels = (rng.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    half = num_rows // 2
    names = ("site", "size", "hour", "age")
    return Rows(ids[:half], labels[:half], ids[half:], labels[half:], names, num_ids, 2)


def test_the_second_pipeline_of_a_pair_differs_from_the_first_in_one_way():
    study = clicks.make_study(clicks.Pipeline(embedding_dim=16))
    changed = {
        "features": "without",
        "architecture": "architecture",
        "size": "hidden_units",
        "batch_normalization": "batch_normalization",
        "dropout": "dropout",
        "l2": "l2",
        "embedding": "embedding_dim",
        "batch": "batch_size",
        "width": "hidden_units",
    }
    assert {pair.kind for pair in study.published} == set(changed)
    for pair in study.published:
        first, second = (dataclasses.asdict(study.pipelines[name]) for name in pair[1:])
        assert {key for key in first if first[key] != second[key]} == {changed[pair.kind]}
    embeddings = {p.embedding_dim for n, p in study.pipelines.items() if "embedding" in n}
    assert embeddings == {14, 16, 18}
    assert sum(pair.kind == "architecture" for pair in study.published) == 15
    assert study.published[Pair("architecture", "deepfm", "dcn_mix")] == "84.8 → 93.4"
    assert {p.l2 for p in study.pipelines.values()} == {0, 3e-7, 5e-7, 7e-7, 1e-6, 2e-6}


def test_some_kinds_have_only_their_pipelines():
    study = clicks.make_study(clicks.Pipeline()).with_kinds(["batch"])
    assert set(study.pipelines) == {"dlrm_batch_128", "dlrm_batch_256", "dlrm_batch_512"}
    assert len(study.published) == 2
    with pytest.raises(SystemExit, match="nonsense"):
        study.with_kinds(["nonsense"])


def test_removed_columns():
    rows = small_rows()
    assert clicks.kept_columns(rows, None) == [0, 1, 2, 3]
    assert clicks.kept_columns(rows, "dense") == [0, 1, 3]
    assert clicks.kept_columns(rows, "sparse") == [0, 2, 3]
    model = clicks.build_model(clicks.Pipeline(architecture="dlrm", without="dense"), rows)
    assert model.input_shape == (None, 3)


def test_shuffled_rows_are_the_same_rows(data_root):
    own = read_rows(data_root / "avazu_head10k", 2000)
    shuffled = read_rows(data_root / "avazu_head10k", 2000, shuffle=True)
    assert own.held_out.shape == shuffled.held_out.shape == (2000, len(own.columns))
    together = [np.concatenate([r.train_labels, r.held_out_labels]) for r in (own, shuffled)]
    assert together[0].sum() == together[1].sum()
    assert not np.array_equal(*together)
    for column, num in enumerate(own.num_ids):
        assert 0 <= own.train[:, column].min() <= own.train[:, column].max() < num
    with pytest.raises(ValueError, match="num_held_out"):
        read_rows(data_root / "avazu_head10k", 10_000)


@pytest.mark.slow
def test_the_whole_study_resumes(data_root, tmp_path, monkeypatch, capsys):
    flags = ["--data", str(data_root / "avazu_head10k"), "--output", str(tmp_path)]
    flags += ["--rows", "1500", "--held-out", "1500", "--embedding-dim", "2"]
    # Batches without a rest are traced once.
    flags += ["--batch-size", "500", "--hidden-units", "8", "4", "--kinds", "size", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["clicks.py", *flags])
    clicks.main()
    assert "1,500 rows to train on, 1,500 held out" in capsys.readouterr().out
    ledger = Ledger(tmp_path / "avazu_head10k" / "clicks")
    runs = ledger.runs()
    assert {(run["pipeline"], run["seed"]) for run in runs} == {
        (name, seed) for name in ("xdeepfm", "smaller") for seed in (0, 1)
    }
    clicks.main()
    assert capsys.readouterr().out.count("2 of 2 seeds are in the ledger") == 2
    assert ledger.runs() == runs
    assert {"val_auc", clicks.PLAIN, *clicks.CALIBRATED.values()} <= set(runs[0]["metrics"])
    section = clicks.markdown(ledger)
    assert "`avazu_head10k`" in section
    assert "2 seeds. 4 runs took" in section
    assert "69.6 → 73.6" in section
    # Other rows are no runs of this study.
    monkeypatch.setattr(sys, "argv", ["clicks.py", *flags, "--rows", "1000"])
    with pytest.raises(SystemExit, match="Choose another --output"):
        clicks.main()


def test_the_regression_is_that_of_the_labels():
    rows = small_rows(20_000)
    record = click_auc.regression_record(rows, {})
    # The labels are additive, so the regression is right.
    assert record["metrics"]["val_auc"][0] > 0.8
    assert record["metrics"]["val_log_loss"][0] < 0.55


def test_the_table_of_areas(tmp_path):
    ledger = Ledger(tmp_path)
    areas = [("logistic_regression", [0.7]), ("fnn", [0.69, 0.72, 0.75]), ("other", [0.9])]
    for name, values in areas:
        for seed, value in enumerate(values):
            run = {"pipeline": name, "seed": seed, "status": "finished", "epochs": [0]}
            ledger.append({**run, "metrics": {"val_auc": [value]}})
    lines = click_auc.auc_table(ledger, ["dcn", "fnn"]).splitlines()
    assert [re.sub(" +", " ", line) for line in lines[2:]] == [
        "| logistic regression | 0.7000 | |",
        "| fnn | 0.7200 ± 0.0745 | 2 of 3 seeds |",
    ]
    assert click_auc.auc_table(Ledger(tmp_path / "empty"), ["fnn"]) == ""
