import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from keras_calibration.seeds import Ledger, compare

FRAME = pd.DataFrame(
    {
        "pipeline": ["dcn", "deepfm", "dcn", "dcn"],
        "seed": [1, 1, 1, 2],
        "epoch": [1, 0, 0, 0],
        "val_loss": [0.4, 0.7, 0.5, 0.6],
        "uplift": [1, 2, 3, 4],
    }
)


def expected_runs(frame):
    """The runs of a frame, gathered row by row."""
    runs = {}
    for row in frame.to_dict("records"):
        run = runs.setdefault((row.pop("pipeline"), row.pop("seed")), {})
        run[row.pop("epoch", 0)] = row
    return runs


def found_runs(ledger):
    return {
        (run["pipeline"], run["seed"]): {
            epoch: {name: values[number] for name, values in run["metrics"].items()}
            for number, epoch in enumerate(run["epochs"])
        }
        for run in ledger.runs(status="finished")
    }


@pytest.mark.parametrize("make", [lambda frame: frame, pl.from_pandas, pa.Table.from_pandas])
def test_epochs_of_a_run_are_gathered(tmp_path, make):
    ledger = Ledger.from_frame(make(FRAME), tmp_path / "runs", directions={"uplift": "max"})
    assert found_runs(ledger) == expected_runs(FRAME)
    assert [run["epochs"] for run in ledger.runs()] == [[0, 1], [0], [0]]
    assert {tuple(run["directions"].items()) for run in ledger.runs()} == {(("uplift", "max"),)}


def test_seeds_are_taken_exactly(tmp_path):
    seeds = [2**53, 2**53 + 1, 2**64 - 1]
    frame = pd.DataFrame({"pipeline": "dcn", "seed": np.array(seeds, "uint64"), "loss": 0.5})
    ledger = Ledger.from_frame(frame, tmp_path)
    Ledger.from_frame(pd.DataFrame({"pipeline": "dcn", "seed": [7.0], "loss": 0.5}), tmp_path)
    assert [run["seed"] for run in ledger.runs()] == [*seeds, 7]


def arrow(frame, pipelines):
    """With a column of codes, as Arrow has of texts: a missing one has no code."""
    return pa.Table.from_pandas(frame).set_column(0, "pipeline", pipelines.dictionary_encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="seed"), "`frame`.*'pipeline', 'seed' and"),
        (lambda f: f[:0], "`frame`.*'pipeline', 'seed' and"),
        (lambda f: f.rename(columns={"uplift": "val_loss"}), "`frame`.*'pipeline', 'seed' and"),
        (lambda f: pl.from_pandas(f).lazy(), "in memory"),
        (lambda f: {"pipeline": ["dcn"]}, "`frame` must"),
        (lambda f: f.assign(uplift="low"), "column 'uplift'"),
        (lambda f: f.assign(uplift=[1, 2, 3, -np.inf]), "column 'uplift'"),
        (lambda f: f.assign(seed=[1, 1, 1, 1.9]), "column 'seed'"),
        (lambda f: f.assign(seed=[1, 1, 1, np.nan]), "column 'seed'"),
        (lambda f: f.assign(seed=2.0**53), "column 'seed'"),
        (lambda f: f.assign(epoch=0.5), "column 'epoch'"),
        (lambda f: f.drop(columns="epoch"), "`frame`.*seed=1, epoch=0"),
        (lambda f: f.assign(epoch=[1, 0, -1, 0]), "`frame`.*column 'epoch'"),
        (lambda f: f.assign(pipeline=["dcn", 3, "dcn", "dcn"]), "`frame`.*column 'pipeline'"),
        (lambda f: f.assign(pipeline=["dcn", "", "dcn", "dcn"]), "`frame`.*column 'pipeline'"),
        (lambda f: f.assign(pipeline=["dcn", np.nan, "dcn", "dcn"]), "`frame`.*column 'pipeline'"),
        (lambda f: arrow(f, pa.array(["b", "a", None, "b"])), "`frame`.*column 'pipeline'"),
    ],
)
def test_a_wrong_frame_is_refused_as_a_whole(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        Ledger.from_frame(change(FRAME), tmp_path)
    for directions in ({"val_auc": "max"}, {"uplift": "up"}):
        with pytest.raises(ValueError, match="`directions` must"):
            Ledger.from_frame(FRAME, tmp_path, directions=directions)
    assert len(Ledger(tmp_path)) == 0


def test_a_comparison_names_a_metric_of_the_frame(tmp_path):
    ledger = Ledger.from_frame(FRAME, tmp_path)
    with pytest.raises(ValueError, match="Pass metric='val_loss'"):
        compare(ledger, "dcn", "deepfm")


def test_a_run_of_the_ledger_is_refused(tmp_path):
    Ledger.from_frame(FRAME[:1], tmp_path)
    with pytest.raises(ValueError, match=r"`frame`.*'dcn', seed=1"):
        Ledger.from_frame(FRAME, tmp_path)
    assert len(Ledger(tmp_path)) == 1
