import pytest

from keras_calibration.seeds import Ledger, import_csv, import_mlflow


@pytest.fixture
def runs(tmp_path):
    return Ledger(tmp_path / "runs")


def write(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_epochs_of_a_run_are_gathered(tmp_path, runs):
    text = "pipeline,trial,epoch,val_loss,auc\ndcn,1,1,0.4,\ndcn,1,0,0.5,0.7\ndcn,2,0,0.6,0.8\n"
    import_csv(runs, write(tmp_path, text), columns={"seed": "trial"})
    first, second = runs.runs()
    assert (first["pipeline"], first["seed"], first["epochs"]) == ("dcn", 1, [0, 1])
    assert first["metrics"] == {"val_loss": [0.5, 0.4], "auc": [0.7, None]}
    assert (second["seed"], second["status"]) == (2, "finished")


def test_a_log_of_one_run(tmp_path, runs):
    path = write(tmp_path, "epoch,loss\n0,0.5\n1,nan\n")
    import_csv(runs, path, pipeline="dcn", seed=3)
    (run,) = runs.runs()
    assert (run["seed"], run["status"], run["epochs"]) == (3, "diverged", [0, 1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed,loss\n1,0.5\n", r"expected \['pipeline'\] among them"),
        ("pipeline,seed,loss\ndcn,1,0.5\ndcn,2,low\n", "'low' in line 3 .* expected a number"),
        ("pipeline,seed,epoch,loss\ndcn,1,0,0.5\ndcn,1,0,0.4\n", "strictly increasing"),
        ("pipeline,seed,loss\ndcn,1,0.5\n,2,0.5\n", "a non-empty string"),
    ],
)
def test_a_wrong_table_is_not_taken_at_all(tmp_path, runs, text, message):
    with pytest.raises(ValueError, match=message):
        import_csv(runs, write(tmp_path, text))
    assert len(runs) == 0


def test_a_run_of_mlflow(tmp_path, runs):
    folder = tmp_path / "mlruns" / "0" / "4f2c"
    for name, text in (
        ("metrics/val/loss", "1700000000000 0.5 0\n1700000000001 0.4 1\n"),
        ("metrics/auc", "1700000000001 0.8 1\n"),
        ("params/seed", "7"),
        ("params/lr", "0.1"),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    import_mlflow(runs, folder, "dcn")
    (run,) = runs.runs()
    assert (run["seed"], run["epochs"]) == (7, [0, 1])
    assert run["metrics"] == {"auc": [None, 0.8], "val/loss": [0.5, 0.4]}
    assert run["configuration"] == {"lr": "0.1", "seed": "7"}
    with pytest.raises(ValueError, match="a run with metrics"):
        import_mlflow(runs, tmp_path, "dcn")
