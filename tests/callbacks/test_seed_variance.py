import contextlib
import csv
import functools
import importlib.metadata
import json
import math
import shutil
import tempfile

import joblib
import keras
import numpy as np
import pandas as pd
import pytest

import metric_references as references
from calibration_records.comparison.pipeline_runs import gather_runs
from calibration_records.runs.metric_names import main_metric
from keras_calibration.callbacks import SeedVariance
from keras_calibration.callbacks.chief import is_chief
from keras_calibration.callbacks.kept_epoch import checksum_of
from keras_calibration.metrics import CalibratedLogLoss, CalibrationRatio, FieldECE, LogLoss
from keras_calibration.models import FieldMetricsModel
from keras_calibration.seeds import Ledger
from printed import numbers_of

X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
NAN = pytest.approx(math.nan, nan_ok=True)
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")


def make_model(seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    # Eager: for a few batches, that is much faster than tracing; the callback sees the same.
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", run_eagerly=True)
    return model


def fit(callback, seed, y=Y, after=(), epochs=2, model=None, **options):
    """Trains one seed and returns its history, as the user sees it."""
    model = make_model(seed) if model is None else model
    options = {"validation_data": (X, Y), "batch_size": len(X), "verbose": 0, **options}
    return model.fit(X, y, epochs=epochs, callbacks=[callback, *after], **options).history


def train(ledger, seed, y=Y, after=(), epochs=2, pipeline="small", options=(), **arguments):
    """Trains one seed with a callback of these arguments and returns its history."""
    callback = SeedVariance(ledger, pipeline, seed, **{"verbose": 0, **arguments})
    return fit(callback, seed, y, after, epochs, **dict(options))


class Fail(keras.callbacks.Callback):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise self.error


def test_statistics_over_three_seeds_agree_with_numpy(tmp_path):
    histories = []
    for count, seed in enumerate((1, 2, 3), start=1):
        callback = SeedVariance(tmp_path, "small", seed, verbose=0)
        history = fit(callback, seed)
        histories.append(history)
        for name in ("loss", "val_loss"):
            values = np.array([earlier[name] for earlier in histories], np.float64)
            reference = {
                "count": [count] * 2,
                "mean": values.mean(axis=0),
                "std": values.std(axis=0, ddof=1) if count > 1 else [math.nan] * 2,
                "min": values.min(axis=0),
                "max": values.max(axis=0),
            }
            by_epoch = [callback.statistics(epoch)[name] for epoch in (0, 1)]
            for statistic, expected in reference.items():
                epoch_values = [statistics[statistic] for statistics in by_epoch]
                assert all(type(value) is float for value in epoch_values)
                np.testing.assert_allclose(epoch_values, expected, rtol=1e-12)
            assert callback.statistics()[name] == pytest.approx(by_epoch[1], nan_ok=True)
            if name == "val_loss":
                # The progress line has two of them, of one metric; of one run, it has none.
                shown = ("mean", "std") if count > 1 else ()
                expected = {f"seed/{name}_{s}": [epoch[s] for epoch in by_epoch] for s in shown}
                assert {key: history[key] for key in history if "seed/" in key} == expected
        assert callback.statistics(9) == {
            name: {"count": 0.0, **dict.fromkeys(("mean", "std", "min", "max"), NAN)}
            for name in ("loss", "val_loss")
        }
        for epoch in ("last", -1, 0.5):
            with pytest.raises(ValueError, match="`epoch`"):
                callback.statistics(epoch)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("auc loss val_calibrated_log_loss val_loss", "val_calibrated_log_loss"),
        ("val_averaged_calibrated_log_loss val_calibrated_log_loss", "val_calibrated_log_loss"),
        ("val_a_calibrated_quadratic_loss val_loss", "val_a_calibrated_quadratic_loss"),
        ("calibrated_log_loss loss val_loss", "val_loss"),
        ("calibrated_log_loss loss", "calibrated_log_loss"),
        ("loss val_calibrated_log_loss_bias val_calibration_gain", "loss"),
        ("auc", None),
    ],
)
def test_which_metric_is_shown_if_none_is_named(names, expected):
    assert main_metric(names.split()) == expected


def test_record_of_a_run(tmp_path):
    initial = make_model(5).get_weights()
    more = {"seeds": {"initialization": 5, "order": 0}, "num_rows": 64}
    history = train(Ledger(tmp_path), 5, configuration={"units": [1]}, epochs=2, **more)
    (run,) = Ledger(tmp_path).runs("small")
    assert (run["seed"], run["status"], run["epochs"]) == (5, "finished", [0, 1])
    assert run["metrics"] == {name: history[name] for name in ("loss", "val_loss")}
    assert run["configuration"] == {"units": [1]}
    assert {name: run[name] for name in more} == more
    assert run["backend"] == keras.backend.backend()
    packages = ("keras", "tensorflow", "numpy", "keras-calibration")
    assert run["versions"] == {name: importlib.metadata.version(name) for name in packages}
    assert run["initial_weights"] == joblib.hash(initial)


def test_callbacks_after_it_see_the_keys(tmp_path):
    train(tmp_path / "runs", 1, epochs=3)
    stopping = keras.callbacks.EarlyStopping("seed/val_loss_mean", mode="max", patience=1)
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    callback = SeedVariance(tmp_path / "runs", "small", 2, verbose=0)
    history = fit(callback, 2, after=[logger, stopping], epochs=3)
    # The mean loss does not rise after the first epoch.
    assert len(history["loss"]) == 2
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name, values in history.items():
        np.testing.assert_array_equal([float(row[name]) for row in rows], values)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("lacks", ["epochs", "finite values", "the metric"])
def test_every_epoch_has_the_same_keys(tmp_path, lacks):
    """Whatever earlier seeds have: a history is a table, as pandas reads it."""
    labels = np.full_like(Y, np.nan) if lacks == "finite values" else Y
    options = {"validation_data": None} if lacks == "the metric" else {}
    train(tmp_path, 1, labels, epochs=1 if lacks == "epochs" else 2, options=options)
    table = pd.DataFrame(train(tmp_path, 2, epochs=2))
    shown = [name.rpartition("_")[2] for name in table if name.startswith("seed/")]
    assert shown == (["mean", "std"] if lacks == "epochs" else [])
    assert lacks != "epochs" or math.isnan(table["seed/val_loss_std"].iloc[-1])


@pytest.mark.slow
def test_epochs_that_earlier_runs_lack(tmp_path):
    first = train(tmp_path, 1, epochs=1)
    second = train(tmp_path, 2, epochs=3)
    assert np.isnan(second["seed/val_loss_std"]).tolist() == [False, True, True]
    expected = np.mean([first["val_loss"][0], second["val_loss"][0]])
    means = [expected, *second["val_loss"][1:]]
    np.testing.assert_allclose(second["seed/val_loss_mean"], means, rtol=1e-12)
    callback = SeedVariance(tmp_path, "small", 3, verbose=0)
    later = fit(callback, 3, epochs=5, initial_epoch=2)
    assert np.isnan(later["seed/val_loss_std"]).tolist() == [False, True, True]
    assert callback.statistics(2)["loss"]["min"] == min(second["loss"][2], later["loss"][0])
    assert callback.statistics(1)["loss"]["count"] == 1.0
    # Each run's last values.
    assert callback.statistics()["loss"]["count"] == 3.0


@pytest.mark.slow
def test_a_diverged_seed_does_not_vanish(tmp_path, capsys):
    train(tmp_path, 1, y=np.full_like(Y, np.nan))
    assert [run["status"] for run in Ledger(tmp_path).runs()] == ["diverged"]
    history = train(tmp_path, 2, verbose=1)
    assert not any(name.startswith("seed/") for name in history)
    assert numbers_of(capsys.readouterr().out)[:2] == ["1", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("error", [RuntimeError("no more data"), KeyboardInterrupt()])
def test_a_run_that_dies_stays_as_started(tmp_path, capsys, error):
    with pytest.raises(type(error)):
        train(tmp_path, 1, after=[Fail(error)])
    assert [run["status"] for run in Ledger(tmp_path).runs()] == ["started"]
    assert not any(name.startswith("seed/") for name in train(tmp_path, 2, verbose=1))
    assert numbers_of(capsys.readouterr().out)[:2] == ["1", "1"]


def test_of_the_runs_with_one_seed_the_latest_counts(tmp_path):
    train(tmp_path, 1, epochs=1)
    again = train(tmp_path, 1, epochs=1, y=1.0 - Y)
    assert not any(name.startswith("seed/") for name in again)
    other = train(tmp_path, 2, epochs=1)
    expected = np.mean([again["val_loss"][0], other["val_loss"][0]])
    np.testing.assert_allclose(other["seed/val_loss_mean"], [expected], rtol=1e-12)
    assert len(Ledger(tmp_path)) == 3


def test_a_callback_can_be_used_again(tmp_path):
    callback = SeedVariance(tmp_path, "small", 1, verbose=0)
    model = make_model(1)
    for epochs in (3, 2):
        history = fit(callback, 1, epochs=epochs, model=model, validation_data=None)
        assert callback.statistics(1)["loss"]["count"] == 1.0
        assert callback.statistics(1)["loss"]["mean"] == history["loss"][1]
    assert [run["epochs"] for run in Ledger(tmp_path).runs()] == [[0, 1, 2], [0, 1]]


def test_warns_of_a_seed_that_changes_nothing(tmp_path):
    train(tmp_path, 1, epochs=1)
    callback = SeedVariance(tmp_path, "small", 2, verbose=0)
    with pytest.warns(UserWarning, match=r"Seed 2 .*same initial weights.*\[1\]"):
        fit(callback, 1, epochs=1)


def test_a_fit_of_no_epochs_is_a_run_without_values(tmp_path, capsys):
    train(tmp_path, 1, epochs=0, verbose=1)
    # No table is printed, and no seed counts.
    assert numbers_of(capsys.readouterr().out) == ["0"]
    assert Ledger(tmp_path).runs()[0]["epochs"] == []
    assert not any(name.startswith("seed/") for name in train(tmp_path, 2, epochs=1))


def test_says_that_the_monitored_metric_was_never_in_the_logs(tmp_path):
    with pytest.warns(UserWarning, match=r"monitor='val_auc'; the logs have \['loss', 'val_loss'"):
        history = train(tmp_path, 1, monitor="val_auc")
    assert not any(name.startswith("seed/") for name in history)
    assert Ledger(tmp_path).runs()[0]["status"] == "finished"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pipeline": ""}, "`pipeline`"),
        ({"seed": "one"}, "seed='one'"),
        ({"monitor": ["loss"]}, r"`monitor`"),
        ({"configuration": object()}, "`configuration`"),
        ({"configurations": 1}, "'configurations'.*Did you mean 'configuration'"),
        ({"status": "done"}, "'status'"),
    ],
)
def test_refuses_wrong_arguments_before_training(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        SeedVariance(**{"ledger": tmp_path, "pipeline": "small", "seed": 1, **arguments})


def test_a_damaged_file_does_not_stop_training(tmp_path):
    train(tmp_path, 1, epochs=1)
    (tmp_path / "foreign.json").write_text("{")
    with pytest.warns(UserWarning, match=r"Skipped 1 .*foreign\.json"):
        history = train(tmp_path, 2, epochs=1)
    assert "seed/val_loss_mean" in history
    (tmp_path / "foreign.json").unlink()
    assert [run["seed"] for run in Ledger(tmp_path).runs(status="finished")] == [1, 2]


def call_at(epoch, action):
    def on_epoch_end(number, logs):
        if number == epoch:
            action()

    return keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)


@pytest.mark.slow
@pytest.mark.parametrize("since", [0, 1])
def test_a_full_disk_does_not_lose_the_model(tmp_path, monkeypatch, since):
    """Full from the start, or from the second epoch on; the run is kept elsewhere."""
    folder, refuge = tmp_path / "runs", tmp_path / "elsewhere"
    refuge.mkdir()
    write = Ledger._write

    def refuse(self, *arguments):
        if self.path == folder:
            raise OSError(28, "No space left on device")
        write(self, *arguments)

    def fill_disk():
        monkeypatch.setattr(Ledger, "_write", refuse)

    monkeypatch.setattr(tempfile, "tempdir", str(refuge))
    if since == 0:
        fill_disk()
    with pytest.warns(UserWarning, match="the ledger") as warned:
        history = train(folder, 1, after=[call_at(1, fill_disk)], epochs=3)
    assert len(history["loss"]) == 3
    messages = [text for warning in warned if "the ledger" in (text := str(warning.message))]
    assert len(messages) == 2 - since
    assert "No space left on device" in messages[-1]
    (path,) = refuge.glob("*/*.json")
    assert str(path) in messages[-1]
    (run,) = Ledger(path.parent).runs()
    assert (run["status"], run["metrics"]["val_loss"]) == ("finished", history["val_loss"])
    # As the warning says: the file may be copied into the ledger.
    monkeypatch.setattr(Ledger, "_write", write)
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder)
    assert run in Ledger(folder).runs()
    # Where no folder can be written, the training goes on all the same.
    monkeypatch.setattr(Ledger, "_write", lambda *arguments: refuse(Ledger(folder)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.warns(UserWarning, match="the ledger") as warned:
        assert len(train(folder, 2)["loss"]) == 2
    assert "nowhere else: its metrics are in the history" in str(warned[-1].message)


# The held-out labels are those of training, flipped: each epoch is worse than the one before.
WORSE = {"validation_data": (X, 1 - Y)}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("epochs", [9, 2])
def test_records_the_epoch_that_early_stopping_restores(tmp_path, capsys, is_first, epochs):
    # With two epochs training ends before it is stopped; the weights are restored all the same.
    stopping = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    callbacks = [SeedVariance(tmp_path, "small", 1), stopping]
    first, second = callbacks if is_first else callbacks[::-1]
    model = make_model(1)
    history = fit(first, 1, after=[second], epochs=epochs, model=model, **WORSE)
    assert len(history["loss"]) == min(epochs, 3)
    (run,) = Ledger(tmp_path).runs()
    assert run["kept_epoch"] == 0
    assert run["metrics"]["val_loss"] == history["val_loss"]
    # What counts is the model that `fit` leaves behind.
    kept = model.evaluate(X, 1 - Y, verbose=0)
    for values in (
        gather_runs([run], "small", ["val_loss"]).values["val_loss"],
        [float(capsys.readouterr().out.splitlines()[-1].split()[-1])],
    ):
        np.testing.assert_allclose(values, [kept], rtol=1e-5)
    last = gather_runs([run], "small", ["val_loss"], epoch="last").values["val_loss"][0]
    assert last == history["val_loss"][-1] > kept


def test_a_run_that_diverged_after_the_epoch_it_restores_counts(tmp_path):
    stopping = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    callback = SeedVariance(tmp_path, "small", 1, verbose=0)
    model = make_model(1)
    spoil = call_at(1, lambda: model.set_weights([w * np.nan for w in model.get_weights()]))
    fit(callback, 1, after=[spoil, stopping], epochs=4, model=model, **WORSE)
    (run,) = Ledger(tmp_path).runs()
    assert (run["status"], run["kept_epoch"]) == ("finished", 0)
    assert math.isnan(run["metrics"]["val_loss"][-1])
    for epoch, num_diverged in (("kept", 0), ("last", 1)):
        gathered = gather_runs([run], "small", ["val_loss"], epoch=epoch)
        assert gathered.num_diverged == num_diverged


class Keep(keras.callbacks.Callback):
    """Sets the weights of an epoch at the end of training, or after another epoch."""

    def __init__(self, epoch, after=None):
        super().__init__()
        self.epoch, self.after = epoch, after

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            self.weights = self.model.get_weights()
        if epoch == self.after:
            self.model.set_weights(self.weights)

    def on_train_end(self, logs=None):
        if self.after is None:
            self.model.set_weights(self.weights)


class LoadBest(keras.callbacks.Callback):
    """Loads the weights that a checkpoint has saved."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_end(self, logs=None):
        self.model.load_weights(self.path)


def early_stopping(monitor, mode="min"):
    return keras.callbacks.EarlyStopping(monitor, patience=9, mode=mode, restore_best_weights=True)


def keepers(path):
    """Callbacks that keep epoch 0, 1, 2 or 3 of four, where each epoch is worse on other labels."""
    weights_only = path / "best.weights.h5"
    best = {"save_best_only": True, "monitor": "val_loss"}
    return {
        "best": early_stopping("val_loss"),
        "worst": early_stopping("val_loss", "max"),
        "own": Keep(2),
        "within": Keep(1, after=3),
        "checkpoint": keras.callbacks.ModelCheckpoint(path / "best.keras", **best),
        "weights": keras.callbacks.ModelCheckpoint(weights_only, save_weights_only=True, **best),
        "load": LoadBest(weights_only),
    }


@pytest.mark.parametrize(
    "names",
    [
        *("best worst", "worst best", "best own", "own best", "checkpoint", "checkpoint worst"),
        *("best checkpoint own", "weights load", "weights load worst", "worst weights load"),
        *("within", "within best", ""),
    ],
)
def test_the_recorded_epoch_is_that_of_the_weights_that_the_model_has(tmp_path, names):
    callbacks = [keepers(tmp_path)[name] for name in names.split()]
    model = make_model(1)
    weights = []
    record = call_at_every_epoch(lambda: weights.append(np.concatenate(flat_weights(model))))
    # Before all others, after the first, and after all.
    first, second, last = (SeedVariance(tmp_path / p, "small", 1, verbose=0) for p in "abc")
    callbacks = [first, *callbacks[:1], second, *callbacks[1:], last]
    fit(record, 1, after=callbacks, epochs=4, model=model, **WORSE)
    final = np.concatenate(flat_weights(model))
    expected = next(epoch for epoch, values in enumerate(weights) if (values == final).all())
    left = model.evaluate(X, 1 - Y, verbose=0)
    for place in "abc":
        (run,) = Ledger(tmp_path / place).runs()
        assert run["kept_epoch"] == ("last" if expected == 3 else expected)
        np.testing.assert_allclose(run["metrics"]["val_loss"][expected], left, rtol=1e-5)


def flat_weights(model):
    return [weight.ravel() for weight in model.get_weights()]


def call_at_every_epoch(function):
    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: function())


def test_weights_of_no_epoch_leave_the_kept_epoch_open(tmp_path):
    # The optimizer sets averages after the last epoch.
    averaging = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    averaging.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), loss="mse")
    callback = SeedVariance(tmp_path, "small", 1, verbose=0)
    averaging.fit(X, Y, epochs=3, callbacks=[callback], verbose=0)
    # A history that the user has passed may stand before callbacks that restore weights.
    callback = SeedVariance(tmp_path, "small", 2, verbose=0)
    fit(keras.callbacks.History(), 2, after=[callback, early_stopping("val_loss")], **WORSE)
    # Epochs after the first restore weights of an earlier fit.
    model, first = make_model(3), Keep(0)
    fit(first, 3, epochs=1, model=model)
    first.epoch = None
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=0)
    callback = SeedVariance(tmp_path, "small", 3, verbose=0)
    with pytest.warns(UserWarning, match="callback has stopped"):
        fit(callback, 3, after=[stopping, first], epochs=9, model=model, **WORSE)
    assert [run["kept_epoch"] for run in Ledger(tmp_path).runs()] == [None, None, None]


def test_weights_that_no_longer_change_are_those_of_the_last_epoch(tmp_path):
    # The loss of an epoch is that of the weights before its last step: finite, then NaN.
    model = make_model(1)
    spoil = call_at(1, lambda: model.set_weights([w * np.nan for w in model.get_weights()]))
    callback = SeedVariance(tmp_path, "small", 1, verbose=0)
    fit(spoil, 1, after=[callback], epochs=4, model=model)
    (run,) = Ledger(tmp_path).runs()
    assert (run["status"], run["kept_epoch"]) == ("diverged", "last")


def test_every_kind_of_weight_has_a_checksum():
    layer = keras.layers.Dense(2, dtype="bfloat16")
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.BatchNormalization()])
    model.add(keras.layers.Rescaling(2.0))
    before = checksum_of(model)
    assert len(before) == len(model.weights) == 6
    for changed, weight in enumerate(model.weights):
        weight.assign(weight + 1)
        after = checksum_of(model)
        pairs = zip(before, after, strict=True)
        assert [new != old for new, old in pairs] == [i == changed for i in range(6)]
        before = after


def test_records_which_direction_is_better(tmp_path):
    class HitRate(keras.metrics.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            super().update_state(y_pred)

    class Uplift(HitRate):
        _direction = "up"

    class Improvement(keras.metrics.MeanSquaredError):
        def result(self):
            return 1 - super().result()

    metrics = [Uplift(name="uplift"), HitRate(name="lower"), Improvement(name="better")]
    metrics += [keras.metrics.R2Score(name="fit"), CalibrationRatio()]
    model = make_model(1)
    model.compile(loss="binary_crossentropy", metrics=metrics, run_eagerly=True)
    callback = SeedVariance(tmp_path, "small", 1, verbose=0)
    fit(callback, 1, epochs=1, model=model)
    (run,) = Ledger(tmp_path).runs()
    names = ("loss", "uplift", "lower", "better", "fit", "calibration_ratio")
    held_out = {f"val_{name}" for name in names}
    assert held_out <= set(run["metrics"])
    directions = {name: way for name, way in run["directions"].items() if name in held_out}
    assert directions == {"val_loss": "min", "val_uplift": "max", "val_fit": "max"}


def test_directions_of_several_outputs_and_of_field_metrics(tmp_path):
    inputs = {"x": keras.Input((1,), name="x"), "neg": keras.Input((), dtype="int32", name="neg")}
    outputs = [keras.layers.Dense(1, "sigmoid", name=n)(inputs["x"]) for n in ("buy", "loss")]
    several = keras.Model(inputs, outputs)
    several.compile("sgd", "mse", metrics=[["auc"], ["mae"]], run_eagerly=True)
    by_field = FieldMetricsModel(inputs, outputs[0])
    by_field.compile("sgd", "mse", field_metrics={"neg": [FieldECE(2)]}, run_eagerly=True)
    x, y = {"x": X[:, :1], "neg": np.arange(len(X)) % 2}, Y
    for model, labels in ((several, [y, y]), (by_field, y)):
        callback = SeedVariance(tmp_path, "a", 1, verbose=0)
        model.fit(x, labels, batch_size=len(X), verbose=0, callbacks=[callback])
    of_several, of_fields = (run["directions"] for run in Ledger(tmp_path).runs())
    losses = dict.fromkeys(("loss", "buy_loss", "loss_loss", "loss_mae"), "min")
    assert of_several == {**losses, "buy_auc": "max"}
    assert of_fields == {"loss": "min", "neg_field_ece": "min"}


def test_losses_and_biases_of_calibrated_losses_have_the_names_of_the_logs(tmp_path):
    """Of equal names, of weighted metrics, of several outputs; without the penalty of `loss`."""
    inputs = keras.Input((3,))
    outputs = {
        name: keras.layers.Dense(1, "sigmoid", kernel_regularizer="l2", name=name)(inputs)
        for name in ("buy", "click")
    }
    make = functools.partial(CalibratedLogLoss, num_folds=1)
    metrics = {"buy": [make(), make()], "click": [make(name="other")]}
    model = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        "binary_crossentropy",
        metrics=metrics,
        weighted_metrics={"buy": [make()]},
        run_eagerly=True,
    )
    labels = {"buy": Y[:, 0], "click": 1 - Y[:, 0] * (X[:, 0] > -1)}
    weights = np.arange(1.0, len(X) + 1)
    held_out = (X, labels, {"buy": weights, "click": weights})
    callback = SeedVariance(tmp_path, "a", 1, verbose=0)
    options = {"validation_data": held_out, "batch_size": len(X), "verbose": 0}
    model.fit(X, labels, callbacks=[callback], **options)
    (run,) = Ledger(tmp_path).runs()
    values = {name: series[-1] for name, series in run["metrics"].items()}
    p = {name: column[:, 0].astype(float) for name, column in model.predict(X, verbose=0).items()}

    ones, buy = np.ones(len(X)), "buy_calibrated_log_loss"
    expected = {buy: ones, f"{buy}_1": ones, "buy_weighted_calibrated_log_loss": weights}
    for name, w in expected.items():
        rows = references.Rows(labels["buy"], p["buy"], w, ones, ones)
        assert values[f"val_{name}_bias"] == pytest.approx(references.best_bias(rows), abs=1e-5)
        plain = "val_" + name.replace("calibrated_", "")
        assert values[plain] == pytest.approx(references.log_loss(rows), rel=1e-5)
        assert run["directions"][plain] == "min"
    rows = references.Rows(labels["click"], p["click"], ones, ones, ones)
    assert values["val_click_other_bias"] == pytest.approx(references.best_bias(rows), abs=1e-5)
    assert len([name for name in values if name.startswith("val_") and "bias" in name]) == 4


@pytest.mark.parametrize("weighted", ["calibrated", "plain", "both"])
def test_a_loss_of_the_user_with_other_weights_is_no_partner(weighted, tmp_path):
    metrics = {"calibrated": CalibratedLogLoss(num_folds=1), "plain": LogLoss()}
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    of_weights = [metric for name, metric in metrics.items() if weighted in (name, "both")]
    others = [metric for metric in metrics.values() if metric not in of_weights]
    model.compile("sgd", "mse", metrics=others, weighted_metrics=of_weights, run_eagerly=True)
    weights = np.where(Y[:, 0] > 0, 1.0, 9.0)
    callback = SeedVariance(tmp_path, "a", 1, verbose=0)
    held_out = {"validation_data": (X, Y, weights), "verbose": 0}
    model.fit(X, Y, callbacks=[callback], **held_out)
    (run,) = Ledger(tmp_path).runs()
    values = {name: series[-1] for name, series in run["metrics"].items()}
    p, ones = model.predict(X, verbose=0)[:, 0].astype(float), np.ones(len(X))
    plain, weighted_loss = (
        references.log_loss(references.Rows(Y[:, 0], p, w, ones, ones)) for w in (ones, weights)
    )
    theirs, own = (plain, weighted_loss) if weighted == "calibrated" else (weighted_loss, plain)
    assert values["val_log_loss"] == pytest.approx(theirs, rel=1e-5)
    if weighted == "both":
        assert "val_plain_log_loss" not in values
    else:
        assert values["val_plain_log_loss"] == pytest.approx(own, rel=1e-5)
        assert run["directions"]["val_plain_log_loss"] == "min"


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_callback_that_evaluates_other_rows_leaves_no_wrong_figures(comes_first, tmp_path):
    other = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: model.evaluate(X[:20], 1 - Y[:20], verbose=0)
    )
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=[CalibratedLogLoss()], run_eagerly=True)
    callback = SeedVariance(tmp_path, "a", 1, verbose=0)
    callbacks = [other, callback] if comes_first else [callback, other]
    options = {"validation_data": (X, Y), "callbacks": callbacks, "verbose": 0}
    with (
        pytest.warns(UserWarning, match="SeedVariance before")
        if comes_first
        else contextlib.nullcontext()
    ):
        model.fit(X, Y, **options)
    (run,) = Ledger(tmp_path).runs()
    values = {name: series[-1] for name, series in run["metrics"].items()}
    if comes_first:
        assert not {"val_log_loss", "val_calibrated_log_loss_bias"} & {*values}
    else:
        assert values["val_log_loss"] == pytest.approx(values["val_loss"], rel=1e-5)


CLUSTER = {"worker": ["localhost:1", "localhost:2"]}


def work_as(monkeypatch, task, index, cluster=CLUSTER):
    config = {"cluster": cluster, "task": {"type": task, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_of_several_workers_the_chief_alone_writes(tmp_path, monkeypatch, capsys):
    train(tmp_path, 1)
    work_as(monkeypatch, "worker", 1)
    other = train(tmp_path, 2, verbose=1)
    assert len(Ledger(tmp_path)) == 1
    assert capsys.readouterr().out == ""
    work_as(monkeypatch, "worker", 0)
    chief = train(tmp_path, 2, verbose=1)
    assert [run["seed"] for run in Ledger(tmp_path).runs(status="finished")] == [1, 2]
    assert numbers_of(capsys.readouterr().out)[0] == "2"
    # What decides when to stop is the same for both.
    assert other == chief


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("task", "index", "cluster", "expected"),
    [
        ("chief", 0, {"chief": ["a:1"], "worker": ["b:1"]}, True),
        ("worker", 0, {"chief": ["a:1"], "worker": ["b:1"]}, False),
        ("worker", "0", CLUSTER, True),
        ("evaluator", 0, CLUSTER, False),
        ("ps", 0, {**CLUSTER, "ps": ["c:1"]}, False),
        ("worker", 1, {}, True),
    ],
)
def test_who_is_the_chief(monkeypatch, task, index, cluster, expected):
    work_as(monkeypatch, task, index, cluster)
    assert is_chief() is expected
