import keras
import numpy as np
import pytest

from keras_calibration.callbacks import LogitAverage, SeedVariance
from keras_calibration.metrics import CalibratedLogLoss
from keras_calibration.seeds import Ledger

X = np.random.default_rng(0).normal(size=(96, 3)).astype("float32")
Y = (X.sum(axis=1) + np.random.default_rng(1).normal(size=96) > 0).astype("float32")


class Logits(keras.callbacks.Callback):
    """Keeps the logits after each batch and each epoch, by hand."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs = [], []

    def logits(self):
        return X @ self.model.layers[0].kernel.numpy()[:, 0] + self.model.layers[0].bias.numpy()

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(self.logits())

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.logits())


def fit(average, activation="sigmoid", epochs=4, after=()):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation)])
    model.compile(
        optimizer=keras.optimizers.SGD(0.5),
        loss=keras.losses.BinaryCrossentropy(from_logits=activation is None),
        run_eagerly=True,  # much faster than tracing, for a few batches
    )
    kept = Logits()
    history = model.fit(
        X, Y[:, None], batch_size=32, epochs=epochs, verbose=0, callbacks=[average, kept, *after]
    )
    return history.history, kept


def log_loss(logits):
    return np.mean(np.logaddexp(0, logits) - Y * logits)


def calibrated_log_loss(logits):
    metric = CalibratedLogLoss(from_logits=True)
    metric.update_state(Y, logits.astype("float32"))
    return float(metric.result())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_the_mean_of_the_last_epochs(activation):
    average = LogitAverage((X, Y), num_evaluations=3, from_logits=activation is None)
    history, kept = fit(average, activation)
    expected = [log_loss(np.mean(kept.epochs[max(0, e - 2) : e + 1], axis=0)) for e in range(4)]
    np.testing.assert_allclose(history["val_averaged_log_loss"], expected, rtol=1e-5)
    losses = [log_loss(logits) for logits in kept.epochs]
    expected = [np.mean(losses[max(0, e - 2) : e + 1]) for e in range(4)]
    np.testing.assert_allclose(history["val_mean_log_loss"], expected, rtol=1e-5)
    losses = [calibrated_log_loss(logits) for logits in kept.epochs]
    expected = [np.mean(losses[max(0, e - 2) : e + 1]) for e in range(4)]
    np.testing.assert_allclose(history["val_mean_calibrated_log_loss"], expected, rtol=1e-5)
    mean = np.mean(kept.epochs[1:], axis=0)
    expected = calibrated_log_loss(mean)
    found = history["val_averaged_calibrated_log_loss"][-1]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# Three batches an epoch; the end of an epoch is always evaluated, and never twice.
@pytest.mark.slow
@pytest.mark.parametrize(("every", "batches"), [(1, [9, 10, 11]), (2, [8, 9, 11]), (9, [5, 8, 11])])
def test_evaluations_within_an_epoch(every, batches):
    history, kept = fit(LogitAverage((X, Y), num_evaluations=3, every=every))
    expected = log_loss(np.mean([kept.batches[batch] for batch in batches], axis=0))
    np.testing.assert_allclose(history["val_averaged_log_loss"][-1], expected, rtol=1e-5)
    expected = np.mean([log_loss(kept.batches[batch]) for batch in batches])
    np.testing.assert_allclose(history["val_mean_log_loss"][-1], expected, rtol=1e-5)


@pytest.mark.slow
def test_one_evaluation_is_the_model_itself():
    history, kept = fit(LogitAverage((X, Y), num_evaluations=1))
    expected = [log_loss(logits) for logits in kept.epochs]
    for way in ("averaged", "mean"):
        np.testing.assert_allclose(history[f"val_{way}_log_loss"], expected, rtol=1e-5)


@pytest.mark.slow
def test_another_fit_starts_anew():
    average = LogitAverage((X, Y), num_evaluations=9)
    first, second = (fit(average)[0] for _ in range(2))
    assert first == second


def test_the_ledger_gets_it(tmp_path):
    callback = SeedVariance(tmp_path, "small", 3, verbose=0)
    fit(LogitAverage((X, Y)), after=[callback])
    (run,) = Ledger(tmp_path).runs()
    assert "val_averaged_calibrated_log_loss" in run["metrics"]


def test_refuses_wrong_arguments():
    with pytest.raises(ValueError, match="num_evaluations=0"):
        LogitAverage((X, Y), num_evaluations=0)
    with pytest.raises(ValueError, match=r"must be a tuple \(x, labels\)\. Received: ndarray"):
        LogitAverage(X)
    with pytest.raises(ValueError, match="Received: 5 labels and 96 predictions"):
        fit(LogitAverage((X, Y[:5])))
