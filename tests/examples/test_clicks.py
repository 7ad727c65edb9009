"""The study of click pipelines: its pairs, and the whole of it on a small table."""

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from keras_calibration.logs import ScoredLog
from keras_calibration.metrics import CalibratedLogLoss
from keras_calibration.scoring import score_by_period
from keras_calibration.seeds import Ledger

sys.path.append(str(Path(__file__).parents[2] / "examples" / "calibrated_metric"))
import block_losses
import click_auc
import clicks
from id_table import Rows, read_rows
from pairs import Pair

pytestmark = pytest.mark.slow


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
    assert {p.l2 for p in study.pipelines.values()} == {0, 1e-12, 3e-7, 5e-7, 7e-7, 1e-6, 2e-6}


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
    pipeline = clicks.Pipeline(architecture="dlrm", without="dense")
    model = clicks.build_model(pipeline, rows, {clicks.PLAIN: None})
    assert model.input_shape == (None, 3)


def test_mixed_rows_are_the_same_rows(data_root):
    folder = data_root / "avazu_head10k"
    found = {mixing: read_rows(folder, 2000, mixing=mixing) for mixing in (0, 0.5, 1)}
    sums = set()
    for rows in found.values():
        assert rows.held_out.shape == (2000, len(rows.columns))
        sums.add(rows.train_labels.sum() + rows.held_out_labels.sum())
        for column, num in enumerate(rows.num_ids):
            assert 0 <= rows.train[:, column].min() <= rows.train[:, column].max() < num
    assert len(sums) == 1
    # The number of held-out rows that are among the last in their own order.
    last = {row.tobytes() for row in found[0].held_out}
    shares = [np.mean([row.tobytes() in last for row in rows.held_out]) for rows in found.values()]
    assert shares[0] == 1
    assert shares[0] > shares[1] > shares[2]
    with pytest.raises(ValueError, match="num_held_out"):
        read_rows(folder, 10_000)
    with pytest.raises(ValueError, match="mixing"):
        read_rows(folder, 2000, mixing=1.5)


def test_folds_hold_out_each_row_once(data_root):
    folder = data_root / "avazu_head10k"
    found = [read_rows(folder, 1999, mixing=1, fold=fold) for fold in range(5)]
    whole = np.concatenate([found[0].train, found[0].held_out])
    for fold, rows in enumerate(found):
        stop = len(whole) - 1999 * fold
        # Numeric columns, which other rows cut into buckets, are the last ones.
        same = slice(0, len(rows.columns) - rows.num_numeric)
        np.testing.assert_array_equal(rows.held_out[:, same], whole[stop - 1999 : stop, same])
        assert len(rows.train) == len(whole) - 1999
        joined = np.concatenate([rows.train, rows.held_out])[:, same]
        assert sorted(map(bytes, joined)) == sorted(map(bytes, whole[:, same]))
    for fold in (-1, 5):
        with pytest.raises(ValueError, match="`fold`"):
            read_rows(folder, 1999, mixing=1, fold=fold)
    with pytest.raises(ValueError, match="`fold`"):
        read_rows(folder, 1999, mixing=0.5, fold=1)
    few = read_rows(folder, 100, mixing=1, max_rows=500)
    assert (len(few.train), len(few.held_out)) == (400, 100)
    np.testing.assert_array_equal(few.train[:, same], whole[:400, same])


def test_the_metrics_have_the_shares_of_the_papers():
    few, many = {"num_positives": 400}, {"num_positives": 6000}
    avazu, criteo = {"data": "avazu_head10k"}, {"data": "criteo_head10k"}
    assert clicks.metrics_of(avazu)[clicks.PAPERS] == {"bias_fraction": 0.1}
    assert clicks.metrics_of(criteo)[clicks.PAPERS] == {"bias_fraction": 0.2}
    assert clicks.calibrated_of(avazu | many) == clicks.CALIBRATED
    # 10 % of 3,000 positives are too few for a bias, and 20 % are not.
    assert set(clicks.calibrated_of(avazu | few).values()) == {clicks.CALIBRATED["ours"]}
    assert set(clicks.calibrated_of(avazu | {"num_positives": 3000}).values()) == {
        clicks.CALIBRATED["ours"]
    }
    assert clicks.calibrated_of(criteo | {"num_positives": 3000}) == clicks.CALIBRATED
    assert clicks.batch_size_of(31_959) == 31
    assert clicks.batch_size_of(500) == 1


def test_losses_by_block_are_those_of_the_metrics():
    rng = np.random.default_rng(3)
    logits = rng.normal(-1, 2, 3000).astype(np.float32)
    labels = (rng.random(3000) < 1 / (1 + np.exp(-0.7 * logits - 0.5))).astype(np.float32)
    for name, arguments in clicks.metrics_of({"data": "criteo"}).items():
        metric = clicks.click_metric(name, arguments)
        metric.update_state(labels, logits)
        blocks = block_losses.block_values(*block_losses.row_losses(labels, logits, arguments))
        assert len(blocks) == block_losses.NUM_BLOCKS
        np.testing.assert_allclose(np.mean(blocks), float(metric.result()), rtol=1e-6)
        assert np.std(blocks) > 1e-3


def test_rolling_losses_by_block_are_those_of_score_by_period():
    rng = np.random.default_rng(4)
    logits = rng.normal(-1, 2, 3000).astype(np.float32)
    labels = (rng.random(3000) < 1 / (1 + np.exp(-logits - 0.8))).astype(np.float32)
    labels[600:900] = 1  # a period that leaves the bias before it
    found = clicks.metrics_of({"data": "movielens", "num_periods": 10})
    assert found[clicks.PLAIN] is None
    losses, scored = block_losses.row_losses(labels, logits, found[clicks.ROLLING])
    period = np.arange(3000) // 300
    columns = {"label": labels, "probability": 1 / (1 + np.exp(-logits.astype(np.float64)))}
    days = np.datetime64("2026-01-01T12:00:00") + period * np.timedelta64(1, "D")
    log = ScoredLog(pd.DataFrame({**columns, "at": days}), timestamp="at")
    by_day = score_by_period(log, [CalibratedLogLoss()], verbose=0)
    expected = [each["rolling_calibrated_log_loss"] for each in by_day.values()]
    assert not scored[:300].any()
    assert scored[300:].all()
    means = [losses[period == number].mean() for number in range(1, 10)]
    np.testing.assert_allclose(means, expected[1:], rtol=1e-5)
    blocks = block_losses.block_values(losses, scored)
    np.testing.assert_allclose(np.mean(blocks), np.mean(means), rtol=1e-6)


@pytest.mark.slow
def test_the_whole_study_resumes(data_root, tmp_path, monkeypatch, capsys):
    flags = ["--data", str(data_root / "avazu_head10k"), "--output", str(tmp_path)]
    flags += ["--rows", "1500", "--held-out", "1500", "--embedding-dim", "2"]
    # Batches without a rest are traced once.
    flags += ["--batch-size", "500", "--hidden-units", "8", "4", "--kinds", "size", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["clicks.py", *flags])
    clicks.main()
    assert "1,500 rows to train on, 1,500 held out" in capsys.readouterr().out
    ledger = Ledger(tmp_path / "clicks" / "avazu_head10k_mixing_1")
    runs = ledger.runs()
    trained = {(name, seed) for name in ("xdeepfm", "smaller") for seed in (0, 1)}
    assert {(run["pipeline"], run["seed"]) for run in runs} == {
        *trained,
        (click_auc.REGRESSION, 0),
    }
    clicks.main()
    assert capsys.readouterr().out.count("2 of 2 seeds are in the ledger") == 2
    assert ledger.runs() == runs
    runs = [run for run in runs if run["pipeline"] != click_auc.REGRESSION]
    assert {"val_auc", clicks.PLAIN, *clicks.CALIBRATED.values()} <= set(runs[0]["metrics"])
    blocks = block_losses.read_block_losses(ledger.path)
    assert set(blocks) == trained
    for run in runs:
        for name, values in blocks[run["pipeline"], run["seed"]].items():
            np.testing.assert_allclose(np.mean(values), run["metrics"][name][0], rtol=1e-5)
    section = clicks.markdown(ledger)
    assert "`avazu_head10k`" in section
    assert "2 seeds. 4 runs took" in section
    assert "69.6 → 73.6" in section or "other way round" in section
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
