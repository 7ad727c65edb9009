import keras
import numpy as np
import pytest

from keras_calibration.seeds import Ledger, import_csv, import_mlflow, import_tensorboard


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
        ("seed,loss\n1,0.5\n", r"must have the columns \['pipeline'\]"),
        (
            "pipeline,seed,loss\ndcn,1,0.5\ndcn,2,low\n",
            "must be a number.*'low' in line 3 of the column 'loss'",
        ),
        # Each of these was a seed 1 before, or a crash.
        (
            "pipeline,seed,loss\ndcn,1.9,0.5\n",
            "integer.*'1.9' in line 2 of the column 'seed'",
        ),
        (
            "pipeline,seed,loss\ndcn,inf,0.5\n",
            "integer.*'inf' in line 2 of the column 'seed'",
        ),
        (
            "pipeline,seed,loss\ndcn,nan,0.5\n",
            "integer.*'nan' in line 2 of the column 'seed'",
        ),
        ("pipeline,seed,loss\ndcn,,0.5\n", "integer.*'' in line 2 of the column 'seed'"),
        (
            "pipeline,seed,loss\ndcn,1e999999999,0.5\n",
            "'1e999999999' in line 2 of the column 'seed'",
        ),
        ("pipeline,seed,epoch,loss\ndcn,1,0.5,0.5\n", "'0.5' in line 2 of the column 'epoch'"),
        (
            f"pipeline,seed,loss\ndcn,1,{'x' * 131_073}\n",
            r"\(131,073 characters\) in line 2 of the column 'loss'",
        ),
        ("pipeline,seed,loss\ndcn,1\n", "each of the 3 columns.*2 cells in line 2"),
        ("pipeline,seed,loss\ndcn,1,0.5,0.5\n", "4 cells in line 2 "),
        ("pipeline,seed,loss,loss\ndcn,1,0.5,0.4\n", "several columns 'loss'"),
        ("pipeline,seed,epoch,loss\ndcn,1,0,0.5\ndcn,1,0,0.4\n", "strictly increasing"),
        ("pipeline,seed,loss\ndcn,1,0.5\n,2,0.5\n", "a non-empty string"),
    ],
)
def test_a_wrong_table_is_not_taken_at_all(tmp_path, runs, text, message):
    with pytest.raises(ValueError, match=message):
        import_csv(runs, write(tmp_path, text))
    assert len(runs) == 0


def test_seeds_are_taken_exactly(tmp_path, runs):
    seeds = [2**53, 2**53 + 1, 2**64 - 1, 7]
    text = "".join(f"dcn,{seed},0.5\n" for seed in (*seeds[:3], "7.0"))
    import_csv(runs, write(tmp_path, f"pipeline,seed,loss\n\n{text}"))
    assert [run["seed"] for run in runs.runs()] == seeds


def test_what_is_no_text_is_refused(tmp_path, runs):
    path = tmp_path / "table.csv"
    path.write_bytes(b"pipeline,seed,loss\nd\xffn,1,0.5\n")
    with pytest.raises(ValueError, match=r"must be a CSV file in UTF-8.*table\.csv"):
        import_csv(runs, path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics/loss", "1 0.5 0\n1 0.5\n", "time, value and step.*'1 0.5' in line 2"),
        ("metrics/loss", "1 low 0\n", "must be a number.*'low' in line 1"),
        ("params/seed", "1.9", "integer.*'1.9' in .*seed"),
    ],
)
def test_a_wrong_run_of_mlflow(tmp_path, runs, name, text, message):
    for path, content in {"metrics/loss": "1 0.5 0\n", "params/seed": "7", name: text}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    with pytest.raises(ValueError, match=message):
        import_mlflow(runs, tmp_path, pipeline="dcn")


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
    import_mlflow(runs, folder, pipeline="dcn")
    (run,) = runs.runs()
    assert (run["seed"], run["epochs"]) == (7, [0, 1])
    assert run["metrics"] == {"auc": [None, 0.8], "val/loss": [0.5, 0.4]}
    assert run["configuration"] == {"lr": "0.1", "seed": "7"}
    with pytest.raises(ValueError, match="a run with metrics"):
        import_mlflow(runs, tmp_path, pipeline="dcn")


def write_events(path, events):
    """An event file of (tag, step, value); an array is stored as a tensor, as Keras does."""
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as file:
        for tag, step, value in events:
            if isinstance(value, float):
                entry = tf.compat.v1.Summary.Value(tag=tag, simple_value=value)
            else:
                entry = tf.compat.v1.Summary.Value(tag=tag, tensor=tf.make_tensor_proto(value))
            summary = tf.compat.v1.Summary(value=[entry])
            file.write(tf.compat.v1.Event(step=step, summary=summary).SerializeToString())


@pytest.mark.tensorflow
def test_a_run_of_tensorboard(tmp_path, runs):
    train = [("epoch_loss", step, np.float32(0.5 - step / 8)) for step in (0, 1, 2)]
    other = [("batch_loss", 700, np.float32(9)), ("keras", 0, np.array("text"))]
    write_events(tmp_path / "log/train/events.out.tfevents.1.host", [*train, *other])
    held_out = [("epoch_auc", 1, np.float32(0.75)), ("evaluation_auc_vs_iterations", 90, 0.1)]
    write_events(tmp_path / "log/validation/events.out.tfevents.2.host", held_out)
    # After a restart from epoch 2.
    again = [("epoch_loss", 2, np.float32(0.125))]
    write_events(tmp_path / "log/train/events.out.tfevents.3.host", again)
    import_tensorboard(runs, tmp_path / "log", pipeline="dcn", seed=4)
    (run,) = runs.runs()
    assert (run["pipeline"], run["seed"], run["status"]) == ("dcn", 4, "finished")
    assert run["epochs"] == [0, 1, 2]
    assert run["metrics"] == {"loss": [0.5, 0.375, 0.125], "val_auc": [None, 0.75, None]}


@pytest.mark.tensorflow
def test_scalars_of_another_program_keep_their_tags_and_steps(tmp_path, runs):
    path = tmp_path / "events.out.tfevents.1.host"
    write_events(path, [("eval/loss", 100, 0.5), ("eval/loss", 200, float("nan"))])
    import_tensorboard(runs, tmp_path, pipeline="dcn", seed=1)
    (run,) = runs.runs()
    assert (run["epochs"], run["status"]) == ([100, 200], "diverged")
    assert run["metrics"]["eval/loss"][0] == 0.5


@pytest.mark.tensorflow
def test_event_files_cut_off_are_taken_as_far_as_they_go(tmp_path, runs):
    path = tmp_path / "train" / "events.out.tfevents.1.host"
    write_events(path, [("epoch_loss", 0, 0.5), ("epoch_loss", 1, 0.25)])
    path.write_bytes(path.read_bytes()[:-5])
    import_tensorboard(runs, tmp_path, pipeline="dcn", seed=1)
    assert runs.runs()[0]["metrics"] == {"loss": [0.5]}


@pytest.mark.tensorflow
def test_two_runs_of_tensorboard_are_not_mixed(tmp_path, runs):
    for run in ("a", "b"):
        write_events(tmp_path / run / "train/events.out.tfevents.1.x", [("epoch_loss", 0, 0.5)])
    with pytest.raises(ValueError, match=r"must be the log_dir of one run.*runs in \['a', 'b'\]"):
        import_tensorboard(runs, tmp_path, pipeline="dcn", seed=1)
    with pytest.raises(ValueError, match="with 0 scalars"):
        import_tensorboard(runs, tmp_path / "none", pipeline="dcn", seed=1)
    assert len(runs) == 0


@pytest.mark.tensorflow
def test_what_keras_itself_logs(tmp_path, runs):
    pytest.importorskip("tensorboard", reason="Keras logs for TensorBoard only where it is there.")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    x = np.ones((8, 1))
    logger = keras.callbacks.TensorBoard(tmp_path / "log", write_graph=False)
    history = model.fit(x, x, epochs=2, verbose=0, validation_data=(x, x), callbacks=[logger])
    import_tensorboard(runs, tmp_path / "log", pipeline="dcn", seed=1)
    (run,) = runs.runs()
    for name, values in history.history.items():
        np.testing.assert_allclose(run["metrics"][name], values, rtol=1e-6)
