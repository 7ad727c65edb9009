"""Every number of the table of `SeedVariance` and of `keras-calibration runs`, from weights."""

import keras
import numpy as np
from scipy import special

import metric_references as references
from calibration_records.cli import main
from keras_calibration.callbacks import SeedVariance
from keras_calibration.metrics import CalibratedLogLoss
from keras_calibration.seeds import Ledger
from printed import check_numbers

CALIBRATED, BIAS = "calibrated_log_loss", "val_calibrated_log_loss_bias"
PLAIN = "val_log_loss"


def rows_of(num):
    rng = np.random.default_rng(num)
    x = rng.normal(size=(num, 3)).astype("float32")
    return x, (rng.random(num) < special.expit(x[:, 0] - 0.5)).astype("float32")


def values_of(rows, weights, prefix=""):
    """The metrics of a model with these weights, as it has them on one batch."""
    x, labels = (column.astype("float64") for column in rows)
    logits, one = x @ weights[0][:, 0] + weights[1], np.ones(len(x))
    rows = references.Rows(labels, logits, one, one, one, from_logits=True)
    values = {
        CALIBRATED: references.calibrated_log_loss(rows, num_folds=1),
        "loss": references.log_loss(rows),
        "mae": np.mean(np.abs(logits - labels)),
    }
    bias = {PLAIN: values["loss"], BIAS: references.best_bias(rows)} if prefix else {}
    return {prefix + name: value for name, value in values.items()} | bias


def train(ledger, seed):
    """A run of epochs of one batch, too fast to improve for long: its values at each epoch."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    train_rows, held_out, epochs = rows_of(256), rows_of(400), []

    class Values(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(values_of(train_rows, model.get_weights()))

        def on_epoch_end(self, epoch, logs=None):
            epochs[-1] |= values_of(held_out, model.get_weights(), "val_")

    metrics = [CalibratedLogLoss(num_folds=1, from_logits=True), "mae"]
    model.compile(
        keras.optimizers.SGD(20.0 + seed),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=metrics,
        run_eagerly=True,  # traces nothing, for a few batches
    )
    stop = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    callbacks = [Values(), stop, SeedVariance(ledger, "deepfm", seed)]
    options = {"validation_data": held_out, "callbacks": callbacks, "verbose": 0}
    history = model.fit(*train_rows, batch_size=256, epochs=6, **options).history
    # The epoch whose weights are restored.
    kept = int(np.argmin([epoch["val_loss"] for epoch in epochs]))
    return epochs, kept, history


def statistics(values):
    """Count, mean, deviation, least and largest; of one run, its value. Keras has float32."""
    if len(values) < 2:
        return [(values[0], 2e-6)]
    figures = [np.mean(values), np.std(values, ddof=1), min(values), max(values)]
    return [len(values), *((figure, 2e-6) for figure in figures)]


def test_every_number(tmp_path, capsys):
    ledger, found = Ledger(tmp_path / "runs"), []
    other = {"pipeline": "deepfm", "epochs": [0], "metrics": {"val_loss": [float("nan")]}}
    # The other metrics of a diverged run do not count either.
    metrics = {**other["metrics"], "loss": [0.5]}
    ledger.append({**other, "seed": 8, "status": "diverged", "metrics": metrics})
    ledger.append({**other, "seed": 9, "status": "started", "epochs": [], "metrics": {}})
    for seed in (1, 2, 3):
        capsys.readouterr()
        found.append(train(ledger, seed))
        kept = [epochs[number] for epochs, number, _ in found]
        columns = [statistics([run[name] for run in kept]) for name in kept[0]]
        # Seeds that count, diverged and unfinished; then the sign of the bias.
        check_numbers(capsys.readouterr().out, [[seed, 1, 1], columns, 0, 0])
    assert {number < len(epochs) - 1 for epochs, number, _ in found} == {True}

    # What the progress line shows at each epoch: of the runs that have reached it.
    epochs, _, history = found[-1]
    names = [f"seed/val_{CALIBRATED}_{name}" for name in ("mean", "std")]
    assert [name for name in history if name.startswith("seed/") or "bias" in name] == names
    for number in range(len(epochs)):
        reached = [run[number]["val_" + CALIBRATED] for run, *_ in found if number < len(run)]
        expected = [np.mean(reached), np.std(reached, ddof=1)]
        assert np.allclose([history[name][number] for name in names], expected, rtol=1e-5)

    assert main(["runs", str(ledger.path)]) == 0
    created = ledger.runs()[-1]["created"]
    longest = max(len(epochs) for epochs, *_ in found)
    last = [int(created[:10].replace("-", "")), int(created[11:13]), int(created[14:16])]
    check_numbers(capsys.readouterr().out, [3, 1, 1, 4, longest, last])
